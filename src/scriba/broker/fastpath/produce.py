"""The short way of a Produce that says what an earlier one said.

A producer repeats itself: from one request to the next only the correlation id and the records
differ, and everything between them (client id, acks, time-out, topic, partition) is the same bytes
again. So what was found out for them once is kept under these bytes as a *lane*: the partition,
the limits of its topic, the answer with holes for its numbers. A later request is recognised by
comparing it with the last one of its connection, or else by one look into a table; its batch is
checked as always, appended as always, and its answer is a copy with the holes filled.

A lane knows only the plain good case. Whatever else comes (several partitions, a codec, a
transaction, log append time, an access check, a batch with any fault) is left to the ordinary way
before anything has changed. Lanes are forgotten when the cluster's shape changes, and passed by
when the partition has got other settings or another leader.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from scriba.broker.handlers import produce
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.connection import Connection
from scriba.errors import KafkaError
from scriba.native import implementation
from scriba.records.validate import LOOP_PLAIN_BYTES, takes_plain
from scriba.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from scriba.wire.varint import read_uvarint

if TYPE_CHECKING:
    from scriba.broker.fastpath.ports import ProduceFastPathHost
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.partitions.partition import Partition

MOST_LANES: Final = 4096
MOST_PREFIX: Final = 1024
FLEXIBLE_FROM: Final = 9
STARTS_TOLD_FROM: Final = 5
BY_ID_FROM: Final = 13

_START: Final = 4
_BODY: Final = 8
"""Where the bytes begin that a producer repeats: behind the correlation id."""
_FAR_MS: Final = 1 << 62
"""Farther from now than any timestamp; with the time of day it still has 63 bits."""
_ONE: Final = b"\0\0\0\1"
_NULL: Final = b"\xff\xff"
_MARK: Final = 0x5A17C0DE_5A17C0DE
_HEAD: Final = struct.Struct(">ii")


class Lane:
    __slots__ = (
        "_acks_all",
        "_api",
        "_form",
        "_min_isr",
        "_node",
        "_partition",
        "_request",
        "_topology",
        "_version",
        "end",
        "settings",
    )

    def __init__(
        self,
        node: ProduceFastPathHost,
        api: ApiEntry,
        partition: Partition,
        request: ProduceRequest,
        version: int,
        start: bytes,
        body: bytes,
    ) -> None:
        settings = partition.settings
        self.settings = settings
        self.end = _BODY + len(body)
        """How far in a frame the bytes go that repeat."""
        self._node = node
        self._api = api
        self._topology = node.topology
        self._partition = partition
        self._request = ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms)
        """What the ordinary way asks of a request; not its records, which are gone by then."""
        self._acks_all = request.acks == -1
        self._min_isr = settings.min_insync_replicas
        self._version = version
        told = PartitionProduceResponse(index=partition.index, base_offset=_MARK)
        reply = bytes(self._say(0, told))
        self._form = implementation.chosen.Form(
            start,
            body,
            version >= FLEXIBLE_FROM,
            min(settings.max_message_bytes, settings.segment_bytes, LOOP_PLAIN_BYTES),
            min(settings.message_timestamp_before_max_ms, _FAR_MS),
            min(settings.message_timestamp_after_max_ms, _FAR_MS),
            reply,
            reply.index(_MARK.to_bytes(8, "big")),
            version >= STARTS_TOLD_FROM,
        )

    def take(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """The answer; None where the request has to go the ordinary way."""
        now = connection.now
        found = self._form.take(frame, now.wall_ms)
        if found is None:
            return None
        node = self._node
        partition = self._partition
        leader = partition.leader
        if (
            leader is None
            or node.topology != self._topology
            or not node.fast_paths
            or not node.access.open
            or partition.settings is not self.settings
            or partition.syncs
            or (
                self._acks_all
                and len(leader.isr) < self._min_isr
                and not leader.in_sync(self._min_isr)
            )
        ):
            return None
        view, header = found
        self._api.count += 1
        try:
            appended = partition.append(view, header, now)
        except KafkaError as error:
            answer = produce.refused(node, partition.index, partition, error)
            return (self._say(_correlation_id(frame), answer),)
        counters = node.counters
        counters.fastpath_produces += 1
        counters.messages_in += header.count
        counters.topic_bytes_in += len(view)
        if appended.duplicate:
            counters.duplicates += 1
            answer = produce.appended(partition.index, header, appended)
            return (self._say(_correlation_id(frame), answer),)
        if self._acks_all and partition.high_watermark.value <= appended.last_offset:
            answer = produce.appended(partition.index, header, appended)
            end = appended.last_offset + 1
            return Parked(self._wait(_correlation_id(frame), answer, end), True)
        return (self._form.answer(frame, appended.base_offset, appended.start_offset),)

    def _say(self, correlation_id: int, answer: PartitionProduceResponse) -> bytearray:
        version = self._version
        topic = TopicProduceResponse(
            name=self._partition.topic,
            topic_id=self._partition.topic_id,
            partition_responses=[answer],
        )
        out = bytearray(8 + (version >= FLEXIBLE_FROM))
        ProduceResponse(responses=[topic]).encode_into(out, version)
        _HEAD.pack_into(out, 0, len(out) - 4, correlation_id)
        return out

    async def _wait(
        self, correlation_id: int, answer: PartitionProduceResponse, end_offset: int
    ) -> Parts:
        wait = produce.Wait(answer, self._partition.high_watermark, end_offset)
        await produce.watermarks(self._request, [wait])
        return (self._say(correlation_id, answer),)


class ProduceLanes:
    def __init__(self, node: ProduceFastPathHost, api: ApiEntry) -> None:
        self._node = node
        self._api = api
        self._lanes: dict[int, dict[bytes, Lane]] = {}
        self._count = 0
        self._topology = -1

    def learn(self, connection: Connection, frame: memoryview, request: ProduceRequest) -> None:
        """Remembers a request that went the ordinary way, if the next may go the short one."""
        node = self._node
        version = int.from_bytes(frame[2:4], "big")
        at = _records_at(frame, version)
        if not 0 < at <= MOST_PREFIX or request.acks not in (1, -1) or not node.access.open:
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
        lanes = self._lanes.setdefault(version, {})
        body = bytes(frame[_BODY:at])
        known = lanes.get(body)
        if known is not None and known.settings is partition.settings:
            return  # only this batch was not for it
        start = bytes(frame[:_START])
        lanes[body] = Lane(node, self._api, partition, request, version, start, body)
        self._count += known is None

    def enter(
        self, connection: Connection, frame: memoryview, version: int
    ) -> Parts | Parked | None:
        """Takes the lane that the request is for, unless that was asked already."""
        lanes = self._lanes.get(version)
        if lanes is None or self._topology != self._node.topology:
            return None
        last = connection.lane
        # Partitions of a topic have prefixes of one size: most often it is found at once.
        lane = lanes.get(bytes(frame[_BODY : last.end])) if type(last) is Lane else None
        if lane is None:
            lane = lanes.get(bytes(frame[_BODY : _records_at(frame, version)]))
        if lane is None or lane is last:
            return None
        connection.lane = lane
        return lane.take(connection, frame)


def _correlation_id(frame: memoryview) -> int:
    return int.from_bytes(frame[_START:_BODY], "big", signed=True)


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
