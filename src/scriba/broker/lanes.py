"""The short way of a Produce that says what an earlier one said.

A producer repeats itself: from one request to the next only the correlation id and the records
differ, and everything between them (client id, acks, time-out, topic, partition) is the same bytes
again. So what was found out for them once is kept under these bytes as a *lane*: the partition,
the limits of its topic, the answer with holes for its numbers. A later request is recognised by
one look into a table, its batch is checked as always, appended as always, and its answer is a copy
with the holes filled.

A lane knows only the plain good case. Whatever else comes (several partitions, a codec, a
transaction, log append time, an access check, a batch with any fault) is left to the ordinary way
before anything has changed. Lanes are forgotten when the cluster's shape changes, and passed by
when the partition has got other settings or another leader.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from scriba.broker.answers import Parked, Parts
from scriba.broker.connection import Connection
from scriba.broker.handlers import produce
from scriba.errors import KafkaError
from scriba.records import native
from scriba.records.validate import LOOP_PLAIN_BYTES, takes_plain
from scriba.wire.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from scriba.wire.varint import read_uvarint

if TYPE_CHECKING:
    from scriba.broker.dispatch import Served
    from scriba.broker.node import Node
    from scriba.broker.partition import Partition

MOST_LANES: Final = 4096
MOST_PREFIX: Final = 1024
FLEXIBLE_FROM: Final = 9
STARTS_TOLD_FROM: Final = 5
BY_ID_FROM: Final = 13

_PREFIX: Final = 8
"""Where the bytes begin that a producer repeats: behind the correlation id."""
_FAR_MS: Final = 1 << 62
"""Farther from now than any timestamp; with the time of day it still has 63 bits."""
_ONE: Final = b"\0\0\0\1"
_NULL: Final = b"\xff\xff"
_MARK: Final = 0x5A17C0DE_5A17C0DE
_INT32: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")
_OFFSETS_AND_START: Final = struct.Struct(">qqq")


class Lane:
    __slots__ = (
        "acks",
        "after_ms",
        "before_ms",
        "compact",
        "hole",
        "layout",
        "min_isr",
        "most_bytes",
        "partition",
        "reply",
        "request",
        "settings",
    )

    def __init__(self, partition: Partition, request: ProduceRequest, version: int) -> None:
        settings = partition.settings
        self.partition = partition
        self.settings = settings
        self.request = ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms)
        """What the ordinary way asks of a request; not its records, which are gone by then."""
        self.acks = request.acks
        self.compact = version >= FLEXIBLE_FROM
        self.most_bytes = min(settings.max_message_bytes, settings.segment_bytes, LOOP_PLAIN_BYTES)
        self.before_ms = min(settings.message_timestamp_before_max_ms, _FAR_MS)
        self.after_ms = min(settings.message_timestamp_after_max_ms, _FAR_MS)
        self.min_isr = settings.min_insync_replicas
        answer = PartitionProduceResponse(index=partition.index, base_offset=_MARK)
        self.reply = bytearray(8 + (version >= FLEXIBLE_FROM))
        self.answer(answer).encode_into(self.reply, version)
        _INT32.pack_into(self.reply, 0, len(self.reply) - 4)
        self.hole = self.reply.index(_MARK.to_bytes(8, "big"))
        self.layout = _OFFSETS_AND_START if version >= STARTS_TOLD_FROM else _OFFSETS

    def answer(self, partition: PartitionProduceResponse) -> ProduceResponse:
        topic = TopicProduceResponse(
            name=self.partition.topic,
            topic_id=self.partition.topic_id,
            partition_responses=[partition],
        )
        return ProduceResponse(responses=[topic])


class ProduceLanes:
    def __init__(self, node: Node, served: Served) -> None:
        self._node = node
        self._served = served
        self._lanes: dict[int, dict[bytes, Lane]] = {}
        self._count = 0
        self._topology = -1

    def learn(self, connection: Connection, frame: memoryview, request: ProduceRequest) -> None:
        """Remembers a request that went the ordinary way, if the next may go the short one."""
        node = self._node
        version = int.from_bytes(frame[2:4], "big")
        at = _records_at(frame, version)
        if not 0 < at <= MOST_PREFIX or request.acks == 0 or not node.access.open:
            return
        topic = request.topic_data[0]
        name = topic.name if version < BY_ID_FROM else node.topic_name(topic.topic_id)
        if name is None or name in node.internal_topics:
            return
        partition = node.replicas.get(name, topic.partition_data[0].index)
        if partition is None or not takes_plain(partition.settings):
            return
        if self._count >= MOST_LANES or self._topology != node.topology:
            self._lanes.clear()
            self._count = 0
            self._topology = node.topology
        connection.repeats = at
        lanes = self._lanes.setdefault(version, {})
        prefix = bytes(frame[_PREFIX:at])
        known = lanes.get(prefix)
        if known is not None and known.settings is partition.settings:
            return  # only this batch was not for it
        lanes[prefix] = Lane(partition, request, version)
        self._count += known is None

    def take(
        self, connection: Connection, frame: memoryview, version: int, correlation_id: int
    ) -> Parts | Parked | None:
        """The answer; None where the request has to go the ordinary way."""
        node = self._node
        lanes = self._lanes.get(version)
        if lanes is None or self._topology != node.topology or not node.access.open:
            return None
        if node.throttles:
            return None
        at = connection.repeats
        lane = lanes.get(bytes(frame[_PREFIX:at]))
        if lane is None:
            at = _records_at(frame, version)
            lane = lanes.get(bytes(frame[_PREFIX:at]))
            if lane is None:
                return None
            connection.repeats = at
        partition = lane.partition
        leader = partition.leader
        if (
            leader is None
            or partition.settings is not lane.settings
            or partition.syncs
            or (
                lane.acks == -1
                and len(leader.isr) < lane.min_isr
                and not leader.in_sync(lane.min_isr)
            )
        ):
            return None
        now = node.world.clock.now()
        wall_ms = now.wall_ms
        found = native.kit.take_plain(
            frame,
            at,
            lane.compact,
            lane.most_bytes,
            wall_ms - lane.before_ms,
            wall_ms + lane.after_ms,
        )
        if found is None:
            return None
        view, header = found
        self._served.count += 1
        try:
            appended = partition.append(view, header, now)
        except KafkaError as error:
            answer = produce.refused(node, partition.index, partition, error)
            return self._say(lane, version, correlation_id, answer)
        counters = node.counters
        counters.short_produces += 1
        counters.messages_in += header.count
        counters.topic_bytes_in += len(view)
        if appended.duplicate:
            answer = produce.appended(partition.index, header, appended)
            return self._say(lane, version, correlation_id, answer)
        if lane.acks == -1 and partition.high_watermark.value <= appended.last_offset:
            answer = produce.appended(partition.index, header, appended)
            return Parked(
                self._wait(lane, version, correlation_id, answer, appended.last_offset + 1), True
            )
        out = lane.reply[:]
        _INT32.pack_into(out, 4, correlation_id)
        if lane.layout is _OFFSETS:
            _OFFSETS.pack_into(out, lane.hole, appended.base_offset, -1)
        else:
            _OFFSETS_AND_START.pack_into(
                out, lane.hole, appended.base_offset, -1, appended.start_offset
            )
        return (out,)

    def _say(
        self, lane: Lane, version: int, correlation_id: int, answer: PartitionProduceResponse
    ) -> Parts:
        out = bytearray(8 + (version >= FLEXIBLE_FROM))
        lane.answer(answer).encode_into(out, version)
        _INT32.pack_into(out, 0, len(out) - 4)
        _INT32.pack_into(out, 4, correlation_id)
        return (out,)

    async def _wait(
        self,
        lane: Lane,
        version: int,
        correlation_id: int,
        answer: PartitionProduceResponse,
        end_offset: int,
    ) -> Parts:
        wait = produce.Wait(answer, lane.partition.high_watermark, end_offset)
        await produce.watermarks(lane.request, [wait])
        return self._say(lane, version, correlation_id, answer)


def _records_at(frame: memoryview, version: int) -> int:
    """Where the size of the records stands in a request for one partition; 0 in any other."""
    try:
        length = int.from_bytes(frame[8:10], "big", signed=True)
        pos = 10 + max(length, 0)
        if version >= FLEXIBLE_FROM:
            return _flexible_records_at(frame, pos, version)
        if bytes(frame[pos : pos + 2]) != _NULL or bytes(frame[pos + 8 : pos + 12]) != _ONE:
            return 0
        pos += 14 + int.from_bytes(frame[pos + 12 : pos + 14], "big")
        return pos + 8 if bytes(frame[pos : pos + 4]) == _ONE else 0
    except IndexError:
        return 0


def _flexible_records_at(frame: memoryview, pos: int, version: int) -> int:
    if frame[pos] or frame[pos + 1]:  # tagged fields in the header, or a transactional id
        return 0
    pos += 8
    if frame[pos] != 2:  # one topic; arrays count from one
        return 0
    if version >= BY_ID_FROM:
        pos += 17
    else:
        size, pos = read_uvarint(frame, pos + 1)
        pos += size - 1
    return pos + 5 if frame[pos] == 2 else 0
