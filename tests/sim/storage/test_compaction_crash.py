"""Compaction on the simulated disk, ended by a crash after each of its disk operations in turn.

Whatever the moment, and whatever the disk lost: the log opens, says what it said, nothing that
compaction had removed for good comes back to life, and compaction goes on from there.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.outcome import at_once
from scriba.records.batch import (
    EndTxnMarker,
    Record,
    decode_records,
    end_txn_batch,
    read_header,
    walk,
)
from scriba.records.compression import Codec
from scriba.runtime.rng import SeededRng
from scriba.settings import TopicSettings
from scriba.storage.compaction.cleaner import Finished, Rewritten, clean
from scriba.storage.compaction.log import Compaction, dirt_of, work_on
from scriba.storage.directory.logdir import LogDir
from scriba.storage.directory.names import PartitionName
from scriba.storage.inline import Inline
from scriba.storage.log import Log, NotResident, Slice
from scriba.testing.sim.plays.compacting import MEANS, SEED, append
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.volume import DiskFaults, Volume

TOPIC = TopicSettings(cleanup_policy=("compact",), segment_bytes=1500, index_interval_bytes=50)
NAME = PartitionName("t", 0)
START = Instant(1000, 1_700_000_000_000)
ENOUGH = 1000


class Crash(BaseException):
    """The process is gone. Not an error that anybody handles."""


class Machine:
    """A disk, a process on it, and a fuse."""

    def __init__(self, seed: int) -> None:
        faults = DiskFaults(sync_ms=(0, 0))
        self.volume = Volume(SeededRng(seed), faults, self._count)
        self.disk = SimDisk(self.volume)
        self.now = START
        self.fuse = -1
        """Disk operations until the crash; negative for none."""

    def _count(self, *event: object) -> None:
        if self.fuse > 0:
            self.fuse -= 1
            if self.fuse == 0:
                self.disk.die()
                raise Crash

    async def open(self) -> tuple[LogDir, Log]:
        home = LogDir.open(self.disk, "/data", Inline())
        await home.adopt("cluster", 1, bytes(16))
        await home.start()
        return home, await home.open_log("t", 0, b"i" * 16, TOPIC, self.now)

    def restart(self, power_cut: bool) -> None:
        self.fuse = -1
        self.disk.die()
        if power_cut:
            self.volume.power_cut()
        self.disk = SimDisk(self.volume)


async def fill(log: Log, now: Instant) -> None:
    """Several segments: rewritten keys, a tombstone, transactions, a producer with a sequence."""
    for turn in range(3):
        for n in range(6):
            append(log, [(f"k{n}", f"{turn}-{n}" * 8)], now, Codec(turn % 2))
    append(log, [("k1", None)], now)
    txn: dict[str, Any] = {"producer_epoch": 0, "transactional": True}
    for producer, commit in ((5, True), (6, False)):
        append(log, [("k2", f"txn-{producer}")], now, producer_id=producer, base_sequence=0, **txn)
        marker = end_txn_batch(producer, 0, EndTxnMarker(commit, 0), now.wall_ms)
        log.append(memoryview(marker), read_header(marker), 0, now)
    for sequence in range(3):
        append(log, [("k3", f"seq-{sequence}")], now, producer_id=9, producer_epoch=1,
               base_sequence=sequence)  # fmt: skip
    append(log, [("k4", "last" * 20)], now)
    log.roll(now)
    append(log, [("k0", "active")], now)
    await log.flush()


async def compact(machine: Machine, home: LogDir, log: Log) -> None:
    """What the broker does for a log that is due."""
    stable = log.last_stable_offset(log.end_offset)
    dirt = await dirt_of(log, stable, home.compacted.get(NAME), machine.now)
    generation = log.compaction.generation
    bounds = (dirt.first_dirty, dirt.first_uncleanable)
    work = at_once(work_on(log, *bounds, MEANS, SEED, machine.now))
    for step in clean(machine.disk, work):
        if isinstance(step, Rewritten):
            await home.take_compacted(log, step, generation, machine.now)
        elif isinstance(step, Finished):
            await home.checkpoint_compacted(log, step.end_offset)


async def committed(log: Log) -> list[Record]:
    records: list[Record] = []
    aborted = log.aborted_transactions(0, log.end_offset)
    offset = log.start_offset
    while offset < log.end_offset:
        while isinstance(found := log.read(offset, 1 << 20, log.end_offset), NotResident):
            await found.file.load(found.position, found.size)
        assert isinstance(found, Slice)
        view = memoryview(bytearray(found.size))
        assert found.file.pread_into(view, found.position) == found.size
        for position, header in walk(view):
            offset = header.next_offset
            if not header.is_control and not any(
                txn.producer_id == header.producer_id
                and txn.first_offset <= header.base_offset <= txn.last_offset
                for txn in aborted
            ):
                records += decode_records(view[position : position + header.size])
    return records


def latest(records: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


class Facts:
    """What the log said before, and what must be left when compaction has run to its end."""

    def __init__(self, before: list[Record]) -> None:
        self.before = {record.offset: record for record in before}
        self.latest = latest(before)

    def check(self, log: Log, found: list[Record]) -> None:
        assert log.failure is None
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        assert all(self.before[record.offset] == record for record in found)
        assert latest(found) == self.latest
        assert at_once(log.producers.last_written(log.end_offset))[9][0] == 25
        assert log.last_stable_offset(log.end_offset) == log.end_offset


def check_names(machine: Machine) -> None:
    names = machine.disk.list("/data/t-0")
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    for log in (name for name in names if name.endswith(".log")):
        assert {log.replace(".log", ".index"), log.replace(".log", ".timeindex")} <= set(names)


async def crash(seed: int, fuse: int, power_cut: bool) -> bool:
    """False if compaction was done before the fuse was."""
    machine = Machine(seed)
    home, log = await machine.open()
    await fill(log, machine.now)
    facts = Facts(await committed(log))
    end_offset = log.end_offset
    machine.fuse = fuse
    try:
        await compact(machine, home, log)
        return False
    except Crash:
        pass
    machine.restart(power_cut)
    home, log = await machine.open()
    assert log.end_offset == end_offset
    facts.check(log, await committed(log))
    check_names(machine)
    await compact(machine, home, log)
    found = await committed(log)
    facts.check(log, found)
    # Two groups of segments may each keep a record of a key that the active segment has again.
    assert len(found) == len({record.key for record in found}) + 1
    append(log, [("k3", "next")], machine.now, producer_id=9, producer_epoch=1, base_sequence=3)
    await home.close()
    machine.restart(power_cut=True)
    home, log = await machine.open()
    assert log.failure is None
    assert (await committed(log))[:-1] == found
    return True


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_after_any_disk_operation_of_a_compaction(seed: int, power_cut: bool) -> None:
    async def every_moment() -> int:
        fuse = 1
        while fuse < ENOUGH and await crash(seed, fuse, power_cut):
            fuse += 1
        return fuse

    moments = asyncio.run(every_moment())
    assert 40 < moments < ENOUGH


async def no_sync(self: Compaction, rewritten: Rewritten) -> None:
    """Forgets that what was written is not yet on the device."""


def sources_first(self: Compaction, rewritten: Rewritten, generation: int, due_ms: int) -> None:
    """Takes the old segments away before the new one has a name that a start believes."""
    replaced = self._replaced(rewritten, generation)
    for segment in replaced:
        for suffix in (".log", ".index", ".timeindex"):
            self._disk.rename(segment.path(suffix), segment.path(suffix) + ".deleted")
    SWAP(self, rewritten, generation, due_ms)


SWAP = Compaction.swap


@pytest.mark.parametrize(("name", "broken"), [("sync", no_sync), ("swap", sources_first)])
def test_a_careless_swap_is_found_out(
    name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compaction, name, broken)

    async def every_moment() -> None:
        for seed in range(5):
            fuse = 1
            while fuse < ENOUGH and await crash(seed, fuse, power_cut=True):
                fuse += 1

    with pytest.raises((AssertionError, KafkaError)):
        asyncio.run(every_moment())
