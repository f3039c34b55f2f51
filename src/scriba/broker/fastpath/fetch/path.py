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
4. The session takes note, and the answer is put together (`answers`).

A request that finds too little waits as a callback on the watermarks of its partitions, without a
task (`delayed`), and is read again from step 3 on.

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

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from scriba.broker.fastpath.fetch.answers import FetchAnswers
from scriba.broker.fastpath.fetch.delayed import DelayedFetch
from scriba.broker.fastpath.fetch.located import (
    COUNT_AT,
    FIELDS,
    ONE_PARTITION,
    PARTITIONS_AT,
    PER_PARTITION,
    RACK,
    SPAN,
    TOPICS_AT,
    follow,
)
from scriba.broker.fastpath.fetch.targets import (
    Changes,
    Found,
    Name,
    Order,
    PartlyAborted,
    Reading,
    Target,
    Topic,
    Wanted,
    id_and_name,
)
from scriba.broker.handlers.records import fetch
from scriba.broker.handlers.records.isolation import READ_COMMITTED, READ_UNCOMMITTED
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.partitions.fetch_sessions import Plan, Watched
from scriba.broker.partitions.nearby import NOBODY
from scriba.errors import KafkaError
from scriba.native import implementation
from scriba.storage.results import EMPTY, Empty, Slice
from scriba.wire.frame import RequestHeader, decode_request_header
from scriba.wire.locator import plan
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from scriba.wire.schema import first_version

if TYPE_CHECKING:
    from scriba.broker.fastpath.ports import FetchFastPathHost
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.net.connection import Connection
    from scriba.broker.partitions.fetch_sessions import Session
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.request import Context
    from scriba.storage.log import Log

NO_SESSION: Final = -1
"""The epoch of a request that neither has a session nor wants one."""

MOST_ORDERS: Final = 256
"""So many are kept. A client names its partitions in the same order, or begins with another one of
them each time."""
Resume = Callable[
    ["Connection", RequestHeader, FetchRequest, Callable[["Context"], Awaitable[FetchResponse]]],
    Awaitable[Parts | None],
]
"""Has a request that has begun answered as its handler's are."""


_NONE: Final = Changes()
_NO_ITEMS: Final[list[Watched]] = []


class FetchFastPath:
    """Fetch in one version, which decides how topics are named and what is told of a partition."""

    __slots__ = (
        "_api",
        "_by_id",
        "_departures",
        "_from_followers",
        "_most_bytes",
        "_most_elements",
        "_node",
        "_one_partition",
        "_orders",
        "_plan",
        "_resume",
        "_selects",
        "_topics",
        "_version",
        "answers",
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
        self._plan = plan(FetchRequest, version, FIELDS | RACK if self._selects else FIELDS)
        self._one_partition = ONE_PARTITION + SPAN * self._selects
        self._most_bytes = api.limits.bytes_at_once
        self._most_elements = api.limits.at_once
        self._by_id = version >= first_version(FetchTopic, "topic_id")
        self._topics: dict[tuple[Name, int], Topic] = {}
        """By name and isolation level."""
        self._orders: dict[tuple[Name | int, ...], Order] = {}
        """By topic, isolation level, and indexes of partitions."""
        self._departures = node.departures
        self.answers = FetchAnswers(node.counters, version, api.tagged_from)

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
                follow(item.asked, located, at)
            node.fetch_sessions.follow(
                session, changes.added, changes.forgotten, connection.last_active
            )
        self._api.count += 1
        node.counters.fastpath_fetches += 1
        if reading[-1] < min_bytes and wait_ms > 0:
            return DelayedFetch(self, frame.tobytes(), located, session, wanted, rack)
        return self.answers.several(located[0], session, wanted, reading)

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
            wanted = [target], [epoch], [offset], [most], b"", _NO_ITEMS
            return DelayedFetch(self, frame.tobytes(), located, None, wanted, rack)
        if isinstance(found, PartlyAborted):
            target.look(self._from_followers)
            wanted = [target], [epoch], [offset], [most], b"", _NO_ITEMS
            return self.answers.several(correlation_id, None, wanted, ([found], [0], size))
        node.counters.topic_bytes_out += size
        return self.answers.one(correlation_id, topic, partition, found)

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
            topic = self._topics[key] = self.answers.topic(named, name, isolation)
        return topic

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
        head = self.answers.head(topic, len(targets))
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
        return targets, epochs, offsets, most, head, _NO_ITEMS

    def _named_topics(self, frame: memoryview, located: list[int]) -> Wanted | None:
        """As `_named` for all topics; None where a partition is named twice."""
        wanted: Wanted = [], [], [], [], b"", _NO_ITEMS
        begin = TOPICS_AT
        for _ in range(located[TOPICS_AT - 1]):
            named = self._named(frame, located, begin)
            if named is None:
                return None
            for column, more in zip(wanted[:4], named[:4], strict=True):
                column += more  # type: ignore[operator]
            begin += PARTITIONS_AT + PER_PARTITION * located[begin + 2]
        targets, *_ = wanted
        return wanted if targets and len(set(targets)) == len(targets) else None

    def _changes(self, session: Session, frame: memoryview, located: list[int]) -> Changes:
        changes = Changes()
        at = TOPICS_AT
        for _ in range(located[at - 1]):
            names = id_and_name(self._name(frame, located, at))
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
            names = id_and_name(self._name(frame, located, at))
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
        targets: list[Target] = []
        epochs: list[int] = []
        offsets: list[int] = []
        limits: list[int] = []
        kept: list[Watched] = []
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
            targets.append(target)
            epochs.append(epoch)
            offsets.append(offset)
            limits.append(most)
            kept.append(item)
        return (targets, epochs, offsets, limits, b"", kept) if targets else None

    def _name(self, frame: memoryview, located: list[int], at: int) -> Name:
        span = frame[located[at] : located[at + 1]]
        return bytes(span) if self._by_id else str(span, "ascii")

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
                found.append(target.told or self.answers.told(target))
            elif offset < target.start_offset:
                return None
            else:
                news.append(len(found))
                found.append(b"")
        if not news:
            return found, news, 0
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
                found[at] = target.told or self.answers.told(target)
                continue
            found[at] = one
            full.append(at)
            left -= one.size
            if left <= 0:
                rest = slice(at + 1, len(found))
                found[rest] = [self.answers.unread(target) for target in targets[rest]]
                break
        return found, full, all_bytes - left

    def _is_nearer_elsewhere(self, partition: Partition, offset: int, rack: str) -> bool:
        return self._node.replicas.selector.preferred(partition, rack, offset) != NOBODY

    # ---- what has to wait ----

    def again(self, delayed: DelayedFetch) -> Reading | None:
        """What a request that waited finds; None: its handler goes on with it."""
        node, session = self._node, delayed.session
        isolation = READ_COMMITTED if delayed.committed_only else READ_UNCOMMITTED
        if node.departures != self._departures or not node.access.open or not node.fast_paths:
            return None
        if session is not None:
            # Another connection may have gone on with the session.
            wanted = self._watched(delayed.wanted[-1], _NONE, [], isolation)
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
            plan = Plan(session, session.id, incremental=True, watched=delayed.wanted[-1])
        else:
            plan = node.fetch_sessions.plan(request, self._by_id, connection.last_active)
        return self._resume(
            connection, header, request, lambda ctx: fetch.resume(node, ctx, request, plan)
        )


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
