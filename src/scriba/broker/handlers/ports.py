"""What each family of handlers needs of the node (see `broker.ports`).

What coordinates, what administers, what describes itself: small protocols first, then one for
each family that needs several. `Broker` is all of them together, what the table of APIs asks for;
no handler takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scriba.broker.coordinators.internal_topics import InternalTopicFacts, InternalTopicMaker
from scriba.broker.coordinators.kinds import ConfiguredFeatures
from scriba.broker.coordinators.markers import MarkerTarget
from scriba.broker.partitions.ports import PartitionAccess, PartitionLookup
from scriba.broker.ports import (
    Authorization,
    BrokerIdentity,
    ClockSource,
    ClusterFormation,
    Configuration,
    ControllerAccess,
    Counting,
    EventLog,
    MetadataView,
    Timekeeping,
    WorldAccess,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence

    from scriba.broker.coordinators.runtime import CoordinatorRuntime
    from scriba.broker.handlers.records.acks import AckDeadlines
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.net.request_memory import RequestMemory
    from scriba.broker.partitions.directories.dir_moves import DirMoves
    from scriba.broker.partitions.fetch_sessions import FetchSessions
    from scriba.broker.partitions.nearby import ReplicaSelector
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.partitions.replicas import Replicas
    from scriba.broker.partitions.replication.follower_sessions import FollowerSessions
    from scriba.broker.partitions.replication.isr_updates import IsrUpdates
    from scriba.broker.partitions.replication.throttles import ReplicationThrottles
    from scriba.broker.request import Context, Origin
    from scriba.errors import ErrorCode
    from scriba.runtime.ports import Disk
    from scriba.storage.directory.logdir import LogDir
    from scriba.storage.directory.names import PartitionName
    from scriba.txn.messages import TopicPartition
    from scriba.wire.schema import Message


# ---- what coordinates ----


class Coordinators(Protocol):
    """The coordinators of one internal topic: those of groups, or those of transactions."""

    @property
    def topic(self) -> str: ...

    def partition_of(self, key: str) -> int:
        """The partition that coordinates a group or a transactional id."""

    def partitions_led(self) -> list[int]: ...

    def begin(self, index: int, request: Message, ctx: Context) -> Message | Awaitable[Message]:
        """Starts a request now; its reply, if it may leave at once. KafkaError refuses it."""

    def busy(self, index: int) -> asyncio.Future[None] | None:
        """What is done when a large step of that partition is; None where nothing has to wait."""

    async def ask(self, key: str, request: Message, ctx: Context) -> Message: ...

    async def ask_partition(self, index: int, request: Message, ctx: Context) -> Message: ...


class GroupCoordinators(Protocol):
    @property
    def group_coordinators(self) -> Coordinators: ...


class TransactionCoordinators(Protocol):
    @property
    def txn_coordinators(self) -> Coordinators: ...


class ProducerIdSource(Protocol):
    async def next(self) -> int:
        """An id that nobody has had before."""


class ProducerIdAccess(Protocol):
    @property
    def producer_ids(self) -> ProducerIdSource: ...


class Verifier(Protocol):
    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        add: bool,
        abortable: bool = True,
    ) -> dict[TopicPartition, ErrorCode]:
        """For each partition, NONE or why the producer may not write to it in its transaction."""


class TransactionVerification(Protocol):
    @property
    def txn_verifier(self) -> Verifier: ...


# ---- what describes itself ----


class SelfDescription(Protocol):
    """What the broker tells of itself and of the cluster it belongs to."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]: ...

    def api_table(self, listener: str) -> Mapping[int, ApiEntry]: ...

    def is_controller_listener(self, name: str) -> bool: ...

    @property
    def active_controller_id(self) -> int:
        """The active controller, -1 for none."""

    def controllers_on(self, listener: str) -> list[tuple[int, str, int]]:
        """The controllers by id, with their addresses: while there is no cluster, this one."""


class LogDirectories(Protocol):
    @property
    def dirs(self) -> Sequence[LogDir]: ...

    def in_dir(self, directory: LogDir) -> Iterator[Partition]: ...

    def unopened_in(self, directory: LogDir) -> Iterator[PartitionName]: ...

    @property
    def moves(self) -> DirMoves: ...


class DiskSource(Protocol):
    @property
    def disk(self) -> Disk: ...


class DiskAndClock(DiskSource, ClockSource, Protocol):
    """How full a disk is, and the time that finding out may take."""


class Cordons(Protocol):
    def is_cordoned(self, directory: LogDir) -> bool: ...


class LogDirDescription(Authorization, Protocol):
    @property
    def log_dirs(self) -> Cordons: ...

    @property
    def replicas(self) -> LogDirectories: ...

    @property
    def world(self) -> DiskAndClock: ...


class DirChanges(Authorization, Timekeeping, Protocol):
    @property
    def replicas(self) -> LogDirectories: ...


# ---- what administers ----


