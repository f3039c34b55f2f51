"""What the coordinators are told: their settings, the topics of the cluster, and how the topics
that hold their records are made.

The internal topics come into being with the first question for a coordinator, as in Kafka. Their
replication factor is a wish for clusters: a broker that is alone in its cluster makes them with one
replica, so that groups work from the first minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from scriba.broker.coordinators.runtime import CoordinatorRuntime, Kind
from scriba.config import ConfigError
from scriba.controller.features import GROUP_VERSION, TRANSACTION_VERSION
from scriba.controller.image import GROUP
from scriba.errors import ErrorCode, KafkaError
from scriba.groups.facts import GroupSettings, TopicFacts
from scriba.groups.machine import Groups
from scriba.groups.regex.search import Search
from scriba.groups.regex.syntax import Expression
from scriba.outcome import Sees
from scriba.records.compression import Codec
from scriba.runtime.loop.pace import Pace
from scriba.settings import GroupConfigs, NodeSettings
from scriba.storage.results import NoRoom
from scriba.txn.facts import TxnSettings
from scriba.txn.machine import Transactions
from scriba.wire.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from scriba.wire.messages.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest

if TYPE_CHECKING:
    from scriba.broker.node import Node
    from scriba.controller.image import ClusterImage, TopicImage

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

MS_PER_MINUTE: Final = 60_000
SLICE_VISITS: Final = 20_000
SLICE_TOPICS: Final = 2_000
"""What is matched against an expression at a time: some milliseconds."""
KEPT_FOR_S: Final = 60.0
"""How long topics that were found wait to be asked for."""


def group_settings(node: NodeSettings, image: ClusterImage) -> GroupSettings:
    """For all groups, and for each one that has settings of its own."""
    for_all = _group_settings(node)
    by_group = {
        name: _of_one_group(for_all, overrides, node)
        for (kind, name), overrides in image.configs.items()
        if kind == GROUP
    }
    return replace(for_all, by_group=by_group)


def _of_one_group(
    for_all: GroupSettings, overrides: Mapping[str, str], node: NodeSettings
) -> GroupSettings:
    try:
        own = GroupConfigs.resolve(overrides, node)
    except ConfigError:
        return for_all  # the node's bounds have moved since it was set
    return replace(
        for_all,
        consumer_session_timeout_ms=own.consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=own.consumer_heartbeat_interval_ms,
        consumer_assignment_interval_ms=own.consumer_assignment_interval_ms,
    )


def _group_settings(node: NodeSettings) -> GroupSettings:
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
        consumer_assignment_interval_ms=node.group_consumer_assignment_interval_ms,
        consumer_regex_refresh_interval_ms=node.group_consumer_regex_refresh_interval_ms,
    )


def txn_settings(node: NodeSettings, image: ClusterImage) -> TxnSettings:
    return TxnSettings(
        max_timeout_ms=node.transaction_max_timeout_ms,
        expiration_ms=node.transactional_id_expiration_ms,
        abort_interval_ms=node.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        expiry_interval_ms=node.transaction_remove_expired_transaction_cleanup_interval_ms,
        two_phase_commit=node.transaction_two_phase_commit_enable,
        transaction_version=image.features.get(TRANSACTION_VERSION, 0),
    )


def serves_consumer_protocol(node: Node) -> bool:
    """Whether groups may use the protocol of KIP-848: by setting and by the cluster's feature."""
    return (
        "consumer" in node.settings.group_coordinator_rebalance_protocols
        and node.image.features.get(GROUP_VERSION, 0) >= 1
    )


def group_coordinators(node: Node) -> CoordinatorRuntime:
    """The coordinators of groups, over the partitions of `__consumer_offsets`."""
    topics = ClusterTopics(node)
    return CoordinatorRuntime(
        node,
        Kind(
            topic=OFFSETS_TOPIC,
            make=lambda index: Groups(
                group_settings(node.settings, node.image), topics, node.aging.watch
            ),
            load_bytes=lambda settings: settings.offsets_load_buffer_size,
            timeout_ms=lambda settings: settings.offsets_commit_timeout_ms,
            codec=lambda settings: Codec(settings.offsets_topic_compression_codec),
            draws=frozenset({JoinGroupRequest, ConsumerGroupHeartbeatRequest}),
        ),
    )


def txn_coordinators(node: Node) -> CoordinatorRuntime:
    """The coordinators of transactions, over the partitions of `__transaction_state`."""
    return CoordinatorRuntime(
        node,
        Kind(
            topic=TRANSACTIONS_TOPIC,
            make=lambda index: Transactions(
                txn_settings(node.settings, node.image), index, node.aging.watch
            ),
            load_bytes=lambda settings: settings.transaction_state_log_load_buffer_size,
            timeout_ms=lambda settings: settings.request_timeout_ms,
            codec=lambda settings: Codec.NONE,
        ),
    )


