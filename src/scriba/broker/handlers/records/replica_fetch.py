"""Fetch by another broker's replica: reads up to the end of the log, and says how far it has come.

A follower's fetch counts once, when it arrives, and only where it is beyond doubt: it names the
leader's epoch, comes with the broker epoch that the metadata holds, and its last record is in this
log. A fetch that diverges, or that waited and is answered, moves nothing.

Its session (`partitions.replication.follower_sessions`) knows which of its partitions have news, so
a fetch costs by these and by those that it names, not by how many there are. Where there is nothing
to tell it waits, and the next append ends the wait in the same turn of the loop. A second request
of a session that comes meanwhile has the first answered at once: that is how a follower adds a
partition without waiting for news of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from scriba.broker.net.large_requests import AT_ONCE
from scriba.broker.partitions import cold_reads
from scriba.broker.partitions.replication.follower_sessions import FINAL_EPOCH, INITIAL_EPOCH
from scriba.broker.request import Context, Deferred, Later
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.outcome import at_once
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.storage.log import NotResident, Slice
from scriba.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    PartitionData,
)

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import Fetching
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.partitions.replication.follower_sessions import Followed, FollowerSession
    from scriba.instant import Instant
    from scriba.replication.throttle import Throttle
    from scriba.storage.log import Log

FIRST_WITH_BROKER_EPOCH: Final = 15
_NO_RECORDS: Final = b""


Told = Slice | PartitionData | None
"""What is found of a partition: records, or an error or a divergence, or nothing."""


class Look:
    """What one fetch has found so far."""

    __slots__ = (
        "answers",
        "budget",
        "bytes",
        "cold",
        "counted",
        "deadline",
        "epoch",
        "full",
        "held_ms",
        "least",
        "ready",
        "refused",
        "session",
        "throttled",
    )

    def __init__(
        self, session: FollowerSession, request: FetchRequest, budget: int, counted: bool
    ) -> None:
        self.session = session
        self.epoch = session.epoch
        """Of the session's next request, which ends the wait of this one."""
        self.budget = budget
        self.least = request.min_bytes if request.max_wait_ms > 0 else 0
        self.full = request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        """Whether everything is told, be it news or not."""
        self.counted = counted
        """Whether what the follower asks for says how far it has come: once, as it arrives."""
        self.answers: dict[Followed, Told] = {}
        self.bytes = 0
        self.cold: list[tuple[Log, NotResident]] = []
        self.refused: dict[Log, KafkaError] = {}
        """Logs of which something had to be loaded that could not be, and why."""
        self.ready = False
        """Whether there is something that must not wait: an error or a divergence."""
        self.deadline = 0.0
        self.throttled: dict[Followed, tuple[Throttle, int]] = {}
        """Bytes of those that catch up at a limited rate."""
        self.held_ms = 0
        """For how long the throttle holds something back; 0 if it does not."""

    def used(self, throttle: Throttle) -> int:
        """What this fetch takes of an allowance so far."""
        return sum(size for slowed_by, size in self.throttled.values() if slowed_by is throttle)

    @property
    def is_over(self) -> bool:
        """Whether it is answered with what it has found, be it nothing."""
        return self.ready or self.bytes >= self.least or self.session.epoch != self.epoch


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
    # A broker that has just registered may be known here a moment later: it reads, and counts then.
    counted = broker is not None and broker.epoch == epoch
    try:
        session = _session(node, ctx, request, None if broker is None else broker.epoch)
    except KafkaError as error:
        node.counters.failed_fetch += 1
        return FetchResponse(error_code=error.code)
    if counted:
        session.heard.ms = node.world.clock.mono_ms()
        if session.anew or not session.counted:
            session.look_again()  # what it said before it was known, or could join, counts now
    session.counted = counted
    look = Look(session, request, min(request.max_bytes, node.settings.fetch_max_bytes), counted)
    named = sum(len(topic.partitions) for topic in request.topics)
    forgotten = sum(len(topic.partitions) for topic in request.forgotten_topics_data)
    if named + forgotten > AT_ONCE:
        return DelayedReplicaFetch(node, look, request, _update(session, request))
    at_once(_update(session, request))
    if len(session.news) > AT_ONCE:
        return DelayedReplicaFetch(node, look, request)
    look_at_once(node, look, node.world.clock.now())
    if look.cold or not look.is_over:
        return DelayedReplicaFetch(node, look, request)
    return respond(node, look)


