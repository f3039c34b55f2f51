"""Unclean elections in a whole cluster: three controllers ask three brokers what they have."""

import asyncio

import pytest

from scriba.client import ConfigResource, ElectionType
from scriba.controller.image import NO_LEADER
from scriba.events import EventKind
from tests.sim.broker_stage import Stage, play

UNCLEAN = "unclean.leader.election.enable"


async def set_topic(stage: Stage, name: str, value: str) -> None:
    changes = {ConfigResource.topic("t"): {name: value}}
    await stage.admin(lambda admin: admin.alter_configs(changes))


async def different_ends(stage: Stage) -> tuple[int, int, int]:
    """The leader goes last, alone with what was written last; the two others come back. Who has
    least (and would be elected first by its place), who has more, and the leader."""
    await set_topic(stage, "min.insync.replicas", "1")
    before = stage.partition()
    short, more = (at for at in before.replicas if at != before.leader)
    for sent, gone in ((10, short), (10, more), (10, before.leader)):
        await stage.send([b"%d" % number for number in range(sent)])
        stage.kill(gone)
        await stage.until(lambda gone=gone: gone not in stage.partition().isr)  # type: ignore[misc]
    for at in (short, more):
        await stage.cluster.nodes[at].start()
    await stage.until(lambda: not {short, more} & _fenced(stage))
    assert stage.partition().leader == NO_LEADER, "only the one that led may"
    return short, more, before.leader


def _fenced(stage: Stage) -> set[int]:
    return {broker.id for broker in stage.image.brokers.values() if broker.fenced}


async def told(stage: Stage) -> str:
    await stage.until(lambda: stage.told(stage.active, EventKind.UNCLEAN_CHOICE))
    (text,) = stage.told(stage.active, EventKind.UNCLEAN_CHOICE)
    return text


@pytest.mark.parametrize("seed", range(2))
def test_the_replica_that_has_the_most_is_elected_where_the_topic_allows_it(seed: int) -> None:
    async def script(stage: Stage) -> None:
        _, more, gone = await different_ends(stage)
        await set_topic(stage, UNCLEAN, "true")
        await stage.until(lambda: stage.partition().leader != NO_LEADER)
        assert stage.partition().leader == more
        text = await told(stage)
        assert text.startswith(f"broker {more} leads with what it has up to offset 20 ")
        assert f"broker {gone} did not answer: what only it had from offset 20 on is lost" in text
        assert stage.active.counters.replicas_asked == 2
        assert not stage.active.counters.replicas_passed_over
        await stage.until(lambda: len(stage.partition().isr) == 2)
        assert len(await stage.read()) == 20

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_an_administrators_election_goes_by_what_replicas_have(seed: int) -> None:
    async def script(stage: Stage) -> None:
        _, more, _ = await different_ends(stage)
        heard: dict[tuple[str, int], str] = {}
        await stage.admin(
            lambda admin: admin.elect_leaders(
                [("t", 0)], type=ElectionType.UNCLEAN, on_loss=heard.__setitem__
            )
        )
        assert stage.partition().leader == more
        assert heard == {("t", 0): await told(stage)}

    play(script, seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_replica_that_does_not_answer_in_time_is_passed_over(seed: int) -> None:
    async def script(stage: Stage) -> None:
        short, more, _ = await different_ends(stage)
        stage.cluster.nodes[more].process.pause()
        await set_topic(stage, UNCLEAN, "true")
        await stage.until(lambda: stage.partition().leader != NO_LEADER, 5)
        assert stage.partition().leader == short
        assert stage.active.counters.replicas_passed_over == 1
        stage.cluster.nodes[more].process.resume()
        await stage.until(lambda: len(stage.partition().isr) == 2)

    play(script, seed)


def test_without_a_wait_the_first_in_the_order_is_elected() -> None:
    async def script(stage: Stage) -> None:
        short, _, _ = await different_ends(stage)
        await set_topic(stage, UNCLEAN, "true")
        await stage.until(lambda: stage.partition().leader != NO_LEADER)
        assert stage.partition().leader == short
        assert not stage.told(stage.active, EventKind.UNCLEAN_CHOICE)
        assert not stage.active.counters.replicas_asked

    play(script, 0, {"scriba.unclean.wait.ms": "0"})


def test_a_controller_that_loses_its_epoch_while_it_asks_decides_nothing() -> None:
    async def script(stage: Stage) -> None:
        short, more, _ = await different_ends(stage)
        stage.cluster.nodes[more].process.pause()
        await set_topic(stage, UNCLEAN, "true")
        first = stage.active
        await stage.until(lambda: first.counters.replicas_asked)
        stage.cluster.nodes[first.id].process.pause()
        await stage.until(lambda: stage.actives() - {first.id})
        stage.cluster.nodes[more].process.resume()
        stage.cluster.nodes[first.id].process.resume()
        await stage.until(lambda: stage.actives() and first.id not in stage.actives())
        await stage.until(lambda: stage.partition().leader != NO_LEADER)
        assert stage.partition().leader == more
        await asyncio.sleep(5)
        assert not stage.told(first, EventKind.UNCLEAN_CHOICE)
        assert short in stage.partition().isr

    play(script, 0, {"scriba.unclean.wait.ms": "5000"})
