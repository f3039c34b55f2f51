"""The other end of `workers`: a process that runs one task after the other, as it is told.

It ends when its parent does: the parent's end closes its input, which a thread watches. So no task
outlives the process that owns the files it works on.

A task yields what it has to tell, or None where it has nothing to tell but might give way. One that
has only the time that nobody else wants does: the scheduler would else let it finish its slice, a
millisecond or more, while the node waits for the same processor.
"""

import os
import pickle
import select
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO, Final

from scriba.runtime.files.disk import PosixDisk
from scriba.runtime.work.offload import ThreadOffload

LENGTH: Final = struct.Struct(">I")
ITEM, END, ERROR = range(3)
"""What a frame to the parent holds."""

GO: Final = b"\x01"
"""What a frame from the parent holds besides a task: leave for one more item."""


def find_task(name: str) -> Callable[..., Iterator[Any]]:
    """The generator function that `module:function` names."""
    module, _, function = name.partition(":")
    task: Callable[..., Iterator[Any]] = getattr(import_module(module), function)
    return task


def frame(kind: int, value: Any) -> bytes:
    data = pickle.dumps((kind, value))
    return LENGTH.pack(len(data)) + data


def _read(source: BinaryIO) -> bytes:
    """One frame; the process ends where its input does."""
    head = source.read(LENGTH.size)
    data = source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
    if not data:
        os._exit(0)
    return data


def _end_with_parent() -> None:
    """Woken by nothing but the end of the input: what else comes is for the task."""
    hangup = select.poll()
    hangup.register(0, 0)
    hangup.poll()
    os._exit(0)


def _gives_way() -> bool:
    return hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE


def _answer(out: BinaryIO, kind: int, value: Any) -> None:
    out.write(frame(kind, value))
    out.flush()


def _portable(error: Exception) -> Exception:
    """The error itself if it can travel, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a task prints must not get between the frames
    threading.Thread(target=_end_with_parent, daemon=True).start()
    orders = sys.stdin.buffer
    disk = PosixDisk(ThreadOffload(1))
    while True:
        order = _read(orders)
        if order == GO:  # left over from a task that has ended
            continue
        name, values = pickle.loads(order)
        gives_way = _gives_way()
        try:
            for item in find_task(name)(disk, *values):
                if item is not None:
                    _read(orders)
                    _answer(out, ITEM, item)
                elif gives_way:
                    os.sched_yield()
        except Exception as error:
            _answer(out, ERROR, _portable(error))
        else:
            _answer(out, END, None)
