"""Elements and tagged fields are counted before they are made, and arrays may exist as bytes."""

from collections.abc import Callable

import pytest

from scriba.errors import ParseError
from scriba.outcome import at_once
from scriba.wire.frame import decode_request_header, encode_request
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from scriba.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from scriba.wire.packed import Packed
from scriba.wire.schema import TooMany
from scriba.wire.varint import MAX_TAGS, skip_tags, write_uvarint

Read = Callable[[bytes, int, int], object]


def whole(body: bytes, version: int, limit: int) -> object:
    return FetchRequest.decode_from(body, 0, version, limit)[0]


def sliced(body: bytes, version: int, limit: int) -> object:
    return at_once(FetchRequest.decode_in_slices(body, 0, version, limit))[0]


@pytest.mark.parametrize("read", [whole, sliced])
@pytest.mark.parametrize("version", [7, 12])
def test_elements_of_all_arrays_at_any_depth_are_counted(read: Read, version: int) -> None:
    request = FetchRequest(
        topics=[
            FetchTopic(topic=name, partitions=[FetchPartition(partition=p) for p in range(3)])
            for name in ("a", "b")
        ],
        forgotten_topics_data=[ForgottenTopic(topic="c", partitions=[1, 2, 3, 4])],
    )
    body = request.encode(version)
    elements = 2 + 2 * 3 + 1 + 4
    assert read(body, version, elements) == request
    with pytest.raises(TooMany):
        read(body, version, elements - 1)


@pytest.mark.parametrize("read", [whole, sliced])
def test_tagged_fields_count_as_elements(read: Read) -> None:
    body = FetchRequest(topics=[FetchTopic(topic="a")]).encode(12)
    assert body.endswith(b"\0")
    tagged = body[:-1] + b"\x03" + b"\x40\0\x41\0\x42\0"
    read(tagged, 12, 4)
    with pytest.raises(TooMany):
        read(tagged, 12, 3)


@pytest.mark.parametrize("read", [whole, sliced])
@pytest.mark.parametrize("inner", [False, True])
def test_a_section_of_thousands_of_tagged_fields_is_refused(read: Read, inner: bool) -> None:
    body = FetchRequest(topics=[FetchTopic(topic="a")]).encode(12)
    many = write_uvarint(100_000) + b"\x40\0" * 100_000
    # The last byte ends the request, the one behind its only topic's partitions that topic.
    place = body.index(b"\x02a\x01\0") + 3 if inner else len(body) - 1
    with pytest.raises(ParseError, match="100000 tagged fields in one section"):
        read(body[:place] + many + body[place + 1 :], 12, 1 << 20)


def test_a_header_of_thousands_of_tagged_fields_is_refused() -> None:
    frame = encode_request(MetadataRequest(topics=[]), 12, 1, "c")
    start = len(b"........") + len(b"..c")
    assert frame[start] == 0
    few = write_uvarint(MAX_TAGS) + b"\x40\0" * MAX_TAGS
    decode_request_header(frame[:start] + few + frame[start + 1 :])
    many = write_uvarint(MAX_TAGS + 1) + b"\x40\0" * (MAX_TAGS + 1)
    with pytest.raises(ParseError, match="tagged fields"):
        decode_request_header(frame[:start] + many + frame[start + 1 :])
    with pytest.raises(ValueError, match="tagged fields"):
        skip_tags(many, 0)


@pytest.mark.parametrize("version", [1, 9])
def test_a_decoder_in_slices_stops_after_each_element(version: int) -> None:
    names = [MetadataRequestTopic(name=str(n)) for n in range(500)]
    body = MetadataRequest(topics=names).encode(version)
    steps = sum(1 for _ in MetadataRequest.decode_in_slices(body, 0, version, 500))
    assert steps >= 500


def test_an_answer_is_counted_while_it_is_written() -> None:
    answer = MetadataResponse(topics=[MetadataResponseTopic(name="t") for _ in range(50)])
    answer.encode_into(bytearray(), 9, None, 200)
    with pytest.raises(TooMany):
        answer.encode_into(bytearray(), 9, None, 49)


@pytest.mark.parametrize("version", MetadataResponse.VERSIONS)
def test_a_packed_array_is_written_as_the_list_would_be(version: int) -> None:
    topics = [
        MetadataResponseTopic(
            name=f"topic {n}",
            partitions=[
                MetadataResponsePartition(partition_index=p, replica_nodes=[1, 2]) for p in range(n)
            ],
        )
        for n in range(200)
    ]
    listed = MetadataResponse(topics=topics)
    packed = MetadataResponse()
    array = Packed(MetadataResponse, "topics", version)
    array.extend(topics[:10])
    array.extend(topics[10:])
    packed.topics = array  # type: ignore[assignment]
    out = bytearray()
    at_once(packed.encode_in_slices(out, version))
    assert out == listed.encode(version)
    assert len(array) == len(topics)
    with pytest.raises(TooMany):  # only slices know how to write it
        packed.encode_into(bytearray(), version)
