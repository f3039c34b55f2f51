"""Where a log begins, ends, and what it held at a time; and moving its beginning."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from scriba.broker.access import Operation, Resource
from scriba.broker.handlers.brokers import require_broker
from scriba.broker.handlers.records.isolation import READ_COMMITTED, check_isolation
from scriba.broker.handlers.records.trims import Trim, TrimWaits
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.admin import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from scriba.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import OffsetAccess
    from scriba.broker.partitions.partition import Partition

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_VERSION_OF: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The special timestamps came one by one; an older request that has one is malformed."""

CONSUMER: Final = -1
DEBUGGING_REPLICA: Final = -2
FIRST_WITH_NOT_AVAILABLE: Final = 5
TO_HIGH_WATERMARK: Final = -1
NOWHERE: Final = (-1, -1, -1)
"""Offset, timestamp and leader epoch of a question without an answer."""


def list_offsets(
    node: OffsetAccess, ctx: Context, request: ListOffsetsRequest
) -> Deferred[ListOffsetsResponse]:
    return Deferred(_list_offsets(node, ctx, request))


async def _list_offsets(
    node: OffsetAccess, ctx: Context, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    check_isolation(request.isolation_level)
    if request.replica_id >= 0:
        require_broker(node, ctx)  # it is told of what is not committed yet
    response = ListOffsetsResponse()
    asked_twice = _repeated(request)
    for topic in request.topics:
        answers = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answers)
        allowed = node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        for asked in topic.partitions:
            answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
            answers.partitions.append(answer)
            try:
                if not allowed:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if (topic.name, asked.partition_index) in asked_twice:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                if ctx.version < FIRST_VERSION_OF.get(asked.timestamp, 0):
                    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
                partition = node.replicas.find(topic.name, asked.partition_index)
                found = await _offset(partition, request, asked, ctx.version)
                answer.offset, answer.timestamp, epoch = found
                if ctx.version >= 4:
                    answer.leader_epoch = epoch
            except KafkaError as error:
                answer.error_code = error.code
    return response


def _repeated(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    seen: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            key = (topic.name, asked.partition_index)
            (repeated if key in seen else seen).add(key)
    return repeated


async def _offset(
    partition: Partition, request: ListOffsetsRequest, asked: ListOffsetsPartition, version: int
) -> tuple[int, int, int]:
    if request.replica_id == DEBUGGING_REPLICA:
        partition.check_epoch(asked.current_leader_epoch)  # any replica tells what it has
    else:
        partition.check_leader(asked.current_leader_epoch)
    leader, store = partition.leader, partition.log
    bound, known = store.end_offset, store.end_offset
    if request.replica_id == CONSUMER:
        bound = partition.readable(request.isolation_level == READ_COMMITTED).value
        known = partition.high_watermark.value
    # A new leader knows late how far its predecessor was: until then it would send clients back
    # behind what they have seen (KIP-207). That is a matter of the high watermark: a transaction
    # that was open then bounds what its predecessor told as well.
    lags = leader is not None and known < leader.epoch_start_offset
    match asked.timestamp:
        case -1:
            if lags:
                raise _not_yet(version)
            if request.replica_id == DEBUGGING_REPLICA:
                # What it has, for whoever compares replicas; which epoch it follows says nothing.
                return bound, -1, store.epochs.latest
            return bound, -1, partition.leader_epoch
        case -2 | -4:
            return store.start_offset, -1, store.epoch_of(store.start_offset)
        case -5 | -6:
            # Nothing of this log is in a remote tier.
            return NOWHERE
        case -3:
            found = await store.max_timestamp_offset()
        case timestamp if timestamp < 0:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        case timestamp:
            found = await store.offset_for_timestamp(timestamp)
    if found is None or found[0] >= bound:
        if lags:
            raise _not_yet(version)
        return NOWHERE
    return found


def _not_yet(version: int) -> KafkaError:
    known = version >= FIRST_WITH_NOT_AVAILABLE
    return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE)


def offset_for_leader_epoch(
    node: OffsetAccess, ctx: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    if request.replica_id >= 0:
        require_broker(node, ctx)
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answers = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answers)
        allowed = node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, topic.topic)
        for asked in topic.partitions:
            answer = OffsetForLeaderEpochResponseEpochEndOffset(partition=asked.partition)
            answers.partitions.append(answer)
            try:
                if not allowed:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                partition = node.replicas.find(topic.topic, asked.partition)
                partition.check_leader(asked.current_leader_epoch)
                found = partition.log.end_offset_for_epoch(asked.leader_epoch)
                answer.leader_epoch, answer.end_offset = found
            except KafkaError as error:
                answer.error_code = error.code
    return response


def delete_records(
    node: OffsetAccess, ctx: Context, request: DeleteRecordsRequest
) -> Deferred[DeleteRecordsResponse]:
    return Deferred(_delete_records(node, ctx, request))


async def _delete_records(
    node: OffsetAccess, ctx: Context, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Deferred[DeleteRecordsResponse]:
    response = DeleteRecordsResponse()
    moved: list[Trim] = []
    for topic in request.topics:
        answers = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answers)
        allowed = node.access.allowed(ctx, Operation.DELETE, Resource.TOPIC, topic.name)
        for asked in topic.partitions:
            answer = DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1
            )
            answers.partitions.append(answer)
            try:
                if not allowed:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                partition = node.replicas.find(topic.name, asked.partition_index)
                answer.low_watermark = _move_start(partition, asked.offset)
                moved.append(Trim(answer, partition))
            except KafkaError as error:
                answer.error_code = error.code
    # The new start is on disk before it is confirmed: what was deleted stays deleted.
    await node.replicas.checkpoint_starts()
    # It is so on every replica that may lead next, too.
    late = [each for each in moved if not each.is_everywhere()]
    if not late:
        return response
    # From when the request came: one time for all parts of a large one.
    left_ms = ctx.received + max(request.timeout_ms, 0) - node.world.clock.mono_ms()
    due = asyncio.get_running_loop().time() + max(left_ms, 0) / 1000
    return TrimWaits(node.replicas, response, late, due)


def _move_start(partition: Partition, offset: int) -> int:
    partition.check_leader(-1)
    if "delete" not in partition.settings.cleanup_policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "records of a topic that is only compacted cannot be deleted by offset",
        )
    high_watermark = partition.high_watermark.value
    wanted = high_watermark if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= wanted <= high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return partition.move_start(wanted)


# ---- a whole request refused ----


def refuse_list_offsets(
    request: ListOffsetsRequest, code: ErrorCode, text: str
) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refuse_offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, code: ErrorCode, text: str
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    OffsetForLeaderEpochResponseEpochEndOffset(
                        partition=asked.partition, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refuse_delete_records(
    request: DeleteRecordsRequest, code: ErrorCode, text: str
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=asked.partition_index, low_watermark=-1, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
