"""Produce: batches are checked, appended and, where acks or flush policy ask for it, waited for.

A request runs in three steps, with one before them where it opens a transaction: the coordinator
is asked (`produce_txn`). Batches that take long to check (large ones to be unpacked or packed
anew) are prepared off the loop first; then every partition is appended in one go without an await;
then the watermarks are waited for: the high one for acks=all, the flushed end for acks=1 where
only what the device has counts. Only the first step holds the connection's later requests back, so
pipelined appends keep their order and overlap their waits.

The records of a request can be read until its handler returns; afterwards they raise. So whatever
they tell is found out before the first await, and what is to be appended after it is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from scriba.broker.access import Operation, Resource
from scriba.broker.handlers.records.acks import AckWaits, Wait
from scriba.broker.handlers.records.leader_hints import MOVED, hint_produce
from scriba.broker.handlers.records.produce_txn import (
    NotVerified,
    Open,
    Verified,
    admit,
    unverified,
    verify,
)
from scriba.broker.net.answers import CloseConnection
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError, anew, bare, error_code
from scriba.records.compression import Codec
from scriba.records.header import CODEC_MASK, TRANSACTIONAL, BatchHeader, Buffer
from scriba.records.validate import (
    MOST_NAMED,
    BadRecord,
    Heavy,
    Prepared,
    TopicRules,
    is_light,
    memory_to_prepare,
    peek,
    prepare,
)
from scriba.runtime.loop.pace import Pace
from scriba.runtime.work.budget import run_within
from scriba.storage.results import NoRoom
from scriba.wire.messages.produce import (
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
    from scriba.broker.handlers.ports import Producing
    from scriba.broker.partitions.partition import Partition
    from scriba.storage.log import Appended
    from scriba.storage.producers.state import Verification

Ready = dict[int, "Prepared | KafkaError"]
"""Batches that were looked at before the append, by the identity of their request's entry."""

MOST_ON_THE_LOOP: Final = 4 << 20
"""A request with more bytes of records is checked off the loop and appended in slices."""

LOOP_MS: Final = 5
"""How long one request may have its batches checked on the loop."""

INTERNAL_WRITER: Final = "__admin_client"
FIRST_WITH_ZSTD: Final = 7
"""Older clients cannot read zstd, so nothing in it is taken from them (KIP-110)."""

_LOW_ATTRIBUTES: Final = 22
"""Where in a batch the byte is that names the codec."""

_BEFORE_THE_LOG: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Refusals at the partition that do not tell where its log begins; all others do."""


def produce(
    node: Producing, ctx: Context, request: ProduceRequest, verified: Verified | None = None
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    if verified is None:
        _keep_last(request)
    refusal = _refuse_request(node, ctx, request)
    if request.transactional_id is not None and verified is None and refusal is None:
        opening = unverified(node, ctx, request)
        if opening is not None and opening.entries:
            large = _is_large(request)
            if not large:
                _keep_records(node, request)
            work = _produce_verified(node, ctx, request, opening)
            return Deferred(work, keeps_frame=large)
        verified = opening.verified if opening is not None else None
    prepared: Ready = {}
    batches = _batches(request)
    large = _is_large(request)
    if large or node.replicas.inspects() or not is_light(batches):
        prepared, heavy = _prepare_all(node, ctx, request, large)
        if heavy:
            if not large:
                _keep_ready(node, prepared)
            heavy_work = _produce_heavy(node, ctx, request, refusal, prepared, heavy, verified)
            return Deferred(heavy_work, keeps_frame=large)
    elif ctx.version < FIRST_WITH_ZSTD:
        prepared = _too_new(request)
    appending = Appending(node, ctx, request, refusal, prepared, verified)
    for _ in appending:
        pass
    if request.acks != 0 and not appending.waits and not appending.moved:
        return appending.response
    return _conclude(node, ctx, request, appending)


def _batches(request: ProduceRequest) -> list[Buffer | None]:
    return [data.records for topic in request.topic_data for data in topic.partition_data]


def _is_large(request: ProduceRequest) -> bool:
    return sum(map(len, filter(None, _batches(request)))) > MOST_ON_THE_LOOP


def _keep_last(request: ProduceRequest) -> None:
    """Of a partition that is named twice only the last batch counts, as in Kafka."""
    topics = request.topic_data
    if len(topics) > 1:
        last = {(topic.name, topic.topic_id): topic for topic in topics}
        if len(last) < len(topics):
            for topic in topics:
                kept = last[topic.name, topic.topic_id]
                if kept is not topic:
                    kept.partition_data = topic.partition_data + kept.partition_data
            request.topic_data = topics = list(last.values())
    for topic in topics:
        entries = topic.partition_data
        if len(entries) > 1:
            by_index = {data.index: data for data in entries}
            if len(by_index) < len(entries):
                topic.partition_data = list(by_index.values())


def _keep_records(node: Producing, request: ProduceRequest) -> None:
    """Copies the records, to be looked at again when the coordinator has answered."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = node.request_memory.copy(data.records)


