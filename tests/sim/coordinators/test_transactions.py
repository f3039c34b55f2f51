"""A node that dies again and again, by kill or by power cut, while transactions run over it.

Everything counts only once the device has it, so nothing that was told may be lost. Two partitions
get the same number in each transaction. In the end a reader of what is committed finds each number
in both or in none, in order and once, as its producer was told where it was told anything.
"""

import asyncio
from typing import Any, TypeVar

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.records.batch import Record, decode_records, encode_batch, walk
from scriba.settings import NodeSettings
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from scriba.wire.messages.txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from scriba.wire.schema import Message

M = TypeVar("M", bound=Message)

TOPIC, TID = "numbers", "counter"
PARTITIONS = (0, 1)
SETTINGS = {
    "listeners": "PLAINTEXT://broker:9092",
    "scriba.allow.insecure.bind": "true",
    "log.dirs": "/data",
    "log.flush.interval.messages": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
DEATHS = 6
CLASSIC, BUMPING = (9, 3), (12, 5)
"""Versions of Produce and EndTxn: of clients before and after KIP-890."""


async def ask(peer: Peer, request: Message, version: int, answer: type[M]) -> M:
    """A client that notices soon when nobody is there any more."""
    return await peer.call(request, version, answer, timeout_s=1.0)


class Refused(Exception):
    """The producer has to begin again."""


class Counter:
    """Counts: one number for each transaction, told or not."""

    def __init__(self, versions: tuple[int, int]) -> None:
        self.produce_version, self.end_version = versions
        self.told: dict[int, bool] = {}
        self.next = 0
        self.stopping = False

    async def main(self, world: ProcessWorld) -> None:
        while not self.stopping:
            try:
                peer = await Peer.connect(world.net, "broker", 9092)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                await self.count(peer)
            except (OSError, Refused):
                await asyncio.sleep(0.05)
            finally:
                peer.close()

    async def count(self, peer: Peer) -> None:
        pid, epoch = await begin(peer)
        sequence = 0
        while not self.stopping:
            number, self.next = self.next, self.next + 1
            if self.produce_version < BUMPING[0]:
                await self.announce(peer, pid, epoch)
            for partition in PARTITIONS:
                await self.write(peer, (pid, epoch, sequence), partition, number)
            commit = number % 3 != 1
            answer = await ask(
                peer,
                EndTxnRequest(
                    transactional_id=TID, producer_id=pid, producer_epoch=epoch, committed=commit
                ),
                self.end_version,
                EndTxnResponse,
            )
            expect(answer.error_code)
            self.told[number] = commit
            sequence += 1
            if self.end_version >= BUMPING[1]:
                pid, epoch, sequence = answer.producer_id, answer.producer_epoch, 0

    async def announce(self, peer: Peer, pid: int, epoch: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TID,
            v3_and_below_producer_id=pid,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[*PARTITIONS])],
        )
        while True:
            answer = await ask(peer, request, 3, AddPartitionsToTxnResponse)
            (topic,) = answer.results_by_topic_v3_and_below
            codes = {p.partition_error_code for p in topic.results_by_partition}
            if codes != {ErrorCode.CONCURRENT_TRANSACTIONS}:
                break
            await asyncio.sleep(0.01)
        for code in codes:
            expect(code)

    async def write(
        self, peer: Peer, producer: tuple[int, int, int], partition: int, number: int
    ) -> None:
        pid, epoch, sequence = producer
        records = encode_batch(
            [Record(timestamp=1_700_000_000_000, value=b"%d" % number)],
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=TID,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=TOPIC,
                    partition_data=[PartitionProduceData(index=partition, records=records)],
                )
            ],
        )
        answer = await ask(peer, request, self.produce_version, ProduceResponse)
        expect(answer.responses[0].partition_responses[0].error_code)


def expect(code: int) -> None:
    if code:
        raise Refused(ErrorCode(code).name)


