"""One connection: order of answers, parking, limits, and peers that behave badly."""

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from scriba.broker.net.connection import (
    OFF_LOOP_WINDOWS,
    READ_WINDOW,
    SHARED_MS,
    SHARED_READ_WINDOW,
)
from scriba.broker.node import Node
from scriba.records.batch import Record, encode_batch
from scriba.runtime.loop.loop import run
from scriba.runtime.net import SocketStream
from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.runtime.world import RealWorld
from scriba.settings import NodeSettings
from scriba.storage.log import Log
from scriba.testing.sim.world.disk import SimFile
from scriba.testing.sim.world.net import SimStream
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.frame import encode_request
from scriba.wire.messages import admin, fetch, metadata, produce
from scriba.wire.schema import Message

InANode = Callable[..., None]
TOPIC = "t"
T0 = 1_750_000_000_000


async def dial(world: ProcessWorld) -> Peer:
    return await Peer.connect(world.net, "127.0.0.1", 9092)


async def create(client: Peer, **configs: str) -> None:
    topic = admin.CreatableTopic(
        name=TOPIC,
        num_partitions=1,
        replication_factor=1,
        configs=[
            admin.CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )
    made = await client.send(
        admin.CreateTopicsRequest(topics=[topic]), 7, admin.CreateTopicsResponse
    )
    assert made.topics[0].error_code == 0


def one_record(value: bytes = b"v", acks: int = -1) -> produce.ProduceRequest:
    batch = encode_batch([Record(0, T0, None, value, ())])
    data = produce.PartitionProduceData(index=0, records=batch)
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[produce.TopicProduceData(name=TOPIC, partition_data=[data])],
    )


def long_poll(offset: int, wait_ms: int, min_bytes: int = 1) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return fetch.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        topics=[fetch.FetchTopic(topic=TOPIC, partitions=[partition])],
    )


def framed(message: Message, version: int) -> bytes:
    body = encode_request(message, version, 1, "raw")
    return struct.pack(">i", len(body)) + body


def hung_up(stream: Stream) -> bool:
    """Whether the other side is gone: end of stream, or a reset."""
    try:
        return stream.recv_into(memoryview(bytearray(64))) == EOF
    except OSError:
        return True


def offset_of(answer: produce.ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].base_offset


