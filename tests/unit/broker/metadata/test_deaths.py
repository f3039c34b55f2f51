"""Proof of death: who is fenced at once, and who keeps its session."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimProcess, SimWorld
from scriba.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    BrokerRegistrationResponse,
)
from tests.unit.broker.metadata.remote_callers import RemoteCaller

OTHER = 7
DIRECTORY = b"a disk of node 7"
SESSION_MS = 9_000


class OtherBroker:
    """What a broker on another host says to the controller, and its listener."""

    def __init__(self, sim: SimWorld) -> None:
        self.sim = sim
        self.process: SimProcess
        self.caller: RemoteCaller
        self.epoch = -1

    async def start(self, incarnation: bytes = bytes(16), beats: bool = True) -> None:
        up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serve(world: ProcessWorld) -> None:
            world.net.listen("other", 9092, lambda stream: None)
            self.caller = RemoteCaller(world, OTHER)
            try:
                await self.register(incarnation)
                await self.heartbeat()
                up.set_result(None)
            except KafkaError as error:
                up.set_exception(error)
            while beats:
                await asyncio.sleep(1)
                await self.heartbeat()
            await asyncio.get_running_loop().create_future()

        self.process = self.sim.host("other").start(serve)
        await up

    async def register(self, incarnation: bytes) -> None:
        features = [
            BrokerRegistrationRequestFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in self.caller.supported.items()
        ]
        listener = BrokerRegistrationRequestListener(name="PLAINTEXT", host="other", port=9092)
        answer: BrokerRegistrationResponse = await self.caller.channel.call(
            BrokerRegistrationRequest(
                broker_id=OTHER,
                cluster_id=self.caller.cluster_id,
                incarnation_id=incarnation,
                listeners=[listener],
                features=features,
                log_dirs=[DIRECTORY],
            ),
            timeout_ms=2_000,
        )
        self.epoch = answer.broker_epoch

    async def heartbeat(self) -> BrokerHeartbeatResponse:
        answer: BrokerHeartbeatResponse = await self.caller.channel.call(
            BrokerHeartbeatRequest(
                broker_id=OTHER, broker_epoch=self.epoch, current_metadata_offset=1 << 40
            )
        )
        return answer


class Stage:
    def __init__(self, sim: SimWorld, node: Node) -> None:
        self.sim = sim
        self.node = node
        self.other = OtherBroker(sim)

    @property
    def fenced(self) -> bool:
        return self.node.image.brokers[OTHER].fenced

    async def fenced_within(self, ms: int) -> bool:
        for _ in range(ms // 10):
            if self.fenced:
                break
            await asyncio.sleep(0.01)
        return self.fenced

    def told(self) -> int:
        return self.node.events.counts.get(EventKind.BROKER_LOST, 0)


def play(script: Callable[[Stage], Awaitable[None]]) -> None:
    sim = SimWorld(seed=11)
    given = {
        "node.id": "1",
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": "PLAINTEXT://controller:9092",
    }

    async def main() -> None:
        up: asyncio.Future[Node] = asyncio.get_running_loop().create_future()

        async def serve(world: ProcessWorld) -> None:
            node = Node(NodeSettings.parse(given), world)
            await node.start()
            up.set_result(node)
            await node.wait_stopped()

        sim.host("controller").start(serve)
        stage = Stage(sim, await up)
        RemoteCaller.cluster_id = stage.node.cluster_id
        await script(stage)

    sim.run(main())


def test_a_killed_broker_is_fenced_at_once() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start()
        assert not stage.fenced
        stage.other.process.kill()
        assert await stage.fenced_within(200)
        assert stage.told() == 1

    play(script)


def test_a_broker_that_only_lost_its_connection_stays() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start()
        for _ in range(5):
            stage.sim.network.reset_some("other")
            assert not await stage.fenced_within(2_000)
        assert not stage.told()

    play(script)


def test_a_broker_that_is_cut_off_keeps_its_session() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start()
        stage.sim.network.cut("controller", "other")
        stage.other.process.kill()
        assert not await stage.fenced_within(SESSION_MS - 2_500)
        assert await stage.fenced_within(5_000)
        assert not stage.told()

    play(script)


def test_a_broker_whose_address_says_nothing_keeps_its_session() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start()
        stage.sim.network.cut("controller", "other")
        stage.sim.network.reset_some("other")
        assert not await stage.fenced_within(SESSION_MS - 2_500)
        assert await stage.fenced_within(5_000)
        assert not stage.told()

    play(script)


def test_a_stopped_process_keeps_its_session() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start()
        stage.other.process.pause()
        assert not await stage.fenced_within(SESSION_MS - 2_500)
        assert await stage.fenced_within(5_000)

    play(script)


def test_a_machine_without_power_keeps_its_session() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start()
        stage.sim.host("other").power_cut()
        assert not await stage.fenced_within(SESSION_MS - 2_500)
        assert await stage.fenced_within(5_000)

    play(script)


def test_a_restarted_broker_is_admitted_at_once() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start(b"the first life..")
        stage.other.process.kill()
        began = stage.node.world.clock.mono_ms()
        await stage.other.start(b"the second life.")
        assert stage.node.world.clock.mono_ms() - began < 1_000
        assert not stage.fenced

    play(script)


def test_an_id_that_lives_is_not_given_twice() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start(b"the first life..")
        twin = OtherBroker(stage.sim)

        async def copy(world: ProcessWorld) -> None:
            twin.caller = RemoteCaller(world, OTHER)
            await twin.register(b"an impostor.....")

        with pytest.raises(KafkaError) as caught:
            await stage.sim.host("twin").start(copy).task
        assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert not stage.fenced

    play(script)


def test_a_controller_that_stops_takes_nobody_for_dead() -> None:
    async def script(stage: Stage) -> None:
        await stage.other.start(beats=False)
        stage.node.deaths.close()
        stage.other.process.kill()
        assert not await stage.fenced_within(3_000)

    play(script)