def _session(
    node: Fetching, ctx: Context, request: FetchRequest, known_epoch: int | None
) -> FollowerSession:
    """`known_epoch` is the broker's in the metadata. One that is not there gets none that lasts."""
    state, sessions = request.replica_state, node.replicas.follower_sessions
    epoch = request.session_epoch
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if known_epoch is None:
            return sessions.unkept(state.replica_id, state.replica_epoch)
        sessions.end_older(state.replica_id, known_epoch)
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


# ---- waiting ----


class DelayedReplicaFetch(Later[FetchResponse]):
    """A fetch that is answered later: when there is news, or the session's next request has come,
    or its time is up. It waits as a callback; only what is much, or has to be read from the device,
    takes a task."""

    __slots__ = (
        "_done",
        "_look",
        "_node",
        "_over",
        "_task",
        "_timer",
        "_update",
        "_wait_s",
        "_woken",
    )

    _done: Callable[[FetchResponse], None]
    _timer: asyncio.TimerHandle

    def __init__(
        self,
        node: Fetching,
        look: Look,
        request: FetchRequest,
        update: Generator[None, None, None] | None = None,
    ) -> None:
        # Requests are worked into a session in their order: what the next one forgets, this one
        # must not name after it.
        super().__init__(pipelined=look.session.id != 0 and update is None)
        self._node = node
        self._look = look
        self._wait_s = request.max_wait_ms / 1000
        self._update = update
        """Works the request into its session, where that is too much for one turn of the loop."""
        self._woken = self._over = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, done: Callable[[FetchResponse], None]) -> None:
        loop, look = asyncio.get_running_loop(), self._look
        self._done = done
        look.deadline = loop.time() + self._wait_s
        self._timer = loop.call_at(self._next_look(), self.wake)
        if self._update is not None or look.cold or len(look.session.news) > AT_ONCE:
            self._begin_slow_look()
            return
        look.counted = False
        look.session.waiter = self
        if look.session.missed or look.is_over:
            self.wake()

    def go_on(self, done: Callable[[FetchResponse], None], deadline: float) -> None:
        """Waits on for a fetch that the fast path has begun, up to when that would have waited."""
        look = self._look
        self._done = done
        look.deadline = deadline
        look.session.waiter = self
        self._timer = asyncio.get_running_loop().call_at(self._next_look(), self.wake)
        if look.cold or len(look.session.news) > AT_ONCE:
            self._begin_slow_look()
        else:
            self._judge()

    def wake(self) -> None:
        """Looks again, once in a turn of the loop, however many call."""
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def abandon(self) -> None:
        self._end()
        if self._task is not None:
            self._task.cancel()

    def _end(self) -> None:
        self._over = self._woken = True
        self._timer.cancel()
        if self._look.session.waiter is self:
            self._look.session.waiter = None

    def _look_again(self) -> None:
        look = self._look
        if self._over:
            return
        if look.session.epoch == look.epoch:  # else the next request looks at what is new
            now = self._node.world.clock.now()
            if now.mono_ms >= look.session.moved_due_ms:
                look.session.tell_moved(now.mono_ms)
            if len(look.session.news) > AT_ONCE:
                self._begin_slow_look()
                return
            try:
                look_at_once(self._node, look, now)
            except Exception as error:
                self._fail(error)
                return
            if look.cold:
                self._begin_slow_look()
                return
        self._judge()

    def _begin_slow_look(self) -> None:
        self._woken = True
        self._task = asyncio.get_running_loop().create_task(self._look_slowly())

    async def _look_slowly(self) -> None:
        look, node = self._look, self._node
        pace = Pace(node.world.clock)
        try:
            if self._update is not None:
                await in_slices(self._update, pace)
                await in_slices(_look_at(node, look), pace)
                look.ready = True  # the next request waits for this answer
            while look.cold:
                await _load(node, look)
                look.counted = False
                if look.session.epoch == look.epoch:
                    await in_slices(_look_at(node, look), pace)
            if len(look.session.news) > AT_ONCE and not look.is_over:
                await in_slices(_look_at(node, look), pace)
        except Exception as error:
            self._fail(error)
            return
        look.counted = False
        self._task = self._update = None
        self._judge()

    def _fail(self, error: Exception) -> None:
        self._end()
        self._done(failed(self._node, error))

    def _judge(self) -> None:
        look = self._look
        if look.is_over or asyncio.get_running_loop().time() >= look.deadline:
            try:
                response = respond(self._node, look)
            except Exception as error:
                response = failed(self._node, error)
            self._end()
            self._done(response)
            return
        look.session.waiter = self
        self._woken = False
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._next_look(), self.wake)
        if look.session.missed:
            self.wake()

    def _next_look(self) -> float:
        """When it is looked at again even without news: what a throttle holds back may go then."""
        look = self._look
        if not look.held_ms:
            return look.deadline
        return min(look.deadline, asyncio.get_running_loop().time() + look.held_ms / 1000)


