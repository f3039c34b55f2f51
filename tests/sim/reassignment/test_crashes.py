"""Crash points of a reassignment: whoever is killed at whichever of its steps, the replicas are as
asked or as before, and every byte is there.

A step is each record of the move that the controller writes, each time that a broker carries out
one, each AlterPartition that its leader sends, and each log that is given up. The steps of a move
that nothing happens to are listed below, so that none can be added and not be tried.
"""

import asyncio
from typing import Any

import pytest

from scriba.broker.metadata.active import ActiveController
from scriba.broker.partitions.replicas import Replicas
from scriba.broker.partitions.replication.isr_updates import IsrUpdates
from scriba.client import ClientError
from scriba.storage.directory.logdir import LogDir
from scriba.storage.log import Log
from scriba.wire.messages.stored import PartitionChangeRecord
from tests.sim.reassignment.moving import (
    AFTER,
    BEFORE,
    CONTROLLER,
    OTHERS,
    SOURCE,
    TARGET,
    Moving,
    play,
)

NAMES = {SOURCE: "the source", TARGET: "the target", **dict.fromkeys(OTHERS, "another")}
STEPS = (
    "1. record is written",
    "1. change is carried out by the source",
    "1. change is carried out by the target",
    "1. AlterPartition is sent",
    "2. record is written",
    "2. change is carried out by the source",
    "2. change is carried out by the target",
    "1. log is given up",
)


class Steps:
    """Counts the steps of a move, and tells whoever waits for one."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.counting = False

    def take(self, what: str) -> None:
        if not self.counting:
            return
        number = 1 + sum(each.partition(". ")[2] == what for each in self.taken)
        step = f"{number}. {what}"
        self.taken.append(step)
        if (waiter := self.waiting.pop(step, None)) is not None:
            waiter.set_result(None)

    def reach(self, step: str) -> "asyncio.Future[None]":
        waiter = self.waiting[step] = asyncio.get_running_loop().create_future()
        return waiter


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    taken = Steps()
    append, apply = ActiveController._append, Replicas.apply
    request, begin_deletion = IsrUpdates._request, LogDir.begin_deletion

    def writes(self: ActiveController, records: Any) -> None:
        append(self, records)
        for record in records:
            if isinstance(record, PartitionChangeRecord):
                taken.take("record is written")

    def carries_out(self: Replicas, delta: Any, image: Any) -> None:
        apply(self, delta, image)
        if delta.partitions:
            taken.take(f"change is carried out by {NAMES[self._node.id]}")

    def asks(self: IsrUpdates, batch: Any) -> Any:
        taken.take("AlterPartition is sent")
        return request(self, batch)

    def gives_up(self: LogDir, log: Log) -> None:
        begin_deletion(self, log)
        taken.take("log is given up")

    monkeypatch.setattr(ActiveController, "_append", writes)
    monkeypatch.setattr(Replicas, "apply", carries_out)
    monkeypatch.setattr(IsrUpdates, "_request", asks)
    monkeypatch.setattr(LogDir, "begin_deletion", gives_up)
    return taken


def test_the_steps_of_a_move_are_known(steps: Steps) -> None:
    async def script(stage: Moving) -> None:
        steps.counting = True
        await stage.move(AFTER)
        await stage.settle(AFTER)
        await stage.until(lambda: stage.holds(SOURCE) == [])

    play(script)
    assert sorted(each for each in steps.taken if "another" not in each) == sorted(STEPS)


async def grant(stage: Moving) -> bool:
    """Whether the move was granted; otherwise nobody knows."""
    try:
        await stage.move(AFTER)
    except ClientError:
        return False
    return True


@pytest.mark.parametrize("victim", [SOURCE, TARGET, CONTROLLER])
@pytest.mark.parametrize("step", STEPS)
def test_replicas_are_as_asked_or_as_before_whoever_dies(
    steps: Steps, step: str, victim: int
) -> None:
    async def script(stage: Moving) -> None:
        writer = stage.sim.host("writer").start(lambda world: stage.write(world, 100_000))
        steps.counting = True
        reached = steps.reach(step)
        moving = asyncio.ensure_future(grant(stage))
        async with asyncio.timeout(60):
            await reached
        at = victim or next(at for at, node in stage.cluster.running() if node is stage.active)
        stage.kill(at)
        await asyncio.sleep(2)
        await stage.cluster.nodes[at].start()
        granted = await moving
        await stage.until(lambda: not stage.partition().is_reassigning)
        replicas = stage.partition().replicas
        assert replicas == AFTER or (not granted and replicas == BEFORE)
        await stage.settle(replicas)
        for broker in {*BEFORE, *AFTER} - {*replicas}:
            await stage.until(lambda broker=broker: stage.holds(broker) == [])  # type: ignore[misc]
        stage.stopping = True
        await writer.task
        assert [value for value in await stage.read() if value] == stage.acknowledged

    play(script)
