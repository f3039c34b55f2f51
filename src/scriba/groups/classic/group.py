"""A group of the classic protocol: its members, its phase, and the rules that need nothing else.

What is stored of it is one record, `stored`: the last generation that its leader assigned, or an
empty one. The living group runs ahead of that: members join, a generation forms, requests wait.
After a load it starts from the stored generation, as Stable if it has members and else as Empty.

Members keep the order in which they joined, so that every choice made by going through them (the
next leader, a tie between protocols) comes out the same on every run.
"""

import enum
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.groups.classic.embedded import read_topics
from scriba.groups.store import CheckTopicPartition, Committed
from scriba.outcome import Change, Token, at_once
from scriba.wire.messages.stored_groups import GroupMetadataKey, GroupMetadataValue, MemberMetadata

CONSUMER_PROTOCOL: Final = "consumer"
AT_ONCE: Final = 250
"""Members that are gone through before others have their turn."""


class Phase(enum.StrEnum):
    """As DescribeGroups and ListGroups name them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.EMPTY: frozenset({Phase.PREPARING, Phase.DEAD}),
    Phase.PREPARING: frozenset({Phase.COMPLETING, Phase.EMPTY, Phase.DEAD}),
    Phase.COMPLETING: frozenset({Phase.STABLE, Phase.PREPARING, Phase.DEAD}),
    Phase.STABLE: frozenset({Phase.PREPARING, Phase.DEAD}),
    Phase.DEAD: frozenset(),
}
"""EMPTY has no members. PREPARING waits until all have joined or their time is up, COMPLETING until
the leader has assigned; STABLE has the assignment. DEAD is a group that was deleted."""


class Waiter(NamedTuple):
    """A JoinGroup or SyncGroup that is not answered yet."""

    token: Token
    version: int


Protocols = tuple[tuple[str, bytes], ...]
"""Name and metadata of each protocol a member can use, the preferred one first."""


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    joining: Waiter | None = None
    syncing: Waiter | None = None
    fresh: bool = False
    """Has never seen a generation: it may not know its own id, hence cannot heartbeat."""

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def heard_of(self) -> bool:
        """Whether a request that waits here stands for the heartbeat."""
        return not self.fresh and (self.joining is not None or self.syncing is not None)


class ClassicGroup:
    """Implements `store.Group`."""

    kind = "classic"

    def __init__(self, group_id: str, since_ms: int) -> None:
        self.group_id = group_id
        self.phase = Phase.EMPTY
        self.previous = Phase.DEAD
        self.since_ms = since_ms
        """Wall-clock time of the last change of phase; -1 where an old record did not tell."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}
        """Instance id -> member id."""
        self.pending: dict[str, None] = {}
        """Ids given out (KIP-394) whose owners have not joined with them yet."""
        self.awaiting_sync: dict[str, None] = {}
        self.topics: frozenset[str] | None = None
        """What the members subscribe to; None where that cannot be told."""
        self.grew = False
        """A member came while the first rebalance was being delayed."""
        self.initial_delay_ms = 0
        self.initial_left_ms = 0
        self.stored: GroupMetadataValue | None = None
        self._knowing: Counter[str] = Counter()
        """Protocol -> how many members know it."""

    # --- phases ---

    def become(self, phase: Phase, wall_ms: int) -> None:
        assert phase in VALID[self.phase], f"{self.group_id}: {self.phase} -> {phase}"
        self.previous, self.phase = self.phase, phase
        self.since_ms = wall_ms

    def can_rebalance(self) -> bool:
        return Phase.PREPARING in VALID[self.phase]

    def next_generation(self, wall_ms: int) -> Generator[None, None, None]:
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.topics = yield from self.subscribed_topics()
        self.become(Phase.COMPLETING if self.members else Phase.EMPTY, wall_ms)
        self.awaiting_sync.clear()

    # --- members ---

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            assert member.instance_id not in self.statics
            self.statics[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._knowing.update(_names(member.protocols))
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Takes out a member or a pending member, whose waiters have been answered."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._forget(member.protocols)
            if member.instance_id is not None:
                del self.statics[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.pop(member_id, None)
        self.awaiting_sync.pop(member_id, None)

    def offer(self, member: Member, protocols: Protocols) -> None:
        """What a member that joins again can do now."""
        self._forget(member.protocols)
        member.protocols = protocols
        self._knowing.update(_names(protocols))

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back under a new id, which takes over place and leadership."""
        assert member.instance_id is not None
        self.members = {
            member_id if id == member.member_id else id: each for id, each in self.members.items()
        }
        if self.leader == member.member_id:
            self.leader = member_id
        self.statics[member.instance_id] = member_id
        if member.member_id in self.awaiting_sync:
            del self.awaiting_sync[member.member_id]
            self.awaiting_sync[member_id] = None
        member.member_id = member_id

    def joined(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    def all_joined(self) -> bool:
        # From the end, since members come back in about the order in which they once came: with
        # many of them the first that is looked at is one that is missing.
        return not self.pending and all(
            member.joining is not None for member in reversed(self.members.values())
        )

    def elect_joined_leader(self) -> bool:
        """Whether the leader has joined, or else another member that takes its place."""
        if self.leader is None:
            return False
        if self.members[self.leader].joining is None:
            joined = (m.member_id for m in self.members.values() if m.joining is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader = leader
        return True

    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def has_room(self, member_id: str, max_size: int) -> bool:
        """While a generation forms, those count that have joined: if the limit was lowered, the
        last to come are left out."""
        member = self.members.get(member_id)
        if self.phase is Phase.PREPARING:
            if len(self.members) < max_size or (member is not None and member.joining is not None):
                return True
            return self.joined() < max_size
        if self.phase in (Phase.COMPLETING, Phase.STABLE):
            return member is not None or len(self.members) < max_size
        return True

    # --- protocols ---

    def supports(self, protocol_type: str, protocols: Sequence[str]) -> bool:
        """Whether a member with these protocols shares one with everybody."""
        if self.phase is Phase.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        return not self.members or any(map(self._is_common, protocols))

    def select_protocol(self) -> str:
        """Every member votes for the first of its protocols that all can use."""
        common = {name for name, count in self._knowing.items() if count == len(self.members)}
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _forget(self, protocols: Protocols) -> None:
        """A member no longer knows them."""
        for name in _names(protocols):
            self._knowing[name] -= 1
            if not self._knowing[name]:
                del self._knowing[name]

    def _is_common(self, name: str) -> bool:
        """Whether all members know a protocol."""
        return self._knowing[name] == len(self.members)

    def subscribed_topics(self) -> Generator[None, None, frozenset[str] | None]:
        """The topics of all members, if they speak the consumers' protocol. Only the first version
        of a subscription is read, which later ones begin with; members' are mostly alike."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        topics: set[str] = set()
        subscriptions = {member.metadata(self.protocol) for member in self.members.values()}
        try:
            for count, subscription in enumerate(subscriptions, 1):
                topics.update(read_topics(subscription))
                if count % AT_ONCE == 0:
                    yield
        except ParseError:
            return None
        return frozenset(topics)

    # --- store.Group ---

    def state_name(self) -> str:
        return self.phase.value

    def protocol_type_name(self) -> str:
        return self.protocol_type or ""

    def empty(self) -> bool:
        return self.phase is Phase.EMPTY

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            known = self.statics.get(instance_id)
            if known is None:
                refuse(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                refuse(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, version: int, in_txn: bool
    ) -> CheckTopicPartition | None:
        """Without a generation it is a simple consumer or an administrator: allowed only while
        nobody is a member. A transaction may be older than that rule, and than member ids in it."""
        if epoch < 0 and self.empty():
            return None
        if epoch >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if epoch != self.generation:
                refuse(ErrorCode.ILLEGAL_GENERATION)
        elif not in_txn:
            refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        if not in_txn and self.phase is Phase.COMPLETING:
            refuse(ErrorCode.REBALANCE_IN_PROGRESS)
        return None

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Whoever may describe the group may read its offsets, member or not."""

    def check_offset_delete(self) -> None:
        if not self.empty() and self.protocol_type != CONSUMER_PROTOCOL:
            refuse(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if not self.empty():
            refuse(ErrorCode.NON_EMPTY_GROUP)

    def subscribed(self, topic: str) -> bool:
        """A group of consumers whose subscription cannot be read may be using any topic."""
        if self.topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.topics

    def idle_since(self, committed: Committed) -> int | None:
        """Of an empty group, since it became empty (KIP-211); of a simple consumer, and of topics
        that a group no longer subscribes to, since the commit."""
        if self.protocol_type is None:
            return committed.commit_ms
        if self.empty():
            return committed.commit_ms if self.since_ms < 0 else self.since_ms
        if self.phase is Phase.STABLE and self.topics is not None:
            return committed.commit_ms
        return None

    def tombstones(self) -> list[Change]:
        return [Change(GroupMetadataKey(group=self.group_id), None)]

    # --- stored ---

    def record(self) -> Generator[None, None, Change]:
        members = []
        for count, member in enumerate(self.members.values(), 1):
            members.append(_stored(member, self.protocol))
            if count % AT_ONCE == 0:
                yield
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.since_ms,
            members=members,
        )
        return Change(GroupMetadataKey(group=self.group_id), value)

    @classmethod
    def read(cls, group_id: str, value: GroupMetadataValue) -> "ClassicGroup":
        group = cls(group_id, value.current_state_timestamp)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        for each in value.members:
            member = Member(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout if each.rebalance_timeout < 0 else each.rebalance_timeout,
                each.session_timeout,
                ((value.protocol or "", each.subscription),),
                each.assignment,
            )
            group.add(member, value.protocol_type)
        group.leader = value.leader
        if group.members:
            group.phase = Phase.STABLE
        group.topics = at_once(group.subscribed_topics())
        group.stored = value
        return group


def _names(protocols: Protocols) -> set[str]:
    return {name for name, _ in protocols}


def _stored(member: Member, protocol: str | None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment,
    )


def empty_record(group: ClassicGroup) -> Change:
    """A group that exists, though nobody is a member yet."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=group.since_ms,
    )
    return Change(GroupMetadataKey(group=group.group_id), value)


def refuse(error: ErrorCode) -> NoReturn:
    raise KafkaError(error)
