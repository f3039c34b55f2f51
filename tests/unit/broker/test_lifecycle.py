"""A broker and its controller: nothing that the controller says, or does not say, ends a broker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.config import StartError
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimHost, SimWorld
from scriba.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
)
from scriba.wire.schema import Message

Script = Callable[[Node], Awaitable[None]]


def life(host: SimHost, script: Script, kill: bool = False, **settings: str) -> Awaitable[None]:
    """One process of a node: it starts, the script runs, it stops or is killed."""
    given = {
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }

    async def serve(world: ProcessWorld) -> None:
        node = Node(NodeSettings.parse(given), world)
        await node.start()
        await script(node)
        if not kill:
            await node.stop()

    process = host.start(serve)

    async def whole() -> None:
        await process.task
        process.kill()

    return whole()


def play(main: Callable[[SimHost], Awaitable[None]]) -> None:
    sim = SimWorld(seed=4)

    async def outside() -> None:
        await main(sim.host("node"))

    sim.run(outside())


async def nothing(node: Node) -> None:
    pass


class Refusals:
    """Answers in the controller's place, as often as it is told to."""

    def __init__(self, node: Node, kind: type[Message], *codes: ErrorCode) -> None:
        self.left = list(codes)
        self.seen: list[Any] = []
        self._kind = kind
        self._call = node.controller.call
        node.controller.call = self.call  # type: ignore[method-assign]

    async def call(self, request: Message, *more: Any, **named: Any) -> Any:
        if isinstance(request, self._kind):
            self.seen.append(request)
            if self.left:
                raise KafkaError(self.left.pop(0))
        return await self._call(request, *more, **named)


def test_a_refused_heartbeat_does_not_end_the_broker() -> None:
    async def script(node: Node) -> None:
        codes = [
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ]
        refusals = Refusals(node, BrokerHeartbeatRequest, *codes)
        watching = asyncio.ensure_future(node.wait_stopped())
        await asyncio.sleep(12)
        assert not refusals.left
        assert len(refusals.seen) > len(codes)
        assert not watching.done()
        assert node.events.counts[EventKind.CONTROLLER_UNREACHABLE] == len(codes)
        watching.cancel()

    play(lambda host: life(host, script))


def test_a_broker_that_was_unregistered_registers_again() -> None:
    async def script(node: Node) -> None:
        before = node.broker_epoch
        await node.controller.call(UnregisterBrokerRequest(broker_id=node.id))
        assert node.id not in node.image.brokers
        await asyncio.sleep(5)
        assert node.broker_epoch > before
        assert not node.image.brokers[node.id].fenced

    play(lambda host: life(host, script))


def test_a_clean_restart_tells_under_which_epoch_it_stopped() -> None:
    async def main(host: SimHost) -> None:
        epochs: list[int] = []
        told: list[int] = []

        async def note(node: Node) -> None:
            told.append(node.log_dirs.shutdown_epoch())
            epochs.append(node.broker_epoch)

        await life(host, note)
        await life(host, note)
        await life(host, note, kill=True)
        await life(host, note)
        assert told == [-1, epochs[0], epochs[1], -1]

    play(main)


def test_directories_of_different_shutdowns_vouch_for_nothing() -> None:
    async def main(host: SimHost) -> None:
        await life(host, nothing, log_dirs="/one,/two")
        host_disk = "/two/.kafka_cleanshutdown"

        async def spoil(world: ProcessWorld) -> None:
            world.disk.unlink(host_disk)

        await host.start(spoil).task

        async def look(node: Node) -> None:
            assert node.log_dirs.shutdown_epoch() == -1

        await life(host, look, log_dirs="/one,/two")

    play(main)


def test_a_registration_waits_for_a_controller_and_a_predecessors_session() -> None:
    async def main(host: SimHost) -> None:
        made: list[Refusals] = []

        async def serve(world: ProcessWorld) -> None:
            node = Node(NodeSettings.parse({"log.dirs": "/data"}), world)
            codes = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.DUPLICATE_BROKER_REGISTRATION]
            made.append(Refusals(node, BrokerRegistrationRequest, *codes))
            await node.start()
            assert not node.image.brokers[node.id].fenced
            await node.stop()

        await host.start(serve).task
        assert len(made[0].seen) == 3

    play(main)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "belong to another cluster"),
        (ErrorCode.INVALID_REGISTRATION, "do not copy meta.properties"),
        (ErrorCode.DUPLICATE_BROKER_REGISTRATION, "a live broker holds the id"),
        (ErrorCode.REQUEST_TIMED_OUT, "initial.broker.registration.timeout.ms"),
    ],
)
def test_a_registration_that_cannot_be_ends_the_start_with_the_fix(
    code: ErrorCode, told: str
) -> None:
    async def main(host: SimHost) -> None:
        async def serve(world: ProcessWorld) -> None:
            node = Node(NodeSettings.parse({"log.dirs": "/data"}), world)
            Refusals(node, BrokerRegistrationRequest, *[code] * 2_000)
            with pytest.raises(StartError, match=told):
                await node.start()

        await host.start(serve).task

    play(main)


@pytest.mark.parametrize("enabled", [True, False])
def test_leaderships_are_handed_over_unless_told_otherwise(enabled: bool) -> None:
    async def main(host: SimHost) -> None:
        made: list[Refusals] = []

        async def watch(node: Node) -> None:
            made.append(Refusals(node, BrokerHeartbeatRequest))

        await life(host, watch, controlled_shutdown_enable=str(enabled).lower())
        asked = any(heartbeat.want_shut_down for heartbeat in made[0].seen)
        assert asked == enabled

    play(main)
