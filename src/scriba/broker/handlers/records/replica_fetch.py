"""Fetch by another broker's replica: reads up to the end of the log, and says how far it has come.

A follower's fetch counts once, when it arrives, and only where it is beyond doubt: it names the
leader's epoch, comes with the broker epoch that the metadata holds, and its last record is in this
log. A fetch that diverges, or that waited and is answered, moves nothing.

Its session (`partitions.follower_sessions`) knows which of its partitions have news, so a fetch
costs by these and by those that it names, not by how many there are. Where there is nothing to tell
it waits, and the next append ends the wait in the same turn of the loop. A second request of a
session that comes meanwhile has the first answered at once: that is how a follower adds a partition
without waiting for news of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from scriba.broker.net.large_requests import AT_ONCE
from scriba.broker.partitions.follower_sessions import FINAL_EPOCH, INITIAL_EPOCH
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import at_once
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.storage.log import EMPTY, NotResident, Slice
from scriba.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    PartitionData,
)

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import Fetching
    from scriba.broker.partitions.follower_sessions import Followed, FollowerSession
    from scriba.broker.partitions.partition import Partition
    from scriba.instant import Instant

FIRST_WITH_BROKER_EPOCH: Final = 15
_NO_RECORDS: Final = b""


class _Look:
    """What one fetch has found so far."""

    __slots__ = ("answers", "budget", "bytes", "cold", "counted", "full", "ready", "session")

    def __init__(self, session: FollowerSession, budget: int, full: bool, counted: bool) -> None:
        self.session = session
        self.budget = budget
        self.full = full
        """Whether everything is told, be it news or not."""
        self.counted = counted
        """Whether what the follower asks for says how far it has come: once, as it arrives."""
        self.answers: dict[Followed, PartitionData] = {}
        self.bytes = 0
        self.cold: list[NotResident] = []
        self.ready = False
        """Whether there is something that must not wait: an error or a divergence."""


def fetch(
    node: Fetching, ctx: Context, request: FetchRequest
) -> FetchResponse | Deferred[FetchResponse]:
    if ctx.version < FIRST_WITH_BROKER_EPOCH:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"replicas fetch with version {FIRST_WITH_BROKER_EPOCH} or later, which says of which "
            "incarnation of their broker they are",
        )
    replica, epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    broker = node.image.brokers.get(replica)
    if broker is not None and epoch < broker.epoch:
        return FetchResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    try:
        session = _session(node, ctx, request)
    except KafkaError as error:
        node.counters.failed_fetch += 1
        return FetchResponse(error_code=error.code)
    # A broker that has just registered may be known here a moment later: it reads, and counts then.
    counted = broker is not None and broker.epoch == epoch
    if counted:
        session.heard.ms = node.world.clock.mono_ms()
        if not session.counted:
            session.look_again()  # what it said before it was known counts now
    session.counted = counted
    full = request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
    budget = min(request.max_bytes, node.settings.fetch_max_bytes)
    look = _Look(session, budget, full, counted)
    named = sum(len(topic.partitions) for topic in request.topics)
    if named + len(session.news) + len(request.forgotten_topics_data) > AT_ONCE:
        return Deferred(_fetch_in_slices(node, request, look), pipelined=session.id != 0)
    at_once(_update(session, request))
    at_once(_look_at(node, look, request))
    if look.cold or not _enough(look, request):
        return Deferred(_wait(node, request, look), pipelined=session.id != 0)
    return _respond(node, look)


def _session(node: Fetching, ctx: Context, request: FetchRequest) -> FollowerSession:
    state, sessions = request.replica_state, node.replicas.follower_sessions
    epoch = request.session_epoch
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        wanted = epoch == INITIAL_EPOCH and bool(request.topics)
        return sessions.begin(
            state.replica_id, state.replica_epoch, request.session_id, wanted, ctx.received
        )
    return sessions.go_on(
        state.replica_id, state.replica_epoch, request.session_id, epoch, ctx.received
    )


def _update(session: FollowerSession, request: FetchRequest) -> Generator[None, None, None]:
    """Works a request into its session: what it names is looked at."""
    for gone in request.forgotten_topics_data:
        for index in gone.partitions:
            session.forget(gone.topic_id, index)
            yield
    for topic in request.topics:
        for asked in topic.partitions:
            session.news[session.name(topic.topic_id, asked)] = None
            yield


async def _fetch_in_slices(node: Fetching, request: FetchRequest, look: _Look) -> FetchResponse:
    """The fetch that opens a session of thousands of partitions."""
    pace = Pace(node.world.clock)
    await in_slices(_update(look.session, request), pace)
    await in_slices(_look_at(node, look, request), pace)
    return await _wait(node, request, look)


def _enough(look: _Look, request: FetchRequest) -> bool:
    return look.ready or look.bytes >= request.min_bytes or request.max_wait_ms <= 0


async def _wait(node: Fetching, request: FetchRequest, look: _Look) -> FetchResponse:
    """Answers when there is enough, the time is up, or the session's next request has come."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.max_wait_ms / 1000
    session, epoch = look.session, look.session.epoch
    pace = Pace(node.world.clock)
    look.counted = False
    while True:
        if look.cold:
            for cold in look.cold:
                node.counters.page_cache_misses += 1
                await cold.file.load(cold.position, cold.size)
            look.cold.clear()
        elif _enough(look, request) or loop.time() >= deadline or session.epoch != epoch:
            return _respond(node, look)
        elif not session.missed:
            await _news(session, deadline)
        if session.epoch == epoch:  # else the next request looks at what is new
            await in_slices(_look_at(node, look, request), pace)


