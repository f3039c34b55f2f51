"""A follower that stands still, and a leader that nobody reaches."""

import asyncio

import pytest

from scriba.errors import ErrorCode
from scriba.events import EventKind
from tests.unit.broker.brokers import Brokers, play

STALL_MS = 1_000


def kinds(brokers: Brokers, broker_id: int) -> list[EventKind]:
    return [event.kind for event in brokers.nodes[broker_id].events.page(0, 256).events]


def cut(brokers: Brokers, *followers: int) -> None:
    """These brokers do not reach broker 2, nor it them; all of them reach the controller."""
    for follower in followers:
        brokers.sim.network.cut("b2", f"b{follower}")


def test_producers_wait_for_a_stuck_follower_no_longer_than_was_asked_for() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        cut(brokers, 3)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await brokers.produce(2, "t", b"x") is ErrorCode.NONE
        assert 1.0 <= loop.time() - begun < 2.5
        assert brokers.image("t").isr == (2, 1)
        shrunk = [
            e for e in brokers.nodes[2].events.page(0, 256).events if e.kind is EventKind.ISR_SHRUNK
        ]
        assert "stalled" in shrunk[-1].text
        brokers.sim.network.heal()
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2, 3})

    play(script, scriba_replica_stall_ms=STALL_MS)


@pytest.mark.parametrize("stopped", [3, 2], ids=["follower", "leader"])
def test_a_replica_whose_broker_stops_in_good_order_is_no_warning(stopped: int) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        await brokers.nodes[stopped].stop()
        leader = 5 - stopped if stopped == 2 else 2
        await brokers.until(lambda: stopped not in brokers.image("t").isr)
        await brokers.until(lambda: EventKind.REPLICA_STOPPED in kinds(brokers, leader))
        assert EventKind.ISR_SHRUNK not in kinds(brokers, leader)
        events = brokers.nodes[leader].events.page(0, 256).events
        (text,) = {
            e.text for e in events if e.kind is EventKind.REPLICA_STOPPED and e.about == "t-0"
        }
        assert text.startswith(f"replica {stopped} left the in-sync set: its broker stops, ")

    play(script)


def test_a_leader_that_no_follower_reaches_hands_over_before_it_shrinks_an_isr() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 4))
        await brokers.create("u", (2, 4, 3))
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        cut(brokers, 3, 4)
        await brokers.until(lambda: brokers.image("t").leader != 2, seconds=5)
        assert brokers.image("t").leader == 3
        assert brokers.image("u").leader == 4
        assert sorted(brokers.image("t").isr) == [2, 3, 4]
        assert EventKind.ISR_SHRUNK not in kinds(brokers, 2)
        assert EventKind.LEADER_CUT_OFF in kinds(brokers, 2)
        await brokers.until(lambda: brokers.leads(3, "t"))
        async with asyncio.timeout(5):  # broker 2 does not reach its new leader, either
            assert await brokers.produce(3, "t", b"after") is ErrorCode.NONE
        assert sorted(brokers.image("t").isr) == [3, 4]

    play(script, count=4, scriba_replica_stall_ms=STALL_MS)


def test_a_leader_that_was_reached_since_hands_over_again_when_it_is_cut_off_again() -> None:
    async def once(brokers: Brokers, topic: str) -> None:
        await brokers.create(topic, (2, 3, 4))
        assert await brokers.produce(2, topic, b"x") is ErrorCode.NONE
        await asyncio.sleep(12)  # longer than a hand-over bars the next one
        cut(brokers, 3, 4)
        await brokers.until(lambda: brokers.image(topic).leader == 3, seconds=5)
        assert EventKind.ISR_SHRUNK not in kinds(brokers, 2)
        brokers.sim.network.heal()
        await brokers.until(lambda: set(brokers.image(topic).isr) == {2, 3, 4})

    async def script(brokers: Brokers) -> None:
        await once(brokers, "t")
        await once(brokers, "u")

    play(script, count=4, scriba_replica_stall_ms=STALL_MS)


def test_it_hands_over_at_defaults_before_the_lag_time_is_over() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 4))
        await brokers.create("u", (3, 2, 4))
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        cut(brokers, 3, 4)
        await brokers.until(lambda: brokers.image("t").leader != 2, seconds=28)
        assert brokers.image("t").leader == 3
        assert sorted(brokers.image("t").isr) == [2, 3, 4]
        assert brokers.image("u").leader == 3
        assert brokers.image("u").leader_epoch == 0, "who is reached hands nothing over"
        assert EventKind.ISR_SHRUNK not in kinds(brokers, 2)
        await brokers.until(lambda: brokers.leads(3, "t"))
        assert await brokers.produce(3, "t", b"after", timeout_ms=60_000) is ErrorCode.NONE
        assert sorted(brokers.image("t").isr) == [3, 4]

    play(script, count=4)


def test_brokers_that_follow_others_by_now_are_not_silent() -> None:
    """Their sessions are still there, and say nothing of the way to this broker."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 4))
        await brokers.create("u", (2, 5))
        for topic in ("t", "u"):
            assert await brokers.produce(2, topic, b"x") is ErrorCode.NONE
        await brokers.elect("t", 3)
        assert len(brokers.nodes[2].replicas.follower_sessions) == 3
        cut(brokers, 5)
        await brokers.until(lambda: brokers.image("u").isr == (2,))
        assert brokers.image("u").leader == 2
        assert EventKind.LEADER_CUT_OFF not in kinds(brokers, 2)

    play(script, count=5)


def test_with_one_live_follower_a_leader_that_does_not_answer_bears_witness() -> None:
    """Broker 2 leads for 3 and follows 4, and reaches neither: it is 2 that is cut off."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        await brokers.create("u", (4, 2, 3))
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        cut(brokers, 3, 4)
        await brokers.until(lambda: brokers.image("t").leader == 3, seconds=28)
        assert sorted(brokers.image("t").isr) == [2, 3]
        assert EventKind.ISR_SHRUNK not in kinds(brokers, 2)

    play(script, count=4)


def test_with_one_live_follower_a_leader_that_answers_speaks_for_the_broker() -> None:
    """Broker 2 reaches 4: it is 3 that is cut off, and leaves the ISR in its time."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        await brokers.create("u", (4, 2))
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        cut(brokers, 3)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        assert brokers.image("t").leader == 2
        assert EventKind.LEADER_CUT_OFF not in kinds(brokers, 2)

    play(script, count=4)


def test_two_brokers_that_lose_each_other_do_not_hand_leaderships_back_and_forth() -> None:
    """Three replicas, one broker away: nobody can say which of the other two is cut off."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 4))
        await brokers.create("u", (3, 2, 4))
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        brokers.kill(4)
        await brokers.until(lambda: 4 not in brokers.image("t").isr)
        cut(brokers, 3)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        await brokers.until(lambda: brokers.image("u").isr == (3,))
        assert [brokers.image(topic).leader for topic in ("t", "u")] == [2, 3]

    play(script, count=4, min_insync_replicas=1)


def test_one_silent_follower_is_no_reason_to_step_down() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "2"})
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        cut(brokers, 3)
        await asyncio.sleep(8)
        assert brokers.image("t").leader == 2
        assert brokers.image("t").isr == (2, 3), "min.insync.replicas would not stay"
        brokers.sim.network.heal()
        assert await brokers.produce(2, "t", b"after") is ErrorCode.NONE

    play(script, scriba_replica_stall_ms=STALL_MS)
