"""How many connections a node takes, from whom, and for how long they may say nothing."""

import asyncio
import resource
from collections.abc import Callable
from dataclasses import replace

import pytest

from scriba.broker.net.answers import Slot
from scriba.broker.node import Node
from scriba.events import EventKind
from scriba.runtime.files import limits
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import configs, metadata

InANode = Callable[..., None]
QUESTION = metadata.MetadataRequest(topics=[])


async def dial(world: ProcessWorld) -> Peer:
    return await Peer.connect(world.net, "127.0.0.1", 9092)


def test_an_address_may_have_a_limit_of_its_own(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        own = {"elsewhere": 7, "broker": 2}  # in this world hosts are known by name
        node.server.limits = replace(node.server.limits, max_connections_per_ip_overrides=own)
        held = [await dial(world) for _ in range(2)]
        for client in held:
            await client.send(QUESTION, 9, metadata.MetadataResponse)
        extra = await dial(world)
        with pytest.raises(ConnectionError):
            await extra.send(QUESTION, 9, metadata.MetadataResponse)
        assert node.server.connections == len(held)
        held[0].close()
        await asyncio.sleep(1)
        again = await dial(world)
        await again.send(QUESTION, 9, metadata.MetadataResponse)

    in_a_node(script, max_connections_per_ip=1)


def test_beyond_the_limit_of_all_the_one_idle_longest_goes_for_a_new_one(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        held = [await dial(world) for _ in range(3)]
        for client in (held[1], held[0], held[2]):
            await asyncio.sleep(1)
            await client.send(QUESTION, 9, metadata.MetadataResponse)
        new = await dial(world)
        await new.send(QUESTION, 9, metadata.MetadataResponse)
        assert node.server.connections == 3
        with pytest.raises(ConnectionError):
            await held[1].send(QUESTION, 9, metadata.MetadataResponse)
        await held[0].send(QUESTION, 9, metadata.MetadataResponse)

    in_a_node(script, max_connections=3)


def test_a_limit_that_is_lowered_holds_for_those_who_are_there(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        held = [await dial(world) for _ in range(5)]
        for client in held:
            await asyncio.sleep(1)
            await client.send(QUESTION, 9, metadata.MetadataResponse)
        value = configs.IncrementalAlterConfigsRequestAlterableConfig(
            name="max.connections", config_operation=0, value="2"
        )
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=4, resource_name="", configs=[value]
        )
        answer = await held[4].send(
            configs.IncrementalAlterConfigsRequest(resources=[resource]),
            1,
            configs.IncrementalAlterConfigsResponse,
        )
        assert answer.responses[0].error_code == 0
        await asyncio.sleep(3)
        assert node.server.connections == 2
        await held[4].send(QUESTION, 9, metadata.MetadataResponse)

    in_a_node(script)


def test_idle_connections_stay_where_no_limit_is_wanted(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await dial(world)
        await client.send(QUESTION, 9, metadata.MetadataResponse)
        await asyncio.sleep(3600)
        await client.send(QUESTION, 9, metadata.MetadataResponse)

    in_a_node(script, connections_max_idle_ms=-1)


def test_connections_leave_files_for_the_logs(in_a_node: InANode) -> None:
    """Idle ones go for new ones; a new one is refused where all others wait for an answer."""

    async def script(node: Node, world: ProcessWorld) -> None:
        world.net.most_connections = 3
        held = [await dial(world) for _ in range(3)]
        for client in held:
            await asyncio.sleep(1)
            await client.send(QUESTION, 9, metadata.MetadataResponse)
        new = await dial(world)
        await new.send(QUESTION, 9, metadata.MetadataResponse)
        assert node.server.connections == 3
        assert node.server.counters.closed["displaced"] == 1
        with pytest.raises(ConnectionError):
            await held[0].send(QUESTION, 9, metadata.MetadataResponse)
        told = [each for each in node.events.since() if each.kind is EventKind.OPEN_FILES_REACHED]
        assert told[0].text == "the limit of open files leaves room for 3 connections"
        for connection in node.server._connections:
            connection._slots.append(Slot())
        extra = await dial(world)
        with pytest.raises(ConnectionError):
            await extra.send(QUESTION, 9, metadata.MetadataResponse)
        assert node.server.counters.refused["open_files"] == 1

    in_a_node(script)


@pytest.mark.parametrize(
    ("limit", "room"), [(1024, 384), (256, 96), (4, 2), (1 << 20, (1 << 20) - (1 << 14) - 256)]
)
def test_the_limit_of_open_files_is_shared_out(
    monkeypatch: pytest.MonkeyPatch, limit: int, room: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert limits.connections() == room
    assert limits.files_of_logs() + limits.connections() <= limit
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert limits.connections() > 100_000
