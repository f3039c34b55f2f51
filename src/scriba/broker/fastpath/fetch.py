"""The fast path of Fetch: whole requests, from their bytes to the bytes of the answer.

It takes the usual good request of a consumer, be it for one partition or for hundreds, with an
incremental session or without, in four steps:

1. One walk over the frame finds each topic, partition and offset (`wire.locator`); nothing is
   decoded.
2. What is asked for is looked up: partitions in tables of their topics, those of a session in the
   session, with what this request changes of it.
3. The logs are read, one after the other, within the limits of the request. Of most there is
   nothing new, which the high watermark tells.
4. The session takes note, and the answer is packed from templates (`wire.template`); small records
   are read straight to their place in it.

A request that finds too little waits as a callback on the watermarks of its partitions, without a
task, and is read again from step 3 on.

Nothing has changed before the fourth step. Until then a request with anything unusual in any of its
partitions is left to its handler: a leader elsewhere or in another epoch, an offset that does not
exist, records that are not in memory, a partition that is named twice, a replica that fetches, a
session that begins or ends. What becomes unusual while it waits goes on in the handler as well,
with the session as it is and what is left of the time. The bytes that the handler answers and those
of the fast path are the same.

What is known of topics is forgotten when some topic or replica goes away; whether a partition leads
is asked each time.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.broker.fastpath import records
from scriba.broker.handlers.records import fetch
from scriba.broker.handlers.records.isolation import READ_COMMITTED, READ_UNCOMMITTED
from scriba.broker.net.answers import Parked, Parts, Region
from scriba.broker.net.connection import Promise
from scriba.broker.partitions.fetch_sessions import NO_TOPIC_ID, Key, Plan, Watched
from scriba.errors import KafkaError
from scriba.native import implementation
from scriba.storage.results import EMPTY, Empty, Slice
from scriba.wire.frame import RequestHeader, decode_request_header
from scriba.wire.locator import plan
from scriba.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from scriba.wire.schema import first_version
from scriba.wire.template import Packer, beginning_packer, packer
from scriba.wire.varint import write_uvarint

if TYPE_CHECKING:
    from scriba.broker.fastpath.ports import FetchFastPathHost
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.net.connection import Connection
    from scriba.broker.partitions.fetch_sessions import Session
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.request import Context
    from scriba.storage.producers.state import AbortedTxn

NO_SESSION: Final = -1
"""The epoch of a request that neither has a session nor wants one."""

_FIELDS: Final = frozenset(
    {
        "replica_id",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "isolation_level",
        "session_id",
        "session_epoch",
        "topics.topic",
        "topics.topic_id",
        "topics.partitions.partition",
        "topics.partitions.current_leader_epoch",
        "topics.partitions.fetch_offset",
        "topics.partitions.last_fetched_epoch",
        "topics.partitions.log_start_offset",
        "topics.partitions.partition_max_bytes",
        "forgotten_topics_data",
        "forgotten_topics_data.topic",
        "forgotten_topics_data.topic_id",
        "forgotten_topics_data.partitions",
    }
)
TOPICS_AT: Final = 9
"""Where topics begin in what a plan tells: behind the correlation id, the first seven of the fields
above, and the number of topics."""
PARTITIONS_AT: Final = 3
"""Where partitions begin in what is told of a topic: behind begin and end of its name or id, and
their number."""
COUNT_AT: Final = TOPICS_AT + PARTITIONS_AT - 1
"""Where the number of the first topic's partitions is."""
PER_PARTITION: Final = 6
"""Numbers of each: its index, and the five behind it in the fields above. Of a partition that is
forgotten there is its index alone."""
ONE_PARTITION: Final = TOPICS_AT + PARTITIONS_AT + PER_PARTITION + 1
"""Of how many numbers a plan tells where one partition is named, and none forgotten."""

_PACKED: Final = ("partition_index", "high_watermark", "last_stable_offset", "log_start_offset")
_INT32: Final = struct.Struct(">i")

Resume = Callable[
    ["Connection", RequestHeader, FetchRequest, Callable[["Context"], Awaitable[FetchResponse]]],
    Awaitable[Parts | None],
]
"""Has a request that has begun answered as its handler's are."""


class Topic(NamedTuple):
    """A topic and its partitions here."""

    head: bytes
    """Its name or its id, as it is in an answer."""
    name: str
    partitions: dict[int, Partition]
    beginnings: dict[bool, tuple[Packer, int]]
    """What packs an answer up to the records of a single partition, and the size of that, for
    readers of what is committed and for others."""