def _keep_ready(node: Producing, prepared: Ready) -> None:
    """Copies the batches that need no more work while others do."""
    for entry, ready in prepared.items():
        if isinstance(ready, Prepared):
            prepared[entry] = ready._replace(view=memoryview(node.request_memory.copy(ready.view)))


async def _produce_verified(
    node: Producing, ctx: Context, request: ProduceRequest, opening: Open
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    assert request.transactional_id is not None
    verified = await verify(node, ctx, request.transactional_id, opening)
    answer = produce(node, ctx, request, verified)
    if not isinstance(answer, Deferred) or answer.pipelined:
        _drop_records(request)
    return answer


def _drop_records(request: ProduceRequest) -> None:
    """They are appended: the memory they came in is not needed while the answer waits."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None


def _conclude(
    node: Producing, ctx: Context, request: ProduceRequest, appending: Appending
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    response, waits = appending.response, appending.waits
    if request.acks == 0:
        close_on_failure(response)
        return None
    if waits:
        hint = partial(hint_produce, node, ctx.listener, ctx.version)
        return AckWaits(node.ack_deadlines, request.timeout_ms, response, waits, hint)
    if appending.moved:
        hint_produce(node, ctx.listener, ctx.version, response)
    return response


def close_on_failure(response: ProduceResponse) -> None:
    """With acks=0 nobody reads an answer: a closed connection is the only way to tell of it."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise CloseConnection(
                    f"produce with acks=0 failed: {error_code(answer.error_code).name}",
                    "acks_0_failed",
                )


# ---- preparing off the loop ----


class NoBatch(KafkaError):
    """What came for a partition is not one batch, so that it never gets as far as a log."""


def _named(error: KafkaError, records: memoryview) -> KafkaError:
    """Why a batch is refused; a NoBatch where there is none."""
    try:
        peek(records)
    except KafkaError:
        return NoBatch(error.code, error.message)
    return error


def _view(records: Buffer) -> memoryview:
    return records if isinstance(records, memoryview) else memoryview(records)


def _kept(node: Producing, records: Buffer) -> memoryview:
    """The records for after an await: a copy, unless they are one already."""
    copied = isinstance(records, bytearray)
    return memoryview(records if copied else node.request_memory.copy(records))


