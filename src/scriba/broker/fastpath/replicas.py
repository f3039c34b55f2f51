"""The fast path of a follower's Fetch that goes on with its session, from its bytes to the answer.

A follower sends the same request again and again. All that differs is the correlation id, the epoch
of the session, and what is told of the partitions that have moved. So the bytes before and behind
these are compared with those of an earlier request, which its handler has answered, and the numbers
between them are unpacked. Nothing is decoded. What is looked at, what counts, and what is told is
up to the handler's own functions (`handlers.records.replica_fetch`): here is only how a request
is read, how it waits, and how its answer is written.

Nothing has changed before the session goes on. Until then a request with anything unusual is left
to its handler: a session that begins, ends or is not known, a partition that joins or leaves it, a
broker in another epoch, tagged fields. Afterwards an error or a divergence is told as the handler
does, and what has to wait for the device or for a throttle waits in the handler.

It waits as one entry among the deadlines of all requests, without a timer of its own: a follower
fetches as often as there is something to write.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.fastpath import records
from scriba.broker.handlers.brokers import acts_as_broker
from scriba.broker.handlers.records import replica_fetch
from scriba.broker.handlers.records.replica_fetch import DelayedReplicaFetch, Look
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.connection import Promise
from scriba.broker.net.large_requests import AT_ONCE
from scriba.broker.partitions.replication.follower_sessions import INITIAL_EPOCH
from scriba.storage.results import Slice
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from scriba.wire.template import Packer, layout, packer
from scriba.wire.varint import write_uvarint

if TYPE_CHECKING:
    from scriba.broker.fastpath.ports import ReplicaFetchFastPathHost
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.net.connection import Connection
    from scriba.broker.partitions.replication.follower_sessions import Followed, FollowerSession
    from scriba.broker.request import Context
    from scriba.wire.schema import Message

MOST_BYTES: Final = 1 << 14
"""A larger request is decoded, in slices if it has to be."""

MOST_COUNTED: Final = 126
"""Elements of an array whose number takes one byte."""

_START: Final = struct.Struct(">hhi")
_INT32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">ii")
_TOPIC_ID: Final = 16
_MARK: Final = 0x5A17C0DE
_PACKED: Final = ("partition_index", "high_watermark", "last_stable_offset", "log_start_offset")
_NONE: Final = b"\x01"
"""An array without elements."""
_ONE: Final = b"\x02"
_NO_TAGS: Final = b"\x00"
_END: Final = _NO_TAGS * 3
"""What is behind the records of the last partition: it ends there, its topic, and the answer."""

Numbers = tuple[int, int, int, int, int, int, int]
"""Of a partition in a request: those of `FetchPartition` in their order, and no tagged fields."""


class General(Protocol):
    """The general path, for answers that are not as most are."""

    def encode(
        self, api: ApiEntry, ctx: Context, answer: Message, correlation_id: int
    ) -> Parts | Parked: ...

    def complete(
        self,
        promise: Promise,
        api: ApiEntry,
        ctx: Context,
        response: Message,
        correlation_id: int,
    ) -> None: ...


def learn(
    general: General,
    node: ReplicaFetchFastPathHost,
    api: ApiEntry,
    ctx: Context,
    frame: memoryview,
    start: int,
    request: FetchRequest,
) -> ReplicaFetchFastPath | None:
    """Takes a request for the pattern of those that follow it; `start` is where its body does."""
    epoch = request.session_epoch
    if (
        epoch <= INITIAL_EPOCH
        or len(frame) > MOST_BYTES
        or request.forgotten_topics_data
        or ctx.version < replica_fetch.FIRST_WITH_BROKER_EPOCH
        or not acts_as_broker(node, ctx)
    ):
        return None
    topics = request.topics
    request.topics, request.session_epoch = [], _MARK
    pattern = bytearray(frame[:start])
    request.encode_into(pattern, ctx.version)
    request.topics, request.session_epoch = topics, epoch
    parts = bytes(pattern).split(_INT32.pack(_MARK) + _NONE)
    if len(parts) != 2:
        return None
    path = ReplicaFetchFastPath(general, node, api, ctx, request, *parts)
    return path if path.located(frame.tobytes()) is not None else None


class ReplicaFetchFastPath:
    """The fetches of one follower's session, on its connection."""

    __slots__ = (
        "_after",
        "_api",
        "_before",
        "_ctx",
        "_general",
        "_head",
        "_node",
        "_pack",
        "_partition",
        "_replica",
        "_replica_epoch",
        "_session_id",
        "_topics_at",
        "request",
    )

    def __init__(
        self,
        general: General,
        node: ReplicaFetchFastPathHost,
        api: ApiEntry,
        ctx: Context,
        request: FetchRequest,
        before: bytes,
        after: bytes,
    ) -> None:
        version, state = ctx.version, request.replica_state
        self._general = general
        self._node = node
        self._api = api
        self._ctx = ctx
        self.request = FetchRequest(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            session_epoch=request.session_epoch,
        )
        """The limits that all of them have."""
        self._session_id = request.session_id
        self._replica, self._replica_epoch = state.replica_id, state.replica_epoch
        self._before = before
        """What a request begins with, up to the epoch of the session; the correlation id apart."""
        self._topics_at = len(before) + _INT32.size
        self._after = after
        """What comes behind the topics."""
        self._partition, self._pack, pack_head = _compiled(version)
        head = pack_head(request.session_id)
        none = len(_NONE + _NO_TAGS)
        self._head = bytes(version >= api.tagged_from) + head[:-none]
        """An answer up to its topics."""

    def take(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """The answer; None where the request has to go to its handler: nothing has changed."""
        node = self._node
        if len(frame) > MOST_BYTES or not node.fast_paths or not node.access.open:
            return None
        data = frame.tobytes()
        topics = self.located(data)
        if topics is None:
            return None
        epoch: int = _INT32.unpack_from(data, self._topics_at - _INT32.size)[0]
        sessions, replica = node.replicas.follower_sessions, self._replica
        session = sessions.at_epoch(replica, self._replica_epoch, self._session_id, epoch)
        broker = node.image.brokers.get(replica)
        if (
            session is None
            or session.anew
            or not session.counted
            or broker is None
            or broker.epoch != self._replica_epoch
        ):
            return None
        named = _named(session, topics)
        if named is None or len(named) + len(session.news) + len(session.moved) > AT_ONCE:
            return None
        self._api.count += 1
        node.counters.fastpath_replica_fetches += 1
        sessions.follow(session, connection.last_active)
        session.heard.ms = connection.now.mono_ms
        for followed, numbers in named:
            asked = followed.asked
            (
                _,
                asked.current_leader_epoch,
                asked.fetch_offset,
                asked.last_fetched_epoch,
                asked.log_start_offset,
                asked.partition_max_bytes,
                _,
            ) = numbers
            session.news[followed] = None
        request = self.request
        budget = min(request.max_bytes, node.settings.fetch_max_bytes)
        look = Look(session, request, budget, True)
        correlation_id: int = _INT32.unpack_from(data, 4)[0]
        try:
            replica_fetch.look_at_once(node, look, connection.now)
            if look.cold or not look.is_over:
                return WaitingReplicaFetch(self, look, correlation_id)
            return self.answer(look, correlation_id)
        except Exception as error:
            refusal = self.failure(error)
            return self._general.encode(self._api, self._ctx, refusal, correlation_id)

    # ---- reading a request ----

    def located(self, data: bytes) -> list[tuple[bytes, list[Numbers]]] | None:
        """What a request says of its partitions, by topic; None: it is not as the others are."""
        before, at, end = self._before, self._topics_at, len(data) - len(self._after)
        if (
            at >= end
            or data[:4] != before[:4]
            or not data.startswith(before[_START.size :], _START.size)
            or not data.endswith(self._after)
        ):
            return None
        topics: list[tuple[bytes, list[Numbers]]] = []
        layout = self._partition
        count = data[at] - 1
        at += 1
        if not 0 <= count <= MOST_COUNTED:
            return None
        for _ in range(count):
            first = at + _TOPIC_ID + 1
            if first >= end:
                return None
            partitions = data[first - 1] - 1
            stop = first + partitions * layout.size
            if not 0 <= partitions <= MOST_COUNTED or stop >= end or data[stop]:
                return None
            numbers: list[Numbers] = list(layout.iter_unpack(data[first:stop]))
            topics.append((data[at : at + _TOPIC_ID], numbers))
            at = stop + 1
        return topics if at == end else None

    # ---- answering ----

    def answer(self, look: Look, correlation_id: int) -> Parts | Parked:
        """The answer with what was found."""
        node = self._node
        topics: dict[bytes, list[tuple[bytes, Slice | None]]] = {}
        for found in look.answers.values():
            if type(found) is PartitionData:
                response = replica_fetch.respond(node, look)
                return self._general.encode(self._api, self._ctx, response, correlation_id)
        for followed, found in look.answers.items():
            assert not isinstance(found, PartitionData)
            partition = replica_fetch.to_tell_of(followed, found, False)
            if partition is None:
                continue
            told = self._pack(
                followed.index,
                followed.high_watermark,
                partition.stable_offset.value,
                followed.start_offset,
            )
            topic = topics.get(followed.topic_id)
            if topic is None:
                topic = topics[followed.topic_id] = []
            topic.append((told, found))
        replica_fetch.count_out(node, look)
        if len(topics) == 1:
            ((topic_id, partitions),) = topics.items()
            told, found = partitions[0]
            if len(partitions) == 1 and type(found) is Slice:
                return self._written_one(topic_id, told, found, correlation_id)
        return self._written(topics, correlation_id)

    def _written_one(
        self, topic_id: bytes, told: bytes, found: Slice, correlation_id: int
    ) -> Parts:
        """As `_written` for records of a single partition."""
        size = write_uvarint(found.size + 1)
        before = b"".join((self._head, _ONE, topic_id, _ONE, told, size))
        length = _INT32.size + len(before) + found.size + len(_END)
        return records.around(_HEAD.pack(length, correlation_id) + before, found, _END)

    def _written(
        self, topics: dict[bytes, list[tuple[bytes, Slice | None]]], correlation_id: int
    ) -> Parts:
        answer = records.Answer(correlation_id)
        pieces = answer.pieces
        pieces.append(self._head + write_uvarint(len(topics) + 1))
        for topic_id, partitions in topics.items():
            pieces.append(topic_id + write_uvarint(len(partitions) + 1))
            for told, found in partitions:
                if found is None:
                    pieces.append(told + _NONE + _NO_TAGS)
                else:
                    answer.add(told + write_uvarint(found.size + 1), found, _NO_TAGS)
            pieces.append(_NO_TAGS)
        pieces.append(_NO_TAGS)
        return answer.parts()

    def failure(self, error: Exception) -> FetchResponse:
        """What nobody expected, as the general path tells it."""
        self._api.errors += 1
        return replica_fetch.failed(self._node, error)

    # ---- waiting ----

    @property
    def node(self) -> ReplicaFetchFastPathHost:
        return self._node

    def complete(
        self, waiting: WaitingReplicaFetch, response: FetchResponse, correlation_id: int
    ) -> None:
        """What waits in the handler has come to an end there."""
        self._general.complete(waiting, self._api, self._ctx, response, correlation_id)


_NUMBERS: Final = (
    "partition",
    "current_leader_epoch",
    "fetch_offset",
    "last_fetched_epoch",
    "log_start_offset",
    "partition_max_bytes",
)


@cache
def _compiled(version: int) -> tuple[struct.Struct, Packer, Packer]:
    """A partition of a request; packers of one in an answer, up to its records, and of an answer
    without topics."""
    names, partition = layout(FetchPartition, version, True)
    assert names == _NUMBERS
    aborted: Mapping[str, None] = {"aborted_transactions": None}
    told = packer(PartitionData, version, True, _PACKED, aborted, until="records")
    return partition, told, packer(FetchResponse, version, True, ("session_id",))


def _named(
    session: FollowerSession, topics: list[tuple[bytes, list[Numbers]]]
) -> list[tuple[Followed, Numbers]] | None:
    """Partitions of the session that a request names; None where one is new, or has tags."""
    named: list[tuple[Followed, Numbers]] = []
    for topic_id, partitions in topics:
        for numbers in partitions:
            followed = session.followed.get((topic_id, numbers[0]))
            if followed is None or numbers[-1]:
                return None
            named.append((followed, numbers))
    return named


class WaitingReplicaFetch(Promise):
    """A fetch that found nothing, until there is news, the session's next request has come, or its
    time is up."""

    __slots__ = ("_correlation_id", "_later", "_look", "_path", "_woken", "due", "over")

    due: float

    def __init__(self, path: ReplicaFetchFastPath, look: Look, correlation_id: int) -> None:
        super().__init__(pipelined=True)
        self._path = path
        self._look = look
        self._correlation_id = correlation_id
        self._later: DelayedReplicaFetch | None = None
        self._woken = False
        self.over = False

    def begin(self) -> None:
        look = self._look
        look.counted = False
        look.session.waiter = self
        self._path.node.ack_deadlines.add(self, self._path.request.max_wait_ms)
        if look.cold or look.held_ms:
            self._leave_to_handler()
        elif look.session.missed or look.is_over:
            self.wake()

    def wake(self) -> None:
        """Looks again, once in a turn of the loop, however many call."""
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def expire(self) -> None:
        self.wake()

    def abandon(self) -> None:
        self._end()
        if self._later is not None:
            self._later.abandon()

    def _end(self) -> None:
        self.over = self._woken = True
        if self._look.session.waiter is self:
            self._look.session.waiter = None

    def _look_again(self) -> None:
        if self.over:
            return
        look, session, path = self._look, self._look.session, self._path
        leaves, answer = False, None
        try:
            if session.epoch == look.epoch:  # else the next request looks at what is new
                node = path.node
                now = node.world.clock.now()
                if now.mono_ms >= session.moved_due_ms:
                    session.tell_moved(now.mono_ms)
                leaves = len(session.news) > AT_ONCE
                if not leaves:
                    replica_fetch.look_at_once(node, look, now)
                    leaves = bool(look.cold or look.held_ms)
            if not leaves and (look.is_over or asyncio.get_running_loop().time() >= self.due):
                answer = path.answer(look, self._correlation_id)
        except Exception as error:
            self._end()
            self._complete(path.failure(error))
            return
        if leaves:
            self._leave_to_handler()
        elif answer is not None:
            self._end()
            self.connection.keep(self, answer)
        else:
            self._woken = False
            if session.missed:
                self.wake()

    def _leave_to_handler(self) -> None:
        """Has it wait for the device, for a throttle, or for much that has to be looked at."""
        self._end()
        self._later = DelayedReplicaFetch(self._path.node, self._look, self._path.request)
        self._later.go_on(self._complete, self.due)

    def _complete(self, response: FetchResponse) -> None:
        self._path.complete(self, response, self._correlation_id)
