"""Produce: batches are checked, appended and, where acks or flush policy ask for it, waited for.

A request runs in three steps, with one before them where it opens a transaction: the coordinator
is asked (`produce_txn`). Batches that take long to check (large ones to be unpacked or packed
anew) are prepared off the loop first; then every partition is appended in one go without an await;
then the watermarks are waited for: the high one for acks=all, the flushed end for acks=1 where
only what the device has counts. Only the first step holds the connection's later requests back, so
pipelined appends keep their order and overlap their waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from scriba.broker.access import Operation, Resource
from scriba.broker.answers import HangUp
from scriba.broker.context import Context, Later
from scriba.broker.handlers.produce_txn import Open, Verified, admit, unverified, verify
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.records.compression import Codec
from scriba.records.header import CODEC_MASK, BatchHeader
from scriba.records.validate import BadRecord, Heavy, Prepared, is_light, prepare
from scriba.runtime.watermark import Watermark
from scriba.wire.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from scriba.wire.uuids import ZERO

if TYPE_CHECKING:
    from scriba.broker.node import Node
    from scriba.broker.partition import Partition
    from scriba.storage.log import Appended

Ready = dict[int, "Prepared | KafkaError"]
"""Batches that were looked at before the append, by the identity of their request's entry."""

INTERNAL_WRITER: Final = "__admin_client"
FIRST_WITH_ZSTD: Final = 7
"""Older clients cannot read zstd, so nothing in it is taken from them (KIP-110)."""

_LOW_ATTRIBUTES: Final = 22
"""Where in a batch the byte is that names the codec."""

_JUDGED_BY_THE_LOG: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""What a batch is refused for at the partition itself: the answer tells where the log begins."""


class Wait:
    """One partition of a request: its answer and the watermark that releases it."""

    __slots__ = ("answer", "end_offset", "watermark")

    def __init__(
        self, answer: PartitionProduceResponse, watermark: Watermark, end_offset: int
    ) -> None:
        self.answer = answer
        self.watermark = watermark
        self.end_offset = end_offset


def produce(
    node: Node, ctx: Context, request: ProduceRequest, verified: Verified | None = None
) -> ProduceResponse | Later[ProduceResponse] | None:
    if request.transactional_id is not None and verified is None:
        opening = _opening(node, ctx, request)
        if opening is not None:
            _keep_records(request)
            return Later(_produce_verified(node, ctx, request, opening))
    prepared: Ready = {}
    batches = [data.records for topic in request.topic_data for data in topic.partition_data]
    if node.replicas.inspects() or not is_light(batches):
        prepared, heavy = _prepare_all(node, ctx, request)
        if heavy:
            _keep_ready(prepared)
            return Later(_produce_heavy(node, ctx, request, prepared, heavy, verified))
    elif ctx.version < FIRST_WITH_ZSTD:
        prepared = _too_new(request)
    response, waits = _append_all(node, ctx, request, prepared, verified)
    if request.acks != 0 and not waits:
        return response
    return _conclude(request, response, waits)


def _opening(node: Node, ctx: Context, request: ProduceRequest) -> Open | None:
    """The entries that open a transaction; none of a request that is refused anyway."""
    if _refuse_request(node, ctx, request) is not None:
        return None
    return unverified(node, ctx, request)


def _keep_records(request: ProduceRequest) -> None:
    """Copies the records: request bytes are valid until the handler returns, and no longer."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(bytearray(data.records))


def _keep_ready(prepared: Ready) -> None:
    """Copies the batches that need no more work while others do."""
    for entry, ready in prepared.items():
        if isinstance(ready, Prepared):
            prepared[entry] = ready._replace(view=memoryview(bytearray(ready.view)))


async def _produce_verified(
    node: Node, ctx: Context, request: ProduceRequest, opening: Open
) -> ProduceResponse | Later[ProduceResponse] | None:
    assert request.transactional_id is not None
    verified = await verify(node, ctx, request.transactional_id, opening)
    return produce(node, ctx, request, verified)


