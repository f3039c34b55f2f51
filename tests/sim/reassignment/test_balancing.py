"""`scriba.balance.auto` on a cluster: a broker joins, one is gone, the controller dies in between,
and clients write meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

from scriba.broker.metrics.exposition import render
from scriba.client import NewTopic
from scriba.controller.partitions.balance_runs import runs_of
from scriba.events import EventKind
from scriba.settings.balance_runs import Run
from scriba.testing.sim.world.world import SimWorld
from tests.sim.broker_stage import Stage
from tests.unit.broker.scraping import parsed

PARTITIONS = 60
SETTINGS = {
    "scriba.balance.auto": "true",
    "scriba.balance.gone.ms": "20000",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
}
JOINS = 7
EVEN = dict.fromkeys(range(4, 8), PARTITIONS * 2 // 4)


def held(stage: Stage) -> dict[int, int]:
    """Of each broker, how many replicas it has or will have."""
    counts = dict.fromkeys(range(4, 8), 0)
    for each in stage.image.topics_by_name["t"].partitions.values():
        for broker in each.target:
            counts[broker] += 1
        live = [b for b in each.isr if not stage.image.brokers[b].fenced]
        assert len(live) >= 2, "never fewer than asked"
    return counts


def whole(stage: Stage) -> bool:
    partitions = stage.image.topics_by_name["t"].partitions.values()
    return all({*each.isr} == {*each.replicas} == {*each.target} for each in partitions)


def play(script: Callable[[Stage], Awaitable[None]], seed: int) -> None:
    """Three brokers have a topic; the fourth is yet to come."""
    stage = Stage(SimWorld(seed), 4, SETTINGS)

    async def main() -> None:
        nodes = [node for at, node in stage.cluster.nodes.items() if at != JOINS]
        for node in nodes:
            node.boot()
        await asyncio.gather(*(node.came_up() for node in nodes))
        await stage.until(lambda: len(stage.image.brokers) == 3)
        await stage.until(lambda: not any(b.fenced for b in stage.image.brokers.values()))
        placed = {n: [4 + n % 3, 4 + (n + 1) % 3] for n in range(PARTITIONS)}
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", assignments=placed)]))
        await stage.until(lambda: whole(stage))
        await stage.send([b"%d" % n for n in range(200)])
        await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


def test_a_broker_joins_and_one_is_gone_and_comes_back() -> None:
    async def script(stage: Stage) -> None:
        stage.cluster.nodes[JOINS].boot()
        await stage.until(lambda: held(stage)[JOINS] > 0)
        found = parsed(render(stage.active))
        assert found["scriba_balance_brokers"] == 1
        assert found["scriba_balance_partitions_left"] > 0
        await stage.until(lambda: not runs_of(stage.image) and whole(stage))
        assert held(stage) == EVEN
        told = stage.told(stage.active, EventKind.BALANCE_BEGUN)
        assert told == ["it gets its share of the replicas"]
        await stage.until(lambda: stage.told(stage.active, EventKind.BALANCE_ENDED))
        stage.kill(5)
        await stage.until(lambda: runs_of(stage.image) == {5: Run.EMPTIED})
        await stage.until(lambda: whole(stage))
        assert held(stage) == {4: 40, 5: 0, 6: 40, 7: 40}
        await stage.cluster.nodes[5].start()
        await stage.until(lambda: not runs_of(stage.image) and whole(stage))
        assert held(stage) == EVEN

    play(script, 1)


def test_the_next_controller_goes_on_where_the_last_one_ended() -> None:
    async def script(stage: Stage) -> None:
        stage.cluster.nodes[JOINS].boot()
        await stage.until(lambda: held(stage)[JOINS] > 0)
        killed = stage.active.id
        stage.kill(killed)
        await stage.until(lambda: _another(stage, killed))
        await stage.until(lambda: runs_of(stage.image) == {JOINS: Run.FILL})
        await stage.until(lambda: not runs_of(stage.image) and whole(stage))
        assert held(stage) == EVEN

    play(script, 3)


def _another(stage: Stage, killed: int) -> bool:
    active = [
        at
        for at, node in stage.cluster.running()
        if getattr(node, "metadata", None) is not None and node.metadata.active is not None
    ]
    return bool(active) and killed not in active
