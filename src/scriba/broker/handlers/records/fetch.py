"""Fetch: reads bounded by what the caller may see, answered at once or when enough is there.

Records never pass through Python: a partition's answer holds a `Slice` of a segment file, which
the connection sends with `sendfile`, or, when small, reads and sends together with the headers in
one call. A consumer in another rack may be told to read from a replica there instead, with no
records (`partitions.nearby`). A fetch that finds less than `min_bytes` parks on the watermarks of
its partitions and reads again when one moves, until its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from scriba.broker.access import Operation, Resource
from scriba.broker.handlers.brokers import require_broker
from scriba.broker.handlers.records import replica_fetch
from scriba.broker.handlers.records.isolation import READ_COMMITTED, check_isolation
from scriba.broker.handlers.records.leader_hints import MOVED, hint_fetch
from scriba.broker.net.answers import COPIED_BELOW, Parts, Region
from scriba.broker.net.api_entry import set_length
from scriba.broker.net.large_requests import AT_ONCE, BYTES_AT_ONCE
from scriba.broker.partitions import cold_reads
from scriba.broker.partitions.fetch_sessions import Plan, Watched
from scriba.broker.partitions.nearby import NOBODY
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import at_once
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.storage.log import EMPTY, NotResident, Slice
from scriba.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchTopic,
    PartitionData,
)
from scriba.wire.schema import Hole

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import Fetching
    from scriba.broker.partitions.partition import Partition
    from scriba.storage.log import Log

FIRST_WITH_ERROR: Final = 7
"""Before, an error of the whole is told of each partition that was asked for (`refuse`)."""
FIRST_FROM_FOLLOWERS: Final = 11
"""Before, consumers know nothing of replicas close by (KIP-392): they read from leaders alone."""
FIRST_BY_ID: Final = 13
CONSUMER: Final = -1
"""The replica id of everybody who is no replica."""
DEBUGGING_REPLICA: Final = -2
"""Tools that read what consumers may not see yet, up to the end of the log."""

NO_EPOCH: Final = -1

_NO_RECORDS: Final = b""

Refused = Mapping["Log", KafkaError]
"""Logs of which something had to be loaded that could not be, and why."""
_NONE_REFUSED: Final[Refused] = {}


class _Round:
    """One pass over the partitions of a fetch."""

    __slots__ = ("answers", "bytes", "cold", "names", "ready", "refused", "watched")

    def __init__(self, at_once: bool, refused: Refused) -> None:
        self.answers: list[tuple[Watched, PartitionData]] = []
        self.bytes = 0
        self.cold: list[tuple[Log, NotResident]] = []
        self.refused = refused
        self.names: dict[bytes, str] | None = {} if at_once else None
        """Names of topics that the caller may read, by id: looked up once in a pass, unless that is
        in slices, between which topics come and go."""
        self.ready = False
        """Whether there is something that must not wait: an error or a divergence."""
        self.watched: list[tuple[Partition, int]] = []
        """Where to wait: a partition and the offset that would be news."""


def fetch(
    node: Fetching, ctx: Context, request: FetchRequest
) -> FetchResponse | Deferred[FetchResponse]:
    replica = request.replica_id if ctx.version < 15 else request.replica_state.replica_id
    if replica >= 0:
        require_broker(node, ctx)
        return replica_fetch.fetch(node, ctx, request)
    check_isolation(request.isolation_level)
    if (
        len(request.topics) + len(request.forgotten_topics_data) > AT_ONCE
        or sum(len(topic.partitions) for topic in request.topics) > AT_ONCE
        or sum(len(topic.topic) for topic in request.topics) > BYTES_AT_ONCE
    ):
        return Deferred(_fetch_many(node, ctx, request, replica))
    try:
        plan = node.fetch_sessions.plan(request, ctx.version >= FIRST_BY_ID, ctx.received)
    except KafkaError as error:
        node.counters.failed_fetch += 1
        return FetchResponse(error_code=error.code)
    if len(plan.watched) > AT_ONCE:
        return Deferred(_wait(node, ctx, request, plan, replica, None))
    result = at_once(_read(node, ctx, request, plan, replica, at_once=True))
    if result.cold or not _enough(result, request):
        return Deferred(_wait(node, ctx, request, plan, replica, result))
    return at_once(_respond(node, ctx, plan, result))


async def _fetch_many(
    node: Fetching, ctx: Context, request: FetchRequest, replica: int
) -> FetchResponse:
    """The fetch that opens a session of thousands of partitions, or has none."""
    pace = Pace(node.world.clock)
    try:
        plan = await in_slices(
            node.fetch_sessions.planning(request, ctx.version >= FIRST_BY_ID, ctx.received), pace
        )
    except KafkaError as error:
        node.counters.failed_fetch += 1
        return FetchResponse(error_code=error.code)
    # The plan has each partition once; a request may name one as often as it likes, and wait.
    told = ctx.version >= FIRST_WITH_ERROR
    request.topics = [] if told else await in_slices(_each_once(plan.watched), pace)
    request.forgotten_topics_data = []
    return await _wait(node, ctx, request, plan, replica, None)


def _each_once(watched: Iterable[Watched]) -> Generator[None, None, list[FetchTopic]]:
    """What is told of each partition if the whole is refused (`refuse`)."""
    topics: dict[str, FetchTopic] = {}
    for each in watched:
        yield
        topic = topics.get(each.topic)
        if topic is None:
            topic = topics[each.topic] = FetchTopic(topic=each.topic)
        topic.partitions.append(each.asked)
    return list(topics.values())


def _enough(result: _Round, request: FetchRequest) -> bool:
    return (
        result.ready
        or result.bytes >= request.min_bytes
        or request.max_wait_ms <= 0
        or not result.watched
    )


async def resume(node: Fetching, ctx: Context, request: FetchRequest, plan: Plan) -> FetchResponse:
    """Goes on with a consumer's fetch that the fast path has planned and that waits."""
    return await _wait(node, ctx, request, plan, CONSUMER, None)


