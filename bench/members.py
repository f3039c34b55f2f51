"""A classic group whose members are sockets: what a rebalance takes when the clients take nothing.

Each member sends what a consumer sends, one request after the other on one connection, and goes on
with the answer: Heartbeat, JoinGroup, SyncGroup, OffsetFetch, Fetch. A newcomer connects and asks
FindCoordinator before. The leader hands out the partitions in turn. A member flows when a Fetch has
brought records of each of its partitions, from the committed offset on.

How soon members hear of a rebalance is their own choice, the heartbeat interval, 3 s by default.
Here all are due as soon as there is something to hear, and again a millisecond after an answer that
says nothing: what is left is the broker's.
"""

import selectors
import socket
import struct
import time
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TypeVar
from uuid import UUID

from scriba.wire.frame import decode_response, encode_request
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from scriba.wire.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.schema import Message

REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 27, 79
JOIN, SYNC, HEARTBEAT, LEAVE, OFFSETS, FETCH, FIND = 9, 5, 4, 5, 9, 17, 4
"""Versions: the newest that work with names and ids as used here."""

PATIENCE_SECONDS = 60.0
PROTOCOL_VERSION = struct.pack(">h", 0)
BEAT_SECONDS = 0.001
REST_SECONDS = 0.05
"""Between the heartbeats of a member that flows while others do not yet."""

A = TypeVar("A", bound=Message)


class Member:
    """One connection; what it sends next depends on the last answer."""

    def __init__(self, group: "LeanGroup") -> None:
        self._group = group
        self._socket = socket.create_connection(("127.0.0.1", group.port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._on_answer: Callable[[bytes], None] | None = None
        self.member_id = ""
        self.generation = -1
        self.partitions: list[int] = []
        self.flows = False
        self.beat_at = 0.0
        """When to send the next heartbeat, if one is due; 0 if none is."""

    @property
    def at_rest(self) -> bool:
        return self._on_answer is None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _ask(
        self, request: Message | bytes, version: int, answer: type[A], then: Callable[[A], None]
    ) -> None:
        assert self._on_answer is None, "one request at a time"
        frame = request if isinstance(request, bytes) else framed(request, version)
        self._on_answer = lambda data: then(decoded(answer, data, version))
        self._socket.sendall(frame)

    def readable(self) -> None:
        got = self._socket.recv(1 << 18)
        if not got:
            raise ConnectionError("the broker closed the connection")
        self._received += got
        if len(self._received) < 4:
            return
        (size,) = struct.unpack_from(">i", self._received)
        if len(self._received) == 4 + size:
            data, self._received = bytes(self._received[4:]), bytearray()
            then, self._on_answer = self._on_answer, None
            assert then is not None, "an answer that nobody asked for"
            then(data)

    # ---- from one request to the next ----

    def begin(self) -> None:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group.name])
        self._ask(request, FIND, FindCoordinatorResponse, lambda _: self.join())

    def join(self) -> None:
        self.flows, self.beat_at = False, 0.0
        self._ask(self._group.join_of(self.member_id), JOIN, JoinGroupResponse, self._joined)

    def _joined(self, answer: JoinGroupResponse) -> None:
        self.member_id = answer.member_id
        if answer.error_code == MEMBER_ID_REQUIRED:
            self.join()
            self._group.all_beat()
            return
        check(answer.error_code)
        self.generation = answer.generation_id
        shares: list[SyncGroupRequestAssignment] = []
        if answer.leader == self.member_id:
            ids = sorted(each.member_id for each in answer.members)
            shares = [
                SyncGroupRequestAssignment(
                    member_id=each, assignment=self._group.share(n, len(ids))
                )
                for n, each in enumerate(ids)
            ]
        request = SyncGroupRequest(
            group_id=self._group.name,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=shares,
        )
        self._ask(request, SYNC, SyncGroupResponse, self._synced)

    def _synced(self, answer: SyncGroupResponse) -> None:
        if answer.error_code == REBALANCE_IN_PROGRESS:
            self.join()
            return
        check(answer.error_code)
        found = ConsumerProtocolAssignment.decode(bytes(answer.assignment)[2:], 0)
        [topic] = found.assigned_partitions
        self.partitions = list(topic.partitions)
        request = self._group.offsets_of(tuple(self.partitions))
        self._ask(request, OFFSETS, OffsetFetchResponse, self._placed)

    def _placed(self, answer: OffsetFetchResponse) -> None:
        [group] = answer.groups
        check(group.error_code)
        [topic] = group.topics
        wanted = tuple((each.partition_index, each.committed_offset) for each in topic.partitions)
        self._ask(self._group.fetch_of(wanted), FETCH, FetchResponse, self._fetched)

    def _fetched(self, answer: FetchResponse) -> None:
        check(answer.error_code)
        brought = [
            each.partition_index
            for topic in answer.responses
            for each in topic.partitions
            if each.records
        ]
        if sorted(brought) != sorted(self.partitions):
            raise AssertionError(f"records of {brought}, not of {self.partitions}")
        self.flows = True
        self.beat_at = time.monotonic() + REST_SECONDS

    def beat(self) -> None:
        self.beat_at = 0.0
        request = HeartbeatRequest(
            group_id=self._group.name, generation_id=self.generation, member_id=self.member_id
        )
        self._ask(request, HEARTBEAT, HeartbeatResponse, self._heard)

    def _heard(self, answer: HeartbeatResponse) -> None:
        if answer.error_code == REBALANCE_IN_PROGRESS:
            self.join()
        else:
            check(answer.error_code)
            pause = REST_SECONDS if self.flows else BEAT_SECONDS
            self.beat_at = time.monotonic() + pause

    def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=self._group.name, members=[MemberIdentity(member_id=self.member_id)]
        )
        self._ask(request, LEAVE, LeaveGroupResponse, lambda _: None)


