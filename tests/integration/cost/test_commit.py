"""What a warm OffsetCommit costs, counted instead of timed (see `test_hot_path`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from tests.integration.cost.counting import REQUESTS, Counting
from tools.kafka.rawkafka import Connection, create_topic, encode

PYTHON_CALLS, C_CALLS = 25, 31
"""Of the whole way from the socket and back; two of the C calls see to it that nobody keeps the
frame, as for a Produce."""

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = Topic.OffsetCommitRequestPartition


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    node = Counting(tmp_path)
    yield node
    node.stop()


def commit(connection: Connection) -> int:
    """The error code of a commit of one partition."""
    part = Partition(partition_index=0, committed_offset=5, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[Topic(name="hot", partitions=[part])],
    )
    connection.send(encode(request, 7))
    frame = connection.receive()
    return int.from_bytes(frame[-2:], "big", signed=True)


def test_a_warm_commit_makes_few_calls(counting: Counting) -> None:
    with Connection(counting.port) as connection:
        create_topic(connection, "hot")
        while commit(connection):
            connection.call(FindCoordinatorRequest(key="g", key_type=0), 2)

        def request() -> None:
            assert commit(connection) == 0

        for _ in range(REQUESTS):
            request()
        calls = counting.count(request)
    assert 1 < calls["call"] <= PYTHON_CALLS, calls
    assert 1 < calls["c_call"] <= C_CALLS, calls
