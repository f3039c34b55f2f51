"""What requests take of a node's memory before they are answered, all connections together.

Theory of operation. A large request is granted all the memory that it announces before it is read
on, so that whoever has begun to receive one can end it. It counts until nobody has its bytes any
more, whoever that is and on whatever thread; so do copies of requests that wait. Together they take
no more than `queued.max.request.bytes`. Who finds no room is not read, and waits:

- The smallest request goes first, so that usual ones do not wait for those of a hundred megabytes.
  Who has waited for `AGED_MS` goes before, and nobody takes what it waits for.
- Requests of more than `USUAL` bytes share half of the memory, so that they leave room for others.
- While somebody waits, requests have to come as fast as if they took `ARRIVE_MS`. Peers that sent
  less for a while lose their connection, the largest request first, until there is room: so memory
  is held neither by who sends nothing more, nor by who sends it byte by byte.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from scriba.runtime.ports import Buffer

USUAL: Final = 4 << 20
LOOK_S: Final = 0.01
"""How often it is looked for memory while somebody waits. It may become free on any thread."""

WHILE_MS: Final = 2_000
ARRIVE_MS: Final = 30_000
"""As long as clients wait for an answer, unless they are told otherwise."""

AGED_MS: Final = 10_000


class Receiver(Protocol):
    """A connection that receives a large request."""

    @property
    def announced(self) -> int:
        """The size of the request."""

    @property
    def received(self) -> int:
        """What has come of it."""

    def read_on(self) -> None:
        """There is memory for the rest of it."""


class Waiting(NamedTuple):
    size: int
    since_ms: int


class Progress(NamedTuple):
    """What had come of a request when it was last looked at."""

    since_ms: int
    received: int


class RequestMemory:
    def __init__(
        self, limit: int, now_ms: Callable[[], int], shed: Callable[[Receiver, str], None]
    ) -> None:
        self.limit = limit
        self._now_ms = now_ms
        self._shed = shed
        self._held = 0
        self._held_by_large = 0
        self._returned: deque[int] = deque()
        """What is gone since somebody last asked: memory may end on any thread."""
        self._receiving: dict[Receiver, Progress | None] = {}
        """Whose request is granted and not complete; looked at while somebody waits."""
        self._waiting: dict[Receiver, Waiting] = {}
        self.short = False
        """Whether somebody waits, so that nobody should read much of what may need more."""

    @property
    def held(self) -> int:
        if self._returned:
            self._settle()
        return self._held

    def _settle(self) -> None:
        returned = self._returned
        while returned:
            size = returned.popleft()
            self._held -= size
            if size > USUAL:
                self._held_by_large -= size

    def count(self, size: int) -> None:
        self._held += size
        if size > USUAL:
            self._held_by_large += size

    def returned(self, size: int) -> None:
        self._returned.append(size)

    def copy(self, data: Buffer) -> CopiedBytes:
        """Bytes of a request for when its buffer serves others."""
        copied = CopiedBytes(data)
        copied.count_in(self)
        return copied

    # ---- being granted memory ----

    def grant(self, receiver: Receiver, size: int) -> bool:
        """Whether a request may be read on now; otherwise it waits, and is told."""
        if not self.short:
            if self._returned:
                self._settle()
            if self._held + size <= self.limit and (
                size <= USUAL or not self._too_many_large(size)
            ):
                self.count(size)
                self._receiving[receiver] = None
                return True
            self.short = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
        self._waiting[receiver] = Waiting(size, self._now_ms())
        return False

    def complete(self, receiver: Receiver) -> None:
        """Its request has come whole, or never will."""
        self._receiving.pop(receiver, None)
        self._waiting.pop(receiver, None)

    def _fits(self, size: int) -> bool:
        return self.held + size <= self.limit and not self._too_many_large(size)

    def _too_many_large(self, size: int) -> bool:
        large = self._held_by_large
        return size > USUAL and large > 0 and large + size > self.limit // 2

    # ---- where there is none ----

    def _look(self) -> None:
        now_ms = self._now_ms()
        self._let_in(now_ms)
        if self._waiting and self._hang_up_on_slow(now_ms):
            self._let_in(now_ms)
        self.short = bool(self._waiting)
        if self.short:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _let_in(self, now_ms: int) -> None:
        for receiver, (size, since_ms) in self._in_order(now_ms):
            if self._fits(size):
                del self._waiting[receiver]
                self.count(size)
                self._receiving[receiver] = None
                receiver.read_on()
            elif now_ms - since_ms >= AGED_MS and not self._too_many_large(size):
                return

    def _in_order(self, now_ms: int) -> list[tuple[Receiver, Waiting]]:
        aged_ms = now_ms - AGED_MS
        waiting = self._waiting.items()
        return sorted(waiting, key=lambda each: -1 if each[1].since_ms <= aged_ms else each[1].size)

    def _hang_up_on_slow(self, now_ms: int) -> bool:
        """Whether that may have made room."""
        slow = self._slow(now_ms)
        need = min(waiting.size for waiting in self._waiting.values())
        for receiver in sorted(slow, key=lambda each: each.announced, reverse=True):
            self._shed(
                receiver,
                f"{receiver.received} of {receiver.announced} bytes of a request came, too slowly "
                f"while others wait for the memory (queued.max.request.bytes={self.limit})",
            )
            if self._fits(need):
                break
        return bool(slow)

    def _slow(self, now_ms: int) -> list[Receiver]:
        slow: list[Receiver] = []
        for receiver, before in self._receiving.items():
            if before is not None and now_ms - before.since_ms < WHILE_MS:
                continue
            if before is not None and _is_slow(receiver, before, now_ms):
                slow.append(receiver)
            else:
                self._receiving[receiver] = Progress(now_ms, receiver.received)
        return slow


def _is_slow(receiver: Receiver, before: Progress, now_ms: int) -> bool:
    came = receiver.received - before.received
    return came * ARRIVE_MS < receiver.announced * (now_ms - before.since_ms)


class CopiedBytes(bytearray):
    """A copy of a request's bytes, which counts for as long as somebody has it."""

    _memory: RequestMemory | None = None
    _counted = 0

    def count_in(self, memory: RequestMemory) -> None:
        self._memory, self._counted = memory, len(self)
        memory.count(self._counted)

    def __del__(self) -> None:
        if self._memory is not None:
            self._memory.returned(self._counted)
