"""Checkpoints: their format, and what they say while offsets change under them."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scriba.storage.directory import checkpoints, logdir
from scriba.storage.directory.checkpoints import Checkpoint, read_offsets
from scriba.storage.directory.logdir import LogDir
from scriba.storage.directory.names import PartitionName
from tests.unit.storage.directories import SETTINGS, log_in, ready
from tests.unit.storage.shelf import Shelf

FILE = "some-offset-checkpoint"
SEEDS = range(20)
PARTITIONS = 6

names = st.builds(
    PartitionName, st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True), st.integers(0, 9999)
)


def name(partition: int) -> PartitionName:
    return PartitionName("t", partition)


def on_disk(shelf: Shelf, file: str = FILE) -> dict[PartitionName, int]:
    """Nothing where it was never written."""
    return read_offsets(shelf.disk, str(shelf.root / file))


def checkpoint_of(shelf: Shelf) -> Checkpoint:
    return Checkpoint(shelf.disk, str(shelf.root), FILE)


@given(st.dictionaries(names, st.integers(0, 2**62), max_size=10))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_they_come_back_in_kafkas_format(
    shelf: Shelf, offsets: dict[PartitionName, int]
) -> None:
    checkpoint = checkpoint_of(shelf)
    checkpoint.keep(offsets)
    checkpoint.set(PartitionName("more", 0), 1)
    for each, offset in offsets.items():
        checkpoint.set(each, offset)
    checkpoint.drop(PartitionName("more", 0))
    await checkpoint.save()
    assert on_disk(shelf) == offsets
    assert (shelf.root / FILE).read_bytes().startswith(f"0\n{len(offsets)}\n".encode())
    again = checkpoint_of(shelf)
    assert {each: again.get(each) for each in again} == offsets


async def test_what_is_on_disk_already_is_not_written_again(shelf: Shelf) -> None:
    checkpoint = checkpoint_of(shelf)
    checkpoint.set(name(0), 5)
    await checkpoint.save()
    before = (shelf.root / FILE).stat()
    checkpoint.set(name(0), 5)
    checkpoint.drop(name(1))
    await checkpoint.save()
    assert (shelf.root / FILE).stat() == before


async def test_those_who_come_while_it_is_written_share_the_next_one(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = shelf.disk.write_atomic

    async def counted(path: str, data: bytes) -> None:
        written.append(data)
        await write(path, data)

    monkeypatch.setattr(shelf.disk, "write_atomic", counted)
    checkpoint = checkpoint_of(shelf)
    saving: list[asyncio.Future[None]] = []
    for number in range(10):
        checkpoint.set(name(number), number)
        saving += [asyncio.ensure_future(checkpoint.save()) for _ in range(3)]
        await asyncio.sleep(0)
    await asyncio.gather(*saving)
    assert len(written) <= 2
    assert on_disk(shelf) == {name(number): number for number in range(10)}


async def test_one_that_could_not_be_written_is_written_by_the_next_who_asks(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(path: str, data: bytes) -> None:
        raise OSError(28, "no space left on device")

    checkpoint = checkpoint_of(shelf)
    checkpoint.set(name(0), 5)
    with monkeypatch.context() as patch:
        patch.setattr(shelf.disk, "write_atomic", full)
        with pytest.raises(OSError, match="no space left"):
            await checkpoint.save()
    await checkpoint.save()
    assert on_disk(shelf) == {name(0): 5}


async def test_a_long_one_is_made_in_turns_with_others(shelf: Shelf) -> None:
    checkpoint, turns = checkpoint_of(shelf), 0
    for partition in range(20_000):
        checkpoint.set(name(partition), 1)
    saving = asyncio.ensure_future(checkpoint.save())
    while not (shelf.root / FILE).exists():
        await asyncio.sleep(0)
        turns += 1
    await saving
    assert turns > 20_000 / checkpoints.LINES_AT_ONCE
    assert len(on_disk(shelf)) == 20_000


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_line_was_right_between_the_call_and_its_return(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """So one that was lowered or dropped before `save` was called is so on disk afterwards."""
    monkeypatch.setattr(checkpoints, "LINES_AT_ONCE", 1)
    random, checkpoint = Random(seed), checkpoint_of(shelf)
    history: dict[PartitionName, list[tuple[int, int | None]]] = {
        name(number): [(0, None)] for number in range(PARTITIONS)
    }
    clock = 0

    def change() -> None:
        nonlocal clock
        clock += 1
        which = name(random.randrange(PARTITIONS))
        offset = None if random.random() < 0.2 else random.randrange(1000)
        if offset is None:
            checkpoint.drop(which)
        else:
            checkpoint.set(which, offset)
        history[which].append((clock, offset))

    def said_since(which: PartitionName, asked: int) -> set[int | None]:
        last = [offset for at, offset in history[which] if at <= asked][-1]
        return {last} | {offset for at, offset in history[which] if at > asked}

    async def save() -> None:
        asked = clock
        await checkpoint.save()
        text = on_disk(shelf)
        for which in history:
            assert text.get(which) in said_since(which, asked)

    async def go_on_saving() -> None:
        for _ in range(8):
            await save()
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)

    saving = [asyncio.ensure_future(go_on_saving()) for _ in range(3)]
    while not all(each.done() for each in saving):
        if random.random() < 0.5:
            change()
        await asyncio.sleep(0)
    await asyncio.gather(*saving)
    await save()
    now = {which: steps[-1][1] for which, steps in history.items()}
    assert on_disk(shelf) == {which: at for which, at in now.items() if at is not None}


Deed = Callable[[LogDir], Awaitable[None]]
TURNS: Final = 3 * PARTITIONS
"""Of a checkpoint that looks at one log in each: what to flush, where they start, how far."""


async def checkpoint_amid_which(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, turn: int, deed: Deed
) -> LogDir:
    """A directory of flushed logs; the deed is done in one of the turns of its checkpoint."""
    turns = count()
    directory = await ready(shelf)
    for partition in range(PARTITIONS):
        log = await log_in(shelf, directory, partition)
        for _ in range(30):
            shelf.append(log)
        await log.flush()

    async def next_turn() -> None:
        if next(turns) == turn:
            await deed(directory)

    monkeypatch.setattr(logdir, "LOOKED_AT_ONCE", 1)
    monkeypatch.setattr(logdir, "next_turn", next_turn)
    await directory.checkpoint()
    assert next(turns) >= TURNS - 1
    return directory


@pytest.mark.parametrize("turn", range(TURNS - 1))
async def test_a_truncation_amid_a_checkpoint_has_its_recovery_point_lowered(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    async def truncate(directory: LogDir) -> None:
        cut = {directory.logs[name(partition)]: 7 + partition for partition in (0, 3, 5)}
        assert not await directory.truncate_all(cut, shelf.now)
        lowered = on_disk(shelf, "recovery-point-offset-checkpoint")
        assert all(lowered.get(name(log.partition), 0) <= at for log, at in cut.items())

    directory = await checkpoint_amid_which(shelf, monkeypatch, turn, truncate)
    points = on_disk(shelf, "recovery-point-offset-checkpoint")
    assert all(points[name(n)] <= log.end_offset for n, log in enumerate(directory.logs.values()))
    assert points[name(1)] == 30
    directory.release()


@pytest.mark.parametrize("turn", range(TURNS - 1))
async def test_a_log_that_goes_amid_a_checkpoint_leaves_nothing_to_the_next_of_its_name(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    async def replace(directory: LogDir) -> None:
        gone = directory.logs[name(3)]
        gone.delete_records_to(10)
        directory.begin_deletion(gone)
        await gone.truncation.remove_files()
        await directory.open_log("t", 3, b"n" * 16, SETTINGS, shelf.now)

    directory = await checkpoint_amid_which(shelf, monkeypatch, turn, replace)
    for file in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        assert not on_disk(shelf, file).get(name(3))
    directory.release()
