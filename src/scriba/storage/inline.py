"""An offload that does not leave: for tools, tests, and logs opened before there is a loop."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from scriba.runtime.work.budget import Budget

P = ParamSpec("P")
T = TypeVar("T")


class Inline:
    def __init__(self) -> None:
        self.memory = Budget()

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return fn(*args, **kwargs)
