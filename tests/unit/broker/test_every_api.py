"""Every served API in every version: answered when allowed, refused with Kafka's code when not."""

from collections.abc import Callable, Iterator

import pytest

from scriba.broker.access import Operation, Resource
from scriba.broker.context import Context
from scriba.broker.node import Node
from scriba.broker.served import served
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch
from scriba.testing.peer import Peer
from scriba.testing.sim_world import ProcessWorld
from scriba.wire import admin, configs, fetch, metadata, produce, quorum, txn
from scriba.wire.apis import API, ApiKey
from scriba.wire.schema import Message

InANode = Callable[..., None]

TOPIC = "there"
TABLE = served()
EVERY_VERSION = [
    (key, version)
    for key, entry in TABLE.items()
    for version in range(entry.oldest, entry.high + 1)
]


class DenyAll:
    open = False

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        return False


async def with_a_topic(node: Node, world: ProcessWorld) -> Peer:
    client = await Peer.connect(world.net, "127.0.0.1", 9092)
    create = admin.CreateTopicsRequest(
        topics=[admin.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)]
    )
    made = await client.send(create, 7, admin.CreateTopicsResponse)
    assert made.topics[0].error_code == 0
    return client


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
            part = fetch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
            return fetch.OffsetForLeaderEpochRequest(
                topics=[fetch.OffsetForLeaderTopic(topic=TOPIC, partitions=[part])]
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
        case ApiKey.DESCRIBE_LOG_DIRS:
            return admin.DescribeLogDirsRequest(topics=None)
        case ApiKey.CREATE_PARTITIONS:
            more = admin.CreatePartitionsTopic(name=TOPIC, count=2, assignments=None)
            return admin.CreatePartitionsRequest(topics=[more], validate_only=True)
        case ApiKey.DESCRIBE_QUORUM:
            part = quorum.DescribeQuorumRequestPartitionData(partition_index=0)
            return quorum.DescribeQuorumRequest(
                topics=[
                    quorum.DescribeQuorumRequestTopicData(
                        topic_name="__cluster_metadata", partitions=[part]
                    )
                ]
            )
        case ApiKey.DESCRIBE_PRODUCERS:
            return txn.DescribeProducersRequest(
                topics=[txn.TopicRequest(name=TOPIC, partition_indexes=[0])]
            )
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
            if field.name == "error_code":
                yield value
            else:
                yield from error_codes(value)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_an_allowed_request_is_answered_without_an_error(
    in_a_node: InANode, key: int, version: int
) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        topic_id = node.image.topics_by_name[TOPIC].id
        request = request_for(key, version, topic_id)
        answer = await client.send(request, version, API[key].response)
        assert set(error_codes(answer)) <= {0}

    in_a_node(play)


REFUSALS = {
    ApiKey.PRODUCE: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.FETCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.LIST_OFFSETS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.METADATA: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.CREATE_TOPICS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DELETE_TOPICS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DELETE_RECORDS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INIT_PRODUCER_ID: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.ALTER_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_LOG_DIRS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.CREATE_PARTITIONS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_QUORUM: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.UPDATE_FEATURES: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_PRODUCERS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.LIST_CONFIG_RESOURCES: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
}
"""What Kafka answers when an authoriser says no to everything."""

OPEN_TO_ALL = {ApiKey.API_VERSIONS}


def test_every_served_api_has_a_refusal() -> None:
    assert {ApiKey(key) for key in TABLE} == REFUSALS.keys() | OPEN_TO_ALL


@pytest.mark.parametrize("key", sorted(REFUSALS))
def test_a_request_that_is_not_allowed_is_refused_and_changes_nothing(
    in_a_node: InANode, key: int
) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        node.access = DenyAll()
        topic = node.image.topics_by_name[TOPIC]
        before = node.image.end_offset
        version = TABLE[key].high
        request = request_for(key, version, topic.id)
        answer = await client.send(request, version, API[key].response)
        assert set(error_codes(answer)) - {0} == {REFUSALS[ApiKey(key)]}
        assert node.image.end_offset == before
        assert node.replicas.find(TOPIC, 0).log.end_offset == 0

    in_a_node(play)


def test_an_answer_is_repeated_only_while_the_cluster_keeps_its_shape(
    in_a_node: InANode,
) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        question = metadata.MetadataRequest(topics=None)

        async def names() -> list[str | None]:
            answer = await client.send(question, 9, metadata.MetadataResponse)
            return [topic.name for topic in answer.topics]

        assert await names() == [TOPIC]
        assert await names() == [TOPIC]
        more = admin.CreatableTopic(name="more", num_partitions=1, replication_factor=1)
        await client.send(admin.CreateTopicsRequest(topics=[more]), 7, admin.CreateTopicsResponse)
        assert await names() == ["more", TOPIC]

    in_a_node(play)