def _conclude(
    request: ProduceRequest, response: ProduceResponse, waits: list[Wait]
) -> ProduceResponse | Later[ProduceResponse] | None:
    if request.acks == 0:
        # Nobody reads an answer; a closed connection is the only way to tell of a failure.
        for _, answer in _answers(response):
            if answer.error_code:
                raise HangUp(f"produce with acks=0 failed: {error_code(answer.error_code).name}")
        return None
    if waits:
        return Later(_answer_later(request, response, waits), open=True)
    return response


def _answers(
    response: ProduceResponse,
) -> Iterator[tuple[TopicProduceResponse, PartitionProduceResponse]]:
    for topic in response.responses:
        for answer in topic.partition_responses:
            yield topic, answer


# ---- preparing off the loop ----


def _prepare_all(
    node: Node, ctx: Context, request: ProduceRequest
) -> tuple[Ready, list[tuple[int, memoryview, Partition]]]:
    """What could be prepared here, and copies of the batches that must not hold the loop."""
    now_ms = node.world.clock.wall_ms()
    prepared = _too_new(request) if ctx.version < FIRST_WITH_ZSTD else {}
    heavy: list[tuple[int, memoryview, Partition]] = []
    for topic in request.topic_data:
        name = topic.name if ctx.version < 13 else node.topic_name(topic.topic_id)
        for data in topic.partition_data:
            partition = node.replicas.get(name, data.index) if name else None
            records = data.records
            if partition is None or records is None or id(data) in prepared:
                continue  # the append itself will say what is wrong
            try:
                prepared[id(data)] = prepare(
                    memoryview(records), partition.settings, now_ms, on_loop=True
                )
            except Heavy:
                heavy.append((id(data), memoryview(bytearray(records)), partition))
            except KafkaError as error:
                prepared[id(data)] = error
    return prepared, heavy


def _too_new(request: ProduceRequest) -> Ready:
    """The batches in a codec that came after the request's version."""
    return {
        id(data): KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {FIRST_WITH_ZSTD} or later",
        )
        for topic in request.topic_data
        for data in topic.partition_data
        if data.records is not None
        and len(data.records) > _LOW_ATTRIBUTES
        and data.records[_LOW_ATTRIBUTES] & CODEC_MASK == Codec.ZSTD
    }


async def _produce_heavy(
    node: Node,
    ctx: Context,
    request: ProduceRequest,
    prepared: Ready,
    heavy: list[tuple[int, memoryview, Partition]],
    verified: Verified | None,
) -> ProduceResponse | Later[ProduceResponse] | None:
    for entry, records, partition in heavy:
        try:
            prepared[entry] = await node.world.offload.run(
                prepare, records, partition.settings, node.world.clock.wall_ms()
            )
        except KafkaError as error:
            prepared[entry] = error
    response, waits = _append_all(node, ctx, request, prepared, verified)
    return _conclude(request, response, waits)


# ---- appending ----


def _append_all(
    node: Node,
    ctx: Context,
    request: ProduceRequest,
    prepared: Ready,
    verified: Verified | None,
) -> tuple[ProduceResponse, list[Wait]]:
    waits: list[Wait] = []
    topics: list[TopicProduceResponse] = []
    refusal = _refuse_request(node, ctx, request)
    for topic in request.topic_data:
        name, topic_refusal = _resolve(node, ctx, topic)
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            try:
                if refusal is not None or topic_refusal is not None:
                    raise refusal or topic_refusal  # type: ignore[misc]
                answer = _append(node, request, name, data, prepared, verified, waits)
            except KafkaError as error:
                partition = node.replicas.get(name, data.index)
                answer = refused(node, data.index, partition, error)
            answers.append(answer)
        topics.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=answers
            )
        )
    return ProduceResponse(responses=topics), waits


def refused(
    node: Node, index: int, partition: Partition | None, error: KafkaError
) -> PartitionProduceResponse:
    node.counters.failed_produce += 1
    judged = isinstance(error, BadRecord) or error.code in _JUDGED_BY_THE_LOG
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=partition.log.start_offset if judged and partition is not None else -1,
        record_errors=_blamed(error),
        error_message=error.message,
    )


