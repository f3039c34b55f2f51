"""The fast path of Fetch: whole requests, from their bytes to the bytes of the answer.

It takes the usual good request of a consumer, be it for one partition or for hundreds, with an
incremental session or without, in four steps:

1. One walk over the frame finds each topic, partition and offset (`wire.locator`); nothing is
   decoded.
2. What is asked for is looked up: partitions by the order in which a request names them, those of a
   session in the session, with what this request changes of it.
3. Each partition is compared with how it was last found. Most are as they were, with nothing to
   read: what is told of these are the same bytes again. The others are read, one after the other,
   within the limits of the request.
4. The session takes note, and the answer is put together (`fastpath.records`).

A request that finds too little waits as a callback on the watermarks of its partitions, without a
task, and is read again from step 3 on.

Nothing has changed before the fourth step. Until then a request with anything unusual in any of its
partitions is left to its handler: a leader elsewhere or in another epoch, an offset that does not
exist, records that are not in memory, a partition that is named twice, a replica that fetches, a
session that begins or ends, a consumer that should read from a replica in its own rack. What
becomes unusual while it waits goes on in the handler as well, with the session as it is and what is
left of the time. The bytes that the handler answers and those of the fast path are the same.

What is known of topics is forgotten when some topic or replica goes away; whether a partition
leads, or is in sync with its leader and may be read as well, is asked each time.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.broker.fastpath import records
from scriba.broker.handlers.records import fetch
from scriba.broker.handlers.records.isolation import READ_COMMITTED, READ_UNCOMMITTED
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.connection import Promise
from scriba.broker.partitions.fetch_sessions import NO_TOPIC_ID, Key, Plan, Watched
from scriba.broker.partitions.nearby import NOBODY
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
    from scriba.replication.leader import LeaderState
    from scriba.storage.log import Log
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

SPAN: Final = 2
"""Numbers of a string, its begin and its end: the rack comes last of all, where it matters."""
_RACK: Final = frozenset({"rack_id"})

_PACKED: Final = ("partition_index", "high_watermark", "last_stable_offset", "log_start_offset")
MOST_ORDERS: Final = 256
"""So many are kept. A client names its partitions in the same order, or begins with another one of
them each time."""
_EMPTY: Final[tuple[dict[str, object], ...]] = (
    {"aborted_transactions": None},
    {"aborted_transactions": []},
)
"""What is told of transactions where none was aborted, by isolation level."""
_INT32: Final = struct.Struct(">i")

Resume = Callable[
    ["Connection", RequestHeader, FetchRequest, Callable[["Context"], Awaitable[FetchResponse]]],
    Awaitable[Parts | None],
]
"""Has a request that has begun answered as its handler's are."""


class Target:
    """A partition as it was last found by readers of what is committed, or by others."""

    __slots__ = (
        "begin",
        "bound",
        "epoch",
        "high_watermark",
        "leader",
        "partition",
        "stable_offset",
        "start_offset",
        "told",
        "topic",
    )

    def __init__(self, topic: Topic, partition: Partition) -> None:
        self.topic = topic
        self.partition = partition
        self.leader: LeaderState | None = None
        self.epoch = self.high_watermark = self.stable_offset = self.start_offset = -1
        self.bound = -1
        """Up to where it may be read."""
        self.begin = b""
        """What is told of it up to its records."""
        self.told = b""
        """The same with no records. Both are packed when they are first needed."""

    def look(self, from_followers: bool) -> bool:
        """Takes note of a partition that has changed; whether it may be read."""
        partition = self.partition
        self.leader = leader = partition.leader
        self.high_watermark = partition.high_watermark.value
        self.stable_offset = partition.stable_offset.value
        self.start_offset = partition.log.start_offset
        self.bound = partition.readable(self.topic.isolation == READ_COMMITTED).value
        self.begin = self.told = b""
        if leader is None and not (partition.serves and from_followers):
            self.high_watermark = -1  # so that it is looked at again
            return False
        self.epoch = partition.leader_epoch
        return True

    def follows_on(self) -> bool:
        """Whether a partition that does not lead may be read as when it was last found."""
        partition = self.partition
        return partition.serves and partition.leader_epoch == self.epoch


