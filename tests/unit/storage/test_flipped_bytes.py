"""Any byte of a batch's header that flips: records go out right, or not at all.

What lies under the checksum a consumer finds by itself. The base offset, the length and the magic
do not, so the log must: a read of them fails, and the replica is set aside like for other damage.
"""

import shutil
from pathlib import Path

import pytest

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.records.batch import Record, decode_records, encode_batch, read_header
from scriba.records.header import CRC_OFFSET, HEADER_SIZE, check_crc, walk
from scriba.runtime.files.disk import PosixDisk
from scriba.runtime.ports import Disk
from scriba.settings import TopicSettings
from scriba.storage.log import Log, Slice
from scriba.storage.segments.not_resident import NotResident
from scriba.testing.sim.plays.compacting import look
from tests.unit.storage.shelf import Shelf

SETTINGS = TopicSettings(segment_bytes=4000, index_interval_bytes=200)
BATCHES = 60
PER_BATCH = 2
NAME = "00000000000000000000.log"
BASE_OFFSET = range(8)
LENGTH = range(8, 12)
LEADER_EPOCH = range(12, 16)
MAGIC = range(16, 17)
LAST_DELTA = range(23, 27)


def told(offset: int) -> bytes:
    return f"value of {offset}".encode()


async def filled(shelf: Shelf) -> tuple[bytes, list[int]]:
    """A partition of some segments, as a clean shutdown leaves it; the positions in the first."""
    log = shelf.open(settings=SETTINGS)
    for number in range(BATCHES):
        offsets = range(number * PER_BATCH, (number + 1) * PER_BATCH)
        batch = encode_batch([Record(0, 1000 + o, None, told(o), ()) for o in offsets])
        log.append(memoryview(batch), read_header(batch), 0, shelf.now)
    await log.flush()
    await log.close()
    data = (shelf.root / "t-0" / NAME).read_bytes()
    return data, [position for position, _ in walk(data)]


def reopened(shelf: Shelf) -> Log:
    return shelf.open(settings=SETTINGS, recovery_point=BATCHES * PER_BATCH, clean=True)


async def fetch(log: Log, offset: int, max_bytes: int) -> bytearray:
    while True:
        found = log.read(offset, max_bytes, log.end_offset)
        if not isinstance(found, NotResident):
            break
        await found.file.load(found.position, found.size)
    assert isinstance(found, Slice)
    data = bytearray(found.size)
    found.file.pread_into(memoryview(data), found.position)
    return data


async def consume(log: Log, offset: int, max_bytes: int) -> list[tuple[int, bytes | None]]:
    """As a client reads from `offset` on; ParseError for what its checksum refuses."""
    seen = []
    while offset < log.end_offset:
        before = offset
        data = await fetch(log, offset, max_bytes)
        for position, header in walk(data):
            if not check_crc(data, position, header):
                raise ParseError("the checksum is wrong")
            batch = memoryview(data)[position : position + header.size]
            seen += [(r.offset, r.value) for r in decode_records(batch) if r.offset >= offset]
            offset = max(offset, header.next_offset)
        assert offset > before, "a client makes no progress"
    return seen


def expected(first: int = 0) -> list[tuple[int, bytes]]:
    return [(offset, told(offset)) for offset in range(first, BATCHES * PER_BATCH)]


@pytest.mark.parametrize("byte", range(HEADER_SIZE))
@pytest.mark.parametrize("flip", [0x01, 0x80])
async def test_a_flipped_byte_never_sends_records_under_wrong_offsets(
    shelf: Shelf, byte: int, flip: int
) -> None:
    whole, positions = await filled(shelf)
    path = shelf.root / "t-0" / NAME
    for position in (positions[0], positions[1], positions[7], positions[-1]):
        broken = bytearray(whole)
        broken[position + byte] ^= flip
        hurt = read_header(whole, position).base_offset
        for first, max_bytes in ((0, 1 << 20), (0, 150), (hurt, 1 << 20), (hurt + 1, 100)):
            path.write_bytes(broken)
            log = reopened(shelf)
            try:
                seen = await consume(log, first, max_bytes)
            except ParseError:
                assert byte >= CRC_OFFSET, "a client cannot find that"
            except KafkaError:
                assert byte in (*BASE_OFFSET, *LENGTH, *MAGIC) or byte >= CRC_OFFSET
                assert log.failure is not None
                assert log.failure.error.code is ErrorCode.KAFKA_STORAGE_ERROR
                assert not log.failure.device
            else:
                # Whoever begins in the middle of a batch that claims to be shorter does not come
                # by it; its checksum tells everyone who does.
                missed = seen == expected(first + 1) and byte in LAST_DELTA and first == hurt + 1
                assert missed or seen == expected(first)
                assert byte in LEADER_EPOCH or first > hurt
            path.write_bytes(whole)


@pytest.mark.parametrize("byte", BASE_OFFSET)
async def test_a_time_is_not_looked_up_under_a_wrong_offset(shelf: Shelf, byte: int) -> None:
    whole, positions = await filled(shelf)
    hurt = read_header(whole, positions[7]).base_offset
    broken = bytearray(whole)
    broken[positions[7] + byte] ^= 0x01
    (shelf.root / "t-0" / NAME).write_bytes(broken)
    log = reopened(shelf)
    with pytest.raises(KafkaError):
        await log.offset_for_timestamp(1000 + hurt)


def flipped(path: Path, position: int, flip: int) -> None:
    """Flips bits in place: whoever has the file open sees it."""
    with path.open("r+b") as file:
        file.seek(position)
        (before,) = file.read(1)
        file.seek(position)
        file.write(bytes([before ^ flip]))


