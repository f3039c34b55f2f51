"""The cleaner of a node: which logs it takes on, how fast, and what stops it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.jobs.compaction import LogCleaner, Throttle
from scriba.broker.jobs.schedule import cleaning_pass, retention_pass
from scriba.broker.node import Node
from scriba.broker.partitions.partition import Partition
from scriba.events import EventKind
from scriba.records.batch import Record, encode_batch
from scriba.storage.directory.names import PartitionName
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import admin, produce
from tests.unit.broker.stored_records import stored_records

InANode = Callable[..., None]
HOUR_MS = 3_600_000
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0.3",
}
QUIET = {"log_cleaner_backoff_ms": 100 * HOUR_MS}
"""Only the passes that a test asks for."""


async def create(client: Peer, topic: str, **more: str) -> None:
    settings = COMPACTED | {key.replace("_", "."): value for key, value in more.items()}
    wanted = admin.CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=1,
        configs=[
            admin.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()
        ],
    )
    await client.send(admin.CreateTopicsRequest(topics=[wanted]), 7, admin.CreateTopicsResponse)


async def delete(client: Peer, topic: str) -> None:
    request = admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name=topic)])
    await client.send(request, 6, admin.DeleteTopicsResponse)


async def fill(client: Peer, world: ProcessWorld, topic: str, keys: int = 2) -> None:
    """Twelve records of 90 bytes, so several segments."""
    for n in range(12):
        record = Record(0, world.clock.wall_ms(), b"k%d" % (n % keys), b"%d" % n * 45, ())
        data = produce.PartitionProduceData(index=0, records=encode_batch([record]))
        part = produce.TopicProduceData(name=topic, partition_data=[data])
        request = produce.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[part])
        answer = await client.send(request, 9, produce.ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0


async def offsets(partition: Partition) -> list[int]:
    return [record.offset for record in await stored_records(partition)]


COMPACTION = [
    EventKind.COMPACTION_DONE,
    EventKind.COMPACTION_STARVED,
    EventKind.COMPACTION_STALE,
    EventKind.COMPACTION_PUT_OFF,
    EventKind.PARTITION_UNCLEANABLE,
]


def events(node: Node, *kinds: EventKind) -> list[tuple[str, str]]:
    return [(event.about, event.text) for event in node.events.since() if event.kind in kinds]


def test_a_pass_compacts_what_is_due_and_writes_down_how_far(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await create(client, "plain", cleanup_policy="delete")
        for topic in ("t", "plain"):
            await fill(client, world, topic)
        await cleaning_pass(node, world.clock.now())
        partition = node.replicas.find("t", 0)
        sealed = partition.log.sealed_offset
        left = await offsets(partition)
        assert [offset for offset in left if offset < sealed] == [sealed - 2, sealed - 1]
        assert left[-1] == 11
        assert len(await offsets(node.replicas.find("plain", 0))) == 12
        checkpoint = world.disk.read("/data/cleaner-offset-checkpoint").decode()
        assert checkpoint == f"0\n1\nt 0 {sealed}\n"
        assert node.counters.compactions == 1
        [(about, text)] = events(node, *COMPACTION)
        assert (about, f"up to offset {sealed} " in text) == ("t-0", True)
        await cleaning_pass(node, world.clock.now())
        assert node.counters.compactions == 1

    in_a_node(script, **QUIET)


def test_damage_sets_one_partition_aside_and_the_others_are_compacted(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        for topic in ("bad", "good"):
            await create(client, topic)
            await fill(client, world, topic)
        file = world.disk.open("/data/bad-0/00000000000000000000.log")
        file.pwrite(b"?", 100)
        await cleaning_pass(node, world.clock.now())
        await cleaning_pass(node, world.clock.now())
        assert len(await offsets(node.replicas.find("good", 0))) < 6
        [text] = [text for about, text in events(node, *COMPACTION) if about == "bad-0"]
        assert "uncleanable" in text
        assert "00000000000000000000.log is damaged at position 0" in text
        assert node.log_cleaner.gauges.uncleanable_partitions_count == 1
        assert node.log_cleaner.gauges.uncleanable_bytes > 1000
        assert node.counters.failed_compactions == 1
        names = world.disk.list("/data/bad-0")
        assert not [name for name in names if name.endswith(".cleaned")]
        await delete(client, "bad")
        await cleaning_pass(node, world.clock.now())
        assert node.log_cleaner.gauges.uncleanable_partitions_count == 0

    in_a_node(script, **QUIET)


def test_a_topic_deleted_meanwhile_ends_its_compaction(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t")
        cleaning = asyncio.create_task(cleaning_pass(node, world.clock.now()))
        await delete(client, "t")
        assert node.log_cleaner.gauges.in_progress == 1
        await cleaning
        assert node.counters.compactions == 0
        [(about, text)] = events(node, *COMPACTION)
        assert (about, "given up" in text) == ("t-0", True)

    in_a_node(script, **QUIET, log_cleaner_io_max_bytes_per_second=100)


def test_a_compaction_that_ends_after_its_topic_says_nothing_of_the_one_made_anew(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t")
        one_pass = LogCleaner._pass

        async def meanwhile(cleaner: LogCleaner, *given: Any) -> Any:
            done = await one_pass(cleaner, *given)
            await delete(client, "t")
            await create(client, "t")
            await node.replicas.settled()
            return done

        monkeypatch.setattr(LogCleaner, "_pass", meanwhile)
        await cleaning_pass(node, world.clock.now())
        (directory,) = node.replicas.dirs
        assert PartitionName("t", 0) in directory.logs
        assert PartitionName("t", 0) not in directory.compacted

    in_a_node(script, **QUIET)


def test_a_full_disk_only_puts_compaction_off(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t", keys=12)
        await fill(client, world, "t", keys=12)
        volume = world.sim_disk.volume
        volume.faults.capacity = volume.used
        await cleaning_pass(node, world.clock.now())
        [(about, text)] = events(node, *COMPACTION)
        assert (about, "put off" in text) == ("t-0", True)
        assert len(await offsets(node.replicas.find("t", 0))) == 24
        volume.faults.capacity = 1 << 40
        await cleaning_pass(node, world.clock.now())
        assert node.counters.compactions == 1
        assert node.replicas.find("t", 0).log.failure is None

    in_a_node(script, **QUIET)


def test_compact_and_delete_does_both(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t", cleanup_policy="compact,delete", retention_ms=str(HOUR_MS))
        await fill(client, world, "t")
        await cleaning_pass(node, world.clock.now())
        partition = node.replicas.find("t", 0)
        assert len(await offsets(partition)) < 6
        await asyncio.sleep(2 * HOUR_MS / 1000)
        await retention_pass(node, world.clock.now())
        assert partition.log.start_offset == partition.log.end_offset == 12

    in_a_node(script, **QUIET)


def test_a_clock_in_doubt_makes_compaction_wait(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t")
        now = world.clock.now()
        await cleaning_pass(node, now._replace(wall_ms=now.wall_ms + 1000 * HOUR_MS))
        assert node.counters.compactions == 0
        assert events(node, EventKind.CLOCK_IN_DOUBT)
        await cleaning_pass(node, world.clock.now())
        assert node.counters.compactions == 1

    in_a_node(script, **QUIET)


def test_compaction_keeps_to_its_share_of_the_disk(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t")
        started = world.clock.mono_ms()
        await cleaning_pass(node, world.clock.now())
        moved = node.counters.compaction_bytes_read + node.counters.compaction_bytes_written
        assert moved > 1000
        assert world.clock.mono_ms() - started >= moved * 1000 // 100 - 1

    in_a_node(script, **QUIET, log_cleaner_io_max_bytes_per_second=100)


def test_a_node_that_is_told_not_to_compacts_nothing(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t")
        await cleaning_pass(node, world.clock.now())
        assert len(await offsets(node.replicas.find("t", 0))) == 12

    in_a_node(script, **QUIET, log_cleaner_enable="false")


@pytest.mark.parametrize("rate", [10.0, 1000.0])
def test_who_moves_more_than_allowed_waits_for_the_rest(rate: float) -> None:
    class Still:
        def mono_ms(self) -> int:
            return 5000

    throttle = Throttle(Still())  # type: ignore[arg-type]
    assert throttle.pause_ms(100, rate) == pytest.approx(100_000 / rate)
    assert throttle.pause_ms(50, rate) == pytest.approx(150_000 / rate)


@pytest.mark.parametrize("shortened", ["by retention", "by its leader"])
def test_a_log_that_is_shortened_while_a_worker_reads_it_stays_cleanable(
    in_a_node: InANode, shortened: str
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t", cleanup_policy="compact,delete")
        await fill(client, world, "t")
        partition = node.replicas.find("t", 0)
        (directory,) = node.replicas.dirs
        cleaning = asyncio.create_task(cleaning_pass(node, world.clock.now()))
        while not node.log_cleaner.gauges.in_progress:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(5)
        if shortened == "by retention":
            partition.move_start(7)
            await retention_pass(node, world.clock.now())
        else:
            await directory.truncate(partition.log, 2, world.clock.now())
        await cleaning
        assert not node.log_cleaner.uncleanable
        [(about, text)] = events(node, *COMPACTION)
        assert (about, text) == ("t-0", "given up: the log has changed meanwhile")
        await fill(client, world, "t")
        await cleaning_pass(node, world.clock.now())
        assert node.counters.compactions == 1

    in_a_node(script, **QUIET, log_cleaner_io_max_bytes_per_second=100)


@pytest.mark.parametrize("truncation", ["done", "under way"])
def test_a_compaction_that_ends_beside_a_truncation_leaves_its_checkpoint_lowered(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, truncation: str
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t")
        partition = node.replicas.find("t", 0)
        (directory,) = node.replicas.dirs
        one_pass = LogCleaner._pass

        async def meanwhile(cleaner: LogCleaner, *given: Any) -> Any:
            done = await one_pass(cleaner, *given)
            if truncation == "done":
                await directory.truncate(partition.log, 1, world.clock.now())
            else:
                monkeypatch.setattr(node.replicas.fetchers, "is_truncating", lambda _: True)
            return done

        monkeypatch.setattr(LogCleaner, "_pass", meanwhile)
        await cleaning_pass(node, world.clock.now())
        assert directory.compacted.get(PartitionName("t", 0), 0) <= 1

    in_a_node(script, **QUIET)


def test_a_log_that_was_truncated_while_it_waited_for_its_turn_is_looked_at_again(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await create(client, "t")
        await fill(client, world, "t")
        partition = node.replicas.find("t", 0)
        (directory,) = node.replicas.dirs
        work_off = LogCleaner._work_off

        async def later(cleaner: LogCleaner, *given: Any) -> None:
            await directory.truncate(partition.log, 4, world.clock.now())
            await work_off(cleaner, *given)

        monkeypatch.setattr(LogCleaner, "_work_off", later)
        await cleaning_pass(node, world.clock.now())
        assert directory.compacted.get(PartitionName("t", 0), 0) <= partition.log.end_offset
        assert node.counters.compactions == 0

    in_a_node(script, **QUIET)
