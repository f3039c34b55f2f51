"""What `Admin` is asked for and what it answers."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scriba.client.cluster import Node
from scriba.client.model import TopicPartition
from scriba.config import Kind, Source
from scriba.errors import ErrorCode


class ResourceType(enum.IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """`ConfigResource.topic("t")`, `.broker(1)`; a broker without a name stands for all."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> "ConfigResource":
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, node_id: int | None = None) -> "ConfigResource":
        return cls(ResourceType.BROKER, "" if node_id is None else str(node_id))

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name or '(all)'}"


class ConfigOp(enum.IntEnum):
    """What an incremental change does to a setting; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ElectionType(enum.IntEnum):
    PREFERRED = 0
    """The first of a partition's replicas, if it is in sync."""
    UNCLEAN = 1
    """Any replica that lives, where none in sync does: what only others had is lost."""


class UpgradeType(enum.IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(slots=True, frozen=True)
class NewTopic:
    """A topic to create; -1 leaves a number to the broker."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] | None = None
    """Brokers of each partition, instead of the two numbers."""


@dataclass(slots=True, frozen=True)
class CreatedTopic:
    name: str
    id: str
    partitions: int
    replication_factor: int
    configs: dict[str, str | None]


@dataclass(slots=True, frozen=True)
class TopicListing:
    name: str
    id: str
    internal: bool
    partitions: int


@dataclass(slots=True, frozen=True)
class PartitionDescription:
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(slots=True, frozen=True)
class Reassignment:
    """Replicas of a partition that are on their way to other brokers."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that it ends with."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(slots=True, frozen=True)
class TopicDescription:
    name: str
    id: str
    internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(slots=True, frozen=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: Source | int


@dataclass(slots=True, frozen=True)
class ConfigEntry:
    """A setting in force; its synonyms are all words on it, strongest first."""

    name: str
    value: str | None
    source: Source | int
    read_only: bool
    sensitive: bool
    kind: Kind | None
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source == Source.DEFAULT_CONFIG


@dataclass(slots=True, frozen=True)
class ClusterDescription:
    id: str
    controller: int | None
    nodes: tuple[Node, ...]
    fenced: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class ReplicaLog:
    """One replica in a log directory; `future` when it is being moved there."""

    size: int
    offset_lag: int
    future: bool


@dataclass(slots=True, frozen=True)
class ReplicaOffsets:
    """Where the log of one replica begins and ends, and what it knows to be committed; all of it
    -1 where it has an error instead."""

    start_offset: int
    end_offset: int
    high_watermark: int
    error: ErrorCode | None = None
    epoch: int = -1
    """The newest leader epoch in its log; a replica of Apache Kafka tells the one it follows."""


@dataclass(slots=True, frozen=True)
class LogDir:
    path: str
    replicas: dict[TopicPartition, ReplicaLog]
    total_bytes: int | None
    usable_bytes: int | None
    cordoned: bool = False
    """Whether it gets no new replicas (KIP-1066)."""
    error: ErrorCode | None = None
    """What is wrong with it: of one that is offline nothing else is known."""


@dataclass(slots=True, frozen=True)
class Feature:
    """A feature of the cluster: what this broker supports, and the level in force."""

    name: str
    supported: tuple[int, int] | None
    finalized: int | None


class Endpoint(NamedTuple):
    """A listener of a controller, and its address."""

    name: str
    host: str
    port: int


@dataclass(slots=True, frozen=True)
class QuorumReplica:
    id: int
    directory_id: str
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


@dataclass(slots=True, frozen=True)
class QuorumDescription:
    leader: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, tuple[Endpoint, ...]] = field(default_factory=dict)
    """Where each voter's controller can be reached."""


@dataclass(slots=True, frozen=True)
class ActiveProducer:
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start_offset: int | None
    coordinator_epoch: int = -1
    """Of the coordinator that ended its last transaction here, -1 if none did."""


@dataclass(slots=True, frozen=True)
class GroupListing:
    """A group; its type is classic or consumer, as its members speak."""

    group_id: str
    type: str
    state: str
    protocol_type: str


@dataclass(slots=True, frozen=True)
class GroupMember:
    """`target` is what the member is to have, where it differs from what it has."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None
    subscription: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class GroupDescription:
    """The epoch is that of a consumer group; a classic one does not tell its generation."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...]
    epoch: int | None = None


@dataclass(slots=True, frozen=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str


@dataclass(slots=True, frozen=True)
class TransactionDescription:
    """`start_ms` only while a transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]
    coordinator: int
