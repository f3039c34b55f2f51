"""Headers around messages, and responses with holes for records that come from files."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from scriba.errors import ParseError
from scriba.wire import frame, uuids
from scriba.wire.apis import API, ApiKey
from scriba.wire.messages import fetch, produce
from scriba.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from scriba.wire.messages.quorum import (
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
    FetchSnapshotResponseTopicSnapshot,
)
from scriba.wire.schema import Hole


@pytest.mark.parametrize("client_id", [None, "", "tester", "ünïcode"])
@pytest.mark.parametrize("version", [11, 12, 18])
def test_a_request_and_its_header(version: int, client_id: str | None) -> None:
    request = fetch.FetchRequest(max_wait_ms=500)
    buf = frame.encode_request(request, version, 42, client_id)
    for view in (buf, memoryview(bytearray(buf))):
        header, pos = frame.decode_request_header(view)
        assert header == (1, version, 42, client_id)
        assert fetch.FetchRequest.decode_from(view, pos, version) == (request, len(buf))
    header, pos = frame.decode_request_header(b"????" + buf, 4)
    assert header.correlation_id == 42


def test_unknown_tags_in_a_request_header_are_skipped() -> None:
    buf = frame.encode_request(ApiVersionsRequest(), 3, 1, "me")
    assert buf[:12] == bytes.fromhex("0012 0003 00000001 0002") + b"me"
    tagged = buf[:12] + bytes.fromhex("02 0001 7a 0502 7a7a") + buf[13:]
    header, pos = frame.decode_request_header(tagged)
    assert header.client_id == "me"
    assert ApiVersionsRequest.decode(tagged[pos:], 3) == ApiVersionsRequest()


def test_a_newer_api_versions_request_has_a_header_one_can_read() -> None:
    buf = bytes.fromhex("0012 0063 00000007 ffff 00") + b"whatever the future holds"
    header, pos = frame.decode_request_header(buf)
    assert (header.api_version, header.correlation_id, pos) == (99, 7, 11)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0001 000b 00000001",
        "0001 000b 00000001 0005 6162",
        "0001 000b 00000001 0002 c328",
        "0001 000c 00000001 0000",
        "0001 000c 00000001 0000 01 00 7f",
        "03e7 0000 00000001 ffff",
        "ffff 0000 00000001 ffff",
    ],
)
def test_bad_headers(text: str) -> None:
    with pytest.raises(ParseError):
        frame.decode_request_header(bytes.fromhex(text))


@pytest.mark.parametrize("version", [7, 9])
def test_a_response_and_its_header(version: int) -> None:
    response = produce.ProduceResponse(throttle_time_ms=3)
    buf = frame.encode_response(response, version, -5)
    assert buf[:4] == b"\xff\xff\xff\xfb"
    assert frame.decode_response(produce.ProduceResponse, buf, version) == (-5, response)
    with pytest.raises(ParseError, match="left over"):
        frame.decode_response(produce.ProduceResponse, buf + b"x", version)
    with pytest.raises(ParseError):
        frame.decode_response(produce.ProduceResponse, buf[:3], version)


def test_the_answer_to_api_versions_never_has_a_tagged_header() -> None:
    buf = frame.encode_response(ApiVersionsResponse(), 3, 9)
    assert buf == b"\0\0\0\x09" + ApiVersionsResponse().encode(3)
    assert frame.response_header_version(ApiKey.API_VERSIONS, 3) == 0
    assert frame.response_header_version(ApiKey.FETCH, 12) == 1
    assert frame.response_header_version(ApiKey.FETCH, 11) == 0
    assert frame.decode_response(ApiVersionsResponse, buf, 3) == (9, ApiVersionsResponse())


def test_only_requests_are_sent_as_requests() -> None:
    from scriba.wire.messages.stored import LeaderChangeMessage

    with pytest.raises(ValueError, match="not a request"):
        frame.encode_request(LeaderChangeMessage(), 0, 1, None)


def test_old_clients_must_see_produce_from_version_0() -> None:
    assert (API[ApiKey.PRODUCE].min_version, API[ApiKey.PRODUCE].advertised_min) == (3, 0)
    assert API[ApiKey.FETCH].advertised_min == 4
    assert API[ApiKey.INIT_PRODUCER_ID].max_version == 5


def test_the_table_of_apis_loads_no_messages() -> None:
    check = "import sys, scriba.wire.frame; print([m for m in sys.modules if 'scriba.wire.' in m])"
    listed = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout
    assert "scriba.wire.apis" in listed
    assert not any(f"scriba.wire.messages.{api.family}'" in listed for api in API.values())


@dataclass(frozen=True)
class FilePart:
    """Stands for a slice of a log segment."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