def _prepare_all(
    node: Producing, ctx: Context, request: ProduceRequest, large: bool
) -> tuple[Ready, list[tuple[int, memoryview, Partition]]]:
    """What could be prepared here, and the batches that must not hold the loop: all of a large
    request, which keeps its bytes, otherwise copies."""
    clock = node.world.clock
    now_ms, started = clock.wall_ms(), clock.mono_ms()
    prepared = _too_new(request) if ctx.version < FIRST_WITH_ZSTD else {}
    heavy: list[tuple[int, memoryview, Partition]] = []
    for topic in request.topic_data:
        name = topic.name if ctx.version < 13 else node.topic_name(topic.topic_id)
        for data in topic.partition_data:
            partition = node.replicas.get(name, data.index) if name else None
            records = data.records
            if records is None or id(data) in prepared:
                continue  # the append itself will say what is wrong
            if partition is None:
                # What the append says, unless the partition comes to be while others are prepared.
                prepared[id(data)] = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            view = _view(records)
            try:
                if large or clock.mono_ms() - started > LOOP_MS:
                    raise Heavy  # each takes little time, but there are many
                prepared[id(data)] = prepare(view, partition.settings, now_ms, on_loop=True)
            except Heavy:
                heavy.append((id(data), view if large else _kept(node, records), partition))
            except KafkaError as error:
                prepared[id(data)] = bare(_named(error, view))
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
    node: Producing,
    ctx: Context,
    request: ProduceRequest,
    refusal: KafkaError | None,
    prepared: Ready,
    heavy: list[tuple[int, memoryview, Partition]],
    verified: Verified | None,
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    for entry, records, partition in heavy:
        try:
            settings = partition.settings
            ready = await run_within(
                node.world.offload,
                memory_to_prepare(records, settings),
                prepare,
                records,
                settings,
                node.world.clock.wall_ms(),
            )
            prepared[entry] = ready
            if refusal is None and partition.leader is not None:
                await partition.log.ready_for(ready.header, node.world.clock.now())
        except KafkaError as error:
            prepared[entry] = bare(error)
    heavy.clear()
    appending = Appending(node, ctx, request, refusal, prepared, verified)
    pace = Pace(node.world.clock)
    for _ in appending:
        await pace()
    prepared.clear()
    _drop_records(request)
    return _conclude(node, ctx, request, appending)


# ---- appending ----


class Appending:
    """Appends the batches of a request, one partition at each step; then has the answer.

    Between two partitions others may have their turn. Each is one call without an await.
    """

    def __init__(
        self,
        node: Producing,
        ctx: Context,
        request: ProduceRequest,
        refusal: KafkaError | None,
        prepared: Ready,
        verified: Verified | None,
    ) -> None:
        self._node = node
        self._ctx = ctx
        self._request = request
        self._refusal = refusal
        self._prepared = prepared
        self._verified = verified
        self._most_named = MOST_NAMED
        """Bad records that may yet be named, in all batches of the request together."""
        self.response = ProduceResponse()
        self.waits: list[Wait] = []
        self.moved = False
        """Whether a partition was found that is led elsewhere."""

    def __iter__(self) -> Iterator[None]:
        verified = self._verified
        for topic in self._request.topic_data:
            name, topic_refusal = _resolve(self._node, self._ctx, topic)
            early = self._refusal or topic_refusal
            answers: list[PartitionProduceResponse] = []
            for data in topic.partition_data:
                known = verified.get(id(data)) if verified else None
                if early is not None:
                    answer = refused(self._node, data.index, None, early)
                elif isinstance(known, KafkaError):
                    answer = refused(self._node, data.index, None, known)
                else:
                    answer = self._append(name, data, known)
                answers.append(answer)
                yield
            self.response.responses.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answers
                )
            )

    def _append(
        self, name: str, data: PartitionProduceData, verification: Verification | None
    ) -> PartitionProduceResponse:
        node, acks = self._node, self._request.acks
        partition: Partition | None = None
        try:
            partition = node.replicas.find(name, data.index)
            if partition.leader is None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if partition.closed is not None:
                raise anew(partition.closed)
            settings = partition.settings
            if acks == -1 and not partition.leader.in_sync(settings.min_insync_replicas):
                raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            now = node.world.clock.now()
            ready = _ready(self._prepared, data, settings, now.wall_ms)
            if isinstance(ready, KafkaError):
                answer = refused(node, data.index, partition, ready, self._most_named)
                self._most_named -= len(answer.record_errors)
                return answer
            view, header = ready
            if header.is_transactional and header.producer_id >= 0:
                admit(node, partition, header, verification)
            place = partition.append(view, header, now)
        except KafkaError as error:
            self.moved = self.moved or error.code in MOVED
            return refused(node, data.index, partition, error)
        counters = node.counters
        counters.messages_in += header.count
        counters.topic_bytes_in += len(view)
        _, last_offset, _, repeat = place
        counters.duplicates += repeat is not None
        end_offset = last_offset + 1
        answer = appended(data.index, header, place)
        if acks == -1:
            if partition.high_watermark.value < end_offset:
                self.waits.append(Wait(answer, partition.acknowledged, end_offset))
        elif partition.syncs and partition.flushed.value < end_offset:
            self.waits.append(Wait(answer, partition.flushed, end_offset))
        return answer


