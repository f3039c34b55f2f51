"""The event loop of a process: uvloop where it is installed, asyncio elsewhere."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end on a fresh loop; asyncio's debug mode, too slow here, stays off."""
    with asyncio.Runner(loop_factory=loop_factory(), debug=False) as runner:
        return runner.run(main)


def freeze() -> None:
    """Takes all that start-up made out of the collector's sight.

    Called once when a node serves: modules, schemas and settings live as long as the process, and
    a full collection that walks them again would hold the loop for milliseconds.
    """
    gc.collect()
    gc.freeze()