async def begin(peer: Peer) -> tuple[int, int]:
    """Takes the transactional id; what was open under it has ended when this returns."""
    request = InitProducerIdRequest(transactional_id=TID, transaction_timeout_ms=60_000)
    while True:
        await ask(peer, FindCoordinatorRequest(key=TID, key_type=1), 2, FindCoordinatorResponse)
        answer = await ask(peer, request, 4, InitProducerIdResponse)
        if not answer.error_code:
            return answer.producer_id, answer.producer_epoch
        await asyncio.sleep(0.02)


async def committed(peer: Peer, partition: int) -> list[int]:
    """The numbers that a consumer with `read_committed` is given."""
    found: list[int] = []
    offset = 0
    while True:
        wanted = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            isolation_level=1, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])]
        )
        (part,) = (await ask(peer, request, 11, FetchResponse)).responses[0].partitions
        assert part.error_code == 0
        if offset >= part.high_watermark:
            return found
        assert isinstance(part.records, bytes | bytearray | memoryview)
        assert part.records, f"stuck at {offset} of {part.high_watermark}"
        aborted = {(a.producer_id, a.first_offset) for a in part.aborted_transactions or ()}
        found += visible(bytes(part.records), aborted)
        offset = max(header.next_offset for _, header in walk(bytes(part.records)))


def visible(data: bytes, aborted: set[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    dropping: set[int] = set()
    for position, header in walk(data):
        pid = header.producer_id
        dropping |= {a for a, first in aborted if a == pid and first == header.base_offset}
        if header.is_control:
            dropping.discard(pid)
        elif pid not in dropping:
            found += [int(r.value or b"") for r in decode_records(data[position:])]
    return found


class Scene:
    def __init__(self, seed: int) -> None:
        self.sim = SimWorld(seed, disk_faults=DiskFaults(sync_ms=(0.1, 3.0)))
        self.draw = self.sim.rng.fork("scene")
        self.host = self.sim.host("broker")
        self.counter = Counter((CLASSIC, BUMPING)[seed % 2])
        self.process: Any = None

    async def boot(self) -> None:
        up = asyncio.Event()

        async def serve(world: ProcessWorld) -> None:
            node = Node(NodeSettings.parse(SETTINGS), world)
            await node.start()
            up.set()
            await node.wait_stopped()

        self.process = self.host.start(serve)
        await asyncio.wait_for(up.wait(), 60)

    async def play(self) -> None:
        await self.boot()
        await self.as_client(self.make_topic)
        counting = self.sim.host("clients").start(self.counter.main).task
        for _ in range(DEATHS):
            await asyncio.sleep(self.draw.between(0.05, 1.0))
            if self.draw.chance(0.5):
                self.process.kill()
            else:
                self.host.power_cut()
            await asyncio.sleep(self.draw.between(0, 0.2))
            await self.boot()
        before = len(self.counter.told)
        await asyncio.sleep(2)
        assert len(self.counter.told) > before, "no transaction ends any more"
        self.counter.stopping = True
        await asyncio.wait_for(counting, 60)
        await self.as_client(self.check)

    async def as_client(self, work: Any) -> None:
        async def main(world: ProcessWorld) -> None:
            peer = await Peer.connect(world.net, "broker", 9092)
            await work(peer)
            peer.close()

        await asyncio.wait_for(self.sim.host("clients").start(main).task, 60)

    async def make_topic(self, peer: Peer) -> None:
        topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
        answer = await ask(peer, CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        assert answer.topics[0].error_code == 0

    async def check(self, peer: Peer) -> None:
        await begin(peer)
        first, second = [await committed(peer, partition) for partition in PARTITIONS]
        assert first == second
        assert first == sorted(set(first))
        told = self.counter.told
        assert {n: n in first for n in told} == told


@pytest.mark.parametrize("seed", range(8))
def test_transactions_are_all_or_nothing_however_the_node_dies(seed: int) -> None:
    scene = Scene(seed)
    scene.sim.run(scene.play())
    assert len(scene.counter.told) > 20
