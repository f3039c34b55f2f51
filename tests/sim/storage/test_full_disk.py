"""A device without room: what waits for it goes on when there is room again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from scriba.broker.node import Node
from scriba.config import StartError, StorageLost
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.records.batch import EndTxnMarker, end_txn_batch, read_header
from scriba.settings import NodeSettings, TopicSettings
from scriba.storage.directory.logdir import LogDir
from scriba.storage.log import Log, Slice
from scriba.storage.results import NoRoom
from scriba.testing.sim.plays.compacting import append
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from scriba.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)


def with_a_log(story: Callable[[SimWorld, ProcessWorld, Log], Awaitable[None]]) -> None:
    sim = SimWorld(1)
    host = sim.host("broker")

    async def main(world: ProcessWorld) -> None:
        home = LogDir.open(world.disk, "/data", world.offload)
        await home.adopt("cluster", 1, bytes(16))
        await home.start()
        log = await home.open_log("t", 0, b"i" * 16, TopicSettings(), world.clock.now())
        await story(sim, world, log)
        await home.close()

    async def play() -> None:
        await host.start(main).task

    sim.run(play())


def abort(log: Log, world: ProcessWorld) -> None:
    now = world.clock.now()
    append(
        log, [("k", "v")], now,
        producer_id=5, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    marker = end_txn_batch(5, 0, EndTxnMarker(False, 0), now.wall_ms)
    log.append(memoryview(marker), read_header(marker), 0, now)


def test_a_flush_waits_for_room_for_the_transaction_index_and_takes_nothing_offline() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, log: Log) -> None:
        abort(log, world)
        sim.host("broker").disk_faults.capacity = sim.host("broker").volume.used + 10
        flushing = asyncio.ensure_future(log.flush())
        await asyncio.sleep(5)
        assert log.failure is None
        assert log.flushed_offset == 0
        sim.host("broker").disk_faults.capacity = 1 << 40
        await asyncio.wait_for(flushing, 5)
        assert log.flushed_offset == log.end_offset == 2
        assert world.disk.size("/data/t-0/00000000000000000000.txnindex") == 34

    with_a_log(story)


# ---- a whole node ----


def with_a_node(
    story: Callable[[SimWorld, ProcessWorld, Node], Awaitable[None]],
    reserves: bool = False,
    **settings: str,
) -> None:
    sim = SimWorld(1)
    sim.host("broker").disk_faults.reserves = reserves

    async def main(world: ProcessWorld) -> None:
        node = Node(node_settings(**settings), world)
        await node.start()
        watching = asyncio.ensure_future(node.wait_stopped())
        await story(sim, world, node)
        assert not watching.done(), "the node has ended"
        watching.cancel()
        await node.stop()

    async def play() -> None:
        await sim.host("broker").start(main).task

    sim.run(play())


def node_settings(**settings: str) -> NodeSettings:
    given = {"log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    return NodeSettings.parse(
        given | {name.replace("_", "."): value for name, value in settings.items()}
    )


async def create(node: Node, name: str, partitions: int = 1) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await node.controller.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert answer.topics[0].error_code == 0
    await node.replicas.settled()


def fill(sim: SimWorld) -> None:
    sim.host("broker").disk_faults.capacity = sim.host("broker").volume.used


def make_room(sim: SimWorld) -> None:
    sim.host("broker").disk_faults.capacity = 1 << 40


def no_room_lines(caplog: pytest.LogCaptureFixture) -> int:
    return sum("takes no writes" in record.getMessage() for record in caplog.records)


def test_a_topic_whose_partitions_find_no_room_comes_to_life_with_it() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        await create(node, "old")
        append(node.replicas.find("old", 0).log, [("k", "v")], world.clock.now())
        node.metadata.subscribe(lambda *_: fill(sim))  # known, and not yet opened
        await create(node, "new", 3)
        new = node.replicas.find("new", 2).log
        with pytest.raises(NoRoom, match="No space left") as refused:
            append(new, [("k", "v")], world.clock.now())
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert new.end_offset == 0
        await asyncio.sleep(30)
        told = [each.kind for each in node.events.since()]
        assert told.count(EventKind.PARTITION_WAITS_FOR_ROOM) == 3, "each is told once"
        old = node.replicas.find("old", 0)
        assert isinstance(old.log.read(0, 1000, 1), Slice)
        assert not any(directory.offline for directory in node.replicas.dirs)
        make_room(sim)
        await asyncio.sleep(5)
        for index in range(3):
            found = node.replicas.find("new", index)
            append(found.log, [("k", "v")], world.clock.now())
            assert found.leader is not None

    with_a_node(story)


def test_a_topic_is_refused_where_there_is_no_room_for_its_files() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        fill(sim)
        with pytest.raises(NoRoom, match="no log directory has room"):
            await create(node, "new")
        assert "new" not in node.image.topics_by_name

    with_a_node(story)


def test_hours_on_a_full_device_end_nothing_and_are_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        await create(node, "old")
        store = node.replicas.find("old", 0).log
        append(store, [("k", "v")], world.clock.now())
        fill(sim)
        for _ in range(600):
            with pytest.raises(NoRoom):
                append(store, [("k", "v")], world.clock.now())
            await asyncio.sleep(1)
        assert 10 <= no_room_lines(caplog) <= 11
        assert node.counters.refused_writes > 600
        await asyncio.sleep(3600)
        make_room(sim)
        await asyncio.sleep(60)
        append(store, [("k", "v")], world.clock.now())
        await store.flush()
        assert store.flushed_offset == store.end_offset == 2

    with_a_node(
        story,
        metadata_log_max_record_bytes_between_snapshots="1",
        metadata_max_idle_interval_ms="500",
    )
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_a_heartbeat_whose_record_does_not_fit_is_brought_again() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        await create(node, "old", 2)
        fill(sim)
        lost = node.replicas.dirs[1]
        lost._fail("the device is gone")
        await asyncio.sleep(30)
        assert lost.id in node.image.brokers[node.id].directories
        make_room(sim)
        await asyncio.sleep(10)
        assert lost.id not in node.image.brokers[node.id].directories

    with_a_node(story, log_dirs="/one,/two")


def test_a_node_that_is_stopped_full_starts_when_there_is_room() -> None:
    sim = SimWorld(1)

    async def first(world: ProcessWorld) -> None:
        node = Node(node_settings(), world)
        await node.start()
        await create(node, "old", 2)
        append(node.replicas.find("old", 0).log, [("k", "v")], world.clock.now())
        fill(sim)
        await node.stop()

    async def without_room(world: ProcessWorld) -> None:
        with pytest.raises(StartError, match="no room on the device"):
            await Node(node_settings(), world).start()

    async def with_room(world: ProcessWorld) -> None:
        node = Node(node_settings(), world)
        await node.start()
        assert node.replicas.find("old", 0).log.end_offset == 1
        await node.stop()

    async def play() -> None:
        await sim.host("broker").start(first).task
        await sim.host("broker").start(without_room).task
        make_room(sim)
        await sim.host("broker").start(with_room).task

    sim.run(play())


def test_a_log_that_is_recovered_on_a_full_device_can_be_read_and_written_later() -> None:
    sim = SimWorld(1)
    settings = TopicSettings(segment_bytes=2000, index_interval_bytes=100)

    async def open_it(world: ProcessWorld) -> tuple[LogDir, Log]:
        home = LogDir.open(world.disk, "/data", world.offload)
        await home.adopt("cluster", 1, bytes(16))
        await home.start()
        return home, await home.open_log("t", 0, b"i" * 16, settings, world.clock.now())

    async def first(world: ProcessWorld) -> None:
        _, log = await open_it(world)
        while log.segment_count < 4:
            append(log, [("k", "v" * 50)], world.clock.now())
        fill(sim)

    async def then(world: ProcessWorld) -> None:
        home, log = await open_it(world)
        assert log.failure is None
        assert isinstance(log.read(0, 1000, log.end_offset), Slice)
        make_room(sim)
        end = log.end_offset
        append(log, [("k", "v")], world.clock.now())
        await log.flush()
        assert log.flushed_offset == end + 1
        await home.close()

    async def play() -> None:
        process = sim.host("broker").start(first)
        await process.task
        process.kill()
        await sim.host("broker").start(then).task

    sim.run(play())


# ---- devices that fail ----


def test_a_node_with_every_directory_offline_ends_and_says_why() -> None:
    sim = SimWorld(1)

    async def main(world: ProcessWorld) -> None:
        node = Node(node_settings(log_dirs="/one,/two", metadata_log_dir="/metadata"), world)
        await node.start()
        await create(node, "old", 2)
        watching = asyncio.ensure_future(node.wait_stopped())
        one, two = node.replicas.dirs
        one._fail("its device is gone")
        await asyncio.sleep(60)
        assert not watching.done(), "there is another directory"
        two._fail("so is this")
        with pytest.raises(StorageLost, match=r"every log directory is offline.*/two: so is this"):
            await asyncio.wait_for(watching, 10)
        await node.stop()

    async def play() -> None:
        await sim.host("broker").start(main).task

    sim.run(play())


# ---- the reserve of the metadata log ----


async def configure(node: Node, value: int) -> ErrorCode:
    """A change of the metadata that needs no room for partitions."""
    entry = AlterConfigsRequestAlterableConfig(name="retention.ms", value=str(value))
    topic = AlterConfigsRequestAlterConfigsResource(
        resource_type=2, resource_name="old", configs=[entry]
    )
    request = AlterConfigsRequest(resources=[topic], validate_only=False)
    try:
        answer = await node.controller.call(request)
    except KafkaError as error:
        return error.code
    return ErrorCode(answer.responses[0].error_code)


def kinds(node: Node) -> list[EventKind]:
    return [event.kind for event in node.events.since()]


def test_metadata_is_written_on_a_device_that_clients_have_filled() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        reserve = node.metadata.quorum.reserve
        await create(node, "old")
        assert reserve.left == 1 << 18
        fill(sim)
        for value in range(500):
            assert await configure(node, value) is ErrorCode.NONE
            with pytest.raises(NoRoom):
                append(node.replicas.find("old", 0).log, [("k", "v" * 9000)], world.clock.now())
        assert 0 < reserve.left < 1 << 18
        assert kinds(node).count(EventKind.METADATA_RESERVE_USED) == 1
        make_room(sim)
        async with asyncio.timeout(60):
            while not reserve.whole:  # noqa: ASYNC110 (of the device)
                await asyncio.sleep(1)
        assert kinds(node).count(EventKind.METADATA_RESERVE_RESTORED) == 1
        assert world.disk.size("/data/__cluster_metadata-0/reserve") == 1 << 18

    with_a_node(story, reserves=True, scriba_metadata_reserve_bytes=str(1 << 18))


def test_a_reserve_that_is_used_up_refuses_changes_and_ends_nothing() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        await create(node, "old")
        fill(sim)
        codes = [await configure(node, value) for value in range(400)]
        assert codes[0] is ErrorCode.NONE
        assert codes[-1] is ErrorCode.KAFKA_STORAGE_ERROR
        assert node.metadata.quorum.reserve.left == 0
        assert EventKind.WRITE_REFUSED in kinds(node)
        make_room(sim)
        assert await configure(node, 7) is ErrorCode.NONE

    with_a_node(story, reserves=True, scriba_metadata_reserve_bytes=str(1 << 14))


def test_without_a_reserve_changes_are_refused_at_once() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        await create(node, "old")
        fill(sim)
        assert await configure(node, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        make_room(sim)

    with_a_node(story, reserves=True, scriba_metadata_reserve_bytes="0")


def test_a_device_that_refuses_for_another_reason_gets_nothing_of_the_reserve() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        reserve = node.metadata.quorum.reserve
        assert not reserve.give(100)
        assert reserve.whole
        fill(sim)
        assert reserve.give(100)
        make_room(sim)

    with_a_node(story, reserves=True)


def test_a_write_that_is_too_large_for_the_reserve_leaves_it_to_others() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        reserve = node.metadata.quorum.reserve
        await create(node, "old")
        fill(sim)
        assert not reserve.give(reserve.size + 1)
        assert reserve.whole
        assert await configure(node, 7) is ErrorCode.NONE
        make_room(sim)

    with_a_node(story, reserves=True, scriba_metadata_reserve_bytes=str(1 << 16))


def test_what_is_given_while_the_reserve_is_taken_again_is_known() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        reserve = node.metadata.quorum.reserve
        await create(node, "old")
        fill(sim)
        assert reserve.give(100)
        make_room(sim)
        allocate = world.sim_disk.allocate

        async def meanwhile(path: str, size: int) -> None:
            await allocate(path, size)
            fill(sim)
            assert reserve.give(reserve.left)
            make_room(sim)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(world.sim_disk, "allocate", meanwhile)
            assert await reserve.take(), "it is to be tried again"
        path = "/data/__cluster_metadata-0/reserve"
        assert reserve.left == (world.disk.size(path) if world.disk.exists(path) else 0)
        assert EventKind.METADATA_RESERVE_RESTORED not in kinds(node)
        assert not await reserve.take()
        assert world.disk.size(path) == reserve.left == reserve.size

    with_a_node(story, reserves=True, scriba_metadata_reserve_bytes=str(1 << 14))


def test_what_is_written_beside_the_metadata_log_gets_its_room_at_once() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, node: Node) -> None:
        store = node.metadata.quorum.log
        await create(node, "old")
        fill(sim)
        store.epochs.dirty = True
        began = world.clock.mono_ms()
        await store.sync()
        assert not store.epochs.dirty
        assert world.clock.mono_ms() - began < 100, "it waited for somebody else to make room"
        make_room(sim)

    with_a_node(story, reserves=True)
