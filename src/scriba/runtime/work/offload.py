"""Work that leaves the loop: a small pool of threads that are given values and give values back."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from scriba.runtime.work.budget import Budget

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_THREADS = 4
"""Enough that one slow fsync does not hold back a cold read; threads start when first needed."""


class ThreadOffload:
    def __init__(self, threads: int = DEFAULT_THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="scriba-offload")
        self.memory = Budget()

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Cancelling the caller does not stop work that has begun; its result is dropped."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(fn, *args, **kwargs))

    def close(self) -> None:
        """Waits for what was begun: an fsync under way must not outlive the node's lock."""
        self._pool.shutdown(wait=True)
