"""The bytes of a request belong to it only while its handler runs: what waits has its own."""

import asyncio
from collections.abc import Callable

from scriba.broker.context import ANONYMOUS, Context, Later
from scriba.broker.handlers.produce import produce as handler
from scriba.broker.node import Node
from scriba.records.batch import Record, decode_records, encode_batch
from scriba.records.compression import Codec
from scriba.storage.log import Slice
from scriba.testing.sim.peer import Peer
from scriba.testing.sim.world import ProcessWorld
from scriba.wire.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from scriba.wire.txn import InitProducerIdRequest, InitProducerIdResponse

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
    answer = handler(node, ctx, ProduceRequest.decode(memoryview(buffer), version))
    buffer[:] = bytes(len(buffer))
    assert isinstance(answer, Later), "it did not have to wait"
    while isinstance(answer, Later):
        answer = await answer.awaitable
    assert isinstance(answer, ProduceResponse)
    return answer


def test_a_batch_that_waits_for_its_transaction_keeps_its_bytes(in_a_node: InANode):
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


def test_a_small_batch_beside_one_that_is_packed_anew_keeps_its_bytes(in_a_node: InANode):
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
