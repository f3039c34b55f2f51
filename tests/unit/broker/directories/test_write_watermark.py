"""A volume that is nearly full: clients are refused, others lead, and it opens again by itself."""

import asyncio
from typing import Any

import pytest

from scriba.broker.metrics.exposition import render
from scriba.broker.partitions.directories import handed_over
from scriba.broker.partitions.directories.handed_over import HANDED_OVER
from scriba.broker.partitions.directories.write_watermark import DISTANCE_BYTES, is_closed
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.testing.sim.world.disk import SimDisk
from scriba.wire.messages.admin import (
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from scriba.wire.messages.produce import ProduceResponse
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.scraping import parsed

GB = 1 << 30


@pytest.mark.parametrize(
    ("before", "total", "used", "mark", "closed"),
    [
        (False, 100, 89, 0.9, False),
        (False, 100, 90, 0.9, True),
        (False, 100, 100, 0.0, False),
        (False, 0, 0, 0.9, False),
        (True, 100, 89, 0.9, True),
        (True, 100, 87, 0.9, False),
        (True, 100, 100, 0.0, False),
        (True, 1000 * GB, 900 * GB - DISTANCE_BYTES, 0.9, True),
        (True, 1000 * GB, 900 * GB - DISTANCE_BYTES - 1, 0.9, False),
    ],
)
def test_a_directory_closes_at_the_mark_and_opens_some_way_below(
    before: bool, total: int, used: int, mark: float, closed: bool
) -> None:
    assert is_closed(before, total, total - used, mark) is closed


def fill(brokers: Brokers, broker_id: int, share: float) -> None:
    """Makes a volume look as if this much of it were in use."""
    disk: Any = brokers.nodes[broker_id].world.disk
    disk.space = lambda path: (1000 * GB, round(1000 * GB * (1 - share)))


def closed(brokers: Brokers, broker_id: int) -> bool:
    return brokers.nodes[broker_id].replicas.dirs[0].closed is not None


def cordoned(brokers: Brokers, broker_id: int) -> bool:
    """Whether the controller knows that it takes nothing new."""
    return not brokers.nodes[1].image.brokers[broker_id].takes_new


async def known_as_full(brokers: Brokers, broker_id: int) -> None:
    await brokers.until(lambda: cordoned(brokers, broker_id))


async def led_by(brokers: Brokers, broker_id: int) -> None:
    await brokers.until(lambda: brokers.image("t").leader == broker_id)


async def make_room(brokers: Brokers, broker_id: int) -> None:
    """Returns when the controller knows that there is room again."""
    fill(brokers, broker_id, 0.5)
    await brokers.until(lambda: not cordoned(brokers, broker_id))


def kinds(brokers: Brokers, broker_id: int) -> list[EventKind]:
    return [event.kind for event in brokers.nodes[broker_id].events.page(0, 256).events]


def test_leaderships_go_to_others_and_producers_with_them() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), (2, 1, 3), (3, 2, 1))
        await brokers.create("alone", (2,))
        for index, leader in enumerate((2, 2, 3)):
            assert await brokers.produce(leader, "t", b"before", index=index) is ErrorCode.NONE
        fill(brokers, 2, 0.93)
        await brokers.until(lambda: [brokers.image("t", at).leader for at in range(3)] == [3, 1, 3])
        assert brokers.image("t").replicas == (3, 1, 2)
        assert brokers.image("t").isr == (2, 3, 1), "it follows on"
        assert brokers.image("t", 2).replicas == (3, 2, 1), "others' partitions are left alone"
        await brokers.until(lambda: brokers.leads(3, "t"))
        assert await brokers.produce(3, "t", b"after") is ErrorCode.NONE
        await brokers.until(lambda: brokers.partition(2, "t").log.end_offset == 2)

        peer = await brokers.dial(2)
        for _ in range(2):  # also where it produced just before
            answer = await peer.call(brokers.produced("alone", b"x"), 12, ProduceResponse)
            (told,) = answer.responses[0].partition_responses
            assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "scriba.log.dirs.write.watermark is 0.9; make room" in (told.error_message or "")
        assert (await brokers.consume(2, "alone")).error_code == ErrorCode.NONE
        assert EventKind.WRITE_WATERMARK_REACHED in kinds(brokers, 2)
        assert parsed(render(brokers.nodes[2]))["scriba_storage_closed_log_dirs"] == 1

        fill(brokers, 2, 0.5)
        await brokers.until(lambda: not closed(brokers, 2))
        await brokers.until(lambda: brokers.partition(2, "alone").closed is None)
        assert await brokers.produce(2, "alone", b"x") is ErrorCode.NONE
        await brokers.until(lambda: brokers.image("t").replicas == (2, 3, 1))
        assert brokers.image("t").leader == 3, "who leads is left to the preferred election"
        assert EventKind.WRITE_WATERMARK_LEFT in kinds(brokers, 2)

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_leaderships_pass_over_brokers_that_are_nearly_full_themselves() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        await brokers.create("u", (2, 3))
        fill(brokers, 3, 0.95)
        await known_as_full(brokers, 3)
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: brokers.image("t").leader != 2)
        assert brokers.image("t").leader == 1
        await brokers.until(lambda: brokers.leads(1, "t"))
        assert await brokers.produce(1, "t", b"x") is ErrorCode.NONE
        await asyncio.sleep(30)
        assert brokers.image("u").leader == 2, "nobody else has room"
        assert brokers.image("u").leader_epoch == 0
        await make_room(brokers, 3)
        await make_room(brokers, 2)
        await brokers.until(lambda: brokers.image("t").replicas == (2, 3, 1))

    play(script, scriba_log_dirs_write_watermark=0.9)