def test_pipelined_produces_share_a_flush_and_are_answered_in_order(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await dial(world)
        await create(client, flush_messages="1")
        log = node.replicas.find(TOPIC, 0).log
        answers = [client.send(one_record(), 9, produce.ProduceResponse) for _ in range(20)]
        first = await answers[0]
        # The later ones were appended while the first waited for the device.
        assert log.end_offset == 20
        rest = await asyncio.gather(*answers[1:])
        assert [offset_of(each) for each in (first, *rest)] == list(range(20))
        assert log.flushed_offset == 20

    in_a_node(script)


def test_a_parked_fetch_keeps_the_requests_behind_it_waiting(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await dial(world), await dial(world)
        await create(client)
        fetched = client.send(long_poll(0, wait_ms=60_000), 11, fetch.FetchResponse)
        behind = client.send(metadata.MetadataRequest(topics=[]), 9, metadata.MetadataResponse)
        await asyncio.sleep(5)
        assert not fetched.done()
        assert not behind.done()
        await other.send(one_record(), 9, produce.ProduceResponse)
        answer = await fetched
        assert answer.responses[0].partitions[0].high_watermark == 1
        await behind

    in_a_node(script)


def test_a_fetch_that_finds_too_little_answers_when_its_time_is_up(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await dial(world), await dial(world)
        await create(client)
        started = world.clock.mono_ms()
        fetched = client.send(long_poll(0, 2_000, min_bytes=1 << 19), 11, fetch.FetchResponse)
        await other.send(one_record(), 9, produce.ProduceResponse)
        answer = await fetched
        assert world.clock.mono_ms() - started >= 2_000
        assert answer.responses[0].partitions[0].records

    in_a_node(script)


def test_deleting_a_topic_wakes_who_waits_for_it(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await dial(world), await dial(world)
        await create(client)
        fetched = client.send(long_poll(0, wait_ms=600_000), 11, fetch.FetchResponse)
        await asyncio.sleep(1)
        doomed = admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name=TOPIC)])
        await other.send(doomed, 6, admin.DeleteTopicsResponse)
        answer = await fetched
        assert answer.responses[0].partitions[0].error_code == 3

    in_a_node(script)


def test_a_request_that_arrives_byte_by_byte_is_answered(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        stream = await world.net.connect("127.0.0.1", 9092)
        for byte in framed(metadata.ApiVersionsRequest(), 0):
            assert stream.send([bytes([byte])]) == 1
            await asyncio.sleep(0.01)
        view = memoryview(bytearray(4096))
        assert stream.recv_into(view) > 0

    in_a_node(script)


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1])
def test_an_impossible_length_ends_the_connection_and_no_other(
    in_a_node: InANode, length: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        bystander = await dial(world)
        await create(bystander)
        stream = await world.net.connect("127.0.0.1", 9092)
        stream.send([struct.pack(">i", length) + b"GET / HTTP/1.1"])
        await asyncio.sleep(1)
        assert hung_up(stream)
        answer = await bystander.send(one_record(), 9, produce.ProduceResponse)
        assert offset_of(answer) == 0

    in_a_node(script)


def test_acks_0_is_not_answered_but_a_failure_ends_the_connection(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await dial(world)
        await create(client)
        client.send_unanswered(one_record(acks=0), 9)
        answer = await client.send(one_record(), 9, produce.ProduceResponse)
        assert offset_of(answer) == 1
        missing = one_record(acks=0)
        missing.topic_data[0].name = "missing"
        client.send_unanswered(missing, 9)
        with pytest.raises(ConnectionError):
            await client.send(one_record(), 9, produce.ProduceResponse)

    in_a_node(script)


def test_one_address_gets_only_its_share_of_connections(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        held = [await dial(world) for _ in range(3)]
        for client in held:
            await client.send(metadata.MetadataRequest(topics=[]), 9, metadata.MetadataResponse)
        extra = await world.net.connect("127.0.0.1", 9092)
        await asyncio.sleep(1)
        assert hung_up(extra)
        assert node.server.connections == 3

    in_a_node(script, max_connections_per_ip=3)


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        idle, waiting = await dial(world), await dial(world)
        await create(idle)
        fetched = waiting.send(long_poll(0, wait_ms=60_000), 11, fetch.FetchResponse)
        await asyncio.sleep(30)
        assert node.server.connections == 1
        await fetched

    in_a_node(script, connections_max_idle_ms=10_000)


def test_a_peer_that_never_reads_stops_being_read(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await dial(world)
        await create(client)
        await client.send(one_record(b"x" * 900_000), 9, produce.ProduceResponse)
        greedy = await world.net.connect("127.0.0.1", 9092)
        request = framed(long_poll(0, wait_ms=0), 11)
        sent = 0
        for _ in range(200):
            if greedy.send([request]) == WOULD_BLOCK:
                break
            sent += 1
            await asyncio.sleep(0.05)
        served = node.dispatch.table[1].count
        # A few answers fill the peer's window and the broker's own bound; then it waits.
        assert served < 20
        assert sent > served

    in_a_node(script)


def test_answers_behind_one_that_waits_are_bounded(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    flush = Log.flush

    async def held(log: Log) -> None:
        if log.topic == TOPIC:
            await gate.wait()
        await flush(log)

    async def script(node: Node, world: ProcessWorld) -> None:
        client = await dial(world)
        await create(client, flush_messages="1")
        monkeypatch.setattr(Log, "flush", held)
        waits = client.send(one_record(), 9, produce.ProduceResponse)
        asked = metadata.ApiVersionsRequest()
        behind = [client.send(asked, 0, metadata.ApiVersionsResponse) for _ in range(500)]
        await asyncio.sleep(5)
        assert node.dispatch.table[ApiKey.API_VERSIONS].count < 100
        gate.set()
        await asyncio.gather(waits, *behind)

    in_a_node(script)


def test_after_a_cold_window_the_next_ones_are_read_off_the_loop_for_a_while(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch's header is in memory, and what is behind it is not."""
    cold = False
    monkeypatch.setattr(SimFile, "resident", lambda *_: not cold)

    async def script(node: Node, world: ProcessWorld) -> None:
        client = await dial(world)
        await create(client)
        await client.send(one_record(b"x" * 200_000), 9, produce.ProduceResponse)

        async def read() -> int:
            before = node.server.counters.page_cache_misses
            answer = await client.send(long_poll(0, wait_ms=0), 11, fetch.FetchResponse)
            assert answer.responses[0].partitions[0].error_code == 0
            return node.server.counters.page_cache_misses - before

        nonlocal cold
        assert [await read() for _ in range(3)] == [0, 0, 0]
        cold = True
        assert await read() == 1
        cold = False
        after = [await read() for _ in range(OFF_LOOP_WINDOWS + 3)]
        assert after == [1] * OFF_LOOP_WINDOWS + [0, 0, 0]

    in_a_node(script)


def test_a_bulk_sender_is_read_in_smaller_pieces_while_others_send(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = one_record(bytes(900_000))
    asked: list[int] = []
    receive = SimStream.recv_into

    def noting(stream: SimStream, view: memoryview) -> int:
        asked.append(view.nbytes)
        return receive(stream, view)

    async def script(node: Node, world: ProcessWorld) -> None:
        bulk, small = await dial(world), await dial(world)
        await create(bulk)

        async def most_asked_of_a_large_request() -> int:
            asked.clear()
            await bulk.send(large, 9, produce.ProduceResponse)
            return max(asked)

        monkeypatch.setattr(SimStream, "recv_into", noting)
        assert await most_asked_of_a_large_request() == READ_WINDOW
        sending = asyncio.ensure_future(bulk.send(large, 9, produce.ProduceResponse))
        while not sending.done():
            await small.send(one_record(), 9, produce.ProduceResponse)
        assert await most_asked_of_a_large_request() == SHARED_READ_WINDOW
        await asyncio.sleep(SHARED_MS / 1000)
        assert await most_asked_of_a_large_request() == READ_WINDOW

    in_a_node(script)


@pytest.mark.parametrize(("count", "size"), [(1, 300_000), (6, 50_000)])
def test_a_bulk_sender_of_whatever_requests_is_read_in_smaller_pieces_while_others_send(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, count: int, size: int
) -> None:
    requests = [one_record(bytes(size))] * count
    asked: list[int] = []
    receive = SimStream.recv_into

    def noting(stream: SimStream, view: memoryview) -> int:
        if stream is watched[0]:
            asked.append(view.nbytes)
        return receive(stream, view)

    watched: list[Stream] = []

    async def script(node: Node, world: ProcessWorld) -> None:
        bulk, small = await dial(world), await dial(world)
        await create(bulk)
        watched.append(next(iter(node.server._connections)).stream)

        async def most_asked() -> int:
            asked.clear()
            await asyncio.sleep(3 * SHARED_MS / 1000 if count == 1 else 0)
            await small.send(one_record(), 9, produce.ProduceResponse)
            sent = [bulk.send(each, 9, produce.ProduceResponse) for each in requests]
            await small.send(one_record(), 9, produce.ProduceResponse)
            await asyncio.gather(*sent)
            return max(asked)

        monkeypatch.setattr(SimStream, "recv_into", noting)
        await most_asked()  # it is seen to be one
        assert [await most_asked() for _ in range(3)][1:] == [SHARED_READ_WINDOW] * 2

    in_a_node(script)


def test_answers_that_wait_leave_before_a_connection_is_closed(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of an impossible length follows a Produce that waits for the device, and more."""
    gate = asyncio.Event()
    flush = Log.flush

    async def held(log: Log) -> None:
        if log.topic == TOPIC:
            await gate.wait()
        await flush(log)

    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await dial(world), await dial(world)
        await create(client, flush_messages="1")
        monkeypatch.setattr(Log, "flush", held)
        waits = client.send(one_record(), 9, produce.ProduceResponse)
        behind = client.send(metadata.MetadataRequest(topics=[]), 9, metadata.MetadataResponse)
        client.wire._stream.send([struct.pack(">i", -1)])
        await asyncio.sleep(1)
        assert not waits.done()
        assert node.server.connections == 2
        gate.set()
        assert offset_of(await waits) == 0
        assert (await behind).brokers
        await asyncio.sleep(1)
        assert node.server.connections == 1
        assert node.server.counters.closed["malformed"] == 1
        await other.send(metadata.MetadataRequest(topics=[]), 9, metadata.MetadataResponse)

    in_a_node(script)


def waiters(node: Node) -> int:
    watermark = node.replicas.find(TOPIC, 0).high_watermark
    return sum(not waiter.done() for _, _, waiter in watermark.waits)


@pytest.mark.parametrize("behind", [0, 1, 5], ids=lambda n: f"{n} behind it")
def test_a_peer_that_hangs_up_while_its_fetch_waits_is_noticed_at_once(
    in_a_node: InANode, behind: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await dial(world)
        await create(client)
        for n in range(2):  # the second one may take the fast path
            gone = await dial(world)
            for _ in range(2 * n):
                await gone.send(long_poll(0, wait_ms=1), 11, fetch.FetchResponse)
            gone.send_unanswered(long_poll(0, wait_ms=600_000), 11)
            for _ in range(behind):
                gone.send_unanswered(metadata.MetadataRequest(topics=[]), 9)
            await asyncio.sleep(1)
            assert (node.server.connections, waiters(node)) == (2, 1)
            gone.close()
            await asyncio.sleep(1)
            assert (node.server.connections, waiters(node)) == (1, 0)
        assert node.server.counters.closed["peer_closed"] == 2

    in_a_node(script)


def test_requests_behind_one_that_waits_are_answered_whole_though_only_some_were_read(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await dial(world), await dial(world)
        await create(client)
        fetched = client.send(long_poll(0, wait_ms=60_000), 11, fetch.FetchResponse)
        asked = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=f"{n:0200}") for n in range(20)],
            allow_auto_topic_creation=False,
        )
        behind = [client.send(asked, 9, metadata.MetadataResponse) for _ in range(30)]
        await asyncio.sleep(1)
        await other.send(one_record(), 9, produce.ProduceResponse)
        assert (await fetched).responses[0].partitions[0].high_watermark == 1
        for each in await asyncio.gather(*behind):
            assert [topic.name for topic in each.topics] == [f"{n:0200}" for n in range(20)]

    in_a_node(script)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


def test_whoever_is_ready_together_with_a_bulk_sender_is_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = encode_request(one_record(bytes(600_000)), 9, 1, "bulk")
    large = struct.pack(">i", len(frame)) + frame
    frame = encode_request(metadata.MetadataRequest(topics=[]), 12, 1, "small")
    small = struct.pack(">i", len(frame)) + frame
    received: list[int] = []
    receive = SocketStream.recv_into

    def noting(stream: SocketStream, view: memoryview) -> int:
        size = receive(stream, view)
        if size > 0:
            received.append(size)
        return size

    async def main() -> None:
        async with RealWorld() as world:
            given = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
            node = Node(NodeSettings.parse(given), world)
            await node.start()
            monkeypatch.setattr(SocketStream, "recv_into", noting)
            address = ("127.0.0.1", node.listeners[0].port)
            with socket.create_connection(address) as one, socket.create_connection(address) as two:
                one.sendall(large[:100_000])
                await until(lambda: sum(received) == 100_000)
                received.clear()
                # Both are there when the loop looks next, and the kernel names the first one first.
                one.sendall(large[100_000:200_000])
                two.sendall(small)
                await until(lambda: sum(received) == 100_000 + len(small))
            await node.stop()

    run(main())
    assert received[0] == len(small)
