"""Produce requests that must be refused: Kafka's error code, and the log as it was."""

import uuid
from collections.abc import Callable

import pytest

from tools.kafka.brokers import Broker, KafkaBroker
from tools.kafka.rawkafka import (
    T0,
    Batch,
    Codec,
    Connection,
    batch,
    create_topic,
    encode,
    produce,
    produced,
)

OFFSET_BEYOND, CORRUPT, UNKNOWN_TOPIC, TOO_LARGE = 1, 2, 3, 10
INVALID_ACKS, INVALID_TIMESTAMP, TRANSACTIONAL_ID_DENIED = 21, 32, 53
INVALID_RECORD, UNKNOWN_TOPIC_ID = 87, 100
PLENTY = 10_000_000_000

GOOD = batch([b"a", b"b"])
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def sent_by(**fields: int) -> Batch:
    return GOOD.but(**{"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, **fields})


REFUSED: dict[str, tuple[bytes, int]] = {
    "a wrong checksum": (GOOD.but(crc=1).encode(), CORRUPT),
    "format 0": (GOOD.but(magic=0).encode(), INVALID_RECORD),
    "format 1": (GOOD.but(magic=1).encode(), INVALID_RECORD),
    "format 3": (GOOD.but(magic=3).encode(), CORRUPT),
    "format -1": (GOOD.but(magic=-1).encode(), CORRUPT),
    "no batch": (b"", INVALID_RECORD),
    "half a header": (GOOD.encode()[:40], INVALID_RECORD),
    "a batch cut short": (GOOD.encode()[:-1], INVALID_RECORD),
    "two batches": (GOOD.encode() * 2, INVALID_RECORD),
    "a negative length": (GOOD.but(length=-1).encode(), CORRUPT),
    "a length of zero": (GOOD.but(length=0).encode(), CORRUPT),
    "a length within the header": (GOOD.but(length=48).encode(), CORRUPT),
    "a length of the header alone": (GOOD.but(length=49).encode(), CORRUPT),
    "a length beyond the bytes": (GOOD.but(length=1000).encode(), INVALID_RECORD),
    "more records than offsets": (GOOD.but(count=3, last_offset_delta=1).encode(), INVALID_RECORD),
    "fewer records than offsets": (GOOD.but(count=1, last_offset_delta=1).encode(), INVALID_RECORD),
    "a gap at the end": (GOOD.but(last_offset_delta=5).encode(), INVALID_RECORD),
    "no records": (Batch(b"", 0).encode(), INVALID_RECORD),
    "minus one records": (GOOD.but(count=-1).encode(), INVALID_RECORD),
    "two billion records": (GOOD.but(count=2**31 - 1).encode(), INVALID_RECORD),
    "a control batch": (GOOD.but(attributes=0x20).encode(), INVALID_RECORD),
    "a first offset": (GOOD.but(base_offset=5).encode(), INVALID_RECORD),
    "a producer without sequence": (sent_by(base_sequence=-1).encode(), INVALID_RECORD),
    "a transaction of nobody": (sent_by(attributes=0x10).encode(), TRANSACTIONAL_ID_DENIED),
    "a time far ahead": (
        GOOD.but(timestamp=T0 + PLENTY, max_timestamp=T0 + PLENTY).encode(),
        INVALID_TIMESTAMP,
    ),
    "more than the limit": (batch([b"x" * 1_048_588]).encode(), TOO_LARGE),
}


def error(connection: Connection, data: bytes, topic: str, version: int = 9) -> int:
    answer = produced(connection.call(produce(data, topic), version))
    if answer.error_code:
        assert answer.base_offset == -1
    code: int = answer.error_code
    return code


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_batch_gets_kafkas_error(
    bystander: Connection, topic: str, data: bytes, code: int
) -> None:
    assert error(bystander, data, topic) == code


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_refuses_a_wrong_checksum(
    bystander: Connection, topic: str, version: int
) -> None:
    assert error(bystander, GOOD.but(crc=1).encode(), topic, version) == CORRUPT


def test_where_there_is_no_partition(bystander: Connection, topic: str) -> None:
    data = GOOD.encode()
    assert error(bystander, data, "never-made") == UNKNOWN_TOPIC
    assert error(bystander, data, "not/legal") == UNKNOWN_TOPIC
    for partition in (9, -1):
        answer = produced(bystander.call(produce(data, topic, partition), 9))
        assert answer.error_code == UNKNOWN_TOPIC
    answer = produced(bystander.call(produce(data, topic_id=uuid.uuid4()), 13))
    assert answer.error_code == UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acknowledgements_that_do_not_exist(bystander: Connection, topic: str, acks: int) -> None:
    answer = produced(bystander.call(produce(GOOD.encode(), topic, acks=acks), 9))
    assert answer.error_code == INVALID_ACKS


@pytest.mark.usefixtures("bystander")
def test_who_asked_for_no_answer_learns_of_an_error_by_the_closed_connection(
    cluster: Broker, topic: str
) -> None:
    with Connection(cluster.port) as connection:
        connection.send(encode(produce(GOOD.but(crc=1).encode(), topic, acks=0), 9))
        assert connection.closed()


def test_one_bad_partition_does_not_spoil_the_others(
    bystander: Connection, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    create_topic(bystander, topic, partitions=3)
    request = produce(GOOD.encode(), topic, 0)
    kind = type(request.topic_data[0].partition_data[0])
    request.topic_data[0].partition_data += [
        kind(index=1, records=GOOD.but(crc=1).encode()),
        kind(index=2, records=GOOD.encode()),
    ]
    answers = bystander.call(request, 9).responses[0].partition_responses
    assert {a.index: a.error_code for a in answers} == {0: 0, 1: CORRUPT, 2: 0}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_a_decompression_bomb_goes_off_nowhere(
    cluster: Broker, bystander: Connection, new_topic: Callable[[], str], codec: Codec
) -> None:
    """Unpacked for a topic that stores plain records it would be far over the limit.

    One after the other, so that memory which nobody gives back shows. Kafka unpacks each whole
    before it looks, so it gets one that its heap can bear.
    """
    topic = new_topic()
    create_topic(bystander, topic, compression_type="uncompressed")
    worst = 16 << 20 if codec is Codec.SNAPPY else 200 << 20
    size = min(worst, 64 << 20) if isinstance(cluster, KafkaBroker) else worst
    bomb = batch([bytes(size)], codec=codec).encode()
    assert len(bomb) < 1_048_588
    for _ in range(8):
        assert error(bystander, bomb, topic) == TOO_LARGE
    assert error(bystander, batch([b"fine"], codec=codec).encode(), topic) == 0


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_what_cannot_be_unpacked_is_refused(
    bystander: Connection, new_topic: Callable[[], str], codec: Codec
) -> None:
    topic = new_topic()
    create_topic(bystander, topic, compression_type="uncompressed")
    garbage = Batch(b"\x01\x02garbage" * 9, 1, attributes=codec)
    assert error(bystander, garbage.encode(), topic) != 0
    assert error(bystander, batch([b"fine"], codec=codec).encode(), topic) == 0


def test_a_smaller_limit_of_the_topic_holds(
    bystander: Connection, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    create_topic(bystander, topic, max_message_bytes="500")
    assert error(bystander, batch([b"x" * 600]).encode(), topic) == TOO_LARGE
    assert error(bystander, batch([b"x" * 400]).encode(), topic) == 0
    squeezed = batch([b"x" * 5000], codec=Codec.ZSTD)
    assert error(bystander, squeezed.encode(), topic) == 0
