"""A request that is refused as a whole gets the error where its own answer has room for it."""

from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.groups.machine import HANDLERS
from scriba.groups.refusals import refused
from scriba.wire.messages import groups as wire
from scriba.wire.messages.txn import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from scriba.wire.schema import Message, Struct

NOT_HERE = ErrorCode.NOT_COORDINATOR

REQUESTS: dict[type[Message], Message] = {
    wire.LeaveGroupRequest: wire.LeaveGroupRequest(members=[wire.MemberIdentity(member_id="m")]),
    wire.OffsetCommitRequest: wire.OffsetCommitRequest(
        topics=[
            wire.OffsetCommitRequestTopic(
                name="t",
                topic_id=b"i" * 16,
                partitions=[
                    wire.OffsetCommitRequestPartition(partition_index=i, committed_metadata="")
                    for i in range(2)
                ],
            )
        ]
    ),
    TxnOffsetCommitRequest: TxnOffsetCommitRequest(
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t", partitions=[TxnOffsetCommitRequestPartition(committed_metadata="")]
            )
        ]
    ),
    wire.OffsetFetchRequest: wire.OffsetFetchRequest(
        topics=[wire.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])],
        groups=[
            wire.OffsetFetchRequestGroup(group_id="g", topics=None),
            wire.OffsetFetchRequestGroup(group_id="h", topics=[]),
        ],
    ),
    wire.DescribeGroupsRequest: wire.DescribeGroupsRequest(groups=["g", "h"]),
    wire.DeleteGroupsRequest: wire.DeleteGroupsRequest(groups_names=["g", "h"]),
    wire.ConsumerGroupDescribeRequest: wire.ConsumerGroupDescribeRequest(group_ids=["g", "h"]),
}


def errors_in(value: Any) -> list[int]:
    if isinstance(value, list):
        return [error for each in value for error in errors_in(each)]
    if not isinstance(value, Struct):
        return []
    code = getattr(value, "error_code", 0)
    own = [code] if code else []
    return own + [e for f in value.FIELDS for e in errors_in(getattr(value, f.name))]


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__name__)
def test_every_version_of_every_request_can_be_refused(kind: type[Message]) -> None:
    request = REQUESTS.get(kind) or kind()
    for version in range(kind.VERSIONS.low, kind.VERSIONS.high + 1):
        answer = refused(request, NOT_HERE, version)
        sent = type(answer).decode(answer.encode(version), version)
        assert set(errors_in(sent)) == {NOT_HERE}


def test_the_error_is_repeated_for_every_group_and_partition() -> None:
    counts = {
        (kind.__name__, version): len(errors_in(refused(REQUESTS[kind], NOT_HERE, version)))
        for kind in (wire.OffsetCommitRequest, wire.OffsetFetchRequest, wire.DeleteGroupsRequest)
        for version in (1, 2, 8)
    }
    assert counts == {
        ("OffsetCommitRequest", 1): 2,
        ("OffsetCommitRequest", 2): 2,
        ("OffsetCommitRequest", 8): 2,
        ("OffsetFetchRequest", 1): 2,
        ("OffsetFetchRequest", 2): 1,
        ("OffsetFetchRequest", 8): 2,
        ("DeleteGroupsRequest", 1): 2,
        ("DeleteGroupsRequest", 2): 2,
        ("DeleteGroupsRequest", 8): 2,
    }


def test_members_need_not_hear_that_their_coordinator_loads() -> None:
    answer = refused(wire.HeartbeatRequest(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 4)
    assert errors_in(answer) == []


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_old_producers_hear_of_loading_in_words_they_know(version: int, error: ErrorCode) -> None:
    request = REQUESTS[TxnOffsetCommitRequest]
    answer = refused(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, version)
    assert errors_in(answer) == [error]
