"""DeleteRecords answers that wait until every live replica begins where the leader does.

As those of Produce (`acks`) they wait without a task, and without the turn that a large request has
while it is worked on. All partitions wait together, those of all parts of a request until one
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from scriba.broker.request import Later
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.admin import DeleteRecordsPartitionResult, DeleteRecordsResponse

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import TrimmedPartitions
    from scriba.broker.partitions.partition import Partition


class Trim:
    """One partition of a request: its answer holds once all live replicas begin there."""

    __slots__ = ("_over", "_watermark", "_whole", "answer", "partition")

    _whole: TrimWaits

    def __init__(self, answer: DeleteRecordsPartitionResult, partition: Partition) -> None:
        self.answer = answer
        self.partition = partition
        # Of the leadership that has moved the start: a later one knows nothing of it.
        self._watermark = partition.low_watermark
        self._over = False

    def is_everywhere(self) -> bool:
        return self._watermark.value >= self.answer.low_watermark

    def begin(self, whole: TrimWaits) -> None:
        self._whole = whole
        self._watermark.watch(self.answer.low_watermark, self)

    def give_up(self, code: ErrorCode) -> None:
        self._over = True
        self.answer.error_code = code
        self.answer.low_watermark = -1

    # ---- as the watermark sees it ----

    def done(self) -> bool:
        return self._over

    def set_result(self, result: None, /) -> None:
        self._over = True
        self._whole.settled(self)

    def set_exception(self, failure: BaseException, /) -> None:
        code = failure.code if isinstance(failure, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.give_up(code)
        self._whole.settled(self)


class TrimWaits(Later[DeleteRecordsResponse]):
    """The answer to a request whose partitions begin later here, and not yet on all replicas."""

    __slots__ = ("_done", "_due", "_left", "_replicas", "_response", "_timer")

    def __init__(
        self,
        replicas: TrimmedPartitions,
        response: DeleteRecordsResponse,
        trims: list[Trim],
        due: float,
    ) -> None:
        """`due` is a time of the loop."""
        super().__init__()
        self._replicas = replicas
        self._response = response
        self._left = dict.fromkeys(trims)
        self._due = due
        self._done: Callable[[DeleteRecordsResponse], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, done: Callable[[DeleteRecordsResponse], None]) -> None:
        self._done = done
        for trim in tuple(self._left):
            self._replicas.begin_trim(trim.partition)
        for trim in tuple(self._left):
            trim.begin(self)
        if self._left:
            self._timer = asyncio.get_running_loop().call_at(self._due, self._expire)

    def settled(self, trim: Trim) -> None:
        """One more partition needs no waiting."""
        del self._left[trim]
        self._replicas.end_trim(trim.partition)
        if not self._left:
            if self._timer is not None:
                self._timer.cancel()
            # Not in the step that moved the watermark: an answer that leaves may do anything.
            asyncio.get_running_loop().call_soon(self._tell)

    def _expire(self) -> None:
        self._give_up()
        self._tell()

    def abandon(self) -> None:
        self._done = None
        if self._timer is not None:
            self._timer.cancel()
            self._give_up()

    def _give_up(self) -> None:
        for trim in self._left:
            trim.give_up(ErrorCode.REQUEST_TIMED_OUT)
            self._replicas.end_trim(trim.partition)
        self._left.clear()

    def _tell(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self._response)
