"""A request of every API in every version, and what it needs to be answered."""

from collections.abc import Iterator
from typing import Any

from scriba.broker.api.table import api_table
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import API, ApiKey
from scriba.wire.messages import (
    admin,
    configs,
    fetch,
    groups,
    metadata,
    produce,
    quorum,
    security,
    txn,
)
from scriba.wire.schema import Message

TOPIC = "there"


GROUP = "group"


TXN = "transaction"


TABLE = api_table()


EVERY_VERSION = [
    (key, version)
    for key, entry in TABLE.items()
    for version in range(entry.oldest, entry.high + 1)
]


EXPECTED: dict[tuple[ApiKey, int | None], int] = {
    (ApiKey.JOIN_GROUP, 4): ErrorCode.MEMBER_ID_REQUIRED,
    (ApiKey.HEARTBEAT, None): ErrorCode.UNKNOWN_MEMBER_ID,
    (ApiKey.LEAVE_GROUP, None): ErrorCode.UNKNOWN_MEMBER_ID,
    (ApiKey.SYNC_GROUP, None): ErrorCode.UNKNOWN_MEMBER_ID,
    (ApiKey.CONSUMER_GROUP_DESCRIBE, None): ErrorCode.GROUP_ID_NOT_FOUND,
    (ApiKey.ADD_PARTITIONS_TO_TXN, None): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    (ApiKey.ADD_OFFSETS_TO_TXN, None): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    (ApiKey.END_TXN, None): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    (ApiKey.TXN_OFFSET_COMMIT, None): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    (ApiKey.DESCRIBE_TRANSACTIONS, None): ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    (ApiKey.ELECT_LEADERS, None): ErrorCode.ELECTION_NOT_NEEDED,
    (ApiKey.DESCRIBE_ACLS, None): ErrorCode.SECURITY_DISABLED,
    (ApiKey.CREATE_ACLS, None): ErrorCode.SECURITY_DISABLED,
    (ApiKey.DELETE_ACLS, None): ErrorCode.SECURITY_DISABLED,
    (ApiKey.UNREGISTER_BROKER, None): ErrorCode.BROKER_ID_NOT_REGISTERED,
    (ApiKey.ADD_RAFT_VOTER, None): ErrorCode.INCONSISTENT_CLUSTER_ID,
    (ApiKey.REMOVE_RAFT_VOTER, None): ErrorCode.INCONSISTENT_CLUSTER_ID,
}
"""What is told to a stranger by a classic group without members, and of a transactional id that
nobody has used; of a leader that leads, and of lists that nobody keeps; of voters of a cluster that
is another one."""


async def with_a_topic(node: Node, world: ProcessWorld) -> Peer:
    client = await Peer.connect(world.net, "127.0.0.1", 9092)
    create = admin.CreateTopicsRequest(
        topics=[admin.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)]
    )
    made = await client.send(create, 7, admin.CreateTopicsResponse)
    assert made.topics[0].error_code == 0
    return client


OF_GROUPS = {
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
}