@pytest.mark.parametrize("opened", [(2, 3), (3, 2)])
def test_brokers_that_close_one_after_the_other_put_the_order_back_in_any_order(
    opened: tuple[int, ...],
) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        for broker_id, successor in ((2, 3), (3, 1)):
            fill(brokers, broker_id, 0.95)
            await led_by(brokers, successor)
            await known_as_full(brokers, broker_id)
        for broker_id in opened:
            await make_room(brokers, broker_id)
            await asyncio.sleep(15)
        assert brokers.image("t").replicas == (2, 3, 1)

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_leaderships_are_handed_over_once_the_controller_is_back() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        brokers.kill(1)
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: closed(brokers, 2))
        await asyncio.sleep(60)  # nobody answers for longer than a request is tried
        assert brokers.leads(2, "t")
        await brokers.boot(1)
        await brokers.until(lambda: brokers.image("t").leader == 3)
        fill(brokers, 2, 0.5)
        await brokers.until(lambda: brokers.image("t").replicas == (2, 3))

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_a_leadership_that_comes_while_the_directory_is_closed_goes_on_to_others() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (3, 2))
        await brokers.create("u", (2, 3))
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: brokers.image("u").leader == 3)
        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t").leader == 2, seconds=30)
        await brokers.until(lambda: brokers.image("u").leader == 2, seconds=30)
        await brokers.boot(3)
        await brokers.until(lambda: [brokers.image(topic).leader for topic in ("t", "u")] == [3, 3])
        assert [brokers.image(topic).replicas for topic in ("t", "u")] == [(3, 2), (3, 2)]
        fill(brokers, 2, 0.5)
        await brokers.until(lambda: brokers.image("u").replicas == (2, 3))
        assert brokers.image("t").replicas == (3, 2)

    play(script, scriba_log_dirs_write_watermark=0.9, auto_leader_rebalance_enable="false")


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("full", [True, False], ids=["still full", "with room"])
def test_a_restart_while_the_directory_is_closed_forgets_no_order(
    end: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        await brokers.create("u", (2, 3, 1))
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: [brokers.image(t).leader for t in "tu"] == [3, 3])
        assert brokers.image("t").replicas == (3, 1, 2)
        await brokers.reassign("u", (1, 3))
        if full:
            volume, space = brokers.sim.host("b2").volume, SimDisk.space
            nearly_full = (1000 * GB, 50 * GB)
            monkeypatch.setattr(
                SimDisk,
                "space",
                lambda disk, path: nearly_full if disk.volume is volume else space(disk, path),
            )
        await brokers.reboot(2, end)
        if full:
            await brokers.until(lambda: closed(brokers, 2))
            await asyncio.sleep(30)
            assert brokers.image("t").replicas == (3, 1, 2)
            fill(brokers, 2, 0.5)
        await brokers.until(lambda: brokers.image("t").replicas == (2, 3, 1))
        assert not closed(brokers, 2)
        assert brokers.image("u").replicas == (1, 3), "it was moved"
        node = brokers.nodes[2]
        await brokers.until(lambda: not handed_over.read(node.world.disk, "/data"))
        assert HANDED_OVER not in node.world.disk.list("/data")

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_brokers_of_a_level_without_cordons_hand_nothing_back_and_forth() -> None:
    """None can know of another that it is full: each hands over once."""

    async def script(brokers: Brokers) -> None:
        for node in brokers.nodes.values():
            node.lifecycle._cordons = lambda: None  # type: ignore[method-assign]
        await brokers.create("t", (2, 3))
        for broker_id in (2, 3):
            fill(brokers, broker_id, 0.95)
        await brokers.until(lambda: closed(brokers, 2) and closed(brokers, 3))
        await asyncio.sleep(5)
        epoch = brokers.image("t").leader_epoch
        assert epoch <= 2
        await asyncio.sleep(60)
        assert brokers.image("t").leader_epoch == epoch

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_what_cannot_be_read_of_the_orders_is_passed_over() -> None:
    async def script(brokers: Brokers) -> None:
        world = brokers.nodes[1].world
        await handed_over.write(
            world.disk, world.clock, "/data", {(b"x" * 16, 7): (2, 3, 1), (b"y" * 16, 0): (1, 2)}
        )
        written = world.disk.read(f"/data/{HANDED_OVER}")
        await world.disk.write_atomic(f"/data/{HANDED_OVER}", written[:-4] + b"\xff?\n\n1 2\n")
        assert handed_over.read(world.disk, "/data") == {(b"x" * 16, 7): (2, 3, 1)}

    play(script, count=1)


