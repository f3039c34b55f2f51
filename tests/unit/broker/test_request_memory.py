"""What requests take of a node's memory before they are answered, all connections together."""

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scriba.broker.net.connection import READ_WINDOW
from scriba.broker.net.request_memory import LOOK_S
from scriba.broker.node import Node
from scriba.config import ConfigError
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.records.batch import Record, encode_batch
from scriba.records.compression import Codec
from scriba.runtime.loop.loop import run as run_loop
from scriba.runtime.memory import available_bytes
from scriba.runtime.ports import WOULD_BLOCK, Stream
from scriba.runtime.world import RealWorld
from scriba.settings import NodeSettings
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

InANode = Callable[..., None]
LIMIT = 1 << 20
LIMITS = {"queued_max_request_bytes": LIMIT, "socket_request_max_bytes": LIMIT}
T0 = 1_750_000_000_000


async def dial(world: ProcessWorld) -> Peer:
    return await Peer.connect(world.net, "127.0.0.1", 9092)


async def made(world: ProcessWorld) -> Peer:
    peer = await dial(world)
    await make_topic(peer)
    return peer


async def make_topic(peer: Peer) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    answer = await peer.call(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
    assert not answer.topics[0].error_code


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def request(size: int, codec: Codec = Codec.NONE) -> ProduceRequest:
    """A produce of one record, so long on the wire in any codec."""
    value = Random(size).randbytes(size)
    batch = encode_batch([Record(0, T0, None, value, ())], codec=codec)
    data = PartitionProduceData(index=0, records=bytes(batch))
    topic = TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])


def code_of(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


async def half_a_request(world: ProcessWorld, announced: int, sent: int) -> Stream:
    """Someone who announces a request, sends a part of it as fast as it is taken, and stops."""
    stream = await world.net.connect("127.0.0.1", 9092)

    async def send() -> None:
        left = struct.pack(">i", announced) + bytes(sent)
        while left:
            try:
                done = stream.send([left])
            except OSError:
                return
            if done == WOULD_BLOCK:
                await asyncio.sleep(0.001)
            else:
                left = left[done:]

    stream.sending = asyncio.ensure_future(send())  # type: ignore[attr-defined]
    return stream


def test_requests_that_never_end_hold_no_more_than_the_limit_and_others_are_served(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await made(world)
        most = 0
        idlers = [await half_a_request(world, LIMIT, 300_000) for _ in range(8)]
        for _ in range(30):
            answer = await peer.call(request(150_000), 9, ProduceResponse)
            assert code_of(answer) == ErrorCode.NONE
            most = max(most, node.server.memory.held)
            await asyncio.sleep(0.01)
        assert LIMIT // 2 < most <= LIMIT + READ_WINDOW, "it was tried, and bounded"
        closed = node.server.counters.closed["request_memory"]
        assert 0 < closed < len(idlers), "only as many as had to go"
        told = [each for each in node.events.since() if each.kind is EventKind.SLOW_PEER_SHED]
        assert "queued.max.request.bytes" in told[0].text
        for idler in idlers:
            idler.close()
        await asyncio.sleep(1)
        assert node.server.memory.held == 0

    in_a_node(script, **LIMITS)


def test_small_requests_are_served_while_no_memory_is_left(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await made(world)
        node.server.memory.count(2 * LIMIT)
        other = await dial(world)
        started = world.clock.mono_ms()
        waiting = asyncio.ensure_future(peer.call(request(150_000), 9, ProduceResponse))
        await asyncio.sleep(1)
        await other.call(ApiVersionsRequest(), 3, ApiVersionsResponse)
        assert not waiting.done()
        node.server.memory.returned(2 * LIMIT)
        assert code_of(await waiting) == ErrorCode.NONE
        assert world.clock.mono_ms() - started < 5_000
        assert node.server.counters.closed["request_memory"] == 0

    in_a_node(script, **LIMITS)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_requests_that_are_worked_on_make_others_wait_and_cost_nobody_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """With real sockets and threads: simulated tasks keep what they came to."""

    async def main() -> None:
        async with RealWorld() as world:
            given = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
            limits = {name.replace("_", "."): str(value) for name, value in LIMITS.items()}
            node = Node(NodeSettings.parse(given | limits), world)
            await node.start()
            memory, port = node.server.memory, node.listeners[0].port
            peers = [await Peer.connect(world.net, "127.0.0.1", port) for _ in range(6)]
            await make_topic(peers[0])
            go_on, run = asyncio.Event(), world.offload.run

            async def held_up(*values: Any) -> Any:
                await go_on.wait()
                return await run(*values)

            def worked_on() -> int:
                return memory.held - sum(each.received for each in node.server._connections)

            monkeypatch.setattr(world.offload, "run", held_up)
            answers = [peer.send(request(400_000, codec), 9, ProduceResponse) for peer in peers]
            await until(lambda: memory.full and worked_on() >= 400_000)
            held = memory.held
            await asyncio.sleep(20 * LOOK_S)
            assert LIMIT < memory.held == held <= LIMIT + READ_WINDOW, "nobody goes on"
            go_on.set()
            assert [code_of(answer) for answer in await asyncio.gather(*answers)] == [0] * 6
            assert node.server.counters.closed["request_memory"] == 0
            await until(lambda: memory.held == 0)
            await node.stop()

    run_loop(main())


def test_a_node_lets_requests_wait_in_an_eighth_of_its_memory(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        assert node.server.memory.limit == world.memory_bytes // 8

    in_a_node(script)


def test_memory_for_requests_has_room_for_the_largest(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        assert node.server.memory.limit == 2_000_000_000

    in_a_node(script, socket_request_max_bytes=2_000_000_000)
    for value in ("0", "1", "-2", "104857599"):
        with pytest.raises(ConfigError, match=r"queued\.max\.request\.bytes.*104857600"):
            NodeSettings.parse({"log.dirs": "/d", "queued.max.request.bytes": value})
    kept = NodeSettings.parse({"log.dirs": "/d", "queued.max.request.bytes": "104857600"})
    assert kept.queued_max_request_bytes == 104857600


def test_control_groups_bound_what_a_process_may_have(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    root = tmp_path / "fs"
    inner = root / "service" / "node"
    inner.mkdir(parents=True)
    machine = available_bytes(str(tmp_path / "none"), str(root))
    assert machine > 1 << 20
    own.write_text("1:cpu:/elsewhere\n0::/service/node\n")
    assert available_bytes(str(own), str(root)) == machine
    (inner / "memory.max").write_text("max\n")
    (root / "service" / "memory.max").write_text(f"{1 << 19}\n")
    assert available_bytes(str(own), str(root)) == 1 << 19
    (inner / "memory.max").write_text(f"{1 << 18}\n")
    assert available_bytes(str(own), str(root)) == 1 << 18
