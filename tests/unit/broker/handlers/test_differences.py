"""Answers in which this broker once differed from Apache Kafka 4.3, each as Kafka gives it."""

from collections.abc import Callable
from typing import Any

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch
from scriba.records.compression import Codec
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import admin, configs, fetch, metadata, produce, quorum, txn

InANode = Callable[..., None]
TOPIC = "orders"
AT = 1_750_000_000_000


async def client_of(world: ProcessWorld, partitions: int = 1) -> Peer:
    client = await Peer.connect(world.net, "127.0.0.1", 9092)
    new = admin.CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=1)
    made = await client.send(admin.CreateTopicsRequest(topics=[new]), 7, admin.CreateTopicsResponse)
    assert made.topics[0].error_code == 0
    return client


async def produced(
    client: Peer, version: int = 12, **batch: Any
) -> produce.PartitionProduceResponse:
    records = encode_batch([Record(0, AT, b"k", b"v", ())], **batch)
    data = [produce.PartitionProduceData(index=0, records=records)]
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[produce.TopicProduceData(name=TOPIC, partition_data=data)],
    )
    answer = await client.send(request, version, produce.ProduceResponse)
    return answer.responses[0].partition_responses[0]


async def fetched(
    client: Peer, version: int = 12, *, asked: dict[str, Any] | None = None, **request: Any
) -> fetch.PartitionData:
    values = {"partition_max_bytes": 1 << 20, **(asked or {})}
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[fetch.FetchPartition(partition=0, **values)])
    whole = fetch.FetchRequest(**{"max_bytes": 1 << 20, "topics": [topic], **request})
    answer = await client.send(whole, version, fetch.FetchResponse)
    return answer.responses[0].partitions[0]


def test_zstd_is_not_taken_in_a_request_older_than_zstd(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        for version in (3, 6):
            answer = await produced(client, version, codec=Codec.ZSTD)
            assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await produced(client, 6, codec=Codec.GZIP)).base_offset == 0
        assert (await produced(client, 7, codec=Codec.ZSTD)).base_offset == 1

    in_a_node(script)


