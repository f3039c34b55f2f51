"""Large requests that wait for replicas do so without holding the turns of others."""

import asyncio
from collections.abc import Callable

from scriba.broker.api.dispatch import LARGE_AT_A_TIME
from scriba.broker.node import Node
from scriba.broker.partitions.partition import Leading
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch
from scriba.replication.leader import Heard
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from scriba.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from scriba.wire.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

InANode = Callable[..., None]
PARTITIONS = 1100
T0 = 1_750_000_000_000
ELSEWHERE = 99


async def dial(world: ProcessWorld) -> Peer:
    return await Peer.connect(world.net, "127.0.0.1", 9092)


def produce(timeout_ms: int) -> ProduceRequest:
    batch = bytes(encode_batch([Record(0, T0, None, b"v", ())]))
    data = [PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)]
    topic = TopicProduceData(name="t", partition_data=data)
    return ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[topic])


def deletion(timeout_ms: int) -> DeleteRecordsRequest:
    wanted = [DeleteRecordsPartition(partition_index=at, offset=1) for at in range(PARTITIONS)]
    topic = DeleteRecordsTopic(name="t", partitions=wanted)
    return DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)


def question() -> MetadataRequest:
    names = [MetadataRequestTopic(name=f"nothing-{number:060}") for number in range(1500)]
    return MetadataRequest(topics=names, allow_auto_topic_creation=False)


async def beside_a_stalled_follower(node: Node, world: ProcessWorld) -> None:
    peer = await dial(world)
    topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
    answer = await peer.call(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
    assert not answer.topics[0].error_code
    await asyncio.sleep(2)
    for index in range(PARTITIONS):
        has_a_follower(node, world, "t", index, epochs=1)


def has_a_follower(
    node: Node, world: ProcessWorld, topic: str, index: int, epochs: int = 0
) -> None:
    replicas, image = (node.id, ELSEWHERE), node.image.topics_by_name[topic].partitions[index]
    followed = image._replace(
        replicas=replicas,
        isr=replicas,
        leader_epoch=image.leader_epoch + epochs,
        partition_epoch=image.partition_epoch + 1,
    )
    leading = Leading(node.id, 30_000, 0, dict.fromkeys(replicas, 1), {})
    node.replicas.find(topic, index).lead(followed, leading, world.clock.now())


def test_large_produces_that_wait_for_a_follower_leave_their_turns_to_others(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await beside_a_stalled_follower(node, world)
        peers = [await dial(world) for _ in range(3)]
        waiting = [peer.send(produce(30_000), 9, ProduceResponse) for peer in peers]
        await asyncio.sleep(2)
        assert all(node.replicas.find("t", index).log.end_offset == 3 for index in (0, 500, 1099))
        assert node.server.memory.held == 0, "what is appended needs no request"
        other = await dial(world)
        told = await other.call(question(), 9, MetadataResponse, 1)
        assert len(told.topics) == 1500
        assert not any(each.done() for each in waiting)

    in_a_node(script)


def test_all_parts_of_a_large_produce_wait_together(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await beside_a_stalled_follower(node, world)
        peer = await dial(world)
        started = world.clock.mono_ms()
        answer = await peer.call(produce(5_000), 9, ProduceResponse, 60)
        assert 5_000 <= world.clock.mono_ms() - started < 6_000
        told = answer.responses[0].partition_responses
        assert [each.index for each in told] == list(range(PARTITIONS))
        assert {each.error_code for each in told} == {ErrorCode.REQUEST_TIMED_OUT}

    in_a_node(script)


async def with_records_that_a_follower_has(node: Node, world: ProcessWorld) -> Peer:
    await beside_a_stalled_follower(node, world)
    peer = await dial(world)
    request = produce(0)
    request.acks = 1
    await peer.call(request, 9, ProduceResponse, 60)
    has(node, world, 1, start_offset=0)
    return peer


def has(node: Node, world: ProcessWorld, offset: int, start_offset: int) -> None:
    """The follower tells of its logs."""
    now = world.clock.now()
    for index in range(PARTITIONS):
        partition = node.replicas.find("t", index)
        assert partition.on_fetch(ELSEWHERE, offset, start_offset, 1, now, Heard(now.mono_ms))


def test_large_deletions_that_wait_for_a_follower_leave_their_turns_to_others(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await with_records_that_a_follower_has(node, world)
        peers = [await dial(world) for _ in range(3)]
        waiting = [peer.send(deletion(30_000), 2, DeleteRecordsResponse) for peer in peers]
        await asyncio.sleep(5)
        assert all(node.replicas.find("t", at).log.start_offset == 1 for at in (0, 500, 1099))
        other = await dial(world)
        told = await other.call(deletion(0), 2, DeleteRecordsResponse, 10)
        assert told.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert not any(each.done() for each in waiting)
        has(node, world, 1, start_offset=1)
        for answer in await asyncio.gather(*waiting):
            partitions = answer.topics[0].partitions
            assert [each.partition_index for each in partitions] == list(range(PARTITIONS))
            assert {(each.error_code, each.low_watermark) for each in partitions} == {(0, 1)}
        assert not node.replicas._trimming

    in_a_node(script)


def test_all_parts_of_a_large_deletion_wait_until_one_deadline(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await with_records_that_a_follower_has(node, world)
        started = world.clock.mono_ms()
        answer = await peer.call(deletion(5_000), 2, DeleteRecordsResponse, 60)
        assert 5_000 <= world.clock.mono_ms() - started < 6_000
        partitions = answer.topics[0].partitions
        assert [each.partition_index for each in partitions] == list(range(PARTITIONS))
        assert {each.error_code for each in partitions} == {ErrorCode.REQUEST_TIMED_OUT}
        assert {each.low_watermark for each in partitions} == {-1}
        assert not node.replicas._trimming

    in_a_node(script)


async def committed(node: Node, world: ProcessWorld) -> None:
    """Offsets of a group, whose partition a follower is to copy from now on."""
    peer = await dial(world)
    await peer.call(FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse)
    await asyncio.sleep(5)
    offsets = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=0)
        for index in range(PARTITIONS)
    ]
    topic = OffsetCommitRequestTopic(name="t", partitions=offsets)
    request = OffsetCommitRequest(group_id="g", topics=[topic])
    answer = await peer.call(request, 6, OffsetCommitResponse)
    assert not any(each.error_code for each in answer.topics[0].partitions)
    index = node.group_coordinators.partition_of("g")
    has_a_follower(node, world, "__consumer_offsets", index)


def test_a_large_fetch_does_not_wait_for_those_who_wait_for_a_follower(
    in_a_node: InANode,
) -> None:
    """It may be that of the follower that they wait for."""
    gone = [OffsetDeleteRequestPartition(partition_index=index) for index in range(9_000)]
    removal = OffsetDeleteRequest(
        group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=gone)]
    )
    wanted = [FetchPartition(partition=index, fetch_offset=0) for index in range(PARTITIONS)]
    fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=wanted)])
    sizes = {len(request).bit_length() // 2 for request in (removal.encode(0), fetch.encode(12))}
    assert len(sizes) == 1

    async def script(node: Node, world: ProcessWorld) -> None:
        await beside_a_stalled_follower(node, world)
        await committed(node, world)
        waiting = [
            (await dial(world)).send(removal, 0, OffsetDeleteResponse)
            for _ in range(LARGE_AT_A_TIME)
        ]
        await asyncio.sleep(2)
        other = await dial(world)
        told = await other.call(fetch, 12, FetchResponse, 10)
        assert len(told.responses[0].partitions) == PARTITIONS
        assert not any(each.done() for each in waiting)

    in_a_node(script)
