"""The bytes of a request belong to it only while its handler runs: what waits has its own."""

import asyncio
import gc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from scriba.broker.handlers.records.produce import produce as handler
from scriba.broker.net.buffers import BufferPool
from scriba.broker.net.connection import Connection
from scriba.broker.node import Node
from scriba.broker.partitions.partition import Partition
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.records.batch import Record, decode_records, encode_batch, walk
from scriba.records.compression import Codec
from scriba.records.validate import prepare
from scriba.runtime.ports import Clock, Offload
from scriba.storage.log import Slice
from scriba.testing.sim.world.net import SimStream
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import groups
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from scriba.wire.messages.txn import InitProducerIdRequest, InitProducerIdResponse
from scriba.wire.views import revoker

InANode = Callable[..., None]


def stored(node: Node, topic: str, index: int) -> list[bytes | None]:
    log = node.replicas.find(topic, index).log
    found = log.read(0, 1 << 24, log.end_offset)
    assert isinstance(found, Slice)
    data = memoryview(bytearray(found.size))
    found.file.pread_into(data, found.position)
    return [record.value for record in decode_records(data)]


async def connected(world: ProcessWorld, *topics: CreatableTopic) -> Peer:
    peer = await Peer.connect(world.net, "127.0.0.1", 9092)
    made = await peer.call(CreateTopicsRequest(topics=list(topics)), 7, CreateTopicsResponse)
    assert all(topic.error_code == 0 for topic in made.topics)
    return peer


async def found_coordinator(peer: Peer) -> None:
    """Asking for it makes the topic of transactions; a little later it is loaded."""
    for _ in range(50):
        asked = FindCoordinatorRequest(key="x0", key_type=1)
        found = await peer.call(asked, 2, FindCoordinatorResponse)
        if not found.error_code:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(found)


