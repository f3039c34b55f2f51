"""The short way of an OffsetCommit that says what an earlier one said.

From one commit of a consumer to its next only the correlation id and the offsets differ. So what
the bytes around them mean is kept with the connection as a *lane*: the shard, what the group's
machine has to check each time (`groups.repeats`), the answer, and the batch that goes into the
log, in which only the offsets, the time and the checksum are new. Commits of many partitions go
this way like those of one.

A lane knows only the plain good case. Whatever else comes (another member, another partition,
anything that would be refused or has to be asked) is left to the ordinary way before anything has
changed. Check, append and replay are one step without an await, and the answer leaves once the
high watermark covers the append, as for every other request to a coordinator.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from scriba.broker.answers import Parked, Parts
from scriba.broker.connection import Connection
from scriba.broker.shard import Shard, State
from scriba.broker.shard_log import batches
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.groups.machine import Groups
from scriba.groups.refusals import refused
from scriba.groups.repeats import Repeat, may_repeat, repeat_of, store
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome
from scriba.records.batch import HEADER_SIZE
from scriba.records.compression import Codec
from scriba.records.crc import crc32c
from scriba.records.header import CRC_OFFSET, CRC_START, HEADER, BatchHeader
from scriba.wire.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from scriba.broker.dispatch import Served
    from scriba.broker.node import Node

MOST_BYTES: Final = 4096
"""A request beyond this has no lane: connections should stay small."""
ATTEMPTS: Final = 4
PATIENCE: Final = 32
"""After so many lanes in a row that nobody took, only every so many requests make one: a client
whose requests never repeat should not pay for each of them."""
FLEXIBLE_FROM: Final = 8

_BODY: Final = 8
"""Where the bytes begin that a client repeats: behind the correlation id."""
_TIMES_AT: Final = 27
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TIMES: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")
_ONES: Final = b"\xff" * 8
_new = tuple.__new__  # makes a named tuple without a call of Python


class CommitLane:
    __slots__ = (
        "_covered",
        "_fixed",
        "_holes",
        "_layout",
        "_view",
        "group_settings",
        "machine",
        "repeat",
        "reply",
        "settings",
        "shard",
        "topology",
        "used",
        "version",
    )

    def __init__(
        self, shard: Shard, machine: Groups, repeat: Repeat, holes: list[int], frame: memoryview
    ) -> None:
        self.shard = shard
        self.machine = machine
        self.repeat = repeat
        self.settings = shard.partition.settings
        self.group_settings = machine.settings
        self.topology = -1
        self.version = version = repeat.caller.version
        self.used = False
        self._layout = _layout(holes, len(frame))
        self._fixed = self._layout.unpack(frame)[::2]
        batch, self._holes = _batch(shard, repeat)
        self._view = memoryview(batch)
        self._covered = self._view[CRC_START:]
        self.reply = bytearray(8 + (version >= FLEXIBLE_FROM))
        _accepted(repeat.request).encode_into(self.reply, version)
        _INT32.pack_into(self.reply, 0, len(self.reply) - 4)

    def offsets(self, frame: memoryview) -> tuple[int, ...] | None:
        """What the request commits; None if it is not this lane's."""
        layout = self._layout
        if len(frame) != layout.size:
            return None
        fields: tuple[int, ...] = layout.unpack(frame)
        return fields[1::2] if fields[::2] == self._fixed else None

    def fill(self, offsets: tuple[int, ...], now_ms: int) -> tuple[memoryview, BatchHeader]:
        """The batch of this commit. It is written before the next one is filled in."""
        view = self._view
        pack = _INT64.pack_into
        for (offset_at, time_at), offset in zip(self._holes, offsets, strict=True):
            pack(view, offset_at, offset)
            pack(view, time_at, now_ms)
        _TIMES.pack_into(view, _TIMES_AT, now_ms, now_ms)
        _CRC.pack_into(view, CRC_OFFSET, crc32c(self._covered))
        return view, _new(BatchHeader, HEADER.unpack_from(view))


class Commits:
    """What a connection keeps of its commits."""

    __slots__ = ("lane", "passed", "vain")

    def __init__(self) -> None:
        self.lane: CommitLane | None = None
        self.vain = 0
        """Lanes in a row that were not taken."""
        self.passed = 0
        """Requests since the last of them was made."""

    def worth_a_lane(self) -> bool:
        if self.lane is not None and self.lane.used:
            self.vain = 0
        self.passed += 1
        if self.vain >= ATTEMPTS and self.passed < PATIENCE:
            return False
        self.vain += 1
        self.passed = 0
        return True