def group_request(key: int, version: int, topic_id: bytes) -> Message:
    named = {"topic_id": topic_id} if version >= 10 else {"name": TOPIC}
    match ApiKey(key):
        case ApiKey.OFFSET_COMMIT:
            part = groups.OffsetCommitRequestPartition(committed_offset=5, committed_metadata="m")
            topic = groups.OffsetCommitRequestTopic(partitions=[part], **named)
            return groups.OffsetCommitRequest(group_id=GROUP, topics=[topic])
        case ApiKey.OFFSET_FETCH if version < 8:
            old = groups.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
            return groups.OffsetFetchRequest(group_id=GROUP, topics=[old])
        case ApiKey.OFFSET_FETCH:
            asked = groups.OffsetFetchRequestTopics(partition_indexes=[0], **named)
            group = groups.OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])
            other = groups.OffsetFetchRequestGroup(group_id="another", topics=None)
            return groups.OffsetFetchRequest(groups=[group, other])
        case ApiKey.JOIN_GROUP:
            return groups.JoinGroupRequest(
                group_id="new",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                group_instance_id="static" if version >= 5 else None,
                protocol_type="consumer",
                protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
        case ApiKey.HEARTBEAT:
            return groups.HeartbeatRequest(group_id=GROUP, member_id="nobody")
        case ApiKey.LEAVE_GROUP if version < 3:
            return groups.LeaveGroupRequest(group_id=GROUP, member_id="nobody")
        case ApiKey.LEAVE_GROUP:
            member = groups.MemberIdentity(member_id="nobody")
            return groups.LeaveGroupRequest(group_id=GROUP, members=[member])
        case ApiKey.SYNC_GROUP:
            protocol: dict[str, Any] = (
                {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
            )
            return groups.SyncGroupRequest(group_id=GROUP, member_id="nobody", **protocol)
        case ApiKey.DESCRIBE_GROUPS:
            return groups.DescribeGroupsRequest(groups=[GROUP])
        case ApiKey.DELETE_GROUPS:
            return groups.DeleteGroupsRequest(groups_names=[GROUP])
        case ApiKey.OFFSET_DELETE:
            gone = groups.OffsetDeleteRequestPartition(partition_index=0)
            return groups.OffsetDeleteRequest(
                group_id=GROUP,
                topics=[groups.OffsetDeleteRequestTopic(name=TOPIC, partitions=[gone])],
            )
        case ApiKey.CONSUMER_GROUP_HEARTBEAT:
            return groups.ConsumerGroupHeartbeatRequest(
                group_id="new",
                member_id="AAAAAAAAAAAAAAAAAAAAAA",
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[TOPIC],
                topic_partitions=[],
            )
    return groups.ConsumerGroupDescribeRequest(group_ids=[GROUP])


OF_TRANSACTIONS = {
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_TRANSACTIONS,
}


def txn_request(key: int, version: int) -> Message:
    topic = txn.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])
    match ApiKey(key):
        case ApiKey.ADD_PARTITIONS_TO_TXN if version < 4:
            return txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TXN, v3_and_below_topics=[topic]
            )
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            adding = txn.AddPartitionsToTxnTransaction(transactional_id=TXN, topics=[topic])
            return txn.AddPartitionsToTxnRequest(transactions=[adding])
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return txn.AddOffsetsToTxnRequest(transactional_id=TXN, group_id=GROUP)
        case ApiKey.END_TXN:
            return txn.EndTxnRequest(transactional_id=TXN, committed=True)
        case ApiKey.WRITE_TXN_MARKERS:
            where = txn.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])
            marker = txn.WritableTxnMarker(producer_id=1, topics=[where])
            return txn.WriteTxnMarkersRequest(markers=[marker])
        case ApiKey.TXN_OFFSET_COMMIT:
            part = txn.TxnOffsetCommitRequestPartition(committed_offset=5, committed_metadata="m")
            offsets = txn.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[part])
            return txn.TxnOffsetCommitRequest(
                transactional_id=TXN, group_id=GROUP, topics=[offsets]
            )
    return txn.DescribeTransactionsRequest(transactional_ids=[TXN])


async def with_transactions(client: Peer) -> None:
    """A coordinator of transactions that has loaded."""
    key = metadata.FindCoordinatorRequest(key_type=1, coordinator_keys=[TXN])
    await client.send(key, 6, metadata.FindCoordinatorResponse)
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS.value
    while code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        asked = txn.ListTransactionsRequest()
        code = (await client.send(asked, 2, txn.ListTransactionsResponse)).error_code
    assert code == 0


async def prepare(node: Node, client: Peer, key: int) -> None:
    if key in OF_GROUPS | OF_TRANSACTIONS:
        await with_a_group(node, client)
    if key in OF_TRANSACTIONS:
        await with_transactions(client)


async def with_a_group(node: Node, client: Peer) -> None:
    """A coordinator that has loaded, and one committed offset."""
    key = metadata.FindCoordinatorRequest(coordinator_keys=[GROUP])
    found = await client.send(key, 6, metadata.FindCoordinatorResponse)
    assert found.coordinators[0].node_id == node.id
    commit = group_request(ApiKey.OFFSET_COMMIT, 9, b"")
    codes = {int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)}
    while ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in codes:
        codes = set(error_codes(await client.send(commit, 9, groups.OffsetCommitResponse)))
        listed = await client.send(groups.ListGroupsRequest(), 5, groups.ListGroupsResponse)
        codes.add(listed.error_code)
    assert codes == {0}


