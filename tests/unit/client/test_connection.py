"""One connection: framing, order, versions, throttling, and how it ends."""

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Coroutine
from struct import pack, unpack, unpack_from
from typing import Any

import pytest

from scriba.client.settings import ClientSettings
from scriba.errors import ErrorCode
from scriba.peers.connection import SOFTWARE, Connection, Payload, encode_frame
from scriba.peers.errors import BrokerError, ClientError, NetworkError, TimedOut
from scriba.peers.ports import real_ports
from scriba.runtime.loop.loop import loop_factory
from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.apis import API, ApiKey
from scriba.wire.frame import decode_request_header, encode_request, encode_response
from scriba.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from scriba.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from scriba.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


class Peer:
    """The other end: every request frame it gets is put in `asked`, answers are up to the test."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.asked: asyncio.Queue[tuple[int, int, int]] = asyncio.Queue()
        self.closed = asyncio.Event()
        self._buffer = bytearray()
        self._view = memoryview(bytearray(1 << 16))
        stream.want(self._read, None)

    def _read(self) -> None:
        try:
            got = self.stream.recv_into(self._view)
        except OSError:
            got = EOF
        if got == EOF:
            self.stream.close()
            self.closed.set()
            return
        if got != WOULD_BLOCK:
            self._buffer += self._view[:got]
        while len(self._buffer) >= 4:
            (size,) = unpack_from(">i", self._buffer)
            if len(self._buffer) < 4 + size:
                break
            header, _ = decode_request_header(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
            self.asked.put_nowait((header.api_key, header.api_version, header.correlation_id))

    async def send(self, data: bytes) -> None:
        while data:
            done = self.stream.send([data])
            if done == WOULD_BLOCK:
                await asyncio.sleep(0.001)
            else:
                data = data[done:]

    async def answer(self, message: Any, version: int, correlation_id: int) -> None:
        data = encode_response(message, version, correlation_id)
        await self.send(pack(">i", len(data)) + bytes(data))

    async def say_versions(self, **high: int) -> None:
        _, version, correlation_id = await self.asked.get()
        answer = ApiVersionsResponse(api_keys=versions(**high))
        await self.answer(answer, version, correlation_id)


def versions(**high: int) -> list[ApiVersion]:
    """Those we know of, some up to a version of their own."""
    return [
        ApiVersion(
            api_key=api.key,
            min_version=api.min_version,
            max_version=high.get(api.name, api.max_version),
        )
        for api in API.values()
    ]


Script = Callable[[Peer], Coroutine[Any, Any, None]]


def play(
    broker: Script,
    client: Callable[[ProcessWorld], Coroutine[Any, Any, None]],
    faults: NetFaults | None = None,
) -> None:
    sim = SimWorld(1, net_faults=faults)

    async def serve(world: ProcessWorld) -> None:
        tasks: list[asyncio.Task[None]] = []
        world.net.listen("", 9092, lambda s: tasks.append(asyncio.ensure_future(broker(Peer(s)))))
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        sim.host("broker").start(serve)
        await asyncio.sleep(0.01)
        await sim.host("client").start(client).task

    sim.run(main())


async def connect(world: ProcessWorld, **settings: Any) -> Connection:
    limits = ClientSettings.build({"bootstrap.servers": "broker:9092"}, settings)
    return await Connection.open(world, "broker", 9092, limits, 5000)


def metadata(n: int) -> MetadataResponse:
    return MetadataResponse(cluster_id=f"answer {n}")


async def ask(connection: Connection) -> str | None:
    return (await connection.request(MetadataRequest(topics=[]), MetadataResponse)).cluster_id


@pytest.mark.parametrize("faults", [NetFaults(), NetFaults(short=0.9, window=7)])
def test_pipelined_requests_get_their_answers_in_order(faults: NetFaults) -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        asked = [await peer.asked.get() for _ in range(10)]
        for n, (_, version, correlation_id) in enumerate(asked):
            await peer.answer(metadata(n), version, correlation_id)

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        answers = await asyncio.gather(*(ask(connection) for _ in range(10)))
        assert answers == [f"answer {n}" for n in range(10)]

    play(broker, client, faults)


def test_a_long_answer_is_read_into_memory_of_its_own() -> None:
    records = bytes(range(256)) * 2000

    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        for size in (10, len(records), 10, 70_000):
            _, version, correlation_id = await peer.asked.get()
            said = PartitionData(records=records[:size], aborted_transactions=[])
            topic = FetchableTopicResponse(topic_id=b"1" * 16, partitions=[said])
            await peer.answer(FetchResponse(responses=[topic]), version, correlation_id)

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        kept = []
        for size in (10, len(records), 10, 70_000):
            answer = await connection.request(FetchRequest(), FetchResponse)
            kept.append((size, answer.responses[0].partitions[0].records))
        for size, view in kept:
            assert isinstance(view, memoryview)
            assert bytes(view) == records[:size], "later answers do not write over it"

    play(broker, client)


def test_memory_that_nobody_reads_in_any_more_is_used_again() -> None:
    sizes = (100_000, 300_000, 80_000, 300_000, 3_000_000, 90_000)

    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        for turn, size in enumerate(sizes):
            _, version, correlation_id = await peer.asked.get()
            said = PartitionData(records=bytes([turn]) * size, aborted_transactions=[])
            topic = FetchableTopicResponse(topic_id=b"1" * 16, partitions=[said])
            await peer.answer(FetchResponse(responses=[topic]), version, correlation_id)

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        places = []
        for turn, size in enumerate(sizes):
            answer = await connection.request(FetchRequest(), FetchResponse)
            view = answer.responses[0].partitions[0].records
            assert isinstance(view, memoryview)
            assert bytes(view) == bytes([turn]) * size
            places.append(view.obj)
            del answer, view
        assert all(place is places[0] for place in places if place is not places[4])
        assert places[4] is not places[0], "what is very long is not kept"

    play(broker, client)


def test_an_answer_for_which_there_is_no_memory_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("scriba.peers.connection.mmap", refuse)

    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        await peer.asked.get()
        await peer.send(pack(">i", 1 << 30) + bytes(100))
        await peer.closed.wait()

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        with pytest.raises(NetworkError, match="1073741824 bytes, for which there is no memory"):
            await ask(connection)
        assert connection.closed is not None

    play(broker, client)


def test_an_old_broker_says_which_versions_of_api_versions_it_knows() -> None:
    seen: list[int] = []

    async def broker(peer: Peer) -> None:
        _, version, correlation_id = await peer.asked.get()
        seen.append(version)
        known = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)
        refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known])
        await peer.answer(refusal, 0, correlation_id)
        _, version, correlation_id = await peer.asked.get()
        seen.append(version)
        await peer.answer(ApiVersionsResponse(api_keys=[known]), version, correlation_id)

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        with pytest.raises(BrokerError, match="does not serve Metadata") as caught:
            await ask(connection)
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert not caught.value.retriable

    play(broker, client)
    assert seen == [4, 2]


def test_the_newest_version_that_both_know_is_spoken() -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions(Metadata=7)
        _, version, correlation_id = await peer.asked.get()
        assert version == 7
        await peer.answer(metadata(1), version, correlation_id)

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        assert await ask(connection) == "answer 1"
        assert connection.version(FetchRequest, 12) == 12
        with pytest.raises(BrokerError, match="serves versions 3 to 13 of Produce"):
            connection.version(ProduceRequest, 2)

    play(broker, client)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        pack(">i", -1),
        pack(">i", 3) + b"abc",
        pack(">ii", 8, 99) + b"abcd",
    ],
    ids=["http", "negative", "too short", "other number"],
)
def test_what_is_no_answer_ends_the_connection(garbage: bytes) -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        await peer.asked.get()
        await peer.send(garbage)
        await peer.closed.wait()

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        one, other = ask(connection), ask(connection)
        for error in await asyncio.gather(one, other, return_exceptions=True):
            assert isinstance(error, NetworkError)
            assert "no answer" in str(error)
        assert connection.closed is not None
        with pytest.raises(ClientError):
            await ask(connection)

    play(broker, client)


def test_a_broker_that_hangs_up_fails_what_is_under_way() -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        await peer.asked.get()
        peer.stream.close()

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        with pytest.raises(NetworkError, match="broker:9092 is lost") as caught:
            await ask(connection)
        assert caught.value.retriable

    play(broker, client)


def test_an_answer_that_does_not_come_in_time_ends_the_connection() -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        await peer.closed.wait()

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world, request_timeout_ms=3000)
        before = world.clock.mono_ms()
        with pytest.raises(TimedOut, match="did not answer Metadata in time"):
            await ask(connection)
        assert 3000 <= world.clock.mono_ms() - before <= 3100

    play(broker, client)


def test_an_answer_that_came_while_the_loop_stood_still_counts() -> None:
    """On real loops and sockets, which tell of the time before they tell of what has come."""
    still, answered = threading.Event(), threading.Event()

    def broker(listening: socket.socket) -> None:
        stream, _ = listening.accept()
        with stream, stream.makefile("rb") as incoming:
            for message in (ApiVersionsResponse(api_keys=versions()), metadata(1)):
                (size,) = unpack(">i", incoming.read(4))
                header, _ = decode_request_header(incoming.read(size))
                if isinstance(message, MetadataResponse):
                    still.wait()
                data = encode_response(message, header.api_version, header.correlation_id)
                stream.sendall(pack(">i", len(data)) + bytes(data))
            answered.set()
            incoming.read()

    world = real_ports()

    async def begin(port: int) -> "tuple[Connection, asyncio.Future[str | None]]":
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "request.timeout.ms": 2000}
        limits = ClientSettings.build(settings, {})
        connection = await Connection.open(world, "127.0.0.1", port, limits, 60_000)
        answer = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0)
        return connection, answer

    async def end(connection: Connection, answer: "asyncio.Future[str | None]") -> None:
        assert await answer == "answer 1"
        connection.close()

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        asyncio.Runner(loop_factory=loop_factory(), debug=False) as runner,
    ):
        serving = threading.Thread(target=broker, args=(listening,), daemon=True)
        serving.start()
        under_way = runner.run(begin(listening.getsockname()[1]))
        late = world.clock.mono_ms() + 2000
        still.set()
        assert answered.wait(60)
        while world.clock.mono_ms() <= late:
            answered.wait(0)
        runner.run(end(*under_way))
        serving.join()


def test_a_broker_that_says_nothing_is_given_up_after_the_time_for_setting_up() -> None:
    async def broker(peer: Peer) -> None:
        await peer.closed.wait()

    async def client(world: ProcessWorld) -> None:
        before = world.clock.mono_ms()
        with pytest.raises(NetworkError, match="within 5000 ms"):
            await connect(world)
        assert world.clock.mono_ms() - before <= 5100

    play(broker, client)


def test_an_address_where_nobody_listens_says_what_to_check() -> None:
    async def broker(peer: Peer) -> None:
        pass

    async def client(world: ProcessWorld) -> None:
        limits = ClientSettings.build({"bootstrap.servers": "broker:9092"}, {})
        with pytest.raises(NetworkError, match=r"cannot connect to broker:1.*check the address"):
            await Connection.open(world, "broker", 1, limits, 5000)

    play(broker, client)


def test_a_throttled_client_holds_back_and_is_not_timed_out_for_it() -> None:
    times: list[int] = []

    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        for throttle in (5000, 0):
            _, version, correlation_id = await peer.asked.get()
            times.append(int(asyncio.get_running_loop().time() * 1000))
            answer = MetadataResponse(throttle_time_ms=throttle)
            await peer.answer(answer, version, correlation_id)

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world, request_timeout_ms=1000)
        await ask(connection)
        await ask(connection)

    play(broker, client)
    assert 5000 <= times[1] - times[0] <= 5100


def test_a_request_without_an_answer_waits_for_the_end_of_a_throttle_and_tells_when_it_left() -> (
    None
):
    times: list[int] = []

    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        _, version, correlation_id = await peer.asked.get()
        times.append(int(asyncio.get_running_loop().time() * 1000))
        await peer.answer(MetadataResponse(throttle_time_ms=5000), version, correlation_id)
        await peer.asked.get()
        times.append(int(asyncio.get_running_loop().time() * 1000))

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world, request_timeout_ms=1000)
        await ask(connection)
        sent = connection.post_unanswered(MetadataRequest(topics=[]))
        assert sent is not None
        await sent
        await asyncio.sleep(1)

    play(broker, client)
    assert 5000 <= times[1] - times[0] <= 5100


def test_a_broker_that_takes_nothing_is_given_up_after_the_time_for_an_answer() -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        peer.stream.want(None, None)
        await asyncio.get_running_loop().create_future()

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world, request_timeout_ms=1000)
        topics = [MetadataRequestTopic(name="t" * 100) for _ in range(10)]
        sent = connection.post_unanswered(MetadataRequest(topics=topics))
        assert sent is not None
        with pytest.raises(TimedOut, match="took nothing"):
            await sent

    play(broker, client, NetFaults(window=200))


def test_an_unused_connection_is_closed() -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        _, version, correlation_id = await peer.asked.get()
        await peer.answer(metadata(1), version, correlation_id)
        await peer.closed.wait()

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world, connections_max_idle_ms=60_000, request_timeout_ms=10_000)
        await asyncio.sleep(30)
        await ask(connection)
        await asyncio.sleep(55)
        assert connection.closed is None
        await asyncio.sleep(10)
        assert isinstance(connection.closed, NetworkError)

    play(broker, client)


def test_whoever_stops_waiting_leaves_the_others_their_answers() -> None:
    async def broker(peer: Peer) -> None:
        await peer.say_versions()
        for n in range(2):
            _, version, correlation_id = await peer.asked.get()
            await asyncio.sleep(1)
            await peer.answer(metadata(n), version, correlation_id)

    async def client(world: ProcessWorld) -> None:
        connection = await connect(world)
        impatient = asyncio.ensure_future(ask(connection))
        patient = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0.5)
        impatient.cancel()
        assert await patient == "answer 1"

    play(broker, client)


def test_records_are_sent_from_where_they_are() -> None:
    data = bytearray(b"records of a batch")
    topic = TopicProduceData(
        name="t",
        topic_id=b"i" * 16,
        partition_data=[PartitionProduceData(index=0, records=Payload(data))],  # type: ignore[arg-type]
    )
    for version in range(3, 14):
        request = ProduceRequest(acks=-1, timeout_ms=5, topic_data=[topic])
        views = encode_frame(request, version, 7, "me")
        assert any(view is data for view in views)
        topic.partition_data[0].records = bytes(data)
        plain = encode_request(request, version, 7, "me")
        assert b"".join(views) == pack(">i", len(plain)) + plain
        topic.partition_data[0].records = Payload(data)  # type: ignore[assignment]


def test_requests_without_records_are_framed_as_the_protocol_says() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    for version in range(10, 14):
        plain = encode_request(request, version, 3, "c")
        [frame] = encode_frame(request, version, 3, "c")
        assert bytes(frame) == pack(">i", len(plain)) + plain


def test_brokers_are_told_the_release_of_this_package() -> None:
    import scriba

    assert ("scriba", scriba.__version__) == SOFTWARE