# ---- reading ----


async def _load(node: Fetching, look: Look) -> None:
    """Waits for the devices; one that fails is no matter of what lies on others."""
    cold, look.cold = look.cold, []
    look.refused.clear()
    for store, missing in cold:
        node.counters.page_cache_misses += 1
        try:
            await cold_reads.load(store, missing)
        except KafkaError as error:
            look.refused[store] = error


def look_at_once(node: Fetching, look: Look, now: Instant) -> None:
    """Looks at all that has news; what is yet to be told then stays among them."""
    look.session.missed = False
    look.held_ms = 0
    for followed in tuple(look.session.news):
        _look_at_next(node, look, followed, now)


def _look_at(node: Fetching, look: Look) -> Generator[None, None, None]:
    """The same in slices."""
    look.session.missed = False
    look.held_ms = 0
    now = node.world.clock.now()
    for followed in tuple(look.session.news):
        _look_at_next(node, look, followed, now)
        yield


def _look_at_next(node: Fetching, look: Look, followed: Followed, now: Instant) -> None:
    news, answers = look.session.news, look.answers
    # Taken out first: what happens from now on is news again.
    if news.pop(followed, followed) is followed:
        return  # it was forgotten meanwhile
    before = answers.get(followed)
    if type(before) is Slice:
        look.bytes -= before.size
        look.throttled.pop(followed, None)
    elif type(before) is PartitionData:
        # Told as it is, even if it would be right by now: what was asked has not been counted.
        news[followed] = None
        return
    try:
        found = _look_at_one(node, look, followed, now)
    except KafkaError as error:
        found = _refused(followed, error)
    answers[followed] = found
    if type(found) is PartitionData:
        look.ready = True
        news[followed] = None


def _refused(followed: Followed, error: KafkaError) -> PartitionData:
    data = PartitionData(partition_index=followed.index, error_code=error.code, high_watermark=-1)
    data.records = _NO_RECORDS
    data.aborted_transactions = None
    return data


def _look_at_one(node: Fetching, look: Look, followed: Followed, now: Instant) -> Told:
    session, asked, partition = look.session, followed.asked, followed.partition
    if partition is None or partition.leader is None:
        partition = _partition(node, followed)
    leader = partition.leader
    if leader is None or asked.current_leader_epoch != partition.leader_epoch:
        leader = partition.check_leader(max(asked.current_leader_epoch, -1))
    if session.replica not in leader.followers:
        followed.detach()  # what happens here is not for it
        # With an epoch the caller may know of a newer assignment than this leader does.
        known = asked.current_leader_epoch >= 0
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
    log, offset, last_epoch = partition.log, asked.fetch_offset, asked.last_fetched_epoch
    # As most often, both have records of the newest epoch.
    alike = last_epoch == log.epochs.latest and offset <= log.end_offset
    if last_epoch >= 0 and not alike and (found := diverging(partition, followed)) is not None:
        data = _data(followed, partition)
        data.diverging_epoch = found
        return data
    if not log.start_offset <= offset <= log.end_offset:
        log.check_offset(offset)
    if look.counted and _is_beyond_doubt(asked, partition):
        _count(node, session, followed, partition, now)
    if session.prompt and partition.high_watermark.value > followed.high_watermark:
        look.ready = True
    if offset >= log.end_offset:
        return None
    throttle = node.replicas.throttles.giving(partition, leader, session.replica)
    if throttle is None:
        return _read(look, followed, partition, asked.partition_max_bytes)
    allowed = throttle.allowance(now.mono_ms) - look.used(throttle)
    if allowed <= 0:
        session.news[followed] = None
        look.held_ms = max(throttle.wait_ms(now.mono_ms), 1)
        return None
    before = look.bytes
    read = _read(look, followed, partition, allowed)
    look.throttled[followed] = (throttle, look.bytes - before)
    return read


