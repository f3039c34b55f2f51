"""What requests take of a node's memory before they are answered, all connections together.

Theory of operation. A large request is granted all the memory that it announces before it is read
on, so that whoever has begun to receive one can end it. It counts until nobody has its bytes any
more, whoever that is and on whatever thread; so do copies of requests that wait. Together they are
bounded by `queued.max.request.bytes`. Who finds no room is not read, and waits:

- Requests of more than `USUAL` bytes share half of the memory: the other half is for usual ones
  alone. One that is larger than their share is let in when no other large one is there, and what
  it has beyond the share is not counted, or it would take the half of the usual ones. So the limit
  is passed by no more than that: by half of it, where one request may be as large as the limit.
- The smallest request goes first, so that usual ones do not wait for those of a hundred megabytes.
  Who has waited for `AGED_MS` goes before, and nobody takes what it waits for: the share of large
  requests if it is a large one.
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

FEW: Final = 8
"""Large requests that may wait for their share before connections are read in small pieces: each
has the first piece of its request, which is not counted."""


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
        """Whether so many wait, or one of usual size, that nobody should read much of what may need
        more."""
        self._usual_waits = False
        self._next_large: Receiver | None = None
        """Who has waited for `AGED_MS` for the share of large requests, and has it next."""
        self._looking = False

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
        # Usual ones pass who waits for the share of large requests.
        queued = self._usual_waits if size <= USUAL else bool(self._waiting)
        if not queued and self._fits(receiver, size):
            self._admit(receiver, size)
            return True
        self._waiting[receiver] = Waiting(size, self._now_ms())
        self._usual_waits = self._usual_waits or size <= USUAL
        self._note_shortage()
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
        return False

    def _note_shortage(self) -> None:
        self.short = self._usual_waits or len(self._waiting) > FEW

    def _admit(self, receiver: Receiver, size: int) -> None:
        self.count(size)
        self._receiving[receiver] = None

    def complete(self, receiver: Receiver) -> None:
        """Its request has come whole, or never will."""
        self._receiving.pop(receiver, None)
        self._waiting.pop(receiver, None)
        if receiver is self._next_large:
            self._next_large = None

    def _fits(self, receiver: Receiver, size: int) -> bool:
        if self._returned:
            self._settle()
        large, half = self._held_by_large, self.limit // 2
        usual = self._held - large
        if size <= USUAL:
            share = half if self._next_large is not None else min(large, half)
            return usual + size + share <= self.limit
        if self._next_large not in (None, receiver) or self._too_many_large(size):
            return False
        return usual + min(large + size, half) <= self.limit

    def _too_many_large(self, size: int) -> bool:
        large = self._held_by_large
        return size > USUAL and large > 0 and large + size > self.limit // 2

    # ---- where there is none ----

    def _look(self) -> None:
        try:
            now_ms = self._now_ms()
            self._let_in(now_ms)
            if self._waiting and self._hang_up_on_slow(now_ms):
                self._let_in(now_ms)
        finally:
            # Also after a surprise: who waits is told by nobody else.
            self._usual_waits = any(each.size <= USUAL for each in self._waiting.values())
            self._note_shortage()
            self._looking = bool(self._waiting)
            if self._looking:
                asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _let_in(self, now_ms: int) -> None:
        self._next_large = None
        for receiver, (size, since_ms) in self._in_order(now_ms):
            if self._fits(receiver, size):
                del self._waiting[receiver]
                self._admit(receiver, size)
                receiver.read_on()
            elif now_ms - since_ms >= AGED_MS:
                if size <= USUAL:
                    return
                self._next_large = self._next_large or receiver

    def _in_order(self, now_ms: int) -> list[tuple[Receiver, Waiting]]:
        aged_ms = now_ms - AGED_MS
        waiting = self._waiting.items()
        return sorted(waiting, key=lambda each: -1 if each[1].since_ms <= aged_ms else each[1].size)

    def _hang_up_on_slow(self, now_ms: int) -> bool:
        """Whether that may have made room."""
        waiting, need = min(self._waiting.items(), key=lambda each: each[1].size)
        if need.size > USUAL and self._next_large is not None:
            waiting, need = self._next_large, self._waiting[self._next_large]
        slow = self._slow(now_ms)
        if self._too_many_large(need.size):
            slow = [each for each in slow if each.announced > USUAL]
        for receiver in sorted(slow, key=lambda each: each.announced, reverse=True):
            self._shed(
                receiver,
                f"{receiver.received} of {receiver.announced} bytes of a request came, too slowly "
                f"while others wait for the memory (queued.max.request.bytes={self.limit})",
            )
            if self._fits(waiting, need.size):
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
