"""Receive buffers that are used again, and what keeps a late reader from another request's bytes.

Faulting in a megabyte costs more than receiving it, so a buffer is lent for one request and used
for the next one when the handler has returned. New buffers of the pool are anonymous maps: a peer
that announces much and sends little takes no memory for what it never sent.

No view of a request's bytes is good for longer than its handler runs. Two things see to it
(docs/adr/0010): what was handed out is revoked, that is the frame and the record batches decoded
from it, so that reading them late raises ValueError; and memory that somebody still has a slice of
is not used again, so that even such a slice never shows the bytes of another request.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from sys import getrefcount
from typing import Final

from scriba.broker.net.request_memory import RequestMemory

SMALLEST: Final = 1 << 16
LARGEST_KEPT: Final = 1 << 22
BYTES_KEPT: Final = 1 << 25

Spoil = Callable[[memoryview], None]
"""What the simulator does to bytes whose time is over: nobody takes them for a request again."""


class FrameMemory(mmap):
    """Pages for a frame, which count from when they are granted until nobody has a view of them."""

    _memory: RequestMemory | None = None
    _granted = 0

    def grant(self, memory: RequestMemory, size: int) -> None:
        self._memory, self._granted = memory, size

    def give_back(self) -> None:
        if self._memory is not None and self._granted:
            self._memory.returned(self._granted)
        self._granted = 0

    def __del__(self) -> None:
        self.give_back()


class ReceiveBuffer:
    """Memory for bytes from peers. Each use makes a view of its own, so that views are counted:
    one that has neither ended nor been released keeps a reference to the memory."""

    __slots__ = ("memory",)

    def __init__(self, memory: bytearray | mmap) -> None:
        self.memory = memory

    @property
    def references(self) -> int:
        return getrefcount(self.memory)


class FrameBuffer(ReceiveBuffer):
    """Memory for one large frame at a time, lent by the pool."""

    __slots__ = ()

    memory: FrameMemory

    def __init__(self, size: int) -> None:
        # Of this process alone: shared memory takes the kernel twice as long to take back.
        super().__init__(FrameMemory(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS))


ALONE: Final = ReceiveBuffer(bytearray()).references
"""How many references there are to the memory of a buffer that nobody has a view of."""


class BufferPool:
    __slots__ = ("_free", "_kept", "_on_lost", "_spoil", "kept_views")

    def __init__(
        self, spoil: Spoil | None = None, on_lost: Callable[[], None] | None = None
    ) -> None:
        self._free: dict[int, list[FrameBuffer]] = {}
        self._kept = 0
        self._spoil = spoil
        self._on_lost = on_lost
        self.kept_views = 0
        """Buffers that could not be used again: a handler kept a slice. Each is a defect."""

    def take(self, size: int) -> FrameBuffer:
        """A buffer of at least `size` bytes with arbitrary contents."""
        if size > LARGEST_KEPT:
            return FrameBuffer(size)
        room = max(SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(room)
        if not free:
            return FrameBuffer(room)
        self._kept -= room
        return free.pop()

    def give(self, buffer: FrameBuffer) -> None:
        if self._spoil is not None:
            self._spoil(memoryview(buffer.memory))
        if buffer.references != ALONE:
            self.lose()
            return
        buffer.memory.give_back()
        room = len(buffer.memory)
        if room <= LARGEST_KEPT and self._kept + room <= BYTES_KEPT:
            self._kept += room
            self._free.setdefault(room, []).append(buffer)

    def lose(self) -> None:
        """Notes that memory is left to whoever still has a view of it."""
        self.kept_views += 1
        if self._on_lost is not None:
            self._on_lost()
