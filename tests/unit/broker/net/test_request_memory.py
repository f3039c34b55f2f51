"""What requests take of a node's memory before they are answered, all connections together."""

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scriba.broker.handlers.records.fetch import fetch
from scriba.broker.net.request_memory import (
    AGED_MS,
    FEW,
    LOOK_S,
    USUAL,
    WHILE_MS,
    Receiver,
    RequestMemory,
)
from scriba.broker.node import Node
from scriba.broker.request import ANONYMOUS, Context, Deferred
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
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
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


async def half_a_request(world: ProcessWorld, announced: int, size: int) -> Stream:
    """Someone who announces a request, sends a part of it as fast as it is taken, and stops."""
    stream = await world.net.connect("127.0.0.1", 9092)

    task = asyncio.ensure_future(sent(stream, struct.pack(">i", announced) + bytes(size)))
    SENDING.add(task)
    task.add_done_callback(SENDING.discard)
    return stream


SENDING: set[asyncio.Task[None]] = set()


async def sent(stream: Stream, data: bytes) -> None:
    with suppress(OSError):
        while data:
            done = stream.send([data])
            if done == WOULD_BLOCK:
                await asyncio.sleep(0.001)
            else:
                data = data[done:]


def with_peers(
    path: Path, count: int, script: Callable[[Node, list[Peer]], Awaitable[None]]
) -> None:
    """Plays a script with a node and peers on real sockets, and a topic."""

    async def main() -> None:
        async with RealWorld() as world:
            given = {"log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0"}
            limits = {name.replace("_", "."): str(value) for name, value in LIMITS.items()}
            node = Node(NodeSettings.parse(given | limits), world)
            await node.start()
            port = node.listeners[0].port
            peers = [await Peer.connect(world.net, "127.0.0.1", port) for _ in range(count)]
            await make_topic(peers[0])
            await script(node, peers)
            await node.stop()

    run_loop(main())