def refused(
    node: Producing,
    index: int,
    partition: Partition | None,
    error: KafkaError,
    most_named: int = MOST_NAMED,
) -> PartitionProduceResponse:
    """`partition` is None where the refusal has nothing to do with the log. Texts are told of what
    a code alone does not say: a bad record, a transaction that could not be verified, a device
    without room."""
    node.counters.failed_produce += 1
    judged = error.code not in _BEFORE_THE_LOG and not isinstance(error, NoBatch)
    told = isinstance(error, BadRecord | NotVerified | NoRoom)
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=partition.log.start_offset if judged and partition is not None else -1,
        record_errors=_blamed(error, most_named),
        error_message=error.message if told else None,
    )


def appended(index: int, header: BatchHeader, place: Appended) -> PartitionProduceResponse:
    base_offset, _, start_offset, repeat = place
    if repeat is not None:
        time = repeat.timestamp  # whoever gave it
    else:
        time = header.max_timestamp if header.log_append_time else -1
    return PartitionProduceResponse(
        index=index,
        base_offset=base_offset,
        log_append_time_ms=time,
        log_start_offset=start_offset,
    )


def _blamed(error: KafkaError, most: int) -> list[BatchIndexAndErrorMessage]:
    """The records that a batch was refused for, so that the client can tell whose they were."""
    if not isinstance(error, BadRecord):
        return []
    return [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=complaint)
        for index, complaint in error.named(most)
    ]


def _refuse_request(node: Producing, ctx: Context, request: ProduceRequest) -> KafkaError | None:
    if request.acks not in (-1, 0, 1):
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if _has_transactional(request):
        tid = request.transactional_id
        allowed = node.access.allowed
        if tid is None or not allowed(ctx, Operation.WRITE, Resource.TRANSACTIONAL_ID, tid):
            return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return None


def _has_transactional(request: ProduceRequest) -> bool:
    """Whether some batch belongs to a transaction, by its attributes."""
    return any(
        data.records is not None
        and len(data.records) > _LOW_ATTRIBUTES
        and data.records[_LOW_ATTRIBUTES] & TRANSACTIONAL
        for topic in request.topic_data
        for data in topic.partition_data
    )


def _resolve(
    node: Producing, ctx: Context, topic: TopicProduceData
) -> tuple[str, KafkaError | None]:
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


def _ready(
    prepared: Ready, data: PartitionProduceData, settings: TopicRules, now_ms: int
) -> Prepared | KafkaError:
    ready = prepared.get(id(data)) if prepared else None
    if ready is not None:
        return ready
    records = data.records
    if records is None:
        return NoBatch(ErrorCode.INVALID_RECORD, "the partition came without records")
    view = _view(records)
    try:
        return prepare(view, settings, now_ms)
    except KafkaError as error:
        return bare(_named(error, view))


# ---- a whole request refused ----


def refuse(request: ProduceRequest, code: ErrorCode, text: str) -> ProduceResponse | None:
    if request.acks == 0:
        raise CloseConnection(f"produce with acks=0 failed: {code.name}", "acks_0_failed")
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