class Topic(NamedTuple):
    """A topic and its partitions here, for readers of what is committed or for others."""

    name: str
    isolation: int
    head: bytes
    """Its name or its id, as it is in an answer."""
    targets: dict[int, Target]
    pack: Packer
    """Packs an answer up to the records of a single partition."""
    size: int
    """What that has behind the length."""


class Order(NamedTuple):
    """Different partitions of a topic, in the order in which a request names them."""

    targets: list[Target]
    head: bytes
    """An answer that tells of no others, up to the first of them."""


Name = bytes | str
"""How a version names topics: by their ids, or by their names."""


class Wanted(NamedTuple):
    """The partitions that are asked for: a column for each thing that is asked."""

    targets: list[Target]
    epochs: list[int]
    """Of their leaders, as the client knows them."""
    offsets: list[int]
    most: list[int]
    """Bytes that each may have."""
    head: bytes
    """As in `Order`; empty where there are several topics."""
    items: list[Watched]
    """What is known of them in a session."""


class PartlyAborted(NamedTuple):
    """Records, and the transactions among them that a reader of what is committed leaves out."""

    records: Slice
    transactions: list[AbortedTxn]
    size: int
    """Of the records."""


Found = bytes | Slice | PartlyAborted
"""What is told of a partition without records, or the records."""


class Reading(NamedTuple):
    """What there is of the partitions of a request."""

    found: list[Found]
    news: list[int]
    """Which of them have records."""
    size: int
    """Of all records together."""


class Changes:
    """What a request changes in its session."""

    __slots__ = ("added", "forgotten", "named")

    def __init__(self) -> None:
        self.named: dict[Watched, int] = {}
        """Partitions whose offset or limits are told, and where."""
        self.added: dict[Key, Watched] = {}
        self.forgotten: set[Key] = set()


