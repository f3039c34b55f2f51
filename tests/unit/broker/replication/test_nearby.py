"""Consumers read from a replica in their own rack (KIP-392), as long as it is in sync."""

import asyncio
from typing import Any

import pytest

from scriba.broker.handlers.records.offsets import DEBUGGING_REPLICA, LATEST
from scriba.errors import ErrorCode
from scriba.settings.keys.node import RACK_AWARE_SELECTOR
from scriba.testing.sim.world.peer import Peer
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from tests.unit.broker.brokers import Brokers, Script, play

NO_SESSION = -1


def in_racks(script: Script, **settings: Any) -> None:
    """Three brokers, each in a rack of its own: r1, r2 and r3."""
    given = {"replica_selector_class": RACK_AWARE_SELECTOR, "broker_rack": "r{id}"} | settings
    play(script, **given)


class Consumer:
    """Asks one broker for partitions of the topic `t`."""

    def __init__(self, brokers: Brokers, rack: str = "", version: int = 17) -> None:
        self.brokers = brokers
        self.rack = rack
        self.version = version
        self.peer: Peer

    async def at(self, broker_id: int) -> "Consumer":
        self.broker_id = broker_id
        self.peer = await self.brokers.dial(broker_id)
        return self

    async def ask(self, offset: int, *others: int, **how: Any) -> FetchResponse:
        """Asks for partition 0 from `offset` on, and for more partitions from other offsets on."""
        topic = self.brokers.nodes[1].image.topics_by_name["t"]
        named: dict[str, Any] = {"topic_id": topic.id} if self.version >= 13 else {"topic": "t"}
        epoch = how.pop("epoch", -1)
        partitions = [
            FetchPartition(
                partition=at,
                fetch_offset=where,
                current_leader_epoch=epoch,
                partition_max_bytes=1 << 20,
            )
            for at, where in enumerate((offset, *others))
        ]
        facts: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "session_epoch": NO_SESSION}
        request = FetchRequest(
            topics=[FetchTopic(partitions=partitions, **named)],
            rack_id=self.rack,
            **(facts | how),
        )
        return await self.peer.call(request, self.version, FetchResponse, timeout_s=120)

    async def fetch(self, offset: int = 0, **how: Any) -> PartitionData:
        return (await self.ask(offset, **how)).responses[0].partitions[0]

    @property
    def fast(self) -> int:
        return self.brokers.nodes[self.broker_id].counters.fastpath_fetches


async def written(brokers: Brokers, count: int = 3, topic: str = "t") -> None:
    """A topic led by broker 1 with so many records, which all three have and know committed."""
    await brokers.create(topic, (1, 2, 3))
    for at in range(count):
        assert await brokers.produce(1, topic, b"%d" % at) is ErrorCode.NONE
    await known(brokers, count, topic)


async def known(brokers: Brokers, high_watermark: int, topic: str = "t") -> None:
    marks = [brokers.partition(at, topic) for at in (1, 2, 3)]
    await brokers.until(lambda: all(p.high_watermark.value == high_watermark for p in marks))


async def at_once(asked: "asyncio.Future[PartitionData]") -> PartitionData:
    """Its answer, long before its time is up."""
    async with asyncio.timeout(5):
        return await asked


def test_leader_names_the_replica_in_the_rack_of_the_consumer_and_sends_no_records() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        for rack, named in (("r3", 3), ("r2", 2)):
            consumer = await Consumer(brokers, rack).at(1)
            said = await consumer.fetch(max_wait_ms=60_000, min_bytes=1000)
            assert said.preferred_read_replica == named
            assert not said.error_code
            assert not said.records
            assert (said.high_watermark, said.log_start_offset) == (3, 0)
            assert consumer.fast == 0

    in_racks(script)


@pytest.mark.parametrize("rack", ["", "r1", "r9"])
def test_leader_is_read_from_its_own_rack_and_where_no_rack_has_a_replica(rack: str) -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        consumer = await Consumer(brokers, rack).at(1)
        said = await consumer.fetch()
        assert said.preferred_read_replica == -1
        assert said.records
        assert consumer.fast == 1, "racks are no reason to leave the fast path"

    in_racks(script)


def test_without_a_selector_racks_are_not_looked_at() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        said = await (await Consumer(brokers, "r3").at(1)).fetch()
        assert said.preferred_read_replica == -1
        assert said.records

    in_racks(script, replica_selector_class="")


def test_a_session_hears_of_a_preferred_replica_though_nothing_else_is_new() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        consumer = await Consumer(brokers, "").at(1)
        opened = await consumer.ask(3, session_epoch=0)
        assert opened.session_id
        consumer.rack = "r2"
        again = await consumer.ask(3, session_id=opened.session_id, session_epoch=1)
        assert again.responses[0].partitions[0].preferred_read_replica == 2

    in_racks(script)


def test_a_replica_that_lacks_the_offset_or_left_the_isr_is_not_named() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        consumer = await Consumer(brokers, "r3").at(1)
        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t").isr == (1, 2))
        assert await brokers.produce(1, "t", b"more") is ErrorCode.NONE
        assert (await consumer.fetch(0)).preferred_read_replica == -1
        assert (await consumer.fetch(3)).records

    in_racks(script)


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", [11, 12, 13, 17, 18])
def test_follower_answers_as_the_leader_does_on_both_paths(version: int, isolation: int) -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        follower = await Consumer(brokers, "r2", version).at(2)
        leader = await Consumer(brokers, "", version).at(1)
        for offset in range(4):
            for epoch in (-1, 0):
                how = {"isolation_level": isolation, "epoch": epoch}
                before = follower.fast
                fast = await follower.ask(offset, **how)
                assert follower.fast == before + 1
                follower.brokers.nodes[2].fast_paths = False
                assert await follower.ask(offset, **how) == fast
                follower.brokers.nodes[2].fast_paths = True
                assert follower.fast == before + 1
                assert fast == await leader.ask(offset, **how)

    in_racks(script)