class CommitLanes:
    def __init__(self, node: Node, served: Served) -> None:
        self._node = node
        self._served = served

    def learn(
        self, connection: Connection, frame: memoryview, request: OffsetCommitRequest
    ) -> None:
        """Remembers a request that goes the ordinary way, if the next may go the short one."""
        if len(frame) > MOST_BYTES or not self._node.access.open:
            return
        commits = connection.commits
        if commits is None:
            commits = connection.commits = Commits()
        if commits.worth_a_lane():
            commits.lane = self._lane(frame, request)

    def _lane(self, frame: memoryview, request: OffsetCommitRequest) -> CommitLane | None:
        node = self._node
        version = int.from_bytes(frame[2:4], "big")
        try:
            shard = node.groups.answering(node.groups.partition_of(request.group_id))
        except KafkaError:
            return None
        machine = shard.machine
        settings = shard.partition.settings
        if (
            not isinstance(machine, Groups)
            or node.settings.offsets_topic_compression_codec
            or settings.message_timestamp_type != "CreateTime"
        ):
            return None
        holes = _holes(frame, request, version)
        repeat = repeat_of(machine.state, request, Caller(version, "", "", b""))
        if holes is None or repeat is None:
            return None
        try:
            lane = CommitLane(shard, machine, repeat, holes, frame)
        except (KafkaError, ParseError, ValueError):
            return None  # the ordinary way says why
        lane.topology = node.topology
        return lane

    def take(
        self, connection: Connection, frame: memoryview, version: int, correlation_id: int
    ) -> Parts | Parked | None:
        """The answer; None where the request has to go the ordinary way."""
        commits = connection.commits
        if commits is None:
            return None
        lane = commits.lane
        node = self._node
        if lane is None or lane.version != version or lane.topology != node.topology:
            return None
        offsets = lane.offsets(frame)
        shard = lane.shard
        partition = shard.partition
        leader = partition.leader
        if (
            offsets is None
            or leader is None
            or not node.access.open
            or node.throttles
            or shard.state is not State.ACTIVE
            or leader.leader_epoch != shard.epoch
            or shard.machine is not lane.machine
            or lane.machine.state.settings is not lane.group_settings
            or partition.settings is not lane.settings
            or not leader.in_sync(lane.settings.min_insync_replicas)
        ):
            return None
        now = node.world.clock.now()
        if not may_repeat(lane.machine.state, lane.repeat, now):
            return None
        if not self._commit(lane, offsets, now):
            return None
        lane.used = True
        self._served.count += 1
        node.counters.short_commits += 1
        out = lane.reply[:]
        _INT32.pack_into(out, 4, correlation_id)
        if partition.high_watermark.value >= partition.log.end_offset:
            return (out,)
        return Parked(self._wait(lane, out, correlation_id, partition.log.end_offset))

    def _commit(self, lane: CommitLane, offsets: tuple[int, ...], now: Instant) -> bool:
        """Appends and replays: one step. False where the log takes nothing, and is unchanged."""
        shard = lane.shard
        view, header = lane.fill(offsets, now.wall_ms)
        try:
            appended = shard.partition.append(view, header, now, by_coordinator=True)
        except KafkaError:
            return False
        self._node.groups.counts.records_appended += len(offsets)
        try:
            store(lane.machine.state, lane.repeat, offsets, appended.base_offset, now.wall_ms)
        except Exception:
            self._node.groups.surprised(shard)
            raise
        if lane.repeat.request.member_id:  # whose session now ends later
            self._node.groups.set_alarm(shard)
        return True

    async def _wait(
        self, lane: CommitLane, accepted: bytearray, correlation_id: int, end_offset: int
    ) -> Parts:
        try:
            await self._node.groups.covered(lane.shard.partition, end_offset)
        except KafkaError as error:
            out = bytearray(8 + (lane.version >= FLEXIBLE_FROM))
            refused(lane.repeat.request, error.code, lane.version).encode_into(out, lane.version)
            _INT32.pack_into(out, 0, len(out) - 4)
            _INT32.pack_into(out, 4, correlation_id)
            return (out,)
        return (accepted,)


def _accepted(request: OffsetCommitRequest) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=ErrorCode.NONE
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _holes(frame: memoryview, request: OffsetCommitRequest, version: int) -> list[int] | None:
    """Where the offsets stand in the frame; None if it holds anything that we would not write."""
    zeros = _with_offset(request, 0).encode(version)
    start = len(frame) - len(zeros)
    if start < _BODY:
        return None
    places = [start + at for at in _differences(zeros, _with_offset(request, -1).encode(version))]
    blank = bytearray(frame)
    for at in places:
        blank[at : at + 8] = bytes(8)
    return places if blank[start:] == zeros else None


def _with_offset(request: OffsetCommitRequest, offset: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition_index,
                        committed_offset=offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        committed_metadata=each.committed_metadata,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _layout(holes: list[int], size: int) -> struct.Struct:
    """Bytes that repeat and offsets, in turn; the first bytes end before the correlation id."""
    parts = [f">8x{holes[0] - _BODY}s"]
    ends = [*holes[1:], size]
    parts += (f"q{end - at - 8}s" for at, end in zip(holes, ends, strict=True))
    return struct.Struct("".join(parts))


def _batch(shard: Shard, repeat: Repeat) -> tuple[bytearray, list[tuple[int, int]]]:
    """A batch of such a commit, and where each record has its offset and its time."""
    limit = shard.partition.settings.max_message_bytes
    topic = shard.partition.topic

    def build(offset: int, commit_ms: int) -> bytes:
        outcome = Outcome(records=repeat.records(offset, commit_ms))
        (batch,) = batches(topic, outcome, Instant(0, 0), Codec.NONE, limit)
        return bytes(batch.view)

    plain = build(0, 0)
    records = plain[HEADER_SIZE:]
    offsets = _differences(records, build(-1, 0)[HEADER_SIZE:])
    times = _differences(records, build(0, -1)[HEADER_SIZE:])
    holes = zip(offsets, times, strict=True)
    return bytearray(plain), [(HEADER_SIZE + at, HEADER_SIZE + time) for at, time in holes]


def _differences(zeros: bytes, ones: bytes) -> list[int]:
    """Where an eight-byte field is zero in the first and minus one in the second."""
    size = len(zeros)
    differs = (int.from_bytes(zeros, "big") ^ int.from_bytes(ones, "big")).to_bytes(size, "big")
    found: list[int] = []
    at = differs.find(_ONES)
    while at >= 0:
        found.append(at)
        at = differs.find(_ONES, at + 8)
    return found