def test_a_duplicate_is_told_its_time_and_a_gap_where_the_log_begins(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        producer = {"producer_id": 7, "producer_epoch": 0}
        assert (await produced(client, base_sequence=0, **producer)).log_append_time_ms == -1
        again = await produced(client, base_sequence=0, **producer)
        assert (again.base_offset, again.log_append_time_ms) == (0, AT)
        gap = await produced(client, base_sequence=9, **producer)
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (gap.base_offset, gap.log_start_offset) == (-1, 0)

    in_a_node(script)


def test_half_a_producer_is_refused_and_no_refusal_carries_an_epoch(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        half: dict[str, Any]
        for half in ({"producer_id": 5}, {"producer_epoch": 5}, {"transactional_id": ""}):
            half = {"transactional_id": None} | half
            request = txn.InitProducerIdRequest(**half)
            answer = await client.send(request, 4, txn.InitProducerIdResponse)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)

    in_a_node(script)


def test_aborted_transactions_are_listed_only_for_those_who_read_committed(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        await produced(client)
        for offset in (0, 1):
            place = {"fetch_offset": offset}
            assert (await fetched(client, asked=place)).aborted_transactions is None
            committed = await fetched(client, asked=place, isolation_level=1)
            assert committed.aborted_transactions == []

    in_a_node(script)


def test_a_fetch_that_fails_tells_no_offsets(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        await produced(client)
        beyond = await fetched(client, asked={"fetch_offset": 9})
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert beyond.high_watermark == beyond.last_stable_offset == beyond.log_start_offset == -1

    in_a_node(script)


def test_a_limit_below_zero_is_an_error_and_not_no_limit(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        await produced(client)
        for answer in (
            await fetched(client, asked={"partition_max_bytes": -1}),
            await fetched(client, max_bytes=-1),
        ):
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert not answer.records

    in_a_node(script)


def test_any_negative_leader_epoch_in_a_fetch_means_none(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        assert (await fetched(client, asked={"current_leader_epoch": -2})).error_code == 0
        # Kafka takes a replica at its word here; it has to say which incarnation it is.
        stranger = await fetched(client, replica_id=5)
        assert stranger.error_code == ErrorCode.UNSUPPORTED_VERSION

    in_a_node(script)


def test_an_old_fetch_that_is_refused_as_a_whole_hears_it_of_each_partition(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        for version in (4, 12):
            answer = await fetched(client, version, isolation_level=2)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    in_a_node(script)


def test_metadata_by_id_overlooks_names(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        topic_id = node.image.topics_by_name[TOPIC].id
        wanted = [
            metadata.MetadataRequestTopic(topic_id=bytes([7] * 16), name="elsewhere"),
            metadata.MetadataRequestTopic(topic_id=topic_id, name=None),
            metadata.MetadataRequestTopic(name="made-by-nobody"),
        ]
        request = metadata.MetadataRequest(topics=wanted)
        answer = await client.send(request, 12, metadata.MetadataResponse)
        told = [(topic.name, topic.error_code) for topic in answer.topics]
        assert told == [(None, ErrorCode.UNKNOWN_TOPIC_ID), (TOPIC, ErrorCode.NONE)]
        assert list(node.image.topics_by_name) == [TOPIC]

    in_a_node(script)


def test_a_topic_that_is_not_there_has_its_allowed_operations_and_may_be_internal(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        name = "__consumer_offsets"
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        listed = await client.send(request, 12, metadata.MetadataResponse)
        pages = metadata.DescribeTopicPartitionsRequest(topics=[metadata.TopicRequest(name=name)])
        paged = await client.send(pages, 0, metadata.DescribeTopicPartitionsResponse)
        for topic in (listed.topics[0], paged.topics[0]):
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert topic.is_internal
            assert topic.topic_authorized_operations == 3576

    in_a_node(script)


def test_settings_of_a_topic_with_an_illegal_name_are_refused_for_the_name(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        change = configs.IncrementalAlterConfigsRequestAlterableConfig(name="no.such", value="1")
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name="two words", configs=[change]
        )
        answer = await client.send(
            configs.IncrementalAlterConfigsRequest(resources=[resource]),
            1,
            configs.IncrementalAlterConfigsResponse,
        )
        assert answer.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    in_a_node(script)


def test_log_dirs_answer_for_every_mention_of_a_topic(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world, partitions=2)
        asked = [admin.DescribableLogDirTopic(topic=TOPIC, partitions=[n]) for n in (0, 1)]
        answer = await client.send(
            admin.DescribeLogDirsRequest(topics=asked), 4, admin.DescribeLogDirsResponse
        )
        partitions = answer.results[0].topics[0].partitions
        assert [partition.partition_index for partition in partitions] == [0, 1]

    in_a_node(script)


def test_an_unknown_feature_has_no_level_zero_either(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        update = configs.FeatureUpdateKey(feature="no.such", max_version_level=0)
        answer = await client.send(
            configs.UpdateFeaturesRequest(feature_updates=[update]),
            2,
            configs.UpdateFeaturesResponse,
        )
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION

    in_a_node(script)


def test_a_page_of_partitions_is_never_empty_and_its_cursor_names_a_topic_asked_for(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world, partitions=2)
        asked = [metadata.TopicRequest(name=TOPIC)]
        for limit in (1, 0, -1):
            page = await client.send(
                metadata.DescribeTopicPartitionsRequest(
                    topics=asked, response_partition_limit=limit
                ),
                0,
                metadata.DescribeTopicPartitionsResponse,
            )
            assert [p.partition_index for p in page.topics[0].partitions] == [0]
            assert page.next_cursor is not None
            assert page.next_cursor.partition_index == 1
        cursor = metadata.DescribeTopicPartitionsRequestCursor(topic_name="a", partition_index=0)
        page = await client.send(
            metadata.DescribeTopicPartitionsRequest(topics=asked, cursor=cursor),
            0,
            metadata.DescribeTopicPartitionsResponse,
        )
        assert [topic.error_code for topic in page.topics] == [ErrorCode.INVALID_REQUEST]

    in_a_node(script)


def test_an_internal_topic_that_is_not_there_is_unknown_first_of_all(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        data = [produce.PartitionProduceData(index=0, records=encode_batch([Record(0, AT, b"k")]))]
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[produce.TopicProduceData(name="__consumer_offsets", partition_data=data)],
        )
        answer = await client.send(request, 9, produce.ProduceResponse)
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_a_node(script)


def test_whoever_asks_for_no_quorum_hears_of_no_nodes(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        for name, nodes in ((TOPIC, 0), ("__cluster_metadata", 1)):
            asked = quorum.DescribeQuorumRequestTopicData(
                topic_name=name,
                partitions=[quorum.DescribeQuorumRequestPartitionData(partition_index=0)],
            )
            answer = await client.send(
                quorum.DescribeQuorumRequest(topics=[asked]), 2, quorum.DescribeQuorumResponse
            )
            assert len(answer.nodes) == nodes

    in_a_node(script)


def test_a_kind_of_settings_that_is_not_served_is_refused_in_words(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await client_of(world)
        loggers = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=8, resource_name="1", configs=[]
        )
        answer = await client.send(
            configs.IncrementalAlterConfigsRequest(resources=[loggers]),
            1,
            configs.IncrementalAlterConfigsResponse,
        )
        (refused,) = answer.responses
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert refused.error_message == "settings of resource type 8 are not served"

    in_a_node(script)