async def _wait(
    node: Fetching,
    ctx: Context,
    request: FetchRequest,
    plan: Plan,
    replica: int,
    result: _Round | None,
) -> FetchResponse:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    pace = Pace(node.world.clock)
    if result is None:
        result = await in_slices(_read(node, ctx, request, plan, replica), pace)
    while True:
        refused = _NONE_REFUSED
        if result.cold:
            refused = await _load(node, result.cold)
        else:
            left = deadline - loop.time()
            if _enough(result, request) or left <= 0:
                return await in_slices(_respond(node, ctx, plan, result), pace)
            await _news(result, request, left)
        reading = _read(node, ctx, request, plan, replica, refused=refused)
        result = await in_slices(reading, pace)


async def _load(node: Fetching, cold: list[tuple[Log, NotResident]]) -> Refused:
    """Waits for the devices; one that fails is no matter of what lies on others."""
    refused: dict[Log, KafkaError] = {}
    for store, missing in cold:
        node.counters.page_cache_misses += 1
        try:
            await cold_reads.load(store, missing)
        except KafkaError as error:
            refused[store] = error
    return refused


async def _news(result: _Round, request: FetchRequest, seconds: float) -> None:
    """Returns when a watched watermark moves or the time is up."""
    loop = asyncio.get_running_loop()
    moved: asyncio.Future[None] = loop.create_future()
    committed_only = request.isolation_level == READ_COMMITTED
    for partition, offset in result.watched:
        partition.readable(committed_only).watch(offset, moved)
    timer = loop.call_later(seconds, _give_up, moved)
    try:
        await moved
    except KafkaError:
        pass  # the partition went away: reading again says how
    finally:
        timer.cancel()
        moved.cancel()


def _give_up(moved: asyncio.Future[None]) -> None:
    if not moved.done():
        moved.set_result(None)


# ---- reading ----


def _read(
    node: Fetching,
    ctx: Context,
    request: FetchRequest,
    plan: Plan,
    replica: int,
    at_once: bool = False,
    refused: Refused = _NONE_REFUSED,
) -> Generator[None, None, _Round]:
    result = _Round(at_once, refused)
    budget = min(request.max_bytes, node.settings.fetch_max_bytes)
    for item in plan.watched:
        data = PartitionData(partition_index=item.asked.partition, high_watermark=-1)
        data.records = _NO_RECORDS
        try:
            _read_one(node, ctx, request, replica, item, data, budget, result)
        except KafkaError as error:
            data.error_code = error.code
            data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
            result.ready = True
        result.answers.append((item, data))
        yield
    return result


def _read_one(
    node: Fetching,
    ctx: Context,
    request: FetchRequest,
    replica: int,
    item: Watched,
    data: PartitionData,
    budget: int,
    result: _Round,
) -> None:
    asked = item.asked
    name = result.names.get(item.topic_id) if result.names else None
    if name is None:
        name = _topic_name(node, ctx, item)
        if result.names is not None and ctx.version >= FIRST_BY_ID:
            result.names[item.topic_id] = name
    partition = node.replicas.find(name, asked.partition)
    data.aborted_transactions = None
    epoch = max(asked.current_leader_epoch, NO_EPOCH)
    if replica == DEBUGGING_REPLICA:
        partition.check_epoch(epoch)
    elif ctx.version >= FIRST_FROM_FOLLOWERS:
        partition.check_reader(epoch, asked.fetch_offset)
    else:
        partition.check_leader(epoch)
    store = partition.log
    data.high_watermark = partition.high_watermark.value
    if replica == DEBUGGING_REPLICA:
        # How much a replica lacks is seen by what it was told to be committed, not what it has.
        data.high_watermark = max(data.high_watermark, partition.told_high_watermark)
    data.last_stable_offset = partition.stable_offset.value
    data.log_start_offset = store.start_offset
    if request.rack_id:
        data.preferred_read_replica = node.replicas.selector.preferred(
            partition, request.rack_id, asked.fetch_offset, ctx.listener
        )
        if data.preferred_read_replica != NOBODY:
            result.ready = True
            return
    if asked.last_fetched_epoch >= 0 and _diverges(partition, item, data):
        result.ready = True
        return
    if replica == DEBUGGING_REPLICA:
        bound = store.end_offset
    else:
        bound = partition.readable(request.isolation_level == READ_COMMITTED).value
    _read_records(request, asked, partition, bound, data, budget, result)


