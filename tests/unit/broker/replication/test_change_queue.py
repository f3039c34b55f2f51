"""Changes of the image are carried out one after the other, and others have their turn between."""

import asyncio

import pytest

from scriba.broker.partitions.change_queue import ChangeQueue
from scriba.runtime.clock import SystemClock
from scriba.runtime.loop import pace
from scriba.runtime.loop.tasks import Tasks

CHANGES = 20


class World:
    clock = SystemClock()


class Node:
    def __init__(self) -> None:
        self.tasks = Tasks()
        self.world = World()


class NoBacklog:
    def has_backlog(self) -> bool:
        return False

    async def work_off(self) -> None:
        raise AssertionError("there is none")


async def test_many_short_changes_give_way_to_the_rest_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "SLICE_MS", 0)
    queue = ChangeQueue(Node(), NoBacklog())
    done: list[int] = []
    seen: list[int] = []

    def change(number: int) -> None:
        async def carry_out() -> None:
            done.append(number)

        queue.append(carry_out)

    for number in range(CHANGES):
        change(number)
    queue.wake()
    while not queue.idle:
        await asyncio.sleep(0)
        seen.append(len(done))
    assert done == list(range(CHANGES))
    assert set(seen) == set(range(CHANGES + 1)), "several of them were carried out in one step"
