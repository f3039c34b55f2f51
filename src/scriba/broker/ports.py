"""What the parts of a broker ask of the node they belong to: one small protocol for each duty.

No part takes the node whole. It names the duties it needs, and a reader sees from a signature what
a handler can reach: one that is given `Authorization` and `ControllerAccess` reads no log. Where a
part needs several, it derives a protocol of its own from these, beside its code; a protocol that
speaks of partitions or coordinators stands in their package, for whoever may import that.

These are types alone. At run time the node itself is passed, so nothing is wrapped and no attribute
is further away. mypy proves that the node has all of it, where `node.py` puts the parts together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from scriba.broker.access import Access
    from scriba.broker.observe.counters import Counters
    from scriba.broker.request import Context
    from scriba.controller.image import ClusterImage
    from scriba.events import EventKind
    from scriba.runtime.loop.tasks import Tasks
    from scriba.runtime.ports import Clock, World
    from scriba.settings import NodeSettings
    from scriba.wire.schema import Message


class ClockSource(Protocol):
    @property
    def clock(self) -> Clock: ...


class Timekeeping(Protocol):
    """The time, and nothing else of the world outside."""

    @property
    def world(self) -> ClockSource: ...


class WorldAccess(Timekeeping, Protocol):
    """All of the world outside: clock, randomness, disk, network, work off the loop."""

    @property
    def world(self) -> World: ...


class Configuration(Protocol):
    @property
    def settings(self) -> NodeSettings:
        """The node's settings as they are now: dynamic ones replace the whole object."""


class Authorization(Protocol):
    @property
    def access(self) -> Access: ...


class EventLog(Protocol):
    def note(
        self, kind: EventKind, about: str, text: str, failure: BaseException | None = None
    ) -> None:
        """Tells of an event that an operator wants to know of."""


class Counting(Protocol):
    @property
    def counters(self) -> Counters: ...


class BackgroundTasks(Protocol):
    @property
    def tasks(self) -> Tasks: ...


class BrokerIdentity(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def broker_epoch(self) -> int:
        """The epoch of this registration; -1 before the controller has given one."""


class MetadataView(Protocol):
    """The cluster's metadata as far as this broker has applied it."""

    @property
    def image(self) -> ClusterImage:
        """Changes or is replaced between two turns of the loop: read it afresh after an await."""

    @property
    def departures(self) -> int:
        """Counts what went away: topics of the cluster, and replicas here."""

    @property
    def topology(self) -> int:
        """Counts changes of topics, partitions and brokers: what Metadata tells."""

    @property
    def shape(self) -> int:
        """Counts changes of topics, their replicas and brokers' racks, whoever leads or is in sync:
        what groups go by."""

    @property
    def internal_topics(self) -> frozenset[str]: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...


class ClusterFormation(Protocol):
    """How many nodes a cluster is to have, as far as that shows while it comes together."""

    @property
    def voters(self) -> int:
        """How many controllers agree on the metadata."""

    @property
    def started_ms(self) -> int:
        """When this node started, on its monotonic clock."""


CLIENTS_WAIT_MS: Final = 1_000
"""How long what ordinary clients ask goes without a controller (topics that are made as they are
named, coordinators, producer ids): their connection answers nothing else meanwhile, and what else
they have under way on it needs no controller."""


class ControllerClient(Protocol):
    """The active controller, wherever it is."""

    async def call(
        self,
        request: Message,
        version: int | None = None,
        ctx: Context | None = None,
        *,
        timeout_ms: int | None = None,
        leaderless_ms: int | None = None,
    ) -> Any:
        """Its response, once that is committed; KafkaError where it refuses the whole request.

        `ctx` tells who asks, where that is not the broker itself. What an administrator changed is
        in effect on all live brokers when the answer is there. Tried again while the controller is
        away, until `timeout_ms`, or else the request's own time, is over (REQUEST_TIMED_OUT); for
        no longer than `leaderless_ms` where there is no controller that takes it.
        """


class ControllerAccess(Protocol):
    @property
    def controller(self) -> ControllerClient: ...


class BrokerClient(Protocol):
    """The other brokers of the cluster."""

    async def call(
        self,
        broker_id: int,
        request: Message,
        version: int | None = None,
        *,
        purpose: str = "",
        timeout_ms: int | None = None,
    ) -> Any:
        """A broker's response; ClientError where there is none."""


class BrokerAccess(Protocol):
    @property
    def channels(self) -> BrokerClient: ...
