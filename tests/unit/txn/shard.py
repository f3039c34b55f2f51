"""A coordinator with a log of its own: what the broker does around the machine, without a broker.

Records are kept as bytes, so a crash replays what a disk would have held. Markers are written when
the test says so.
"""

from __future__ import annotations

from typing import Any

from scriba.errors import ErrorCode
from scriba.events import Event
from scriba.instant import Instant
from scriba.outcome import Caller, Origin, Outcome
from scriba.txn.facts import TxnSettings
from scriba.txn.machine import Transactions
from scriba.txn.messages import (
    EndTxnWith,
    InitProducerIdWith,
    MarkersWritten,
    ProducerIdNeeded,
    WriteMarkers,
)
from scriba.wire.messages.stored import TransactionLogKey, TransactionLogValue
from scriba.wire.messages.txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
)
from scriba.wire.schema import Message

TV2 = 5
"""The version of EndTxn and AddPartitionsToTxn that clients of transaction version 2 use."""
CLASSIC = 3


class Shard:
    def __init__(self, **settings: Any) -> None:
        self.settings = TxnSettings(**settings)
        self.now = Instant(5_000, 1_000_000)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.events: list[Event] = []
        self.sends: list[WriteMarkers] = []
        self.next_id = 1000
        self.machine = Transactions(self.settings, 7)
        self._do(self.machine.loaded(self.now))

    # ---- the shell ----

    def _do(self, outcome: Outcome) -> None:
        for key, value in outcome.records:
            raw = key.encode(0), None if value is None else value.encode(1)
            self.log.append(raw)
            self._replay(*raw)
        self.sends += outcome.sends
        self.events += outcome.events

    def _replay(self, key: bytes, value: bytes | None) -> None:
        stored = None if value is None else TransactionLogValue.decode(value, 1)
        self.machine.replay(TransactionLogKey.decode(key, 0), stored, Origin(0, 0))

    def handle(self, request: Message, version: int = 0) -> Any:
        caller = Caller(version, "test", "/127.0.0.1", bytes(16))
        try:
            outcome = self.machine.handle(request, 1, caller, self.now)
        except ProducerIdNeeded:
            self.next_id += 1
            again: Message
            if isinstance(request, InitProducerIdRequest):
                again = InitProducerIdWith(request=request, fresh_producer_id=self.next_id)
            else:
                assert isinstance(request, EndTxnRequest)
                again = EndTxnWith(request=request, fresh_producer_id=self.next_id)
            outcome = self.machine.handle(again, 1, caller, self.now)
        self._do(outcome)
        ((token, reply),) = outcome.replies
        assert token == 1
        return reply

    def crash(self) -> None:
        """Only the log is left; what was under way is sent again by the next coordinator."""
        self.machine = Transactions(self.settings, 7)
        self.sends = []
        for key, value in self.log:
            self._replay(key, value)
        self._do(self.machine.loaded(self.now))

    def pass_time(self, ms: int) -> None:
        """The clock moves; whatever falls due on the way is done when it falls due."""
        end = self.now.mono_ms + ms
        while (due := self.machine.next_deadline()) is not None and due <= end:
            step = max(due - self.now.mono_ms, 0)
            self.now = Instant(self.now.mono_ms + step, self.now.wall_ms + step)
            self._do(self.machine.tick(self.now))
        step = end - self.now.mono_ms
        self.now = Instant(self.now.mono_ms + step, self.now.wall_ms + step)

    def write_markers(self) -> list[WriteMarkers]:
        """Every partition has its marker."""
        written, self.sends = self.sends, []
        for send in written:
            self.written(send)
        return written

    def written(self, send: WriteMarkers) -> None:
        self.handle(
            MarkersWritten(
                transactional_id=send.transactional_id,
                producer_id=send.producer_id,
                producer_epoch=send.producer_epoch,
                commit=send.commit,
            )
        )

    # ---- requests ----

    def init(
        self,
        tid: str = "t",
        timeout_ms: int = 60_000,
        producer: tuple[int, int] = (-1, -1),
        **more: Any,
    ) -> InitProducerIdResponse:
        answer = self.handle(
            InitProducerIdRequest(
                transactional_id=tid,
                transaction_timeout_ms=timeout_ms,
                producer_id=producer[0],
                producer_epoch=producer[1],
                **more,
            ),
            6,
        )
        assert isinstance(answer, InitProducerIdResponse)
        return answer

    def producer(self, tid: str = "t", timeout_ms: int = 60_000) -> tuple[int, int]:
        answer = self.init(tid, timeout_ms)
        assert answer.error_code == 0
        return answer.producer_id, answer.producer_epoch

    def add(
        self,
        producer: tuple[int, int],
        *partitions: int,
        tid: str = "t",
        topic: str = "orders",
        version: int = TV2,
        verify: bool = False,
    ) -> list[ErrorCode]:
        answer = self.handle(
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=tid,
                        producer_id=producer[0],
                        producer_epoch=producer[1],
                        verify_only=verify,
                        topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
                    )
                ]
            ),
            version,
        )
        ((result,),) = [r.topic_results for r in answer.results_by_transaction]
        return [ErrorCode(p.partition_error_code) for p in result.results_by_partition]

    def end(
        self, producer: tuple[int, int], commit: bool, tid: str = "t", version: int = TV2
    ) -> EndTxnResponse:
        answer = self.handle(
            EndTxnRequest(
                transactional_id=tid,
                producer_id=producer[0],
                producer_epoch=producer[1],
                committed=commit,
            ),
            version,
        )
        assert isinstance(answer, EndTxnResponse)
        return answer

    def describe(self, tid: str = "t") -> Any:
        answer = self.handle(DescribeTransactionsRequest(transactional_ids=[tid]))
        (described,) = answer.transaction_states
        return described

    def state(self, tid: str = "t") -> str:
        return str(self.describe(tid).transaction_state)

    def list(self, **filters: Any) -> Any:
        return self.handle(ListTransactionsRequest(**filters), 2)


def pair(answer: Any) -> tuple[int, int]:
    """The identity that a good answer gives."""
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch
