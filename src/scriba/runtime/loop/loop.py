"""The event loop of a process: uvloop where it is installed, asyncio elsewhere."""

import asyncio
import gc
import logging
import resource
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

COLLECT_AFTER: Final = (5_000, 4, 500)
"""How often the collector runs, by its three generations. At its defaults a request that makes
hundreds of thousands of objects has all of them walked again and again, for a tenth of a second at
a time; they are not garbage, and what is goes by its reference count. The second generation is
looked at before it has more objects than a few milliseconds are enough for."""

T = TypeVar("T")

log = logging.getLogger(__name__)


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


def raise_file_limit() -> None:
    """Takes all descriptors that the process may have: a log needs one for every busy segment.

    Shells grant a thousand by default and allow many more to those who ask.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as refused:  # macOS names a limit that it does not grant
        log.info("open files stay limited to %d: %s", soft, refused)


@contextmanager
def without_collections() -> Iterator[None]:
    """For imports in a program of somebody else: what they make, it keeps."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def hold_collector() -> None:
    """Until `freeze` nothing is collected: what a start makes, it keeps."""
    gc.disable()


def freeze() -> None:
    """Takes all that start-up made out of the collector's sight.

    Called once when a node serves: modules, schemas and settings live as long as the process, and
    a full collection that walks them again would hold the loop for milliseconds. So would one
    here, for some three thousand small objects that are garbage: they stay.
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
