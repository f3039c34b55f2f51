"""Produce: batches are checked, appended and, for acks=all, waited for.

A request runs in three steps. Batches that need more than a look at their header (recompression,
keys of a compacted topic) are prepared off the loop first; then every partition is appended in one
go without an await; then, for acks=all, the high watermarks are waited for. Only the first step
holds the connection's later requests back, so pipelined appends keep their order and overlap
their waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from scriba.broker.access import Operation, Resource
from scriba.broker.connection import HangUp
from scriba.broker.context import Context, Later
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.records.validate import Prepared, needs_offload, peek, prepare
from scriba.runtime.watermark import Watermark
from scriba.wire.produce import (
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

INTERNAL_WRITER: Final = "__admin_client"


class _Wait:
    """One partition of an acks=all request: its answer and the watermark that releases it."""

    __slots__ = ("answer", "end_offset", "watermark")

    def __init__(
        self, answer: PartitionProduceResponse, watermark: Watermark, end_offset: int
    ) -> None:
        self.answer = answer
        self.watermark = watermark
        self.end_offset = end_offset


def produce(
    node: Node, ctx: Context, request: ProduceRequest
) -> ProduceResponse | Later[ProduceResponse] | None:
    heavy = _heavy_batches(node, ctx, request)
    if heavy:
        return Later(_produce_heavy(node, ctx, request, heavy))
    response, waits = _append_all(node, ctx, request, {})
    return _conclude(request, response, waits)


def _conclude(
    request: ProduceRequest, response: ProduceResponse, waits: list[_Wait]
) -> ProduceResponse | Later[ProduceResponse] | None:
    if request.acks == 0:
        # Nobody reads an answer; a closed connection is the only way to tell of a failure.
        for _, answer in _answers(response):
            if answer.error_code:
                raise HangUp(f"produce with acks=0 failed: {error_code(answer.error_code).name}")
        return None
    if waits:
        return Later(_await_watermarks(request, response, waits), open=True)
    return response


def _answers(
    response: ProduceResponse,
) -> Iterator[tuple[TopicProduceResponse, PartitionProduceResponse]]:
    for topic in response.responses:
        for answer in topic.partition_responses:
            yield topic, answer


# ---- preparing off the loop ----


def _heavy_batches(
    node: Node, ctx: Context, request: ProduceRequest
) -> list[tuple[int, memoryview, Partition]]:
    """The batches whose check must not hold the loop, by the identity of their request entry."""
    heavy: list[tuple[int, memoryview, Partition]] = []
    for topic in request.topic_data:
        name = topic.name if ctx.version < 13 else node.topic_name(topic.topic_id)
        for data in topic.partition_data:
            partition = node.replicas.get(name, data.index) if name else None
            records = data.records
            if partition is None or records is None or not _looks_inside(partition):
                continue
            try:
                header = peek(memoryview(records))
            except KafkaError:
                continue  # the append itself will say what is wrong
            if needs_offload(header, partition.settings):
                heavy.append((id(data), memoryview(bytearray(records)), partition))
    return heavy


def _looks_inside(partition: Partition) -> bool:
    """Whether the topic's settings ever make a batch's records pass through the broker."""
    settings = partition.settings
    return settings.compression_type != "producer" or "compact" in settings.cleanup_policy


async def _produce_heavy(
    node: Node,
    ctx: Context,
    request: ProduceRequest,
    heavy: list[tuple[int, memoryview, Partition]],
) -> ProduceResponse | Later[ProduceResponse] | None:
    # Request bytes are only valid until the first await: the light entries are copied as well.
    copied = {entry for entry, _, _ in heavy}
    for topic in request.topic_data:
        for data in topic.partition_data:
            if id(data) not in copied and data.records is not None:
                data.records = memoryview(bytearray(data.records))
    prepared: dict[int, Prepared | KafkaError] = {}
    for entry, records, partition in heavy:
        try:
            prepared[entry] = await node.world.offload.run(
                prepare, records, partition.settings, node.world.clock.wall_ms()
            )
        except KafkaError as error:
            prepared[entry] = error
    response, waits = _append_all(node, ctx, request, prepared)
    return _conclude(request, response, waits)


# ---- appending ----


def _append_all(
    node: Node,
    ctx: Context,
    request: ProduceRequest,
    prepared: dict[int, Prepared | KafkaError],
) -> tuple[ProduceResponse, list[_Wait]]:
    waits: list[_Wait] = []
    response = ProduceResponse()
    refusal = _refuse_request(node, ctx, request)
    for topic in request.topic_data:
        name, topic_refusal = _resolve(node, ctx, topic)
        topic_refusal = refusal or topic_refusal
        answers = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        response.responses.append(answers)
        for data in topic.partition_data:
            answer = PartitionProduceResponse(index=data.index, base_offset=-1)
            answers.partition_responses.append(answer)
            try:
                if topic_refusal is not None:
                    raise topic_refusal
                _append(node, request, name, data, prepared.get(id(data)), answer, waits)
            except KafkaError as error:
                answer.error_code = error.code
                answer.error_message = error.message
                node.counters.failed_produce += 1
    return response, waits


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
    if name in node.internal_topics and ctx.client_id != INTERNAL_WRITER:
        return name, KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal; only the broker writes to it"
        )
    return name, None


def _append(
    node: Node,
    request: ProduceRequest,
    name: str,
    data: PartitionProduceData,
    prepared: Prepared | KafkaError | None,
    answer: PartitionProduceResponse,
    waits: list[_Wait],
) -> None:
    partition = node.replicas.find(name, data.index)
    leader = partition.check_leader(-1)
    if request.acks == -1 and not leader.in_sync(partition.settings.min_insync_replicas):
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    now = node.world.clock.now()
    if prepared is None:
        records = data.records
        if records is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "the partition came without records")
        prepared = prepare(memoryview(records), partition.settings, now.wall_ms)
    elif isinstance(prepared, KafkaError):
        raise prepared
    header = prepared.header
    if header.is_transactional:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, "the batch belongs to no transaction of this broker"
        )
    appended = partition.append(prepared.view, header, now)
    node.counters.messages_in += header.count
    node.counters.topic_bytes_in += len(prepared.view)
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.append_time_ms
    answer.log_start_offset = appended.start_offset
    end_offset = appended.last_offset + 1
    if request.acks == -1 and partition.high_watermark.value < end_offset:
        waits.append(_Wait(answer, partition.high_watermark, end_offset))


# ---- acks=all ----


async def _await_watermarks(
    request: ProduceRequest, response: ProduceResponse, waits: list[_Wait]
) -> ProduceResponse:
    reached = [wait.watermark.reach(wait.end_offset) for wait in waits]
    await asyncio.wait(reached, timeout=max(request.timeout_ms, 0) / 1000)
    for wait, future in zip(waits, reached, strict=True):
        if not future.done():
            future.cancel()
            wait.answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        elif (failure := future.exception()) is not None:
            code = failure.code if isinstance(failure, KafkaError) else None
            wait.answer.error_code = code or ErrorCode.UNKNOWN_SERVER_ERROR
    return response


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