def fetched(contents: list[bytes | FilePart | None]) -> fetch.FetchResponse:
    """Two topics that share the partitions out between them."""
    partitions = [
        fetch.PartitionData(
            partition_index=i,
            high_watermark=10 * i,
            aborted_transactions=[fetch.AbortedTransaction(producer_id=i)] if i % 2 else None,
            records=content,
        )
        for i, content in enumerate(contents)
    ]
    half = len(partitions) // 2
    return fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(topic=name, topic_id=name.encode() * 16, partitions=part)
            for name, part in (("a", partitions[:half]), ("b", partitions[half:]))
        ]
    )


def joined(parts: list[memoryview | Hole]) -> bytes:
    """What the peer reads when each hole was sent from its file."""
    pieces = []
    for part in parts:
        assert isinstance(part, memoryview | FilePart)
        pieces.append(part.content if isinstance(part, FilePart) else bytes(part))
    return b"".join(pieces)


CONTENTS = [b"one", None, b"", b"x" * 127, b"y" * 128, b"z" * 20_000, b"last"]


@pytest.mark.parametrize("version", range(4, 19))
def test_holes_filled_in_give_the_plain_encoding(version: int) -> None:
    plain = frame.encode_response(fetched(list(CONTENTS)), version, 77)
    files = [None if c is None else FilePart(c) for c in CONTENTS]
    parts, total = frame.encode_response_parts(fetched([*files]), version, 77)
    assert [p for p in parts if isinstance(p, FilePart)] == [f for f in files if f]
    assert joined(parts) == plain
    assert total == len(plain)


def test_bytes_in_memory_and_holes_mix() -> None:
    mixed = fetched([FilePart(b"file"), b"memory", FilePart(b"again")])
    parts, total = frame.encode_response_parts(mixed, 13, 1)
    plain = frame.encode_response(fetched([b"file", b"memory", b"again"]), 13, 1)
    assert [type(p) for p in parts] == [memoryview, FilePart, memoryview, FilePart, memoryview]
    assert joined(parts) == plain
    assert total == len(plain)


def test_a_response_without_holes_is_one_part() -> None:
    response = ApiVersionsResponse()
    parts, total = frame.encode_response_parts(response, 3, 5)
    assert len(parts) == 1
    assert joined(parts) == frame.encode_response(response, 3, 5)
    assert total == len(frame.encode_response(response, 3, 5))


def test_a_snapshot_leaves_holes_too() -> None:
    def answer(records: bytes | FilePart) -> FetchSnapshotResponse:
        partition = FetchSnapshotResponsePartitionSnapshot(size=9, unaligned_records=records)
        topic = FetchSnapshotResponseTopicSnapshot(name="m", partitions=[partition])
        return FetchSnapshotResponse(topics=[topic])

    parts, total = frame.encode_response_parts(answer(FilePart(b"snapshot!")), 0, 1)
    assert total == len(frame.encode_response(answer(b"snapshot!"), 0, 1))
    assert parts[1] == FilePart(b"snapshot!")


def test_a_hole_cannot_be_encoded_in_place() -> None:
    with pytest.raises(ValueError, match="FetchResponse v13"):
        fetched([FilePart(b"file")]).encode(13)


def test_uuid_text() -> None:
    assert uuids.to_text(uuids.ZERO) == "AAAAAAAAAAAAAAAAAAAAAA"
    some = bytes(range(240, 256))
    assert uuids.to_text(some) == "8PHy8_T19vf4-fr7_P3-_w"
    assert uuids.from_text("8PHy8_T19vf4-fr7_P3-_w") == some
    assert uuids.from_text("8PHy8_T19vf4-fr7_P3-_w==") == some
    for bad in (
        "",
        "short",
        "8PHy8_T19vf4-fr7_P3-_",
        "8PHy8_T19vf4-fr7_P3-_ww",
        "!" * 22,
        "é" * 22,
    ):
        with pytest.raises(ValueError, match="not a UUID"):
            uuids.from_text(bad)
