"""Requests about groups, offsets and transactions made up at random, most of them wrong somewhere.

Values are drawn field by field from what a coordinator may know, and from what it cannot. Left out
is what Kafka never answers (AddPartitionsToTxn of nothing, a marker's partition named twice), and
what it keeps of requests that it has refused (a sequence that was not verified).
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from scriba.wire.messages import groups, metadata, produce, txn
from scriba.wire.schema import Field, Message, Struct, Type
from tests.conformance.side_by_side.sides import Name, OneRecord

EPOCHS = [-1, 0, 0, 1, 1, 2, 2, 3, 4, 5]
STRANGER = 987_654
TRANSACTIONAL = 0x10
NEWEST: dict[type[Message], int] = {txn.InitProducerIdRequest: 5}
KINDS: list[type[Message]] = [
    groups.HeartbeatRequest,
    groups.LeaveGroupRequest,
    groups.SyncGroupRequest,
    groups.JoinGroupRequest,
    *[groups.OffsetCommitRequest] * 2,
    groups.OffsetFetchRequest,
    groups.OffsetDeleteRequest,
    groups.DescribeGroupsRequest,
    groups.ListGroupsRequest,
    groups.DeleteGroupsRequest,
    *[groups.ConsumerGroupHeartbeatRequest] * 3,
    groups.ConsumerGroupDescribeRequest,
    *[txn.InitProducerIdRequest] * 2,
    *[txn.AddPartitionsToTxnRequest] * 2,
    txn.AddOffsetsToTxnRequest,
    *[txn.EndTxnRequest] * 2,
    *[txn.TxnOffsetCommitRequest] * 2,
    txn.WriteTxnMarkersRequest,
    txn.DescribeProducersRequest,
    txn.DescribeTransactionsRequest,
    txn.ListTransactionsRequest,
    metadata.FindCoordinatorRequest,
    *[produce.ProduceRequest] * 2,
]


class Requests:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.tag = tag = f"s{seed}"
        self.groups = [f"{tag}g{number}" for number in range(4)]
        self.transactional_ids = [f"{tag}t{number}" for number in range(3)]
        self.topics = {f"{tag}a": 2, f"{tag}b": 1}
        self.members: list[Name] = []
        self.producers: list[Name] = []
        self._joined: set[str] = set()
        places = [0, 0, 1, 2, -1]
        names = [*self.topics, *self.topics, f"{tag}gone", "", "__consumer_offsets"]
        ids = [*(Name("topic", name) for name in self.topics), bytes(16), b"x" * 16]
        text: list[tuple[str, list[Any]]] = [
            ("group_id groups_names group_ids groups key coordinator_keys", ["", *self.groups]),
            ("group_instance_id instance_id", [None, None, None, "i1", "i2", ""]),
            ("rack_id", [None, None, "r", ""]),
            (
                "transactional_id v3_and_below_transactional_id transactional_ids",
                ["", *self.transactional_ids],
            ),
            ("name", names),
            ("topic_id", ids),
            ("partition_index partition_indexes partitions", places),
            ("producer_epoch v3_and_below_producer_epoch generation_id", EPOCHS),
            ("generation_id_or_member_epoch", EPOCHS),
            ("member_epoch", [-3, -2, -1, 0, 0, 0, 1, 1, 2, 3]),
            ("committed_offset", [0, 5, 7, -1, -5, 1 << 40]),
            ("committed_metadata", [None, "", "m", "x" * 4096]),
            ("committed_leader_epoch", [-1, 0, 3]),
            ("retention_time_ms", [-1, -1, 0, 100_000_000]),
            ("require_stable verify_only transaction_result committed", [False, True]),
            ("include_authorized_operations", [False, False, True]),
            ("transaction_timeout_ms", [60_000, 60_000, 60_000, 0, -1, 10**8]),
            ("transaction_version", [0, 1, 2]),
            ("states_filter", ["Stable", "empty", "Dead", "", "PreparingRebalance", "nope"]),
            ("types_filter", ["classic", "Consumer", "share", "", "nope"]),
            ("state_filters", ["Ongoing", "Empty", "CompleteCommit", "ongoing", "", "Dead"]),
            ("duration_filter", [-1, -1, 0, 1 << 40]),
            ("transactional_id_pattern", [f"{tag}.*", f"{tag}t1", "^x", "["]),
            ("rebalance_timeout_ms", [60_000, 60_000, -1, 0]),
            ("session_timeout_ms", [30_000, 30_000, 10, 10**8]),
            ("subscribed_topic_names", [*self.topics, f"{tag}gone"]),
            ("subscribed_topic_regex", [None, None, None, ""]),
            ("server_assignor", [None, None, "range", "uniform", "nope", ""]),
            ("protocol_type", ["consumer", "consumer", "connect", "", None]),
            ("protocol_name", ["range", "rr", None, ""]),
            ("key_type", [0, 1, 5, -1]),
        ]
        self._pools: dict[str, Callable[[], Any]] = {
            name: partial(rng.choice, pool) for names, pool in text for name in names.split()
        }
        self._pools["member_id"] = lambda: rng.choice(["", "x", *self.members[-4:]])
        for name in ("producer_id", "v3_and_below_producer_id", "producer_id_filters"):
            self._pools[name] = lambda: rng.choice([-1, STRANGER, *self.producers[-3:] * 3])

    def next(self) -> tuple[Message, int]:
        kind = self.rng.choice(KINDS)
        newest = NEWEST.get(kind, kind.VERSIONS.high)
        version = newest
        if self.rng.random() < 0.6:
            version = self.rng.randint(kind.VERSIONS.low, newest)
        if kind is produce.ProduceRequest:
            return self._produce(version), version
        request: Any = self._struct(kind, version)
        if isinstance(request, groups.JoinGroupRequest):
            self._keep_short(request)
        elif isinstance(request, txn.AddPartitionsToTxnRequest):
            asked = {each.transactional_id: each for each in request.transactions}
            request.transactions = list(asked.values())
            if version >= 4 and not asked:
                return self.next()
        elif isinstance(request, txn.WriteTxnMarkersRequest):
            request.markers = request.markers[:1]
            for marker in request.markers:
                marker.topics = list({each.name: each for each in marker.topics}.values())
                for topic in marker.topics:
                    topic.partition_indexes = sorted(set(topic.partition_indexes))
        elif isinstance(request, txn.ListTransactionsRequest) and version < 2:
            request.producer_id_filters = request.producer_id_filters or [STRANGER]
        return request, version

    def _keep_short(self, request: groups.JoinGroupRequest) -> None:
        """One member a group, so that nobody waits for another."""
        subscription = groups.ConsumerProtocolSubscription(topics=[f"{self.tag}a"])
        metadata = b"\0\1" + subscription.encode(1)
        request.protocols = [groups.JoinGroupRequestProtocol(name="range", metadata=metadata)]
        if request.group_id in self._joined:
            request.session_timeout_ms = 5  # too short
        self._joined.add(request.group_id)

    def _produce(self, version: int) -> produce.ProduceRequest:
        rng = self.rng
        topic = rng.choice(list(self.topics))
        transactional = rng.random() < 0.7 and bool(self.producers)
        producer = rng.choice(self.producers[-3:]) if transactional else rng.choice([-1, STRANGER])
        record = OneRecord(
            producer,
            rng.choice(EPOCHS),
            rng.choice([0, 0, 1, 2, 3 if transactional else -1]),
            TRANSACTIONAL if transactional else 0,
        )
        entries: list[Any] = [
            produce.PartitionProduceData(index=rng.choice([0, 0, 1, 2]), records=record)  # type: ignore[arg-type]
            for _ in range(rng.choice([1, 1, 1, 2]))
        ]
        data: Any = {"topic_id": Name("topic", topic)} if version >= 13 else {"name": topic}
        return produce.ProduceRequest(
            transactional_id=rng.choice([*self.transactional_ids, None]),
            acks=rng.choice([-1, -1, 1]),
            timeout_ms=5_000,
            topic_data=[produce.TopicProduceData(partition_data=entries, **data)],
        )

    def _struct(self, kind: type[Struct], version: int) -> Struct:
        fields = [f for f in kind.FIELDS if version in f.within and f.tag is None]
        return kind(**{f.name: self._value(f, f.type, version) for f in fields})

    def _value(self, field: Field, kind: Type, version: int) -> Any:
        if kind.element is not None:
            if version in field.nullable and self.rng.random() < 0.2:
                return None
            count = self.rng.choice([0, 1, 1, 1, 2])
            return [self._value(field, kind.element, version) for _ in range(count)]
        if kind.struct is not None:
            return self._struct(kind.struct, version)
        if field.name not in self._pools:
            return field.default()
        drawn = self._pools[field.name]()
        return "" if drawn is None and version not in field.nullable else drawn
