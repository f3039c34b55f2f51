"""What is known of a partition: whoever gathers it hands it over, and what could not be found out
is missing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scriba.client.admin.model import PartitionDescription, Reassignment
from scriba.client.model import TopicPartition
from scriba.peers.addresses import parse_address
from scriba.settings.listeners import is_loopback


class BrokerFacts(NamedTuple):
    address: str | None
    """None for one that is not registered."""
    fenced: bool
    answers: bool

    @property
    def on_this_machine(self) -> bool:
        """As nodes of `scriba up --nodes` are; another machine is not reached by its commands."""
        parsed = parse_address(self.address) if self.address is not None else None
        return parsed is not None and is_loopback(parsed[0])


class Held(NamedTuple):
    """What a broker says of its replica."""

    start_offset: int
    end_offset: int
    high_watermark: int | None
    error: str | None = None
    epoch: int = -1
    """The newest leader epoch in its log."""


class LogDirFacts(NamedTuple):
    """What a broker says of one of its log directories."""

    path: str
    error: str | None = None
    """Of one that is offline nothing else is known."""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    cordoned: bool = False
    """Whether it gets no new replicas: by `cordoned.log.dirs`, or since it is nearly full."""
    named: bool = False
    """Whether `cordoned.log.dirs` names it."""
    watermark: float = 0.0
    """`scriba.log.dirs.write.watermark` of its broker."""
    own_mark: bool = False
    """Whether that was set for this broker, so that one for all brokers does not count."""


class EventFacts(NamedTuple):
    node: int
    time_ms: int
    kind: str
    about: str
    text: str


class Facts(NamedTuple):
    topic: str
    partition: PartitionDescription
    brokers: Mapping[int, BrokerFacts]
    held: Mapping[int, Held]
    """By broker; of those that did not answer there is nothing."""
    min_insync: int
    events: Sequence[EventFacts]
    unheard: Mapping[int, str]
    """Brokers whose events could not be read, and why."""
    now_ms: int
    asks: bool = True
    """Whether the controller asks replicas what they have before an unclean election."""
    observers: Mapping[int, str] = {}
    """Replicas that observe, each with its rack: nobody waits for them, and none is elected."""
    move: Reassignment | None = None
    """While its replicas are on their way to other brokers."""
    log_dirs: Mapping[int, Sequence[LogDirFacts]] = {}
    """By broker; of those that did not answer there is nothing."""
    lies: Mapping[int, str] = {}
    """By broker, the log directory in which its replica is."""
    internal: bool = False
    """Whether brokers themselves write it, and no clients."""
    controlled: bool = True
    """Whether an active controller answers: without one nobody is elected or let in sync."""

    @property
    def adding(self) -> tuple[int, ...]:
        return () if self.move is None else self.move.adding

    @property
    def voters(self) -> list[int]:
        """Those that should be in sync: neither observers nor what is yet to be copied."""
        beside = {*self.observers, *self.adding}
        return [each for each in self.partition.replicas if each not in beside]

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition.partition)
