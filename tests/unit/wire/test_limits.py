"""Elements and tagged fields are counted before they are made, and arrays may exist as bytes."""

from collections.abc import Callable

import pytest

from scriba.errors import ParseError
from scriba.outcome import at_once
from scriba.wire.frame import decode_request_header, encode_request
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from scriba.wire.messages.groups import (
    DescribedGroupMember,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
)
from scriba.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from scriba.wire.packed import STEP_BYTES, Packed, in_short_steps
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
    at_once(array.adding(topics[:10]))
    at_once(array.adding(topics[10:]))
    packed.topics = array  # type: ignore[assignment]
    out = bytearray()
    at_once(packed.encode_in_slices(out, version))
    assert out == listed.encode(version)
    assert len(array) == len(topics)
    with pytest.raises(TooMany):  # only slices know how to write it
        packed.encode_into(bytearray(), version)


def group(members: int, size: int) -> DescribeGroupsResponseDescribedGroup:
    return DescribeGroupsResponseDescribedGroup(
        group_id="g",
        members=[
            DescribedGroupMember(member_id=f"m{n}", member_assignment=bytes(size))
            for n in range(members)
        ],
    )


@pytest.mark.parametrize("version", DescribeGroupsResponse.VERSIONS)
def test_no_step_of_a_packed_array_encodes_more_than_one_inner_element(version: int) -> None:
    array = Packed(DescribeGroupsResponse, "groups", version)
    large = group(2_000, 10)
    steps = 0
    for _ in array.adding([large, large]):
        steps += 1
    assert steps >= 2 * 2_000
    packed = DescribeGroupsResponse()
    packed.groups = array  # type: ignore[assignment]
    out = bytearray()
    at_once(packed.encode_in_slices(out, version))
    assert out == DescribeGroupsResponse(groups=[large, large]).encode(version)


def test_long_values_take_as_many_steps_as_their_bytes() -> None:
    out = bytearray()
    work = DescribeGroupsResponse(groups=[group(3, 10 * STEP_BYTES)]).encode_in_slices(out, 5)
    steps = sum(1 for _ in in_short_steps(work, out))
    assert steps >= 30


def test_bytes_count_as_elements_where_these_are_limited() -> None:
    answer = DescribeGroupsResponse(groups=[group(3, 1 << 20)])
    with pytest.raises(TooMany):
        answer.encode_into(bytearray(), 5, None, 1_000)
    whole = bytearray()
    answer.encode_into(whole, 5, None, 30_000)
    assert whole == answer.encode(5)
