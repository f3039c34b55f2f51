"""The other end of `workers`: a process that runs one task after the other, as it is told.

It ends when its parent does: the parent's end closes its input, which a thread watches. So no task
outlives the process that owns the files it works on.
"""

import os
import pickle
import queue
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO, Final

from scriba.runtime.disk import PosixDisk
from scriba.runtime.offload import ThreadOffload

LENGTH: Final = struct.Struct(">I")
NICENESS: Final = 5
"""Background work gives way to the node that serves clients."""

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


def _watch(source: BinaryIO, orders: "queue.SimpleQueue[bytes]") -> None:
    while True:
        orders.put(_read(source))


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
    os.nice(NICENESS)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a task prints must not get between the frames
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(sys.stdin.buffer, orders), daemon=True).start()
    disk = PosixDisk(ThreadOffload(1))
    while True:
        order = orders.get()
        if order == GO:  # left over from a task that has ended
            continue
        name, values = pickle.loads(order)
        try:
            for item in find_task(name)(disk, *values):
                orders.get()
                _answer(out, ITEM, item)
        except Exception as error:
            _answer(out, ERROR, _portable(error))
        else:
            _answer(out, END, None)


if __name__ == "__main__":
    main()
