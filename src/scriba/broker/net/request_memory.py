"""What requests take of a node's memory before they are answered, all connections together.

Theory of operation. A request counts from its first byte until nobody has its bytes any more, if it
is large or waits: whoever knows of them then, on whatever thread. A peer is bounded by the largest
request, all peers together by `queued.max.request.bytes`. Where that much is held, nothing more is
read of large requests; a hundred times in a second it is looked for memory (`RequestMemory.look`):

- Where half of it is held by requests that are not complete, peers that send no more of theirs lose
  their connections: the largest first, and no more of them than have to.
- What is worked on gives its memory back by itself, so that all others wait for it.
- Where nothing is worked on, they would wait for each other. So the requests that miss least are
  read to their end, somewhat beyond the limit, and make room for the others when they are answered.
- Who takes such a chance byte by byte is not waited for either: beyond an eighth more than the
  limit the largest requests go, whatever their peers do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from scriba.runtime.ports import Buffer

LOOK_S: Final = 0.01
PATIENCE_MS: Final = 1000
"""How long a peer may send nothing of a request that it has begun while others wait for memory."""

FREED: Final = 16
"""What part of the memory is made free at once, or given beyond the limit."""

MOST_BEYOND: Final = 8
"""By what part of the limit it may be exceeded, beside what was read in one go."""


class Receiver(Protocol):
    """A connection, as far as it takes memory."""

    closed: bool
    last_active: int
    beyond_limit: bool
    """Whether it may read on though there is no memory."""

    @property
    def received(self) -> int:
        """Bytes of a large request that is not complete; 0 where there is none."""

    @property
    def missing(self) -> int:
        """What has not come of it."""

    @property
    def short_of_memory(self) -> bool:
        """Whether its peer has sent more, and it waits for memory to read that."""

    def read_on(self) -> None: ...


class RequestMemory:
    """Bytes of requests that wait in memory: received in part, or whole and still worked on."""

    def __init__(
        self,
        limit: int,
        receivers: Callable[[], Iterable[Receiver]],
        shed: Callable[[Receiver, str], None],
    ) -> None:
        self.limit = limit
        self._receivers = receivers
        self._shed = shed
        self._held = 0
        self._returned: deque[int] = deque()
        """What is gone since somebody last asked: memory may end on any thread."""
        self._waiting: list[Receiver] = []
        """First come, first served."""
        self._beyond: list[Receiver] = []

    @property
    def held(self) -> int:
        while self._returned:
            self._held -= self._returned.popleft()
        return self._held

    @property
    def full(self) -> bool:
        return self.held >= self.limit

    def count(self, size: int) -> None:
        self._held += size

    def returned(self, size: int) -> None:
        self._returned.append(size)

    def copy(self, data: Buffer) -> CopiedBytes:
        """Bytes of a request for when its buffer serves others."""
        copied = CopiedBytes(data)
        copied.count_in(self)
        return copied

    # ---- where there is none ----

    def wait(self, receiver: Receiver, now_ms: Callable[[], int]) -> None:
        """Has a connection read on when there is memory for what it receives."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self.look, now_ms)
        self._waiting.append(receiver)

    def look(self, now_ms: Callable[[], int]) -> None:
        for receiver in self._beyond:
            receiver.beyond_limit = False
        self._beyond = []
        if self.full and not self._make_room(now_ms()):
            self._give_beyond()
        self._waiting = [each for each in self._waiting if not each.closed]
        self._let_read(self._beyond or self._fitting())
        if self._waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self.look, now_ms)

    def _let_read(self, receivers: list[Receiver]) -> None:
        chosen = set(map(id, receivers))
        self._waiting = [each for each in self._waiting if id(each) not in chosen]
        for receiver in receivers:
            receiver.read_on()

    def _fitting(self) -> list[Receiver]:
        """Those who have waited longest, as far as there is memory for what they miss."""
        room = self.limit - self.held
        fitting: list[Receiver] = []
        for receiver in self._waiting:
            if room <= 0:
                break
            room -= receiver.missing
            fitting.append(receiver)
        return fitting

    def _make_room(self, now_ms: int) -> bool:
        """Hangs up on peers that hold memory for nothing; False where some may go beyond it."""
        partly = [each for each in self._receivers() if each.received]
        received = sum(each.received for each in partly)
        late = now_ms - PATIENCE_MS
        silent = [e for e in partly if not e.short_of_memory and e.last_active <= late]
        if silent and 2 * received >= self.limit:
            self._hang_up(silent, "and sends no more of it")
        elif self.held - received > self.limit // FREED:
            return True  # soon somebody is done
        elif self.held >= self.limit + self.limit // MOST_BEYOND:
            self._hang_up(partly, "the most of all")
        return not self.full

    def _hang_up(self, receivers: list[Receiver], why: str) -> None:
        enough = self.limit - self.limit // FREED
        for receiver in sorted(receivers, key=lambda each: each.received, reverse=True):
            if self.held <= enough:
                return
            text = (
                f"it sent {receiver.received} bytes of a request, {why}, while {self.limit} bytes "
            )
            self._shed(receiver, text + "of requests wait in memory (queued.max.request.bytes)")

    def _give_beyond(self) -> None:
        room = self.limit // FREED
        waiting = [each for each in self._waiting if not each.closed]
        for receiver in sorted(waiting, key=lambda each: each.missing):
            room -= receiver.missing
            if room < 0 and self._beyond:
                return
            receiver.beyond_limit = True
            self._beyond.append(receiver)


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
