"""The settings of a single group of the consumer protocol.

What a group does not set comes from the node, whose settings carry the names listed as synonyms
here and bound what a group may set. A group need not exist to be given settings.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from scriba.config import ConfigError, Kind, Scope, Settings, did_you_mean, setting

if TYPE_CHECKING:
    from scriba.settings.node import NodeSettings

NOT_SERVED: Final = {"share.": "share groups", "streams.": "streams groups"}


class GroupConfigs(Settings):
    consumer_session_timeout_ms: int = setting(
        Kind.INT,
        default=45_000,
        at_least=1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("group.consumer.session.timeout.ms",),
        doc="Silence after which a member of this group is out.",
    )
    consumer_heartbeat_interval_ms: int = setting(
        Kind.INT,
        default=5000,
        at_least=1,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("group.consumer.heartbeat.interval.ms",),
        doc="Interval between heartbeats, told to the members of this group.",
    )
    consumer_assignment_interval_ms: int = setting(
        Kind.INT,
        default=1000,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        synonyms=("group.consumer.assignment.interval.ms",),
        doc="Least time between two assignments of this group.",
    )

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], node: "NodeSettings") -> "GroupConfigs":
        """What is in force for a group with `overrides`; ConfigError where they cannot be."""
        for name in overrides:
            _refuse_unknown(name)
        given = cls.parse_values(overrides)
        for declaration in cls.table.values():
            (synonym,) = declaration.synonyms
            if declaration.attribute in given:
                _refuse_outside(declaration.name, given[declaration.attribute], synonym, node)
            else:
                given[declaration.attribute] = node.value(synonym)
        configs = cls(**given)
        if configs.consumer_heartbeat_interval_ms >= configs.consumer_session_timeout_ms:
            raise ConfigError(
                "consumer.heartbeat.interval.ms",
                "must be less than consumer.session.timeout.ms",
                str(configs.consumer_heartbeat_interval_ms),
            )
        return configs


def _refuse_unknown(name: str) -> None:
    if name in GroupConfigs.table:
        return
    for prefix, feature in NOT_SERVED.items():
        if name.startswith(prefix):
            raise ConfigError(name, f"needs {feature} (not served yet)")
    raise ConfigError(name, f"no such setting{did_you_mean(name, GroupConfigs.table)}")


def _refuse_outside(name: str, value: int, synonym: str, node: "NodeSettings") -> None:
    what = synonym.removeprefix("group.consumer.")
    low, high = f"group.consumer.min.{what}", f"group.consumer.max.{what}"
    if value < node.value(low):
        raise ConfigError(name, f"must be at least {low} ({node.value(low)})", str(value))
    if value > node.value(high):
        raise ConfigError(name, f"must be at most {high} ({node.value(high)})", str(value))
