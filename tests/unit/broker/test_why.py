"""`scriba topic why` against brokers: every live replica is asked, whether anybody leads or not."""

from typing import Any

from scriba.cli.topics.why import named
from scriba.client import Admin
from scriba.client.diagnosis.explain import OFFLINE, UNDER_MIN_ISR, WELL
from scriba.client.diagnosis.gather import explained
from scriba.errors import ErrorCode
from tests.unit.broker.brokers import PORT, Brokers, play


async def why(brokers: Brokers, text: str) -> list[dict[str, Any]]:
    async with Admin(bootstrap_servers=f"b1:{PORT}", _ports=brokers.client) as admin:
        topic, number = await named(admin, text)
        return await explained(admin, topic, number, 3_000, brokers.client.clock.wall_ms())


def ends(document: dict[str, Any]) -> list[int | None]:
    return [each["end_offset"] for each in document["replicas"]]


def test_a_partition_is_explained_from_well_to_offline() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t-1", (2, 3, 1), (1, 2, 3), configs={"min.insync.replicas": "2"})
        for at in range(3):
            assert await brokers.produce(2, "t-1", b"%d" % at) is ErrorCode.NONE
        well, other = await why(brokers, "t-1")
        assert (well["state"], other["state"]) == (WELL, WELL)
        assert ends(well) == [3, 3, 3]
        assert well["committed"] == 3

        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t-1").isr == (2, 1))
        assert await brokers.produce(2, "t-1", b"without 3") is ErrorCode.NONE
        brokers.kill(2)
        await brokers.until(lambda: brokers.image("t-1").leader == 1)
        (short,) = await why(brokers, "t-1-0")
        assert short["state"] == UNDER_MIN_ISR
        assert [each["broker"] for each in short["awaited"]] == [2, 3]
        assert ends(short) == [None, None, 4]

        await brokers.elect_nobody("t-1")
        (dark,) = await why(brokers, "t-1:0")
        assert dark["state"] == OFFLINE
        assert ends(dark) == [None, None, 4], "a replica tells what it has without a leader, too"
        assert dark["committed"] == 3, "it never heard that the last one was"
        assert dark["unheard"][1] == {"node": 2, "why": "it does not run"}

    play(script)
