"""What the fast paths need of the node (see `broker.ports`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scriba.broker.handlers.ports import Fetching, Producing
from scriba.broker.ports import (
    Authorization,
    Configuration,
    Counting,
    EventLog,
    MetadataView,
)

if TYPE_CHECKING:
    from scriba.broker.coordinators.runtime import CoordinatorRuntime
    from scriba.broker.handlers.records.acks import AckDeadlines


class FastPathSwitch(Protocol):
    @property
    def fast_paths(self) -> bool:
        """Whether a request may be answered without its handler."""


class ProduceFastPathHost(EventLog, FastPathSwitch, Producing, Protocol):
    """What the fast path of Produce needs of the node."""


class FetchFastPathHost(FastPathSwitch, Fetching, Protocol):
    """What the fast path of a consumer's Fetch needs of the node."""


class ReplicaFetchFastPathHost(FastPathSwitch, Fetching, Protocol):
    """What the fast path of a follower's Fetch needs of the node."""

    @property
    def ack_deadlines(self) -> AckDeadlines: ...


class CommitFastPathHost(
    Authorization, Configuration, Counting, FastPathSwitch, MetadataView, Protocol
):
    """What the fast path of OffsetCommit needs of the node: the group's shard is asked directly."""

    @property
    def group_coordinators(self) -> CoordinatorRuntime: ...
