"""The active controller tells which brokers it fences and lets back in, and why."""

import logging

import pytest

from scriba.client import BrokerError, Endpoint
from scriba.errors import ErrorCode
from scriba.events import EventKind
from tests.sim.broker_stage import BROKERS, Stage, play


def told(stage: Stage, kind: EventKind) -> list[tuple[str, str]]:
    """About whom, and the word that the text begins with."""
    events = stage.active.events.page(0, 1000).events
    return [(each.about, each.text.partition(":")[0]) for each in events if each.kind is kind]


def test_every_fencing_is_told_with_its_cause_and_so_is_the_way_back() -> None:
    async def script(stage: Stage) -> None:
        killed, paused, stopped = BROKERS
        came = [(f"broker {at}", "unfenced") for at in BROKERS]
        assert sorted(told(stage, EventKind.BROKER_UNFENCED)) == came
        assert not told(stage, EventKind.BROKER_FENCED)
        stage.kill(killed)
        await stage.until(lambda: told(stage, EventKind.BROKER_FENCED))
        stage.cluster.nodes[paused].process.pause()
        await stage.until(lambda: len(told(stage, EventKind.BROKER_FENCED)) == 2)
        await stage.cluster.nodes[stopped].stop()
        await stage.until(lambda: told(stage, EventKind.BROKER_STOPPED))
        assert told(stage, EventKind.BROKER_FENCED) == [
            (f"broker {killed}", "refused"),
            (f"broker {paused}", "silent"),
        ]
        assert told(stage, EventKind.BROKER_STOPPED) == [(f"broker {stopped}", "stopped")]
        assert EventKind.BROKER_STOPPED.level < logging.WARNING, "nothing is wrong"
        await stage.cluster.nodes[stopped].start()
        await stage.until(lambda: len(told(stage, EventKind.BROKER_UNFENCED)) == 4)
        assert told(stage, EventKind.BROKER_UNFENCED)[-1] == (f"broker {stopped}", "unfenced")
        stage.cluster.nodes[paused].process.resume()

    play(script, 0)


def test_a_voter_that_is_there_as_asked_for_is_added() -> None:
    """The answer to the request that added it may have been lost on the way."""

    async def script(stage: Stage) -> None:
        quorum = await stage.admin(lambda admin: admin.describe_quorum())
        voter = quorum.voters[0]
        ends = quorum.endpoints[voter.id]
        await stage.admin(lambda admin: admin.add_raft_voter(voter.id, voter.directory_id, ends))
        elsewhere = [Endpoint(ends[0].name, "elsewhere", 1)]
        with pytest.raises(BrokerError) as refused:
            await stage.admin(
                lambda admin: admin.add_raft_voter(voter.id, voter.directory_id, elsewhere)
            )
        assert refused.value.code is ErrorCode.DUPLICATE_VOTER

    play(script, 0)
