"""The topics that hold the coordinators' records, and how they are made.

They come into being with the first question for a coordinator, as in Kafka. Where nobody chose
their replication factor, it is three, or the number of brokers where there are fewer: groups work
from the first minute on a single broker. What is made early stays so, though. So where there are
several controllers, and more brokers are to be expected, they are not made before three brokers
have registered, or have had the time to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from scriba.broker.ports import (
    CLIENTS_WAIT_MS,
    ClusterFormation,
    Configuration,
    ControllerAccess,
    EventLog,
    MetadataView,
    Timekeeping,
)
from scriba.controller.topics import SAFE_FACTOR, SAFE_MIN_ISR
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.storage.results import NoRoom
from scriba.wire.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


class InternalTopicFacts(ClusterFormation, Configuration, MetadataView, Timekeeping, Protocol):
    """What decides how an internal topic is made."""


class InternalTopicMaker(ControllerAccess, EventLog, InternalTopicFacts, Protocol):
    """What making an internal topic takes."""


async def make_internal_topic(node: InternalTopicMaker, name: str) -> None:
    """Makes the topic unless it is there; KafkaError where that cannot be done now."""
    if name in node.image.topics_by_name:
        return
    topic = internal_topic(name, node)
    try:
        response = await node.controller.call(
            CreateTopicsRequest(timeout_ms=node.settings.request_timeout_ms, topics=[topic]),
            leaderless_ms=CLIENTS_WAIT_MS,
        )
    except KafkaError as error:
        # No controller answers, or it has no room: clients ask again after this code.
        if error.code != ErrorCode.REQUEST_TIMED_OUT and not isinstance(error, NoRoom):
            raise
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
    for result in response.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            text = f"cannot be made: {result.error_message}"
            node.note(EventKind.INTERNAL_TOPIC_FAILED, name, text)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.error_message or "")


def internal_topic(name: str, node: InternalTopicFacts) -> CreatableTopic:
    """How `name` is made; COORDINATOR_NOT_AVAILABLE while more brokers are awaited for it."""
    settings = node.settings
    if name == OFFSETS_TOPIC:
        partitions = settings.offsets_topic_num_partitions
        replicas = _factor(
            node, "offsets.topic.replication.factor", settings.offsets_topic_replication_factor
        )
        configs: dict[str, str | int] = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": settings.offsets_topic_segment_bytes,
        }
        if replicas >= SAFE_FACTOR and not settings.is_given("offsets.topic.replication.factor"):
            configs["min.insync.replicas"] = max(settings.min_insync_replicas, SAFE_MIN_ISR)
    else:
        partitions = settings.transaction_state_log_num_partitions
        replicas = _factor(
            node,
            "transaction.state.log.replication.factor",
            settings.transaction_state_log_replication_factor,
        )
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": min(settings.transaction_state_log_min_isr, replicas),
            "segment.bytes": settings.transaction_state_log_segment_bytes,
            "unclean.leader.election.enable": "false",
        }
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=_configs(configs),
    )


def _factor(node: InternalTopicFacts, key: str, wanted: int) -> int:
    brokers = len(node.image.brokers)
    if brokers >= wanted:
        return wanted
    waited = node.world.clock.mono_ms() - node.started_ms
    patience = node.settings.initial_broker_registration_timeout_ms
    if max(node.voters, len(node.image.controllers)) > 1 and waited < patience:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{brokers} of {wanted} brokers have registered; the others have {patience} ms for it",
        )
    if brokers == 1 or not node.settings.is_given(key):
        return brokers
    return wanted


def _configs(configs: Mapping[str, str | int]) -> list[CreatableTopicConfig]:
    return [CreatableTopicConfig(name=name, value=str(value)) for name, value in configs.items()]
