"""Replicas move between directories of one broker: while clients write, and whatever ends it."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.handlers.admin.replicas import alter_replica_log_dirs
from scriba.broker.node import Node
from scriba.broker.partitions.partition import Partition
from scriba.broker.request import ANONYMOUS, Context
from scriba.cli.cluster.directories import Replica, begin, follow
from scriba.client import Admin, TopicPartition
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.records.batch import Record, encode_batch, read_header
from scriba.runtime.loop import pace
from scriba.storage.directory.names import PartitionName
from scriba.storage.log import Appended
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tests.unit.broker.brokers import PORT, Brokers, play
from tests.unit.broker.directories.moving import (
    BROKER,
    DIRS,
    ONE,
    TWO,
    alter,
    configure,
    elsewhere,
    entries,
    filled,
    home,
    kinds,
    moved_to,
    slow,
    values,
)


async def described(brokers: Brokers, topic: str = "t") -> dict[str, tuple[int, int, bool]]:
    """By directory: size, lag, and whether it is a future replica."""
    peer = await brokers.dial(1)
    answer = await peer.call(DescribeLogDirsRequest(topics=None), 5, DescribeLogDirsResponse)
    peer.close()
    return {
        found.log_dir: (each.partition_size, each.offset_lag, each.is_future_key)
        for found in answer.results
        for told in found.topics
        for each in told.partitions
        if told.name == topic
    }


def told_home(brokers: Brokers, topic: str = "t", broker_id: int = 1) -> str:
    """Where the controller knows the replica."""
    wanted = brokers.image(topic).directory(broker_id)
    return next(d.path for d in brokers.nodes[broker_id].replicas.dirs if d.id == wanted)


def test_a_replica_moves_while_a_client_writes() -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        source = home(brokers)
        target = elsewhere(source)
        assert await alter(brokers, target) is ErrorCode.NONE
        while home(brokers) == source:
            sent.append(b"while it moves")
            assert await brokers.produce(1, "t", sent[-1]) is ErrorCode.NONE
        await moved_to(brokers, target)
        sent.append(b"after")
        assert await brokers.produce(1, "t", sent[-1]) is ErrorCode.NONE
        assert values(brokers.partition(1, "t")) == sent
        await brokers.until(lambda: told_home(brokers) == target)
        assert (await brokers.consume(1, "t", 5)).records
        assert list(await described(brokers)) == [target]
        await brokers.until(lambda: entries(brokers) == [f"{target}/t-0"], seconds=120)
        await brokers.reboot(1)
        assert home(brokers) == target
        assert values(brokers.partition(1, "t")) == sent

    play(script, count=1, **DIRS)


def test_whoever_asked_for_a_move_is_told_how_fast_it_goes_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def script(brokers: Brokers) -> None:
        await filled(brokers)
        await slow(brokers, 200_000)
        wanted = {Replica(1, TopicPartition("t", 0)): elsewhere(home(brokers))}
        async with Admin(bootstrap_servers=f"b1:{PORT}", _ports=brokers.client) as admin:
            await begin(admin, wanted)
            await follow(admin, wanted, asyncio.get_running_loop().time)

    play(script, count=1, **DIRS)
    *told, last = capsys.readouterr().err.splitlines()
    line = r"note: 0 of 1 replica, [\d.]+ .B of [\d.]+ MB, [\d.]+ kB/s, (\d+) s left"
    matched = [found for each in told if (found := re.fullmatch(line, each))]
    assert 0 < len(matched) == len(told)
    left = [int(found[1]) for found in matched]
    assert left == sorted(left, reverse=True)
    assert last.startswith("note: 1 replica moved in ")


def test_a_move_is_seen_held_back_and_ended_by_the_current_directory() -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        source = home(brokers)
        target = elsewhere(source)
        await slow(brokers, 200_000)
        assert await alter(brokers, target) is ErrorCode.NONE
        began = brokers.client.clock.mono_ms()
        await asyncio.sleep(8)
        told = await described(brokers)
        took_s = (brokers.client.clock.mono_ms() - began) / 1000
        assert told[source][1:] == (0, False)
        size, lag, future = told[target]
        assert future
        assert 0 < lag < 30
        assert 0.9 * 200_000 * took_s < size < 1.1 * 200_000 * took_s + 100_000
        (left,) = [each for each in entries(brokers) if each.startswith(target)]
        assert left.endswith("-future")

        assert await alter(brokers, source) is ErrorCode.NONE
        assert list(await described(brokers)) == [source]
        await brokers.until(lambda: entries(brokers) == [f"{source}/t-0"])
        assert EventKind.DIR_MOVE_ENDED in kinds(brokers.nodes[1])
        assert values(brokers.partition(1, "t")) == sent
        await slow(brokers, 1 << 40)
        assert await alter(brokers, target) is ErrorCode.NONE
        await moved_to(brokers, target)
        assert values(brokers.partition(1, "t")) == sent

    play(script, count=1, **DIRS)


@pytest.mark.parametrize("end", ["stop", "kill", "power cut"])
def test_a_restart_in_the_middle_goes_on(end: str) -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers, flush_messages="1")
        source = home(brokers)
        target = elsewhere(source)
        await slow(brokers, 400_000)
        assert await alter(brokers, target) is ErrorCode.NONE
        await asyncio.sleep(4)
        await brokers.reboot(1, end)
        await brokers.until(lambda: home_or_none(brokers) is not None)
        assert home(brokers) == source
        await brokers.until(lambda: len(brokers.nodes[1].replicas.moves) == 1)
        assert values(brokers.partition(1, "t")) == sent
        await slow(brokers, 1 << 40)
        await moved_to(brokers, target)
        assert values(brokers.partition(1, "t")) == sent
        await brokers.until(lambda: entries(brokers) == [f"{target}/t-0"], seconds=120)

    play(script, count=1, **DIRS)


def test_what_cannot_be_moved_is_refused_by_partition() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,))
        await brokers.create("away", (2,))
        long = "n" * 230
        await brokers.create(long, (1,))
        source = home(brokers)
        target = elsewhere(source)
        assert await alter(brokers, source) is ErrorCode.NONE
        assert await alter(brokers, "/data/three") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(brokers, target, "nowhere") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter(brokers, target, "t", 7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter(brokers, target, "away") is ErrorCode.REPLICA_NOT_AVAILABLE
        assert await alter(brokers, target, long) is ErrorCode.INVALID_TOPIC_EXCEPTION
        await configure(brokers, BROKER, "1", cordoned_log_dirs=target)
        await brokers.until(lambda: brokers.nodes[1].settings.cordoned_log_dirs)
        assert await alter(brokers, target) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await configure(brokers, BROKER, "1", cordoned_log_dirs="")
        await brokers.until(lambda: not brokers.nodes[1].settings.cordoned_log_dirs)
        brokers.sim.host("b1").disk_faults.fail_sync = 1.0
        brokers.sim.host("b1").disk_faults.fail_in = TWO
        node = brokers.nodes[1]
        failing = next(each for each in node.replicas.dirs if each.path == TWO)
        await brokers.create("fails", *[(1,)] * 4, configs={"flush.messages": "1"})
        for index in range(4):
            await brokers.produce(1, "fails", b"x", index=index, acks=1, timeout_ms=1000)
        await brokers.until(lambda: failing.offline)
        asked = "t" if home_or_none(brokers) == ONE else "fails"
        assert await alter(brokers, TWO, asked) is ErrorCode.KAFKA_STORAGE_ERROR

    play(script, count=2, **DIRS)


def home_or_none(brokers: Brokers) -> str | None:
    partition = brokers.nodes[1].replicas.get("t", 0)
    found = brokers.nodes[1].replicas.home(partition) if partition is not None else None
    return found.path if found is not None else None


def test_a_replica_to_come_goes_where_it_was_asked_to_go() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,))
        await brokers.create("u", (1,))
        for topic, path in (("t", ONE), ("u", TWO)):
            told = await alter(brokers, path, topic, broker_id=2)
            assert told is ErrorCode.REPLICA_NOT_AVAILABLE
            await brokers.reassign(topic, (2,))
            await brokers.until(lambda topic=topic: brokers.image(topic).replicas == (2,))  # type: ignore[misc]
            assert home(brokers, topic, 2) == path

    play(script, count=2, **DIRS)


# ---- what happens to a partition meanwhile ----


def test_a_follower_moves_and_leads_on_the_way() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1, 2), configs={"segment.bytes": "1048576"})
        sent = [b"%05d" % n + b"." * 100_000 for n in range(30)]
        for value in sent:
            assert await brokers.produce(1, "t", value) is ErrorCode.NONE
        source = home(brokers, broker_id=2)
        target = elsewhere(source)
        await configure(
            brokers, BROKER, "2", replica_alter_log_dirs_io_max_bytes_per_second=500_000
        )
        await brokers.until(
            lambda: (
                brokers.nodes[2].settings.replica_alter_log_dirs_io_max_bytes_per_second == 500_000
            )
        )
        assert await alter(brokers, target, broker_id=2) is ErrorCode.NONE
        await asyncio.sleep(2)
        await brokers.elect("t", 2)
        await brokers.until(lambda: brokers.leads(2, "t"))
        sent.append(b"of the new leader")
        assert await brokers.produce(2, "t", sent[-1]) is ErrorCode.NONE
        assert home(brokers, broker_id=2) == source, "it is still on its way"
        await moved_to(brokers, target, broker_id=2)
        assert brokers.image("t").isr == (1, 2)
        sent.append(b"from the new directory")
        assert await brokers.produce(2, "t", sent[-1]) is ErrorCode.NONE
        for broker_id in (1, 2):
            await brokers.until(
                lambda id_=broker_id: brokers.partition(id_, "t").log.end_offset == len(sent)  # type: ignore[misc]
            )
            assert values(brokers.partition(broker_id, "t")) == sent
        ours, theirs = (brokers.partition(each, "t").log.epochs.entries() for each in (1, 2))
        assert ours == theirs

    play(script, count=2, **DIRS)


def test_what_is_truncated_does_not_come_back_with_the_copy() -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        source = home(brokers)
        target = elsewhere(source)
        await slow(brokers, 1_000_000)
        assert await alter(brokers, target) is ErrorCode.NONE
        await asyncio.sleep(2)
        partition, node = brokers.partition(1, "t"), brokers.nodes[1]
        (move,) = node.replicas.moves.into(next(d for d in node.replicas.dirs if d.path == target))
        assert move.log.end_offset > 12
        # As a new leader would have it; then it writes on, in its own epoch, past that point.
        directory = node.replicas.home(partition)
        assert directory is not None
        await directory.truncate(partition.log, 10, node.world.clock.now())
        del sent[10:]
        for n in range(25):
            sent.append(b"instead %d" % n)
            batch: Any = brokers.produced("t", sent[-1]).topic_data[0].partition_data[0].records
            view = memoryview(bytearray(batch))
            partition.log.append(view, read_header(view), 1, node.world.clock.now())
        await moved_to(brokers, target)
        assert values(partition) == sent
        assert partition.log.epochs.entries() == [(0, 0), (1, 10)]

    play(script, count=1, **DIRS)


def test_what_retention_takes_goes_from_the_copy_as_well() -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        target = elsewhere(home(brokers))
        await slow(brokers, 500_000)
        assert await alter(brokers, target) is ErrorCode.NONE
        await asyncio.sleep(1)
        partition, node = brokers.partition(1, "t"), brokers.nodes[1]
        (move,) = node.replicas.moves.into(next(d for d in node.replicas.dirs if d.path == target))
        assert move.log.end_offset < 15
        partition.move_start(15)  # beyond all that is copied, and within a segment
        await asyncio.sleep(1)
        assert move.log.start_offset >= 15
        partition.move_start(17)
        await slow(brokers, 1 << 40)
        await moved_to(brokers, target)
        assert values(partition) == sent[17:]
        await brokers.reboot(1, "kill")
        assert values(brokers.partition(1, "t")) == sent[17:], "the start was written down"

    play(script, count=1, **DIRS)


def test_compaction_waits_for_a_move_and_goes_on_where_it_was() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create(
            "t", (1,), configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        )
        node, partition = brokers.nodes[1], brokers.partition(1, "t")

        def write(key: bytes, value: bytes) -> None:
            now = node.world.clock.now()
            batch = encode_batch([Record(0, now.wall_ms, key, value)])
            partition.append(memoryview(batch), read_header(batch), now)

        for n in range(20):
            write(b"k%d" % (n % 3), b"%d" % n + b"." * 100_000)
        partition.log.roll(node.world.clock.now())
        await node.log_cleaner.run(node.world.clock.now())
        kept = values(partition)
        assert len(kept) == 3
        target = elsewhere(home(brokers))
        await slow(brokers, 100_000)
        assert await alter(brokers, target) is ErrorCode.NONE
        again = [b"again %d" % n + b"." * 100_000 for n in range(3)]
        for n in range(3):
            write(b"k%d" % n, again[n])
        partition.log.roll(node.world.clock.now())
        done = node.counters.compactions
        await node.log_cleaner.run(node.world.clock.now())
        assert node.counters.compactions == done
        await slow(brokers, 1 << 40)
        await moved_to(brokers, target)
        assert values(partition) == [*kept, *again]
        directory = node.replicas.home(partition)
        assert directory is not None
        assert directory.compacted.get(PartitionName("t", 0)) == 20
        partition.log.roll(node.world.clock.now())
        await node.log_cleaner.run(node.world.clock.now())
        assert node.counters.compactions == done + 1
        assert values(partition) == again

    play(script, count=1, **DIRS)


def test_a_log_of_which_compaction_left_nothing_at_the_end_moves() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,), configs={"cleanup.policy": "compact"})
        node, partition = brokers.nodes[1], brokers.partition(1, "t")
        now = node.world.clock.now()
        batch = encode_batch([Record(0, now.wall_ms, b"k", b"v")])
        partition.append(memoryview(batch), read_header(batch), now)
        partition.log.skip_to(9, now)  # as if offsets 1 to 8 had been compacted away
        partition.refresh()
        target = elsewhere(home(brokers))
        assert await alter(brokers, target) is ErrorCode.NONE
        await moved_to(brokers, target)
        assert partition.log.end_offset == 9
        assert await brokers.produce(1, "t", b"tenth") is not ErrorCode.NONE, "it has no key"
        await brokers.reboot(1, "kill")
        assert brokers.partition(1, "t").log.end_offset == 9

    play(script, count=1, **DIRS)


def test_a_topic_that_is_deleted_takes_its_move_along() -> None:
    async def script(brokers: Brokers) -> None:
        await filled(brokers)
        await slow(brokers, 100_000)
        assert await alter(brokers, elsewhere(home(brokers))) is ErrorCode.NONE
        await asyncio.sleep(1)
        await brokers.nodes[1].metadata.call(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6
        )
        await brokers.until(lambda: not entries(brokers), seconds=120)
        assert not brokers.nodes[1].replicas.moves

    play(script, count=1, **DIRS)


def test_a_full_directory_stalls_a_move_and_nobody_else() -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        source = home(brokers)
        target = elsewhere(source)
        node, faults = brokers.nodes[1], brokers.sim.host("b1").disk_faults
        faults.capacity, faults.full_in = brokers.sim.host("b1").volume.used + 1_000_000, target
        assert await alter(brokers, target) is ErrorCode.NONE
        await brokers.until(lambda: EventKind.DIR_MOVE_STALLED in kinds(node))
        sent.append(b"while it is full")
        assert await brokers.produce(1, "t", sent[-1]) is ErrorCode.NONE
        told = await described(brokers)
        assert told[target][2]
        assert told[target][1] > 0
        assert home(brokers) == source
        faults.full_in = "nowhere"
        await moved_to(brokers, target)
        assert values(brokers.partition(1, "t")) == sent
        assert kinds(node).count(EventKind.DIR_MOVE_STALLED) == 1

    play(script, count=1, **DIRS)


def test_a_target_that_fails_leaves_the_replica_where_it_is() -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers, flush_messages="1")
        source = home(brokers)
        if source == TWO:  # the other one holds the metadata
            assert await alter(brokers, ONE) is ErrorCode.NONE
            await moved_to(brokers, ONE)
        faults, node = brokers.sim.host("b1").disk_faults, brokers.nodes[1]
        await slow(brokers, 500_000)
        assert await alter(brokers, TWO) is ErrorCode.NONE
        await asyncio.sleep(2)
        faults.fail_sync, faults.fail_in = 1.0, TWO
        await slow(brokers, 1 << 40)
        await brokers.until(lambda: EventKind.LOG_DIR_OFFLINE in kinds(node))
        await brokers.until(lambda: not node.replicas.moves)
        sent.append(b"goes on")
        assert await brokers.produce(1, "t", sent[-1]) is ErrorCode.NONE
        assert values(brokers.partition(1, "t")) == sent
        await brokers.until(lambda: told_home(brokers) == ONE)

    play(script, count=1, **DIRS)


def test_what_was_there_is_kept_where_the_new_directory_fails_at_the_switch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        source = home(brokers)
        target = elsewhere(source)
        node, faults = brokers.nodes[1], brokers.sim.host("b1").disk_faults
        take_log = Partition.take_log

        def take_log_and_fail(partition: Partition, store: Any) -> None:
            take_log(partition, store)
            faults.fail_sync, faults.fail_in = 1.0, target

        monkeypatch.setattr(Partition, "take_log", take_log_and_fail)
        assert await alter(brokers, target) is ErrorCode.NONE
        await brokers.until(lambda: EventKind.PARTITION_STRAY in kinds(node))
        disk = node.world.disk
        (kept,) = [each for each in entries(brokers) if each.startswith(source)]
        assert kept.endswith("-stray")
        logs = [name for name in disk.list(kept) if name.endswith(".log")]
        stored = b"".join(disk.read(f"{kept}/{name}") for name in sorted(logs))
        assert all(value in stored for value in sent)

    play(script, count=1, **DIRS)


def test_an_idempotent_producer_is_known_in_the_new_directory() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,))
        node, partition = brokers.nodes[1], brokers.partition(1, "t")

        def write(sequence: int) -> Appended:
            now = node.world.clock.now()
            batch = encode_batch(
                [Record(0, now.wall_ms, None, b"x")],
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
            )
            return partition.append(memoryview(batch), read_header(batch), now)

        write(0)
        write(1)
        partition.move_start(2)  # nothing is left to copy, and what is known of producers counts
        target = elsewhere(home(brokers))
        assert await alter(brokers, target) is ErrorCode.NONE
        await moved_to(brokers, target)
        base_offset, _, _, repeat = write(1)
        assert base_offset == 1
        assert repeat is not None
        assert write(2)[0] == 2

    play(script, count=1, **DIRS)


# ---- ended at every step ----


class Fuse:
    """Ends a broker after so many operations on its disk."""

    def __init__(self, brokers: Brokers, end: str, after: int) -> None:
        self._host = brokers.sim.host("b1")
        self._brokers = brokers
        self._end = end
        self._left = after
        self._note = self._host.volume.note
        self._host.volume.note = self._count
        self.seen: list[tuple[object, ...]] = []

    def _count(self, *event: object) -> None:
        self._note(*event)
        self.seen.append(event)
        self._left -= 1
        if self._left == 0:
            self.remove()
            if self._end == "kill":
                self._brokers.kill(1)
            else:
                self._brokers.power_cut(1)

    def remove(self) -> None:
        self._host.volume.note = self._note


async def write_on(brokers: Brokers, sent: list[bytes]) -> None:
    """Writes as long as somebody answers; what was acknowledged is in `sent`, and one more."""
    for n in range(1_000):
        sent.append(b"more %d" % n)
        if await brokers.produce(1, "t", sent[-1]) is not ErrorCode.NONE:
            return


def ended_at(step: int, end: str) -> int:
    """How many operations there were up to the end of the move, or of the broker."""
    seen = 0

    async def script(brokers: Brokers) -> None:
        nonlocal seen
        sent = await filled(brokers, 3, flush_messages="1", file_delete_delay_ms="0")
        source = home(brokers)
        target = elsewhere(source)
        node = brokers.nodes[1]
        fuse = Fuse(brokers, end, step)
        writing = asyncio.create_task(write_on(brokers, sent))
        await asyncio.wait(
            [
                asyncio.create_task(alter(brokers, target)),
                asyncio.create_task(
                    brokers.until(
                        lambda: (
                            not brokers.processes[1].alive or EventKind.DIR_MOVE_DONE in kinds(node)
                        )
                    )
                ),
            ],
            timeout=60,
        )
        seen = len(fuse.seen)
        fuse.remove()
        writing.cancel()
        await asyncio.wait([writing])
        if not brokers.processes[1].alive:
            await brokers.boot(1)
        else:
            await brokers.reboot(1, end)
        await brokers.until(lambda: home_or_none(brokers) is not None)
        found = values(brokers.partition(1, "t"))
        # The last one was on its way when the broker ended.
        assert found[: len(sent) - 1] == sent[:-1], f"{fuse.seen[-1]} was the last thing done"
        assert await alter(brokers, target) is ErrorCode.NONE
        await brokers.until(lambda: home(brokers) == target)
        await brokers.until(lambda: entries(brokers) == [f"{target}/t-0"], seconds=120)
        await brokers.until(lambda: told_home(brokers) == target)
        assert values(brokers.partition(1, "t")) == found
        assert not brokers.nodes[1].replicas.moves

    play(script, count=1, seed=step, **DIRS)
    return seen


@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_nothing_is_lost_at_whichever_step_a_move_ends(end: str) -> None:
    steps = ended_at(1 << 30, end)
    assert steps > 30
    for step in range(1, steps + 1):
        ended_at(step, end)


def test_a_move_back_waits_until_the_one_before_has_removed_the_old_replica() -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers, count=5)
        source, node = home(brokers), brokers.nodes[1]
        target = elsewhere(source)
        faults = brokers.sim.host("b1").disk_faults
        assert await alter(brokers, target) is ErrorCode.NONE
        while home(brokers) != target:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        # There is no room any more for what is left to be written there.
        faults.capacity, faults.full_in = brokers.sim.host("b1").volume.used, target
        await asyncio.sleep(3)
        assert entries(brokers) == [f"{ONE}/t-0", f"{TWO}/t-0"]
        assert await alter(brokers, source) is ErrorCode.NONE
        await asyncio.sleep(30)
        assert not [each.failure for each in node.replicas.dirs if each.failure]
        assert home(brokers) == target
        assert len(node.replicas.moves) == 1
        faults.full_in = "nowhere"
        await brokers.until(lambda: home(brokers) == source)
        await brokers.until(lambda: entries(brokers) == [f"{source}/t-0"], seconds=120)
        assert values(brokers.partition(1, "t")) == sent
        await brokers.reboot(1, "kill")
        assert values(brokers.partition(1, "t")) == sent

    dirs: dict[str, Any] = {"metadata_log_dir": "/data/meta", "log_dirs": f"{ONE},{TWO}"}
    play(script, count=1, **dirs)


def test_many_replicas_are_told_of_in_slices(
    in_a_node: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLICE_MS", 0)
    turns = 0
    next_turn = pace.next_turn

    async def count() -> None:
        nonlocal turns
        turns += 1
        await next_turn()

    monkeypatch.setattr(pace, "next_turn", count)

    async def play(node: Node, world: ProcessWorld) -> None:
        nonlocal turns
        many = 10 * pace.BETWEEN_LOOKS
        topic = AlterReplicaLogDirTopic(name="none", partitions=list(range(many)))
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="no", topics=[topic])])
        ctx = Context(ANONYMOUS, "", None, "", ApiKey.ALTER_REPLICA_LOG_DIRS, 2, 0)
        turns = 0
        told = await alter_replica_log_dirs(node, ctx, request).awaitable
        assert isinstance(told, AlterReplicaLogDirsResponse)
        assert turns >= 2 * 10, "it is read and told of in slices"
        (answer,) = told.results
        assert [each.partition_index for each in answer.partitions] == list(range(many))
        assert {each.error_code for each in answer.partitions} == {ErrorCode.LOG_DIR_NOT_FOUND}

    in_a_node(play)
