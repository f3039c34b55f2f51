"""Connections between brokers: shared, made anew after a failure, given up with their broker."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scriba.broker.channels import MAX_IN_FLIGHT, BrokerChannels
from scriba.controller.image import BrokerImage, ClusterImage, Delta, Listener
from scriba.peers.errors import Closed, NetworkError, TimedOut
from scriba.settings import NodeSettings
from scriba.testing.sim.node import SimNode
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from scriba.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

BROKER = 2


def broker(host: str = "two", *, epoch: int = 7, fenced: bool = False) -> BrokerImage:
    listeners = (Listener("CLIENTS", "nowhere", 1, 0), Listener("PLAINTEXT", host, 9092, 0))
    return BrokerImage(
        BROKER, epoch, bytes(16), listeners, {}, None, fenced, False, (bytes(16),), (), 0
    )


class Rig:
    """The channels of broker 1, and a whole broker on another host."""

    def __init__(self, world: ProcessWorld, sim: SimWorld, other: SimNode, **settings: Any) -> None:
        self.sim = sim
        self.other = other
        self.image = ClusterImage()
        self.image.brokers[BROKER] = broker()
        node: Any = SimpleNamespace(
            id=1, world=world, settings=NodeSettings(**settings), image=self.image
        )
        self.channels = BrokerChannels(node)

    def change(self, after: BrokerImage | None) -> None:
        delta = Delta()
        delta.brokers[BROKER] = self.image.brokers[BROKER]
        if after is None:
            del self.image.brokers[BROKER]
        else:
            self.image.brokers[BROKER] = after
        self.channels.on_change(delta, self.image)

    @property
    def connects(self) -> int:
        return sum(" connect " in line and " caller " in line for line in self.sim.trace.last)

    async def make_topic(self) -> None:
        """Metadata makes the topic that it is asked for."""
        topics = [MetadataRequestTopic(name="t")]
        await self.channels.call(BROKER, MetadataRequest(topics=topics))
        assert self.other.node is not None
        assert "t" in self.other.node.image.topics_by_name

    def fetch(self, purpose: str = "", timeout_ms: int | None = None) -> "asyncio.Task[Any]":
        """A fetch that waits for records."""
        fetch = FetchRequest(
            max_wait_ms=20_000,
            min_bytes=1,
            max_bytes=1000,
            topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition_max_bytes=1000)])],
        )
        call = self.channels.call(BROKER, fetch, 12, purpose=purpose, timeout_ms=timeout_ms)
        return asyncio.ensure_future(call)

    async def ask(self) -> MetadataResponse:
        answer: MetadataResponse = await self.channels.call(BROKER, MetadataRequest(topics=[]))
        return answer


def play(script: Callable[[Rig], Awaitable[None]], **settings: Any) -> None:
    sim = SimWorld(seed=3)
    given = {
        "node.id": str(BROKER),
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "advertised.listeners": "PLAINTEXT://two:9092",
    }

    async def main() -> None:
        other = SimNode(sim.host("two"), lambda: NodeSettings.parse(given), pytest.fail)
        await other.start()

        async def caller(world: ProcessWorld) -> None:
            rig = Rig(world, sim, other, **settings)
            await rig.make_topic()
            await script(rig)

        await sim.host("caller").start(caller).task

    sim.run(main())


def test_requests_to_a_broker_share_one_connection() -> None:
    async def script(rig: Rig) -> None:
        answers = await asyncio.gather(*(rig.ask() for _ in range(20)))
        assert {a.brokers[0].node_id for a in answers} == {BROKER}
        assert rig.connects == 1

    play(script)


def test_a_connection_with_a_purpose_does_not_wait_for_the_others() -> None:
    async def script(rig: Rig) -> None:
        fetch = rig.fetch("replication")
        await asyncio.sleep(0.2)
        await rig.ask()
        assert not fetch.done()
        assert rig.connects == 2

    play(script)


def test_a_killed_broker_fails_the_request_and_its_successor_is_reached() -> None:
    async def script(rig: Rig) -> None:
        await rig.ask()
        waiting = rig.fetch()
        await asyncio.sleep(0.1)
        rig.other.process.kill()
        with pytest.raises(NetworkError):
            await waiting
        with pytest.raises(NetworkError):
            await rig.ask()
        await rig.other.start()
        assert (await rig.ask()).brokers[0].node_id == BROKER

    play(script)


@pytest.mark.parametrize(
    "after",
    [None, broker("elsewhere"), broker(epoch=8), broker(fenced=True)],
    ids=["unregistered", "moved", "restarted", "fenced"],
)
def test_requests_end_with_the_broker_they_were_meant_for(after: BrokerImage | None) -> None:
    async def script(rig: Rig) -> None:
        waiting = rig.fetch()
        await asyncio.sleep(0.1)
        rig.change(after)
        with pytest.raises(NetworkError):
            await waiting

    play(script)


def test_a_broker_whose_leaderships_change_keeps_its_connection() -> None:
    async def script(rig: Rig) -> None:
        await rig.ask()
        rig.change(rig.image.brokers[BROKER]._replace(in_controlled_shutdown=True))
        await rig.ask()
        assert rig.connects == 1

    play(script)


def test_an_address_that_moved_is_followed() -> None:
    async def script(rig: Rig) -> None:
        rig.image.brokers[BROKER] = broker("nobody")
        with pytest.raises(NetworkError):
            await rig.ask()
        rig.change(broker())
        assert (await rig.ask()).brokers[0].node_id == BROKER

    play(script)


def test_a_broker_that_is_unknown_is_an_error_at_once() -> None:
    async def script(rig: Rig) -> None:
        with pytest.raises(NetworkError, match="broker 9 is not known"):
            await rig.channels.call(9, MetadataRequest(topics=[]))

    play(script)


def test_an_answer_that_does_not_come_in_time_ends_the_call() -> None:
    async def script(rig: Rig) -> None:
        await rig.ask()
        with pytest.raises(TimedOut):
            await rig.fetch(timeout_ms=300)
        await rig.ask()

    play(script)


def test_a_connection_carries_a_bounded_number_of_requests() -> None:
    async def script(rig: Rig) -> None:
        await rig.ask()
        calls = [asyncio.ensure_future(rig.ask()) for _ in range(MAX_IN_FLIGHT + 1)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, NetworkError) for each in done) == 1

    play(script)


def test_a_closed_node_asks_nobody() -> None:
    async def script(rig: Rig) -> None:
        waiting = rig.fetch()
        await asyncio.sleep(0.1)
        rig.channels.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await rig.ask()

    play(script)
