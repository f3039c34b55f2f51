"""The fast path of an OffsetCommit that repeats an earlier one, but for its offsets.

From one commit of a consumer to its next only the correlation id and the offsets differ. So what
the bytes around them mean is kept with the connection as a template: the shard, what the group's
machine has to check each time (`groups.offsets.repeats`), the answer, and the batch that goes into
the log, in which only the offsets, the time and the checksum are new. Commits of many partitions
go this way like those of one.

It takes only the plain good case. Whatever else comes (another member, another partition,
anything that would be refused or has to be asked) is left to the handler before anything has
changed. Check, append and replay are one step without an await, and the answer leaves once the
high watermark covers the append, as for every other request to a coordinator.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final

from scriba.broker.coordinators.shard import Shard, State
from scriba.broker.coordinators.shard_log import batches
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.connection import Connection
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.groups.machine import Groups
from scriba.groups.offsets.repeats import Repeat, check_and_touch, repeat_of, replay_repeat
from scriba.groups.refusals import refused
from scriba.instant import Instant
from scriba.native import implementation
from scriba.native.fallback import value_spans
from scriba.outcome import Caller, Outcome
from scriba.records.batch import HEADER_SIZE
from scriba.records.compression import Codec
from scriba.records.header import BatchHeader
from scriba.wire.locator import plan, stored_plan
from scriba.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from scriba.wire.messages.stored_groups import OffsetCommitValue

if TYPE_CHECKING:
    from scriba.broker.fastpath.ports import CommitFastPathHost
    from scriba.broker.net.api_entry import ApiEntry

MOST_BYTES: Final = 4096
"""A request beyond this has no template: connections should stay small."""
ATTEMPTS: Final = 4
PATIENCE: Final = 32
"""After so many templates in a row that nobody took, only every so many requests make one: a client
whose requests never repeat should not pay for each of them."""

_START: Final = 4
_BODY: Final = 8
"""Where the bytes begin that a client repeats: behind the correlation id."""
_INT32: Final = struct.Struct(">i")
_OFFSETS: Final = frozenset({"topics.partitions.committed_offset"})
_STORED: Final = frozenset({"offset", "commit_timestamp"})
_KIND: Final = (OffsetCommitValue.KEY or 0).to_bytes(2, "big")


class CommitTemplate:
    __slots__ = (
        "_api",
        "_bytes",
        "_departures",
        "_group_settings",
        "_machine",
        "_min_isr",
        "_node",
        "_repeat",
        "_reply",
        "_settings",
        "_shard",
        "_view",
        "used",
    )

    def __init__(
        self,
        node: CommitFastPathHost,
        api: ApiEntry,
        shard: Shard,
        machine: Groups,
        repeat: Repeat,
        places: list[int],
        frame: memoryview,
    ) -> None:
        version = repeat.caller.version
        self.used = False
        self._node = node
        self._api = api
        self._departures = node.departures
        self._shard = shard
        self._machine = machine
        self._repeat = repeat
        self._settings = shard.partition.settings
        self._group_settings = machine.settings
        self._min_isr = self._settings.min_insync_replicas
        batch, stored = _batch(shard, repeat)
        self._view = memoryview(batch)
        """Of the batch of the last commit, which is written before the next one is filled in."""
        reply = bytearray(8 + (version in OffsetCommitResponse.FLEXIBLE))
        _accepted(repeat.request).encode_into(reply, version)
        _INT32.pack_into(reply, 0, len(reply) - 4)
        self._reply = bytes(reply)
        offsets = tuple((at, *each) for at, each in zip(places, stored, strict=True))
        self._bytes = implementation.chosen.CommitBytes(bytes(frame), batch, offsets)

    def take(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """The answer; None where the request has to go to its handler."""
        now = connection.now
        found = self._bytes.take(frame, now.wall_ms)
        if found is None:
            return None
        node = self._node
        shard = self._shard
        state = self._machine.state
        partition = shard.partition
        leader = partition.leader
        if (
            leader is None
            or node.departures != self._departures
            or not node.fast_paths
            or not node.access.open
            or shard.state is not State.ACTIVE
            or leader.leader_epoch != shard.epoch
            or shard.machine is not self._machine
            or state.settings is not self._group_settings
            or partition.settings is not self._settings
            or (len(leader.isr) < self._min_isr and not leader.in_sync(self._min_isr))
            or not check_and_touch(state, self._repeat, now)
        ):
            return None
        offsets, header = found
        if not self._commit(offsets, header, now):
            return None
        self.used = True
        self._api.count += 1
        node.counters.fastpath_commits += 1
        out = bytearray(self._reply)
        out[_START:_BODY] = frame[_START:_BODY]
        end_offset = partition.log.end_offset
        if partition.high_watermark.value >= end_offset:
            return (out,)
        return Parked(self._wait(out, end_offset))

    def _commit(self, offsets: tuple[int, ...], header: BatchHeader, now: Instant) -> bool:
        """Appends and replays: one step. False where the log takes nothing, and is unchanged."""
        shard = self._shard
        groups = self._node.group_coordinators
        try:
            base_offset, *_ = shard.partition.append(self._view, header, now, True)
        except KafkaError:
            return False
        groups.counts.records_appended += len(offsets)
        repeat, state = self._repeat, self._machine.state
        try:
            replay_repeat(state, repeat, offsets, base_offset, now.wall_ms)
        except Exception:
            groups.surprised(shard)
            raise
        if repeat.request.member_id:  # whose session now ends later
            groups.set_alarm(shard)
        return True

    async def _wait(self, accepted: bytearray, end_offset: int) -> Parts:
        try:
            await self._node.group_coordinators.covered(self._shard.partition, end_offset)
        except KafkaError as error:
            version = self._repeat.caller.version
            out = bytearray(8 + (version in OffsetCommitResponse.FLEXIBLE))
            refused(self._repeat.request, error.code, version).encode_into(out, version)
            _INT32.pack_into(out, 0, len(out) - 4)
            out[_START:_BODY] = accepted[_START:_BODY]
            return (out,)
        return (accepted,)


class Commits:
    """What a connection keeps of its commits."""

    __slots__ = ("passed", "template", "vain")

    def __init__(self) -> None:
        self.template: CommitTemplate | None = None
        self.vain = 0
        """Templates in a row that were not taken."""
        self.passed = 0
        """Requests since the last of them was made."""

    def worth_a_template(self) -> bool:
        if self.template is not None and self.template.used:
            self.vain = 0
        self.passed += 1
        if self.vain >= ATTEMPTS and self.passed < PATIENCE:
            return False
        self.vain += 1
        self.passed = 0
        return True


class CommitFastPath:
    def __init__(self, node: CommitFastPathHost, api: ApiEntry) -> None:
        self._node = node
        self._api = api

    def learn(
        self, connection: Connection, frame: memoryview, request: OffsetCommitRequest
    ) -> None:
        """Remembers a request that goes to its handler, if the next may take the fast path."""
        if len(frame) > MOST_BYTES or not self._node.access.open:
            return
        commits: Commits | None = connection.commits
        if commits is None:
            commits = connection.commits = Commits()
        if commits.worth_a_template():
            commits.template = self._made(frame, request)

    def _made(self, frame: memoryview, request: OffsetCommitRequest) -> CommitTemplate | None:
        node = self._node
        version = int.from_bytes(frame[2:4], "big")
        try:
            shard = node.group_coordinators.answering(
                node.group_coordinators.partition_of(request.group_id)
            )
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
        places = _places(frame, version, self._api.limits.at_once)
        repeat = repeat_of(machine.state, request, Caller(version, "", "", b""))
        if places is None or repeat is None:
            return None
        try:
            return CommitTemplate(node, self._api, shard, machine, repeat, places, frame)
        except (KafkaError, ParseError, ValueError):
            return None  # the handler says why

    def enter(
        self, connection: Connection, frame: memoryview, version: int
    ) -> Parts | Parked | None:
        """Takes the template of the connection's commits, unless that was asked already."""
        commits: Commits | None = connection.commits
        template = commits.template if commits is not None else None
        if template is None or template is connection.fast_path:
            return None
        connection.fast_path = template
        return template.take(connection, frame)


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


