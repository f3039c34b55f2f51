"""One shard of the group coordinator without a broker: what it appends is committed at once.

Every request and answer passes through its bytes in the version sent, every record through those
that stand in the log, so that what cannot be encoded is noticed here.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from scriba.groups.facts import GroupSettings, TopicFacts
from scriba.groups.machine import Groups
from scriba.groups.regex.search import matching
from scriba.groups.regex.syntax import Expression
from scriba.instant import Instant
from scriba.outcome import Caller, Origin, Outcome, Sees, at_once
from scriba.wire.messages import groups as wire
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, decode_change, encode_change
from scriba.wire.messages.txn import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from scriba.wire.schema import Message

Entry = tuple[str, Any, Any, Origin]
"""A record ("record", key bytes, value bytes) or a marker ("marker", producer id, commit)."""


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class TopicTable:
    """Implements `groups.facts.Topics`."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicFacts] = {}
        self.busy = False
        """Whether there are so many that no expression is matched at once."""
        self._ids = 0

    def create(self, name: str, partitions: int) -> TopicFacts:
        self._ids += 1
        self.topics[name] = TopicFacts(name, topic_id(self._ids), partitions)
        return self.topics[name]

    def get(self, name: str) -> TopicFacts | None:
        return self.topics.get(name)

    def by_id(self, id: bytes) -> TopicFacts | None:
        return next((facts for facts in self.topics.values() if facts.id == id), None)

    def names(self) -> Iterable[str]:
        return list(self.topics)

    def matching(self, expression: str, sees: Sees | None) -> frozenset[str] | None:
        if self.busy:
            return None
        found = matching(Expression(expression), self.names())
        return frozenset(name for name in found if sees is None or sees(name))


class Pending:
    """A request whose answer has not come yet."""

    def __repr__(self) -> str:
        return "PENDING"


PENDING = Pending()
REFUSED: Any = "the log can never take it"