def configure(node: Node) -> None:
    """Hands changed settings and features to the coordinators."""
    of_groups = group_settings(node.settings, node.image)
    of_transactions = txn_settings(node.settings, node.image)
    for machine in (*node.group_coordinators.machines(), *node.txn_coordinators.machines()):
        if isinstance(machine, Groups):
            machine.settings = of_groups
        elif isinstance(machine, Transactions):
            machine.settings = of_transactions


async def make_internal_topic(node: Node, name: str) -> None:
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
    await node.replicas.settled()
    for result in response.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            node.note("coordinator", name, f"cannot be made: {result.error_message}")
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


class TopicSearch:
    """The topics that a regular expression names and its subscriber sees, found in slices."""

    def __init__(self, node: Node, expression: str, sees: Sees | None) -> None:
        self.key = (expression, sees)
        self.topology = node.topology
        self.done = False
        self._search = Search(Expression(expression), tuple(node.image.topics_by_name))
        self._unseen: Iterator[str] | None = None
        self._seen: list[str] = []
        self._sees = sees
        self._failure: KafkaError | None = None

    def advance(self) -> bool:
        """Does a slice of it; whether there is an end."""
        if not self.done:
            try:
                self.done = self._slice()
            except KafkaError as error:  # told to whoever asks for the topics
                self._failure, self.done = error, True
        return self.done

    def _slice(self) -> bool:
        if self._unseen is None:
            if not self._search.advance(SLICE_VISITS):
                return False
            self._unseen = iter(sorted(self._search.found()))
        if self._sees is None:
            self._seen += self._unseen
            return True
        for name in islice(self._unseen, SLICE_TOPICS):
            if self._sees(name):
                self._seen.append(name)
        more = next(self._unseen, None)
        if more is None:
            return True
        self._unseen = chain((more,), self._unseen)
        return False

    def found(self) -> frozenset[str]:
        if self._failure is not None:
            raise self._failure
        return frozenset(self._seen)


class ClusterTopics:
    """The topics of the image as the group coordinators see them: `groups.facts.Topics`.

    What was told of a topic is kept until the cluster's shape changes: a commit asks for it each
    time, and with racks it takes as long as the topic has partitions.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._searches: dict[tuple[str, Sees | None], TopicSearch] = {}
        """Under way, or done and not yet asked for."""
        self._known: dict[bytes, TopicFacts] = {}
        self._known_at = -1

    def get(self, name: str) -> TopicFacts | None:
        topic = self._node.image.topics_by_name.get(name)
        return None if topic is None else self._facts(topic)

    def by_id(self, id: bytes) -> TopicFacts | None:
        topic = self._node.image.topics_by_id.get(id)
        return None if topic is None else self._facts(topic)

    def names(self) -> Iterable[str]:
        return self._node.image.topics_by_name

    def matching(self, expression: str, sees: Sees | None) -> frozenset[str] | None:
        search = self._searches.pop((expression, sees), None)
        if search is None or search.topology != self._node.topology:
            search = TopicSearch(self._node, expression, sees)
        elif not search.done:
            self._searches[expression, sees] = search
            return None
        if search.advance():
            return search.found()
        self._searches[expression, sees] = search
        self._node.tasks.spawn(self._go_on(search), name="matches topics")
        return None

    async def _go_on(self, search: TopicSearch) -> None:
        pace = Pace(self._node.world.clock)
        while not search.advance():
            await pace()
        # Nobody may come back for it: the member has gone, say.
        await asyncio.sleep(KEPT_FOR_S)
        if self._searches.get(search.key) is search:
            del self._searches[search.key]

    def _facts(self, topic: TopicImage) -> TopicFacts:
        if self._known_at != self._node.topology:
            self._known.clear()
            self._known_at = self._node.topology
        known = self._known.get(topic.id)
        if known is None:
            racks = self._racks(topic)
            known = TopicFacts(topic.name, topic.id, len(topic.partitions), racks)
            self._known[topic.id] = known
        return known

    def _racks(self, topic: TopicImage) -> tuple[frozenset[str], ...]:
        brokers = self._node.image.brokers.values()
        racks = {broker.id: broker.rack for broker in brokers if broker.rack}
        if not racks:
            return ()
        return tuple(
            frozenset(racks[each] for each in partition.replicas if each in racks)
            for _, partition in sorted(topic.partitions.items())
        )
