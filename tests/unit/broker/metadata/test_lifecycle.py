"""A broker and its controller: nothing that the controller says, or does not say, ends a broker."""

import asyncio

import pytest

from scriba.broker.node import Node
from scriba.config import StartError, StorageLost
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimHost
from scriba.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
)
from tests.unit.broker.metadata.lives import Refusals, life, play


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
        (
            ErrorCode.UNSUPPORTED_VERSION,
            "does not support a feature that the cluster runs; start a",
        ),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "grant it CLUSTER_ACTION"),
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


def test_a_broker_ends_that_cannot_tell_of_a_failed_directory() -> None:
    async def script(node: Node) -> None:
        clock = node.world.clock
        watching = asyncio.ensure_future(node.wait_stopped())
        _, second, third = node.log_dirs.data
        refusals = Refusals(node, BrokerHeartbeatRequest, *[ErrorCode.NOT_CONTROLLER] * 2)
        third._fail("it is gone")
        await asyncio.sleep(9)
        assert third.id in refusals.seen[-1].offline_log_dirs
        assert not refusals.left, "the third attempt told it"
        refusals.left += [ErrorCode.NOT_CONTROLLER] * 1_000
        await asyncio.sleep(30)
        assert not watching.done(), "a controller that is away ends nobody"
        began = clock.mono_ms()
        second._fail("it is gone as well")
        with pytest.raises(StorageLost, match="no controller has heard of it for 10000 ms"):
            async with asyncio.timeout(120):
                await watching
        assert clock.mono_ms() - began >= 10_000

    async def main(host: SimHost) -> None:
        dirs = "/data,/second,/third"
        await life(host, script, kill=True, log_dirs=dirs, log_dir_failure_timeout_ms="10000")

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
