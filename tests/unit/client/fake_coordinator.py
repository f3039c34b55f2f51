"""Brokers that keep Kafka's promises for transactions too, in both generations.

One of them coordinates; tests move that, and hooks break single answers as in `fake_cluster`. What
an application would see of a transaction is decided here by its end, so a test can tell what was
committed and what was not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.records.batch import decode_records, read_header
from scriba.runtime.ports import Buffer
from scriba.wire.messages import txn as wire
from scriba.wire.messages.metadata import (
    ApiVersionsResponse,
    Coordinator,
    FinalizedFeatureKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from scriba.wire.messages.produce import PartitionProduceResponse, ProduceRequest
from scriba.wire.schema import Message
from tests.unit.client.fake_cluster import FakeCluster


@dataclass
class Transaction:
    """Of one transactional id."""

    producer_id: int
    epoch: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    values: list[bytes] = field(default_factory=list)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    ends: list[tuple[int, bool]] = field(default_factory=list)
    """(epoch, committed) of those that ended."""

    def end(self, committed: bool) -> None:
        self.ends.append((self.epoch, committed))
        for part in (self.partitions, self.groups, self.values, self.offsets):
            part.clear()


class FakeTransactions(FakeCluster):
    def __init__(self, brokers: int = 1, generation: int = 2) -> None:
        super().__init__(brokers)
        self.generation = generation
        self.coordinator = 1
        self.ids: dict[str, Transaction] = {}
        self.committed: list[bytes] = []
        self.offsets: dict[TopicPartition, int] = {}

    async def handle(self, broker: int, key: int, version: int, request: Any) -> object:
        ours: dict[type[Message], Callable[[int, Any, int], Message]] = {
            FindCoordinatorRequest: self._find,
            wire.InitProducerIdRequest: self._init,
            wire.AddPartitionsToTxnRequest: self._add,
            wire.AddOffsetsToTxnRequest: self._add_group,
            wire.TxnOffsetCommitRequest: self._offsets,
            wire.EndTxnRequest: self._end,
        }
        serve = ours.get(type(request))
        if serve is None:
            answer = await super().handle(broker, key, version, request)
            if isinstance(answer, ApiVersionsResponse) and self.generation == 2:
                level = FinalizedFeatureKey(
                    name="transaction.version", max_version_level=2, min_version_level=2
                )
                answer.finalized_features = [level]
            return answer
        self.seen.append((broker, request, version))
        hooks = self.hooks.get(key)
        if hooks:
            return hooks.popleft()(broker, request)
        return serve(broker, request, version)

    def answer(self, broker: int, request: Any, version: int = 5) -> Message:
        """What the coordinator would answer, for hooks that do something to it."""
        assert isinstance(request, wire.EndTxnRequest)
        return self._end(broker, request, version)

    # -- APIs ------------------------------------------------------------------------------------

    def _find(
        self, broker: int, request: FindCoordinatorRequest, version: int
    ) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=self.coordinator, host=f"b{self.coordinator}")
                for key in request.coordinator_keys
            ]
        )

    def _init(
        self, broker: int, request: wire.InitProducerIdRequest, version: int
    ) -> wire.InitProducerIdResponse:
        assert request.transactional_id is not None
        if broker != self.coordinator:
            return wire.InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR)
        self.producer_ids += 1
        found = self.ids.setdefault(request.transactional_id, Transaction(self.producer_ids))
        if request.producer_id >= 0 and request.producer_epoch != found.epoch:
            return wire.InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if found.partitions or found.groups:
            found.end(committed=False)
        found.epoch += 1
        return wire.InitProducerIdResponse(
            producer_id=found.producer_id, producer_epoch=found.epoch
        )

    def _refused(self, broker: int, name: str, epoch: int) -> ErrorCode:
        if broker != self.coordinator:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if self.ids[name].epoch == epoch else ErrorCode.PRODUCER_FENCED

    def _add(
        self, broker: int, request: wire.AddPartitionsToTxnRequest, version: int
    ) -> wire.AddPartitionsToTxnResponse:
        assert version <= 3, "later ones are for brokers"
        assert self.generation == 1
        name = request.v3_and_below_transactional_id
        code = self._refused(broker, name, request.v3_and_below_producer_epoch)
        results = []
        for topic in request.v3_and_below_topics:
            if not code:
                added = {TopicPartition(topic.name, index) for index in topic.partitions}
                self.ids[name].partitions |= added
            results.append(
                wire.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        wire.AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=code
                        )
                        for index in topic.partitions
                    ],
                )
            )
        return wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def _add_group(
        self, broker: int, request: wire.AddOffsetsToTxnRequest, version: int
    ) -> wire.AddOffsetsToTxnResponse:
        assert self.generation == 1
        code = self._refused(broker, request.transactional_id, request.producer_epoch)
        if not code:
            self.ids[request.transactional_id].groups.add(request.group_id)
        return wire.AddOffsetsToTxnResponse(error_code=code)

    def _offsets(
        self, broker: int, request: wire.TxnOffsetCommitRequest, version: int
    ) -> wire.TxnOffsetCommitResponse:
        assert (version >= 5) == (self.generation == 2)
        code = self._refused(broker, request.transactional_id, request.producer_epoch)
        transaction = self.ids[request.transactional_id]
        if self.generation == 2:
            transaction.groups.add(request.group_id)
        elif request.group_id not in transaction.groups:
            code = ErrorCode.INVALID_TXN_STATE
        topics = []
        for topic in request.topics:
            answers = []
            for p in topic.partitions:
                if not code:
                    where = TopicPartition(topic.name, p.partition_index)
                    transaction.offsets[where] = p.committed_offset
                answers.append(
                    wire.TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=code
                    )
                )
            topics.append(wire.TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
        return wire.TxnOffsetCommitResponse(topics=topics)

    def _end(self, broker: int, request: wire.EndTxnRequest, version: int) -> wire.EndTxnResponse:
        assert (version >= 5) == (self.generation == 2)
        transaction = self.ids[request.transactional_id]
        if broker != self.coordinator:
            return wire.EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR)
        asked = (request.producer_epoch, request.committed)
        again = bool(transaction.ends) and transaction.ends[-1] == asked
        if again and not transaction.partitions and not transaction.groups:
            return self._ended(transaction)
        if request.producer_epoch != transaction.epoch:
            return wire.EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if request.committed:
            self.committed += transaction.values
            self.offsets |= transaction.offsets
        transaction.end(request.committed)
        if self.generation == 2:
            transaction.epoch += 1
        return self._ended(transaction)

    def _ended(self, transaction: Transaction) -> wire.EndTxnResponse:
        if self.generation == 1:
            return wire.EndTxnResponse()
        return wire.EndTxnResponse(
            producer_id=transaction.producer_id, producer_epoch=transaction.epoch
        )

    # -- records ---------------------------------------------------------------------------------

    def _produce(self, broker: int, request: ProduceRequest, version: int) -> Any:
        assert (version >= 12) == (self.generation == 2)
        self._writing = self.ids[request.transactional_id or ""]
        return super()._produce(broker, request, version)

    def _append(self, broker: int, name: str, index: int, data: bytes) -> PartitionProduceResponse:
        transaction, where = self._writing, TopicPartition(name, index)
        if read_header(data).producer_epoch != transaction.epoch:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
            return PartitionProduceResponse(index=index, error_code=code)
        if self.generation == 1 and where not in transaction.partitions:
            code = ErrorCode.INVALID_TXN_STATE
            return PartitionProduceResponse(index=index, error_code=code)
        end = self.topics[name].logs[index].end if name in self.topics else 0
        answer = super()._append(broker, name, index, data)
        if not answer.error_code and answer.base_offset == end:
            transaction.partitions.add(where)
            transaction.values += [_bytes(record.value) for record in decode_records(data)]
        return answer


def _bytes(value: Buffer | None) -> bytes:
    return bytes(value or b"")
