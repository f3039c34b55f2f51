"""Controllers over a log that uses what they lack, as another release may have written it."""

from scriba.events import EventKind
from scriba.wire.messages.stored import FeatureLevelRecord
from tests.sim.quorum.nodes import SimQuorum, play


def test_a_controller_that_cannot_lead_leaves_it_to_others_and_does_not_end() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        active = quorum.node(leader).metadata.active
        assert active is not None
        record = FeatureLevelRecord(name="share.version", feature_level=1)
        await active.step(lambda machine, now: [record])
        await quorum.same_image()
        quorum.kill(leader)

        def passed_on() -> bool | None:
            counts = [node.events.counts for node in quorum.alive.values()]
            return all(each[EventKind.QUORUM_NOT_LED] for each in counts) or None

        await quorum.until(passed_on, 60, "not both of them were elected and gave way")
        assert len(quorum.alive) == 2
        assert not quorum.actives()

    play(story)