_NONE: Final = Changes()
_NO_ITEMS: Final[list[Watched]] = []
_new = tuple.__new__  # makes a named tuple without a call of Python


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
        "_from_followers",
        "_header_tags",
        "_most_bytes",
        "_most_elements",
        "_no_records",
        "_no_session",
        "_node",
        "_one_partition",
        "_orders",
        "_pack",
        "_pack_aborted",
        "_pack_head",
        "_plan",
        "_resume",
        "_selects",
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
        self._from_followers = version >= fetch.FIRST_FROM_FOLLOWERS
        self._selects = self._from_followers and node.replicas.selector.by_rack
        """Whether it matters in which rack a consumer is."""
        self._plan = plan(FetchRequest, version, _FIELDS | _RACK if self._selects else _FIELDS)
        self._one_partition = ONE_PARTITION + SPAN * self._selects
        self._most_bytes = api.limits.bytes_at_once
        self._most_elements = api.limits.at_once
        self._by_id = version >= first_version(FetchTopic, "topic_id")
        self._topics: dict[tuple[Name, int], Topic] = {}
        """By name and isolation level."""
        self._orders: dict[tuple[Name | int, ...], Order] = {}
        """By topic, isolation level, and indexes of partitions."""
        self._departures = node.departures
        self._flexible = flexible = version in FetchResponse.FLEXIBLE
        self._tags = bytes(flexible)
        """The tagged fields of a structure that has none."""
        self._header_tags = bytes(version >= api.tagged_from)
        self._pack = [
            packer(PartitionData, version, flexible, _PACKED, empty, until="records")
            for empty in _EMPTY
        ]
        """What is told of a partition up to its records, by isolation level."""
        self._pack_head = packer(FetchResponse, version, flexible, ("session_id",))
        names = ("producer_id", "first_offset")
        self._pack_aborted = packer(AbortedTransaction, version, flexible, names)
        before_aborted = packer(PartitionData, version, flexible, (), until="aborted_transactions")
        self._aborted_at = len(before_aborted())
        self._no_records = self._count(0) + self._tags
        """What ends a partition without records."""
        self._ends = -len(self._no_records)
        """Where an answer without topics ends, counted from its end, up to their number."""
        self._no_session = self._session_head(0)
        self._after = self._tags + self._tags
        """What ends the last topic, and the answer."""
        self._end = self._tags + self._after
        """What is behind the records of the last partition."""

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
        rack = str(frame[located[-2] : located[-1]], "utf-8", "replace") if self._selects else ""
        if len(located) == self._one_partition and topics == 1 == located[COUNT_AT] and not id:
            return self._take_one(frame, located, rack) if epoch == NO_SESSION else None
        session = changes = None
        if id:
            session = node.fetch_sessions.at_epoch(id, epoch, self._by_id)
            if session is None:
                return None
            changes = self._changes(session, frame, located)
            items = (*session.watched.values(), *changes.added.values())
            if len(items) > self._most_elements:
                return None
            wanted = self._watched(items, changes, located, isolation)
        elif epoch != NO_SESSION:
            return None
        elif topics == 1:
            wanted = self._named(frame, located, TOPICS_AT)
        else:
            wanted = self._named_topics(frame, located)
        reading = self.read(wanted, max_bytes, rack) if wanted else None
        if wanted is None or reading is None:
            return None
        if session is not None and changes is not None:
            for item, at in changes.named.items():
                _follow(item.asked, located, at)
            node.fetch_sessions.follow(
                session, changes.added, changes.forgotten, connection.last_active
            )
        self._api.count += 1
        node.counters.fastpath_fetches += 1
        if reading.size < min_bytes and wait_ms > 0:
            return DelayedFetch(self, frame.tobytes(), located, session, wanted, rack)
        return self.answer(located[0], session, wanted, reading)

    def _take_one(self, frame: memoryview, located: list[int], rack: str) -> Parts | Parked | None:
        """As `take` for a single partition without a session."""
        begin, end, _, index, epoch, offset, last_epoch, _, most = located[
            TOPICS_AT : ONE_PARTITION - 1
        ]
        correlation_id, _, wait_ms, min_bytes, max_bytes, isolation = located[:6]
        span = frame[begin:end]
        name = bytes(span) if self._by_id else str(span, "ascii")
        topic = self._topics.get((name, isolation)) or self._topic(name, isolation)
        if topic is None:
            return None
        target = topic.targets.get(index) or self._target(topic, index)
        if target is None or last_epoch >= 0 or most < 0:
            return None
        partition = target.partition
        log = partition.log
        if partition.leader is None and not (partition.serves and self._from_followers):
            self.forget()  # another one may be in its place
            return None
        if (epoch != partition.leader_epoch and epoch >= 0) or not (
            log.start_offset <= offset <= log.end_offset
        ):
            return None
        if rack and self._is_nearer_elsewhere(partition, offset, rack):
            return None
        bound = partition.readable(isolation == READ_COMMITTED).value
        node = self._node
        found: Slice | PartlyAborted | Empty = EMPTY
        if offset < bound:
            most_bytes = node.settings.fetch_max_bytes
            left = max_bytes if max_bytes < most_bytes else most_bytes
            one = _read(log, offset, most if most < left else left, bound, isolation, True)
            if one is None:
                return None
            found = one
        size = 0 if found is EMPTY else found.size
        self._api.count += 1
        node.counters.fastpath_fetches += 1
        if size < min_bytes and wait_ms > 0:
            wanted = Wanted([target], [epoch], [offset], [most], b"", _NO_ITEMS)
            return DelayedFetch(self, frame.tobytes(), located, None, wanted, rack)
        if isinstance(found, PartlyAborted):
            target.look(self._from_followers)
            wanted = Wanted([target], [epoch], [offset], [most], b"", _NO_ITEMS)
            return self.answer(correlation_id, None, wanted, Reading([found], [0], size))
        node.counters.topic_bytes_out += size
        return self._answer_one(correlation_id, topic, partition, found)

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
        self._orders.clear()

    # ---- what is asked for ----

    def _topic(self, named: Name, isolation: int) -> Topic | None:
        key = named, isolation
        topic = self._topics.get(key)
        if topic is None:
            name = self._node.topic_name(named) if isinstance(named, bytes) else named
            if name is None or name not in self._node.image.topics_by_name:
                return None
            topic = self._topics[key] = self._known(named, name, isolation)
        return topic

    def _known(self, named: Name, name: str, isolation: int) -> Topic:
        head = self._topic_head(named)
        pack = beginning_packer(
            self._no_session + self._count(1) + head + self._count(1),
            PartitionData,
            self._version,
            self._flexible,
            _PACKED,
            _EMPTY[isolation],
            "records",
        )
        return Topic(name, isolation, head, {}, pack, len(pack(0, 0, 0, 0, 0, 0)) - _INT32.size)

    def _target(self, topic: Topic, index: int) -> Target | None:
        target = topic.targets.get(index)
        if target is None:
            partition = self._node.replicas.get(topic.name, index)
            if partition is not None:
                target = topic.targets[index] = Target(topic, partition)
        return target

    def _order(self, named: Name, isolation: int, indexes: list[int]) -> Order | None:
        """Looks up what a request names; None where something is not here, or named twice."""
        topic = self._topic(named, isolation)
        if topic is None or not indexes or len(set(indexes)) < len(indexes):
            return None
        found = [self._target(topic, index) for index in indexes]
        targets = [target for target in found if target is not None]
        if len(targets) < len(found):
            return None
        if len(self._orders) >= MOST_ORDERS:
            self._orders.clear()
        head = self._no_session + self._count(1) + topic.head + self._count(len(targets))
        order = self._orders[named, isolation, *indexes] = Order(targets, head)
        return order

    def _named(self, frame: memoryview, located: list[int], begin: int) -> Wanted | None:
        """The partitions of a topic in a request without a session; None: not plain.

        They may be hundreds: each step is one call for all of them.
        """
        span = frame[located[begin] : located[begin + 1]]
        name = bytes(span) if self._by_id else str(span, "ascii")
        isolation = located[5]
        first = begin + PARTITIONS_AT
        end = first + PER_PARTITION * located[begin + 2]
        indexes = located[first:end:PER_PARTITION]
        order = self._orders.get((name, isolation, *indexes)) or self._order(
            name, isolation, indexes
        )
        if order is None:
            return None
        last_epochs = located[first + 3 : end : PER_PARTITION]
        most = located[first + 5 : end : PER_PARTITION]
        if max(last_epochs) >= 0 or min(most) < 0:
            return None
        targets, head = order
        epochs = located[first + 1 : end : PER_PARTITION]
        offsets = located[first + 2 : end : PER_PARTITION]
        return _new(Wanted, (targets, epochs, offsets, most, head, _NO_ITEMS))

    def _named_topics(self, frame: memoryview, located: list[int]) -> Wanted | None:
        """As `_named` for all topics; None where a partition is named twice."""
        wanted = Wanted([], [], [], [], b"", _NO_ITEMS)
        begin = TOPICS_AT
        for _ in range(located[TOPICS_AT - 1]):
            named = self._named(frame, located, begin)
            if named is None:
                return None
            for column, more in zip(wanted[:4], named[:4], strict=True):
                column += more  # type: ignore[operator]
            begin += PARTITIONS_AT + PER_PARTITION * located[begin + 2]
        targets = wanted.targets
        return wanted if targets and len(set(targets)) == len(targets) else None

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
        self, items: Iterable[Watched], changes: Changes, located: list[int], isolation: int
    ) -> Wanted | None:
        """Partitions of a session, as they are asked for when it has taken note of the changes."""
        wanted = Wanted([], [], [], [], b"", [])
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
            topic = self._topic(item.topic_id if by_id else item.topic, isolation)
            if topic is None or last_epoch >= 0 or most < 0:
                return None
            index = asked.partition
            target = topic.targets.get(index) or self._target(topic, index)
            if target is None:
                return None
            wanted.targets.append(target)
            wanted.epochs.append(epoch)
            wanted.offsets.append(offset)
            wanted.most.append(most)
            wanted.items.append(item)
        return wanted if wanted.targets else None

    def _name(self, frame: memoryview, located: list[int], at: int) -> Name:
        span = frame[located[at] : located[at + 1]]
        return bytes(span) if self._by_id else str(span, "ascii")

    def _names(self, name: Name) -> tuple[bytes, str]:
        """A topic's id and name, of which a version has one."""
        return (name, "") if isinstance(name, bytes) else (NO_TOPIC_ID, name)

    # ---- reading ----

    def read(self, wanted: Wanted, max_bytes: int, rack: str) -> Reading | None:
        """What there is of each partition; None: not plain.

        Nothing is read before all can be: what was read once is found faster, and ends elsewhere.
        """
        targets, epochs, offsets, most, _, _ = wanted
        found: list[Found] = []
        news: list[int] = []
        for target, epoch, offset in zip(targets, epochs, offsets, strict=True):
            partition = target.partition
            if (
                partition.high_watermark.value != target.high_watermark
                or partition.stable_offset.value != target.stable_offset
                or partition.leader is not target.leader
                or partition.log.start_offset != target.start_offset
                or (target.leader is None and not target.follows_on())
            ) and not target.look(self._from_followers):
                self.forget()  # another one may be in its place
                return None
            if rack and self._is_nearer_elsewhere(partition, offset, rack):
                return None
            if epoch >= 0 and epoch != target.epoch:
                return None
            if offset >= target.bound:
                if offset > target.bound and offset > partition.log.end_offset:
                    return None
                found.append(target.told or self._told(target))
            elif offset < target.start_offset:
                return None
            else:
                news.append(len(found))
                found.append(b"")
        if not news:
            return _new(Reading, (found, news, 0))
        most_bytes = self._node.settings.fetch_max_bytes
        left = all_bytes = max_bytes if max_bytes < most_bytes else most_bytes
        full: list[int] = []
        for at in news:
            target = targets[at]
            limit = most[at]
            one = _read(
                target.partition.log,
                offsets[at],
                limit if limit < left else left,
                target.bound,
                target.topic.isolation,
                not full,
            )
            if one is None:
                return None
            if one is EMPTY:
                found[at] = target.told or self._told(target)
                continue
            found[at] = one
            full.append(at)
            left -= one.size
            if left <= 0:
                rest = slice(at + 1, len(found))
                found[rest] = [self._unread(target) for target in targets[rest]]
                break
        return _new(Reading, (found, full, all_bytes - left))

    def _is_nearer_elsewhere(self, partition: Partition, offset: int, rack: str) -> bool:
        return self._node.replicas.selector.preferred(partition, rack, offset) != NOBODY

    # ---- answers ----

    def answer(
        self, correlation_id: int, session: Session | None, wanted: Wanted, reading: Reading
    ) -> Parts:
        """Tells of all partitions, or of those of which a session has to hear."""
        found, news, size = reading
        self._node.counters.topic_bytes_out += size
        answer = records.Answer(correlation_id)
        if session is not None or not wanted.head:
            self._add_topics(answer, session, wanted, found)
            return answer.parts()
        pieces = answer.pieces
        pieces.append(wanted.head)
        told = 0
        for at in news:
            if at > told:
                pieces += found[told:at]  # type: ignore[arg-type]
            told = at + 1
            self._add_records(answer, wanted.targets[at], found[at])
        pieces += found[told:]  # type: ignore[arg-type]
        pieces.append(self._after)
        return answer.parts()

    def _add_topics(
        self, answer: records.Answer, session: Session | None, wanted: Wanted, found: list[Found]
    ) -> None:
        last: Topic | None = None
        topics: list[tuple[Topic, int]] = []
        counts: list[int] = []
        pieces = answer.pieces
        pieces.append(b"")
        items = wanted.items or repeat(None)
        for target, one, item in zip(wanted.targets, found, items, strict=False):
            is_told = type(one) is bytes
            if session is not None and item is not None:
                if not item.hears(target.high_watermark, target.start_offset, not is_told):
                    continue
                if not is_told:
                    session.answered(item)
            if target.topic is not last:
                last = target.topic
                topics.append((last, len(pieces)))
                counts.append(0)
                pieces.append(b"")
            counts[-1] += 1
            if type(one) is bytes:
                pieces.append(one)
            else:
                self._add_records(answer, target, one)
        before = b""
        for (topic, at), count in zip(topics, counts, strict=True):
            pieces[at] = before + topic.head + self._count(count)
            before = self._tags
        pieces.append(self._after if topics else self._tags)
        head = self._no_session if session is None else self._session_head(session.id)
        pieces[1] = head + self._count(len(topics))

    def _add_records(self, answer: records.Answer, target: Target, found: Found) -> None:
        begin = target.begin or self._begin(target)
        if type(found) is PartlyAborted:
            begin = self._with_aborted(begin, found.transactions)
            found = found.records
        assert type(found) is Slice
        size = found.size
        length = write_uvarint(size + 1) if self._flexible else _INT32.pack(size)
        answer.add(begin + length, found, self._tags)

    def _answer_one(
        self, correlation_id: int, topic: Topic, partition: Partition, found: Slice | Empty
    ) -> Parts:
        """As `answer` for a single partition without a session."""
        index, high_watermark = partition.index, partition.high_watermark.value
        stable_offset, start_offset = partition.stable_offset.value, partition.log.start_offset
        if found is EMPTY:
            end = self._no_records + self._after
            length = topic.size + len(end)
            return (
                topic.pack(
                    length, correlation_id, index, high_watermark, stable_offset, start_offset
                )
                + end,
            )
        size = found.size
        count = write_uvarint(size + 1) if self._flexible else _INT32.pack(size)
        end = self._end
        length = topic.size + len(count) + size + len(end)
        told = topic.pack(
            length, correlation_id, index, high_watermark, stable_offset, start_offset
        )
        return records.around(told + count, found, end)

    def _begin(self, target: Target) -> bytes:
        """What is told of a partition up to its records; keeps it."""
        target.begin = self._packed(target, target.topic.isolation)
        return target.begin

    def _told(self, target: Target) -> bytes:
        """The same with no records; keeps it."""
        target.told = (target.begin or self._begin(target)) + self._no_records
        return target.told

    def _unread(self, target: Target) -> bytes:
        """What is told of a partition that those before it left no bytes for.

        It is not looked for transactions in it, then.
        """
        return self._packed(target, READ_UNCOMMITTED) + self._no_records

    def _packed(self, target: Target, isolation: int) -> bytes:
        return self._pack[isolation](
            target.partition.index,
            target.high_watermark,
            target.stable_offset,
            target.start_offset,
        )

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

    def again(self, delayed: DelayedFetch) -> Reading | None:
        """What a request that waited finds; None: its handler goes on with it."""
        node, session = self._node, delayed.session
        isolation = READ_COMMITTED if delayed.committed_only else READ_UNCOMMITTED
        if node.departures != self._departures or not node.access.open or not node.fast_paths:
            return None
        if session is not None:
            # Another connection may have gone on with the session.
            wanted = self._watched(delayed.wanted.items, _NONE, [], isolation)
            if wanted is None:
                return None
            delayed.wanted = wanted
        return self.read(delayed.wanted, delayed.max_bytes, delayed.rack)

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
            plan = Plan(session, session.id, incremental=True, watched=delayed.wanted.items)
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
        "max_bytes",
        "rack",
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
        wanted: Wanted,
        rack: str,
    ) -> None:
        super().__init__()
        self._path = path
        self._correlation_id, _, self._wait_ms, self._least, self.max_bytes, isolation = located[:6]
        self.committed_only = isolation == READ_COMMITTED
        self.frame = frame
        self.rack = rack
        self.session = session
        self.wanted = wanted
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
        for target in self.wanted.targets:
            readable = target.partition.readable(self.committed_only)
            readable.watch(readable.value + 1, moved)

    def _look(self, moved: asyncio.Future[None]) -> None:
        if self._over:
            return
        reading = None if moved.exception() is not None else self._path.again(self)
        if reading is not None and reading.size < self._least:
            self._watch()
        else:
            self._timer.cancel()
            self._end(reading)

    def _out_of_time(self) -> None:
        if not self._over:
            self._end(self._path.again(self))
            self._moved.cancel()

    def _end(self, reading: Reading | None) -> None:
        self._over = True
        connection = self.connection
        if reading is None:
            left = self._deadline - asyncio.get_running_loop().time()
            rest = self._path.hand_over(self, connection, max(left * 1000, 0))
            connection.keep(self, Parked(rest))
            return
        try:
            parts = self._path.answer(self._correlation_id, self.session, self.wanted, reading)
        except OSError:
            connection.close()
        else:
            connection.keep(self, parts)


def _read(
    log: Log, offset: int, most: int, bound: int, isolation: int, first: bool
) -> Slice | PartlyAborted | Empty | None:
    """What there is of a log with news; None: not plain."""
    try:
        one = log.read(offset, most, bound, first)
        if type(one) is Slice:
            if isolation == READ_COMMITTED:
                aborted = log.aborted_transactions(offset, bound, one)
                if aborted:
                    return PartlyAborted(one, aborted, one.size)
            return one
    except KafkaError:
        return None
    return EMPTY if one is EMPTY else None


def _follow(asked: FetchPartition, located: list[int], at: int) -> None:
    """Takes what a request tells of a partition behind its index."""
    (
        asked.current_leader_epoch,
        asked.fetch_offset,
        asked.last_fetched_epoch,
        asked.log_start_offset,
        asked.partition_max_bytes,
    ) = located[at + 1 : at + PER_PARTITION]
