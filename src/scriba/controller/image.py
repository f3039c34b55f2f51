"""The cluster as the metadata log tells it: topics, partitions, brokers, configs, features.

An image is the fold of the records of `__cluster_metadata`, in order; nothing else changes it. It
folds every record that Kafka's controllers write, those of features that are not served here
included. The controller keeps two of them: the speculative one has seen every record appended, the
committed one only what the high watermark covers, and only the latter is shown to brokers and
snapshots.

The tables of an image change in place, what they hold never does: a `TopicImage`, a partition, a
broker or the configs of a resource are replaced, not altered. So a reader may keep any of them over
an await, and `copy()` costs as much as the tables' spines. Within one `Delta` a touched topic is
copied once and then filled, which keeps a topic of 10,000 partitions linear.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from scriba.controller import levels
from scriba.controller.parts import (
    BROKER,
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    ELIGIBLE_VERSION,
    GROUP,
    KRAFT_VERSION,
    METADATA_VERSION,
    NO_CHANGE,
    NO_DIRECTORY,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    TOPIC,
    BrokerImage,
    ControllerImage,
    Listener,
    PartitionImage,
    Shared,
    TopicImage,
    broker_record,
    changed,
    controller_record,
    listeners_of,
    partition_record,
    ranges_of,
)
from scriba.controller.security import KEYS as SECURITY_RECORDS
from scriba.controller.security import SecurityImage
from scriba.settings.placement import PLACEMENT, ReplicaPlacement, replica_placement
from scriba.wire.messages.stored import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
    ZkMigrationStateRecord,
)
from scriba.wire.schema import Message

__all__ = [
    "BROKER",
    "DIRECTORY_LOST",
    "DIRECTORY_MIGRATING",
    "DIRECTORY_UNASSIGNED",
    "ELIGIBLE_VERSION",
    "GROUP",
    "KRAFT_VERSION",
    "METADATA_VERSION",
    "NO_CHANGE",
    "NO_DIRECTORY",
    "NO_LEADER",
    "RECOVERED",
    "RECOVERING",
    "TOPIC",
    "BrokerImage",
    "ClusterImage",
    "ControllerImage",
    "Delta",
    "ImageError",
    "Listener",
    "PartitionImage",
    "TopicImage",
    "changed",
    "partition_record",
]


class ImageError(Exception):
    """A record that contradicts the records before it, or one this release cannot follow."""


class Delta:
    """What a stretch of records changed, with what stood there before (None: nothing)."""

    __slots__ = (
        "brokers",
        "configs",
        "created",
        "deleted",
        "end_offset",
        "features",
        "partitions",
        "producer_ids",
        "security",
        "unknown",
    )

    def __init__(self) -> None:
        self.created: dict[bytes, TopicImage] = {}
        self.deleted: dict[bytes, TopicImage] = {}
        self.partitions: dict[bytes, dict[int, PartitionImage | None]] = {}
        """By topic id, the partitions added or changed, deleted topics apart."""
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.brokers: dict[int, BrokerImage | None] = {}
        self.features: dict[str, int] = {}
        self.producer_ids = False
        self.security = False
        """Whether ACLs, quotas, credentials or tokens changed."""
        self.unknown: set[int] = set()
        """Types of records that are not known here."""
        self.end_offset = 0

    def __bool__(self) -> bool:
        return bool(
            self.created
            or self.deleted
            or self.partitions
            or self.configs
            or self.brokers
            or self.features
            or self.producer_ids
            or self.security
            or self.unknown
        )

    def parts(self, most: int) -> Iterator[Delta]:
        """The same in parts of at most so many partitions, all that is no partition in the first.

        One that is small enough is a part by itself.
        """
        if sum(map(len, self.partitions.values())) <= most:
            yield self
            return
        part, room = copy.copy(self), most
        part.partitions = {}
        for topic_id, changes in self.partitions.items():
            left = iter(changes.items())
            while some := dict(islice(left, room)):
                part.partitions[topic_id] = some
                room -= len(some)
                if not room:
                    yield part
                    part, room = Delta(), most
                    part.end_offset = self.end_offset
        if part.partitions:
            yield part


class ClusterImage:
    __slots__ = (
        "_open_transaction",
        "brokers",
        "configs",
        "controllers",
        "end_offset",
        "epoch",
        "features",
        "next_producer_id",
        "security",
        "share",
        "topics_by_id",
        "topics_by_name",
        "unknown",
    )

    def __init__(self) -> None:
        self.topics_by_name: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.brokers: dict[int, BrokerImage] = {}
        self.controllers: dict[int, ControllerImage] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.security = SecurityImage()
        self.unknown: frozenset[int] = frozenset()
        """Types of records in the log that are not known here. A snapshot would lose them."""
        self.end_offset = 0
        """The first offset not folded in, exclusive as every end offset."""
        self.epoch = 0
        """The leader epoch of the last record folded in."""
        self._open_transaction: list[tuple[int, Message]] | None = None
        self.share = Shared()
        """Keeps equal lists once; copies of an image go on with it."""

    @property
    def last_offset(self) -> int:
        """The offset a broker reports in its heartbeats as the last one it has applied."""
        return self.end_offset - 1

    @property
    def metadata_version(self) -> int:
        return self.features.get(METADATA_VERSION, 0)

    @property
    def in_transaction(self) -> bool:
        """Whether records are held back until their metadata transaction ends."""
        return self._open_transaction is not None

    def brokers_on(
        self, listener: str, *, fenced: bool = False
    ) -> Iterator[tuple[BrokerImage, str, int]]:
        """Brokers that clients of a listener can be sent to, with the address for them."""
        for _, broker in sorted(self.brokers.items()):
            if broker.fenced and not fenced:
                continue
            for endpoint in broker.listeners:
                if endpoint.name == listener:
                    yield broker, endpoint.host, endpoint.port

    def config(self, resource_type: int, name: str) -> dict[str, str]:
        return self.configs.get((resource_type, name), {})

    def placement(self, topic: str) -> ReplicaPlacement | None:
        """Where a topic wants its replicas; None where it does not say."""
        return replica_placement(self.config(TOPIC, topic).get(PLACEMENT))

    def observing(self, placement: ReplicaPlacement | None) -> frozenset[int]:
        """Brokers whose replicas observe in a topic with this placement."""
        if placement is None:
            return frozenset()
        return placement.observing({broker.id: broker.rack for broker in self.brokers.values()})

    def copy(self) -> ClusterImage:
        """An image that later changes to this one do not reach."""
        other = ClusterImage()
        other.topics_by_name = self.topics_by_name.copy()
        other.topics_by_id = self.topics_by_id.copy()
        other.brokers = self.brokers.copy()
        other.controllers = self.controllers.copy()
        other.configs = self.configs.copy()
        other.features = self.features.copy()
        other.next_producer_id = self.next_producer_id
        other.security = self.security.copy()
        other.unknown = self.unknown
        other.end_offset = self.end_offset
        other.epoch = self.epoch
        other.share = self.share
        if self._open_transaction is not None:
            other._open_transaction = self._open_transaction.copy()
        return other

    def __eq__(self, other: object) -> bool:
        """Same cluster: position in the log and registration offsets (a snapshot's reader sees
        other ones) do not count."""
        return (
            isinstance(other, ClusterImage)
            and self.topics_by_id == other.topics_by_id
            and self.configs == other.configs
            and self.features == other.features
            and self.controllers == other.controllers
            and self.next_producer_id == other.next_producer_id
            and self.security == other.security
            and {k: b._replace(registered_at=0) for k, b in self.brokers.items()}
            == {k: b._replace(registered_at=0) for k, b in other.brokers.items()}
        )

    __hash__ = None  # type: ignore[assignment]

    # ---- folding ----

    def replay(
        self, records: Iterable[Message], base_offset: int, epoch: int, delta: Delta
    ) -> None:
        """Folds in one batch; `base_offset` is the offset of its first record."""
        offset = base_offset - 1
        for offset, record in enumerate(records, base_offset):
            self._replay(record, offset, delta)
        self.advance(offset + 1, epoch, delta)

    def advance(self, end_offset: int, epoch: int, delta: Delta) -> None:
        """Moves past records that carry no metadata (the quorum's own control batches)."""
        self.end_offset = delta.end_offset = end_offset
        self.epoch = epoch

    def set_feature(self, name: str, level: int, delta: Delta) -> None:
        """A level of zero means the feature is off, which is the same as never set."""
        delta.features.setdefault(name, self.features.get(name, 0))
        if level:
            self.features[name] = level
        else:
            self.features.pop(name, None)

    def _replay(self, record: Message, offset: int, delta: Delta) -> None:
        kind = type(record)
        if self._open_transaction is not None:
            # Records of a metadata transaction take effect together, or not at all (KIP-868).
            if kind is AbortTransactionRecord:
                self._open_transaction = None
            elif kind is EndTransactionRecord:
                held, self._open_transaction = self._open_transaction, None
                for held_offset, held_record in held:
                    self._replay(held_record, held_offset, delta)
            else:
                self._open_transaction.append((offset, record))
            return
        if kind is BeginTransactionRecord:
            self._open_transaction = []
            return
        fold = _FOLDS.get(kind)
        if fold is None:
            raise ImageError(f"{kind.__name__} at offset {offset} is no part of a transaction")
        fold(self, record, offset, delta)

    def _touch(self, topic_id: bytes, delta: Delta) -> TopicImage:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise ImageError(f"no topic with id {topic_id.hex()}")
        if topic_id not in delta.partitions:
            delta.partitions[topic_id] = {}
            topic = TopicImage(topic.name, topic_id, topic.partitions.copy())
            self.topics_by_id[topic_id] = self.topics_by_name[topic.name] = topic
        return topic

    def _topic(self, record: TopicRecord, offset: int, delta: Delta) -> None:
        if record.name in self.topics_by_name:
            raise ImageError(f"topic {record.name} created twice, again at offset {offset}")
        topic = TopicImage(record.name, record.topic_id, {})
        self.topics_by_name[record.name] = self.topics_by_id[record.topic_id] = topic
        delta.created[record.topic_id] = topic
        delta.partitions[record.topic_id] = {}

    def _partition(self, record: PartitionRecord, offset: int, delta: Delta) -> None:
        topic = self._touch(record.topic_id, delta)
        index = record.partition_id
        delta.partitions[record.topic_id].setdefault(index, topic.partitions.get(index))
        share = self.share
        topic.partitions[index] = PartitionImage(
            share(record.replicas),
            share(record.directories) or share((DIRECTORY_MIGRATING,) * len(record.replicas)),
            share(record.isr),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.leader_recovery_state,
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
        )

    def _partition_change(self, record: PartitionChangeRecord, offset: int, delta: Delta) -> None:
        topic = self._touch(record.topic_id, delta)
        index = record.partition_id
        before = topic.partitions.get(index)
        if before is None:
            raise ImageError(f"no partition {topic.name}-{index} to change at offset {offset}")
        delta.partitions[record.topic_id].setdefault(index, before)
        topic.partitions[index] = changed(before, record, self.share)

    def _clear_elr(self, record: ClearElrRecord, offset: int, delta: Delta) -> None:
        """Nobody beside the in-sync replicas is eligible any more, in one topic or in all."""
        if not record.topic_name:
            chosen = list(self.topics_by_id.values())
        elif record.topic_name in self.topics_by_name:
            chosen = [self.topics_by_name[record.topic_name]]
        else:
            raise ImageError(f"no topic {record.topic_name} to clear at offset {offset}")
        for topic in chosen:
            for index, partition in topic.partitions.items():
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    change = PartitionChangeRecord(
                        topic_id=topic.id,
                        partition_id=index,
                        eligible_leader_replicas=[],
                        last_known_elr=[],
                    )
                    self._partition_change(change, offset, delta)

    def _security(self, record: Message, offset: int, delta: Delta) -> None:
        self.security.fold(record)
        delta.security = True

    def _remove_topic(self, record: RemoveTopicRecord, offset: int, delta: Delta) -> None:
        topic = self.topics_by_id.pop(record.topic_id, None)
        if topic is None:
            raise ImageError(f"no topic with id {record.topic_id.hex()} to remove at {offset}")
        del self.topics_by_name[topic.name]
        delta.partitions.pop(record.topic_id, None)
        if delta.created.pop(record.topic_id, None) is None:
            delta.deleted[record.topic_id] = topic
        before = self.configs.pop((TOPIC, topic.name), None)
        if before is not None:
            delta.configs.setdefault((TOPIC, topic.name), before)

    def _config(self, record: ConfigRecord, offset: int, delta: Delta) -> None:
        key = (record.resource_type, record.resource_name)
        before = self.configs.get(key, {})
        delta.configs.setdefault(key, before)
        after = before.copy()
        if record.value is None:
            after.pop(record.name, None)
        else:
            after[record.name] = record.value
        if after:
            self.configs[key] = after
        else:
            self.configs.pop(key, None)

    def _feature(self, record: FeatureLevelRecord, offset: int, delta: Delta) -> None:
        self.set_feature(record.name, record.feature_level, delta)

    def _producer_ids(self, record: ProducerIdsRecord, offset: int, delta: Delta) -> None:
        if record.next_producer_id < self.next_producer_id:
            raise ImageError(f"producer ids go back to {record.next_producer_id} at {offset}")
        self.next_producer_id = record.next_producer_id
        delta.producer_ids = True

    def _register_broker(self, record: RegisterBrokerRecord, offset: int, delta: Delta) -> None:
        delta.brokers.setdefault(record.broker_id, self.brokers.get(record.broker_id))
        self.brokers[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            listeners_of(record.end_points),
            ranges_of(record.features),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
            tuple(record.cordoned_log_dirs or ()),
            offset,
        )

    def _unregister_broker(self, record: UnregisterBrokerRecord, offset: int, delta: Delta) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch, offset)
        delta.brokers.setdefault(broker.id, broker)
        del self.brokers[broker.id]

    def _fence(self, record: FenceBrokerRecord, offset: int, delta: Delta) -> None:
        self._set_broker(self._broker(record.id, record.epoch, offset), delta, fenced=True)

    def _unfence(self, record: UnfenceBrokerRecord, offset: int, delta: Delta) -> None:
        self._set_broker(self._broker(record.id, record.epoch, offset), delta, fenced=False)

    def _change_broker(
        self, record: BrokerRegistrationChangeRecord, offset: int, delta: Delta
    ) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch, offset)
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["directories"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_directories"] = tuple(record.cordoned_log_dirs)
        self._set_broker(broker, delta, **changes)

    def _broker(self, broker_id: int, epoch: int, offset: int) -> BrokerImage:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise ImageError(f"no broker {broker_id} of epoch {epoch} to change at {offset}")
        return broker

    def _set_broker(self, broker: BrokerImage, delta: Delta, **changes: Any) -> None:
        delta.brokers.setdefault(broker.id, broker)
        self.brokers[broker.id] = broker._replace(**changes)

    def _register_controller(
        self, record: RegisterControllerRecord, offset: int, delta: Delta
    ) -> None:
        self.controllers[record.controller_id] = ControllerImage(
            record.controller_id,
            record.incarnation_id,
            listeners_of(record.end_points),
            ranges_of(record.features),
        )

    def _unknown(self, record: UnknownRecord, offset: int, delta: Delta) -> None:
        """Of a feature that this release lacks, so that nothing else here depends on it."""
        self.unknown |= {record.type}
        delta.unknown.add(record.type)

    def _no_op(self, record: Message, offset: int, delta: Delta) -> None:
        pass

    # ---- writing ----

    def records(self) -> Iterator[Message]:
        """The shortest list of records that folds into this image, in the order Kafka writes."""
        yield FeatureLevelRecord(name=METADATA_VERSION, feature_level=self.metadata_version)
        for name, level in sorted(self.features.items()):
            # The quorum writes its own version as a control record.
            if name not in (METADATA_VERSION, KRAFT_VERSION):
                yield FeatureLevelRecord(name=name, feature_level=level)
        for broker in self.brokers.values():
            yield broker_record(broker, self.metadata_version >= levels.CORDONS)
        for controller in self.controllers.values():
            yield controller_record(controller)
        for topic in self.topics_by_name.values():
            yield TopicRecord(name=topic.name, topic_id=topic.id)
            for index, partition in topic.partitions.items():
                yield partition_record(topic.id, index, partition)
        for (resource_type, resource_name), values in self.configs.items():
            for name, value in values.items():
                yield ConfigRecord(
                    resource_type=resource_type,
                    resource_name=resource_name,
                    name=name,
                    value=value,
                )
        if self.next_producer_id:
            yield ProducerIdsRecord(
                broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id
            )
        yield from self.security


_FOLDS: Final[dict[type[Message], Callable[[ClusterImage, Any, int, Delta], None]]] = {
    TopicRecord: ClusterImage._topic,
    PartitionRecord: ClusterImage._partition,
    PartitionChangeRecord: ClusterImage._partition_change,
    RemoveTopicRecord: ClusterImage._remove_topic,
    ConfigRecord: ClusterImage._config,
    FeatureLevelRecord: ClusterImage._feature,
    ProducerIdsRecord: ClusterImage._producer_ids,
    RegisterBrokerRecord: ClusterImage._register_broker,
    UnregisterBrokerRecord: ClusterImage._unregister_broker,
    FenceBrokerRecord: ClusterImage._fence,
    UnfenceBrokerRecord: ClusterImage._unfence,
    BrokerRegistrationChangeRecord: ClusterImage._change_broker,
    RegisterControllerRecord: ClusterImage._register_controller,
    ClearElrRecord: ClusterImage._clear_elr,
    NoOpRecord: ClusterImage._no_op,
    UnknownRecord: ClusterImage._unknown,
    # Written once by every Kafka that could come from ZooKeeper.
    ZkMigrationStateRecord: ClusterImage._no_op,
    **dict.fromkeys(SECURITY_RECORDS, ClusterImage._security),
}