async def _news(session: FollowerSession, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    waiter = session.waiter = loop.create_future()
    timer = loop.call_at(deadline, _give_up, waiter)
    try:
        await waiter
    finally:
        timer.cancel()
        if session.waiter is waiter:
            session.waiter = None


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# ---- reading ----


def _look_at(node: Fetching, look: _Look, request: FetchRequest) -> Generator[None, None, None]:
    """Looks at all that has news; what is yet to be told then stays among them."""
    session = look.session
    session.missed = False
    now = node.world.clock.now()
    for followed in tuple(session.news):
        # Taken out first: what happens from now on is news again.
        if session.news.pop(followed, followed) is followed:
            continue  # it was forgotten meanwhile
        data = PartitionData(partition_index=followed.index, high_watermark=-1)
        data.records = _NO_RECORDS
        data.aborted_transactions = None
        before = look.answers.get(followed)
        if before is not None and before.records is not _NO_RECORDS:
            look.bytes -= before.records.size  # type: ignore[union-attr]
        try:
            _look_at_one(node, look, followed, data, now)
        except KafkaError as error:
            data.error_code = error.code
            data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
            look.ready = True
            session.news[followed] = None
        look.answers[followed] = data
        yield


def _look_at_one(
    node: Fetching, look: _Look, followed: Followed, data: PartitionData, now: Instant
) -> None:
    session, asked = look.session, followed.asked
    partition = _partition(node, followed)
    leader = partition.check_leader(max(asked.current_leader_epoch, -1))
    if session.replica not in leader.followers:
        # With an epoch the caller may know of a newer assignment than this leader does.
        known = asked.current_leader_epoch >= 0
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
    store = partition.log
    if asked.last_fetched_epoch >= 0 and (found := diverging(partition, followed)) is not None:
        data.diverging_epoch = found
        data.high_watermark = partition.high_watermark.value
        data.log_start_offset = store.start_offset
        look.ready = True
        session.news[followed] = None
        return
    store.check_offset(asked.fetch_offset)
    if look.counted:
        _count(node, session, followed, partition, now)
    data.high_watermark = partition.high_watermark.value
    data.last_stable_offset = partition.stable_offset.value
    data.log_start_offset = store.start_offset
    _read(look, followed, partition, data)


def _partition(node: Fetching, followed: Followed) -> Partition:
    partition = followed.partition
    if partition is None or partition.leader is None:
        name = node.topic_name(followed.topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = node.replicas.find(name, followed.index)
        if partition.topic_id != followed.topic_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        followed.attach(partition)
    return partition


def diverging(partition: Partition, followed: Followed) -> FetchResponseEpochEndOffset | None:
    """The end of the epoch both know, if the follower's last record is not here (KIP-595)."""
    asked = followed.asked
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.last_fetched_epoch)
    if end_offset < 0 or epoch < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"epoch {asked.last_fetched_epoch} is unknown to this log",
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _count(
    node: Fetching,
    session: FollowerSession,
    followed: Followed,
    partition: Partition,
    now: Instant,
) -> None:
    """The follower has everything below the offset that it asks for."""
    asked, replica = followed.asked, session.replica
    partition.on_fetch(
        replica,
        asked.fetch_offset,
        asked.log_start_offset,
        session.broker_epoch,
        now,
        session.heard,
    )
    leader = followed.leader = partition.leader
    if leader is not None and replica not in leader.isr and leader.wants(replica):
        node.replicas.isr_updates.look(partition, now)


def _read(look: _Look, followed: Followed, partition: Partition, data: PartitionData) -> None:
    asked, store = followed.asked, partition.log
    left = look.budget - look.bytes
    if left <= 0 and look.bytes:
        if asked.fetch_offset < store.end_offset:
            look.session.news[followed] = None  # the next fetch has room for it
        return
    # The first batch found is sent whole even if it is over the limits, or a follower with a
    # small limit could never get past a large record.
    limit = min(asked.partition_max_bytes, max(left, 0))
    found = store.read(asked.fetch_offset, limit, store.end_offset, look.bytes == 0)
    if found is EMPTY:
        if asked.fetch_offset < store.end_offset:
            look.session.news[followed] = None
        return
    look.session.news[followed] = None  # until the follower says that it has it
    if isinstance(found, NotResident):
        look.cold.append(found)
        return
    assert isinstance(found, Slice)
    data.records = found
    look.bytes += found.size


# ---- answering ----


def _respond(node: Fetching, look: _Look) -> FetchResponse:
    session = look.session
    response = FetchResponse(session_id=session.id)
    topics: dict[bytes, FetchableTopicResponse] = {}
    for followed, data in look.answers.items():
        node.counters.failed_fetch += data.error_code != 0
        if not _is_news(followed, data) and not look.full:
            continue
        topic = topics.get(followed.topic_id)
        if topic is None:
            topic = topics[followed.topic_id] = FetchableTopicResponse(topic_id=followed.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
    node.counters.replication_bytes_out += look.bytes
    if not session.id:
        session.end()
    return response


def _is_news(followed: Followed, data: PartitionData) -> bool:
    """Whether the follower has to hear of this partition; remembers what it hears."""
    news = (
        data.records is not _NO_RECORDS
        or data.high_watermark != followed.high_watermark
        or data.log_start_offset != followed.start_offset
        or data.error_code != 0
        or followed.told_error
        or data.diverging_epoch.epoch >= 0
    )
    followed.high_watermark = data.high_watermark
    followed.start_offset = data.log_start_offset
    followed.told_error = data.error_code != 0
    return news
