"""What the handlers of the controller share: the speculative image, sessions, facts given to them.

Hard state is the image and changes only by `replay`. Soft state is the brokers' sessions: never
stored, started afresh when this node becomes the active controller.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from scriba.controller.image import BrokerImage, ClusterImage
from scriba.controller.indexes import PartitionIndex
from scriba.controller.plans import Step
from scriba.errors import ErrorCode, KafkaError
from scriba.settings.node import NodeSettings
from scriba.wire.messages.admin import CreatableTopicConfigs
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.controller.partitions.elections import End


class BrokerNews(NamedTuple):
    broker_id: int
    fenced: bool
    cause: str


class Ends(NamedTuple):
    """What replicas of a partition that nobody leads answered, by broker."""

    leader_epoch: int
    by_broker: Mapping[int, "End"]


class Result(NamedTuple):
    """What a request comes to. `response` is complete once `records` is exhausted.

    An atomic result becomes one batch, or one from each of its barriers to the next. The others may
    be cut anywhere: each record stands for itself, as when a broker's thousands of partitions lose
    a replica. Records may be made as they are pulled, so that whoever runs the machine can pause
    in between (`plans`).
    """

    records: Iterable[Step]
    response: Message
    atomic: bool = True


@dataclass(slots=True)
class Session:
    """A broker's contact with the controller; times are monotonic milliseconds."""

    last_contact: int
    metadata_offset: int = -1
    """The last record that the broker is known to have applied."""
    controlled_shutdown_offset: int = -1
    """The last record that the others must have applied before this broker may go."""
    in_contact: bool = True
    """False until the first heartbeat to this controller, and when its connection has ended."""


@dataclass(slots=True)
class State:
    node_id: int
    cluster_id: str
    settings: NodeSettings
    supported: Mapping[str, tuple[int, int]]
    uuid: Callable[[], bytes]
    """Makes the id of a new topic."""
    below: Callable[[int], int]
    """Picks a whole number in [0, n): where a stripe of replicas starts."""
    image: ClusterImage = field(default_factory=ClusterImage)
    partitions: PartitionIndex = field(default_factory=PartitionIndex)
    sessions: dict[int, Session] = field(default_factory=dict)
    metric_forms: dict[str, str] = field(default_factory=dict)
    """Topics by the form of their name in metrics, where '.' and '_' are the same."""
    described: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = field(
        default_factory=dict
    )
    """What CreateTopics tells of a new topic's configs, by those that it sets itself."""
    causes: dict[int, str] = field(default_factory=dict)
    """Why brokers are being fenced, until the record that says so is replayed."""
    news: list[BrokerNews] = field(default_factory=list)
    """Brokers that were fenced or unfenced, for an operator."""
    unclean_due: dict[tuple[bytes, int], None] = field(default_factory=dict)
    """Partitions without a leader, by topic id and index, of which any replica may be elected once
    all were asked what they have."""
    ends: dict[tuple[bytes, int], Ends] = field(default_factory=dict)
    """What replicas answered, until the election that they were asked for."""

    def active(self, broker_id: int) -> bool:
        """Whether a replica on this broker can lead and be in sync."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.active

    def session_is_valid(self, broker: BrokerImage, now_ms: int) -> bool:
        session = self.sessions.get(broker.id)
        return (
            session is not None
            and now_ms - session.last_contact < self.settings.broker_session_timeout_ms
        )

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        """A request of an earlier incarnation must not change anything (KIP-380)."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            fail(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"broker {broker_id} is unknown here; it must register first",
            )
        if broker.epoch != broker_epoch:
            fail(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} is at epoch {broker.epoch}, the request is of epoch "
                f"{broker_epoch}",
            )
        return broker


def fail(code: ErrorCode, message: str = "") -> NoReturn:
    raise KafkaError(code, message)