Name = bytes | str
"""How a version names topics: by their ids, or by their names."""
Wanted = tuple[Topic, "Partition", int, int, int, Watched | None]
"""A partition that is asked for, the offset, the leader's epoch, the most bytes, and what is known
of it in a session."""


class Exhausted(enum.Enum):
    NO_BYTES_LEFT = enum.auto()


NO_BYTES_LEFT: Final = Exhausted.NO_BYTES_LEFT
"""Partitions before it took all the bytes that a request may have: it was not read."""


class PartlyAborted(NamedTuple):
    """Records, and the transactions among them that a reader of what is committed leaves out."""

    records: Slice
    transactions: list[AbortedTxn]


Found = Slice | Empty | Exhausted | PartlyAborted


def size_of(found: Found) -> int:
    if type(found) is Slice:
        return found.size
    return found.records.size if type(found) is PartlyAborted else 0


class Changes:
    """What a request changes in its session."""

    __slots__ = ("added", "forgotten", "named")

    def __init__(self) -> None:
        self.named: dict[Watched, int] = {}
        """Partitions whose offset or limits are told, and where."""
        self.added: dict[Key, Watched] = {}
        self.forgotten: set[Key] = set()


_NONE: Final = Changes()


class FetchFastPath:
    """Fetch in one version, which decides how topics are named and what is told of a partition."""

    __slots__ = (
        "_aborted_at",
        "_after",
        "_api",
        "_by_id",
        "_departures",
        "_end",
        "_ends",
        "_flexible",
        "_header_tags",
        "_most_bytes",
        "_most_elements",
        "_no_records",
        "_no_session",
        "_node",
        "_pack",
        "_pack_aborted",
        "_pack_committed",
        "_pack_head",
        "_plan",
        "_resume",
        "_tags",
        "_topics",
        "_version",
    )

    def __init__(
        self, node: FetchFastPathHost, api: ApiEntry, resume: Resume, version: int
    ) -> None:
        self._node = node
        self._api = api
        self._resume = resume
        self._version = version
        self._plan = plan(FetchRequest, version, _FIELDS)
        self._most_bytes = api.limits.bytes_at_once
        self._most_elements = api.limits.at_once
        self._by_id = version >= first_version(FetchTopic, "topic_id")
        self._topics: dict[Name, Topic] = {}
        self._departures = node.departures
        self._flexible = flexible = version in FetchResponse.FLEXIBLE
        self._tags = bytes(flexible)
        """The tagged fields of a structure that has none."""
        self._header_tags = bytes(version >= api.tagged_from)
        self._pack = packer(PartitionData, version, flexible, _PACKED, _records(None))
        self._pack_committed = packer(PartitionData, version, flexible, _PACKED, _records([]))
        self._pack_head = packer(FetchResponse, version, flexible, ("session_id",))
        names = ("producer_id", "first_offset")
        self._pack_aborted = packer(AbortedTransaction, version, flexible, names)
        before_aborted = packer(PartitionData, version, flexible, (), until="aborted_transactions")
        self._aborted_at = len(before_aborted())
        self._ends = -len(self._count(0) + self._tags)
        """Where a structure ends whose last field is empty, counted from its end: an answer without
        topics, a partition without records."""
        self._no_session = self._session_head(0)
        self._after = self._tags + self._tags
        """What ends the last topic, and the answer."""
        self._end = self._tags + self._after
        """What is behind the records of the last partition."""
        self._no_records = self._count(0) + self._end

    def take(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """The answer; None where the request has to go to its handler: nothing has changed."""
        node = self._node
        if len(frame) > self._most_bytes or not (
            (node.departures == self._departures and node.fast_paths and node.access.open)
            or self._is_open()
        ):
            return None
        located = implementation.chosen.locate(self._plan, frame, self._most_elements)
        if located is None:
            return None
        replica_id, wait_ms, min_bytes, max_bytes, isolation, id, epoch, topics = located[
            1:TOPICS_AT
        ]
        # Replicas tell who they are in a tagged field from version 15 on: that is not located.
        if (
            replica_id != fetch.CONSUMER
            or not READ_UNCOMMITTED <= isolation <= READ_COMMITTED
            or max_bytes < 0
        ):
            return None
        if len(located) == ONE_PARTITION and topics == 1 == located[COUNT_AT] and not id:
            return self._take_one(frame, located) if epoch == NO_SESSION else None
        session = changes = None
        if id:
            session = node.fetch_sessions.at_epoch(id, epoch, self._by_id)
            if session is None:
                return None
            changes = self._changes(session, frame, located)
            items = (*session.watched.values(), *changes.added.values())
            if len(items) > self._most_elements:
                return None
            wanted = self._watched(items, changes, located)
        else:
            wanted = self._named(frame, located) if epoch == NO_SESSION else None
        if not wanted:
            return None
        committed_only = isolation == READ_COMMITTED
        found = self.read(wanted, max_bytes, committed_only)
        if found is None:
            return None
        if session is not None and changes is not None:
            for item, at in changes.named.items():
                _follow(item.asked, located, at)
            node.fetch_sessions.follow(
                session, changes.added, changes.forgotten, connection.last_active
            )
        self._api.count += 1
        node.counters.fastpath_fetches += 1
        if wait_ms > 0 and sum(map(size_of, found)) < min_bytes:
            return DelayedFetch(self, frame.tobytes(), located, session, wanted)
        return self.answer(located[0], session, wanted, found, committed_only)

    def _take_one(self, frame: memoryview, located: list[int]) -> Parts | Parked | None:
        """As `take` for a single partition without a session."""
        begin, end, _, index, epoch, offset, last_epoch, _, most, _ = located[TOPICS_AT:]
        name = frame[begin:end]
        topic = self._topic(bytes(name) if self._by_id else str(name, "ascii"))
        if topic is None:
            return None
        partition = topic.partitions.get(index) or self._partition(topic, index)
        if partition is None or last_epoch >= 0 or most < 0:
            return None
        node = self._node
        correlation_id, _, wait_ms, min_bytes, max_bytes, isolation = located[:6]
        committed_only = isolation == READ_COMMITTED
        most_bytes = node.settings.fetch_max_bytes
        left = max_bytes if max_bytes < most_bytes else most_bytes
        if not self._is_there(partition, offset, epoch):
            return None
        found = self._read(partition, offset, most, left, committed_only, True)
        if found is None:
            return None
        self._api.count += 1
        node.counters.fastpath_fetches += 1
        wanted: Wanted = (topic, partition, offset, epoch, most, None)
        if wait_ms > 0 and size_of(found) < min_bytes:
            return DelayedFetch(self, frame.tobytes(), located, None, [wanted])
        if type(found) is PartlyAborted:
            return self.answer(correlation_id, None, [wanted], [found], committed_only)
        return self._answer_one(correlation_id, topic, partition, found, committed_only)

    def _is_open(self) -> bool:
        """Whether requests may be taken at all; forgets what may have changed with the cluster."""
        node = self._node
        if node.departures != self._departures:
            self.forget()
            self._departures = node.departures
        return node.fast_paths and node.access.open

    def forget(self) -> None:
        """Lets go of all partitions."""
        self._topics.clear()

    # ---- what is asked for ----

    def _topic(self, named: Name) -> Topic | None:
        topic = self._topics.get(named)
        if topic is None:
            name = self._node.topic_name(named) if isinstance(named, bytes) else named
            if name is None or name not in self._node.image.topics_by_name:
                return None
            topic = self._topics[named] = Topic(self._topic_head(named), name, {}, {})
        return topic

    def _partition(self, topic: Topic, index: int) -> Partition | None:
        partition = topic.partitions.get(index)
        if partition is None:
            partition = self._node.replicas.get(topic.name, index)
            if partition is not None:
                topic.partitions[index] = partition
        return partition

    def _named(self, frame: memoryview, located: list[int]) -> list[Wanted] | None:
        """The partitions of a request without a session; None where one is named twice."""
        wanted: list[Wanted] = []
        begin = TOPICS_AT
        for _ in range(located[TOPICS_AT - 1]):
            name = frame[located[begin] : located[begin + 1]]
            topic = self._topic(bytes(name) if self._by_id else str(name, "ascii"))
            if topic is None:
                return None
            partitions = topic.partitions
            end = begin + PARTITIONS_AT + PER_PARTITION * located[begin + 2]
            for at in range(begin + PARTITIONS_AT, end, PER_PARTITION):
                index, epoch, offset, last_epoch, _, most = located[at : at + PER_PARTITION]
                partition = partitions.get(index) or self._partition(topic, index)
                if partition is None or last_epoch >= 0 or most < 0:
                    return None
                wanted.append((topic, partition, offset, epoch, most, None))
            begin = end
        if len(wanted) > 1 and len({partition for _, partition, *_ in wanted}) < len(wanted):
            return None
        return wanted

    def _changes(self, session: Session, frame: memoryview, located: list[int]) -> Changes:
        changes = Changes()
        at = TOPICS_AT
        for _ in range(located[at - 1]):
            names = self._names(self._name(frame, located, at))
            count = located[at + 2]
            at += PARTITIONS_AT
            for _ in range(count):
                key = (*names, located[at])
                item = session.watched.get(key) or changes.added.get(key)
                if item is None:
                    item = Watched(*names, FetchPartition(partition=located[at]))
                    changes.added[key] = item
                changes.named[item] = at
                at += PER_PARTITION
        at += 1
        for _ in range(located[at - 1]):
            names = self._names(self._name(frame, located, at))
            count = located[at + 2]
            at += PARTITIONS_AT
            for index in located[at : at + count]:
                changes.forgotten.add((*names, index))
            at += count
        return changes

    def _watched(
        self, items: Iterable[Watched], changes: Changes, located: list[int]
    ) -> list[Wanted] | None:
        """Partitions of a session, as they are asked for when it has taken note of the changes."""
        wanted: list[Wanted] = []
        named, forgotten = changes.named, changes.forgotten
        by_id = self._by_id
        for item in items:
            if forgotten and item.key in forgotten:
                continue
            asked = item.asked
            at = named.get(item)
            if at is None:
                epoch, offset = asked.current_leader_epoch, asked.fetch_offset
                last_epoch, most = asked.last_fetched_epoch, asked.partition_max_bytes
            else:
                _, epoch, offset, last_epoch, _, most = located[at : at + PER_PARTITION]
            topic = self._topic(item.topic_id if by_id else item.topic)
            if topic is None or last_epoch >= 0 or most < 0:
                return None
            index = asked.partition
            partition = topic.partitions.get(index) or self._partition(topic, index)
            if partition is None:
                return None
            wanted.append((topic, partition, offset, epoch, most, item))
        return wanted

    def _name(self, frame: memoryview, located: list[int], at: int) -> Name:
        span = frame[located[at] : located[at + 1]]
        return bytes(span) if self._by_id else str(span, "ascii")

    def _names(self, name: Name) -> tuple[bytes, str]:
        """A topic's id and name, of which a version has one."""
        return (name, "") if isinstance(name, bytes) else (NO_TOPIC_ID, name)

    # ---- reading ----

    def read(
        self, wanted: list[Wanted], max_bytes: int, committed_only: bool
    ) -> list[Found] | None:
        """What there is of each partition; None: not plain.

        Nothing is read before all can be: what was read once is found faster, and ends elsewhere.
        """
        for _, partition, offset, epoch, _, _ in wanted:
            if not self._is_there(partition, offset, epoch):
                return None
        left = min(max_bytes, self._node.settings.fetch_max_bytes)
        found: list[Found] = []
        first = True
        for _, partition, offset, _, most, _ in wanted:
            one = self._read(partition, offset, most, left, committed_only, first)
            if one is None:
                return None
            if one is not EMPTY and one is not NO_BYTES_LEFT:
                left -= size_of(one)
                first = False
            found.append(one)
        return found

    def _is_there(self, partition: Partition, offset: int, epoch: int) -> bool:
        leader = partition.leader
        if leader is None:
            self.forget()  # another one may be in its place
            return False
        log = partition.log
        return (epoch < 0 or epoch == leader.leader_epoch) and (
            log.start_offset <= offset <= log.end_offset
        )

    def _read(
        self,
        partition: Partition,
        offset: int,
        most: int,
        left: int,
        committed_only: bool,
        first: bool,
    ) -> Found | None:
        """What there is of a partition, within what is left of the bytes; None: not plain."""
        if left <= 0 and not first:
            return NO_BYTES_LEFT
        bound = partition.readable(committed_only).value
        if offset >= bound:
            return EMPTY
        log = partition.log
        try:
            one = log.read(offset, most if most < left else left, bound, first)
            if type(one) is Slice:
                if committed_only:
                    aborted = log.aborted_transactions(offset, bound, one)
                    if aborted:
                        return PartlyAborted(one, aborted)
                return one
        except KafkaError:
            return None
        return EMPTY if one is EMPTY else None

    # ---- answers ----

    def answer(
        self,
        correlation_id: int,
        session: Session | None,
        wanted: list[Wanted],
        found: list[Found],
        committed_only: bool,
    ) -> Parts:
        """Tells of all partitions, or of those of which a session has to hear."""
        pack_found = self._pack_committed if committed_only else self._pack
        last: Topic | None = None
        topics: list[tuple[Topic, int]] = []
        counts: list[int] = []
        pieces: list[records.Piece] = [b"", b""]
        copied = total = 0
        for (topic, partition, _, _, _, item), one in zip(wanted, found, strict=True):
            high_watermark = partition.high_watermark.value
            start_offset = partition.log.start_offset
            size = 0 if one is EMPTY else size_of(one)
            if session is not None and item is not None:
                if not item.hears(high_watermark, start_offset, size > 0):
                    continue
                if size:
                    session.answered(item)
            if topic is not last:
                last = topic
                topics.append((topic, len(pieces)))
                counts.append(0)
                pieces.append(b"")
            counts[-1] += 1
            pack = self._pack if one is NO_BYTES_LEFT else pack_found
            stable_offset = partition.stable_offset.value
            data = pack(partition.index, high_watermark, stable_offset, start_offset)
            if not size:
                pieces.append(data)
                continue
            if type(one) is PartlyAborted:
                data = self._with_aborted(data, one.transactions)
                one = one.records
            assert type(one) is Slice
            total += size
            batches = records.read_small(one, copied)
            if type(batches) is memoryview:
                copied += size
            pieces += (data[: self._ends], self._count(size), batches, self._tags)
        before = b""
        for (topic, at), count in zip(topics, counts, strict=True):
            pieces[at] = before + topic.head + self._count(count)
            before = self._tags
        pieces.append(self._after if topics else self._tags)
        head = self._no_session if session is None else self._session_head(session.id)
        pieces[1] = head + self._count(len(topics))
        self._node.counters.topic_bytes_out += total
        return records.parts(pieces, correlation_id)

    def _answer_one(
        self,
        correlation_id: int,
        topic: Topic,
        partition: Partition,
        found: Found,
        committed_only: bool,
    ) -> Parts:
        """As `answer` for a single partition without a session."""
        pack, size = topic.beginnings.get(committed_only) or self._beginning(topic, committed_only)
        index, log = partition.index, partition.log
        high_watermark, stable_offset = (
            partition.high_watermark.value,
            partition.stable_offset.value,
        )
        if type(found) is not Slice:
            end = self._no_records
            length = size + len(end)
            told = pack(
                length, correlation_id, index, high_watermark, stable_offset, log.start_offset
            )
            return (told + end,)
        bytes_found = found.size
        self._node.counters.topic_bytes_out += bytes_found
        count = write_uvarint(bytes_found + 1) if self._flexible else _INT32.pack(bytes_found)
        end = self._end
        length = size + len(count) + bytes_found + len(end)
        told = pack(length, correlation_id, index, high_watermark, stable_offset, log.start_offset)
        batches = records.read_small(found, 0)
        if isinstance(batches, Region):
            return told + count, batches, end
        return (b"".join((told, count, batches, end)),)

    def _beginning(self, topic: Topic, committed_only: bool) -> tuple[Packer, int]:
        before = self._no_session + self._count(1) + topic.head + self._count(1)
        empty = _records([] if committed_only else None)
        pack = beginning_packer(
            before, PartitionData, self._version, self._flexible, _PACKED, empty, "records"
        )
        made = topic.beginnings[committed_only] = pack, len(pack(0, 0, 0, 0, 0, 0)) - _INT32.size
        return made

    def _with_aborted(self, data: bytes, transactions: list[AbortedTxn]) -> bytes:
        """What is told of a partition, with these in place of none."""
        at = self._aborted_at
        told = [self._pack_aborted(each.producer_id, each.first_offset) for each in transactions]
        none = len(self._count(0))
        return data[:at] + self._count(len(told)) + b"".join(told) + data[at + none :]

    def _count(self, count: int) -> bytes:
        return write_uvarint(count + 1) if self._flexible else _INT32.pack(count)

    def _session_head(self, session_id: int) -> bytes:
        """An answer up to its topics."""
        return self._header_tags + self._pack_head(session_id)[: self._ends]

    def _topic_head(self, named: Name) -> bytes:
        """A topic as it is in an answer, up to the number of its partitions."""
        topic_id, name = self._names(named)
        response = FetchResponse(responses=[FetchableTopicResponse(topic=name, topic_id=topic_id)])
        out = bytearray()
        response.encode_into(out, self._version)
        before = len(self._pack_head(0)[: self._ends] + self._count(1))
        return bytes(out[before : len(out) - len(self._count(0) + self._tags + self._tags)])

    # ---- what has to wait ----

    def again(self, delayed: DelayedFetch) -> list[Found] | None:
        """What a request that waited finds; None: its handler goes on with it."""
        node, session = self._node, delayed.session
        if node.departures != self._departures or not node.access.open or not node.fast_paths:
            return None
        if session is not None:
            # Another connection may have gone on with the session.
            wanted = self._watched(delayed.items, _NONE, [])
            if wanted is None:
                return None
            delayed.wanted = wanted
        return self.read(delayed.wanted, delayed.max_bytes, delayed.committed_only)

    def hand_over(
        self, delayed: DelayedFetch, connection: Connection, wait_ms: float
    ) -> Awaitable[Parts | None]:
        """Has the handler go on with a request, with what is left of its time."""
        node, session = self._node, delayed.session
        header, start = decode_request_header(delayed.frame)
        request, _ = FetchRequest.decode_from(delayed.frame, start, self._version)
        # It is never encoded, so that this need not be whole milliseconds.
        request.max_wait_ms = wait_ms  # type: ignore[assignment]
        if session is not None:
            plan = Plan(session, session.id, incremental=True, watched=delayed.items)
        else:
            plan = node.fetch_sessions.plan(request, self._by_id, connection.last_active)
        return self._resume(
            connection, header, request, lambda ctx: fetch.resume(node, ctx, request, plan)
        )


class DelayedFetch(Promise):
    """A Fetch that found too little, until a watermark has moved or its time is up."""

    __slots__ = (
        "_correlation_id",
        "_deadline",
        "_least",
        "_moved",
        "_over",
        "_path",
        "_timer",
        "_wait_ms",
        "committed_only",
        "frame",
        "items",
        "max_bytes",
        "session",
        "wanted",
    )

    _deadline: float
    _moved: asyncio.Future[None]
    _timer: asyncio.TimerHandle

    def __init__(
        self,
        path: FetchFastPath,
        frame: bytes,
        located: list[int],
        session: Session | None,
        wanted: list[Wanted],
    ) -> None:
        super().__init__()
        self._path = path
        self._correlation_id, _, self._wait_ms, self._least, self.max_bytes, isolation = located[:6]
        self.committed_only = isolation == READ_COMMITTED
        self.frame = frame
        self.session = session
        self.wanted = wanted
        self.items = [item for *_, item in wanted if item is not None]
        self._over = False

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._wait_ms / 1000
        self._deadline = loop.time() + seconds
        self._timer = loop.call_later(seconds, self._out_of_time)
        self._watch()

    def abandon(self) -> None:
        self._over = True
        self._timer.cancel()
        self._moved.cancel()

    def _watch(self) -> None:
        self._moved = moved = asyncio.get_running_loop().create_future()
        moved.add_done_callback(self._look)
        for _, partition, *_ in self.wanted:
            readable = partition.readable(self.committed_only)
            readable.watch(readable.value + 1, moved)

    def _look(self, moved: asyncio.Future[None]) -> None:
        if self._over:
            return
        found = None if moved.exception() is not None else self._path.again(self)
        if found is not None and sum(map(size_of, found)) < self._least:
            self._watch()
        else:
            self._timer.cancel()
            self._end(found)

    def _out_of_time(self) -> None:
        if not self._over:
            self._end(self._path.again(self))
            self._moved.cancel()

    def _end(self, found: list[Found] | None) -> None:
        self._over = True
        connection = self.connection
        if found is None:
            left = self._deadline - asyncio.get_running_loop().time()
            rest = self._path.hand_over(self, connection, max(left * 1000, 0))
            connection.keep(self, Parked(rest))
            return
        try:
            parts = self._path.answer(
                self._correlation_id, self.session, self.wanted, found, self.committed_only
            )
        except OSError:
            connection.close()
        else:
            connection.keep(self, parts)


def _records(aborted: list[int] | None) -> dict[str, object]:
    return {"records": b"", "aborted_transactions": aborted}


def _follow(asked: FetchPartition, located: list[int], at: int) -> None:
    """Takes what a request tells of a partition behind its index."""
    (
        asked.current_leader_epoch,
        asked.fetch_offset,
        asked.last_fetched_epoch,
        asked.log_start_offset,
        asked.partition_max_bytes,
    ) = located[at + 1 : at + PER_PARTITION]
