"""The log against a list of batches: whatever happens to it, it is a prefix of what was appended.

The disk is simulated: a power cut loses, tears and reorders whatever was not synced, names of
files included. What was flushed must be there afterwards, byte for byte.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from scriba.instant import Instant
from scriba.records.batch import (
    EndTxnMarker,
    Record,
    encode_batch,
    end_txn_batch,
    read_end_txn_marker,
    read_header,
    walk,
)
from scriba.runtime.rng import SeededRng
from scriba.settings import TopicSettings
from scriba.storage.log import EMPTY, Log, NotResident
from scriba.storage.producers.state import Producers
from scriba.testing.sim.world.disk import DiskFaults, SimDisk, Volume
from tests.typed import present

PRODUCERS = 3


@dataclass
class Model:
    seed: int
    batches: list[bytes] = field(default_factory=list)
    """What was appended, in order, as it must be in the log."""
    dropped: int = 0
    """Offsets below this may be gone."""
    checkpoint: int | None = None
    """The recovery point that is on disk."""

    def __post_init__(self) -> None:
        self.rng = SeededRng(self.seed)
        faults = DiskFaults(sync_ms=(0, 0), cold=0.1)
        self.volume = Volume(self.rng.fork("disk"), faults, lambda *_: None)
        self.settings = TopicSettings(
            segment_bytes=1500 + self.rng.below(4000),
            index_interval_bytes=self.rng.below(600),
            file_delete_delay_ms=0,
        )
        self.now = Instant(0, 1_700_000_000_000)
        self.epoch = 0

    async def start(self) -> None:
        """The log directory itself is there for good: that is its owner's business."""
        disk = SimDisk(self.volume)
        disk.mkdir("/data")
        await disk.sync_dir("/")
        self.open(clean=False)

    def open(self, clean: bool) -> None:
        self.log = Log.open(
            SimDisk(self.volume),
            "/data/t-0",
            "t",
            0,
            None,
            self.settings,
            self.now,
            recovery_point=self.checkpoint,
            log_start=0,
            clean=clean,
        )

    # ---- what is done to it ----

    def append(self) -> None:
        rng, log = self.rng, self.log
        producer = rng.below(PRODUCERS + 1)
        self.now = Instant(self.now.mono_ms + 7, self.now.wall_ms + 7)
        count = 1 + rng.below(4)
        records = [Record(timestamp=self.now.wall_ms, value=rng.bytes(rng.below(200)))] * count
        if producer == PRODUCERS:
            data = encode_batch(records)
        else:
            data = self._produced(producer, records)
        header = read_header(data)
        *_, repeat = log.append(memoryview(data), header, self.epoch, self.now)
        assert repeat is None
        self.batches.append(bytes(data))

    def _produced(self, producer: int, records: list[Record]) -> bytearray:
        active = {each.producer_id: each for each in self.log.active_producers()}
        known = active.get(producer)
        open_txn = known is not None and known.txn_start_offset >= 0
        if open_txn and self.rng.chance(0.4):
            marker = EndTxnMarker(self.rng.chance(0.5), 0)
            return end_txn_batch(producer, 0, marker, self.now.wall_ms)
        return encode_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=known.last_sequence + 1 if known else 0,
            transactional=open_txn or self.rng.chance(0.3),
        )

    async def flush(self) -> None:
        await self.log.flush()
        if self.rng.chance(0.6):
            self.checkpoint = self.log.flushed_offset

    async def shorten(self) -> None:
        span = self.log.end_offset - self.log.start_offset
        at = self.log.start_offset + self.rng.below(span + 1)
        if self.rng.chance(0.5):
            await self.log.flush()
            self.log.delete_records_to(min(at, self.log.flushed_offset))
            self.dropped = max(self.dropped, self.log.start_offset)
            await self.log.truncation.retention(self.now, self.log.flushed_offset, by_age=False)
        else:
            self.checkpoint = min(self.checkpoint or 0, self.log.segment_start(at))
            self.log.truncation.truncate_to(at, self.now)
            await self.log.sync()
            self._keep(self.log.end_offset)
            self.epoch += 1

    async def restart(self) -> None:
        await self.log.close()
        self.checkpoint = self.log.flushed_offset
        self.open(clean=True)

    async def crash(self, power: bool) -> None:
        flushed, end = self.log.flushed_offset, self.log.end_offset
        if power:
            self.volume.power_cut()
        self.open(clean=False)
        assert self.log.failure is None
        assert flushed <= self.log.end_offset <= end
        if not power:
            assert self.log.end_offset == end
        if self.log.cut_tail:
            await self.log.sync()
        self._keep(self.log.end_offset)
        self.epoch += 1

    def _keep(self, end_offset: int) -> None:
        self.batches = [
            batch for batch in self.batches if read_header(batch).next_offset <= end_offset
        ]

    # ---- what must hold ----

    async def check(self) -> None:
        log = self.log
        assert log.start_offset <= max(self.dropped, 0)
        expected = [b for b in self.batches if read_header(b).next_offset > self.dropped]
        if self.batches:
            assert read_header(self.batches[-1]).next_offset == log.end_offset
        data = b"".join([chunk async for chunk in self._read_from(self.dropped)])
        assert data == b"".join(expected)
        producers = Producers()
        for batch in self.batches:
            header = read_header(batch)
            if header.producer_id >= 0:
                marker = EndTxnMarker(True, 0) if header.is_control else None
                producers.replay(header, marker, 0)
        aborted = self._aborted()
        found = [each[:3] for each in log.aborted_transactions(self.dropped, log.end_offset)]
        assert found == [each for each in aborted if each[2] >= self.dropped]
        known = {each.producer_id: each for each in producers.active()}
        for each in log.active_producers():
            assert each == known[each.producer_id]
        stable = producers.last_stable_offset(log.end_offset)
        assert log.last_stable_offset(log.end_offset) == max(stable, log.start_offset)

    def _aborted(self) -> list[tuple[int, int, int]]:
        """(producer, first offset, marker's offset) of every aborted transaction."""
        first: dict[int, int] = {}
        aborted = []
        for batch in self.batches:
            header = read_header(batch)
            if header.is_control:
                marker = present(read_end_txn_marker(batch))
                if header.producer_id in first and not marker.commit:
                    line = (header.producer_id, first[header.producer_id], header.base_offset)
                    aborted.append(line)
                first.pop(header.producer_id, None)
            elif header.is_transactional:
                first.setdefault(header.producer_id, header.base_offset)
        return aborted

    async def _read_from(self, offset: int) -> AsyncIterator[bytes]:
        while offset < self.log.end_offset:
            limit = 1 + self.rng.below(2000)
            while isinstance(
                found := self.log.read(offset, limit, self.log.end_offset), NotResident
            ):
                await found.file.load(found.position, found.size)
            assert found is not EMPTY
            view = memoryview(bytearray(found.size))
            found.file.pread_into(view, found.position)
            for position, header in walk(view):
                yield bytes(view[position : position + header.size])
                offset = header.next_offset

    async def spot_check(self) -> None:
        if not self.batches:
            return
        batch = self.batches[self.rng.below(len(self.batches))]
        header = read_header(batch)
        offset = header.base_offset + self.rng.below(header.count)
        if offset < self.log.start_offset:
            return
        async for chunk in self._read_from(offset):
            assert chunk == batch
            break
        found = await self.log.offset_for_timestamp(header.max_timestamp)
        assert found is not None
        assert found.timestamp >= header.max_timestamp


async def live(model: Model, steps: int) -> None:
    await model.start()
    for _ in range(steps):
        turn = model.rng.below(100)
        if turn < 70:
            model.append()
        elif turn < 80:
            await model.flush()
        elif turn < 88:
            await model.spot_check()
        elif turn < 91:
            model.log.roll(model.now)
        elif turn < 94:
            await model.shorten()
        elif turn < 96:
            await model.restart()
            await model.check()
        else:
            await model.crash(power=turn > 97)
            await model.check()
    await model.check()


@pytest.mark.parametrize("seed", range(40))
def test_the_log_is_a_prefix_of_what_was_appended(seed: int) -> None:
    asyncio.run(live(Model(seed), 250))
