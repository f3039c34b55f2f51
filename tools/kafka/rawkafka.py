"""Kafka's protocol spoken by hand, for requests that no decent client would send.

Messages are encoded and decoded by kafka-python's schema classes, not by Scriba's, so that our
own misunderstanding cannot agree with itself. Record batches are laid out here, field by field,
because tests and load generator need every field at their own will.
"""

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Self, TypeAlias
from uuid import UUID

import cramjam
import crc32c
import lz4.frame
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

Message: TypeAlias = Any
"""A request or response object of kafka-python, which has no types."""

Header: TypeAlias = tuple[str, bytes]

CLIENT_ID = "rawkafka"
T0 = int(time.time() * 1000) - 3_600_000
"""An hour ago, in milliseconds: old enough to be told from now, young enough to be kept."""

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
COORDINATOR_LOADING, COORDINATOR_NOT_AVAILABLE = 14, 15


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: bytes) -> bytes:
    """As Kafka's clients do it; snappy without the framing, which Kafka reads too."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Codec.LZ4:
            return bytes(lz4.frame.compress(data, block_linked=False))
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def varint(value: int) -> bytes:
    """Zigzag, then seven bits a byte."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    delta: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: Sequence[Header] = (),
    time_delta: int = 0,
) -> bytes:
    body = b"\0" + varint(time_delta) + varint(delta) + _nullable(key) + _nullable(value)
    body += varint(len(headers))
    for name, content in headers:
        body += _nullable(name.encode()) + _nullable(content)
    return varint(len(body)) + body


@dataclass(frozen=True)
class Batch:
    """A record batch; a field left as None takes the value that makes the batch right."""

    payload: bytes
    count: int
    codec: Codec = Codec.NONE
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    timestamp: int = T0
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_offset_delta: int | None = None
    length: int | None = None
    crc: int | None = None

    def encode(self) -> bytes:
        last = self.count - 1 if self.last_offset_delta is None else self.last_offset_delta
        newest = self.timestamp if self.max_timestamp is None else self.max_timestamp
        checked = struct.pack(
            ">hiqqqhii",
            self.attributes | self.codec,
            last,
            self.timestamp,
            newest,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )
        checked += compress(self.codec, self.payload)
        length = len(checked) + 9 if self.length is None else self.length
        crc = crc32c.crc32c(checked) if self.crc is None else self.crc
        head = struct.pack(">qiibI", self.base_offset, length, self.leader_epoch, self.magic, crc)
        return head + checked

    def but(self, **changes: Any) -> "Batch":
        return replace(self, **changes)


def batch(values: Iterable[bytes | None], **fields: Any) -> Batch:
    """A well-formed batch of keyless records."""
    records = [record(delta, value) for delta, value in enumerate(values)]
    return Batch(b"".join(records), len(records), **fields)


def encode(
    request: Message, version: int, correlation: int = 0, client_id: str = CLIENT_ID
) -> bytes:
    """A whole frame, length included."""
    request.API_VERSION = version
    request.with_header(correlation_id=correlation, client_id=client_id)
    frame: bytes = request.encode(header=True, framed=True)
    return frame


def frame(
    key: int, version: int, body: bytes, correlation: int = 0, length: int | None = None
) -> bytes:
    """A frame with header version 1 around any body, with any length claimed."""
    name = CLIENT_ID.encode()
    whole = struct.pack(">hhih", key, version, correlation, len(name)) + name + body
    return struct.pack(">i", len(whole) if length is None else length) + whole


class Closed(Exception):
    """The broker has closed the connection."""


