"""Offsets of groups: committed, also within a transaction, read back and deleted.

Topics that the caller may not see are answered here, and left out by the coordinator where all are
asked for; it decides about the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from scriba.broker.access import Operation, Resource
from scriba.broker.handlers.groups.members import Answer, to_coordinator
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.groups.offsets.fetch import check_asked_once
from scriba.groups.refusals import refused
from scriba.outcome import at_once
from scriba.runtime.loop.pace import Pace
from scriba.wire.messages import groups as wire
from scriba.wire.messages.txn import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import GroupOffsets
    from scriba.storage.producers.state import Verification

TOPIC_IDS_FROM: Final = 10
SEVERAL_GROUPS_FROM: Final = 8
FIRST_WITH_ABORTABLE: Final = 4
FIRST_THAT_ADDS: Final = 5
DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Named(Protocol):
    name: str


T = TypeVar("T", bound=Named)


def _sorted_out(
    node: GroupOffsets, ctx: Context, operation: Operation, topics: Sequence[T], by_id: bool
) -> tuple[list[T], list[T]]:
    """Topics that the caller may do this to, and those it may not.

    An id without a topic is left to the coordinator, which says so.
    """
    if node.access.open:
        return list(topics), []
    allowed: list[T] = []
    denied: list[T] = []
    for topic in topics:
        name = node.topic_name(getattr(topic, "topic_id", b"")) if by_id else topic.name
        may = name is None or node.access.allowed(ctx, operation, Resource.TOPIC, name)
        (allowed if may else denied).append(topic)
    return allowed, denied


def _group_allows(node: GroupOffsets, ctx: Context, operation: Operation, group_id: str) -> bool:
    return node.access.allowed(ctx, operation, Resource.GROUP, group_id)


# ---- OffsetCommit ----


def offset_commit(node: GroupOffsets, ctx: Context, request: wire.OffsetCommitRequest) -> Answer:
    if not _group_allows(node, ctx, Operation.READ, request.group_id):
        return refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, ctx.version)
    by_id = ctx.version >= TOPIC_IDS_FROM
    request.topics, denied = _sorted_out(node, ctx, Operation.READ, request.topics, by_id)
    if not denied:
        return to_coordinator(node, ctx, request, request.group_id)
    told: Any = refused(wire.OffsetCommitRequest(topics=denied), DENIED, ctx.version)

    def finish(answer: wire.OffsetCommitResponse) -> Message:
        answer.topics += told.topics
        return answer

    if not request.topics:
        return finish(wire.OffsetCommitResponse())
    return to_coordinator(node, ctx, request, request.group_id, finish)


# ---- TxnOffsetCommit ----


def txn_offset_commit(node: GroupOffsets, ctx: Context, request: TxnOffsetCommitRequest) -> Answer:
    tid = request.transactional_id
    if not node.access.allowed(ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, tid):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return refused(request, code, ctx.version)
    if not _group_allows(node, ctx, Operation.READ, request.group_id):
        return refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, ctx.version)
    return Deferred(_txn_offset_commit(node, ctx, request))


async def _txn_offset_commit(
    node: GroupOffsets, ctx: Context, request: TxnOffsetCommitRequest
) -> Message | Deferred[Message]:
    """What does not exist is answered before anybody asks whose transaction it is."""
    request.topics, denied = _sorted_out(node, ctx, Operation.READ, request.topics, by_id=False)
    request.topics, absent = _existing(node, request.topics)
    told = [
        topic
        for topics, code in (
            (denied, DENIED),
            (absent, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        )
        for topic in _refused_in_txn(topics, code)
    ]

    def finish(answer: TxnOffsetCommitResponse) -> Message:
        if not told:
            return answer
        by_name: dict[str, TxnOffsetCommitResponseTopic] = {}
        for topic in [*told, *answer.topics]:
            fresh = TxnOffsetCommitResponseTopic(name=topic.name)
            by_name.setdefault(topic.name, fresh).partitions += topic.partitions
        answer.topics = list(by_name.values())
        return answer

    if not request.topics:
        return finish(TxnOffsetCommitResponse())
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        await _verify_while_idle(node, ctx, request)
    except KafkaError as error:
        answer: Any = refused(request, error.code, ctx.version)
        return finish(answer)
    return to_coordinator(node, ctx, request, request.group_id, finish)


def _existing(
    node: GroupOffsets, topics: list[TxnOffsetCommitRequestTopic]
) -> tuple[list[TxnOffsetCommitRequestTopic], list[TxnOffsetCommitRequestTopic]]:
    """Places that exist, and those that do not; a topic may be in both."""
    existing: list[TxnOffsetCommitRequestTopic] = []
    absent: list[TxnOffsetCommitRequestTopic] = []
    for topic in topics:
        known = node.image.topics_by_name.get(topic.name)
        if known is None:
            absent.append(topic)
            continue
        there = [p for p in topic.partitions if p.partition_index in known.partitions]
        if len(there) < len(topic.partitions):
            gone = [p for p in topic.partitions if p.partition_index not in known.partitions]
            absent.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=gone))
        if there:
            existing.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=there))
    return existing, absent


def _refused_in_txn(
    topics: list[TxnOffsetCommitRequestTopic], code: ErrorCode
) -> list[TxnOffsetCommitResponseTopic]:
    answer: Any = refused(TxnOffsetCommitRequest(topics=topics), code, FIRST_THAT_ADDS)
    found: list[TxnOffsetCommitResponseTopic] = answer.topics
    return found


async def _verify_while_idle(
    node: GroupOffsets, ctx: Context, request: TxnOffsetCommitRequest
) -> None:
    """As `_verify`, until the coordinator takes the offsets at once: what is verified must not wait
    for a large step of it, since a marker could end the transaction meanwhile."""
    index = node.group_coordinators.partition_of(request.group_id)
    while True:
        while (busy := node.group_coordinators.busy(index)) is not None:
            await asyncio.wait([busy])
        await _verify(node, ctx, request)
        if node.group_coordinators.busy(index) is None:
            return


async def _verify(node: GroupOffsets, ctx: Context, request: TxnOffsetCommitRequest) -> None:
    """Refuses offsets of a transaction that its coordinator does not know to be open.

    From version 5 on the group joins the transaction by this request, so asking adds it. Nothing
    may be awaited between the end of this and the append: a marker could come in between.
    """
    adds = ctx.version >= FIRST_THAT_ADDS
    if not adds and not node.settings.transaction_partition_verification_enable:
        return
    index = node.group_coordinators.partition_of(request.group_id)
    try:
        producers = node.replicas.find(node.group_coordinators.topic, index).log.producers
    except KafkaError as error:
        raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
    producer = (request.producer_id, request.producer_epoch)
    now_ms = node.world.clock.wall_ms()
    pending: Verification | None = producers.begin_verification(*producer, 0, adds, now_ms)
    if pending is None:
        return
    where = (node.group_coordinators.topic, index)
    codes = await node.txn_verifier.verify(
        request.transactional_id, *producer, [where], adds, ctx.version >= FIRST_WITH_ABORTABLE
    )
    if codes[where] is not ErrorCode.NONE:
        raise KafkaError(codes[where])
    if node.settings.transaction_partition_verification_enable:
        producers.admit_offsets(*producer, pending)


# ---- OffsetFetch ----


def offset_fetch(node: GroupOffsets, ctx: Context, request: wire.OffsetFetchRequest) -> Answer:
    if ctx.version >= SEVERAL_GROUPS_FROM:
        if len(request.groups) != 1:
            return Deferred(_fetch_several(node, ctx, request))
        return _fetch_group(node, ctx, request, request.groups[0])
    if not _group_allows(node, ctx, Operation.DESCRIBE, request.group_id):
        return refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, ctx.version)
    denied: list[wire.OffsetFetchRequestTopic] = []
    if request.topics is not None:
        request.topics, denied = _sorted_out(
            node, ctx, Operation.DESCRIBE, request.topics, by_id=False
        )
    told: Any = refused(wire.OffsetFetchRequest(topics=denied), DENIED, 1)

    def finish(answer: wire.OffsetFetchResponse) -> Message:
        answer.topics += told.topics
        return answer

    return to_coordinator(node, ctx, request, request.group_id, finish)


def _fetch_group(
    node: GroupOffsets,
    ctx: Context,
    request: wire.OffsetFetchRequest,
    group: wire.OffsetFetchRequestGroup,
) -> Answer:
    alone = wire.OffsetFetchRequest(groups=[group], require_stable=request.require_stable)
    if not _group_allows(node, ctx, Operation.DESCRIBE, group.group_id):
        return refused(alone, ErrorCode.GROUP_AUTHORIZATION_FAILED, ctx.version)
    by_id = ctx.version >= TOPIC_IDS_FROM
    denied: list[wire.OffsetFetchRequestTopics] = []
    if group.topics is not None:
        group.topics, denied = _sorted_out(node, ctx, Operation.DESCRIBE, group.topics, by_id)

    def finish(answer: wire.OffsetFetchResponse) -> Message:
        for found in answer.groups:
            if not found.error_code:
                found.topics += map(_denied_topic, denied)
        return answer

    return to_coordinator(node, ctx, alone, group.group_id, finish)


def _denied_topic(topic: wire.OffsetFetchRequestTopics) -> wire.OffsetFetchResponseTopics:
    return wire.OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            wire.OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=DENIED
            )
            for index in topic.partition_indexes
        ],
    )


async def _fetch_several(
    node: GroupOffsets, ctx: Context, request: wire.OffsetFetchRequest
) -> wire.OffsetFetchResponse:
    at_once(check_asked_once(request))
    response = wire.OffsetFetchResponse()
    pace = Pace(node.world.clock)
    for group in request.groups:
        await pace()
        # One at a time: an answer that was begun and is never awaited would be left behind.
        answer = _fetch_group(node, ctx, request, group)
        found = await answer.awaitable if isinstance(answer, Deferred) else answer
        assert isinstance(found, wire.OffsetFetchResponse)
        response.groups += found.groups
    return response


def refuse_offset_fetch(
    request: wire.OffsetFetchRequest, code: ErrorCode, text: str
) -> wire.OffsetFetchResponse:
    """In every shape: which of them is sent depends on the version alone."""
    by_partition: Any = refused(request, code, 1)
    by_group: Any = refused(request, code, SEVERAL_GROUPS_FROM)
    return wire.OffsetFetchResponse(
        error_code=code, topics=by_partition.topics, groups=by_group.groups
    )


# ---- OffsetDelete ----


def offset_delete(node: GroupOffsets, ctx: Context, request: wire.OffsetDeleteRequest) -> Answer:
    if not _group_allows(node, ctx, Operation.DELETE, request.group_id):
        return refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, ctx.version)
    request.topics, denied = _sorted_out(node, ctx, Operation.READ, request.topics, by_id=False)

    def finish(answer: wire.OffsetDeleteResponse) -> Message:
        if not answer.error_code:
            answer.topics += (
                wire.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        wire.OffsetDeleteResponsePartition(
                            partition_index=each.partition_index, error_code=DENIED
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in denied
            )
        return answer

    return to_coordinator(node, ctx, request, request.group_id, finish)
