"""Every API this broker serves. What is not in this table is not advertised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from scriba.broker.handlers import controllers, metadata, quorum
from scriba.broker.handlers.admin import acls, cluster, configs, replicas, topics
from scriba.broker.handlers.groups import coordinators, producers, txn
from scriba.broker.handlers.groups import members as groups
from scriba.broker.handlers.groups import offsets as group_offsets
from scriba.broker.handlers.records import fetch, offsets, produce
from scriba.broker.net.api_entry import ApiEntry, Refuse, refuse_at_top
from scriba.broker.net.large_requests import DEFAULT, LIMITS
from scriba.wire.apis import API, ApiKey
from scriba.wire.schema import LATEST

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import Broker
    from scriba.broker.request import Context

BrokerHandler = Callable[["Broker", "Context", Any], Any]
"""What each handler asks for must be part of `Broker`: mypy holds the table below to it."""

_AT_TOP: Final = None
"""The response has one error code of its own."""

_HANDLERS: Final[dict[ApiKey, tuple[BrokerHandler, Refuse | None]]] = {
    ApiKey.PRODUCE: (produce.produce, produce.refuse),
    ApiKey.FETCH: (fetch.fetch, fetch.refuse),
    ApiKey.LIST_OFFSETS: (offsets.list_offsets, offsets.refuse_list_offsets),
    ApiKey.METADATA: (metadata.metadata, metadata.refuse_metadata),
    ApiKey.OFFSET_COMMIT: (group_offsets.offset_commit, groups.refuse),
    ApiKey.OFFSET_FETCH: (group_offsets.offset_fetch, group_offsets.refuse_offset_fetch),
    ApiKey.FIND_COORDINATOR: (
        coordinators.find_coordinator,
        coordinators.refuse_find_coordinator,
    ),
    ApiKey.JOIN_GROUP: (groups.of_a_member, groups.refuse),
    ApiKey.HEARTBEAT: (groups.of_a_member, groups.refuse),
    ApiKey.LEAVE_GROUP: (groups.of_a_member, groups.refuse),
    ApiKey.SYNC_GROUP: (groups.of_a_member, groups.refuse),
    ApiKey.DESCRIBE_GROUPS: (groups.describe_groups, groups.refuse),
    ApiKey.LIST_GROUPS: (groups.list_groups, groups.refuse),
    ApiKey.API_VERSIONS: (metadata.api_versions, metadata.refuse_api_versions),
    ApiKey.CREATE_TOPICS: (topics.create_topics, topics.refuse_create_topics),
    ApiKey.DELETE_TOPICS: (topics.delete_topics, topics.refuse_delete_topics),
    ApiKey.DELETE_RECORDS: (offsets.delete_records, offsets.refuse_delete_records),
    ApiKey.INIT_PRODUCER_ID: (producers.init_producer_id, producers.refuse_init_producer_id),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        offsets.offset_for_leader_epoch,
        offsets.refuse_offset_for_leader_epoch,
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (txn.add_partitions_to_txn, txn.refuse_add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: (txn.add_offsets_to_txn, _AT_TOP),
    ApiKey.END_TXN: (txn.end_txn, _AT_TOP),
    ApiKey.WRITE_TXN_MARKERS: (txn.write_txn_markers, txn.refuse_write_txn_markers),
    ApiKey.TXN_OFFSET_COMMIT: (group_offsets.txn_offset_commit, groups.refuse),
    ApiKey.DESCRIBE_ACLS: (acls.describe_acls, _AT_TOP),
    ApiKey.CREATE_ACLS: (acls.change_acls, acls.refuse_create_acls),
    ApiKey.DELETE_ACLS: (acls.change_acls, acls.refuse_delete_acls),
    ApiKey.DESCRIBE_CONFIGS: (configs.describe_configs, configs.refuse_describe_configs),
    ApiKey.ALTER_CONFIGS: (configs.alter_configs, configs.refuse_alter_configs),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        replicas.alter_replica_log_dirs,
        replicas.refuse_alter_replica_log_dirs,
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (cluster.describe_log_dirs, cluster.refuse_log_dirs),
    ApiKey.CREATE_PARTITIONS: (topics.create_partitions, topics.refuse_create_partitions),
    ApiKey.DELETE_GROUPS: (groups.delete_groups, groups.refuse),
    ApiKey.ELECT_LEADERS: (replicas.elect_leaders, replicas.refuse_elect_leaders),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        configs.incremental_alter_configs,
        configs.refuse_incremental,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        replicas.alter_partition_reassignments,
        replicas.refuse_alter_partition_reassignments,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (replicas.list_partition_reassignments, _AT_TOP),
    ApiKey.OFFSET_DELETE: (group_offsets.offset_delete, groups.refuse),
    ApiKey.DESCRIBE_QUORUM: (cluster.describe_quorum, _AT_TOP),
    ApiKey.ALTER_PARTITION: (controllers.of_a_broker, _AT_TOP),
    ApiKey.UPDATE_FEATURES: (cluster.update_features, _AT_TOP),
    ApiKey.ENVELOPE: (controllers.envelope, _AT_TOP),
    ApiKey.DESCRIBE_CLUSTER: (metadata.describe_cluster, _AT_TOP),
    ApiKey.DESCRIBE_PRODUCERS: (
        producers.describe_producers,
        producers.refuse_describe_producers,
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: (controllers.of_a_broker, _AT_TOP),
    ApiKey.CONTROLLER_REGISTRATION: (controllers.of_a_broker, _AT_TOP),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (controllers.of_a_broker, _AT_TOP),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (groups.consumer_group_heartbeat, groups.refuse),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (groups.consumer_group_describe, groups.refuse),
    ApiKey.BROKER_REGISTRATION: (controllers.of_a_broker, _AT_TOP),
    ApiKey.BROKER_HEARTBEAT: (controllers.heartbeat, _AT_TOP),
    ApiKey.UNREGISTER_BROKER: (cluster.unregister_broker, _AT_TOP),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        txn.describe_transactions,
        txn.refuse_describe_transactions,
    ),
    ApiKey.LIST_TRANSACTIONS: (txn.list_transactions, _AT_TOP),
    ApiKey.LIST_CONFIG_RESOURCES: (configs.list_config_resources, _AT_TOP),
    ApiKey.ADD_RAFT_VOTER: (cluster.add_raft_voter, _AT_TOP),
    ApiKey.REMOVE_RAFT_VOTER: (cluster.remove_raft_voter, _AT_TOP),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        metadata.describe_topic_partitions,
        metadata.refuse_describe_topic_partitions,
    ),
}


_OF_CONTROLLERS: Final[dict[ApiKey, tuple[Callable[..., Any], Refuse | None]]] = {
    ApiKey.FETCH: (quorum.fetch, quorum.refuse_fetch),
    ApiKey.VOTE: (quorum.vote, _AT_TOP),
    ApiKey.BEGIN_QUORUM_EPOCH: (quorum.begin_quorum_epoch, _AT_TOP),
    ApiKey.END_QUORUM_EPOCH: (quorum.end_quorum_epoch, _AT_TOP),
    ApiKey.FETCH_SNAPSHOT: (quorum.fetch_snapshot, _AT_TOP),
    ApiKey.DESCRIBE_QUORUM: (quorum.describe_quorum, _AT_TOP),
    ApiKey.UPDATE_RAFT_VOTER: (quorum.update_raft_voter, _AT_TOP),
}
"""What only a controller's listener offers, where Fetch reads the metadata log."""

_ON_CONTROLLER: Final = {
    **{key: entry for key, entry in _HANDLERS.items() if API[key].on_controller},
    **_OF_CONTROLLERS,
}


def api_table(on_controller: bool = False) -> dict[int, ApiEntry]:
    """A table of its own for each node and kind of listener: it also counts."""
    table: dict[int, ApiEntry] = {}
    served = _ON_CONTROLLER if on_controller else _HANDLERS
    for key, (handler, refuse) in sorted(served.items()):
        api = API[key]
        if not on_controller and not api.on_broker:
            continue
        extra: dict[str, Any] = {}
        if key is ApiKey.FETCH and not on_controller:
            extra = {"finish": fetch.finish}
        table[int(key)] = ApiEntry(
            key=int(key),
            name=api.name,
            request=api.request,
            low=api.advertised_min,
            high=api.max_version,
            oldest=api.min_version,
            # ApiVersions never has them: its client cannot know yet what the broker speaks.
            tagged_from=LATEST + 1 if key is ApiKey.API_VERSIONS else api.flexible_from,
            handler=handler,
            refuse=refuse or refuse_at_top(api.response),
            limits=LIMITS.get(key, DEFAULT),
            **extra,
        )
    return table