def request_for(key: int, version: int, topic_id: bytes) -> Message:
    """A request that a well-meaning client would send."""
    batch = encode_batch([Record(0, 1_750_000_000_000, b"k", b"v", ())])
    match ApiKey(key):
        case ApiKey.PRODUCE:
            data = [produce.PartitionProduceData(index=0, records=batch)]
            named = {"topic_id": topic_id} if version >= 13 else {"name": TOPIC}
            return produce.ProduceRequest(
                acks=-1,
                timeout_ms=1000,
                topic_data=[produce.TopicProduceData(partition_data=data, **named)],
            )
        case ApiKey.FETCH:
            named = {"topic_id": topic_id} if version >= 13 else {"topic": TOPIC}
            partition = fetch.FetchPartition(partition=0, partition_max_bytes=1 << 20)
            return fetch.FetchRequest(
                max_bytes=1 << 20, topics=[fetch.FetchTopic(partitions=[partition], **named)]
            )
        case ApiKey.LIST_OFFSETS:
            asked = fetch.ListOffsetsPartition(partition_index=0, timestamp=-1)
            return fetch.ListOffsetsRequest(
                replica_id=-1, topics=[fetch.ListOffsetsTopic(name=TOPIC, partitions=[asked])]
            )
        case ApiKey.METADATA:
            return metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)])
        case ApiKey.FIND_COORDINATOR:
            if version < 4:
                return metadata.FindCoordinatorRequest(key=GROUP)
            return metadata.FindCoordinatorRequest(coordinator_keys=[GROUP])
        case api if api in OF_GROUPS:
            return group_request(key, version, topic_id)
        case api if api in OF_TRANSACTIONS:
            return txn_request(key, version)
        case ApiKey.API_VERSIONS:
            if version < 3:
                return metadata.ApiVersionsRequest()
            return metadata.ApiVersionsRequest(
                client_software_name="tests", client_software_version="1.0"
            )
        case ApiKey.CREATE_TOPICS:
            new = admin.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
            return admin.CreateTopicsRequest(topics=[new], validate_only=True)
        case ApiKey.DELETE_TOPICS:
            if version < 6:
                return admin.DeleteTopicsRequest(topic_names=[TOPIC])
            return admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name=TOPIC)])
        case ApiKey.DELETE_RECORDS:
            part = admin.DeleteRecordsPartition(partition_index=0, offset=0)
            return admin.DeleteRecordsRequest(
                topics=[admin.DeleteRecordsTopic(name=TOPIC, partitions=[part])]
            )
        case ApiKey.INIT_PRODUCER_ID:
            return txn.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        case ApiKey.OFFSET_FOR_LEADER_EPOCH:
            epoch = fetch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
            return fetch.OffsetForLeaderEpochRequest(
                topics=[fetch.OffsetForLeaderTopic(topic=TOPIC, partitions=[epoch])]
            )
        case ApiKey.DESCRIBE_CONFIGS:
            wanted = configs.DescribeConfigsResource(
                resource_type=2, resource_name=TOPIC, configuration_keys=None
            )
            return configs.DescribeConfigsRequest(resources=[wanted])
        case ApiKey.ALTER_CONFIGS:
            return configs.AlterConfigsRequest(
                resources=[
                    configs.AlterConfigsRequestAlterConfigsResource(
                        resource_type=2, resource_name=TOPIC
                    )
                ]
            )
        case ApiKey.INCREMENTAL_ALTER_CONFIGS:
            return configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.IncrementalAlterConfigsRequestAlterConfigsResource(
                        resource_type=2, resource_name=TOPIC
                    )
                ]
            )
        case ApiKey.ALTER_REPLICA_LOG_DIRS:
            here = admin.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])
            return admin.AlterReplicaLogDirsRequest(
                dirs=[admin.AlterReplicaLogDir(path="/data", topics=[here])]
            )
        case ApiKey.DESCRIBE_LOG_DIRS:
            return admin.DescribeLogDirsRequest(topics=None)
        case ApiKey.CREATE_PARTITIONS:
            more = admin.CreatePartitionsTopic(name=TOPIC, count=2, assignments=None)
            return admin.CreatePartitionsRequest(topics=[more], validate_only=True)
        case ApiKey.DESCRIBE_QUORUM:
            log = quorum.DescribeQuorumRequestPartitionData(partition_index=0)
            return quorum.DescribeQuorumRequest(
                topics=[
                    quorum.DescribeQuorumRequestTopicData(
                        topic_name="__cluster_metadata", partitions=[log]
                    )
                ]
            )
        case ApiKey.DESCRIBE_PRODUCERS:
            return txn.DescribeProducersRequest(
                topics=[txn.TopicRequest(name=TOPIC, partition_indexes=[0])]
            )
        case ApiKey.ELECT_LEADERS:
            return admin.ElectLeadersRequest(
                topic_partitions=[admin.TopicPartitions(topic=TOPIC, partitions=[0])]
            )
        case ApiKey.ALTER_PARTITION_REASSIGNMENTS:
            same = admin.ReassignablePartition(partition_index=0, replicas=[1])
            return admin.AlterPartitionReassignmentsRequest(
                topics=[admin.ReassignableTopic(name=TOPIC, partitions=[same])]
            )
        case ApiKey.CREATE_ACLS:
            return security.CreateAclsRequest(creations=[security.AclCreation()])
        case ApiKey.DELETE_ACLS:
            return security.DeleteAclsRequest(filters=[security.DeleteAclsFilter()])
        case ApiKey.DESCRIBE_TOPIC_PARTITIONS:
            return metadata.DescribeTopicPartitionsRequest(
                topics=[metadata.TopicRequest(name=TOPIC)]
            )
        case _:
            return API[key].request()


def error_codes(answer: object) -> Iterator[int]:
    """Every error code in a response, however deep."""
    if isinstance(answer, list):
        for item in answer:
            yield from error_codes(item)
    elif hasattr(answer, "FIELDS"):
        for field in answer.FIELDS:
            value = getattr(answer, field.name)
            if field.name.endswith("error_code"):
                yield value
            else:
                yield from error_codes(value)