@cache
def _plan(version: int) -> bytes:
    return plan(OffsetCommitRequest, version, frozenset(), _OFFSETS)


def _places(frame: memoryview, version: int, most_elements: int) -> list[int] | None:
    """Where the offsets stand in the frame; None where it is not walked through."""
    located = implementation.chosen.locate(_plan(version), frame, most_elements)
    if located is None:
        return None
    _, topics, *rest = located
    places: list[int] = []
    at = 0
    for _ in range(topics):
        count = rest[at]
        places += rest[at + 1 : at + 1 + count]
        at += 1 + count
    return places


@cache
def _stored_plan(version: int) -> bytes:
    return stored_plan(OffsetCommitValue, version, _STORED)


def _batch(shard: Shard, repeat: Repeat) -> tuple[bytearray, list[tuple[int, int]]]:
    """A batch of such a commit, and where each record has its offset and its time."""
    partition = shard.partition
    outcome = Outcome(records=repeat.records(0, 0))
    limit = partition.settings.max_message_bytes
    ((view, header, _),) = batches(partition.topic, outcome, Instant(0, 0), Codec.NONE, limit)
    records = view[HEADER_SIZE:]
    stored: list[tuple[int, int]] = []
    for begin, end in value_spans(records, header.count):
        value = bytes(records[begin:end])
        version = int.from_bytes(value[:2], "big")
        located = implementation.chosen.locate(_stored_plan(version), _KIND + value, 0)
        assert located is not None, "the request was walked through, with the same metadata"
        offset_at, time_at = (HEADER_SIZE + begin + at - len(_KIND) for at in located)
        stored.append((offset_at, time_at))
    return bytearray(view), stored
