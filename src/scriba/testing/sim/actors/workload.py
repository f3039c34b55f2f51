"""Scripted clients for simulated runs: producers, a consumer, and a reader of the whole log.

They speak the protocol through `Peer`, write every outcome into a `History`, go on after any
broken connection, and stop when told. A value is `<producer>:<number>:<padding>`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from scriba.errors import ErrorCode, ParseError, error_code
from scriba.records.batch import Record, check_crc, decode_records, encode_batch, walk
from scriba.records.compression import Codec
from scriba.runtime.ports import Clock, Net
from scriba.runtime.rng import SeededRng
from scriba.testing.history import History
from scriba.testing.sim.world.peer import Peer
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from scriba.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from scriba.wire.messages.txn import InitProducerIdRequest, InitProducerIdResponse

MAX_IN_FLIGHT: Final = 5
LOST_STATE: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
)
"""Answers that tell an idempotent producer that the broker remembers it otherwise."""


class Unreadable(Exception):
    """The broker sent bytes that are no records: there is nothing to go on with."""


@dataclass(slots=True)
class Client:
    """What every scripted client is given."""

    name: str
    net: Net
    clock: Clock
    rng: SeededRng
    history: History
    topic: str
    partitions: int
    address: tuple[str, int]
    large_value: int = 5_000
    """Size of some of the values; the others are small."""
    stopping: bool = False
    """Set from outside: finish what is under way and return."""
    cuts: int = 0
    """Power cuts before the present connection was made."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Peer]:
        self.cuts = self.history.power_cuts
        peer = await Peer.connect(self.net, *self.address, client_id=self.name)
        try:
            yield peer
        finally:
            peer.close()

    async def persist(self, work: Callable[[Peer], Awaitable[None]]) -> None:
        """Does the work on one connection after another, until it returns."""
        while True:
            try:
                async with self.connection() as peer:
                    return await work(peer)
            except OSError:
                await asyncio.sleep(self.rng.between(0.02, 0.5))


@dataclass(slots=True)
class Batch:
    partition: int
    values: list[bytes]
    sequence: int = -1
    data: bytes = b""


class _Batches:
    """Makes batches of unique values."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made = 0

    def make(self, partition: int, idempotent: bool) -> Batch:
        rng = self._client.rng
        values = []
        for _ in range(1 + rng.below(4)):
            padding = bytes([97 + rng.below(26)]) * rng.below(
                self._client.large_value if rng.chance(0.05) else 400
            )
            values.append(b"%s:%d:%s" % (self._client.name.encode(), self._made, padding))
            self._made += 1
        self._client.history.send(partition, values, idempotent)
        return Batch(partition, values)


def _encode(client: Client, batch: Batch, producer_id: int = -1, producer_epoch: int = -1) -> bytes:
    now = client.clock.wall_ms()
    codec = Codec(client.rng.below(5)) if client.rng.chance(0.3) else Codec.NONE
    records = [Record(timestamp=now, value=value) for value in batch.values]
    return bytes(
        encode_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=batch.sequence,
        )
    )


def _produce_request(topic: str, batch: Batch, acks: int, timeout_ms: int) -> ProduceRequest:
    part = PartitionProduceData(index=batch.partition, records=batch.data)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=[part])],
    )


def _only(response: ProduceResponse) -> PartitionProduceResponse:
    return response.responses[0].partition_responses[0]


async def produce(client: Client) -> None:
    """A plain producer: one request at a time, never repeated, with any acks."""
    batches = _Batches(client)

    async def work(peer: Peer) -> None:
        while not client.stopping:
            await asyncio.sleep(client.rng.between(0, 0.1))
            batch = batches.make(client.rng.below(client.partitions), idempotent=False)
            batch.data = _encode(client, batch)
            acks = (-1, -1, 1, 1, 0)[client.rng.below(5)]
            version = (3, 7, 9, 12)[client.rng.below(4)]
            request = _produce_request(client.topic, batch, acks, timeout_ms=5_000)
            if acks == 0:
                peer.send_unanswered(request, version)
                continue
            answer = _only(await peer.call(request, version, ProduceResponse, 10))
            if answer.error_code == ErrorCode.NONE:
                client.history.ack(batch.partition, answer.base_offset, batch.values, client.cuts)
            elif not error_code(answer.error_code).retriable:
                client.history.refuse(batch.values)

    await client.persist(work)


@dataclass(slots=True)
class _Identity:
    """An idempotent producer's id, and what it has not settled yet by partition."""

    producer_id: int
    producer_epoch: int
    cuts: int
    """Power cuts before it was made."""
    sequences: dict[int, int] = field(default_factory=dict)
    pending: deque[Batch] = field(default_factory=deque)


async def produce_idempotently(client: Client) -> None:
    """Keeps up to five batches in flight, and repeats them in order until each is settled."""
    batches = _Batches(client)
    identity: _Identity | None = None

    def more(identity: _Identity) -> None:
        while len(identity.pending) < 1 + client.rng.below(MAX_IN_FLIGHT):
            batch = batches.make(client.rng.below(client.partitions), idempotent=True)
            batch.sequence = identity.sequences.get(batch.partition, 0)
            identity.sequences[batch.partition] = batch.sequence + len(batch.values)
            batch.data = _encode(client, batch, identity.producer_id, identity.producer_epoch)
            identity.pending.append(batch)

    async def work(peer: Peer) -> None:
        nonlocal identity
        while not client.stopping or (identity is not None and identity.pending):
            if identity is None:
                identity = await _introduce(client, peer)
                continue
            if not client.stopping:
                await asyncio.sleep(client.rng.between(0, 0.1))
                more(identity)
            if await _settle(client, peer, identity):
                identity = None

    await client.persist(work)


