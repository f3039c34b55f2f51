"""A reassignment whose target is full: it stalls, says so, and goes on when there is room."""

import asyncio

from scriba.errors import ErrorCode
from scriba.events import EventKind
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.stored_records import stored_records

VALUE = b"." * 100_000


def told(brokers: Brokers, broker_id: int, kind: EventKind) -> list[str]:
    events = brokers.nodes[broker_id].events.page(0, 256).events
    return [event.text for event in events if event.kind is kind]


def test_a_move_to_a_full_broker_waits_for_room_and_clients_do_not_notice() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,))
        sent = [b"%d" % n + VALUE for n in range(20)]
        for value in sent:
            assert await brokers.produce(1, "t", value) is ErrorCode.NONE
        host = brokers.sim.host("b2")
        host.disk_faults.capacity = host.volume.used + 500_000
        host.disk_faults.full_in = "/t-0"
        await brokers.reassign("t", (2,))
        await brokers.until(lambda: told(brokers, 2, EventKind.WRITE_REFUSED))
        await brokers.until(lambda: told(brokers, 2, EventKind.FOLLOWER_FAILED))
        (why,) = told(brokers, 2, EventKind.FOLLOWER_FAILED)
        assert "cannot append what broker 1 sent" in why
        assert "No space left" in why
        for _ in range(5):
            sent.append(b"while it is full")
            assert await brokers.produce(1, "t", sent[-1]) is ErrorCode.NONE
            assert (await brokers.consume(1, "t", len(sent) - 1)).records
            await asyncio.sleep(1)
        image = brokers.image("t")
        assert (image.leader, image.isr, image.replicas) == (1, (1,), (2, 1))
        assert image.is_reassigning
        host.disk_faults.full_in = "nowhere"
        await brokers.until(lambda: not brokers.image("t").is_reassigning)
        assert brokers.image("t").replicas == (2,)
        await brokers.until(lambda: brokers.leads(2, "t"))
        assert [r.value for r in await stored_records(brokers.partition(2, "t"))] == sent
        assert await brokers.produce(2, "t", b"after") is ErrorCode.NONE

    play(script, count=2)


def test_a_move_to_a_full_broker_that_is_cancelled_leaves_all_as_it_was() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,))
        sent = [b"%d" % n + VALUE for n in range(10)]
        for value in sent:
            assert await brokers.produce(1, "t", value) is ErrorCode.NONE
        host = brokers.sim.host("b2")
        host.disk_faults.capacity = host.volume.used + 300_000
        host.disk_faults.full_in = "/t-0"
        await brokers.reassign("t", (2,))
        await brokers.until(lambda: told(brokers, 2, EventKind.FOLLOWER_FAILED))
        await brokers.reassign("t", None)
        await brokers.until(lambda: brokers.image("t").replicas == (1,))
        assert brokers.image("t").isr == (1,)
        assert [r.value for r in await stored_records(brokers.partition(1, "t"))] == sent
        assert await brokers.produce(1, "t", b"after") is ErrorCode.NONE

    play(script, count=2)
