"""Files on disk that someone damaged: a start never falls over them, and never believes them."""

import asyncio
import os
from contextlib import suppress
from typing import Any

import pytest

from scriba.errors import KafkaError, ParseError
from scriba.instant import Instant
from scriba.records.batch import (
    EndTxnMarker,
    Record,
    encode_batch,
    end_txn_batch,
    read_header,
    walk,
)
from scriba.runtime.rng import SeededRng
from scriba.settings import TopicSettings
from scriba.storage.log import EMPTY, Log, NotResident
from scriba.testing.sim.world.disk import DiskFaults, SimDisk, Volume

NOW = Instant(0, 1_700_000_000_000)
SETTINGS = TopicSettings(segment_bytes=3000, index_interval_bytes=200)
DIRECTORY = "/data/t-0"


def opened(volume: Volume, **more: Any) -> Log:
    disk = SimDisk(volume)
    disk.mkdir("/data")
    return Log.open(disk, DIRECTORY, "t", 0, None, SETTINGS, NOW, **more)


async def written(rng: SeededRng) -> tuple[Volume, bytes]:
    """A closed log of several segments with producers, epochs and aborted transactions."""
    volume = Volume(rng.fork("disk"), DiskFaults(sync_ms=(0, 0)), lambda *_: None)
    log = opened(volume)
    data = bytearray()
    for turn in range(60):
        producer: dict[str, Any] = {
            "producer_id": turn % 2,
            "producer_epoch": 0,
            "base_sequence": turn // 2,
        }
        batches = [
            encode_batch([Record(timestamp=NOW.wall_ms + turn, value=bytes(90))], **producer),
            encode_batch(
                [Record(timestamp=NOW.wall_ms, value=b"t")],
                producer_id=7,
                producer_epoch=0,
                base_sequence=turn,
                transactional=True,
            ),
            end_txn_batch(7, 0, EndTxnMarker(turn % 3 == 0, 0), NOW.wall_ms),
        ]
        for batch in batches:
            log.append(memoryview(batch), read_header(batch), turn // 20, NOW)
            data += batch
    await log.close()
    return volume, bytes(data)


async def read_all(log: Log) -> bytes:
    data = bytearray()
    offset = log.start_offset
    while offset < log.end_offset:
        while isinstance(found := log.read(offset, 800, log.end_offset), NotResident):
            await found.file.load(found.position, found.size)
        if found is EMPTY:
            break
        view = memoryview(bytearray(found.size))
        found.file.pread_into(view, found.position)
        before = offset
        with suppress(ParseError):
            for position, header in walk(view):
                data += view[position : position + header.size]
                offset = header.next_offset
        if offset <= before:
            break  # flushed bytes are sent as they are: the consumer reports a damaged batch
    return bytes(data)


def spoil(volume: Volume, rng: SeededRng, path: str) -> None:
    """Flips, cuts, extends, empties or replaces a file."""
    file = SimDisk(volume).open(path)
    size = file.size()
    match rng.below(5):
        case 0 if size:
            for _ in range(1 + rng.below(4)):
                volume.flip_bit(path)
        case 1:
            file.truncate(rng.below(size + 1))
        case 2:
            file.pwrite(rng.bytes(1 + rng.below(100)), size)
        case 3:
            file.truncate(0)
        case _:
            file.truncate(0)
            file.pwrite(rng.bytes(rng.below(200)), 0)


async def derived_files_are_spoilt(seed: int) -> None:
    rng = SeededRng(seed)
    volume, data = await written(rng)
    names = [path for path in volume.files() if not path.endswith((".log", ".txnindex"))]
    for _ in range(1 + rng.below(4)):
        spoil(volume, rng, names[rng.below(len(names))])
    clean = rng.chance(0.5)
    log = opened(volume, clean=clean, recovery_point=None if rng.chance(0.3) else 180)
    assert log.failure is None
    assert await read_all(log) == data
    assert log.end_offset == 180
    assert {each.producer_id for each in log.active_producers()} == {0, 1, 7}
    assert log.epochs.latest == 2
    batch = encode_batch([Record(timestamp=NOW.wall_ms)])
    log.append(memoryview(batch), read_header(batch), 3, NOW)
    await log.truncation.retention(NOW, 180)
    await log.close()


async def records_are_spoilt(seed: int) -> None:
    rng = SeededRng(seed)
    volume, data = await written(rng)
    for path in [path for path in volume.files() if path.endswith(".log")]:
        if rng.chance(0.3):
            spoil(volume, rng, path)
    flushed = rng.below(181)
    log = opened(volume, recovery_point=flushed, clean=rng.chance(0.2))
    try:
        found = await read_all(log)
    except KafkaError:
        assert log.failure is not None
        return
    if log.failure is None:
        assert log.end_offset >= flushed
    unverified = 0 if log.failure is None and flushed == 0 else len(found)
    assert found[unverified:] == data[unverified : len(found)]
    for ask in (log.offset_for_timestamp(NOW.wall_ms + 30), log.max_timestamp_offset()):
        try:
            await ask
        except KafkaError:
            assert log.failure is not None


@pytest.mark.parametrize("seed", range(60))
def test_damaged_indexes_checkpoints_and_snapshots_are_rebuilt(seed: int) -> None:
    asyncio.run(derived_files_are_spoilt(seed))


@pytest.mark.parametrize("seed", range(60))
def test_damaged_records_are_cut_or_quarantined(seed: int) -> None:
    asyncio.run(records_are_spoilt(seed))


def test_files_with_names_of_no_segment_are_left_alone() -> None:
    async def run() -> None:
        volume, data = await written(SeededRng(1))
        disk = SimDisk(volume)
        for name in ("notes.txt", "1.log", "quorum-state", "x" * 20 + ".log"):
            disk.open(f"{DIRECTORY}/{name}", create=True)
        log = opened(volume)
        assert await read_all(log) == data
        assert os.path.basename(DIRECTORY) == "t-0"
        assert {"notes.txt", "1.log", "quorum-state"} <= set(disk.list(DIRECTORY))

    asyncio.run(run())