def _read_records(
    request: FetchRequest,
    asked: FetchPartition,
    partition: Partition,
    bound: int,
    data: PartitionData,
    budget: int,
    result: _Round,
) -> None:
    """Reads up to `bound`, within what the partitions before have left of the bytes."""
    store = partition.log
    committed_only = request.isolation_level == READ_COMMITTED
    if budget < 0 or asked.partition_max_bytes < 0:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a limit of bytes is below 0")
    left = budget - result.bytes
    if left <= 0 and result.bytes:
        store.check_offset(asked.fetch_offset)
        result.watched.append((partition, bound + 1))
        return
    # The first batch found is sent whole even if it is over the limits, or a consumer with a
    # small limit could never get past a large record.
    found = store.read(
        asked.fetch_offset,
        min(asked.partition_max_bytes, max(left, 0)),
        bound,
        result.bytes == 0,
    )
    if committed_only:
        data.aborted_transactions = []
    if found is EMPTY:
        result.watched.append((partition, bound + 1))
        return
    if isinstance(found, NotResident):
        if store in result.refused:
            raise result.refused[store]
        result.cold.append((store, found))
        return
    assert isinstance(found, Slice)
    data.records = found
    result.bytes += found.size
    result.watched.append((partition, bound + 1))
    if committed_only:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in store.aborted_transactions(asked.fetch_offset, bound, found)
        ]


def _topic_name(node: Fetching, ctx: Context, item: Watched) -> str:
    name = item.topic
    if ctx.version >= FIRST_BY_ID:
        found = node.topic_name(item.topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        name = found
    if not node.access.allowed(ctx, Operation.READ, Resource.TOPIC, name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return name


def _diverges(partition: Partition, item: Watched, data: PartitionData) -> bool:
    """Whether the caller's last record is not on this log (KIP-320, KIP-595).

    It is told the end of the epoch both know, and truncates or reports from there.
    """
    asked = item.asked
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.last_fetched_epoch)
    if end_offset < 0 or epoch < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"epoch {asked.last_fetched_epoch} is older than anything this log holds",
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        data.diverging_epoch = FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
        return True
    return False


# ---- answering ----


def _respond(
    node: Fetching, ctx: Context, plan: Plan, result: _Round
) -> Generator[None, None, FetchResponse]:
    response = FetchResponse(session_id=plan.session_id)
    node.counters.topic_bytes_out += result.bytes
    session = plan.session
    topic: FetchableTopicResponse | None = None
    moved = False
    for item, data in result.answers:
        yield
        if data.error_code:
            node.counters.failed_fetch += 1
            moved = moved or data.error_code in MOVED
        if session is not None and not _hears(item, data) and plan.incremental:
            continue
        if topic is None or topic.topic != item.topic or topic.topic_id != item.topic_id:
            topic = FetchableTopicResponse(topic=item.topic, topic_id=item.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
        if session is not None and (data.error_code or data.records is not _NO_RECORDS):
            session.answered(item)
    if moved:
        hint_fetch(node, ctx.listener, ctx.version, response)
    return response


def _hears(item: Watched, data: PartitionData) -> bool:
    records, error = data.records is not _NO_RECORDS, data.error_code != 0
    news = item.hears(data.high_watermark, data.log_start_offset, records, error)
    return news or data.diverging_epoch.epoch >= 0 or data.preferred_read_replica != NOBODY


def finish(node: Fetching, out: bytearray, holes: list[tuple[int, Hole]]) -> Parts:
    """The response as pieces: headers in memory, records as regions of files."""
    view = memoryview(out)
    parts: list[memoryview | Region] = []
    start, total = 0, len(out)
    for end, hole in holes:
        assert isinstance(hole, Slice)
        parts.append(view[start:end])
        parts.append(_small_or_region(hole))
        total += hole.size
        start = end
    if start < len(out):
        parts.append(view[start:])
    set_length(out, total)
    return parts


def _small_or_region(piece: Slice) -> memoryview | Region:
    if piece.size < COPIED_BELOW:
        view = memoryview(bytearray(piece.size))
        if piece.file.try_pread_into(view, piece.position) == piece.size:
            return view
    return Region(piece.file, piece.position, piece.size)


def refuse(request: FetchRequest, code: ErrorCode, text: str) -> FetchResponse:
    """Told of each partition, too, as long as topics have names: the oldest versions, which have
    no error of the whole answer, would take it for one without news."""
    return FetchResponse(
        error_code=code,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=asked.partition,
                        error_code=code,
                        high_watermark=-1,
                        records=_NO_RECORDS,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
            if topic.topic
        ],
    )
