"""Settings of a consumer that make it a member of a group, and what contradicts what."""

from collections.abc import Mapping
from typing import Any, Final

from scriba.client.group.assignors import ASSIGNORS, JAVA_NAMES
from scriba.config import ConfigError, Importance, Kind, Settings, setting

_MAX_INT: Final = 2**31 - 1

_CLASSIC_ONLY: Final = ("session.timeout.ms", "heartbeat.interval.ms")
"""Under the consumer protocol these are the broker's: group.consumer.*."""


def _check_filled(text: str) -> str | None:
    return None if text else "must not be empty"


def _check_strategies(names: tuple[str, ...]) -> str | None:
    if not names:
        return "must name at least one assignor"
    wrong = next((n for n in names if n not in ASSIGNORS and n not in JAVA_NAMES), None)
    known = ", ".join(ASSIGNORS)
    return None if wrong is None else f"no assignor is called {wrong!r}; there are {known}"


class GroupKeys(Settings):
    group_id: str | None = setting(
        Kind.STRING,
        default=None,
        check=_check_filled,
        importance=Importance.HIGH,
        doc="The group whose members share the subscribed topics and commit offsets together.",
    )
    group_instance_id: str | None = setting(
        Kind.STRING,
        default=None,
        check=_check_filled,
        doc="A name that makes this a static member: back within session.timeout.ms it finds its "
        "partitions as they were, without a rebalance (KIP-345).",
    )
    group_protocol: str = setting(
        Kind.STRING,
        default="classic",
        choices=("classic", "consumer"),
        importance=Importance.HIGH,
        doc="Who shares out the partitions: a member (classic), or the broker, bit by bit "
        "(consumer, KIP-848).",
    )
    group_remote_assignor: str | None = setting(
        Kind.STRING,
        default=None,
        check=_check_filled,
        doc="The broker's assignor under the consumer protocol, such as uniform or range; unset, "
        "the broker chooses.",
    )
    partition_assignment_strategy: tuple[str, ...] = setting(
        Kind.LIST,
        default=("range", "cooperative-sticky"),
        check=_check_strategies,
        doc="Assignors this member can work with, the preferred one first: range, roundrobin, "
        "sticky, cooperative-sticky, or Java's class names. Rebalances are cooperative only when "
        "all named ones are.",
    )
    session_timeout_ms: int = setting(
        Kind.INT,
        default=45_000,
        at_least=0,
        at_most=_MAX_INT,
        importance=Importance.HIGH,
        doc="A member that is not heard of for this time has left the group (classic protocol).",
    )
    heartbeat_interval_ms: int = setting(
        Kind.INT,
        default=3_000,
        at_least=0,
        importance=Importance.HIGH,
        doc="How often a member is heard of (classic protocol); a third of the session at most.",
    )
    max_poll_interval_ms: int = setting(
        Kind.INT,
        default=300_000,
        at_least=1,
        doc="A member that does not poll for this time leaves the group; also how long the others "
        "wait for it in a rebalance.",
    )
    enable_auto_commit: bool = setting(
        Kind.BOOLEAN,
        default=True,
        doc="Whether polling commits the offsets of what earlier polls gave, every "
        "auto.commit.interval.ms. Without a group.id it is off.",
    )
    auto_commit_interval_ms: int = setting(
        Kind.INT,
        default=5_000,
        at_least=0,
        importance=Importance.LOW,
        doc="How often offsets are committed automatically.",
    )
    exclude_internal_topics: bool = setting(
        Kind.BOOLEAN,
        default=True,
        doc="Whether a subscribed pattern leaves out Kafka's own topics.",
    )


def settle_group(values: dict[str, Any], table: Mapping[str, Any]) -> None:
    """Refuses what contradicts itself; `values` holds only what was given."""
    if values.get("group_id") is None:
        for name in ("enable.auto.commit", "group.instance.id"):
            if values.get(name.replace(".", "_")):
                raise ConfigError(name, "needs a group.id; set one, or leave this out")
        values["enable_auto_commit"] = False
    if values.get("group_protocol") == "consumer":
        for name in (*_CLASSIC_ONLY, "partition.assignment.strategy"):
            if name.replace(".", "_") in values:
                advice = "group.remote.assignor" if name.startswith("part") else "the broker"
                raise ConfigError(
                    name, f"is not used with group.protocol=consumer, where {advice} says; drop it"
                )
    elif "group_remote_assignor" in values:
        raise ConfigError(
            "group.remote.assignor",
            "needs group.protocol=consumer; set it, or use partition.assignment.strategy",
        )
    session, beat = (
        values.get(name.replace(".", "_"), table[name].default) for name in _CLASSIC_ONLY
    )
    if beat >= session:
        raise ConfigError(
            "heartbeat.interval.ms",
            f"must be below session.timeout.ms={session}; a third of it is usual",
            str(beat),
        )
    chosen = values.get("partition_assignment_strategy")
    if chosen is not None:
        plain = dict.fromkeys(JAVA_NAMES.get(name, name) for name in chosen)
        values["partition_assignment_strategy"] = tuple(plain)
