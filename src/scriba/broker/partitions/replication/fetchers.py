"""Fetching from leaders: one connection and one session for each broker that leads something here.

A fetcher asks its leader for all partitions at once that are followed from it, and takes what
comes: batches are appended as they are, the high watermark and the start of the log follow the
leader's.
What to ask and what an answer means is decided by `replication.follower`; here it is carried out.

The leader keeps a fetch until there is news. When a partition begins to be followed meanwhile
(after a failover, say), the next request is sent at once: it has the leader answer the one that
waits.

Truncations leave the loop, those of one answer together, and a partition is fetched again when its
truncation is on the device. A replica whose log takes nothing more fails, by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scriba.broker.partitions.replication.session_requests import (
    FIRST_PACKED,
    MARK,
    SessionRequests,
)
from scriba.broker.ports import (
    BackgroundTasks,
    BrokerIdentity,
    Configuration,
    Counting,
    EventLog,
    WorldAccess,
)
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.events import EventKind
from scriba.peers.errors import BrokerError, ClientError
from scriba.records.header import read_header
from scriba.replication.follower import (
    Append,
    AskBounds,
    Bounds,
    EpochEnd,
    FetcherPlan,
    FollowerState,
    Key,
    Question,
    StartAnew,
    State,
    Told,
    Truncate,
    pause_after,
)
from scriba.runtime.loop.pace import Pace
from scriba.storage.log import LARGE_APPEND
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
    ReplicaState,
)

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.partitions.replication.throttles import ReplicationThrottles
    from scriba.peers.connection import Connection, Packed
    from scriba.replication.throttle import Throttle
    from scriba.storage.directory.logdir import LogDir

PURPOSE: Final = "replication"
FETCH_VERSION: Final = 17
"""The newest that says nothing of raft."""
MOST_QUESTIONS: Final = 2
"""One that waits for news, and one that has it answered."""
LONGEST_HOLD_MS: Final = 500
PROGRESS_MS: Final = 10_000
"""How often a replica that is far behind is told of."""
AT_ONCE: Final = 64
AT_ONCE_BYTES: Final = 1 << 18
"""Partitions and bytes of an answer that is taken in one turn of the loop: well below 1 ms."""
LATEST: Final = -1
EARLIEST: Final = -2


class LeaderChannels(Protocol):
    async def connection(self, broker_id: int, purpose: str = "") -> Connection: ...


class FetcherHost(
    BackgroundTasks,
    BrokerIdentity,
    Configuration,
    Counting,
    EventLog,
    WorldAccess,
    Protocol,
):
    @property
    def channels(self) -> LeaderChannels: ...

    @property
    def replicas(self) -> Homes: ...


class Homes(Protocol):
    @property
    def throttles(self) -> ReplicationThrottles: ...

    def home(self, partition: Partition) -> LogDir | None: ...


class Fetchers:
    """All that this broker follows, by leader."""

    def __init__(self, node: FetcherHost) -> None:
        self._node = node
        self._fetchers: dict[int, Fetcher] = {}
        self._leader_of: dict[Partition, int] = {}
        self._truncating: dict[Partition, asyncio.Task[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._fetchers)

    def follow(self, partition: Partition, leader_id: int) -> None:
        """Fetches a partition from this leader from now on, as its `follower` state says."""
        state = partition.follower
        if state is None or self._closed:
            return
        if self._leader_of.get(partition) != leader_id:
            self.drop(partition)
        self._leader_of[partition] = leader_id
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = Fetcher(self._node, leader_id, self._truncating)
        fetcher.follow(partition, state)

    def drop(self, partition: Partition) -> None:
        """Fetches it from nobody."""
        leader_id = self._leader_of.pop(partition, None)
        if leader_id is None:
            return
        fetcher = self._fetchers[leader_id]
        fetcher.drop(partition)
        if not fetcher.partitions:
            del self._fetchers[leader_id]
            fetcher.stop()

    def caught_up_ms(self, partition: Partition) -> int | None:
        """As of when a replica has all that was committed then; None where that was never."""
        leader_id, state = self._leader_of.get(partition), partition.follower
        if leader_id is None or state is None or state.caught_up_ms is None:
            return None
        fetcher = self._fetchers[leader_id]
        if state.is_caught_up and fetcher.asks_for(partition):
            return max(state.caught_up_ms, fetcher.answered_ms)  # there was nothing to tell of it
        return state.caught_up_ms

    def silent(self, since_ms: int) -> dict[int, bool]:
        """Of each leader whether it was asked for something, and has not answered since then."""
        return {leader: each.is_silent(since_ms) for leader, each in self._fetchers.items()}

    def is_truncating(self, partition: Partition) -> bool:
        return partition in self._truncating

    async def truncated(self, partition: Partition) -> None:
        """Returns when no truncation of it is under way: before that its role must not change."""
        if partition in self._truncating:
            await asyncio.wait((self._truncating[partition],))

    @property
    def max_lag(self) -> int:
        """Records by which the worst partition is behind what is committed."""
        followed = (partition.follower for partition in self._leader_of)
        return max((state.lag for state in followed if state is not None), default=0)

    @property
    def failed(self) -> int:
        """Partitions that fail to follow."""
        return sum(
            partition.follower is not None and partition.follower.state is State.FAILED
            for partition in self._leader_of
        )

    def close(self) -> None:
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.stop()
        self._fetchers.clear()
        self._leader_of.clear()


class _Asked:
    """A question that was sent, and its answer once that has come."""

    __slots__ = ("_answered", "_over", "failure", "question", "response")

    def __init__(self, question: Question, answered: Callable[[_Asked], None]) -> None:
        self.question = question
        self.response: FetchResponse | None = None
        self.failure: BaseException | None = None
        self._answered = answered
        self._over = False

    def done(self) -> bool:
        return self._over

    def set_result(self, result: FetchResponse, /) -> None:
        self._over = True
        self.response = result
        self._answered(self)

    def set_exception(self, failure: BaseException, /) -> None:
        self._over = True
        self.failure = failure
        self._answered(self)

    def abandon(self) -> None:
        """Whatever comes, nobody takes it."""
        self._over = True

    def result(self) -> FetchResponse:
        if self.failure is not None:
            raise self.failure
        assert self.response is not None, "its answer has come"
        return self.response


class Truncation(NamedTuple):
    partition: Partition
    state: FollowerState
    step: Truncate | StartAnew


class Fetcher:
    """The conversation with one leader."""

    def __init__(
        self,
        node: FetcherHost,
        leader_id: int,
        truncating: dict[Partition, asyncio.Task[None]],
    ) -> None:
        self._node = node
        self._leader_id = leader_id
        self._truncating = truncating
        self._plan = FetcherPlan()
        self.partitions: dict[Key, Partition] = {}
        self._news = asyncio.Event()
        self._asked: deque[_Asked] = deque()
        self._versioned: Connection | None = None
        self._version = 0
        """Of the requests on that connection."""
        self._packed: SessionRequests | None = None
        self._shape: tuple[object, ...] = ()
        """What all questions have in common that were packed so: session, version, settings."""
        self._connection: Connection | None = None
        """While it is conversed on, and no answer is being taken in slices."""
        self.answered_ms = 0
        """When the leader last answered, whatever it was about."""
        self._began_ms = self._now_ms()
        self._flushes: list[Partition] = []
        """What only counts on the device is asked for again when it is there."""
        self._failure: Exception | None = None
        """What ended the taking of an answer."""
        self._failures = 0
        """Of the connection, in a row."""
        self._told_ms = 0
        self._held_until: int | None = None
        self._held_by: set[Throttle] = set()
        """When those are looked at again that the throttle holds back."""
        self._task = node.tasks.spawn(self._run(), name=f"fetches from broker {leader_id}")

    # ---- what is followed ----

    def follow(self, partition: Partition, state: FollowerState) -> None:
        key = Key(partition.topic_id, partition.index)
        self.partitions[key] = partition
        self._plan.follow(key, state)
        if partition.syncs:
            self._flushes.append(partition)
        self._news.set()

    def drop(self, partition: Partition) -> None:
        key = Key(partition.topic_id, partition.index)
        if self.partitions.pop(key, None) is not None:
            self._plan.drop(key)
            self._news.set()

    def stop(self) -> None:
        self._connection = None
        self._task.cancel()

    # ---- asking ----

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._node.channels.connection(self._leader_id, PURPOSE)
                await self._converse(connection)
            except ClientError as error:
                self._lost(error)
                pause = pause_after(self._failures, self._node.settings.replica_fetch_backoff_ms)
                await asyncio.sleep(pause / 1000)

    def _lost(self, error: ClientError) -> None:
        self._failures += 1
        if self._failures == 1:
            text = f"cannot fetch from it: {error}"
            self._node.note(EventKind.FETCH_FAILED, f"broker {self._leader_id}", text)
        for asked in self._asked:
            asked.abandon()
        self._asked.clear()
        self._plan.lost()

    async def _converse(self, connection: Connection) -> None:
        """Asks and takes answers until the connection is lost: ClientError.

        Small answers are taken as they come (`_answered`); what is left for here is much, or has to
        wait.
        """
        try:
            while True:
                self._news.clear()
                if self._failure is not None:
                    raise self._failure
                await self._flushed()
                self._ask(connection)
                if self._asked and self._asked[0].done():
                    asked = self._asked.popleft()
                    self._connection = None
                    await self._take(asked.question, asked.result())
                    continue
                self._connection = connection
                await self._wait()
        finally:
            self._connection = self._versioned = self._failure = None

    async def _flushed(self) -> None:
        while self._flushes:
            self._connection = None
            await self._flushes.pop().flushed_as_follower()

    def _ask(self, connection: Connection) -> None:
        plan, asked = self._plan, self._asked
        plan.longest_pause_ms = self._node.settings.replica_fetch_backoff_ms
        if self._held_until is not None:
            self._release()
        if len(asked) >= MOST_QUESTIONS or (asked and not (plan.in_session and plan.has_news)):
            return
        question = plan.question(self._now_ms())
        if question is None:
            return
        asking = _Asked(question, self._answered)
        limit_ms = self._node.settings.replica_socket_timeout_ms
        if connection is not self._versioned:
            self._version = min(FETCH_VERSION, connection.version(FetchRequest))
            self._versioned = connection
        version = self._version
        connection.ask(self._request(question, version), FetchResponse, asking, version, limit_ms)
        asked.append(asking)

    def _answered(self, answer: _Asked) -> None:
        """An answer has come: a small one is taken at once, and the next question follows it."""
        connection, asked, response = self._connection, self._asked, answer.response
        if (
            connection is None
            or response is None
            or not asked
            or asked[0] is not answer
            or not _is_small(response)
        ):
            self._news.set()
            return
        asked.popleft()
        try:
            self._take_at_once(answer.question, response)
            if self._flushes or self._plan.has_pauses or self._held_until is not None:
                self._news.set()  # something has to be waited for
            else:
                self._ask(connection)
        except Exception as failure:
            self._failure = failure  # raised where it is seen
            self._news.set()

    def _take_at_once(self, question: Question, response: FetchResponse) -> None:
        truncations: list[Truncation] = []
        self._plan.answered(question, response.session_id)
        for topic in response.responses:
            for data in topic.partitions:
                key = Key(topic.topic_id, data.partition_index)
                self._take_one(question, key, data, truncations)
        self._taken(truncations)

    async def _wait(self) -> None:
        """Until there is an answer, another question, or a pause is over."""
        due = self._plan.next_end_of_pause()
        if self._held_until is not None:
            due = self._held_until if due is None else min(due, self._held_until)
        if due is None:
            await self._news.wait()
            return
        left = max(due - self._now_ms(), 0) / 1000
        try:
            async with asyncio.timeout(left):
                await self._news.wait()
        except TimeoutError:
            pass
        if due <= self._now_ms():
            self._plan.end_pauses(self._now_ms())

    def _request(self, question: Question, version: int) -> FetchRequest | Packed:
        if not question.session_epoch or question.forgotten or version < FIRST_PACKED:
            return self._whole_request(question)
        settings, session_id = self._node.settings, question.session_id
        shape = (session_id, version, self._node.broker_epoch, settings)
        if self._packed is None or shape != self._shape:
            one = self._whole_request(Question(0, session_id, MARK, {}, []))
            self._packed = SessionRequests(one, version, settings.replica_fetch_max_bytes)
            self._shape = shape
        return self._packed.packed(question.session_epoch, question.asks)

    def _whole_request(self, question: Question) -> FetchRequest:
        settings = self._node.settings
        # The first question of a session is answered at once: what begins to be followed later
        # need not wait for it.
        wait_ms = settings.replica_fetch_wait_max_ms if question.session_epoch else 0
        topics: dict[bytes, FetchTopic] = {}
        for (topic_id, index), ask in question.asks.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=ask.leader_epoch,
                    fetch_offset=ask.offset,
                    last_fetched_epoch=ask.last_epoch,
                    log_start_offset=ask.start_offset,
                    partition_max_bytes=settings.replica_fetch_max_bytes,
                )
            )
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in question.forgotten:
            gone = forgotten.get(topic_id)
            if gone is None:
                gone = forgotten[topic_id] = ForgottenTopic(topic_id=topic_id)
            gone.partitions.append(index)
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._node.id, replica_epoch=self._node.broker_epoch
            ),
            max_wait_ms=wait_ms,
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
            session_id=question.session_id,
            session_epoch=question.session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    def _now_ms(self) -> int:
        return self._node.world.clock.mono_ms()

    # ---- answers ----

    async def _take(self, question: Question, response: FetchResponse) -> None:
        if response.error_code:
            code = error_code(response.error_code)
            self._plan.refused(code)
            if question.session_epoch == 0:
                raise BrokerError(code, about=f"Fetch from broker {self._leader_id}")
            return
        self._plan.answered(question, response.session_id)
        pace = Pace(self._node.world.clock)
        truncations: list[Truncation] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = Key(topic.topic_id, data.partition_index)
                if data.records and len(data.records) >= LARGE_APPEND:  # type: ignore[arg-type]
                    await self._ready(key, data)
                self._take_one(question, key, data, truncations)
                await pace()
        self._taken(truncations)

    async def _ready(self, key: Key, data: PartitionData) -> None:
        """Memory for much that a leader sent is found off the loop."""
        partition = self.partitions.get(key)
        if partition is not None and partition.follower is not None:
            await partition.log.ready_to_follow(memoryview(data.records))  # type: ignore[arg-type]

    def is_silent(self, since_ms: int) -> bool:
        asked = bool(self._asked or self._failures)
        return asked and max(self.answered_ms, self._began_ms) < since_ms

    def asks_for(self, partition: Partition) -> bool:
        """Whether an answer without a word of the partition says that there is nothing new."""
        return self._plan.asks_for(Key(partition.topic_id, partition.index))

    def _taken(self, truncations: list[Truncation]) -> None:
        self._failures = 0
        self.answered_ms = now_ms = self._now_ms()
        if truncations:
            self._begin_truncation(truncations)
        if now_ms - self._told_ms >= PROGRESS_MS:
            self._tell_progress(now_ms)

    def _take_one(
        self,
        question: Question,
        key: Key,
        data: PartitionData,
        truncations: list[Truncation],
    ) -> None:
        state, partition = self._plan.told(key, question), self.partitions.get(key)
        if state is None or partition is None or partition.follower is not state:
            return
        told = _told(data)
        ours = partition.own_epoch_end(told.diverging.epoch) if told.diverging else None
        step = state.on_told(told, ours)
        if isinstance(step, Append):
            if (anew := self._append(key, partition, state, data, told)) is not None:
                truncations.append(Truncation(partition, state, anew))
            throttles = self._node.replicas.throttles
            if state.state is State.CATCHING_UP or partition in throttles.followed:
                self._throttle(throttles.taking(partition), key, data)
            if partition.syncs:
                self._flushes.append(partition)
        elif isinstance(step, AskBounds):
            self._node.tasks.spawn(self._find_bounds(key, partition, state), name="log bounds")
        elif isinstance(step, Truncate | StartAnew):
            truncations.append(Truncation(partition, state, step))
        elif state.failures:
            self._plan.pause(key, state, self._now_ms())
        self._plan.changed(key)

    def _append(
        self,
        key: Key,
        partition: Partition,
        state: FollowerState,
        data: PartitionData,
        told: Told,
    ) -> StartAnew | None:
        """What has to be done before it can be appended, if that is so."""
        records = data.records
        view = memoryview(records) if records else memoryview(b"")  # type: ignore[arg-type]
        anew = None
        try:
            partition.append_as_follower(view, self._node.world.clock.now())
            if told.start_offset > state.start_offset:
                partition.follow_start(state.start_after(told))
            if state.failures:
                state.well()
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                header = read_header(view)
                anew = state.on_earlier(header.base_offset, header.last_offset)
            if anew is None:
                self._not_appended(key, partition, state, error)
        self._node.counters.replication_bytes_in += len(view)
        return anew

    def _throttle(self, throttle: Throttle | None, key: Key, data: PartitionData) -> None:
        """Leaves a partition that catches up out of the fetches once the rate is used up."""
        if throttle is None:
            return
        throttle.take(len(data.records or b""), self._now_ms())  # type: ignore[arg-type]
        if throttle.wait_ms(self._now_ms()):
            self._plan.hold(key)
            self._held_by.add(throttle)
            self._held_until = self._held_until or self._now_ms()

    def _release(self) -> None:
        """Has partitions asked for again that were held back, once there is an allowance."""
        now_ms = self._now_ms()
        assert self._held_until is not None, "nothing is held back"
        if now_ms < self._held_until:
            return
        throttles = self._node.replicas.throttles
        if not throttles.followed:
            self._held_by.discard(throttles.follower)
        wait_ms = min((each.wait_ms(now_ms) for each in self._held_by), default=0)
        if wait_ms:
            # Not for long at once: the rate may be another by then.
            self._held_until = now_ms + min(wait_ms, LONGEST_HOLD_MS)
        else:
            # Whoever is held by a throttle that has nothing left is held again by its next answer.
            self._held_until = None
            self._held_by.clear()
            self._plan.release()

    def _not_appended(
        self, key: Key, partition: Partition, state: FollowerState, error: KafkaError
    ) -> None:
        node = self._node
        if partition.log.failure is None:
            # Damaged on its way, or no room for it: both may pass.
            state.corrupt()
            self._plan.pause(key, state, self._now_ms())
            if state.failures > 1:
                return
        else:
            state.failed()
        text = f"cannot append what broker {self._leader_id} sent: {error}"
        node.note(EventKind.FOLLOWER_FAILED, repr(partition), text)

    # ---- truncation ----

    def _begin_truncation(self, truncations: list[Truncation]) -> None:
        """Those that still follow as they did; from here on their roles cannot change."""
        by_home: dict[LogDir, list[Truncation]] = {}
        for each in truncations:
            home = self._node.replicas.home(each.partition)
            current = each.partition.follower is each.state
            if home is not None and current and each.partition not in self._truncating:
                by_home.setdefault(home, []).append(each)
        for home, them in by_home.items():
            task = self._node.tasks.spawn(self._truncate_in(home, them), name="truncation")
            for each in them:
                self._truncating[each.partition] = task
            task.add_done_callback(lambda _, them=them: self._end_truncation(them))  # type: ignore[misc]

    def _end_truncation(self, truncations: list[Truncation]) -> None:
        for each in truncations:
            self._truncating.pop(each.partition, None)
        self._news.set()

    async def _truncate_in(self, home: LogDir, truncations: list[Truncation]) -> None:
        offsets = {each.partition.log: each.step.offset for each in truncations}
        wholly = {each.partition.log for each in truncations if isinstance(each.step, StartAnew)}
        ends = {each.partition: each.partition.log.end_offset for each in truncations}
        try:
            failed = await home.truncate_all(offsets, self._node.world.clock.now(), wholly)
        except KafkaError as error:
            failed = dict.fromkeys(offsets, error)
        for partition, state, step in truncations:
            if (reason := failed.get(partition.log)) is not None:
                self._not_truncated(partition, state, reason)
                continue
            self._note_truncation(partition, step, ends[partition])
            if partition.follower is state:  # else it has gone: roles wait for truncations
                partition.truncated()
            self._plan.changed(Key(partition.topic_id, partition.index))

    def _not_truncated(self, partition: Partition, state: FollowerState, error: KafkaError) -> None:
        if partition.log.failure is None:
            state.truncated(
                partition.log.start_offset, partition.log.end_offset, partition.log.epochs.latest
            )
            state.corrupt()
            key = Key(partition.topic_id, partition.index)
            if self.partitions.get(key) is partition:
                self._plan.pause(key, state, self._now_ms())
        else:
            state.failed()
        self._node.note(EventKind.FOLLOWER_FAILED, repr(partition), f"cannot be truncated: {error}")

    def _note_truncation(
        self, partition: Partition, step: Truncate | StartAnew, end_offset: int
    ) -> None:
        node = self._node
        if step.lost:
            node.counters.records_lost += step.lost
            text = (
                f"offsets {step.offset} to {step.offset + step.lost - 1} were committed and are "
                f"not in the log of its new leader, broker {self._leader_id}"
            )
            node.note(EventKind.LOG_TRUNCATED_BELOW_HIGH_WATERMARK, repr(partition), text)
        elif step.offset < end_offset:
            text = f"truncated from {end_offset} to {step.offset}, as its leader has it"
            node.note(EventKind.FOLLOWER_TRUNCATED, repr(partition), text)

    async def _find_bounds(self, key: Key, partition: Partition, state: FollowerState) -> None:
        """Asks where the leader's log begins and ends, for the own end is outside of it."""
        try:
            start = await self._offset(partition, state, EARLIEST)
            end = await self._offset(partition, state, LATEST)
        except (ClientError, KafkaError) as error:
            code = getattr(error, "code", ErrorCode.NETWORK_EXCEPTION)
            state.no_bounds(code)
        else:
            step = state.on_bounds(Bounds(start, end))
            if isinstance(step, Truncate | StartAnew):
                self._begin_truncation([Truncation(partition, state, step)])
        if self.partitions.get(key) is partition and partition.follower is state:
            if state.failures and state.fetches:
                self._plan.pause(key, state, self._now_ms())
            self._plan.changed(key)
        self._news.set()

    async def _offset(self, partition: Partition, state: FollowerState, timestamp: int) -> int:
        connection = await self._node.channels.connection(self._leader_id, "offsets")
        response = await connection.request(
            ListOffsetsRequest(
                replica_id=self._node.id,
                topics=[
                    ListOffsetsTopic(
                        name=partition.topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=partition.index,
                                current_leader_epoch=state.leader_epoch,
                                timestamp=timestamp,
                            )
                        ],
                    )
                ],
            ),
            ListOffsetsResponse,
        )
        for topic in response.topics:
            for answer in topic.partitions:
                if answer.error_code:
                    raise KafkaError(error_code(answer.error_code))
                if answer.offset >= 0:
                    return answer.offset
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the leader did not say")

    # ---- progress ----

    def _tell_progress(self, now_ms: int) -> None:
        """Says how far replicas have come that have long to go."""
        self._told_ms = now_ms
        for partition in self.partitions.values():
            state = partition.follower
            if state is not None and state.state is State.CATCHING_UP and state.lag > 0:
                whole = max(state.leader_high_watermark - state.first_end, 1)
                done = 100 * (state.end_offset - state.first_end) // whole
                text = f"{state.lag} records behind broker {self._leader_id}, {done}% caught up"
                self._node.note(EventKind.FOLLOWER_CATCHING_UP, repr(partition), text)


def _is_small(response: FetchResponse) -> bool:
    """Whether an answer may be taken in one turn of the loop."""
    if response.error_code:
        return False
    count = size = 0
    for topic in response.responses:
        for data in topic.partitions:
            count += 1
            size += len(data.records or b"")  # type: ignore[arg-type]
    return count <= AT_ONCE and size <= AT_ONCE_BYTES


def _told(data: PartitionData) -> Told:
    diverging = data.diverging_epoch
    return Told(
        error_code(data.error_code) if data.error_code else ErrorCode.NONE,
        data.high_watermark,
        data.log_start_offset,
        EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
    )
