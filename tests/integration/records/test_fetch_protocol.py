"""Fetch and ApiVersions on the wire: long polls, limits, sessions (KIP-227), ranges."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest

from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import (
    Codec,
    Connection,
    Message,
    batch,
    create_topic,
    encode,
    fetch,
    fetched,
    produce,
    produced,
    walk,
)

INVALID_SESSION_EPOCH = 71

SERVED = {
    0: (0, 13),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    32: (1, 4),
    33: (0, 2),
    35: (1, 5),
    37: (0, 3),
    44: (0, 1),
    55: (0, 2),
    60: (0, 2),
    61: (0, 0),
    74: (0, 1),
    75: (0, 0),
}
"""API to the lowest and highest version that Kafka 4.3 advertises, of what a first node serves."""


@pytest.fixture
def connection(cluster: Broker) -> Iterator[Connection]:
    with Connection(cluster.port) as made:
        yield made


@pytest.fixture
def made(connection: Connection, topic: str) -> UUID:
    """The id of `topic`, which has two partitions."""
    return create_topic(connection, topic, partitions=2)


def append(connection: Connection, topic: str, *values: bytes, partition: int = 0) -> int:
    answer = produced(connection.call(produce(batch(values).encode(), topic, partition), 9))
    assert answer.error_code == 0
    offset: int = answer.base_offset
    return offset


def test_the_advertised_ranges_are_kafkas(connection: Connection) -> None:
    for version in range(5):
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        answer = connection.call(request, version)
        assert answer.error_code == 0
        ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert SERVED.items() <= ranges.items()


def test_features_are_told_with_the_versions(connection: Connection) -> None:
    """Clients of version 3 choke on a feature that begins at 0: it is told from 4 on only."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    older = connection.call(request, 3)
    assert all(feature.min_version > 0 for feature in older.supported_features)
    answer = connection.call(request, 4)
    finalized = {f.name: f.max_version_level for f in answer.finalized_features}
    supported = {f.name: (f.min_version, f.max_version) for f in answer.supported_features}
    assert finalized["metadata.version"] >= 7
    for name, level in finalized.items():
        assert supported[name][0] <= level <= supported[name][1]
    assert answer.finalized_features_epoch >= 0


@pytest.mark.usefixtures("made")
def test_every_version_by_name_finds_the_record(connection: Connection, topic: str) -> None:
    append(connection, topic, b"here")
    for version in range(4, 13):
        part = fetched(connection.call(fetch(0, topic), version))
        assert (part.error_code, part.high_watermark) == (0, 1)
        assert b"here" in part.records


def test_every_version_by_id_finds_the_record(
    connection: Connection, topic: str, made: UUID
) -> None:
    append(connection, topic, b"here")
    for version in range(13, FetchRequest.max_version + 1):
        part = fetched(connection.call(fetch(0, topic_id=made), version))
        assert (part.error_code, part.high_watermark) == (0, 1)
        assert b"here" in part.records


@pytest.mark.usefixtures("made")
def test_a_parked_fetch_is_woken_by_the_next_record(
    cluster: Broker, connection: Connection, topic: str
) -> None:
    """The wait asked for is far longer than the socket's patience: only a wake-up passes."""
    parked = fetch(0, topic, max_wait_ms=600_000)
    with Connection(cluster.port) as waiting:
        waiting.send(encode(parked, 12))
        append(connection, topic, b"wake")
        assert b"wake" in fetched(waiting.answer(parked, 12)).records


@pytest.mark.usefixtures("made")
def test_a_parked_fetch_waits_for_as_many_bytes_as_it_asked(
    cluster: Broker, connection: Connection, topic: str
) -> None:
    parked = fetch(0, topic, partitions=(0, 1), max_wait_ms=600_000)
    parked.min_bytes = 1500
    with Connection(cluster.port) as waiting:
        waiting.send(encode(parked, 12))
        append(connection, topic, b"x" * 1000)
        append(connection, topic, b"y" * 1000, partition=1)
        answer = waiting.answer(parked, 12)
    sizes = [len(part.records or b"") for part in answer.responses[0].partitions]
    assert sum(sizes) >= 2000


@pytest.mark.usefixtures("made")
def test_an_empty_fetch_ends_with_its_time(connection: Connection, topic: str) -> None:
    part = fetched(connection.call(fetch(0, topic, max_wait_ms=50), 12))
    assert (part.error_code, part.high_watermark) == (0, 0)
    assert not part.records


@pytest.mark.usefixtures("made")
def test_a_batch_larger_than_every_limit_still_comes_whole(
    connection: Connection, topic: str
) -> None:
    append(connection, topic, b"x" * 50_000)
    append(connection, topic, b"y" * 50_000)
    wanted = fetch(0, topic, max_bytes=100)
    wanted.max_bytes = 100
    (first,) = walk(fetched(connection.call(wanted, 12)).records)
    assert first[:2] == (0, 1)
    wanted = fetch(0, topic, max_bytes=60_000)
    assert [b[0] for b in walk(fetched(connection.call(wanted, 12)).records)] == [0]


@pytest.mark.usefixtures("made")
def test_the_middle_of_a_batch_brings_the_whole_batch(connection: Connection, topic: str) -> None:
    data = batch([b"%d" % n for n in range(10)], codec=Codec.ZSTD).encode()
    for _ in range(3):
        connection.call(produce(data, topic), 9)
    found = list(walk(fetched(connection.call(fetch(15, topic), 12)).records))
    assert [b[0] for b in found] == [10, 20]
    assert found[0][2][21:] == data[21:]


def in_session(request: Message, session: int, epoch: int) -> Message:
    request.session_id, request.session_epoch = session, epoch
    return request


def test_a_session_tells_only_what_changed(connection: Connection, topic: str, made: UUID) -> None:
    append(connection, topic, b"first")
    whole = connection.call(in_session(fetch(0, topic_id=made, partitions=(0, 1)), 0, 0), 17)
    session = whole.session_id
    assert session != 0
    assert [p.partition_index for p in whole.responses[0].partitions] == [0, 1]

    ahead = in_session(fetch(1, topic_id=made, partitions=(0,)), session, 1)
    assert connection.call(ahead, 17).responses == []

    append(connection, topic, b"second", partition=1)
    same = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20)
    news = connection.call(in_session(same, session, 2), 17)
    assert [p.partition_index for p in news.responses[0].partitions] == [1]
    assert b"second" in news.responses[0].partitions[0].records

    assert connection.call(in_session(same, session, 9), 17).error_code == INVALID_SESSION_EPOCH


def test_a_forgotten_partition_is_told_of_no_more(
    connection: Connection, topic: str, made: UUID
) -> None:
    opened = connection.call(in_session(fetch(0, topic_id=made, partitions=(0, 1)), 0, 0), 17)
    forget = FetchRequest.ForgottenTopic(topic_id=made, partitions=[0])
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, forgotten_topics_data=[forget]
    )
    append(connection, topic, b"unheard")
    append(connection, topic, b"heard", partition=1)
    news = connection.call(in_session(request, opened.session_id, 1), 17)
    assert [p.partition_index for p in news.responses[0].partitions] == [1]
