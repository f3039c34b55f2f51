"""The bytes of a request belong to it only while its handler runs: what waits has its own."""

import asyncio
from collections.abc import Callable

from scriba.broker.node import Node
from scriba.records.batch import Record, decode_records, encode_batch
from scriba.records.compression import Codec
from scriba.storage.log import Slice
from scriba.testing.peer import Peer
from scriba.testing.sim_world import ProcessWorld
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


def test_batches_that_wait_for_their_transaction_are_not_mixed_up(in_a_node: InANode):
    async def script(node: Node, world: ProcessWorld) -> None:
        new = CreatableTopic(name="t", num_partitions=8, replication_factor=1)
        admin = await connected(world, new)
        await found_coordinator(admin)
        peers = [await Peer.connect(world.net, "127.0.0.1", 9092) for _ in range(8)]
        requests = []
        for n, peer in enumerate(peers):
            asked = InitProducerIdRequest(transactional_id=f"x{n}", transaction_timeout_ms=9000)
            got = await peer.call(asked, 4, InitProducerIdResponse)
            assert got.error_code == 0
            batch = encode_batch(
                [Record(0, world.clock.wall_ms(), None, b"value of %d" % n, ())],
                producer_id=got.producer_id,
                producer_epoch=got.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            requests.append(produce("t", (n, batch), tid=f"x{n}"))
        answers = [
            peer.send(request, 12, ProduceResponse)
            for peer, request in zip(peers, requests, strict=True)
        ]
        for n, answer in enumerate(answers):
            (told,) = (await answer).responses[0].partition_responses
            assert told.error_code == 0, told
            assert stored(node, "t", n) == [b"value of %d" % n]

    in_a_node(script)


def test_a_small_batch_beside_one_that_is_packed_anew_keeps_its_bytes(in_a_node: InANode):
    async def script(node: Node, world: ProcessWorld) -> None:
        packed = CreatableTopicConfig(name="compression.type", value="zstd")
        new = CreatableTopic(name="t", num_partitions=2, replication_factor=1, configs=[packed])
        first = await connected(world, new)
        second = await Peer.connect(world.net, "127.0.0.1", 9092)
        now = world.clock.wall_ms()
        small = encode_batch([Record(0, now, None, b"small", ())], codec=Codec.ZSTD)
        large = encode_batch([Record(0, now, None, b"large" * 40_000, ())])
        other = encode_batch([Record(0, now, None, b"other" * 2_000, ())], codec=Codec.ZSTD)
        answers = [
            first.send(produce("t", (0, small), (1, large)), 9, ProduceResponse),
            second.send(produce("t", (1, other)), 9, ProduceResponse),
        ]
        for answer in answers:
            for told in (await answer).responses[0].partition_responses:
                assert told.error_code == 0, told
        assert stored(node, "t", 0) == [b"small"]

    in_a_node(script)
