"""Batches that are small on the wire and large when unpacked: memory stays bounded.

The broker's peak of resident memory is measured, not what is left afterwards: what is taken for a
moment, times the threads and connections that take it, is what ends a node.
"""

import random
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
import zstandard

from tools.kafka.brokers import Broker, ScribaBroker, running
from tools.kafka.rawkafka import (
    MAX_TIMESTAMP,
    T0,
    Batch,
    Codec,
    Connection,
    batch,
    create_topic,
    list_offset,
    produce,
    produced,
    record,
    varint,
)

HEADERS = 20_000_000
RECORDS = 300_000
FEW = 60 << 20
"""What unpacking may take at its peak, beyond what the node has anyway."""

MANY = 240 << 20
"""What it may take if one batch alone needs 128 MiB: the others wait meanwhile."""

LARGEST = 100 << 20
"""`socket.request.max.bytes`: what requests may take together cannot be less."""

CONNECTIONS = 8
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Broker]:
    with running(ScribaBroker(tmp_path)) as broker:
        yield broker


def memory(broker: Broker, name: str) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) << 10


@contextmanager
def little_memory(broker: Broker, most: int = FEW) -> Iterator[None]:
    """Whatever is done meanwhile, the broker's memory peaks not much above where it was."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak begins anew
    before = memory(broker, "VmRSS")
    yield
    grown = memory(broker, "VmHWM") - before
    assert grown < most, f"{grown >> 20} MiB"


def one_record_of_headers(count: int) -> Batch:
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1)
    body += varint(count) + b"\0\1" * count
    return Batch(varint(len(body)) + body, 1)


@cache
def many_records() -> Batch:
    """A thousand of them have the same time."""
    records = [record(delta, None, time_delta=delta // 1000) for delta in range(RECORDS)]
    return Batch(b"".join(records), RECORDS, max_timestamp=T0 + RECORDS // 1000 - 1)


def test_a_time_is_looked_up_in_a_batch_of_millions_of_headers_without_making_them(
    node: Broker, topic: str
) -> None:
    bomb = one_record_of_headers(HEADERS).but(codec=Codec.ZSTD).encode()
    assert len(bomb) < 5000
    with Connection(node.port) as connection:
        create_topic(connection, topic)
        connection.call(produce(batch([b"first"], timestamp=T0 - 1000).encode(), topic), 9)
        with little_memory(node):
            assert produced(connection.call(produce(bomb, topic), 9)).base_offset == 1
            for timestamp in (T0, T0 - 999, MAX_TIMESTAMP):
                found = list_offset(connection, topic, 0, timestamp)
                assert (found.error_code, found.offset, found.timestamp) == (0, 1, T0)
            assert list_offset(connection, topic, 0, T0 + 1).offset == -1


@pytest.mark.parametrize("codec", CODECS)
def test_a_time_is_looked_up_in_a_batch_of_many_records(
    node: Broker, topic: str, codec: Codec
) -> None:
    data = many_records().but(codec=codec).encode()
    with Connection(node.port) as connection:
        create_topic(connection, topic, max_message_bytes="20000000")
        with little_memory(node):
            assert produced(connection.call(produce(data, topic), 9)).base_offset == 0
            for delta in (0, 1, 150, RECORDS // 1000 - 1):
                found = list_offset(connection, topic, 0, T0 + delta)
                assert (found.offset, found.timestamp) == (delta * 1000, T0 + delta)
            assert list_offset(connection, topic, 0, MAX_TIMESTAMP).offset == RECORDS - 1000


def all_at_once(node: Broker, topic: str, data: bytes) -> list[int]:
    """Everybody sends it; the error codes."""
    codes: list[int] = []

    def send() -> None:
        with Connection(node.port) as connection:
            codes.append(produced(connection.call(produce(data, topic), 9)).error_code)

    threads = [threading.Thread(target=send) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


@pytest.mark.parametrize("source", [Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("target", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_packed_anew_piece_by_piece(
    node: Broker, topic: str, source: Codec, target: str
) -> None:
    bomb = batch([bytes(100 << 20)], codec=source).encode()
    with Connection(node.port) as connection:
        create_topic(connection, topic, compression_type=target, max_message_bytes="8000000")
        with little_memory(node, FEW + (CONNECTIONS * 8 << 20)):
            codes = all_at_once(node, topic, bomb)
        assert codes == [0] * CONNECTIONS
        assert list_offset(connection, topic, 0, -1).offset == CONNECTIONS


def test_frames_that_look_far_back_are_unpacked_one_after_the_other(
    node: Broker, topic: str
) -> None:
    far = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    plain = batch([bytes(120 << 20)])
    packed = zstandard.ZstdCompressor(compression_params=far).compressobj()
    payload = packed.compress(plain.payload) + packed.flush()
    assert zstandard.get_frame_parameters(payload).window_size == 1 << 27
    bomb = Batch(payload, 1, attributes=Codec.ZSTD).encode()
    with Connection(node.port) as connection:
        create_topic(connection, topic)
        with little_memory(node, MANY):
            assert all_at_once(node, topic, bomb) == [0] * CONNECTIONS


def test_requests_that_never_end_share_one_limit_and_large_ones_of_others_are_served(
    tmp_path: Path, topic: str
) -> None:
    limit = {"queued.max.request.bytes": str(LARGEST)}
    with (
        running(ScribaBroker(tmp_path, settings=limit)) as node,
        Connection(node.port) as connection,
        ExitStack() as peers,
    ):
        create_topic(connection, topic, max_message_bytes="8000000")
        data = batch([random.randbytes(4 << 20)]).encode()
        with little_memory(node, LARGEST + FEW):
            for _ in range(4 * CONNECTIONS):
                peer = peers.enter_context(socket.create_connection(("127.0.0.1", node.port)))
                peer.setblocking(False)
                peer.send(struct.pack(">i", LARGEST - 1))
                rest = memoryview(bytes(LARGEST // 2))
                with suppress(BlockingIOError, ConnectionError):
                    while rest:  # as much as it takes at once
                        rest = rest[peer.send(rest) :]
                        select.select([], [peer], [], 0.1)
            for _ in range(CONNECTIONS):
                assert produced(connection.call(produce(data, topic), 9)).error_code == 0
