"""The topics that hold the coordinators' records, and how they are made.

They come into being with the first question for a coordinator, as in Kafka. Their replication
factor is a wish for clusters: a broker that is alone in its cluster makes them with one replica, so
that groups work from the first minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from scriba.broker.ports import Configuration, ControllerAccess, EventLog, MetadataView
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.settings import NodeSettings
from scriba.storage.results import NoRoom
from scriba.wire.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


class InternalTopicMaker(Configuration, ControllerAccess, EventLog, MetadataView, Protocol):
    """What making an internal topic takes."""


async def make_internal_topic(node: InternalTopicMaker, name: str) -> None:
    """Makes the topic unless it is there; KafkaError where that cannot be done now."""
    if name in node.image.topics_by_name:
        return
    topic = internal_topic(name, node.settings, alone=len(node.image.brokers) == 1)
    try:
        response = await node.controller.call(
            CreateTopicsRequest(timeout_ms=node.settings.request_timeout_ms, topics=[topic])
        )
    except NoRoom as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
    for result in response.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            text = f"cannot be made: {result.error_message}"
            node.note(EventKind.INTERNAL_TOPIC_FAILED, name, text)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.error_message or "")


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
