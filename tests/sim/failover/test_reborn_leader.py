"""A broker that comes back does not take up what its last incarnation led."""

import asyncio

import pytest

from scriba.broker.metadata import active
from scriba.client import NewTopic
from scriba.testing.sim.world.net import Path
from scriba.testing.sim.world.world import SimWorld
from tests.sim.broker_stage import BROKERS, Stage

PARTITIONS = 12
REBORN = 4


def leads_too_early(stage: Stage) -> list[str]:
    """What it leads before the metadata knows it as the one that it is now."""
    node = stage.cluster.nodes[REBORN].node
    replicas = getattr(node, "replicas", None)
    if node is None or replicas is None:
        return []
    known = node.image.brokers[REBORN]
    if known.epoch == node.broker_epoch:
        return []
    return [f"{p.topic}-{p.index}" for p in replicas if p.leader is not None]


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_leader_leads_nothing_in_its_old_epoch(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its registration is many records, batch by batch, and it hears of each a little later."""
    monkeypatch.setattr(active, "SLICE", 1)
    sim = SimWorld(seed)
    stage = Stage(sim)
    placed = {at: [REBORN, *(b for b in BROKERS if b != REBORN)] for at in range(PARTITIONS)}

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == len(BROKERS))
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", assignments=placed)]))
        await stage.until(lambda: len(stage.partition().isr) == len(BROKERS))
        for controller in stage.cluster.voters:
            sim.network.worsen(f"n{controller}", f"n{REBORN}", Path(delay_ms=(1, 20)))
        stage.kill(REBORN)
        stage.cluster.nodes[REBORN].boot()
        async with asyncio.timeout(60):
            while not stage.cluster.nodes[REBORN].is_up:
                assert leads_too_early(stage) == []
                await asyncio.sleep(0.001)
        epochs = {p.leader_epoch for p in stage.image.topics_by_name["t"].partitions.values()}
        assert min(epochs) > 0

    sim.run(main())
    assert not stage.complaints