@lru_cache(4096)
def decoded(answer: type[A], data: bytes, version: int) -> A:
    """Offsets and records are the same each time, and need not be taken apart again."""
    return decode_response(answer, data, version)[1]


def framed(request: Message, version: int) -> bytes:
    frame = encode_request(request, version, 1, "bench")
    return struct.pack(">i", len(frame)) + frame


def check(code: int) -> None:
    if code:
        raise AssertionError(f"error code {code}")


class LeanGroup:
    def __init__(self, port: int, name: str, topic: str, topic_id: UUID, partitions: int) -> None:
        self.port, self.name = port, name
        self.topic, self.topic_id = topic, topic_id
        self._partitions = partitions
        subscription = ConsumerProtocolSubscription(topics=[topic])
        self.subscription = PROTOCOL_VERSION + subscription.encode(0)
        self._members: list[Member] = []
        self._ready = selectors.DefaultSelector()

        # Made once: the members' own work is not what is measured.
        self.join_of = cache(self._join_of)
        self.offsets_of = cache(self._offsets_of)
        self.fetch_of = cache(self._fetch_of)
        self.share = cache(self._share)

    def _join_of(self, member_id: str) -> bytes:
        request = JoinGroupRequest(
            group_id=self.name,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=self.subscription)],
        )
        return framed(request, JOIN)

    def _offsets_of(self, partitions: tuple[int, ...]) -> bytes:
        topic = OffsetFetchRequestTopics(name=self.topic, partition_indexes=list(partitions))
        group = OffsetFetchRequestGroup(group_id=self.name, topics=[topic])
        return framed(OffsetFetchRequest(groups=[group], require_stable=True), OFFSETS)

    def _fetch_of(self, wanted: tuple[tuple[int, int], ...]) -> bytes:
        partitions = [
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in wanted
        ]
        topic = FetchTopic(topic_id=self.topic_id.bytes, partitions=partitions)
        return framed(FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic]), FETCH)

    def _share(self, number: int, of: int) -> bytes:
        own = list(range(number, self._partitions, of))
        topic = ConsumerProtocolAssignmentTopicPartition(topic=self.topic, partitions=own)
        assignment = ConsumerProtocolAssignment(assigned_partitions=[topic])
        return PROTOCOL_VERSION + assignment.encode(0)

    def join(self, count: int = 1) -> float:
        """Seconds until all partitions flow to the members there are then."""
        began = time.monotonic()
        for _ in range(count):
            member = Member(self)
            self._members.append(member)
            self._ready.register(member, selectors.EVENT_READ)
            member.begin()
        self._settle()
        return time.monotonic() - began

    def leave(self) -> float:
        member = self._members.pop(0)
        while not member.at_rest:
            self._turn()
        began = time.monotonic()
        member.leave()
        self.all_beat()
        self._settle()
        took = time.monotonic() - began
        self._part(member)
        return took

    def all_beat(self) -> None:
        """Whoever is at rest looks whether there is something new."""
        for member in self._members:
            if member.flows:
                member.flows = False
                member.beat_at = 0.0
                if member.at_rest:
                    member.beat()

    def _settle(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(member.flows for member in self._members):
            self._turn()
            if time.monotonic() > deadline:
                raise TimeoutError("the group never came to rest")

    def _turn(self) -> None:
        for key, _ in self._ready.select(BEAT_SECONDS):
            key.fileobj.readable()  # type: ignore[union-attr]
        now = time.monotonic()
        for member in self._members:
            if member.beat_at and member.beat_at <= now:
                member.beat()

    def _part(self, member: Member) -> None:
        self._ready.unregister(member)
        member.close()

    def close(self) -> None:
        for member in self._members:
            self._part(member)
        self._members.clear()
        self._ready.close()
