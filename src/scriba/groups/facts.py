"""What the coordinator is told from outside: its settings, and the topics of the cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from scriba.outcome import Sees

INT32_MAX: Final = 2**31 - 1
NO_TOPIC_ID: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Plain values of the `group.*` and `offsets.*` settings, with Kafka's defaults.

    A shard swaps the whole object when a setting changes; timers already running keep the
    duration they were set with.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = INT32_MAX

    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000

    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = INT32_MAX
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
    """Which way a group may change its protocol while it has members: upgrade, downgrade,
    bidirectional, disabled."""
    consumer_assignment_interval_ms: int = 1_000
    consumer_regex_refresh_interval_ms: int = 600_000

    by_group: Mapping[str, "GroupSettings"] = field(default_factory=dict)
    """Groups that have settings of their own, with all that is in force for each of them."""

    def of(self, group_id: str) -> "GroupSettings":
        """What is in force for a group."""
        return self.by_group.get(group_id, self)


class TopicFacts(NamedTuple):
    """A topic as the coordinator sees it; `racks` holds the replicas' racks, partition by
    partition."""

    name: str
    id: bytes
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


class Topics(Protocol):
    """The topics that exist now."""

    def get(self, name: str) -> TopicFacts | None: ...

    def by_id(self, id: bytes) -> TopicFacts | None: ...

    def names(self) -> Iterable[str]: ...

    def matching(self, expression: str, sees: Sees | None) -> frozenset[str] | None:
        """Topics that a regular expression names, among those that its subscriber sees.

        None while that is being found out, which may take a while where there are many: whoever
        asks again later is told. BadExpression for what cannot be matched.
        """
        ...
