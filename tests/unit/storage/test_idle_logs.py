"""Logs that nobody uses hold no file open, and cost nothing to close."""

import os
from pathlib import Path

from scriba.storage.log import EMPTY, Log, Slice
from tests.unit.storage.shelf import Shelf


def open_files(directory: Path) -> int:
    """How many descriptors of this process point into the directory."""
    held = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            held += os.readlink(f"/proc/self/fd/{name}").startswith(str(directory))
        except OSError:
            continue
    return held


async def close_idle(shelf: Shelf, log: Log) -> None:
    log.close_if_idle()
    assert log.close_if_idle()
    for _ in range(2):
        await log.truncation.retention(shelf.now, 0)


async def test_a_new_log_holds_no_file_open_until_its_first_record(shelf: Shelf) -> None:
    log = shelf.open()
    assert open_files(shelf.directory) == 0
    assert log.read(0, 1000, 0) is EMPTY
    shelf.append(log)
    assert open_files(shelf.directory) > 0
    assert [record.offset for record in await shelf.consume(log)] == [0]


async def test_a_log_without_records_is_closed_without_a_sync(shelf: Shelf) -> None:
    log = shelf.open()
    log.begin_epoch(3)
    shelf.disk.calls.clear()
    await log.close()
    assert not shelf.disk.calls["sync"]
    assert not shelf.disk.calls["sync_dir"]
    again = shelf.open(clean=True)
    again.begin_epoch(4)
    shelf.append(again)
    shelf.disk.touched.clear()
    await again.flush()
    assert ("sync_dir", "t-0") in shelf.disk.touched, "its name was not on the device before"


async def test_an_idle_log_goes_to_rest_and_goes_on_where_it_was(shelf: Shelf) -> None:
    log = shelf.open()
    for i in range(200):
        shelf.append(log, at=i)
    await close_idle(shelf, log)
    assert open_files(shelf.directory) == 0
    assert [record.offset for record in await shelf.consume(log)] == list(range(200))
    for i in range(200, 300):
        shelf.append(log, at=i)
    found = await log.offset_for_timestamp(250)
    assert found is not None
    assert found.offset == 250
    await log.close()
    again = shelf.open(clean=True)
    assert [record.offset for record in await shelf.consume(again)] == list(range(300))


async def test_a_log_in_use_stays_open(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log)
    assert not log.close_if_idle()
    await shelf.consume(log)
    assert not log.close_if_idle()
    shelf.append(log)
    assert not log.close_if_idle()
    assert log.close_if_idle()


async def test_an_epoch_is_written_down_with_its_first_record(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, epoch=1)
    await log.flush()
    written = (shelf.directory / "leader-epoch-checkpoint").read_text()
    log.begin_epoch(2)
    assert log.end_offset_for_epoch(2) == (2, 1)
    await log.sync()
    assert (shelf.directory / "leader-epoch-checkpoint").read_text() == written
    shelf.append(log, epoch=2)
    await log.flush()
    assert (shelf.directory / "leader-epoch-checkpoint").read_text().splitlines()[2:] == [
        "1 0",
        "2 1",
    ]


async def test_a_reader_keeps_what_it_sends_from_until_it_is_done(shelf: Shelf) -> None:
    log = shelf.open()
    for i in range(10):
        shelf.append(log, at=i)
    sending = log.read(0, 1 << 20, log.end_offset)
    assert isinstance(sending, Slice)
    assert log.close_if_idle(even_if_busy=True)
    assert open_files(shelf.directory) == 1
    assert sending.file.pread_into(memoryview(bytearray(sending.size)), 0) == sending.size
    del sending
    assert open_files(shelf.directory) == 0
    assert [record.offset for record in await shelf.consume(log)] == list(range(10))


async def test_a_log_that_only_readers_of_old_segments_use_goes_to_rest_too(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log)
    log.roll(shelf.now)
    await log.close()
    log = shelf.open(clean=True)
    assert log.read(0, 1 << 20, log.end_offset) is not EMPTY
    assert open_files(shelf.directory) == 1
    assert not log.close_if_idle()
    assert log.close_if_idle()
    assert open_files(shelf.directory) == 0
