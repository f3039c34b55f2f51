"""`scriba up --ephemeral`: a node for somebody's tests, which leaves nothing behind.

Whoever starts it holds it by its standard input or by being its parent. When either is gone,
however it went, the node stops and its data is removed.
"""

import asyncio
import contextlib
import os
import select
import stat
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

CHECK_S: Final = 0.2
FEW_FILES: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""The coordinators' topics have no more partitions than one broker needs."""


@contextlib.contextmanager
def data_directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="scriba-", ignore_cleanup_errors=True) as path:
        yield path


async def abandoned(parent: int) -> None:
    """Returns when the parent has ended, or has closed the pipe that is our standard input.

    A terminal, a file or /dev/null there says nothing about anybody. What comes over the pipe is
    left in it: it may be for another.
    """
    pipe = _pipe()
    while os.getppid() == parent and not (pipe and _hung_up(pipe)):  # noqa: ASYNC110
        await asyncio.sleep(CHECK_S)


def _pipe() -> "select.poll | None":
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed from the start, or none at all
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    pipe = select.poll()
    pipe.register(sys.stdin.fileno(), getattr(select, "POLLRDHUP", 0))
    return pipe


def _hung_up(pipe: "select.poll") -> bool:
    return bool(pipe.poll(0))