class ControllerForwarding(Authorization, ControllerAccess, Protocol):
    """Authorised here, decided by the controller."""


class Heartbeats(Protocol):
    def heard(self, connection: Origin, broker_id: int, broker_epoch: int) -> None:
        """A broker's heartbeat came by a connection, and was accepted."""


class ControllerService(ControllerForwarding, Configuration, EventLog, Timekeeping, Protocol):
    """What the active controller does for brokers."""

    @property
    def deaths(self) -> Heartbeats: ...

    def api_table(self, listener: str) -> Mapping[int, ApiEntry]: ...


class TopicAdministration(Authorization, ControllerAccess, InternalTopicFacts, Protocol):
    """Topics are made, grow and go."""


class ConfigAdministration(
    Authorization, Configuration, ControllerAccess, MetadataView, Timekeeping, Protocol
):
    """Settings of topics, brokers and groups are shown and changed."""

    @property
    def id(self) -> int: ...


class MetadataDescription(SelfDescription, TopicAdministration, Timekeeping, Protocol):
    """What the cluster looks like; topics that are asked for may be made on the spot."""

    @property
    def id(self) -> int: ...


# ---- what reads and appends ----


class InspectedPartitions(PartitionLookup, Protocol):
    def inspects(self) -> bool:
        """Whether any topic here makes a batch's records pass through the broker."""


class Producing(
    Authorization,
    Configuration,
    Counting,
    MetadataView,
    WorldAccess,
    TransactionVerification,
    Protocol,
):
    """Batches are judged, verified and appended."""

    @property
    def ack_deadlines(self) -> AckDeadlines: ...

    @property
    def request_memory(self) -> RequestMemory: ...

    @property
    def replicas(self) -> InspectedPartitions: ...


class FollowedPartitions(PartitionLookup, Protocol):
    @property
    def follower_sessions(self) -> FollowerSessions: ...

    @property
    def isr_updates(self) -> IsrUpdates: ...

    @property
    def selector(self) -> ReplicaSelector: ...

    @property
    def throttles(self) -> ReplicationThrottles: ...


class Fetching(
    Authorization, Configuration, Counting, EventLog, MetadataView, Timekeeping, Protocol
):
    """Batches are read, within a session of fetches or without one; followers are kept book of."""

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def replicas(self) -> FollowedPartitions: ...


class TrimmedPartitions(PartitionLookup, Protocol):
    async def checkpoint_starts(self) -> None:
        """Returns when the log starts of all partitions are on disk."""

    def begin_trim(self, partition: Partition) -> None:
        """Somebody waits until every live replica begins where this one does."""

    def end_trim(self, partition: Partition) -> None:
        """They wait no longer."""


class OffsetAccess(Authorization, Configuration, Timekeeping, Protocol):
    """Offsets of logs are looked up, and their starts moved."""

    @property
    def replicas(self) -> TrimmedPartitions: ...


# ---- families of coordinators ----


class CoordinatorLookup(
    Authorization, GroupCoordinators, InternalTopicMaker, TransactionCoordinators, Protocol
):
    """Who coordinates a group or a transactional id; their topics are made if need be."""


class GroupMembership(Authorization, ConfiguredFeatures, GroupCoordinators, Timekeeping, Protocol):
    """Members, descriptions, lists and deletions of groups."""


class GroupOffsets(
    Authorization,
    Configuration,
    GroupCoordinators,
    MetadataView,
    PartitionAccess,
    Timekeeping,
    TransactionVerification,
    Protocol,
):
    """Offsets of groups, committed within a transaction as well."""


class ProducerIdentity(
    Authorization,
    MetadataView,
    PartitionAccess,
    ProducerIdAccess,
    Timekeeping,
    TransactionCoordinators,
    Protocol,
):
    """Ids and epochs of producers, and who writes to a partition."""


class TransactionHandling(
    Authorization,
    InternalTopicMaker,
    MarkerTarget,
    ProducerIdAccess,
    TransactionCoordinators,
    Protocol,
):
    """Transactions begin, grow, end and are described; markers come from other coordinators."""


class Broker(
    Authorization,
    BrokerIdentity,
    ClusterFormation,
    Configuration,
    ControllerAccess,
    Counting,
    EventLog,
    MetadataView,
    ProducerIdAccess,
    SelfDescription,
    TransactionVerification,
    WorldAccess,
    Protocol,
):
    """All that handlers ask of a node, by which every protocol above is satisfied.

    mypy holds each handler of the table of APIs against it, and `Node` where it makes its dispatch.
    """

    @property
    def log_dirs(self) -> Cordons: ...

    @property
    def request_memory(self) -> RequestMemory: ...

    @property
    def ack_deadlines(self) -> AckDeadlines: ...

    @property
    def deaths(self) -> Heartbeats: ...

    @property
    def group_coordinators(self) -> CoordinatorRuntime: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def txn_coordinators(self) -> CoordinatorRuntime: ...