def _data(followed: Followed, partition: Partition) -> PartitionData:
    """What is told of a partition, without records."""
    data = PartitionData(
        partition_index=followed.index,
        high_watermark=partition.high_watermark.value,
        log_start_offset=partition.log.start_offset,
    )
    data.records = _NO_RECORDS
    data.aborted_transactions = None
    return data


def _partition(node: Fetching, followed: Followed) -> Partition:
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
    asked, log = followed.asked, partition.log
    epoch, end_offset = log.end_offset_for_epoch(asked.last_fetched_epoch)
    if end_offset < 0 or epoch < 0:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"epoch {asked.last_fetched_epoch} is unknown to this log",
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _is_beyond_doubt(asked: FetchPartition, partition: Partition) -> bool:
    """Whether the follower's log is known to be a part of this one: the fetch names the epoch of
    this leadership, and that of the last record, which was looked up; or there is no record, as the
    follower's log, or this one, begins where it asks from."""
    return asked.current_leader_epoch >= 0 and (
        asked.last_fetched_epoch >= 0
        or asked.fetch_offset in (asked.log_start_offset, partition.log.start_offset)
    )


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


def _read(look: Look, followed: Followed, partition: Partition, most: int) -> Slice | None:
    """Records of a partition that has some for the follower."""
    asked, store = followed.asked, partition.log
    offset, end = asked.fetch_offset, store.end_offset
    look.session.news[followed] = None  # until the follower says that it has it
    left = look.budget - look.bytes
    if left <= 0 and look.bytes:
        return None  # the next fetch has room for it
    # The first batch found is sent whole even if it is over the limits, or a follower with a
    # small limit could never get past a large record.
    limit = min(asked.partition_max_bytes, max(left, 0), most)
    found = store.read(offset, limit, end, look.bytes == 0)
    if type(found) is Slice:
        look.bytes += found.size
        return found
    if isinstance(found, NotResident):
        if store in look.refused:
            raise look.refused[store]
        look.cold.append((store, found))
    return None


# ---- answering ----


def respond(node: Fetching, look: Look) -> FetchResponse:
    session = look.session
    response = FetchResponse(session_id=session.id)
    topics: dict[bytes, FetchableTopicResponse] = {}
    for followed, found in look.answers.items():
        data = _news(followed, found, look.full)
        if data is None:
            continue
        node.counters.failed_fetch += data.error_code != 0
        topic = topics.get(followed.topic_id)
        if topic is None:
            topic = topics[followed.topic_id] = FetchableTopicResponse(topic_id=followed.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
    count_out(node, look)
    if not session.id:
        session.end()
    return response


def failed(node: Fetching, error: Exception) -> FetchResponse:
    """The answer where something went wrong that nobody expected: the follower begins a session."""
    node.note(EventKind.REQUEST_FAILED, "Fetch", f"failed: {error!r}", error)
    return FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


def count_out(node: Fetching, look: Look) -> None:
    """What was found is on its way."""
    node.counters.replication_bytes_out += look.bytes
    for throttle, size in look.throttled.values():
        throttle.take(size, node.world.clock.mono_ms())


def _news(followed: Followed, found: Told, full: bool) -> PartitionData | None:
    """What the follower has to hear of a partition, if anything; remembers what it hears.

    The high watermark is that of now: it may have moved while the fetch waited.
    """
    if type(found) is PartitionData:
        followed.high_watermark, followed.start_offset = (
            found.high_watermark,
            found.log_start_offset,
        )
        followed.told_error = found.error_code != 0
        followed.due = True
        return found
    partition = to_tell_of(followed, found, full)
    if partition is None:
        return None
    data = _data(followed, partition)
    data.last_stable_offset = partition.stable_offset.value
    if type(found) is Slice:
        data.records = found
    return data


def to_tell_of(followed: Followed, found: Told, full: bool) -> Partition | None:
    """The partition, if the follower has to hear of it; remembers what it hears then."""
    partition = followed.partition
    if partition is None:
        return None  # it was forgotten meanwhile
    high_watermark, start_offset = partition.high_watermark.value, partition.log.start_offset
    if (
        found is None
        and not full
        and (high_watermark == followed.high_watermark or not followed.due)
        and start_offset == followed.start_offset
        and not followed.told_error
    ):
        return None
    followed.high_watermark, followed.start_offset = high_watermark, start_offset
    followed.told_error = followed.due = False
    return partition
