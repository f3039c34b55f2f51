"""Transactions spoken by hand, by kafka-python's schemas: every version, every wrong order."""

import time
from typing import Any, Self

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

from tools.kafka.brokers import PATIENCE
from tools.kafka.rawkafka import Connection, batch, fetch, fetched, produced

Producer = tuple[int, int]
Codes = dict[tuple[str, int], int]
"""Topic and partition to an error code."""

TRANSACTIONAL = 0x10
GROUP, TRANSACTION = 0, 1
"""What FindCoordinator is asked for."""
LOADING = {14, 15, 16}
UNSETTLED = {3, 51} | LOADING
"""Codes that only mean: not yet."""


class Raw:
    """One connection under one transactional id."""

    def __init__(self, port: int, tid: str) -> None:
        self.connection = Connection(port)
        self.tid = tid

    def __enter__(self) -> Self:
        request = FindCoordinatorRequest(key=self.tid, key_type=TRANSACTION)
        self.settled(lambda: self.connection.call(request, 2))
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def settled(self, ask: Any) -> Any:
        answer = ask()
        deadline = time.monotonic() + PATIENCE
        while answer.error_code in UNSETTLED:
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)
            answer = ask()
        return answer

    # ---- the producer's side ----

    def init(
        self,
        timeout_ms: int = 600_000,
        producer: Producer = (-1, -1),
        version: int = 5,
        tid: str | None = None,
    ) -> Any:
        request = InitProducerIdRequest(
            transactional_id=self.tid if tid is None else tid,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        return self.connection.call(request, version)

    def begin(self, timeout_ms: int = 600_000) -> Producer:
        answer = self.settled(lambda: self.init(timeout_ms))
        assert answer.error_code == 0, answer
        return answer.producer_id, answer.producer_epoch

    def add(self, producer: Producer, topics: dict[str, list[int]], version: int = 3) -> Codes:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.tid,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[topic(name=n, partitions=p) for n, p in topics.items()],
        )
        answer = self.connection.call(request, version)
        return {
            (t.name, p.partition_index): p.partition_error_code
            for t in answer.results_by_topic_v3_and_below
            for p in t.results_by_partition
        }

    def add_as_broker(
        self, producer: Producer, topics: dict[str, list[int]], verify: bool, version: int = 5
    ) -> Codes:
        """As the leader of a partition asks for a client that writes to it."""
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=self.tid,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    verify_only=verify,
                    topics=[topic(name=n, partitions=p) for n, p in topics.items()],
                )
            ]
        )
        answer = self.connection.call(request, version)
        assert answer.error_code == 0
        (result,) = answer.results_by_transaction
        return {
            (t.name, p.partition_index): p.partition_error_code
            for t in result.topic_results
            for p in t.results_by_partition
        }

    def add_group(self, producer: Producer, group: str, version: int = 3) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.tid,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        return int(self.connection.call(request, version).error_code)

    def end(self, producer: Producer, commit: bool, version: int = 5) -> Any:
        request = EndTxnRequest(
            transactional_id=self.tid,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        return self.connection.call(request, version)

    def ended(self, producer: Producer, commit: bool, version: int = 5) -> Producer:
        """Ends the transaction; the producer of the next one, which may begin."""
        answer = self.end(producer, commit, version)
        assert answer.error_code == 0, answer
        self.complete()
        if version < 5:
            return producer
        return answer.producer_id, answer.producer_epoch

    def complete(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.describe().transaction_state.startswith("Complete"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def write(
        self,
        topic: str,
        producer: Producer,
        sequence: int,
        version: int = 12,
        partition: int = 0,
        value: bytes = b"v",
        tid: str | None = "",
        transactional: bool = True,
    ) -> int:
        records = batch(
            [value],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL if transactional else 0,
        ).encode()
        data = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=self.tid if tid == "" else tid,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                data(
                    name=topic,
                    partition_data=[data.PartitionProduceData(index=partition, records=records)],
                )
            ],
        )
        return int(produced(self.connection.call(request, version)).error_code)

    def commit_offsets(
        self,
        producer: Producer,
        group: str,
        places: dict[str, list[int]],
        version: int = 5,
    ) -> Codes:
        """Of a group whose coordinator has been asked for; one that loads is asked again."""
        find = FindCoordinatorRequest(key=group, key_type=GROUP)
        self.settled(lambda: self.connection.call(find, 2))
        request = self._offsets(producer, group, places)
        deadline = time.monotonic() + 30
        while True:
            answer = self.connection.call(request, version)
            codes = {
                (t.name, p.partition_index): p.error_code
                for t in answer.topics
                for p in t.partitions
            }
            if LOADING.isdisjoint(codes.values()):
                return codes
            assert time.monotonic() < deadline, codes
            time.sleep(0.02)

    def _offsets(self, producer: Producer, group: str, places: dict[str, list[int]]) -> Any:
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = topic.TxnOffsetCommitRequestPartition
        topics = [
            topic(
                name=name,
                partitions=[
                    part(
                        partition_index=index,
                        committed_offset=5,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for index in indexes
                ],
            )
            for name, indexes in places.items()
        ]
        return TxnOffsetCommitRequest(
            transactional_id=self.tid,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=topics,
        )

    # ---- everybody else's ----

    def read(self, topic: str, committed: bool = True, offset: int = 0) -> Any:
        request = fetch(offset, topic, isolation=1 if committed else 0)
        return fetched(self.connection.call(request, 12))

    def describe(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.tid])
        (state,) = self.connection.call(request, 0).transaction_states
        return state

    def list(self, version: int = 1, **filters: Any) -> Any:
        request = ListTransactionsRequest(
            state_filters=filters.pop("states", []),
            producer_id_filters=filters.pop("producers", []),
            duration_filter=-1,
            **filters,
        )
        return self.connection.call(request, version)

    def mark(self, producer: Producer, commit: bool, topic: str, coordinator_epoch: int = 0) -> int:
        """Ends a transaction in one partition by hand."""
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        request = WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    transaction_result=commit,
                    topics=[marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
                    coordinator_epoch=coordinator_epoch,
                )
            ]
        )
        (answer,) = self.connection.call(request, 1).markers
        return int(answer.topics[0].partitions[0].error_code)
