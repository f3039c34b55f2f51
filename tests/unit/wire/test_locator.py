"""Fields of stored values and of requests, found by a plan from the schema."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.broker.fastpath.fetch.located import COUNT_AT, FIELDS, ONE_PARTITION
from scriba.native.implementation import Implementation
from scriba.wire.frame import decode_request_header, encode_request
from scriba.wire.locator import plan, stored_plan
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from scriba.wire.messages.stored_groups import OffsetCommitValue
from tests.typed import present

KIND = b"\0\1"
WANTED = frozenset({"offset", "commit_timestamp"})


def stored(version: int, **fields: object) -> bytes:
    """As a record has it: the key of its kind, its version, itself."""
    value = OffsetCommitValue(offset=7, commit_timestamp=9, **fields)  # type: ignore[arg-type]
    return KIND + version.to_bytes(2, "big") + value.encode(version)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("metadata", ["", "said", "x" * 200])
def test_fields_of_a_stored_value_are_found_in_every_version(
    chosen: Implementation, version: int, metadata: str
) -> None:
    data = stored(version, metadata=metadata)
    plan = stored_plan(OffsetCommitValue, version, WANTED)
    told = present(chosen.locate(plan, data, 0))
    assert [int.from_bytes(data[at : at + 8], "big") for at in told] == [7, 9]


def test_what_lies_behind_the_last_wanted_field_is_not_asked_for(chosen: Implementation) -> None:
    data = stored(4, metadata="", topic_id=bytes(range(16)))
    assert chosen.locate(stored_plan(OffsetCommitValue, 4, WANTED), data, 0) is not None


def test_a_field_that_the_version_does_not_have_is_an_error() -> None:
    stored_plan(OffsetCommitValue, 1, frozenset({"expire_timestamp"}))
    with pytest.raises(AssertionError, match="has no expire_timestamp"):
        stored_plan(OffsetCommitValue, 4, frozenset({"expire_timestamp"}))


# ---- Fetch, of which every version is told in one shape ----

VERSIONS = range(4, 19)
MANY = 1000
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=200)
IDS = st.binary(min_size=16, max_size=16)
PARTITIONS = st.builds(
    FetchPartition,
    partition=INT32,
    current_leader_epoch=INT32,
    fetch_offset=INT64,
    log_start_offset=INT64,
    partition_max_bytes=INT32,
)
FETCHES = st.builds(
    FetchRequest,
    max_wait_ms=INT32,
    min_bytes=INT32,
    max_bytes=INT32,
    isolation_level=st.integers(-128, 127),
    session_id=INT32,
    session_epoch=INT32,
    topics=st.lists(
        st.builds(
            FetchTopic, topic=NAMES, topic_id=IDS, partitions=st.lists(PARTITIONS, max_size=3)
        ),
        max_size=3,
    ),
)
FORGOTTEN = st.lists(
    st.builds(ForgottenTopic, topic=NAMES, topic_id=IDS, partitions=st.lists(INT32, max_size=3)),
    max_size=2,
)


def decoded(frame: memoryview, version: int) -> list[object]:
    """What a plan of Fetch tells, by way of the decoded request; spans as the bytes in them."""
    _, start = decode_request_header(frame)
    asked, _ = FetchRequest.decode_from(frame, start, version)

    def name(topic: FetchTopic | ForgottenTopic) -> bytes:
        return topic.topic_id if version >= 13 else topic.topic.encode()

    out: list[object] = [77, asked.replica_id, asked.max_wait_ms, asked.min_bytes, asked.max_bytes]
    out += (asked.isolation_level, asked.session_id, asked.session_epoch, len(asked.topics))
    for topic in asked.topics:
        out += (name(topic), len(topic.partitions))
        for part in topic.partitions:
            out += (part.partition, part.current_leader_epoch, part.fetch_offset)
            out += (part.last_fetched_epoch, part.log_start_offset, part.partition_max_bytes)
    out.append(len(asked.forgotten_topics_data))
    for gone in asked.forgotten_topics_data:
        out += (name(gone), len(gone.partitions), *gone.partitions)
    return out


@given(
    request=FETCHES,
    forgotten=FORGOTTEN,
    version=st.sampled_from(VERSIONS),
    client=st.none() | NAMES,
)
def test_what_is_located_in_a_fetch_is_what_is_decoded(
    chosen: Implementation,
    request: FetchRequest,
    forgotten: list[ForgottenTopic],
    version: int,
    client: str | None,
) -> None:
    if version >= 7:
        request.forgotten_topics_data = forgotten
    frame = memoryview(encode_request(request, version, 77, client))
    located = present(chosen.locate(plan(FetchRequest, version, FIELDS), frame, MANY))
    expected = decoded(frame, version)
    numbers = iter(located)
    found: list[object] = []
    for value in expected:
        if isinstance(value, bytes):
            begin = next(numbers)
            found.append(bytes(frame[begin : next(numbers)]))
        else:
            found.append(next(numbers))
    assert found == expected
    assert next(numbers, None) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_of_one_partition_is_told_by_as_many_numbers_in_every_version(
    chosen: Implementation, version: int
) -> None:
    topic = FetchTopic(topic="topic", topic_id=bytes(range(16)), partitions=[FetchPartition()])
    frame = encode_request(FetchRequest(topics=[topic]), version, 77, "me")
    located = present(chosen.locate(plan(FetchRequest, version, FIELDS), frame, MANY))
    assert len(located) == ONE_PARTITION
    assert located[COUNT_AT] == 1


@pytest.mark.parametrize("version", [15, 18])
def test_a_fetch_of_a_replica_is_not_located(chosen: Implementation, version: int) -> None:
    request = FetchRequest()
    frame = encode_request(request, version, 77, "me")
    assert chosen.locate(plan(FetchRequest, version, FIELDS), frame, MANY) is not None
    request.replica_state = ReplicaState(replica_id=1)
    frame = encode_request(request, version, 77, "me")
    assert chosen.locate(plan(FetchRequest, version, FIELDS), frame, MANY) is None