def test_requests_that_never_end_hold_no_more_than_the_limit_and_make_room_for_others(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer, memory = await made(world), node.server.memory
        idlers = [await half_a_request(world, 300_000, 70_000) for _ in range(8)]
        await asyncio.sleep(5)
        assert LIMIT - 300_000 < memory.held <= LIMIT, "as many as there is room for"
        started = world.clock.mono_ms()
        for _ in range(10):
            answer = await peer.call(request(200_000), 9, ProduceResponse)
            assert code_of(answer) == ErrorCode.NONE
            assert memory.held <= LIMIT
        assert world.clock.mono_ms() - started < 5_000
        closed = node.server.counters.closed["request_memory"]
        assert 0 < closed < len(idlers), "only as many as had to go"
        told = [each for each in node.events.since() if each.kind is EventKind.SLOW_PEER_SHED]
        assert "queued.max.request.bytes" in told[0].text
        for idler in idlers:
            idler.close()
        await asyncio.sleep(1)
        assert memory.held == 0

    in_a_node(script, **LIMITS)


def test_who_sends_a_request_byte_by_byte_holds_no_memory_that_others_wait_for(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await made(world)
        slow = [await half_a_request(world, LIMIT // 5, LIMIT // 5 - 20_000) for _ in range(5)]

        async def dribble() -> None:
            while True:
                for stream in slow:
                    with suppress(OSError):
                        stream.send([b"x"])
                await asyncio.sleep(0.009)

        await asyncio.sleep(5)
        dribbling = asyncio.ensure_future(dribble())
        started = world.clock.mono_ms()
        assert code_of(await peer.call(request(400_000), 9, ProduceResponse)) == ErrorCode.NONE
        assert world.clock.mono_ms() - started < 2 * WHILE_MS + 1_000
        dribbling.cancel()

    in_a_node(script, **LIMITS)


def test_small_requests_are_served_while_no_memory_is_left(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer, other = await made(world), await dial(world)
        node.server.memory.count(LIMIT)
        waiting = asyncio.ensure_future(peer.call(request(150_000), 9, ProduceResponse))
        await asyncio.sleep(1)
        await other.call(ApiVersionsRequest(), 3, ApiVersionsResponse)
        assert code_of(await other.call(request(50_000), 9, ProduceResponse)) == ErrorCode.NONE
        assert not waiting.done()
        node.server.memory.returned(LIMIT)
        assert code_of(await waiting) == ErrorCode.NONE
        assert node.server.counters.closed["request_memory"] == 0

    in_a_node(script, **LIMITS)


def test_a_refused_request_gives_its_memory_back_while_its_peer_takes_no_answers(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await made(world)
        for _ in range(2):
            stream = await half_a_request(world, 10, 0)
            versions = struct.pack(">ihhih", 10, 18, 0, 1, -1)
            await sent(stream, versions[4:] + versions * 500)
            size = LIMIT // 2 - 10_000
            await sent(stream, struct.pack(">ihhih", size, 999, 0, 1, -1) + bytes(size - 10))
        await asyncio.sleep(1)
        assert all(each._unsent for each in list(node.server._connections)[1:]), "they take none"
        assert node.server.memory.held == 0
        assert code_of(await peer.call(request(400_000), 9, ProduceResponse)) == ErrorCode.NONE

    in_a_node(script, **LIMITS)


def test_peers_that_go_amid_a_request_leave_their_memory_to_others(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer, memory = await made(world), node.server.memory
        memory.count(LIMIT // 8)
        gone = [await half_a_request(world, LIMIT // 2, 400_000) for _ in range(3)]
        await asyncio.sleep(2)
        for stream in gone:
            stream.close()
        assert code_of(await peer.call(request(400_000), 9, ProduceResponse)) == ErrorCode.NONE
        await asyncio.sleep(1)
        assert memory.held == LIMIT // 8
        assert node.server.counters.closed["request_memory"] == 0

    in_a_node(script, **LIMITS)


def test_producers_that_begin_at_once_take_turns_and_none_is_hung_up_on(tmp_path: Path) -> None:
    async def script(node: Node, peers: list[Peer]) -> None:
        answers = [peer.send(request(700_000), 9, ProduceResponse) for peer in peers]
        assert [code_of(answer) for answer in await asyncio.gather(*answers)] == [0] * len(peers)
        assert node.server.counters.closed["request_memory"] == 0

    with_peers(tmp_path, 40, script)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_requests_that_are_worked_on_make_others_wait_and_cost_nobody_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """With real sockets and threads: simulated tasks keep what they came to."""

    async def script(node: Node, peers: list[Peer]) -> None:
        memory, offload = node.server.memory, node.world.offload
        go_on, run = asyncio.Event(), offload.run

        async def held_up(*values: Any) -> Any:
            await go_on.wait()
            return await run(*values)

        monkeypatch.setattr(offload, "run", held_up)
        answers = [peer.send(request(400_000, codec), 9, ProduceResponse) for peer in peers]
        await until(lambda: memory.held > 800_000 and not memory._receiving)
        assert len(memory._waiting) == len(peers) - 2, "nobody else goes on"
        go_on.set()
        assert [code_of(answer) for answer in await asyncio.gather(*answers)] == [0] * len(peers)
        assert node.server.counters.closed["request_memory"] == 0
        await until(lambda: memory.held == 0)

    with_peers(tmp_path, 6, script)


class Peerless:
    """A request on its way, without a connection."""

    def __init__(self, memory: RequestMemory, announced: int) -> None:
        self.announced = announced
        self.received = 0
        self.granted = memory.grant(self, announced)

    def read_on(self) -> None:
        self.granted = True

    def end(self, memory: RequestMemory) -> None:
        """It has been answered, or its peer is gone."""
        memory.complete(self)
        if self.granted:
            memory.returned(self.announced)


def in_memory(
    script: Callable[[RequestMemory], Awaitable[None]],
    limit: int,
    shed: Callable[[Receiver, str], None] = lambda *_: None,
) -> None:
    sim = SimWorld(seed=1)

    async def main(world: ProcessWorld) -> None:
        await script(RequestMemory(limit, world.clock.mono_ms, shed))

    async def play() -> None:
        await sim.host("broker").start(main).task

    sim.run(play())


def test_small_requests_do_not_wait_behind_large_ones() -> None:
    async def script(memory: RequestMemory) -> None:
        first = [Peerless(memory, USUAL) for _ in range(10)]
        huge = [Peerless(memory, 10 * USUAL) for _ in range(20)]
        usual = Peerless(memory, USUAL)
        assert [each.granted for each in (*first, *huge, usual)] == [True] * 10 + [False] * 21
        memory.complete(first[0])
        memory.returned(USUAL)
        await asyncio.sleep(5 * LOOK_S)
        assert usual.granted
        assert not any(each.granted for each in huge)

    in_memory(script, 10 * USUAL)


def test_who_has_waited_long_is_next_whatever_its_size() -> None:
    async def script(memory: RequestMemory) -> None:
        others = deque(Peerless(memory, USUAL) for _ in range(10))
        huge = Peerless(memory, 10 * USUAL)
        for _ in range(100):  # somebody wants memory at any time
            done = others.popleft()
            memory.complete(done)
            if done.granted:
                memory.returned(USUAL)
            others.append(Peerless(memory, USUAL))
            await asyncio.sleep(0.5)
            if huge.granted:
                break
        assert huge.granted

    in_memory(script, 10 * USUAL)


def test_huge_requests_share_half_of_the_memory() -> None:
    async def script(memory: RequestMemory) -> None:
        huge = [Peerless(memory, 5 * USUAL) for _ in range(8)]
        assert sum(each.granted for each in huge) == 4
        await asyncio.sleep(2 * AGED_MS / 1000)
        assert Peerless(memory, USUAL).granted, "large ones wait for what it cannot have"
        usual = [Peerless(memory, USUAL) for _ in range(10)]
        await asyncio.sleep(5 * LOOK_S)
        assert all(each.granted for each in usual)

    in_memory(script, 40 * USUAL)


def test_a_request_as_large_as_the_limit_leaves_half_of_it_to_usual_ones() -> None:
    async def script(memory: RequestMemory) -> None:
        huge = [Peerless(memory, 10 * USUAL) for _ in range(2)]
        assert [each.granted for each in huge] == [True, False]
        await asyncio.sleep(2 * AGED_MS / 1000)
        usual = [Peerless(memory, USUAL) for _ in range(6)]
        assert [each.granted for each in usual] == [True] * 5 + [False]
        assert memory.held == 15 * USUAL, "half of the limit above it, and no more"
        usual[0].end(memory)
        await asyncio.sleep(5 * LOOK_S)
        assert usual[5].granted, "though the other large one has waited for long"
        assert not huge[1].granted
        huge[0].end(memory)
        await asyncio.sleep(5 * LOOK_S)
        assert huge[1].granted
        assert memory.held == 15 * USUAL

    in_memory(script, 10 * USUAL)


def test_large_requests_that_come_all_the_time_pass_a_larger_one_only_until_it_has_aged() -> None:
    async def script(memory: RequestMemory) -> None:
        large = deque(Peerless(memory, 2 * USUAL) for _ in range(2))
        huge = Peerless(memory, 10 * USUAL)
        for _ in range(2 * AGED_MS // 1000):
            large.popleft().end(memory)
            large.append(Peerless(memory, 2 * USUAL))
            await asyncio.sleep(1)
        assert huge.granted

    in_memory(script, 10 * USUAL)


def test_usual_requests_have_memory_at_once_while_large_ones_wait_for_theirs() -> None:
    async def script(memory: RequestMemory) -> None:
        huge = [Peerless(memory, 10 * USUAL) for _ in range(1 + FEW)]
        assert not any(each.granted for each in huge[1:])
        assert Peerless(memory, USUAL).granted
        assert not memory.short, "everybody is read as ever"
        huge.append(Peerless(memory, 10 * USUAL))
        assert memory.short, "the beginnings of so many requests are not counted"
        usual = [Peerless(memory, USUAL) for _ in range(5)]
        assert [each.granted for each in usual] == [True] * 4 + [False]
        for each in huge[1:]:
            each.end(memory)
        await asyncio.sleep(2 * LOOK_S)
        assert memory.short, "a usual one waits"
        usual[0].end(memory)
        await asyncio.sleep(2 * LOOK_S)
        assert usual[4].granted
        assert not memory.short

    in_memory(script, 10 * USUAL)


def test_no_usual_request_is_given_up_for_one_that_waits_for_the_share_of_large_ones() -> None:
    given_up: list[Receiver] = []
    ends: list[Callable[[], None]] = []

    def shed(receiver: Receiver, _: str) -> None:
        given_up.append(receiver)
        ends.pop()()

    async def script(memory: RequestMemory) -> None:
        huge = Peerless(memory, 10 * USUAL)
        usual = [Peerless(memory, USUAL) for _ in range(4)]
        other = Peerless(memory, 10 * USUAL)
        ends.append(lambda: huge.end(memory))
        for _ in range(4 * WHILE_MS // 1000):  # it comes fast enough, the usual ones do not
            huge.received += USUAL
            await asyncio.sleep(1)
        assert not given_up
        await asyncio.sleep(2 * WHILE_MS / 1000)
        await asyncio.sleep(2 * LOOK_S)
        assert given_up == [huge]
        assert other.granted
        assert all(each.granted for each in usual)

    in_memory(script, 10 * USUAL, shed)


def test_who_waits_is_let_in_also_after_a_surprise() -> None:
    failures = [OSError("no such descriptor")]

    class Broken(Peerless):
        def read_on(self) -> None:
            raise failures.pop()

    async def script(memory: RequestMemory) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        first = Peerless(memory, USUAL)
        broken, last = Broken(memory, USUAL // 2), Peerless(memory, USUAL)
        first.end(memory)
        await asyncio.sleep(5 * LOOK_S)
        assert not failures
        memory.returned(broken.announced)
        await asyncio.sleep(5 * LOOK_S)
        assert last.granted
        assert not memory.short

    in_memory(script, USUAL)


def test_nothing_is_received_of_a_request_that_waits_for_memory(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await made(world)
        node.server.memory.count(LIMIT)
        await half_a_request(world, 500_000, 400_000)
        await asyncio.sleep(1)
        (waiting,) = (each for each in node.server._connections if each._short_of_memory)
        received = waiting.received
        assert received < 400_000
        waiting._read()  # a turn that was asked for before
        assert waiting.received == received

    in_a_node(script, **LIMITS)


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


@pytest.mark.parametrize("version", [4, 6, 7, 11])
def test_a_fetch_that_waits_keeps_each_partition_once(in_a_node: InANode, version: int) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await made(world)
        asked = [FetchPartition(partition=0, partition_max_bytes=1024)] * 5_000
        named = FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[FetchTopic(topic="t", partitions=asked)],
        )
        ctx = Context(ANONYMOUS, "PLAINTEXT", "c", "127.0.0.1", ApiKey.FETCH, version, 0)
        answer = fetch(node, ctx, named)
        assert isinstance(answer, Deferred)
        waiting = asyncio.ensure_future(answer.awaitable)
        await asyncio.sleep(2)
        assert sum(len(topic.partitions) for topic in named.topics) == (version < 7)
        assert code_of(await peer.call(request(100), 9, ProduceResponse)) == ErrorCode.NONE
        response = await waiting
        assert isinstance(response, FetchResponse)
        assert [len(topic.partitions) for topic in response.responses] == [1]

    in_a_node(script)


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
