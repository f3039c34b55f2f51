"""The fast path of a Fetch that repeats an earlier one, but for its offset.

A consumer of one partition repeats itself: from one request to the next only the correlation id,
the offset and, in a session, its epoch differ. What was found out for the bytes around them is kept
as a template: the partition, the limits, the answer up to its records. A later request is taken
apart by one call, recognised by one look into a table, read as always, and answered by a copy with
its holes filled; small records are read straight to their place in it. One that has to wait is a
callback on the watermark, without a task.

It takes only the plain good case: a consumer that asks for one partition and has no other in
its session, an offset that exists, records in memory, none of an aborted transaction. Whatever else
comes, also after waiting, goes to its handler, which then has what is left of the time.
Templates are forgotten when the cluster's shape changes, and not used where access or quotas have a
say.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from scriba.broker.handlers.records.isolation import READ_COMMITTED, READ_UNCOMMITTED
from scriba.broker.net.answers import COPIED_BELOW, Parked, Parts, Region
from scriba.broker.net.connection import Promise
from scriba.errors import KafkaError
from scriba.native import implementation
from scriba.storage.results import EMPTY, Slice
from scriba.wire.frame import RequestHeader, decode_request_header
from scriba.wire.locator import plan
from scriba.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from scriba.wire.schema import first_version
from scriba.wire.varint import write_uvarint

if TYPE_CHECKING:
    from scriba.broker.fastpath.ports import FetchFastPathHost
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.net.connection import Connection
    from scriba.broker.partitions.fetch_sessions import Watched
    from scriba.broker.partitions.partition import Partition

Layout = struct.Struct
Ordinary = Callable[["Connection", FetchRequest, RequestHeader], Parts | Parked | None]
Key = tuple[int, bytes, bytes, bytes]

MOST_TEMPLATES: Final = 4096
MOST_BYTES: Final = 1024
MOST_LAYOUTS: Final = 8
FLEXIBLE_FROM: Final = FetchResponse.FLEXIBLE.low
SESSIONS_FROM: Final = first_version(FetchRequest, "session_epoch")
BY_ID_FROM: Final = first_version(FetchTopic, "topic_id")
NO_SESSION: Final = -1
"""The epoch of a request that neither has a session nor wants one."""
CONSUMER: Final = -1

MOST_ELEMENTS: Final = 2
"""A topic and a partition."""
_VARYING: Final = frozenset({"session_epoch", "topics.partitions.fetch_offset"})
_INT32: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qqq")
_MARK: Final = 0x5A17C0DE_5A17C0DE
_MARKED: Final = _MARK.to_bytes(8, "big")
_RECORDS: Final = b"\xfe\xdc\xba\x98"


class FetchTemplate:
    __slots__ = (
        "committed_only",
        "epoch",
        "flexible",
        "head",
        "header",
        "hole",
        "least",
        "max_bytes",
        "partition",
        "quiet",
        "request",
        "session_id",
        "tail",
        "wait_ms",
        "watched",
    )

    def __init__(self, partition: Partition, request: FetchRequest, header: RequestHeader) -> None:
        (topic,) = request.topics
        (asked,) = topic.partitions
        self.partition = partition
        self.request = request
        self.header = header
        self.session_id = request.session_id
        self.watched = (topic.topic_id, topic.topic, asked.partition)
        """Its name in a session."""
        self.committed_only = request.isolation_level == READ_COMMITTED
        self.epoch = max(asked.current_leader_epoch, -1)
        self.max_bytes = min(request.max_bytes, asked.partition_max_bytes)
        self.wait_ms = request.max_wait_ms
        self.least = request.min_bytes if request.max_wait_ms > 0 else 0
        """Fewer bytes than this are waited for."""
        version = header.api_version
        self.flexible = version >= FLEXIBLE_FROM
        data = PartitionData(
            partition_index=asked.partition,
            high_watermark=_MARK,
            aborted_transactions=[] if self.committed_only else None,
            records=_RECORDS,
        )
        answer = FetchResponse(
            session_id=request.session_id,
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=[data]
                )
            ],
        )
        self.quiet = bytearray(8 + self.flexible)
        """What a session hears that has nothing to hear."""
        FetchResponse(session_id=request.session_id).encode_into(self.quiet, version)
        _INT32.pack_into(self.quiet, 0, len(self.quiet) - 4)
        out = bytearray(8 + self.flexible)
        answer.encode_into(out, version)
        at = out.rindex(_RECORDS)
        self.head = out[: at - (1 if self.flexible else 4)]
        """The answer up to the size of the records."""
        self.tail = bytes(out[at + len(_RECORDS) :])
        self.hole = self.head.index(_MARKED)

    def asked(self, offset: int) -> FetchPartition:
        (asked,) = self.request.topics[0].partitions
        return FetchPartition(
            partition=asked.partition,
            current_leader_epoch=asked.current_leader_epoch,
            fetch_offset=offset,
            log_start_offset=asked.log_start_offset,
            partition_max_bytes=asked.partition_max_bytes,
        )

    def asks(self, offset: int, epoch: int, wait_ms: float) -> FetchRequest:
        """The request itself, as the handler needs it. It is never encoded, so that what is
        left of its time need not be whole milliseconds."""
        told = self.request
        (topic,) = told.topics
        wanted = [self.asked(offset)]
        return FetchRequest(
            max_wait_ms=wait_ms,  # type: ignore[arg-type]
            min_bytes=told.min_bytes,
            max_bytes=told.max_bytes,
            isolation_level=told.isolation_level,
            session_id=told.session_id,
            session_epoch=epoch,
            topics=[FetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=wanted)],
        )

    def read(self, offset: int, most_bytes: int, least: int) -> Slice | int | None:
        """The records; the offset to wait for where there are too few; None: not plain."""
        partition = self.partition
        leader = partition.leader
        if leader is None or (self.epoch >= 0 and self.epoch != leader.leader_epoch):
            return None
        store = partition.log
        if not store.start_offset <= offset <= store.end_offset:
            return None
        bound = partition.readable(self.committed_only).value
        limit = self.max_bytes
        try:
            found = store.read(offset, limit if limit < most_bytes else most_bytes, bound)
        except KafkaError:
            return None
        if found is EMPTY:
            return bound + 1
        if type(found) is not Slice:
            return None
        if self.committed_only and store.aborted_transactions(offset, bound, found):
            return None
        return found if found.size >= least else bound + 1

    def answer(self, correlation_id: int, found: Slice | None) -> Parts:
        size = 0 if found is None else found.size
        length = write_uvarint(size + 1) if self.flexible else _INT32.pack(size)
        partition = self.partition
        head = self.head + length
        tail = self.tail
        start = len(head)
        _INT32.pack_into(head, 0, start + size + len(tail) - 4)
        _INT32.pack_into(head, 4, correlation_id)
        _OFFSETS.pack_into(
            head,
            self.hole,
            partition.high_watermark.value,
            partition.stable_offset.value,
            partition.log.start_offset,
        )
        if found is None:
            return (head + tail,)
        if size < COPIED_BELOW:
            whole = bytearray(start + size + len(tail))
            end = start + size
            whole[:start] = head
            whole[end:] = tail
            if found.file.try_pread_into(memoryview(whole)[start:end], found.position) == size:
                return (whole,)
        return (head, Region(found.file, found.position, size), tail)


class FetchFastPath:
    def __init__(self, node: FetchFastPathHost, api: ApiEntry, ordinary: Ordinary) -> None:
        self.node = node
        self.ordinary = ordinary
        self._api = api
        self._templates: dict[Key, FetchTemplate] = {}
        self._topology = -1

    def learn(self, connection: Connection, frame: memoryview, request: FetchRequest) -> None:
        """Remembers a request that went to its handler, if the next may take the fast path."""
        node = self.node
        if len(frame) > MOST_BYTES or not _plain(request) or not node.access.open:
            return
        if len(self._templates) >= MOST_TEMPLATES or self._topology != node.topology:
            self._templates.clear()
            self._topology = node.topology
        known = connection.fetches.get(len(frame))
        if known is not None and _key(known, frame) in self._templates:
            return  # only this offset was not for it
        header, _ = decode_request_header(frame)
        version = header.api_version
        (topic,) = request.topics
        name = topic.topic if version < BY_ID_FROM else node.topic_name(topic.topic_id)
        partition = node.replicas.get(name, topic.partitions[0].partition) if name else None
        if version < SESSIONS_FROM or partition is None:
            return
        layout = _layout(frame, version)
        if layout is None:
            return
        if len(connection.fetches) >= MOST_LAYOUTS:
            connection.fetches.clear()
        connection.fetches[len(frame)] = layout
        self._templates[_key(layout, frame)] = FetchTemplate(partition, request, header)

    def enter(
        self, connection: Connection, frame: memoryview, version: int
    ) -> Parts | Parked | None:
        """As `take`, unless that was asked already; the connection's next one is asked first."""
        if connection.fast_path is self:
            return None
        answer = self.take(connection, frame)
        if answer is not None:
            connection.fast_path = self
        return answer

    def take(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """The answer; None where the request has to go to its handler."""
        layout = connection.fetches.get(len(frame))
        node = self.node
        if layout is None or self._topology != node.topology or not node.access.open:
            return None
        if not node.fast_paths:
            return None
        start, correlation_id, before, epoch, between, offset, after = layout.unpack(frame)
        template = self._templates.get((start, before, between, after))
        if template is None:
            return None
        found = template.read(offset, node.settings.fetch_max_bytes, template.least)
        if found is None:
            return None
        item = None
        if epoch != NO_SESSION or template.session_id:
            session = node.fetch_sessions.alone(template.session_id, epoch, template.watched)
            if session is None:
                return None
            item = node.fetch_sessions.follow(
                session, template.asked(offset), connection.last_active
            )
        self._api.count += 1
        node.counters.fastpath_fetches += 1
        if type(found) is int and template.least > 0:
            return _Waiting(self, template, item, epoch, offset, correlation_id, found)
        return self.answer(template, item, correlation_id, found)

    def again(self, template: FetchTemplate, offset: int, least: int) -> Slice | int | None:
        """What a request that waited finds."""
        node = self.node
        if self._topology != node.topology or not node.access.open or not node.fast_paths:
            return None
        return template.read(offset, node.settings.fetch_max_bytes, least)

    def answer(
        self, template: FetchTemplate, item: Watched | None, correlation_id: int, found: Slice | int
    ) -> Parts:
        records = found if type(found) is Slice else None
        if item is not None and not _news(item, template.partition, records):
            quiet = template.quiet[:]
            _INT32.pack_into(quiet, 4, correlation_id)
            return (quiet,)
        if records is not None:
            self.node.counters.topic_bytes_out += records.size
        return template.answer(correlation_id, records)


def _news(item: Watched, partition: Partition, records: Slice | None) -> bool:
    """Whether a session has to hear of its partition; remembers what it hears."""
    high_watermark, start_offset = partition.high_watermark.value, partition.log.start_offset
    news = (
        records is not None
        or high_watermark != item.high_watermark
        or start_offset != item.log_start_offset
        or item.told_error
    )
    item.high_watermark = high_watermark
    item.log_start_offset = start_offset
    item.told_error = False
    return news


class _Waiting(Promise):
    """A Fetch that found too little, until its watermark has moved or its time is up."""

    __slots__ = (
        "_correlation_id",
        "_deadline",
        "_epoch",
        "_item",
        "_moved",
        "_offset",
        "_over",
        "_path",
        "_template",
        "_timer",
        "_wanted",
    )

    _deadline: float
    _moved: asyncio.Future[None]
    _timer: asyncio.TimerHandle

    def __init__(
        self,
        path: FetchFastPath,
        template: FetchTemplate,
        item: Watched | None,
        epoch: int,
        offset: int,
        correlation_id: int,
        wanted: int,
    ) -> None:
        super().__init__()
        self._item = item
        self._epoch = epoch
        self._path = path
        self._template = template
        self._offset = offset
        self._correlation_id = correlation_id
        self._wanted = wanted
        self._over = False

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._template.wait_ms / 1000
        self._deadline = loop.time() + seconds
        self._timer = loop.call_later(seconds, self._out_of_time)
        self._watch(self._wanted)

    def abandon(self) -> None:
        self._over = True
        self._timer.cancel()
        self._moved.cancel()

    def _watch(self, offset: int) -> None:
        template = self._template
        self._moved = asyncio.get_running_loop().create_future()
        self._moved.add_done_callback(self._look)
        template.partition.readable(template.committed_only).watch(offset, self._moved)

    def _look(self, moved: asyncio.Future[None]) -> None:
        if self._over:
            return
        template = self._template
        gone = moved.exception() is not None
        found = None if gone else self._path.again(template, self._offset, template.least)
        if type(found) is int:
            self._watch(found)
        else:
            self._timer.cancel()
            self._end(found)

    def _out_of_time(self) -> None:
        if not self._over:
            found = self._path.again(self._template, self._offset, 0)
            self._end(found)
            self._moved.cancel()

    def _end(self, found: Slice | int | None) -> None:
        self._over = True
        connection = self.connection
        if found is None:
            connection.keep(self, Parked(self._ordinary_way()))
            return
        try:
            parts = self._path.answer(self._template, self._item, self._correlation_id, found)
        except OSError:
            connection.close()
        else:
            connection.keep(self, parts)

    async def _ordinary_way(self) -> Parts | None:
        template = self._template
        left = self._deadline - asyncio.get_running_loop().time()
        if self._item is not None:
            # What the session was told is told once more, from the same epoch on.
            self._path.node.fetch_sessions.rewind(template.session_id, self._epoch)
        answer = self._path.ordinary(
            self.connection,
            template.asks(self._offset, self._epoch, max(left * 1000, 0)),
            template.header._replace(correlation_id=self._correlation_id),
        )
        if isinstance(answer, Parked):
            return await answer.awaitable
        return answer


def _plain(request: FetchRequest) -> bool:
    """Whether a consumer asks for one partition, in a session or without, and nothing else."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return False
    asked = request.topics[0].partitions[0]
    return (
        request.replica_id == request.replica_state.replica_id == CONSUMER
        and (
            request.session_epoch > 0 if request.session_id else request.session_epoch == NO_SESSION
        )
        and not request.forgotten_topics_data
        and request.isolation_level in (READ_UNCOMMITTED, READ_COMMITTED)
        and asked.last_fetched_epoch < 0
        and request.max_bytes >= 0
        and asked.partition_max_bytes >= 0
    )


def _key(layout: Layout, frame: memoryview) -> Key:
    start, _, before, _, between, _, after = layout.unpack(frame)
    return start, before, between, after


@cache
def _plan(version: int) -> bytes:
    return plan(FetchRequest, version, frozenset(), _VARYING)


def _layout(frame: memoryview, version: int) -> Layout | None:
    """How a request for one partition is taken apart at its session's epoch and its offset."""
    located = implementation.chosen.locate(_plan(version), frame, MOST_ELEMENTS)
    if located is None:
        return None
    _, epoch_at, _, _, at, *_ = located
    return struct.Struct(f">ii{epoch_at - 8}si{at - epoch_at - 4}sq{len(frame) - at - 8}s")
