"""The fast path of a Fetch for one partition: it answers as the handler does, or is not taken."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.admin import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from scriba.wire.messages.fetch import FetchResponse
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.messages.txn import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.unit.broker.repeating import Nobody, Reader, until

InANode = Callable[..., None]
VERSIONS = range(4, 19)


def code(answer: FetchResponse) -> int:
    return answer.responses[0].partitions[0].error_code


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation", [0, 1])
def test_answers_are_those_of_the_ordinary_way(
    in_a_node: InANode, version: int, isolation: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        for size in (10, 200, 70_000, 30):
            await reader.write(size)
        how = {"isolation_level": isolation}
        await reader.ask(0, version, **how)
        for offset in range(9):  # also inside of batches, and at the end
            assert await reader.took_the_short_way(offset, version, **how)
        for offset in (-1, 9, 2**40):
            assert not await reader.took_the_short_way(offset, version, **how)
        for limit in ({"max_bytes": 1}, {"partition_max_bytes": 300}, {"max_bytes": 150_000}):
            await reader.ask(0, version, **how, **limit)
            for offset in range(9):
                assert await reader.took_the_short_way(offset, version, **how, **limit)

    in_a_node(script)


@pytest.mark.parametrize(
    "how",
    [
        {"replica_id": -2},
        {"max_bytes": -1},
        {"partition_max_bytes": -1},
        {"session_id": 5, "session_epoch": 7},
        {"session_epoch": 0},
        {"last_fetched_epoch": 0},
        {"isolation_level": 3},
        {"partition": 1},
        {"current_leader_epoch": 9},
    ],
    ids=str,
)
def test_what_is_not_plain_stays_on_the_ordinary_way(
    in_a_node: InANode, how: dict[str, Any]
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        for _ in range(3):
            await reader.ask(0, **how)
        assert node.counters.fastpath_fetches == 0

    in_a_node(script)


def test_a_record_that_was_waited_for_comes_as_it_would_without_waiting(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        await reader.ask(0, max_wait_ms=20_000)
        for offset in (2, 4, 6):
            asked = asyncio.ensure_future(reader.ask(offset, max_wait_ms=20_000))
            await reader.parked()
            assert await reader.write() == offset
            assert await asked == await reader.ordinarily(offset)
        assert node.counters.fastpath_fetches == 4
        assert reader.waiting == 0

    in_a_node(script)


def test_who_waits_for_more_bytes_than_come_gets_what_there_is_when_time_is_up(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        loop = asyncio.get_running_loop()
        how = {"max_wait_ms": 5_000, "min_bytes": 1000}
        await reader.ask(0, **how)
        begun = loop.time()
        nothing = await reader.ask(0, **how)
        assert 5 <= loop.time() - begun < 6
        assert nothing == await reader.ordinarily(0)
        asked = asyncio.ensure_future(reader.ask(0, **how))
        await reader.parked()
        await reader.write()
        await reader.parked()
        assert not asked.done(), "300 bytes are not enough"
        await reader.write(1000)
        assert await asked == await reader.ordinarily(0)
        await reader.write()
        begun = loop.time()
        assert await reader.ask(4, **how) == await reader.ordinarily(4)
        assert 5 <= loop.time() - begun < 6
        assert node.counters.fastpath_fetches == 4

    in_a_node(script)


def test_a_topic_that_goes_while_a_fetch_waits_is_told_by_the_ordinary_way(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        for version in (12, 17):
            await reader.ask(0, version, max_wait_ms=20_000)
        asked = asyncio.ensure_future(reader.ask(2, 17, max_wait_ms=20_000))
        await reader.parked()
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
        await reader.writer.call(gone, 6, DeleteTopicsResponse)
        assert code(await asked) in (
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        assert code(await reader.ask(0, 17)) == ErrorCode.UNKNOWN_TOPIC_ID
        assert code(await reader.ask(0, 12)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_a_node(script)


def test_an_authoriser_is_asked_also_by_a_fetch_that_was_waiting_when_it_came(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        await reader.ask(0, max_wait_ms=20_000)
        assert await reader.took_the_short_way(0, max_wait_ms=20_000)
        asked = asyncio.ensure_future(reader.ask(2, max_wait_ms=20_000))
        await reader.parked()
        open_access, node.access = node.access, Nobody()
        node.replicas.find("t", 0).high_watermark.advance(3)
        assert code(await asked) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        node.access = open_access

    in_a_node(script)


def test_a_consumer_that_leaves_takes_its_wait_along(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        await reader.ask(0, max_wait_ms=20_000)
        reader.peer.send(reader.wanted(2, 12, max_wait_ms=20_000), 12, FetchResponse)
        await reader.parked()
        reader.peer.close()
        # The broker hears of it when the pause ends and it reads again.
        await reader.write()
        await asyncio.sleep(1)
        assert reader.waiting == 0
        assert node.server.connections == 1

    in_a_node(script)


def test_records_that_left_the_page_cache_come_the_ordinary_way(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        warm = await reader.ask(0)
        assert await reader.took_the_short_way(0)
        assert isinstance(world.disk, SimDisk)
        world.disk.volume.faults.cold = 1.0
        assert await reader.ask(0) == warm
        assert await reader.ask(0) == warm

    in_a_node(script)


def test_a_reader_of_what_is_committed_is_told_of_what_was_aborted(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        how = {"isolation_level": 1}
        await reader.ask(0, **how)
        assert await reader.took_the_short_way(0, **how)
        find = FindCoordinatorRequest(key="shop", key_type=1)
        await reader.writer.call(find, 2, FindCoordinatorResponse)
        init = InitProducerIdRequest(transactional_id="shop", transaction_timeout_ms=60_000)
        for _ in range(100):  # the coordinator has to load first
            opened = await reader.writer.call(init, 4, InitProducerIdResponse)
            if not opened.error_code:
                break
            await asyncio.sleep(0.1)
        id, epoch = opened.producer_id, opened.producer_epoch
        await reader.write(
            producer_id=id, producer_epoch=epoch, base_sequence=0, transactional=True
        )
        assert await reader.took_the_short_way(0, **how), "nothing of the open transaction is seen"
        end = EndTxnRequest(
            transactional_id="shop", producer_id=id, producer_epoch=epoch, committed=False
        )
        assert (await reader.writer.call(end, 5, EndTxnResponse)).error_code == 0
        await until(lambda: node.replicas.find("t", 0).stable_offset.value == 5)
        assert await reader.took_the_short_way(0, **how)
        aborted = (await reader.ask(0, **how)).responses[0].partitions[0].aborted_transactions
        assert aborted is not None
        assert [(each.producer_id, each.first_offset) for each in aborted] == [(id, 2)]
        await reader.ask(0)
        assert await reader.took_the_short_way(0), "who reads all has nothing to leave out"

    in_a_node(script)


class Session:
    """An incremental session of one partition, all of it on the short way or none."""

    def __init__(self, reader: Reader, version: int, short: bool) -> None:
        self.reader = reader
        self.version = version
        self.short = short
        self.id = 0
        self.epoch = 0

    async def ask(self, offset: int | None, **how: Any) -> FetchResponse:
        """What a fetch brings; without an offset no partition is named."""
        node = self.reader.node
        request = self.reader.wanted(offset or 0, self.version, **how)
        request.session_id, request.session_epoch = self.id, self.epoch
        if offset is None:
            request.topics = []
        node.fast_paths = self.short
        answer = await self.reader.peer.call(request, self.version, FetchResponse)
        node.fast_paths = True
        self.epoch += 1
        self.id, answer.session_id = answer.session_id, 0
        return answer


@pytest.mark.parametrize("version", [7, 11, 12, 17])
def test_a_session_of_one_partition_hears_the_same_on_both_ways(
    in_a_node: InANode, version: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        for _ in range(2):
            await reader.write()
        short, ordinary = (Session(reader, version, way) for way in (True, False))
        for step in (0, 0, 0, 2, "write", 2, 4, 4, None, "write", None, 4, 6, 99, 6, 6, None, 6):
            if step == "write":
                await reader.write()
                continue
            offset = step if isinstance(step, int) else None
            assert await short.ask(offset) == await ordinary.ask(offset), step
        assert node.counters.fastpath_fetches >= 8
        assert len(node.fetch_sessions) == 2

    in_a_node(script)


def test_a_session_waits_for_records_and_is_told_nothing_when_none_come(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        session = Session(reader, 17, short=True)
        for offset in (0, 0, 0):
            await session.ask(offset, max_wait_ms=2_000)
        before = node.counters.fastpath_fetches
        assert (await session.ask(2, max_wait_ms=2_000)).responses == []
        asked = asyncio.ensure_future(session.ask(2, max_wait_ms=2_000))
        await reader.parked()
        await reader.write()
        assert (await asked).responses == (await reader.ordinarily(2, 17)).responses
        assert node.counters.fastpath_fetches == before + 2

    in_a_node(script)


def test_a_session_goes_on_after_a_wait_that_ended_on_the_ordinary_way(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        reader = await Reader(node, world).open()
        await reader.write()
        session = Session(reader, 17, short=True)
        for offset in (0, 0):
            await session.ask(offset, max_wait_ms=20_000)
        asked = asyncio.ensure_future(session.ask(2, max_wait_ms=20_000))
        await reader.parked()
        node.fast_paths = False
        await reader.write()
        answer = await asked
        assert answer.error_code == 0
        assert answer.responses == (await reader.ordinarily(2, 17)).responses
        assert (await session.ask(4)).error_code == 0
        assert (await session.ask(0)).responses == (await reader.ordinarily(0, 17)).responses

    in_a_node(script)
