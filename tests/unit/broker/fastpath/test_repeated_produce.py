"""The fast path of Produce: what it takes, what it leaves to the handler, and what it forgets."""

import asyncio
import gc
from collections.abc import Callable

import pytest

from scriba.broker.node import Node
from scriba.broker.partitions.partition import Partition
from scriba.errors import ErrorCode
from scriba.records.compression import Codec
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.admin import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tests.unit.broker.repeating import Nobody, Writer

InANode = Callable[..., None]


def test_a_version_that_nobody_uses_any_more_keeps_no_partition_that_is_deleted(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Writer(node, world).open()
        for version in (7, 9, 13):
            assert await one.took_the_short_way(one.batch(), version=version)
        doomed = DeleteTopicsRequest(topic_names=["t"])
        await one.peer.call(doomed, 5, DeleteTopicsResponse)
        await node.replicas.settled()
        await asyncio.sleep(120)  # its files are gone as well
        gc.collect()
        here = [each for each in gc.get_objects() if isinstance(each, Partition)]
        assert "t" not in {each.topic for each in here if each.high_watermark.value}

    in_a_node(script)


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [1, -1])
def test_every_request_of_plain_batches_takes_the_fast_path(
    in_a_node: InANode, version: int, acks: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        answers = [(await writer.send(writer.batch(), version, acks=acks))[0] for _ in range(3)]
        assert node.counters.fastpath_produces == 3
        assert [answer.base_offset for answer in answers] == [0, 2, 4]
        for answer in answers:
            answer.base_offset = 0
        assert answers[0] == answers[1] == answers[2]
        assert node.replicas.find("t", 0).log.end_offset == 6

    in_a_node(script)


def test_acks_that_do_not_exist_are_refused_each_time(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        for _ in range(3):
            (answer,) = await writer.send(writer.batch(), acks=5)
            assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert node.replicas.find("t", 0).log.end_offset == 0

    in_a_node(script)


def test_a_repeated_batch_gets_its_first_offset_back(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        one = writer.batch(producer_id=7, producer_epoch=0, base_sequence=0)
        two = writer.batch(producer_id=7, producer_epoch=0, base_sequence=2)
        for batch in (one, two):
            await writer.send(batch)
        (again,) = await writer.send(two)
        assert (again.error_code, again.base_offset) == (0, 2)
        gap = writer.batch(producer_id=7, producer_epoch=0, base_sequence=9)
        (refused,) = await writer.send(gap)
        assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (refused.base_offset, refused.log_start_offset) == (-1, 0)
        assert node.replicas.find("t", 0).log.end_offset == 4

    in_a_node(script)


def test_what_is_not_plain_goes_to_the_handler(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open(partitions=2)
        plain = writer.batch()
        await writer.send(plain)
        assert await writer.took_the_short_way(plain)
        assert not await writer.took_the_short_way(writer.batch(codec=Codec.ZSTD))
        assert await writer.took_the_short_way(plain, partitions=(0, 1))
        assert not await writer.took_the_short_way(plain, partitions=(0, 2))
        assert not await writer.took_the_short_way(plain, partitions=(0, 1, 0))
        in_txn = writer.batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        (refused,) = await writer.send(in_txn)
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        torn = bytearray(plain)
        torn[-1] ^= 1
        (refused,) = await writer.send(torn)
        assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
        assert await writer.took_the_short_way(plain)

    in_a_node(script)


def test_no_request_takes_the_fast_path_past_an_authoriser(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        await writer.send(writer.batch())
        assert await writer.took_the_short_way(writer.batch())
        node.access = Nobody()
        (refused,) = await writer.send(writer.batch())
        assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    in_a_node(script)


def test_no_request_takes_the_fast_path_while_rates_are_limited(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        await writer.send(writer.batch())
        assert await writer.took_the_short_way(writer.batch())
        node.fast_paths = False
        assert not await writer.took_the_short_way(writer.batch())

    in_a_node(script)


def test_partitions_and_topics_are_told_apart(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open(partitions=2)
        await writer.create("another")
        places = [("t", 0), ("t", 1), ("another", 0)]
        for topic, index in places:
            await writer.send(writer.batch(), topic=topic, partitions=(index,))
        for topic, index in places:
            assert await writer.took_the_short_way(writer.batch(), topic=topic, partitions=(index,))
            assert node.replicas.find(topic, index).log.end_offset == 4

    in_a_node(script)


def test_a_connection_that_changes_topic_and_version_takes_the_fast_path_each_time(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open(partitions=2)
        await writer.create("one-with-a-longer-name")
        places = [("t", 0), ("t", 1), ("one-with-a-longer-name", 0)]
        for version in (9, 13):
            for topic, index in places:
                await writer.send(writer.batch(), version, topic=topic, partitions=(index,))
        for version in (9, 13, 9):
            for topic, index in places + places[::-1]:
                assert await writer.took_the_short_way(
                    writer.batch(), version=version, topic=topic, partitions=(index,)
                )
        for topic, index in places:
            assert node.replicas.find(topic, index).log.end_offset == 2 * (2 + 6)

    in_a_node(script)


def test_new_settings_count_from_the_next_batch_on(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        for _ in range(2):
            await writer.send(writer.batch())
        await writer.configure("max.message.bytes", "10")
        (refused,) = await writer.send(writer.batch())
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE

    in_a_node(script)


def test_a_topic_made_anew_is_not_mistaken_for_the_old_one(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        for _ in range(3):
            await writer.send(writer.batch())
        await writer.peer.call(DeleteTopicsRequest(topic_names=["t"]), 5, DeleteTopicsResponse)
        await writer.create("t")
        (fresh,) = await writer.send(writer.batch())
        assert (fresh.error_code, fresh.base_offset) == (0, 0)

    in_a_node(script)


def test_a_flush_for_each_batch_is_waited_for(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        for _ in range(3):
            (answer,) = await writer.send(writer.batch())
            assert node.replicas.find("t", 0).log.flushed_offset > answer.base_offset
        assert node.counters.fastpath_produces == 0

    in_a_node(script, log_flush_interval_messages=1)


@pytest.mark.parametrize("flushing", [False, True])
def test_a_stricter_flush_policy_counts_from_the_next_batch_on(
    in_a_node: InANode, flushing: bool
) -> None:
    """Also while a flush is under way that covers less than what counts already."""

    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        ended = asyncio.ensure_future(node.wait_stopped())
        await writer.send(writer.batch())
        partition = node.replicas.find("t", 0)
        if flushing:
            partition._ask_for_flush()
            await asyncio.sleep(0)
            await writer.send(writer.batch())
        end = partition.log.end_offset
        await writer.configure("flush.messages", "1")
        assert partition.high_watermark.value == end, "what was readable stays so"
        (answer,) = await writer.send(writer.batch())
        assert (answer.error_code, answer.base_offset) == (0, end)
        assert partition.log.flushed_offset == partition.high_watermark.value == end + 2
        assert not ended.done(), "the node goes on"
        ended.cancel()

    in_a_node(script)
