"""What the coordinators are told: their settings, the topics of the cluster, and how the topics
that hold their records are made.

The internal topics come into being with the first question for a coordinator, as in Kafka. Their
replication factor is a wish for clusters: a broker that is alone in its cluster makes them with one
replica, so that groups work from the first minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from scriba.groups.facts import GroupSettings, TopicFacts
from scriba.settings import NodeSettings
from scriba.wire.admin import CreatableTopic, CreatableTopicConfig

if TYPE_CHECKING:
    from scriba.controller.image import ClusterImage, TopicImage

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

MS_PER_MINUTE: Final = 60_000


def group_settings(node: NodeSettings) -> GroupSettings:
    return GroupSettings(
        min_session_timeout_ms=node.group_min_session_timeout_ms,
        max_session_timeout_ms=node.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=node.group_initial_rebalance_delay_ms,
        max_size=node.group_max_size,
        offset_metadata_max_bytes=node.offset_metadata_max_bytes,
        offsets_retention_ms=node.offsets_retention_minutes * MS_PER_MINUTE,
        offsets_retention_check_interval_ms=node.offsets_retention_check_interval_ms,
        consumer_session_timeout_ms=node.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=node.group_consumer_heartbeat_interval_ms,
        consumer_max_size=node.group_consumer_max_size,
        consumer_assignors=node.group_consumer_assignors,
        consumer_migration_policy=node.group_consumer_migration_policy.lower(),
        consumer_regex_refresh_interval_ms=node.group_consumer_regex_refresh_interval_ms,
    )


def internal_topic(name: str, node: NodeSettings, *, alone: bool) -> CreatableTopic:
    """How `name` is made; `alone` where the cluster has no other broker."""
    if name == OFFSETS_TOPIC:
        partitions = node.offsets_topic_num_partitions
        replicas = 1 if alone else node.offsets_topic_replication_factor
        configs: dict[str, str | int] = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": node.offsets_topic_segment_bytes,
        }
    else:
        partitions = node.transaction_state_log_num_partitions
        replicas = 1 if alone else node.transaction_state_log_replication_factor
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": min(node.transaction_state_log_min_isr, replicas),
            "segment.bytes": node.transaction_state_log_segment_bytes,
            "unclean.leader.election.enable": "false",
        }
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=_configs(configs),
    )


def _configs(configs: Mapping[str, str | int]) -> list[CreatableTopicConfig]:
    return [CreatableTopicConfig(name=name, value=str(value)) for name, value in configs.items()]


class ClusterTopics:
    """The topics of the image as the group coordinators see them: `groups.facts.Topics`."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def get(self, name: str) -> TopicFacts | None:
        return self._facts(self._image.topics_by_name.get(name))

    def by_id(self, id: bytes) -> TopicFacts | None:
        return self._facts(self._image.topics_by_id.get(id))

    def names(self) -> Iterable[str]:
        return self._image.topics_by_name

    def _facts(self, topic: TopicImage | None) -> TopicFacts | None:
        if topic is None:
            return None
        racks = {broker.id: broker.rack for broker in self._image.brokers.values() if broker.rack}
        return TopicFacts(
            topic.name,
            topic.id,
            len(topic.partitions),
            tuple(
                frozenset(racks[each] for each in partition.replicas if each in racks)
                for _, partition in sorted(topic.partitions.items())
            )
            if racks
            else (),
        )
