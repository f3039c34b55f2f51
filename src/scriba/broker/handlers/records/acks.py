"""Produce answers that wait for replicas, without a task or a timer for each of them.

What waits is an entry in the heap of a watermark (`runtime.watermark`), one for each partition.
When the last of a request is there, or its time is up, its answer leaves in the next turn of the
loop.
Requests that were given equal time end in the order in which they came, so one timer for all of a
node looks after them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from scriba.broker.handlers.records.leader_hints import MOVED
from scriba.broker.request import Later
from scriba.errors import ErrorCode, KafkaError
from scriba.runtime.watermark import Watermark
from scriba.wire.messages.produce import PartitionProduceResponse, ProduceResponse

SWEEP_FROM: Final = 256
"""Requests with equal time among which those that are over are looked for."""


class Wait:
    """One partition of a request: its answer and the watermark that releases it."""

    __slots__ = ("_over", "_whole", "answer", "end_offset", "watermark")

    _whole: AckWaits

    def __init__(
        self, answer: PartitionProduceResponse, watermark: Watermark, end_offset: int
    ) -> None:
        self.answer = answer
        self.watermark = watermark
        self.end_offset = end_offset
        self._over = False

    def begin(self, whole: AckWaits) -> None:
        self._whole = whole
        self.watermark.watch(self.end_offset, self)

    # ---- as the watermark sees it ----

    def done(self) -> bool:
        return self._over

    def set_result(self, result: None, /) -> None:
        self._over = True
        self._whole.settled()

    def set_exception(self, failure: BaseException, /) -> None:
        code = failure.code if isinstance(failure, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.give_up(code)
        self._whole.settled()

    def give_up(self, code: ErrorCode) -> None:
        self._over = True
        self.answer.error_code = code


class AckWaits(Later[ProduceResponse]):
    """The answer to a request whose batches are appended, and not yet where they have to be."""

    __slots__ = (
        "_deadlines",
        "_done",
        "_hint",
        "_left",
        "_response",
        "_timeout_ms",
        "_waits",
        "due",
        "over",
    )

    due: float

    def __init__(
        self,
        deadlines: AckDeadlines,
        timeout_ms: int,
        response: ProduceResponse,
        waits: list[Wait],
        hint: Callable[[ProduceResponse], None],
    ) -> None:
        """`hint` adds to an answer who leads instead, where somebody does (KIP-951)."""
        super().__init__(pipelined=True)
        self._hint = hint
        self._deadlines = deadlines
        self._timeout_ms = max(timeout_ms, 0)
        self._response = response
        self._waits = waits
        self._left = len(waits)
        self._done: Callable[[ProduceResponse], None] | None = None
        self.over = False

    def begin(self, done: Callable[[ProduceResponse], None]) -> None:
        self._done = done
        for wait in self._waits:
            wait.begin(self)
        if not self.over:
            self._deadlines.add(self, self._timeout_ms)

    def settled(self) -> None:
        """One more partition needs no waiting."""
        self._left -= 1
        if not self._left:
            self._end()

    def expire(self) -> None:
        """The time is up: what is not there by now is told as late."""
        for wait in self._waits:
            if not wait.done():
                wait.give_up(ErrorCode.REQUEST_TIMED_OUT)
        self._end()

    def abandon(self) -> None:
        self.over = True
        self._done = None
        for wait in self._waits:
            if not wait.done():
                wait.give_up(ErrorCode.REQUEST_TIMED_OUT)

    def _end(self) -> None:
        """Not in the step that moved the watermark: an answer that leaves may do anything."""
        if not self.over:
            self.over = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            if any(wait.answer.error_code in MOVED for wait in self._waits):
                self._hint(self._response)
            done(self._response)


class Expiring(Protocol):
    """A request that waits, but not for ever."""

    due: float
    over: bool

    def expire(self) -> None: ...


class _Queue(deque[Expiring]):
    """Requests that were given equal time, in the order in which they came.

    Those that are over leave it when they are the first. One that waits for long has many behind it
    that are over, and each holds what it found: so they are looked for when there may be many.
    """

    sweep_at = SWEEP_FROM

    def sweep(self) -> None:
        left = [each for each in self if not each.over]
        self.clear()
        self.extend(left)
        self.sweep_at = max(2 * len(left), SWEEP_FROM)


class AckDeadlines:
    """When waiting requests have to be answered, whatever has become of them."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}
        """By the time that they were given."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, waits: Expiring, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        waits.due = loop.time() + timeout_ms / 1000
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = _Queue()
        while queue and queue[0].over:
            queue.popleft()
        if len(queue) >= queue.sweep_at:
            queue.sweep()
        queue.append(waits)
        if self._timer is None or waits.due < self._timer.when():
            self._arm(loop, waits.due)

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        for timeout_ms, queue in tuple(self._queues.items()):
            while queue and (queue[0].over or queue[0].due <= now):
                waits = queue.popleft()
                if not waits.over:
                    waits.expire()
            if not queue:
                del self._queues[timeout_ms]
        if self._queues:
            self._arm(loop, min(queue[0].due for queue in self._queues.values()))
