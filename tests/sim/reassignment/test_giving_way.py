"""A move without a throttle of its own gives way to clients, at its source and at its target."""

import asyncio

import pytest

from scriba.client import ConfigResource
from scriba.replication import giving_way
from scriba.replication.throttle import BURST_MS
from tests.sim.reassignment.moving import AFTER, RECORDS, SOURCE, TARGET, Moving, play, set_to

RATE = 20_000
"""Bytes a second that a move begins with and has at least: all of it is four seconds' worth."""


async def keep_busy(stage: Moving, broker: int) -> None:
    """The loop of a broker is late, and clients wait for it."""
    node = stage.node(broker)
    while True:
        node.world.lag.add(50.0)
        node.counters.topic_bytes_in += 1
        await asyncio.sleep(0.025)


async def moved_in(stage: Moving, busy: int | None) -> float:
    floor = set_to(scriba_reassignment_min_rate=str(RATE))
    await stage.admin(
        lambda admin: admin.incremental_alter_configs({ConfigResource.broker(): floor})
    )
    await stage.until(lambda: stage.node(TARGET).settings.scriba_reassignment_min_rate == RATE)
    load = None if busy is None else asyncio.ensure_future(keep_busy(stage, busy))
    begun = stage.sim.loop.time()
    await stage.move(AFTER)
    await stage.settle(AFTER)
    if load is not None:
        load.cancel()
    return stage.sim.loop.time() - begun


@pytest.mark.parametrize("busy", [SOURCE, TARGET])
def test_a_move_takes_longer_where_clients_wait(busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_way, "START", RATE)
    took: list[float] = []

    async def script(stage: Moving) -> None:
        size = stage.node(SOURCE).replicas.get("t", 0).log.size  # type: ignore[union-attr]
        took.append((size - RATE * BURST_MS / 1000) / RATE)
        took.append(await moved_in(stage, busy))

    async def alone(stage: Moving) -> None:
        took.append(await moved_in(stage, None))

    play(script)
    play(alone)
    least, busied, idle = took
    assert least > RECORDS * 500 / RATE * 0.9
    assert busied > 0.8 * least
    assert idle < busied / 1.5