def test_old_consumers_read_from_the_leader_alone() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        consumer = await Consumer(brokers, "", 10).at(2)
        for _ in range(2):
            assert (await consumer.fetch()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert consumer.fast == 0

    in_racks(script)


def test_consumer_that_waits_at_a_follower_hears_at_once_of_what_is_committed() -> None:
    """The high watermark comes to the follower with an answer of its own, not half a second later
    with the next records."""

    async def script(brokers: Brokers) -> None:
        await written(brokers)
        loop = asyncio.get_running_loop()
        for fast in (True, False):
            brokers.nodes[2].fast_paths = fast
            for isolation in (0, 1):
                consumer = await Consumer(brokers, "r2").at(2)
                end = brokers.partition(2, "t").log.end_offset
                how = {"max_wait_ms": 60_000, "isolation_level": isolation}
                asked = asyncio.ensure_future(consumer.fetch(end, **how))
                await asyncio.sleep(2)
                assert not asked.done()
                begun = loop.time()
                assert await brokers.produce(1, "t", b"new") is ErrorCode.NONE
                said = await asked
                assert said.records
                assert said.high_watermark == end + 1
                assert loop.time() - begun < 0.2

    in_racks(script)


def test_no_record_is_seen_at_a_follower_that_is_not_committed() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        brokers.kill(3)  # nothing more is committed until it is known to be gone
        assert await brokers.produce(1, "t", b"not yet", acks=1) is ErrorCode.NONE
        await brokers.until(lambda: brokers.partition(2, "t").log.end_offset == 4)
        consumer = await Consumer(brokers, "r2").at(2)
        said = await consumer.fetch(3)
        assert (said.error_code, said.high_watermark) == (0, 3)
        assert not said.records
        await brokers.until(lambda: brokers.image("t").isr == (1, 2))
        await brokers.until(lambda: brokers.partition(2, "t").high_watermark.value == 4)
        assert (await consumer.fetch(3)).records

    in_racks(script)


def test_follower_says_which_offsets_it_does_not_have() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        consumer = await Consumer(brokers, "r2").at(2)
        assert (await consumer.fetch(4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        follower = brokers.partition(2, "t").follower
        assert follower is not None
        follower.leader_high_watermark = 9  # it heard of more than it has
        assert (await consumer.fetch(4)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await consumer.fetch(10)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    in_racks(script)


@pytest.mark.parametrize("fast", [True, False])
def test_consumers_are_sent_away_when_the_leader_changes_or_the_follower_is_not_in_sync(
    fast: bool,
) -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        brokers.nodes[2].fast_paths = fast
        consumer = await Consumer(brokers, "r2").at(2)
        asked = asyncio.ensure_future(consumer.fetch(3, epoch=0, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await brokers.elect("t", 3)
        said = await at_once(asked)
        assert said.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert said.current_leader.leader_id == 3
        assert (await consumer.fetch(3, epoch=9)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        asked = asyncio.ensure_future(consumer.fetch(3, epoch=1, max_wait_ms=60_000))
        await asyncio.sleep(1)
        partition, image = brokers.partition(2, "t"), brokers.image("t")
        partition.go_on_following(image, in_sync=False)
        said = await at_once(asked)
        assert said.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert said.current_leader.leader_id == 3

    in_racks(script)


def test_follower_that_becomes_leader_wakes_who_waits_there() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        consumer = await Consumer(brokers, "r2").at(2)
        asked = asyncio.ensure_future(consumer.fetch(3, epoch=0, max_wait_ms=60_000))
        await asyncio.sleep(1)
        await brokers.elect("t", 2)
        assert (await at_once(asked)).error_code == ErrorCode.FENCED_LEADER_EPOCH

    in_racks(script)


def test_many_partitions_of_which_some_are_led_and_some_followed_take_the_fast_path() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
        for index, leader in enumerate((1, 2, 3)):
            for at in range(2):
                assert await brokers.produce(leader, "t", b"%d" % at, index=index) == 0
        marks = [brokers.partition(2, "t", index) for index in range(3)]
        await brokers.until(lambda: all(p.high_watermark.value == 2 for p in marks))
        consumer = await Consumer(brokers, "r2").at(2)
        fast = await consumer.ask(0, 1, 2)
        assert consumer.fast == 1
        brokers.nodes[2].fast_paths = False
        assert await consumer.ask(0, 1, 2) == fast
        assert [bool(p.records) for p in fast.responses[0].partitions] == [True, True, False]

    in_racks(script)


def test_every_replica_tells_tools_where_its_log_ends() -> None:
    async def script(brokers: Brokers) -> None:
        await written(brokers)
        for broker_id in (1, 2, 3):
            peer = await brokers.dial(broker_id)
            for replica, code in ((DEBUGGING_REPLICA, 0), (-1, 6 if broker_id != 1 else 0)):
                asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
                request = ListOffsetsRequest(
                    replica_id=replica, topics=[ListOffsetsTopic(name="t", partitions=[asked])]
                )
                answer = await peer.call(request, 10, ListOffsetsResponse)
                told = answer.topics[0].partitions[0]
                assert told.error_code == code
                assert told.offset == (-1 if code else 3)

    in_racks(script)