class Connection:
    """One blocking connection, with requests matched to answers in order."""

    def __init__(self, port: int, timeout: float = 300) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends as much as the broker takes; it may close in the middle of a bad request."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next frame without its length."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def closed(self) -> bool:
        """Waits until the broker closes; False when it answers instead."""
        try:
            self.receive()
        except Closed:
            return True
        return False

    def call(self, request: Message, version: int) -> Message:
        correlation = next(self._correlation)
        self.send(encode(request, version, correlation))
        return self.answer(request, version)

    def answer(self, request: Message, version: int) -> Message:
        response = ResponseClassRegistry.get_response_class(request.header)
        return response.decode(self.receive(), version=version, header=True)

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self.socket.recv(size - len(parts))
            except ConnectionError as broken:
                raise Closed from broken
            if not part:
                raise Closed
            parts += part
        return bytes(parts)


def walk(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(base offset, next offset, bytes) of each whole batch in fetched data."""
    position = 0
    while position + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, position)
        end = position + 12 + length
        if end > len(data):
            return
        (last,) = struct.unpack_from(">i", data, position + 23)
        yield base, base + last + 1, data[position:end]
        position = end


def produce(
    records: bytes | None,
    topic: str = "",
    partition: int = 0,
    acks: int = -1,
    topic_id: UUID | None = None,
) -> Message:
    """Produce for one partition: by name up to version 12, by id from 13."""
    part = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=records)
    data = ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])


def produce_wide(records: bytes, topic_id: UUID, partitions: Iterable[int], acks: int) -> Message:
    """Produce of the same batch for several partitions, by topic id."""
    part = ProduceRequest.TopicProduceData.PartitionProduceData
    data = ProduceRequest.TopicProduceData(
        name="",
        topic_id=topic_id,
        partition_data=[part(index=index, records=records) for index in partitions],
    )
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])


def produced(response: Message) -> Message:
    """The one partition's part of a Produce response."""
    return response.responses[0].partition_responses[0]


def fetch(
    offset: int | Mapping[int, int],
    topic: str = "",
    partitions: Iterable[int] = (0,),
    topic_id: UUID | None = None,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    isolation: int = 0,
) -> Message:
    """A sessionless Fetch of one topic: by name up to version 12, by id from 13. All partitions
    from one offset, or each from its own."""
    wanted = FetchRequest.FetchTopic(
        topic=topic,
        topic_id=topic_id,
        partitions=[
            FetchRequest.FetchTopic.FetchPartition(
                partition=partition,
                fetch_offset=offset if isinstance(offset, int) else offset[partition],
                partition_max_bytes=max_bytes,
            )
            for partition in partitions
        ],
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 30,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[wanted],
    )


def fetched(response: Message) -> Message:
    """The one partition's part of a Fetch response."""
    return response.responses[0].partitions[0]


def create_topic(connection: Connection, name: str, partitions: int = 1, **settings: str) -> UUID:
    """Makes a topic and returns its id once every partition answers for itself.

    Settings are Kafka's names with `_` for the dots.
    """
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=-1,
                assignments=[],
                configs=[
                    topic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                    for key, value in settings.items()
                ],
            )
        ],
        timeout_ms=30_000,
    )
    result = connection.call(request, 7).topics[0]
    if result.error_code:
        raise ValueError(f"{name}: error {result.error_code}: {result.error_message}")
    for partition in range(partitions):
        while list_offset(connection, name, partition, LATEST).error_code:
            time.sleep(0.01)
    made: UUID = result.topic_id
    return made


def list_offset(connection: Connection, topic: str, partition: int, timestamp: int) -> Message:
    wanted = ListOffsetsRequest.ListOffsetsTopic
    part = wanted.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[wanted(name=topic, partitions=[part])]
    )
    return connection.call(request, 7).topics[0].partitions[0]


def init_producer_id(connection: Connection) -> tuple[int, int]:
    """A fresh (producer id, epoch) for an idempotent producer."""
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    answer = connection.call(request, 4)
    while answer.error_code in (COORDINATOR_LOADING, COORDINATOR_NOT_AVAILABLE):
        time.sleep(0.05)
        answer = connection.call(request, 4)
    if answer.error_code:
        raise ValueError(f"InitProducerId: error {answer.error_code}")
    return answer.producer_id, answer.producer_epoch
