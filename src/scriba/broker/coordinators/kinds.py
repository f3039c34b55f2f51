"""The two kinds of coordinators, of groups and of transactions, and the settings they follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.coordinators.cluster_topics import ClusterTopics
from scriba.broker.coordinators.runtime import CoordinatorHost, CoordinatorRuntime, Kind
from scriba.broker.ports import Configuration, MetadataView
from scriba.config import ConfigError
from scriba.controller.features import GROUP_VERSION, TRANSACTION_VERSION
from scriba.controller.image import GROUP
from scriba.groups.facts import GroupSettings
from scriba.groups.machine import Groups
from scriba.records.compression import Codec
from scriba.settings import GroupConfigs, NodeSettings
from scriba.txn.facts import TxnSettings
from scriba.txn.machine import Transactions
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from scriba.wire.messages.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest

if TYPE_CHECKING:
    from scriba.controller.image import ClusterImage
    from scriba.instant import ClockWatch

MS_PER_MINUTE: Final = 60_000


class Watched(Protocol):
    @property
    def watch(self) -> ClockWatch:
        """Whether the clock is believed by those who delete by age."""


class GuardedCoordinatorHost(CoordinatorHost, Protocol):
    @property
    def clock_guard(self) -> Watched: ...


class ConfiguredCoordinators(Configuration, MetadataView, Protocol):
    @property
    def group_coordinators(self) -> CoordinatorRuntime: ...

    @property
    def txn_coordinators(self) -> CoordinatorRuntime: ...


class ConfiguredFeatures(Configuration, MetadataView, Protocol):
    """Settings, and the features that the cluster has finalized."""


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


def serves_consumer_protocol(node: ConfiguredFeatures) -> bool:
    """Whether groups may use the protocol of KIP-848: by setting and by the cluster's feature."""
    return (
        "consumer" in node.settings.group_coordinator_rebalance_protocols
        and node.image.features.get(GROUP_VERSION, 0) >= 1
    )


def group_coordinators(node: GuardedCoordinatorHost) -> CoordinatorRuntime:
    """The coordinators of groups, over the partitions of `__consumer_offsets`."""
    topics = ClusterTopics(node)
    return CoordinatorRuntime(
        node,
        Kind(
            topic=OFFSETS_TOPIC,
            make=lambda index: Groups(
                group_settings(node.settings, node.image), topics, node.clock_guard.watch
            ),
            load_bytes=lambda settings: settings.offsets_load_buffer_size,
            timeout_ms=lambda settings: settings.offsets_commit_timeout_ms,
            codec=lambda settings: Codec(settings.offsets_topic_compression_codec),
            draws=frozenset({JoinGroupRequest, ConsumerGroupHeartbeatRequest}),
        ),
    )


def txn_coordinators(node: GuardedCoordinatorHost) -> CoordinatorRuntime:
    """The coordinators of transactions, over the partitions of `__transaction_state`."""
    return CoordinatorRuntime(
        node,
        Kind(
            topic=TRANSACTIONS_TOPIC,
            make=lambda index: Transactions(
                txn_settings(node.settings, node.image), index, node.clock_guard.watch
            ),
            load_bytes=lambda settings: settings.transaction_state_log_load_buffer_size,
            timeout_ms=lambda settings: settings.request_timeout_ms,
            codec=lambda settings: Codec.NONE,
        ),
    )


def configure(node: ConfiguredCoordinators) -> None:
    """Hands changed settings and features to the coordinators."""
    of_groups = group_settings(node.settings, node.image)
    of_transactions = txn_settings(node.settings, node.image)
    for machine in (*node.group_coordinators.machines(), *node.txn_coordinators.machines()):
        if isinstance(machine, Groups):
            machine.settings = of_groups
        elif isinstance(machine, Transactions):
            machine.settings = of_transactions
