"""Memory for a large batch is found before its append, which nobody else notices."""

import asyncio
import errno
import os
import shutil

import pytest

from scriba.errors import KafkaError
from scriba.records.batch import read_header
from scriba.records.header import stamp
from scriba.runtime.files.disk import PosixDisk
from scriba.settings import TopicSettings
from scriba.storage.log import LARGE_APPEND, Log
from scriba.storage.results import NoRoom
from tests.unit.storage.shelf import Shelf

LARGE = LARGE_APPEND + 1000
SETTINGS = TopicSettings(segment_bytes=4 * LARGE_APPEND)


def large(shelf: Shelf) -> bytearray:
    return shelf.batch(3, size=LARGE // 3)


async def ready(shelf: Shelf, log: Log, batch: bytearray) -> None:
    await log.ready_for(read_header(batch), shelf.now)


def file_size(shelf: Shelf) -> int:
    return os.path.getsize(shelf.directory / shelf.files(".log")[-1])


async def test_the_pages_of_a_large_batch_are_there_before_it(shelf: Shelf) -> None:
    shelf.disk = PosixDisk(shelf.offload)  # type: ignore[assignment]
    log = shelf.open(settings=SETTINGS)
    shelf.append(log)
    batch, position = large(shelf), log.size
    file = log._segments.active.open_file()
    file.truncate(position + len(batch))
    assert not file.resident(position, len(batch)), "a hole has no pages"
    await ready(shelf, log, batch)
    assert file.resident(position, len(batch))
    shelf.append_batch(log, batch)
    assert file_size(shelf) == log.size
    assert len(await shelf.consume(log)) == 4


async def test_a_small_batch_is_not_prepared_for(shelf: Shelf) -> None:
    log = shelf.open(settings=SETTINGS)
    shelf.append(log)
    before = log.size
    await ready(shelf, log, shelf.batch(3))
    assert file_size(shelf) == before


async def test_others_append_meanwhile(shelf: Shelf) -> None:
    log = shelf.open(settings=SETTINGS)
    batch = large(shelf)
    for _ in range(5):
        waiting = asyncio.ensure_future(ready(shelf, log, batch))
        while not waiting.done():
            shelf.append(log)
            await asyncio.sleep(0)
        shelf.append_batch(log, bytearray(batch))
    records = await shelf.consume(log)
    assert [record.offset for record in records] == list(range(log.end_offset))
    assert sum(len(record.value or b"") > 100 for record in records) == 15


@pytest.mark.parametrize("clean", [True, False])
async def test_room_that_nobody_used_is_no_part_of_the_log(shelf: Shelf, clean: bool) -> None:
    log = shelf.open(settings=SETTINGS)
    for _ in range(10):
        shelf.append(log)
    await log.flush()
    size, end = log.size, log.end_offset
    await ready(shelf, log, large(shelf))
    assert file_size(shelf) > size
    if clean:
        await log.close()
        assert file_size(shelf) == size
    log = shelf.open(settings=SETTINGS, recovery_point=end, clean=clean)
    assert log.failure is None
    assert not log.cut_batches
    assert not log.lost_tail, "nothing was in it"
    assert (log.size, log.end_offset) == (size, end)
    await log.sync()
    shelf.append(log)
    assert len(await shelf.consume(log)) == 11


@pytest.mark.parametrize("first", [100, 4032 - 70, 4090 - 70])
async def test_an_append_that_is_interrupted_in_its_room_was_never_a_batch(
    shelf: Shelf, first: int
) -> None:
    """A process that is killed in a large write leaves some pages of it, and zeros behind: no
    reason to distrust the replica. A whole batch with a wrong byte is one."""
    log = shelf.open(settings=SETTINGS)
    shelf.append(log, size=first)
    await log.flush()
    batch, size = large(shelf), log.size
    await ready(shelf, log, batch)
    stamp(batch, 0, 1, 0)
    path = shelf.directory / shelf.files(".log")[-1]
    pages = range(-(-size // 4096) * 4096 - size, len(batch), 4096)
    for more in (0, 1 << 20):
        os.truncate(path, size + len(batch) + more)
        room = path.read_bytes()
        for part in (*pages[:3], pages[len(pages) // 2], pages[-1]):
            path.write_bytes(room[:size] + batch[:part] + room[size + part :])
            log = shelf.open(settings=SETTINGS, recovery_point=1)
            assert (log.size, log.end_offset, log.failure) == (size, 1, None)
            assert bool(log.lost_tail) == any(batch[:part])
            assert not log.cut_batches
        wrong = bytearray(batch)
        wrong[len(wrong) // 2] ^= 1
        path.write_bytes(room[:size] + wrong + room[size + len(wrong) :])
        log = shelf.open(settings=SETTINGS, recovery_point=1)
        assert (log.size, log.cut_batches) == (size, True)
        behind = batch[: pages[2]] + bytes(len(batch) - pages[2]) + b"x"
        path.write_bytes(room[:size] + behind)
        assert shelf.open(settings=SETTINGS, recovery_point=1).cut_batches


async def test_a_segment_that_is_too_full_for_it_ends_before_it(shelf: Shelf) -> None:
    log = shelf.open(settings=SETTINGS)
    for _ in range(4):
        batch = large(shelf)
        await ready(shelf, log, batch)
        shelf.append_batch(log, batch)
    assert len(shelf.files(".log")) == 2
    assert file_size(shelf) == log._segments.active.size
    assert len(await shelf.consume(log)) == 12


async def test_a_device_without_room_says_so_at_the_append(shelf: Shelf) -> None:
    log = shelf.open(settings=SETTINGS)
    shelf.append(log)
    size = log.size
    shelf.disk.full = ".log"
    batch = large(shelf)
    await ready(shelf, log, batch)
    with pytest.raises(NoRoom):
        shelf.append_batch(log, batch)
    assert (log.size, file_size(shelf)) == (size, size)


async def test_a_device_that_takes_no_writes_is_not_the_business_of_getting_ready(
    shelf: Shelf,
) -> None:
    log = shelf.open(settings=SETTINGS)
    shelf.append(log)
    shelf.disk.read_only = True
    await ready(shelf, log, large(shelf))
    assert log.failure is None


async def test_what_is_too_large_for_any_segment_begins_none(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(segment_bytes=LARGE_APPEND))
    shelf.append(log)
    batch = large(shelf)
    await ready(shelf, log, batch)
    assert len(shelf.files(".log")) == 1
    with pytest.raises(KafkaError):
        shelf.append_batch(log, batch)


async def test_a_follower_gets_ready_for_what_fits_and_believes_nothing(shelf: Shelf) -> None:
    log = shelf.open(settings=SETTINGS)
    shelf.append(log)
    batch, before = large(shelf), log.size
    stamp(batch, 0, 1, 0)
    await log.ready_to_follow(memoryview(batch))
    assert file_size(shelf) == before + len(batch)
    log.append_follower(memoryview(batch), shelf.now)
    assert file_size(shelf) == log.size == before + len(batch)
    for position, value in ((0, 0x7F), (8, 0x7F), (11, 0), (23, 0x7F), (35, 0x7F)):
        wrong = bytearray(batch)
        wrong[position] = value
        await log.ready_to_follow(memoryview(wrong))
        assert len(shelf.files(".log")) == 1
    await log.close()
    assert file_size(shelf) == before + len(batch)


async def test_memory_is_found_for_files_of_any_kind(shelf: Shelf) -> None:
    disk = PosixDisk(shelf.offload)
    path = str(shelf.root / "some")
    file = disk.open(path, create=True)
    await file.populate(0, 1 << 20)
    assert file.size() == 0, "it does not become longer"
    content = os.urandom(3 << 20)
    file.pwrite(content, 0)
    await file.populate(12345, 10 << 20)
    assert disk.read(path) == content
    shutil.rmtree(shelf.root, ignore_errors=True)
    await file.populate(0, 1 << 20)
    file.close()
    with pytest.raises(OSError) as closed:  # noqa: PT011
        await file.populate(0, 10)
    assert closed.value.errno == errno.EBADF
