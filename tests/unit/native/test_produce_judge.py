"""Produce found by a plan and judged in one call: what is taken, what is left to the handler."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.broker.fastpath.produce import _FIELDS
from scriba.errors import ParseError
from scriba.native.implementation import Implementation
from scriba.records.batch import encode_batch
from scriba.records.compression import Codec
from scriba.records.crc import crc32c
from scriba.records.header import CRC_START, BatchHeader, read_header
from scriba.records.record import Record
from scriba.wire.frame import decode_request_header, encode_request
from scriba.wire.locator import plan
from scriba.wire.messages.fetch import FetchRequest
from scriba.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.typed import present

pytestmark = pytest.mark.usefixtures("chosen")

NOW = 1_700_000_000_000
VERSIONS = range(3, 14)
ID = bytes(range(16))
MANY = 1000


def batch(*records: Record, **how: Any) -> bytes:
    return bytes(encode_batch(list(records) or [Record(0, NOW, None, b"value", ())], **how))


def request(*batches: bytes | None, **fields: Any) -> ProduceRequest:
    """For as many partitions of one topic."""
    data = [PartitionProduceData(index=index, records=each) for index, each in enumerate(batches)]
    topic = TopicProduceData(name="topic", topic_id=ID, partition_data=data)
    return ProduceRequest(**{"acks": -1, "timeout_ms": 70, "topic_data": [topic], **fields})


def framed(message: ProduceRequest, version: int = 9, client: str | None = "me") -> memoryview:
    return memoryview(bytearray(encode_request(message, version, 77, client)))


def plan_of(version: int) -> bytes:
    return plan(ProduceRequest, version, _FIELDS)


def topics(
    count: int = 8, most: int = 1 << 20, need_keys: bool = False, most_lz4: int = -1
) -> dict[bytes, Any]:
    partitions = {index: f"partition {index}" for index in range(count)}
    topic = (most, need_keys, 10, 10, partitions, most_lz4, "me")
    return {b"topic": topic, ID: topic}


def judged(
    chosen: Implementation,
    frame: memoryview,
    version: int = 9,
    unpacked: int = 1 << 20,
    **known: Any,
) -> Any:
    return chosen.judge_produce(plan_of(version), frame, MANY, topics(**known), NOW, unpacked)


# ---- finding ----


def fields_of(message: ProduceRequest, version: int) -> list[Any]:
    """What a plan of Produce tells, by way of the decoded request; spans as the bytes in them."""
    tid = message.transactional_id
    out: list[Any] = [77, None if tid is None else tid.encode(), message.acks, message.timeout_ms]
    out.append(len(message.topic_data))
    for topic in message.topic_data:
        out.append(topic.topic_id if version >= 13 else topic.name.encode())
        out.append(len(topic.partition_data))
        for data in topic.partition_data:
            out += (data.index, None if data.records is None else bytes(data.records))
    return out


def found_in(frame: memoryview, located: list[int]) -> list[Any]:
    numbers = iter(located)

    def span(numbers: Iterator[int]) -> bytes | None:
        begin, end = next(numbers), next(numbers)
        return None if begin < 0 else bytes(frame[begin:end])

    out: list[Any] = [next(numbers), span(numbers), next(numbers), next(numbers)]
    count = next(numbers)
    out.append(count)
    for _ in range(count):
        out.append(span(numbers))
        entries = next(numbers)
        out.append(entries)
        for _ in range(entries):
            out += (next(numbers), span(numbers))
    assert next(numbers, None) is None
    return out


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=300)
DATA = st.builds(
    PartitionProduceData,
    index=st.integers(-(2**31), 2**31 - 1),
    records=st.none() | st.binary(max_size=300),
)
TOPICS = st.builds(
    TopicProduceData,
    name=NAMES,
    topic_id=st.binary(min_size=16, max_size=16),
    partition_data=st.lists(DATA, max_size=4),
)
REQUESTS = st.builds(
    ProduceRequest,
    transactional_id=st.none() | NAMES,
    acks=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    topic_data=st.lists(TOPICS, max_size=3),
)


@given(message=REQUESTS, version=st.sampled_from(VERSIONS), client=st.none() | NAMES)
def test_what_is_located_is_what_is_decoded(
    chosen: Implementation, message: ProduceRequest, version: int, client: str | None
) -> None:
    frame = framed(message, version, client)
    located = chosen.locate(plan_of(version), frame, MANY)
    _, start = decode_request_header(frame)
    decoded, _ = ProduceRequest.decode_from(frame, start, version)
    assert found_in(frame, present(located)) == fields_of(decoded, version)


@given(
    version=st.sampled_from(VERSIONS),
    at=st.integers(0, 300),
    byte=st.integers(0, 255),
    cut=st.integers(0, 300),
)
def test_a_spoilt_request_is_located_as_it_would_be_decoded_or_not_at_all(
    chosen: Implementation, version: int, at: int, byte: int, cut: int
) -> None:
    whole = bytes(framed(request(b"x" * 90, b"y" * 130), version))
    spoilt = bytearray(whole[: len(whole) - cut % 40])
    spoilt[4 + at % (len(spoilt) - 4)] = byte
    frame = memoryview(spoilt)
    located = chosen.locate(plan_of(version), frame, MANY)
    try:
        header, start = decode_request_header(frame)
        decoded, _ = ProduceRequest.decode_from(frame, start, version)
    except ParseError:
        assert located is None
    else:
        if located is not None:
            located[0] = 77
            assert header.api_version == version
            assert found_in(frame, located) == fields_of(decoded, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_walk_gives_up_on_what_only_the_decoder_can_tell(
    chosen: Implementation, version: int
) -> None:
    good = bytes(framed(request(b"x"), version))
    steps = plan_of(version)
    assert chosen.locate(steps, memoryview(good), 2) is not None
    assert chosen.locate(steps, memoryview(good + b"librdkafka"), 2) is not None
    assert chosen.locate(steps, memoryview(good), 1) is None, "a topic and a partition are two"
    assert chosen.locate(steps, framed(request(b"x"), version, "m\xe9"), 2) is None
    assert (
        chosen.locate(steps, framed(request(b"x"), 16 - version, "me"), 2) is None or version == 8
    )
    for size in range(len(good)):
        assert chosen.locate(steps, memoryview(good[:size]), 2) is None, size
    if version >= 9:
        assert chosen.locate(steps, memoryview(good[:-1] + b"\1\0\0"), 2) is None, "tagged fields"


def test_places_and_nested_arrays_are_told_for_other_requests(chosen: Implementation) -> None:
    message = FetchRequest(session_epoch=5)
    steps = plan(FetchRequest, 11, frozenset({"max_wait_ms"}), frozenset({"session_epoch"}))
    frame = memoryview(encode_request(message, 11, 3, None))
    correlation_id, wait, epoch_at, *counts = present(chosen.locate(steps, frame, MANY))
    assert (correlation_id, wait, counts) == (3, 0, [0, 0])
    assert struct.unpack_from(">i", frame, epoch_at) == (5,)


# ---- judging ----


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 40, 200, 20_000, 900_000])
def test_good_batches_are_found_where_they_lie(
    chosen: Implementation, version: int, size: int
) -> None:
    first = batch(Record(0, NOW - 10, b"k", bytes(size), ()), Record(1, NOW + 10, None, None, ()))
    frame = framed(request(first, batch()), version)
    found = judged(chosen, frame, version)
    assert found[:3] == (77, -1, 70)
    assert found[3::3] == ("partition 0", "partition 1")
    for view, header, data in zip(found[4::3], found[5::3], (first, batch()), strict=True):
        assert (bytes(view), header) == (data, read_header(data))
        assert type(header) is BatchHeader
        view[0] = 1  # it is the request's own memory
    size = len(first)
    assert judged(chosen, framed(request(first), version), version, most=size) is not None
    assert judged(chosen, framed(request(first), version), version, most=size - 1) is None


def test_every_unusual_batch_leaves_the_whole_request_to_the_handler(
    chosen: Implementation,
) -> None:
    plain = batch()
    assert judged(chosen, framed(request(plain, plain))) is not None
    wrongs: list[bytes | None] = [
        None,
        b"",
        batch(codec=Codec.LZ4),
        plain + b"\0",
        plain[:60],
        batch(Record(0, NOW - 11, None, b"", ())),
        batch(Record(0, NOW + 11, None, b"", ())),
        batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
        batch(producer_id=1, producer_epoch=0, base_sequence=-1),
    ]
    for at in (0, 8, 16, 17, 21, 22, 23, 30, 57, 60, len(plain) - 1):
        spoilt = bytearray(plain)
        spoilt[at] ^= 1
        wrongs.append(bytes(spoilt))
    for number, wrong in enumerate(wrongs):
        assert judged(chosen, framed(request(plain, wrong))) is None, number
        assert judged(chosen, framed(request(wrong, plain))) is None, number


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_wrong_checksum_is_found_in_batches_of_every_size(
    chosen: Implementation, size: int
) -> None:
    good = batch(Record(0, NOW, None, bytes(size), ()))
    spoilt = bytearray(good)
    spoilt[-5] ^= 1  # within the value
    assert judged(chosen, framed(request(good))) is not None
    assert judged(chosen, framed(request(bytes(spoilt)))) is None


def test_records_are_looked_at_where_that_costs_nothing(extension: Implementation) -> None:
    lying = bytearray(batch())
    lying[-1] = 2  # a header more than there is
    lying[17:21] = struct.pack(">I", crc32c(memoryview(lying)[CRC_START:]))
    assert judged(extension, framed(request(bytes(lying)))) is None


def test_keys_are_looked_for_where_a_topic_needs_them(extension: Implementation) -> None:
    keyed, keyless = batch(Record(0, NOW, b"k", b"", ())), batch(Record(0, NOW, None, b"", ()))
    assert judged(extension, framed(request(keyed)), need_keys=True)
    assert judged(extension, framed(request(keyless)), need_keys=True) is None
    assert judged(extension, framed(request(keyless)))


VALUES = [Record(at, NOW, b"key", bytes([at]) * 900, ()) for at in range(20)]


def test_batches_in_lz4_are_taken_where_their_topic_stores_them(chosen: Implementation) -> None:
    packed, plain = batch(*VALUES, codec=Codec.LZ4), batch()
    frame = framed(request(packed, plain))
    found = judged(chosen, frame, most_lz4=len(packed))
    assert found[3] == "partition 0"
    assert bytes(found[4]) == packed
    assert found[5] == read_header(packed)
    assert bytes(found[7]) == plain
    assert judged(chosen, frame, most_lz4=len(packed) - 1) is None
    assert judged(chosen, frame, most_lz4=1 << 20, most=len(plain) - 1) is None
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.ZSTD):
        other = framed(request(batch(*VALUES, codec=codec)))
        assert judged(chosen, other, most_lz4=1 << 20) is None


def test_records_in_lz4_are_judged_as_others_are(chosen: Implementation) -> None:
    limits = {"most_lz4": 1 << 20, "need_keys": True}
    keyed, keyless = VALUES, [Record(0, NOW, None, b"value", ())]
    early = [Record(0, NOW - 11, b"key", b"value", ())]
    taken = [
        judged(chosen, framed(request(batch(*records, codec=Codec.LZ4))), **limits) is not None
        for records in (keyed, keyless, early)
    ]
    assert taken == [chosen.native, False, False]
    cut = bytearray(batch(*VALUES, codec=Codec.LZ4))
    del cut[-9:]
    struct.pack_into(">i", cut, 8, len(cut) - 12)
    struct.pack_into(">I", cut, CRC_START - 4, crc32c(cut[CRC_START:]))
    found = judged(chosen, framed(request(bytes(cut))), most_lz4=1 << 20)
    assert (found is None) == chosen.native


def test_what_packed_batches_of_a_request_grow_to_is_limited_for_all_of_them(
    chosen: Implementation,
) -> None:
    packed = batch(*VALUES, codec=Codec.LZ4)
    size = len(batch(*VALUES)) - len(batch()) + 100
    frame = framed(request(packed, packed, packed))
    assert judged(chosen, frame, most_lz4=1 << 20, unpacked=4 * size)
    found = judged(chosen, frame, most_lz4=1 << 20, unpacked=2 * size)
    assert (found is None) == chosen.native


@pytest.mark.parametrize("acks", [-2, 2])
def test_acks_that_do_not_exist_are_left_to_the_handler(chosen: Implementation, acks: int) -> None:
    assert judged(chosen, framed(request(batch(), acks=acks))) is None


def test_a_request_that_names_a_partition_twice_is_left_to_the_handler(
    chosen: Implementation,
) -> None:
    message = request(batch(), batch(), batch())
    message.topic_data[0].partition_data[2].index = 0
    assert judged(chosen, framed(message)) is None
    one, two = request(batch()), request(batch(), batch())
    del two.topic_data[0].partition_data[0]
    again = ProduceRequest(acks=1, topic_data=one.topic_data + two.topic_data)
    assert judged(chosen, framed(again)) is None


def test_a_request_without_batches_is_left_to_the_handler(chosen: Implementation) -> None:
    assert judged(chosen, framed(request())) is None
    assert judged(chosen, framed(request(topic_data=[]))) is None
    assert judged(chosen, framed(request(batch(), transactional_id="t"))) is None


def test_what_the_tables_lack_is_told_apart_from_what_is_unusual(chosen: Implementation) -> None:
    frame = framed(request(batch(), batch()))
    assert judged(chosen, frame, count=1) is False
    assert chosen.judge_produce(plan_of(9), frame, MANY, {}, NOW, 0) is False
    assert judged(chosen, framed(request(batch()), 8), 9) is None, "another version"