class Shard:
    """`now` moves only by hand, and timers run when it does."""

    def __init__(self, **settings: Any) -> None:
        self.topics = TopicTable()
        self.now = Instant(1_000_000, 1_700_000_000_000)
        self.settings = GroupSettings(**settings)
        self.log: list[Entry] = []
        self.answers: dict[int, Any] = {}
        self.waiting: dict[int, tuple[type[Message], int]] = {}
        self.written: list[tuple[Message, Message | None]] = []
        self.events: list[Any] = []
        self.most_records: int | None = None
        """More than that in one step is what the log can never take."""
        self._tokens = 0
        self._random = random.Random(7)
        self.machine = Groups(self.settings, self.topics)
        self.carry_out(self.machine.loaded(self.now))

    # --- the shell ---

    def carry_out(self, outcome: Outcome) -> None:
        if outcome.work is not None:
            outcome = at_once(outcome.work)
        producer = outcome.producer or (-1, -1)
        self.written = []
        if self.most_records is not None and len(outcome.records) > self.most_records:
            self._refuse(outcome)
            return
        for change in outcome.records:
            key, value = encode_change(OFFSETS_TOPIC, change)
            origin = Origin(len(self.log), self.now.wall_ms, *producer)
            self.log.append(("record", key, value, origin))
            self._replay(self.machine, self.log[-1])
            decoded = decode_change(OFFSETS_TOPIC, key, value)
            assert decoded is not None
            assert type(decoded[0]) is type(change.key)
            self.written.append(decoded)
        told = [(token, at_once(telling)) for token, telling in outcome.told]
        for token, response in [*outcome.replies, *told]:
            _, version = self.waiting.pop(token)
            self.answers[token] = type(response).decode(response.encode(version), version)
        self.events += outcome.events

    def _refuse(self, outcome: Outcome) -> None:
        """As the broker does with records that are too large; `answers` has the error itself."""
        for token, _ in outcome.replies:
            del self.waiting[token]
            self.answers[token] = REFUSED
        assert outcome.instead is not None, "the machine would have to be built again"
        self.carry_out(outcome.instead(self.now))

    def _replay(self, machine: Groups, entry: Entry) -> None:
        kind, first, second, origin = entry
        if kind == "marker":
            at_once(machine.replay_marker(first, 0, second))
            return
        decoded = decode_change(OFFSETS_TOPIC, first, second)
        assert decoded is not None
        machine.replay(*decoded, origin)

    def send(self, request: Message, version: int | None = None, client: str = "client") -> int:
        """Returns the token under which the answer will be found."""
        version = type(request).VERSIONS.high if version is None else version
        request = type(request).decode(request.encode(version), version)
        self._tokens += 1
        token = self._tokens
        self.waiting[token] = (type(request), version)
        caller = Caller(version, client, "10.0.0.1", self._random.randbytes(16))
        self.carry_out(self.machine.handle(request, token, caller, self.now))
        return token

    def do(self, request: Message, version: int | None = None, client: str = "client") -> Any:
        """The answer, or PENDING if it has to wait."""
        return self.answers.get(self.send(request, version, client), PENDING)

    def answer(self, token: int) -> Any:
        return self.answers.get(token, PENDING)

    def pass_time(self, ms: int, wall_ms: int | None = None) -> None:
        """Time goes from deadline to deadline; the wall clock may go its own way."""
        end = self.now.mono_ms + ms
        wall = self.now.wall_ms + (ms if wall_ms is None else wall_ms)
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            gone = max(deadline - self.now.mono_ms, 0)
            self.now = Instant(self.now.mono_ms + gone, min(self.now.wall_ms + gone, wall))
            self.carry_out(self.machine.tick(self.now))
        self.now = Instant(end, wall)

    def end_txn(self, producer_id: int, commit: bool) -> None:
        origin = Origin(len(self.log), self.now.wall_ms)
        self.log.append(("marker", producer_id, commit, origin))
        self._replay(self.machine, self.log[-1])

    def change_topics(self, *names: str) -> None:
        self.carry_out(self.machine.topics_changed(names, self.now))

    def configure(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)
        self.machine.settings = self.settings

    def reloaded(self) -> Groups:
        """The machine that the log alone gives."""
        machine = Groups(self.settings, self.topics)
        for entry in self.log:
            self._replay(machine, entry)
        return machine

    def crash(self) -> None:
        """What was waiting is lost, and the next coordinator loads the log."""
        self.machine = self.reloaded()
        self.waiting.clear()
        self.carry_out(self.machine.loaded(self.now))

    def stored(self, machine: Groups | None = None) -> dict[str, Any]:
        """All that must survive a crash."""
        store = (machine or self.machine).state.store
        groups = {
            group_id: getattr(group, "stored", None)
            for group_id, group in store.groups.items()
            if getattr(group, "stored", None) is not None
        }
        return {
            "groups": groups,
            "offsets": store.offsets,
            "pending": store.pending,
            "open": store.open_txns,
            "unstable": store.unstable,
            "by_topic": store.by_topic,
        }

    # --- common requests ---

    def group(self, group_id: str = "g") -> Any:
        return self.machine.state.store.groups.get(group_id)

    def join_request(self, member_id: str = "", **changes: Any) -> wire.JoinGroupRequest:
        topics = changes.pop("topics", ["t"])
        names = changes.pop("names", ["range"])
        facts: dict[str, Any] = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [
                wire.JoinGroupRequestProtocol(name=name, metadata=subscription(*topics))
                for name in names
            ],
        }
        return wire.JoinGroupRequest(**(facts | changes))

    def join(self, member_id: str = "", version: int = 9, **changes: Any) -> int:
        """Joins; a dynamic member that is asked to come back with its new id does so."""
        client = changes.pop("client", "client")
        token = self.send(self.join_request(member_id, **changes), version, client)
        answer = self.answer(token)
        if answer is not PENDING and answer.error_code == 79:
            token = self.send(self.join_request(answer.member_id, **changes), version, client)
        return token

    def sync(
        self,
        joined: Any,
        assignment: dict[str, bytes] | None = None,
        version: int = 5,
        **changes: Any,
    ) -> int:
        facts: dict[str, Any] = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "protocol_type": joined.protocol_type if version >= 5 else None,
            "protocol_name": joined.protocol_name if version >= 5 else None,
            "assignments": [
                wire.SyncGroupRequestAssignment(member_id=member_id, assignment=share)
                for member_id, share in (assignment or {}).items()
            ],
        }
        return self.send(wire.SyncGroupRequest(**(facts | changes)), version)

    def stable(self, *members: dict[str, Any], **common: Any) -> list[Any]:
        """A new group of these members, each with its own name as its assignment."""
        tokens = [self.join(**(common | each)) for each in members]
        self.pass_time(self.settings.initial_rebalance_delay_ms * (len(members) + 1))
        joined = [self.answer(token) for token in tokens]
        assert all(each is not PENDING and each.error_code == 0 for each in joined)
        leader = next(each for each in joined if each.members)
        shares = {each.member_id: each.member_id.encode() for each in leader.members}
        self.sync(leader, shares)
        for each in joined:
            assert self.answer(self.sync(each)).assignment == each.member_id.encode()
        return joined

    def beat(self, joined: Any, version: int = 4, **changes: Any) -> int:
        facts: dict[str, Any] = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        answer = self.do(wire.HeartbeatRequest(**(facts | changes)), version)
        return int(answer.error_code)

    def leave(self, *members: dict[str, Any], version: int = 5, group_id: str = "g") -> Any:
        identities = [wire.MemberIdentity(**each) for each in members]
        return self.do(wire.LeaveGroupRequest(group_id=group_id, members=identities), version)

    def commit(
        self, offsets: dict[tuple[str, int], int], version: int = 9, **changes: Any
    ) -> dict[tuple[str, int], int]:
        """Errors by place."""
        metadata = changes.pop("metadata", "")
        leader_epoch = changes.pop("leader_epoch", -1)
        topics = [
            wire.OffsetCommitRequestTopic(
                name=name if version < 10 else "",
                topic_id=self.topics.topics[name].id if version >= 10 else bytes(16),
                partitions=[
                    wire.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=leader_epoch,
                        committed_metadata=metadata,
                    )
                ],
            )
            for (name, index), offset in offsets.items()
        ]
        facts: dict[str, Any] = {"group_id": "g", "topics": topics}
        answer = self.do(wire.OffsetCommitRequest(**(facts | changes)), version)
        errors = [p.error_code for topic in answer.topics for p in topic.partitions]
        return dict(zip(offsets, errors, strict=True))

    def commit_in_txn(
        self, producer_id: int, offsets: dict[tuple[str, int], int], **changes: Any
    ) -> dict[tuple[str, int], int]:
        topics = [
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=""
                    )
                ],
            )
            for (name, index), offset in offsets.items()
        ]
        facts: dict[str, Any] = {
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": producer_id,
            "producer_epoch": 0,
            "topics": topics,
        }
        answer = self.do(TxnOffsetCommitRequest(**(facts | changes)))
        errors = [p.error_code for topic in answer.topics for p in topic.partitions]
        return dict(zip(offsets, errors, strict=True))

    def fetch(
        self, *places: tuple[str, int], stable: bool = False, version: int = 9, **changes: Any
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Offset and error by place; without places, of all there are."""
        topics = [
            wire.OffsetFetchRequestTopics(
                name=name if version < 10 else "",
                topic_id=self.topics.topics[name].id if version >= 10 else bytes(16),
                partition_indexes=[index],
            )
            for name, index in places
        ]
        group = wire.OffsetFetchRequestGroup(
            **{"group_id": "g", "topics": topics if places else None, **changes}
        )
        request = wire.OffsetFetchRequest(groups=[group], require_stable=stable)
        answer = self.do(request, version).groups[0]
        assert answer.error_code == 0
        found = [
            (topic.name, p.partition_index, p.committed_offset, p.error_code)
            for topic in answer.topics
            for p in topic.partitions
        ]
        if version >= 10:
            names = [self.topics.by_id(topic.topic_id) for topic in answer.topics]
            assert all(facts is not None for facts in names)
            found = [
                (facts.name, *rest[1:])  # type: ignore[union-attr]
                for facts, rest in zip(names, found, strict=True)
            ]
        return {(name, index): (offset, error) for name, index, offset, error in found}

    def describe(self, group_id: str = "g", version: int = 6) -> Any:
        return self.do(wire.DescribeGroupsRequest(groups=[group_id]), version).groups[0]

    def list(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> dict[str, Any]:
        request = wire.ListGroupsRequest(states_filter=[*states], types_filter=[*types])
        return {group.group_id: group for group in self.do(request).groups}


def subscription(*topics: str, version: int = 3) -> bytes:
    message = wire.ConsumerProtocolSubscription(topics=[*topics])
    return version.to_bytes(2, "big") + message.encode(version)
