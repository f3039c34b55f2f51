"""A coordinator whose partition has too few replicas in sync: it waits, and nothing has failed."""

import asyncio
from typing import Any

import pytest

from scriba.client import ClientError, TopicPartition
from scriba.controller.image import PartitionImage
from scriba.events import EventKind
from tests.sim.broker_stage import BROKERS, Stage, play

OFFSETS, GROUP = "__consumer_offsets", "readers"
PLACE = TopicPartition("t", 0)


async def commit(stage: Stage, offset: int) -> Any:
    return await stage.admin(
        lambda admin: admin.alter_group_offsets(GROUP, {PLACE: offset}, timeout_ms=20_000)
    )


@pytest.mark.parametrize("seed", range(2))
def test_missing_replicas_are_a_warning_and_soon_forgotten(seed: int) -> None:
    async def script(stage: Stage) -> None:
        await commit(stage, 1)
        node = stage.node(BROKERS[0])
        index = node.group_coordinators.partition_of(GROUP)

        def partition() -> PartitionImage:
            return stage.image.topics_by_name[OFFSETS].partitions[index]

        await stage.until(lambda: len(partition().isr) == 3)
        leader = partition().leader
        for at in BROKERS:
            if at != leader:
                stage.kill(at)
        await stage.until(lambda: partition().isr == (leader,))
        with pytest.raises(ClientError):
            await stage.admin(
                lambda admin: admin.alter_group_offsets(GROUP, {PLACE: 2}, timeout_ms=20_000)
            )
        coordinator = stage.node(leader)
        assert stage.told(coordinator, EventKind.COORDINATOR_WAITS_FOR_REPLICAS)
        assert not stage.told(coordinator, EventKind.COORDINATOR_FAILED)
        for at in BROKERS:
            if at != leader:
                await stage.cluster.nodes[at].start()
        await stage.until(lambda: len(partition().isr) > 1)
        async with asyncio.timeout(5):
            await commit(stage, 3)

    play(script, seed)
