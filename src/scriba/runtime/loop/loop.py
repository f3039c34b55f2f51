"""The event loop of a process: uvloop where it is installed, asyncio elsewhere."""

import asyncio
import logging
import resource
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

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
