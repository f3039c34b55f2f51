"""Bytes that are no request: the connection is closed, and nobody else notices."""

import struct

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from tools.kafka.brokers import Broker, KafkaBroker
from tools.kafka.rawkafka import Connection, frame

pytestmark = pytest.mark.usefixtures("bystander")

METADATA, API_VERSIONS, UNSUPPORTED_VERSION = 3, 18, 35
MAX_REQUEST = 104_857_600


def size(value: int) -> bytes:
    return struct.pack(">i", value)


CLOSED = {
    "a negative length": size(-1),
    "a length of zero": size(0),
    "the largest length": size(2**31 - 1) + b"x" * 100,
    "one byte over the limit": size(MAX_REQUEST + 1) + b"x" * 100,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303") + b"x" * 500,
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a header cut short": struct.pack(">ih", 2, METADATA),
    "a client id of length -2": struct.pack(">ihhih", 10, METADATA, 1, 1, -2),
    "a client id beyond the frame": struct.pack(">ihhih", 10, METADATA, 1, 1, 3000),
    "an unknown API": frame(999, 0, b""),
    "a negative API": frame(-1, 0, b""),
    "an API of controllers": frame(52, 0, b""),
    "an API long gone": frame(4, 0, b""),
    "a version too new": frame(METADATA, 99, b""),
    "a negative version": frame(METADATA, -1, b""),
    "a version too old": frame(1, 3, b""),
    "a body cut short": frame(METADATA, 1, size(1)),
    "an empty body": frame(METADATA, 1, b""),
    "two billion topics": frame(METADATA, 1, size(2**31 - 1)),
    "two billion topics, compact": frame(METADATA, 9, b"\0" + b"\xff\xff\xff\xff\x0f"),
    "a varint that never ends": frame(METADATA, 9, b"\0" + b"\xff" * 20),
    "two billion tagged fields": frame(METADATA, 9, b"\xff\xff\xff\xff\x0f"),
    "a tagged field beyond the frame": frame(METADATA, 9, b"\x01\x00\xff\xff\xff\x7f"),
    "a string beyond the frame": frame(METADATA, 1, size(1) + struct.pack(">h", 32767) + b"a"),
    "a null where none may be": frame(METADATA, 1, size(1) + struct.pack(">h", -1)),
    "a huge produce": frame(0, 7, struct.pack(">hhii", -1, -1, 1000, 2**31 - 1)),
    "records beyond the frame": frame(
        0, 7, struct.pack(">hhiih1siii", -1, -1, 1000, 1, 1, b"t", 1, 0, 2**31 - 1)
    ),
    "a huge fetch": frame(1, 4, struct.pack(">iiiibi", -1, 0, 1, 1, 0, 2**31 - 1)),
}


@pytest.mark.parametrize("data", CLOSED.values(), ids=CLOSED.keys())
def test_the_connection_is_closed(cluster: Broker, data: bytes) -> None:
    with Connection(cluster.port) as connection:
        connection.send(data)
        assert connection.closed()


def test_a_good_request_before_the_bad_one_is_answered(cluster: Broker) -> None:
    with Connection(cluster.port) as connection:
        connection.send(frame(METADATA, 1, size(0), correlation=41) + frame(999, 0, b""))
        assert connection.receive()[:4] == size(41)
        assert connection.closed()


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_form(
    cluster: Broker,
) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    with Connection(cluster.port) as connection:
        request.API_VERSION = 4
        body = b"\0" + request.encode()
        connection.send(frame(API_VERSIONS, 99, body, correlation=7))
        answer = connection.receive()
        correlation, error, count, key, least, most = struct.unpack_from(">ihihhh", answer)
        assert (correlation, error) == (7, UNSUPPORTED_VERSION)
        assert (count, key, least, most) == (1, API_VERSIONS, 0, 4)
        again = connection.call(request, most)
        assert again.error_code == 0


def test_half_a_frame_and_silence_costs_nobody_anything(cluster: Broker) -> None:
    """Each claims the most that is allowed and sends little: memory is not taken on a promise."""
    memory = cluster.resident_bytes()
    held = [Connection(cluster.port) for _ in range(4)]
    for connection in held:
        connection.send(size(MAX_REQUEST) + b"\0\x03\0\x01" + b"x" * 100_000)
    with Connection(cluster.port) as other:
        other.send(frame(METADATA, 1, size(0), correlation=1))
        assert other.receive()[:4] == size(1)
    if not isinstance(cluster, KafkaBroker):
        assert cluster.resident_bytes() - memory < 16 << 20
    for connection in held:
        connection.close()


def test_a_client_that_vanishes_in_the_middle(cluster: Broker) -> None:
    whole = frame(METADATA, 1, size(0))
    for cut in range(1, len(whole)):
        with Connection(cluster.port) as connection:
            connection.send(whole[:cut])


def test_requests_in_a_row_are_answered_in_order(cluster: Broker) -> None:
    with Connection(cluster.port) as connection:
        connection.send(b"".join(frame(METADATA, 1, size(0), correlation=n) for n in range(200)))
        answers = [struct.unpack(">i", connection.receive()[:4])[0] for _ in range(200)]
    assert answers == list(range(200))


def test_a_request_may_trickle_in_byte_by_byte(cluster: Broker) -> None:
    with Connection(cluster.port) as connection:
        for byte in frame(METADATA, 1, size(0), correlation=9):
            connection.send(bytes([byte]))
        assert connection.receive()[:4] == size(9)
