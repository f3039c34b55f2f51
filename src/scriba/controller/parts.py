"""What an image is made of: partitions, topics, brokers, controllers, and the records they are in.

None of these values is ever altered; a change makes a new one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from scriba.placement.spreading import BrokerLocation
from scriba.wire.messages.stored import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)

NO_LEADER: Final = -1
NO_CHANGE: Final = -2
"""What a `PartitionChangeRecord` carries as leader when the leader stays (and its epoch too)."""

RECOVERED: Final = 0
RECOVERING: Final = 1

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
"""Resource types, as ConfigRecord and the config requests number them."""

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
ELIGIBLE_VERSION: Final = "eligible.leader.replicas.version"
"""At 1, replicas that left a short in-sync set may still be elected (KIP-966)."""

DIRECTORY_MIGRATING: Final = bytes(16)
DIRECTORY_UNASSIGNED: Final = bytes(15) + b"\x01"
"""Reserved directory ids: the broker has not said yet where it keeps the replica."""
DIRECTORY_LOST: Final = bytes(15) + b"\x02"
"""Reserved as well: the broker has no files of the replica that are of use."""

_OPEN_DIRECTORIES: Final = frozenset((DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED))
NO_DIRECTORY: Final = _OPEN_DIRECTORIES | {DIRECTORY_LOST}

MOST_SHARED: Final = 1 << 16
_TABLES: Final = 64


class Shared:
    """Lists of brokers and directories, equal ones kept once: many partitions have few of them.

    They are in many small tables: one that grows is copied and one that is full is dropped, in the
    middle of somebody's slice of the loop, and for all of them that takes milliseconds.
    """

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: list[dict[tuple[Any, ...], tuple[Any, ...]]] = [{} for _ in range(_TABLES)]

    def __call__(self, values: Iterable[Any]) -> tuple[Any, ...]:
        made = tuple(values)
        table = self._tables[hash(made) % _TABLES]
        if len(table) >= MOST_SHARED // _TABLES and made not in table:
            table.clear()  # those that are in use are found again
        return table.setdefault(made, made)

    def __len__(self) -> int:
        return sum(map(len, self._tables))


class PartitionImage(NamedTuple):
    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = RECOVERED
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory(self, broker: int) -> bytes:
        """The log directory that holds this broker's replica."""
        return self.directories[self.replicas.index(broker)]

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas that a reassignment began with: those it is cancelled to."""
        return tuple(b for b in self.replicas if b not in self.adding_replicas)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that a reassignment ends with."""
        return tuple(b for b in self.replicas if b not in self.removing_replicas)


class TopicImage:
    __slots__ = ("id", "name", "partitions")

    def __init__(self, name: str, topic_id: bytes, partitions: dict[int, PartitionImage]) -> None:
        self.name = name
        self.id = topic_id
        self.partitions = partitions

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TopicImage)
            and self.id == other.id
            and self.name == other.name
            and self.partitions == other.partitions
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TopicImage({self.name!r}, {self.id.hex()}, {len(self.partitions)} partitions)"


class Listener(NamedTuple):
    name: str
    host: str
    port: int
    security_protocol: int


class BrokerImage(NamedTuple):
    id: int
    epoch: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    features: dict[str, tuple[int, int]]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]
    cordoned_directories: tuple[bytes, ...]
    registered_at: int
    """Offset of the RegisterBrokerRecord: a broker that has seen it may be unfenced."""

    @property
    def active(self) -> bool:
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def place(self) -> BrokerLocation:
        """Its rack and machine; the host is the one that its first listener advertises."""
        return BrokerLocation(self.id, self.listeners[0].host if self.listeners else "", self.rack)

    @property
    def takes_new(self) -> bool:
        """Whether new replicas may be put here: some directory is not cordoned (KIP-1066)."""
        cordoned = self.cordoned_directories
        return not cordoned or any(each not in cordoned for each in self.directories)

    def default_directory(self) -> bytes:
        """Where a new replica goes: known when there is one directory, else the broker chooses."""
        return self.directories[0] if len(self.directories) == 1 else DIRECTORY_UNASSIGNED

    def holds(self, directory: bytes) -> bool:
        """Whether a replica in this directory can be online."""
        return directory in self.directories or directory in _OPEN_DIRECTORIES


class ControllerImage(NamedTuple):
    id: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    features: dict[str, tuple[int, int]]


def changed(
    partition: PartitionImage,
    record: PartitionChangeRecord,
    share: Callable[[Iterable[Any]], tuple[Any, ...]] = tuple,
) -> PartitionImage:
    """The partition after the change; naming a leader, even the same one, starts a new epoch."""
    old = partition
    same_leader = record.leader == NO_CHANGE
    state = record.leader_recovery_state
    removing, adding = record.removing_replicas, record.adding_replicas
    eligible, last = record.eligible_leader_replicas, record.last_known_elr
    return PartitionImage(
        old.replicas if record.replicas is None else share(record.replicas),
        old.directories if record.directories is None else share(record.directories),
        old.isr if record.isr is None else share(record.isr),
        old.leader if same_leader else record.leader,
        old.leader_epoch if same_leader else old.leader_epoch + 1,
        old.partition_epoch + 1,
        old.leader_recovery_state if state < 0 else state,
        old.removing_replicas if removing is None else share(removing),
        old.adding_replicas if adding is None else share(adding),
        old.eligible_leader_replicas if eligible is None else share(eligible),
        old.last_known_elr if last is None else share(last),
    )


def partition_record(topic_id: bytes, index: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def listeners_of(
    points: Iterable[BrokerEndpoint] | Iterable[ControllerEndpoint],
) -> tuple[Listener, ...]:
    return tuple(Listener(p.name, p.host, p.port, p.security_protocol) for p in points)


def ranges_of(
    features: Iterable[BrokerFeature] | Iterable[ControllerFeature],
) -> dict[str, tuple[int, int]]:
    return {f.name: (f.min_supported_version, f.max_supported_version) for f in features}


def broker_record(broker: BrokerImage, cordons: bool) -> RegisterBrokerRecord:
    """`cordons` says whether the cluster's level has a word for cordoned directories."""
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(
                name=x.name, host=x.host, port=x.port, security_protocol=x.security_protocol
            )
            for x in broker.listeners
        ],
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=list(broker.cordoned_directories) if cordons else None,
    )


def controller_record(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        end_points=[
            ControllerEndpoint(
                name=x.name, host=x.host, port=x.port, security_protocol=x.security_protocol
            )
            for x in controller.listeners
        ],
        features=[
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in controller.features.items()
        ],
    )
