"""Moves between directories that a restart interrupts: asked for again while they are taken up."""

import asyncio
from typing import Any

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.storage.directory.logdir import LogDir
from scriba.storage.log import Log
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.directories.moving import (
    DIRS,
    alter,
    elsewhere,
    entries,
    filled,
    held_back,
    home,
    moved_to,
    restarted,
    slow,
    values,
)


def directory(brokers: Brokers, path: str) -> LogDir:
    return next(each for each in brokers.nodes[1].replicas.dirs if each.path == path)


async def interrupted(brokers: Brokers) -> str:
    """A restart in the middle of a move; its target."""
    target = elsewhere(home(brokers))
    await slow(brokers, 400_000)
    assert await alter(brokers, target) is ErrorCode.NONE
    await asyncio.sleep(4)
    await restarted(brokers)
    return target


def test_a_copy_that_is_opened_late_takes_no_place_of_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        gate = held_back(monkeypatch)
        target = await interrupted(brokers)
        assert await alter(brokers, home(brokers)) is ErrorCode.NONE  # it ends
        assert await alter(brokers, target) is ErrorCode.NONE  # and begins once more
        (move,) = brokers.nodes[1].replicas.moves.into(directory(brokers, target))
        gate.set()
        await brokers.until(lambda: any(each.endswith("-delete") for each in entries(brokers)))
        assert list(directory(brokers, target).futures.values()) == [move.log]
        await slow(brokers, 1 << 40)
        await moved_to(brokers, target)
        assert values(brokers.partition(1, "t")) == sent

    play(script, count=1, **DIRS)


def test_a_move_that_is_being_taken_up_is_not_begun_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        sent = await filled(brokers)
        gate = held_back(monkeypatch)
        target = await interrupted(brokers)
        before = entries(brokers)
        assert await alter(brokers, target) is ErrorCode.NONE
        assert entries(brokers) == before
        gate.set()
        await brokers.until(lambda: len(brokers.nodes[1].replicas.moves) == 1)
        (move,) = brokers.nodes[1].replicas.moves.into(directory(brokers, target))
        assert move.log.end_offset > 10, "it goes on from what is there"
        await slow(brokers, 1 << 40)
        await moved_to(brokers, target)
        assert values(brokers.partition(1, "t")) == sent

    play(script, count=1, **DIRS)


def test_a_copy_that_is_being_opened_is_kept_where_the_current_replica_goes_out_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        await filled(brokers)
        gate = held_back(monkeypatch)
        await interrupted(brokers)
        before = entries(brokers)
        brokers.partition(1, "t").log.fail("damaged", device=False)
        gate.set()
        await asyncio.sleep(5)
        assert entries(brokers) == before, "it may be all there is"

    play(script, count=1, **DIRS)


def test_a_copy_that_cannot_be_opened_either_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both replicas are out of use: the move ends, with a word for whoever repairs them."""
    gate = asyncio.Event()

    async def unreadable(directory: LogDir, *args: Any) -> Log:
        await gate.wait()
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a bad sector")

    async def script(brokers: Brokers) -> None:
        await filled(brokers)
        monkeypatch.setattr(LogDir, "open_future", unreadable)
        await interrupted(brokers)
        node, before = brokers.nodes[1], entries(brokers)
        brokers.partition(1, "t").log.fail("damaged", device=False)
        gate.set()
        await brokers.until(lambda: node.events.counts[EventKind.DIR_MOVE_ENDED])
        (told,) = (e.text for e in node.events.since() if e.kind is EventKind.DIR_MOVE_ENDED)
        assert told.endswith("a bad sector")
        assert entries(brokers) == before

    play(script, count=1, **DIRS)
