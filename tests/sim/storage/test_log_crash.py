"""A log on the simulated disk, seed by seed: killed, cut off from power, opened again.

What comes back is always a prefix of what was written, at least as long as what was promised, and
its producers are remembered as of its end.
"""

import asyncio
from dataclasses import dataclass, field

import pytest

from scriba.errors import KafkaError
from scriba.records.batch import Record, decode_records, encode_batch, read_header, walk
from scriba.runtime.rng import SeededRng
from scriba.settings import NodeSettings, TopicSettings
from scriba.storage.directory.logdir import LogDir
from scriba.storage.log import EMPTY, Log, NotResident
from scriba.testing.sim.world.synced import synced_records
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

PRODUCERS = 3


@dataclass
class Story:
    """What was written, by offset, and how much of it must still be there."""

    rng: SeededRng
    settings: TopicSettings
    written: list[bytes] = field(default_factory=list)
    batches: list[tuple[int, bytearray]] = field(default_factory=list)
    """(base offset, batch) of each append."""
    flushed: int = 0
    """What `flush` has promised for good."""
    must: int = 0
    """What the end of the last process may not have taken away."""
    is_open: bool = False
    openings: int = 0
    appended: int = 0

    def opened(self, end_offset: int) -> None:
        """The log was found to end here."""
        assert self.must <= end_offset <= len(self.written)
        del self.written[end_offset:]
        self.batches = [each for each in self.batches if each[0] < end_offset]
        self.is_open = True
        self.openings += 1

    def killed(self) -> None:
        if self.is_open:
            self.must = len(self.written)
        self.is_open = False

    def lost_power(self, synced: list[tuple[int, bytes]]) -> None:
        assert [value for _, value in synced] == self.written[: len(synced)]
        self.must = max(self.flushed, len(synced))
        self.is_open = False

    def sequence(self, producer: int) -> int:
        """The next sequence of a producer, as the batches that are left tell it."""
        for _, batch in reversed(self.batches):
            header = read_header(batch)
            if header.producer_id == producer:
                return header.base_sequence + header.count
        return 0


def make_batch(story: Story, producer: int, sequence: int, now_ms: int) -> bytearray:
    rng = story.rng
    records = []
    for _ in range(1 + rng.below(3)):
        story.appended += 1
        padding = bytes(rng.below(700 if rng.chance(0.1) else 100))
        records.append(Record(timestamp=now_ms, value=b"%d:%s" % (story.appended, padding)))
    if producer < 0:
        return encode_batch(records)
    return encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)


def append(story: Story, log: Log, world: ProcessWorld) -> None:
    now = world.clock.now()
    producer = story.rng.below(PRODUCERS + 1) - 1
    sequence = story.sequence(producer)
    batch = make_batch(story, producer, sequence, now.wall_ms)
    values = [record.value or b"" for record in decode_records(batch)]
    if producer >= 0 and sequence and story.rng.chance(0.2):
        gap = make_batch(story, producer, sequence + 1, now.wall_ms)
        with pytest.raises(KafkaError):
            log.append(memoryview(gap), read_header(gap), 0, now)
    base_offset, _, _, known = log.append(memoryview(batch), read_header(batch), 0, now)
    assert known is None
    assert base_offset == len(story.written)
    story.batches.append((base_offset, batch))
    story.written += values


def repeat(story: Story, log: Log, world: ProcessWorld) -> None:
    """The last batch of each producer, sent again, is known by its offset."""
    for producer in range(PRODUCERS):
        for base_offset, batch in reversed(story.batches):
            header = read_header(batch)
            if header.producer_id == producer:
                again = bytearray(batch)
                first, _, _, known = log.append(memoryview(again), header, 0, world.clock.now())
                assert known is not None
                assert first == known.base_offset == base_offset
                break


async def read_everything(log: Log) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < log.end_offset:
        found = log.read(len(values), 3000, log.end_offset)
        if isinstance(found, NotResident):
            await found.file.load(found.position, found.size)
            continue
        assert found is not EMPTY
        view = memoryview(bytearray(found.size))
        assert found.file.pread_into(view, found.position) == found.size
        for position, header in walk(view):
            batch = view[position : position + header.size]
            for record in decode_records(batch):
                if record.offset >= len(values):
                    assert record.offset == len(values)
                    values.append(record.value or b"")
    return values


async def make_directory(world: ProcessWorld) -> None:
    world.disk.mkdir("/data")
    await world.disk.sync_dir("/")


async def live(story: Story, world: ProcessWorld) -> None:
    """One process: opens the log, checks it, and works with it until the end comes."""
    directory = LogDir.open(world.disk, "/data", world.offload)
    await directory.adopt("cluster", 1, bytes(range(16)))
    await directory.start()
    log = await directory.open_log("records", 0, b"t" * 16, story.settings, world.clock.now())
    assert log.failure is None
    story.opened(log.end_offset)
    assert await read_everything(log) == story.written
    repeat(story, log, world)
    while True:
        act = story.rng.below(20)
        if act < 13:
            append(story, log, world)
        elif act < 16:
            end = log.end_offset
            await log.flush()
            story.flushed = max(story.flushed, end)
        elif act == 16:
            await directory.checkpoint()
        elif act == 17:
            log.roll(world.clock.now())
        elif act == 18:
            assert await read_everything(log) == story.written
        elif story.rng.chance(0.2):
            await directory.close()
            story.flushed = len(story.written)
            return
        await asyncio.sleep(story.rng.between(0, 0.01))


@pytest.mark.parametrize("seed", range(60))
def test_what_comes_back_is_a_prefix_with_all_that_was_promised(seed: int) -> None:
    rng = SeededRng(seed).fork("log")
    settings = TopicSettings.resolve(
        {
            "internal.segment.bytes": str((2_500, 20_000)[rng.below(2)]),
            "index.interval.bytes": str((1, 1000)[rng.below(2)]),
            "max.message.bytes": "20000",
            "preallocate": ("true", "false", "false")[seed % 3],
        },
        NodeSettings.parse({}),
    )
    sim = SimWorld(seed, disk_faults=DiskFaults(cold=(0.0, 0.1)[rng.below(2)]))
    host = sim.host("h")
    story = Story(rng, settings)

    async def main() -> None:
        await host.start(make_directory).task
        for _ in range(8):
            process = host.start(lambda world: live(story, world))
            await asyncio.wait([process.task], timeout=rng.between(0, 1.5))
            if process.task.done():
                process.task.result()
            if rng.chance(0.5):
                process.kill()
                story.killed()
            else:
                story.lost_power(synced_records(host.volume.synced(), "/data/records-0"))
                host.power_cut()

    sim.run(main())
    assert story.openings > 1