def disk_of(shelf: Shelf, kind: str) -> Disk:
    """Where headers are walked over in Python, or by their descriptors in C, if that was built."""
    return shelf.disk if kind == "read by calls" else PosixDisk(shelf.offload)


@pytest.mark.parametrize("kind", ["read by calls", "read by descriptor"])
@pytest.mark.parametrize("per_batch", [1, 2, 200])
@pytest.mark.parametrize("byte", BASE_OFFSET)
async def test_a_byte_that_flips_under_the_process_that_wrote_it_is_found(
    shelf: Shelf, byte: int, per_batch: int, kind: str
) -> None:
    """Beside the end of the log, in its index, and in sealed segments; read before, or never."""
    settings = TopicSettings(segment_bytes=200_000, index_interval_bytes=3000)
    batches = 400 if per_batch < 200 else 60
    for flip in (0x01, 0x20, 0x80):
        for hurt in (0, 1, batches // 2, batches - 1):
            shelf.disk = disk_of(shelf, kind)  # type: ignore[assignment]
            log = shelf.open(settings=settings)
            for _ in range(batches):
                shelf.append(log, per_batch, size=10)
            segment = log._segments.holding(hurt * per_batch)
            position = segment.locate(hurt * per_batch)
            assert isinstance(position, int)
            path = Path(segment.path(".log"))
            assert await shelf.headers(log, hurt * per_batch)
            flipped(path, position + byte, flip)
            with pytest.raises(KafkaError) as raised:
                await shelf.headers(log, hurt * per_batch)
            assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert log.failure is not None
            assert not log.failure.device
            await log.close()
            shutil.rmtree(shelf.directory)


async def test_a_large_batch_that_claims_to_begin_earlier_is_found(shelf: Shelf) -> None:
    """It still holds the offset that is asked for, so that only the batch before tells."""
    log = shelf.open(settings=TopicSettings(index_interval_bytes=1 << 20))
    shelf.append(log, 100)
    first = shelf.append(log, 100)
    shelf.append(log, 100)
    segment = log._segments.active
    position = segment.locate(first.base_offset)
    assert isinstance(position, int)
    flipped(shelf.directory / NAME, position + 7, 0x40)  # 100 becomes 36, and it ends with 135
    with pytest.raises(KafkaError):
        await shelf.headers(log, first.base_offset)
    segment.recent.clear()
    with pytest.raises(KafkaError):
        await shelf.headers(log, first.base_offset)


async def test_gaps_that_compaction_leaves_are_no_damage(shelf: Shelf) -> None:
    whole, positions = await filled(shelf)
    less = bytearray(whole[: positions[3]] + whole[positions[9] :])
    for suffix in (".index", ".timeindex"):
        (shelf.root / "t-0" / NAME).with_suffix(suffix).unlink()
    (shelf.root / "t-0" / NAME).write_bytes(less)
    log = reopened(shelf)
    gone = range(3 * PER_BATCH, 9 * PER_BATCH)
    assert await consume(log, 0, 500) == [each for each in expected() if each[0] not in gone]


async def test_many_small_batches_are_looked_at_in_parts(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scriba.storage.segments.ascent.MOST_HEADERS", 5)
    await filled(shelf)
    log = reopened(shelf)
    assert await consume(log, 0, 1 << 20) == expected()


@pytest.mark.parametrize("cut_at", [10, 50])
async def test_a_truncation_behind_damage_takes_the_log_out_of_use_and_none_of_its_bytes(
    shelf: Shelf, cut_at: int
) -> None:
    """One before it takes the damage away. Behind it, nobody knows where a batch begins."""
    log = shelf.open(settings=TopicSettings(segment_bytes=1 << 20, index_interval_bytes=1 << 20))
    for _ in range(100):
        shelf.append(log)
    await log.flush()
    path = shelf.directory / shelf.files(".log")[0]
    data = bytearray(path.read_bytes())
    size = len(data) // 100
    data[20 * size + 16] = 7  # its magic
    path.write_bytes(data)
    if cut_at < 20:
        log.truncation.truncate_to(cut_at, shelf.now)
        assert (log.failure, log.size) == (None, cut_at * size)
        return
    with pytest.raises(KafkaError, match="no record batch"):
        log.truncation.truncate_to(cut_at, shelf.now)
    assert log.failure is not None
    assert not log.failure.device
    assert path.read_bytes() == data


@pytest.mark.parametrize("who", ["retention", "compaction"])
async def test_damage_that_a_job_meets_takes_that_log_out_of_use_and_not_the_node(
    shelf: Shelf, who: str
) -> None:
    """A job knows only errors of the protocol: whatever else comes out of a log ends the node."""
    hour = 3_600_000
    shelf.settings = SETTINGS.replace(retention_ms=hour, max_compaction_lag_ms=hour)
    log = shelf.open()
    for _ in range(100):
        shelf.append(log)
    await log.close()
    path = shelf.directory / shelf.files(".log")[0]
    data = bytearray(path.read_bytes())
    data[16] = 7  # the magic of the first batch
    if who == "retention":
        data[15 * len(data) // 20 :] = bytes(len(data) - 15 * len(data) // 20)
    path.write_bytes(data)
    log = shelf.open(recovery_point=100, clean=True)
    shelf.later(2 * hour)
    retention = who == "retention"
    job = log.truncation.retention(shelf.now, 100) if retention else look(log, shelf.now)
    with pytest.raises(KafkaError, match="no record batch"):
        await job
    assert log.failure is not None
    assert not log.failure.device
