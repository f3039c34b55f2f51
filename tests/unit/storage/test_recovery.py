# ruff: noqa: ASYNC230, ASYNC240
"""What a start finds after a crash, and what it makes of it."""

import os
from pathlib import Path
from typing import Any

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.records.batch import Record, encode_batch, read_header, walk
from scriba.settings import TopicSettings
from scriba.storage.log import Log
from tests.typed import present
from tests.unit.storage.shelf import Shelf


def log_files(shelf: Shelf) -> list[str]:
    return [str(shelf.directory / name) for name in shelf.files(".log")]


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def filled(shelf: Shelf, count: int = 100, **more: Any) -> Log:
    log = shelf.open(**more)
    for i in range(count):
        shelf.append(log, epoch=i // 40, at=1000 + i)
    return log


def damage(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


async def test_a_torn_tail_is_cut_to_the_last_whole_batch(shelf: Shelf) -> None:
    filled(shelf, 3)
    (path,) = log_files(shelf)
    size = os.path.getsize(path)
    for torn in (1, 20, 70, size // 3 - 1):
        os.truncate(path, size - torn)
        log = shelf.open()
        assert log.end_offset == 2
        assert os.path.getsize(path) == size // 3 * 2
        shelf.append(log, at=1002)
        assert len(await shelf.consume(log)) == 3


async def test_zeros_at_the_end_are_a_tail_too(shelf: Shelf) -> None:
    filled(shelf, 3)
    (path,) = log_files(shelf)
    size = os.path.getsize(path)
    os.truncate(path, size + 5000)
    log = shelf.open()
    assert (log.end_offset, os.path.getsize(path)) == (3, size)


async def test_a_batch_that_fails_its_checksum_ends_the_log_and_takes_later_segments_with_it(
    shelf: Shelf,
) -> None:
    log = filled(shelf)
    assert log.segment_count > 3
    paths = log_files(shelf)
    damage(paths[1], 1000)
    log = shelf.open()
    last = log.end_offset - 1
    assert int(os.path.basename(paths[1])[:20]) <= last < int(os.path.basename(paths[2])[:20])
    assert log_files(shelf) == paths[:2]
    assert [r.offset for r in await shelf.consume(log)] == list(range(last + 1))
    assert not [name for name in shelf.files(".snapshot") if int(name[:20]) > log.end_offset]
    assert shelf.append(log).base_offset == last + 1


async def test_what_was_flushed_is_not_read_again(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(index_interval_bytes=300))
    for i in range(2000):
        shelf.append(log, at=1000 + i)
    log._writer.take_snapshot(log.end_offset)
    await log.flush()
    for i in range(10):
        shelf.append(log, at=3000 + i)
    shelf.disk.touched.clear()
    log = shelf.open(recovery_point=2000, settings=log.settings)
    assert log.end_offset == 2010
    assert sum(1 for what, name in shelf.disk.touched if name.endswith(".log")) <= 3
    assert present(await log.max_timestamp_offset())[:2] == (2009, 3009)


async def test_damage_below_the_recovery_point_is_never_cut_away(shelf: Shelf) -> None:
    log = filled(shelf)
    await log.flush()
    paths = log_files(shelf)
    before = {path: content(path) for path in paths}
    last = int(os.path.basename(paths[-1])[:20])
    for path, position in ((paths[-1], 16), (paths[-1], 8)):
        damage(path, position)
        damaged = content(path)
        log = shelf.open(recovery_point=100)
        assert log.failure is not None
        assert not log.failure.device
        with pytest.raises(KafkaError) as refused:
            shelf.append(log)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert log_files(shelf) == paths
        assert content(path) == damaged
        Path(path).write_bytes(before[path])
        assert log.end_offset <= last
    assert shelf.open(recovery_point=100).failure is None


async def test_a_log_shorter_than_what_was_flushed_is_damaged(shelf: Shelf) -> None:
    log = filled(shelf, 10)
    await log.flush()
    (path,) = log_files(shelf)
    os.truncate(path, os.path.getsize(path) // 2)
    log = shelf.open(recovery_point=10)
    assert (log.end_offset, log.failure is None) == (5, False)
    assert "flushed up to 10" in present(log.failure).error.message
    assert len(await shelf.consume(log)) == 5


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", "index", ".snapshot", "checkpoint"])
async def test_any_index_checkpoint_or_snapshot_may_be_missing(
    shelf: Shelf, suffix: str, clean: bool
) -> None:
    log = filled(shelf)
    await log.close()
    expected = await shelf.consume(shelf.open(recovery_point=100, clean=True))
    for name in shelf.files(suffix):
        (shelf.directory / name).unlink()
    log = shelf.open(recovery_point=100, clean=clean)
    assert log.failure is None
    assert await shelf.consume(log) == expected
    assert log.epochs.entries() == [(0, 0), (1, 40), (2, 80)]
    assert present(await log.offset_for_timestamp(1050))[:2] == (50, 1050)
    for offset in (0, 33, 99):
        assert (await shelf.headers(log, offset))[0].base_offset == offset


@pytest.mark.parametrize("clean", [True, False])
async def test_every_segment_has_its_index_files_again(shelf: Shelf, clean: bool) -> None:
    log = filled(shelf, 10, settings=TopicSettings(segment_bytes=400))
    await log.close()
    names = shelf.files("index")
    assert len(names) == 10
    for name in names:
        (shelf.directory / name).unlink()
    log = shelf.open(clean=clean, settings=log.settings)
    await log.close()
    assert shelf.files("index") == names


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("garbage", [b"", b"\1" * 24, b"\xff" * 25, bytes(10_000), b"0\n5\n1 2\n"])
async def test_any_index_checkpoint_or_snapshot_may_be_garbage(
    shelf: Shelf, suffix: str, garbage: bytes, clean: bool
) -> None:
    log = filled(shelf)
    await log.close()
    expected = await shelf.consume(shelf.open(recovery_point=100, clean=True))
    for name in shelf.files(suffix):
        (shelf.directory / name).write_bytes(garbage)
    log = shelf.open(recovery_point=100, clean=clean)
    assert log.failure is None
    assert await shelf.consume(log) == expected
    assert log.epochs.entries() == [(0, 0), (1, 40), (2, 80)]
    assert present(await log.offset_for_timestamp(1050))[:2] == (50, 1050)
    assert present(await log.max_timestamp_offset())[:2] == (99, 1099)


async def test_rebuilt_indexes_are_those_that_were_lost(shelf: Shelf) -> None:
    log = filled(shelf)
    await log.close()
    names = shelf.files("index")
    before = {name: (shelf.directory / name).read_bytes() for name in names}
    for name in names:
        (shelf.directory / name).unlink()
    log = shelf.open()
    await log.close()
    assert {name: (shelf.directory / name).read_bytes() for name in names} == before


async def test_an_index_that_kafka_preallocated_and_did_not_trim_is_read_up_to_its_zeros(
    shelf: Shelf,
) -> None:
    log = filled(shelf)
    await log.close()
    for name in shelf.files("index"):
        with open(shelf.directory / name, "ab") as file:
            file.write(bytes(10_485_760 // 12 * 12))
    log = shelf.open(recovery_point=90)
    assert [r.offset for r in await shelf.consume(log)] == list(range(100))
    for offset in (0, 40, 99):
        assert (await shelf.headers(log, offset))[0].base_offset == offset


async def test_a_clean_directory_without_its_checkpoint_is_read_from_the_last_index_entry(
    shelf: Shelf,
) -> None:
    log = filled(shelf)
    await log.close()
    log = shelf.open(clean=True)
    assert (log.end_offset, log.flushed_offset) == (100, 100)


async def test_a_clean_mark_is_not_believed_against_the_files(shelf: Shelf) -> None:
    log = filled(shelf, 10)
    await log.close()
    (path,) = log_files(shelf)
    os.truncate(path, os.path.getsize(path) - 10)
    (shelf.directory / f"{10:020}.snapshot").unlink()
    log = shelf.open(recovery_point=10, clean=True)
    assert log.failure is not None
    log = shelf.open(recovery_point=9, clean=True)
    assert (log.end_offset, log.failure) == (9, None)


async def test_files_that_a_crash_left_behind_go(shelf: Shelf) -> None:
    log = filled(shelf)
    await log.close()
    leftovers = [
        "00000000000000000000.log.deleted",
        "00000000000000000005.log.cleaned",
        "00000000000000000777.index",
        "leader-epoch-checkpoint.tmp",
    ]
    for name in leftovers:
        (shelf.directory / name).write_bytes(b"x")
    log = shelf.open(recovery_point=100, clean=True)
    assert not set(leftovers) & set(shelf.files())
    assert len(await shelf.consume(log)) == 100


async def test_a_cleaned_segment_that_was_about_to_take_its_place_takes_it(shelf: Shelf) -> None:
    log = filled(shelf)
    await log.close()
    first, second = shelf.files(".log")[:2]
    kept = encode_batch([Record(timestamp=1, value=b"kept")], base_offset=20)
    empty = encode_batch([Record(timestamp=1, value=b"last")], base_offset=int(second[:20]) + 3)
    (shelf.directory / (first + ".swap")).write_bytes(kept + empty)
    log = shelf.open(recovery_point=100)
    offsets = [r.offset for r in await shelf.consume(log)]
    assert offsets[:2] == [20, int(second[:20]) + 3]
    assert second not in shelf.files()
    assert not shelf.files(".swap")


async def test_a_start_beyond_the_recovered_end_begins_anew_there(shelf: Shelf) -> None:
    log = filled(shelf, 10)
    log = shelf.open(log_start=50)
    assert (log.start_offset, log.end_offset, log.failure) == (50, 50, None)
    assert shelf.append(log).base_offset == 50


async def test_the_start_from_the_checkpoint_holds(shelf: Shelf) -> None:
    log = filled(shelf, 10)
    await log.close()
    log = shelf.open(recovery_point=10, clean=True, log_start=4)
    assert log.start_offset == 4
    assert [r.offset for r in await shelf.consume(log)] == [4, 5, 6, 7, 8, 9]


async def test_a_directory_of_another_topic_is_refused(shelf: Shelf) -> None:
    log = shelf.open(topic_id=b"a" * 16)
    await log.close()
    assert shelf.open().topic_id == b"a" * 16
    with pytest.raises(KafkaError) as refused:
        shelf.open(topic_id=b"b" * 16)
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


async def test_recovery_is_the_same_when_a_crash_interrupts_it(shelf: Shelf) -> None:
    filled(shelf)
    damage(log_files(shelf)[-1], 500)
    once = shelf.open()
    twice = shelf.open()
    assert once.end_offset == twice.end_offset
    assert await shelf.consume(once) == await shelf.consume(twice)


async def test_producers_are_snapshotted_between_rolls_so_that_little_is_read(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scriba.storage.writer._SNAPSHOT_EVERY", 2000)
    log = shelf.open(settings=TopicSettings())
    for i in range(60):
        shelf.append(log, producer_id=1, producer_epoch=0, base_sequence=i)
        if i % 10 == 0:
            await log.flush()
    assert 30 < int(shelf.files(".snapshot")[-1][:20]) <= 51
    assert len(shelf.files(".snapshot")) == 1
    log = shelf.open(recovery_point=51)
    assert next(log.active_producers()).last_sequence == 59


async def test_every_cut_in_the_unflushed_tail_keeps_the_longest_valid_prefix(shelf: Shelf) -> None:
    log = filled(shelf, 12)
    log.roll(shelf.now)
    for i in range(6):
        shelf.append(log, at=2000 + i)
    paths = log_files(shelf)
    whole = {path: content(path) for path in paths}
    ends = [at + header.size for at, header in walk(whole[paths[1]])]
    for cut in range(0, len(whole[paths[1]]), 37):
        for path in log_files(shelf):
            os.unlink(path)
        for path, data in whole.items():
            Path(path).write_bytes(data)
        os.truncate(paths[1], cut)
        log = shelf.open(recovery_point=12)
        assert log.end_offset == 12 + sum(end <= cut for end in ends)
        assert log.failure is None
        assert read_header(await shelf.fetch(log, 11)).base_offset == 11