def test_a_produce_on_the_fast_path_is_refused_as_well() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2,))
        node, peer = brokers.nodes[2], await brokers.dial(2)
        for _ in range(3):
            answer = await peer.call(brokers.produced("t", b"x"), 12, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
        before = node.counters.fastpath_produces
        assert before > 0
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: brokers.partition(2, "t").closed is not None)
        for _ in range(3):
            answer = await peer.call(brokers.produced("t", b"x"), 12, ProduceResponse)
            told = answer.responses[0].partition_responses[0]
            assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert brokers.partition(2, "t").log.end_offset == 3
        fill(brokers, 2, 0.5)
        await brokers.until(lambda: brokers.partition(2, "t").closed is None)
        for _ in range(3):
            answer = await peer.call(brokers.produced("t", b"x"), 12, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
        assert node.counters.fastpath_produces > before

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_all_volumes_full_hand_nothing_back_and_forth() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        for broker_id in (1, 2, 3):
            fill(brokers, broker_id, 0.95)
        await brokers.until(lambda: all(closed(brokers, at) for at in (1, 2, 3)))
        await brokers.until(lambda: brokers.image("t").leader_epoch > 0)
        epochs = []
        for _ in range(2):
            await asyncio.sleep(20)
            epochs.append(brokers.image("t").leader_epoch)
        assert epochs[0] == epochs[1]
        leader = brokers.image("t").leader
        await brokers.until(lambda: brokers.leads(leader, "t"))
        assert await brokers.produce(leader, "t", b"x") == (ErrorCode.KAFKA_STORAGE_ERROR)

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_no_new_partition_is_made_where_every_directory_is_nearly_full() -> None:
    async def script(brokers: Brokers) -> None:
        fill(brokers, 1, 0.95)
        await brokers.until(lambda: closed(brokers, 1))
        assert not brokers.nodes[1].log_dirs.has_room()

    play(script, count=1, scriba_log_dirs_write_watermark=0.9)


def test_topics_are_deleted_while_clients_are_refused() -> None:
    """The room above the mark is the metadata log's reserve."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,))
        fill(brokers, 1, 0.95)
        await brokers.until(lambda: closed(brokers, 1))
        before = brokers.nodes[1].image.last_offset
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
        await brokers.nodes[1].metadata.call(request)
        assert "t" not in brokers.nodes[1].image.topics_by_name
        assert brokers.nodes[1].image.last_offset > before

    play(script, count=1, scriba_log_dirs_write_watermark=0.9)


def test_cordoned_and_nearly_full_directories_are_told_to_the_controller_and_to_tools() -> None:
    async def script(brokers: Brokers) -> None:
        assert not cordoned(brokers, 2)
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: cordoned(brokers, 2))
        peer = await brokers.dial(2)
        for told in (True, False):
            answer = await peer.call(
                DescribeLogDirsRequest(topics=None), 5, DescribeLogDirsResponse
            )
            assert [each.is_cordoned for each in answer.results] == [told]
            fill(brokers, 2, 0.5)
            await brokers.until(lambda: not cordoned(brokers, 2))

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_a_directory_that_was_taken_away_has_no_room_and_fails_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        node = brokers.nodes[1]
        assert node.log_dirs.has_room()

        def gone(path: str) -> tuple[int, int]:
            raise FileNotFoundError(path)

        monkeypatch.setattr(node.world.disk, "space", gone)
        assert not node.log_dirs.has_room()

    play(script)


def test_a_directory_that_is_cordoned_by_setting_gets_nothing_new() -> None:
    async def script(brokers: Brokers) -> None:
        node = brokers.nodes[1]
        await brokers.until(lambda: not node.image.brokers[1].takes_new)
        assert not node.log_dirs.has_room()
        assert not closed(brokers, 1), "what is there takes records"

    play(script, count=1, cordoned_log_dirs="*")