async def _introduce(client: Client, peer: Peer) -> _Identity | None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answer = await peer.call(request, 4, InitProducerIdResponse, 10)
    if answer.error_code != ErrorCode.NONE:
        await asyncio.sleep(0.1)
        return None
    return _Identity(answer.producer_id, answer.producer_epoch, client.history.power_cuts)


async def _settle(client: Client, peer: Peer, identity: _Identity) -> bool:
    """Sends all pending batches at once and takes what is acknowledged off the list.

    True when the broker has lost the producer's state, which only a power cut excuses.
    """
    flights = [
        peer.send(_produce_request(client.topic, batch, -1, 5_000), 9, ProduceResponse)
        for batch in identity.pending
    ]
    await asyncio.wait(flights, timeout=10)
    if not all(flight.done() for flight in flights):
        peer.close(TimeoutError("no answer"))
    lost = False
    unsettled: deque[Batch] = deque()
    failure: BaseException | None = None
    for batch, flight in zip(identity.pending, flights, strict=True):
        failure = failure or flight.exception()
        if flight.exception() is not None:
            unsettled.append(batch)
            continue
        answer = _only(flight.result())
        if answer.error_code == ErrorCode.NONE:
            client.history.ack(batch.partition, answer.base_offset, batch.values, client.cuts)
        elif answer.error_code in LOST_STATE and not _follows(batch, unsettled):
            lost = True
            _complain(client, identity, batch, answer.error_code)
        else:
            unsettled.append(batch)
    identity.pending = unsettled
    if failure is not None:
        raise failure
    if unsettled:
        await asyncio.sleep(client.rng.between(0.01, 0.1))
    return lost


def _follows(batch: Batch, unsettled: deque[Batch]) -> bool:
    """A batch behind one that failed is out of order through no fault of the broker."""
    return any(earlier.partition == batch.partition for earlier in unsettled)


def _complain(client: Client, identity: _Identity, batch: Batch, code: int) -> None:
    history = client.history
    if history.synced_only or history.power_cuts == identity.cuts:
        history.violation(
            f"{client.name}: sequence {batch.sequence} of partition {batch.partition} "
            f"was answered with {error_code(code).name}"
        )


# ---- reading ----


def _fetch_request(topic: str, positions: dict[int, int], max_wait_ms: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=partition, fetch_offset=at, partition_max_bytes=8192)
                    for partition, at in positions.items()
                ],
            )
        ],
    )


def _records(client: Client, data: PartitionData, position: int) -> list[tuple[int, bytes]]:
    """(offset, value) of all whole batches, from `position` on."""
    found: list[tuple[int, bytes]] = []
    view = memoryview(bytes(data.records or b""))  # type: ignore[arg-type]
    try:
        for start, header in walk(view):
            batch = view[start : start + header.size]
            if not check_crc(batch, 0, header):
                raise ParseError(f"the batch at offset {header.base_offset} is corrupt")
            found += [(record.offset, record.value or b"") for record in decode_records(batch)]
    except ParseError as error:
        client.history.violation(f"partition {data.partition_index}: {error}")
        raise Unreadable from error
    return [each for each in found if each[0] >= position]


async def consume(client: Client) -> None:
    """Follows all partitions from their beginning and notes what it is given."""
    positions = dict.fromkeys(range(client.partitions), 0)

    async def work(peer: Peer) -> None:
        while not client.stopping:
            await asyncio.sleep(client.rng.between(0, 0.05))
            asked = dict(positions)
            request = _fetch_request(client.topic, asked, client.rng.below(500))
            version = (4, 11, 12)[client.rng.below(3)]
            response = await peer.call(request, version, FetchResponse, 10)
            for topic in response.responses:
                for data in topic.partitions:
                    positions[data.partition_index] = _take(client, data, asked)

    await client.persist(work)


def _take(client: Client, data: PartitionData, asked: dict[int, int]) -> int:
    """Notes one partition's part of an answer; returns where to go on."""
    partition = data.partition_index
    position = asked[partition]
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        if client.history.synced_only or not client.history.power_cuts:
            client.history.violation(f"partition {partition}: offset {position} is out of range")
        return 0
    if data.error_code != ErrorCode.NONE:
        return position
    records = _records(client, data, position)
    client.history.read(partition, position, data.high_watermark, records, client.cuts)
    return records[-1][0] + 1 if records else position


async def read_all(client: Client) -> dict[int, list[tuple[int, bytes]]]:
    """The whole log of every partition, from its start to its high watermark."""
    log: dict[int, list[tuple[int, bytes]]] = {}

    async def work(peer: Peer) -> None:
        for partition in range(client.partitions):
            end = await _end_offset(client, peer, partition)
            records = log[partition] = []
            while (at := records[-1][0] + 1 if records else 0) < end:
                request = _fetch_request(client.topic, {partition: at}, 100)
                response = await peer.call(request, 12, FetchResponse, 10)
                data = response.responses[0].partitions[0]
                if data.error_code != ErrorCode.NONE:
                    client.history.violation(
                        f"partition {partition}: reading {at} of {end} gave "
                        f"{error_code(data.error_code).name}"
                    )
                    return
                records += _records(client, data, at)

    await client.persist(work)
    return log


async def _end_offset(client: Client, peer: Peer, partition: int) -> int:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=client.topic, partitions=[asked])]
    )
    while True:
        response = await peer.call(request, 5, ListOffsetsResponse, 10)
        answer = response.topics[0].partitions[0]
        if answer.error_code == ErrorCode.NONE:
            return answer.offset
        await asyncio.sleep(0.1)