def produce(topic: str, *batches: tuple[int, bytearray], tid: str | None = None) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=bytes(batch)) for index, batch in batches]
    return ProduceRequest(
        transactional_id=tid,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


async def handled(node: Node, request: ProduceRequest, version: int) -> ProduceResponse:
    """As a connection does it: what the handler leaves to wait for runs when other bytes are
    where its request was."""
    buffer = bytearray(request.encode(version))
    ctx = Context(ANONYMOUS, "PLAINTEXT", "c", "127.0.0.1", 0, version, 0)
    request = ProduceRequest.decode(memoryview(buffer), version)
    answer = handler(node, ctx, request)
    revoke = revoker(ProduceRequest)
    assert revoke is not None
    revoke(request)
    buffer[:] = b"\xff" * len(buffer)
    assert isinstance(answer, Deferred), "it did not have to wait"
    while isinstance(answer, Deferred):
        answer = await answer.awaitable
    assert isinstance(answer, ProduceResponse)
    return answer


def test_a_batch_that_waits_for_its_transaction_keeps_its_bytes(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        )
        await found_coordinator(peer)
        asked = InitProducerIdRequest(transactional_id="x0", transaction_timeout_ms=9000)
        got = await peer.call(asked, 4, InitProducerIdResponse)
        assert got.error_code == 0
        batch = encode_batch(
            [Record(0, world.clock.wall_ms(), None, b"value", ())],
            producer_id=got.producer_id,
            producer_epoch=got.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        answer = await handled(node, produce("t", (0, batch), tid="x0"), 12)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert stored(node, "t", 0) == [b"value"]

    in_a_node(script)


def test_a_small_batch_beside_one_that_is_packed_anew_keeps_its_bytes(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        packed = CreatableTopicConfig(name="compression.type", value="zstd")
        await connected(
            world,
            CreatableTopic(name="t", num_partitions=2, replication_factor=1, configs=[packed]),
        )
        now = world.clock.wall_ms()
        small = encode_batch([Record(0, now, None, b"small", ())], codec=Codec.ZSTD)
        large = encode_batch([Record(0, now, None, b"large" * 40_000, ())])
        answer = await handled(node, produce("t", (0, small), (1, large)), 9)
        for told in answer.responses[0].partition_responses:
            assert told.error_code == 0, told
        assert stored(node, "t", 0) == [b"small"]
        assert stored(node, "t", 1) == [b"large" * 40_000]

    in_a_node(script)


# ---- what a handler keeps nevertheless ----


def kept_by_a_handler(node: Node, keep: Callable[[ProduceRequest], Any]) -> list[Any]:
    """What `keep` takes of each Produce that the node handles from now on."""
    kept: list[Any] = []
    served = node.dispatch.table[0]
    ordinary = served.handler

    def curious(node: Node, ctx: Context, request: ProduceRequest) -> Any:
        kept.append(keep(request))
        return ordinary(node, ctx, request)

    served.handler = curious
    return kept


def records_of(request: ProduceRequest) -> Any:
    return request.topic_data[0].partition_data[0].records


def slice_of(request: ProduceRequest) -> Any:
    return records_of(request)[61:]


SIZES = pytest.mark.parametrize("size", [100, 300_000], ids=["in the scratch", "in the pool"])


def batch_of(world: ProcessWorld, size: int) -> bytearray:
    return encode_batch([Record(0, world.clock.wall_ms(), None, b"v" * size, ())])


@SIZES
def test_records_read_after_their_handler_raise(in_a_node: InANode, size: int) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        )
        kept = kept_by_a_handler(node, records_of)
        two = produce("t", (0, batch_of(world, size)), (1, batch_of(world, size)))
        answer = await peer.call(two, 9, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0
        with pytest.raises(ValueError, match="released"):
            bytes(kept[0])
        assert node.server.pool.kept_views == 0, "the buffer is used again"

    in_a_node(script, scriba_fast_paths="false")


@SIZES
def test_a_slice_that_outlives_its_request_never_shows_another_one(
    in_a_node: InANode, size: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        world.spoil = node.server.spoil = None  # as outside of the simulator
        node.server.pool = BufferPool()
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        )
        kept = kept_by_a_handler(node, slice_of)
        sent = []
        for letter in (b"a", b"b", b"c"):
            record = Record(0, world.clock.wall_ms(), None, letter * size, ())
            sent.append(encode_batch([record]))
            two = produce("t", (0, sent[-1]), (1, sent[-1]))
            answer = await peer.call(two, 9, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
        assert [bytes(view) for view in kept] == [bytes(batch[61:]) for batch in sent]
        kept.clear()
        lost = node.server.pool.kept_views
        assert lost >= 2
        await peer.call(produce("t", (0, batch_of(world, size))), 9, ProduceResponse)
        await peer.call(produce("t", (0, batch_of(world, size))), 9, ProduceResponse)

    in_a_node(script, scriba_fast_paths="false")


@SIZES
def test_in_the_simulator_a_late_read_meets_rubbish(in_a_node: InANode, size: int) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        )
        kept = kept_by_a_handler(node, slice_of)
        batch = batch_of(world, size)
        two = produce("t", (0, batch), (1, batch))
        await peer.call(two, 9, ProduceResponse)
        assert b"vv" not in bytes(kept[0])

    in_a_node(script, scriba_fast_paths="false")


def test_a_frame_is_released_when_it_has_been_handled(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(world)
        frames: list[memoryview] = []
        ordinary = node.server.handle

        def curious(connection: Connection, frame: memoryview) -> Any:
            frames.append(frame)
            return ordinary(connection, frame)

        node.server.handle = curious
        asked = FindCoordinatorRequest(key="x" * 20_000, key_type=1)
        answers = [peer.send(asked, 2, FindCoordinatorResponse) for _ in range(20)]
        await asyncio.gather(*answers)
        assert len(frames) == 20
        for frame in frames:
            with pytest.raises(ValueError, match="released"):
                frame[0]
        assert node.server.pool.kept_views == 0

    in_a_node(script)


@SIZES
def test_a_batch_that_a_log_kept_from_a_fast_path_never_shows_another_one(
    in_a_node: InANode, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[memoryview] = []
    append = Partition.append

    def curious(partition: Partition, view: memoryview, *given: Any) -> Any:
        kept.append(view[61:])
        return append(partition, view, *given)

    async def script(node: Node, world: ProcessWorld) -> None:
        world.spoil = node.server.spoil = None  # as outside of the simulator
        node.server.pool = BufferPool()
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        )
        monkeypatch.setattr(Partition, "append", curious)
        sent = []
        for letter in (b"a", b"b", b"c"):
            for index in (0, 1):
                record = Record(
                    0, world.clock.wall_ms(), None, letter * size, (("n", b"%d" % index),)
                )
                sent.append(encode_batch([record]))
            await peer.call(produce("t", (0, sent[-2]), (1, sent[-1])), 9, ProduceResponse)
        assert node.counters.fastpath_produces == 3
        assert [bytes(view) for view in kept] == [bytes(batch[61:]) for batch in sent]

    in_a_node(script)


@SIZES
def test_a_batch_refused_on_a_fast_path_does_not_keep_its_buffer(
    in_a_node: InANode, size: int
) -> None:
    """Errors have tracebacks, and those have frames with views."""

    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        )
        gc.collect()
        gc.disable()
        try:
            for sequence in range(4):
                good = batch_of(world, size)
                gap = encode_batch(
                    [Record(0, world.clock.wall_ms(), None, bytes(size), ())],
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=0 if sequence == 0 else 99,
                )
                two = produce("t", (0, gap), (1, good))
                answer = await peer.call(two, 9, ProduceResponse)
                codes = [told.error_code for told in answer.responses[0].partition_responses]
                assert codes == [
                    0 if sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    0,
                ]
            assert node.counters.fastpath_produces == 4
            assert node.server.pool.kept_views == 0
        finally:
            gc.enable()

    in_a_node(script)


def test_a_refused_batch_does_not_keep_its_buffer(in_a_node: InANode) -> None:
    """Errors have tracebacks, and those have frames with views."""

    async def script(node: Node, world: ProcessWorld) -> None:
        compact = CreatableTopicConfig(name="cleanup.policy", value="compact")
        peer = await connected(
            world,
            CreatableTopic(name="t", num_partitions=2, replication_factor=1, configs=[compact]),
        )
        for codec in Codec:
            bad = encode_batch(
                [Record(0, world.clock.wall_ms(), None, bytes(90_000), ())], codec=codec
            )
            broken = bytearray(bad)
            broken[70] ^= 1
            answer = await peer.call(produce("t", (0, bad), (1, broken)), 9, ProduceResponse)
            assert all(told.error_code for told in answer.responses[0].partition_responses)
            await peer.call(produce("t", (0, bad), (1, broken)), 9, ProduceResponse)
        assert node.server.pool.kept_views == 0

    in_a_node(script)


def test_errors_that_are_raised_anew_keep_no_buffer_until_the_collector_comes(
    in_a_node: InANode,
) -> None:
    """The trace of an exception holds the frames that it passed. One of them that holds the
    exception is a cycle, and whoever called it has views of the request."""

    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        )
        part = groups.OffsetCommitRequestPartition(committed_offset=1)
        commit = groups.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[groups.OffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        await peer.call(FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse)
        await asyncio.sleep(1)
        volume = world.sim_disk.volume
        gc.disable()
        try:
            volume.faults.capacity = volume.used
            refused = await peer.call(commit, 8, groups.OffsetCommitResponse)
            assert refused.topics[0].partitions[0].error_code != 0
            volume.faults.capacity = 1 << 40
            bad = batch_of(world, 100)
            bad[-1] ^= 1
            request = produce("t", (0, bad))
            request.acks = 0
            peer.send_unanswered(request, 9)
            await asyncio.sleep(1)
            assert peer.closed
            again = await Peer.connect(world.net, "127.0.0.1", 9092)
            await again.call(produce("t", (0, batch_of(world, 100))), 9, ProduceResponse)
        finally:
            gc.enable()
        assert node.server.pool.kept_views == 0
        assert not node.events.counts[EventKind.VIEW_OUTLIVED_REQUEST]

    in_a_node(script)


def test_a_fenced_producer_whose_batch_would_open_a_transaction_keeps_no_buffer(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        )
        await found_coordinator(peer)

        def written(epoch: int, tid: str | None) -> ProduceRequest:
            batch = encode_batch(
                [Record(0, world.clock.wall_ms(), None, b"x", ())],
                producer_id=1000,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=tid is not None,
            )
            return produce("t", (0, batch), tid=tid)

        await peer.call(written(5, None), 9, ProduceResponse)
        gc.disable()
        try:
            answer = await peer.call(written(4, "x0"), 9, ProduceResponse)
            await peer.call(written(5, None), 9, ProduceResponse)
        finally:
            gc.enable()
        (told,) = answer.responses[0].partition_responses
        assert told.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert node.server.pool.kept_views == 0
        assert not node.events.counts[EventKind.VIEW_OUTLIVED_REQUEST]

    in_a_node(script)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_a_batch_checked_off_the_loop_is_judged_by_its_own_bytes(
    in_a_node: InANode, codec: Codec
) -> None:
    """What the buffer holds by the time of the append, rubbish here, decides nothing."""

    async def script(node: Node, world: ProcessWorld) -> None:
        topics = [CreatableTopic(name="t", num_partitions=8, replication_factor=1)]
        await connected(world, *topics)
        noise = Random(7)

        async def producer(index: int) -> None:
            peer = await Peer.connect(world.net, "127.0.0.1", 9092, "c" * (1 + index * 7))
            for sequence in range(6):
                value = noise.randbytes(40_000 + index * 1000)
                batch = encode_batch(
                    [Record(0, world.clock.wall_ms(), None, value, ())],
                    codec=codec,
                    producer_id=1000 + index,
                    producer_epoch=0,
                    base_sequence=sequence,
                )
                answer = await peer.call(produce("t", (index, batch)), 9, ProduceResponse)
                (told,) = answer.responses[0].partition_responses
                assert (told.error_code, told.base_offset) == (0, sequence)

        await asyncio.gather(*map(producer, range(8)))
        assert node.server.pool.kept_views == 0

    in_a_node(script)


def test_a_transactional_batch_without_its_id_is_refused_off_the_loop_too(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        )
        batch = encode_batch(
            [Record(0, world.clock.wall_ms(), None, Random(1).randbytes(60_000), ())],
            codec=Codec.GZIP,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        answer = await peer.call(produce("t", (0, batch)), 9, ProduceResponse)
        (told,) = answer.responses[0].partition_responses
        assert told.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert node.replicas.find("t", 0).log.end_offset == 0

    in_a_node(script)


def test_a_topic_that_comes_while_another_batch_is_checked_is_asked_for_again(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        )
        value = Random(1).randbytes(60_000)
        now = world.clock.wall_ms()
        heavy = encode_batch([Record(0, now, None, value, ())], codec=Codec.GZIP)
        light = encode_batch([Record(0, now, None, b"v", ())])
        request = produce("t", (0, heavy))
        request.topic_data += produce("new", (0, light)).topic_data
        other = await Peer.connect(world.net, "127.0.0.1", 9092)
        ordinary = node.world.offload

        class Slow:
            memory = ordinary.memory

            async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                if fn is prepare:
                    new = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
                    made = CreateTopicsRequest(topics=[new])
                    await other.call(made, 7, CreateTopicsResponse)
                return await ordinary.run(fn, *args, **kwargs)

        world.offload = Slow()
        answer = await peer.call(request, 9, ProduceResponse)
        codes = [topic.partition_responses[0].error_code for topic in answer.responses]
        assert codes == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]

    in_a_node(script)


# ---- how much of a request is worked on at once ----


class TickingClock:
    """Every look at it takes a millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticks = 0

    def mono_ms(self) -> int:
        self._ticks += 1
        return self._clock.mono_ms() + self._ticks

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def now(self) -> Instant:
        return self._clock.now()


class CountingOffload:
    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self.memory = offload.memory
        self.prepared = 0

    async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.prepared += fn is prepare
        return await self._offload.run(fn, *args, **kwargs)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_many_batches_are_not_all_checked_on_the_loop(in_a_node: InANode, codec: Codec) -> None:
    """Each is small enough for it; together they would hold everybody up."""
    partitions = 20

    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=partitions, replication_factor=1)
        )
        node.fast_paths = False  # which takes lz4 as well, within a limit of its own
        world.clock = TickingClock(world.clock)
        world.offload = offload = CountingOffload(world.offload)
        values = [b"%d" % index * 100 for index in range(partitions)]
        now = world.clock.wall_ms()
        batches = [encode_batch([Record(0, now, None, value, ())], codec=codec) for value in values]
        answer = await peer.call(produce("t", *enumerate(batches)), 9, ProduceResponse)
        assert all(told.error_code == 0 for told in answer.responses[0].partition_responses)
        assert partitions - 6 <= offload.prepared < partitions
        assert [stored(node, "t", index) for index in range(partitions)] == [[v] for v in values]

    in_a_node(script)


def test_large_requests_keep_their_buffers_and_are_checked_off_the_loop(in_a_node: InANode) -> None:
    partitions, senders = 5, 3

    async def script(node: Node, world: ProcessWorld) -> None:
        topics = [
            CreatableTopic(name=f"t{n}", num_partitions=partitions, replication_factor=1)
            for n in range(senders)
        ]
        await connected(world, *topics)
        world.offload = offload = CountingOffload(world.offload)
        noise = Random(3)
        sent: dict[tuple[int, int], list[bytes]] = {}

        async def send(number: int) -> None:
            peer = await Peer.connect(world.net, "127.0.0.1", 9092, "c" * (1 + number))
            for _ in range(2):
                batches = []
                for index in range(partitions):
                    value = noise.randbytes(1_040_000)
                    sent.setdefault((number, index), []).append(value)
                    record = Record(0, world.clock.wall_ms(), None, value, ())
                    batches.append((index, encode_batch([record])))
                request = produce(f"t{number}", *batches)
                answer = await peer.call(request, 9, ProduceResponse, 300)
                assert all(told.error_code == 0 for told in answer.responses[0].partition_responses)

        await asyncio.gather(*map(send, range(senders)))
        assert offload.prepared == senders * partitions * 2
        assert node.server.pool.kept_views == 0
        for (number, index), values in sent.items():
            log = node.replicas.find(f"t{number}", index).log
            found = log.read(0, 1 << 24, log.end_offset)
            assert isinstance(found, Slice)
            data = memoryview(bytearray(found.size))
            found.file.pread_into(data, found.position)
            assert [decode_records(data[at:])[0].value for at, _ in walk(data)] == values

    in_a_node(script)


def test_a_small_request_of_very_many_batches_is_appended(in_a_node: InANode) -> None:
    """It is decoded in slices, from a copy, and batches are stamped where they lie."""
    partitions = 1500

    async def script(node: Node, world: ProcessWorld) -> None:
        world.sim_net.network.faults.window = 1 << 20  # it comes whole, into the scratch buffer
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=partitions, replication_factor=1)
        )
        batch = encode_batch([Record(0, world.clock.wall_ms(), None, b"v", ())])
        request = produce("t", *[(index, batch) for index in range(partitions)])
        assert len(request.encode(9)) < 200_000
        answer = await peer.call(request, 9, ProduceResponse, 300)
        assert all(told.error_code == 0 for told in answer.responses[0].partition_responses)
        assert node.dispatch.table[0].large == 1
        assert node.server.pool.kept_views == 0

    in_a_node(script)


def test_a_request_names_only_so_many_bad_records(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        compact = CreatableTopicConfig(name="cleanup.policy", value="compact")
        peer = await connected(
            world,
            CreatableTopic(name="t", num_partitions=3, replication_factor=1, configs=[compact]),
        )
        many = encode_batch([Record(0, world.clock.wall_ms(), None, b"v", ())] * 6000)
        answer = await peer.call(produce("t", (0, many), (1, many), (2, many)), 9, ProduceResponse)
        told = answer.responses[0].partition_responses
        assert [each.error_code for each in told] == [ErrorCode.INVALID_RECORD] * 3
        assert [len(each.record_errors) for each in told] == [6000, 4000, 1]

    in_a_node(script)


@pytest.mark.parametrize("reset", [False, True])
def test_who_hangs_up_in_the_middle_of_a_frame_keeps_no_view_of_it(
    in_a_node: InANode, reset: bool
) -> None:
    """That is no handler's doing, and nothing to warn of."""

    async def script(node: Node, world: ProcessWorld) -> None:
        stream = await world.net.connect("127.0.0.1", 9092)
        stream.send([(200_000).to_bytes(4, "big") + bytes(1_000)])
        await asyncio.sleep(1)
        if reset:
            stream._link.reset("a test")  # type: ignore[attr-defined]
        stream.close()
        await asyncio.sleep(1)
        assert node.server.connections == 0
        assert node.server.pool.kept_views == 0

    in_a_node(script)


def test_an_error_that_somebody_keeps_does_not_keep_the_buffer(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is gone when it is to be answered: the error has the frame that read from it."""
    kept: list[OSError] = []

    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await connected(
            world, CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        )
        gone = await Peer.connect(world.net, "127.0.0.1", 9092)
        await gone.call(FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse)
        plain = SimStream.send
        served = list(node.server._connections)[-1].stream

        def send(self: SimStream, *views: Any) -> int:
            if self is served and not kept:
                error = ConnectionResetError("gone")
                kept.append(error)
                raise error
            return plain(self, *views)

        monkeypatch.setattr(SimStream, "send", send)
        gone.send(FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse)
        await asyncio.sleep(0.1)
        batch = encode_batch([Record(0, world.clock.wall_ms(), None, b"value", ())])
        await peer.call(produce("t", (0, batch)), 9, ProduceResponse)
        await peer.call(produce("t", (0, batch)), 9, ProduceResponse)
        assert kept
        assert node.server.pool.kept_views == 0

    in_a_node(script)