def appended(index: int, header: BatchHeader, place: Appended) -> PartitionProduceResponse:
    # Of a duplicate Kafka tells the time of the batch that is there.
    time = header.max_timestamp if place.duplicate else place.append_time_ms
    return PartitionProduceResponse(
        index=index,
        base_offset=place.base_offset,
        log_append_time_ms=time,
        log_start_offset=place.start_offset,
    )


def _blamed(error: KafkaError) -> list[BatchIndexAndErrorMessage]:
    """The record that a batch was refused for, so that the client can tell whose it was."""
    if not isinstance(error, BadRecord):
        return []
    return [
        BatchIndexAndErrorMessage(batch_index=error.index, batch_index_error_message=error.message)
    ]


def _refuse_request(node: Node, ctx: Context, request: ProduceRequest) -> KafkaError | None:
    if request.acks not in (-1, 0, 1):
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    tid = request.transactional_id
    if tid is not None and not node.access.allowed(
        ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, tid
    ):
        return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return None


def _resolve(node: Node, ctx: Context, topic: TopicProduceData) -> tuple[str, KafkaError | None]:
    """The topic's name, or why nothing may be written to it."""
    name = topic.name
    if ctx.version >= 13:
        found = node.topic_name(topic.topic_id)
        if found is None or topic.topic_id == ZERO:
            return "", KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        name = found
    if not node.access.allowed(ctx, Operation.WRITE, Resource.TOPIC, name):
        return name, KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    internal = name in node.internal_topics and ctx.client_id != INTERNAL_WRITER
    if internal and name in node.image.topics_by_name:
        return name, KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal; only the broker writes to it"
        )
    return name, None


def _append(
    node: Node,
    request: ProduceRequest,
    name: str,
    data: PartitionProduceData,
    prepared: Ready,
    verified: Verified | None,
    waits: list[Wait],
) -> PartitionProduceResponse:
    partition = node.replicas.find(name, data.index)
    leader = partition.leader
    if leader is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    settings = partition.settings
    if request.acks == -1 and not leader.in_sync(settings.min_insync_replicas):
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    now = node.world.clock.now()
    ready = prepared.get(id(data)) if prepared else None
    if ready is None:
        records = data.records
        if records is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "the partition came without records")
        ready = prepare(memoryview(records), settings, now.wall_ms)
    elif isinstance(ready, KafkaError):
        raise ready
    view, header = ready
    if header.is_transactional:
        admit(node, request, partition, header, verified.get(id(data)) if verified else None)
    place = partition.append(view, header, now)
    counters = node.counters
    counters.messages_in += header.count
    counters.topic_bytes_in += len(view)
    end_offset = place.last_offset + 1
    answer = appended(data.index, header, place)
    if request.acks == -1:
        if partition.high_watermark.value < end_offset:
            waits.append(Wait(answer, partition.high_watermark, end_offset))
    elif partition.syncs and partition.flushed.value < end_offset:
        waits.append(Wait(answer, partition.flushed, end_offset))
    return answer


# ---- waiting ----


async def _answer_later(
    request: ProduceRequest, response: ProduceResponse, waits: list[Wait]
) -> ProduceResponse:
    await watermarks(request, waits)
    return response


async def watermarks(request: ProduceRequest, waits: list[Wait]) -> None:
    """Waits as long as the request allows; an answer that waited in vain says why."""
    reached = [wait.watermark.reach(wait.end_offset) for wait in waits]
    await asyncio.wait(reached, timeout=max(request.timeout_ms, 0) / 1000)
    for wait, future in zip(waits, reached, strict=True):
        if not future.done():
            future.cancel()
            wait.answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        elif (failure := future.exception()) is not None:
            code = failure.code if isinstance(failure, KafkaError) else None
            wait.answer.error_code = code or ErrorCode.UNKNOWN_SERVER_ERROR


def refuse(request: ProduceRequest, code: ErrorCode, text: str) -> ProduceResponse | None:
    if request.acks == 0:
        raise HangUp(f"produce with acks=0 failed: {code.name}")
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=data.index, error_code=code, base_offset=-1, error_message=text
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
