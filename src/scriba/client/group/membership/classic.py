"""Membership by the classic protocol: members meet at a barrier, one of them shares out.

    OUT         no member: nothing is subscribed to, or it has left
    PREPARING   a rebalance is wanted; the application first gives up what it must
    JOINING     JoinGroup is answered once all members have sent theirs
    ASSIGNING   the leader waits for the metadata of all the group's topics, then plans
    SYNCING     SyncGroup is answered once the leader has sent the plan
    ADOPTING    the plan is here; the application takes over its part
    STABLE      heartbeats only
    AWAY        the application does not poll: nothing is sent until it does

Eager members give up everything in PREPARING. Cooperative ones keep all they still want, give up
in ADOPTING what the plan took from them, and then join once more so that it can be handed out
(KIP-429).

Heartbeats go on wherever there is a generation and no other request under way: a member whose
application is slow to give up or take over its partitions is not dead. An answer to a request of
an older generation changes nothing. Once the group has said that it does not know this member or
its generation, whatever is owned is lost: it is never committed, and the application is told before
it is given anything new.
"""

import enum
from collections.abc import Mapping
from typing import Final

from scriba.client.group.assignors import Assignor
from scriba.client.group.assignors.model import Member, OwnedPartitions, Partitions
from scriba.client.group.membership.machine import Machine
from scriba.client.group.membership.model import Change, Identity, Subscribed
from scriba.client.group.membership.payload import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode, ParseError, error_code
from scriba.peers.errors import BrokerError
from scriba.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from scriba.wire.schema import Message

PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1


class Phase(enum.Enum):
    OUT = "out"
    PREPARING = "preparing"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    ADOPTING = "adopting"
    STABLE = "stable"
    AWAY = "away"


_P = Phase
VALID: Final[Mapping[Phase, frozenset[Phase]]] = {
    _P.OUT: frozenset({_P.PREPARING}),
    _P.PREPARING: frozenset({_P.JOINING, _P.AWAY, _P.OUT}),
    _P.JOINING: frozenset({_P.ASSIGNING, _P.SYNCING, _P.PREPARING, _P.OUT}),
    _P.ASSIGNING: frozenset({_P.SYNCING, _P.PREPARING, _P.AWAY, _P.OUT}),
    _P.SYNCING: frozenset({_P.ADOPTING, _P.JOINING, _P.PREPARING, _P.OUT}),
    _P.ADOPTING: frozenset({_P.STABLE, _P.PREPARING, _P.AWAY, _P.OUT}),
    _P.STABLE: frozenset({_P.PREPARING, _P.AWAY, _P.OUT}),
    _P.AWAY: frozenset({_P.PREPARING, _P.OUT}),
}

_BEATING: Final = frozenset({_P.PREPARING, _P.ASSIGNING, _P.ADOPTING, _P.STABLE})
_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_ABOUT_MEMBER: Final = _UNKNOWN | {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
}


class Classic(Machine[Phase]):
    def __init__(self, identity: Identity) -> None:
        super().__init__(identity, Phase.OUT, VALID, _BEATING)
        self.member_id = ""
        self.generation = NO_GENERATION
        self.needed_topics: frozenset[str] = frozenset()
        """What the leader has to know of: the topics of all members."""
        self.cooperative = all(assignor.cooperative for assignor in identity.assignors)
        self._assignors = {assignor.name: assignor for assignor in identity.assignors}
        self._joined = Subscribed()
        self._rejoin = ""
        self._lost = False
        self._assignor: Assignor | None = None
        self._members: tuple[Member, ...] = ()
        self._skip_assignment = False
        self._planned: Partitions | None = None
        """The partition counts that the current plan was made for, as a leader."""
        self._plan: dict[str, list[TopicPartition]] = {}
        self._target: tuple[TopicPartition, ...] = ()
        self._held = OwnedPartitions()

    @property
    def lost(self) -> bool:
        return self._lost

    # -- what the application wants --------------------------------------------------------------

    def want(self, wish: Subscribed) -> None:
        self._wish = wish
        if self.phase is Phase.OUT:
            self._go(Phase.PREPARING)
            self._rejoin = "subscribed"
            self._prepared()
        elif wish != self._joined:
            self._wants_rejoin("the subscription changed")

    def polled(self, now: int) -> None:
        self._last_poll = now
        if self.phase is Phase.AWAY:
            self._rejoin = "polling again"
            self._go(Phase.PREPARING)
            self._prepared()

    def leave(self, reason: str) -> LeaveGroupRequest | None:
        request = self._farewell(reason)
        if self.phase is not Phase.OUT:
            self._go(Phase.OUT)
        self._forget(member_too=True)
        self._lost = self._changing = False
        self.owned = ()
        self._wish = self._joined = Subscribed()
        return request

    def _farewell(self, reason: str) -> LeaveGroupRequest | None:
        """A static member says nothing: it may be back before its session ends (KIP-345)."""
        if not self.member_id or self._identity.instance_id is not None:
            return None
        me = MemberIdentity(member_id=self.member_id, reason=reason)
        return LeaveGroupRequest(group_id=self._identity.group_id, members=[me])

    # -- changes of the partitions ---------------------------------------------------------------

    def change(self) -> Change | None:
        if self.phase is Phase.PREPARING:
            release = self._to_release()
            return Change(release, self._lost) if release else None
        if self.phase is Phase.ADOPTING:
            kept = set(self._target)
            release = tuple(where for where in self.owned if where not in kept)
            return Change(release, assign=self._target)
        return None

    def changed(self, change: Change) -> None:
        self._carried_out(change)
        if self.phase is Phase.ADOPTING and change.assign is not None:
            self._held = OwnedPartitions(self.owned, self.generation)
            self._go(Phase.STABLE)
            if change.release:
                self._wants_rejoin("partitions were given up")
            elif self._rejoin or self._wish != self._joined:
                self._wants_rejoin(self._rejoin or "the subscription changed")
        elif self.phase is Phase.PREPARING:
            self._prepared()

    def _to_release(self) -> tuple[TopicPartition, ...]:
        if self._lost or not self.cooperative:
            return self.owned
        return tuple(where for where in self.owned if where.topic not in self._wish.topics)

    def _prepared(self) -> None:
        """Joins as soon as nothing is left to give up."""
        if not self._changing and not self._to_release():
            self._lost = False
            self._go(Phase.JOINING)

    def _wants_rejoin(self, reason: str) -> None:
        self._rejoin = reason
        if self.phase is Phase.STABLE:
            self._go(Phase.PREPARING)
            self._prepared()

    def _forget(self, member_too: bool) -> None:
        self.generation = NO_GENERATION
        self._planned = None
        self._rejoin = ""
        if member_too:
            self.member_id = ""

    def _lose(self, code: ErrorCode) -> None:
        """The group does not know this member, or not in this generation."""
        self._forget(member_too=code is ErrorCode.UNKNOWN_MEMBER_ID)
        self._rejoin = code.text
        self._lost = True
        if self.phase is not Phase.PREPARING:
            self._go(Phase.PREPARING)
        self._prepared()

    # -- requests --------------------------------------------------------------------------------

    def next(self, now: int) -> Message | None:
        if self._error is not None:
            return None
        if self._is_away(now):
            request = self._farewell("max.poll.interval.ms passed without a poll")
            self._forget(member_too=True)
            self._lost = True
            self._go(Phase.AWAY)
            return request
        if self.phase is Phase.JOINING:
            return self._join()
        if self.phase is Phase.SYNCING:
            return self._sync()
        if self._beats and now >= self._beat_at:
            self._beat_at = now + self._identity.heartbeat_interval_ms
            return HeartbeatRequest(
                group_id=self._identity.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self._identity.instance_id,
            )
        return None

    def wake_at(self) -> int | None:
        return self._wake_at(self._beats)

    @property
    def _beats(self) -> bool:
        return self.phase in _BEATING and self.generation != NO_GENERATION

    def _join(self) -> JoinGroupRequest:
        identity = self._identity
        self._joined = self._wish
        return JoinGroupRequest(
            group_id=identity.group_id,
            session_timeout_ms=identity.session_timeout_ms,
            rebalance_timeout_ms=identity.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=identity.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=assignor.name, metadata=self._metadata(assignor))
                for assignor in identity.assignors
            ],
            reason=self._rejoin or None,
        )

    def _metadata(self, assignor: Assignor) -> bytes:
        held = OwnedPartitions(self.owned, self.generation) if assignor.cooperative else self._held
        return encode_subscription(
            self._wish.topics,
            assignor.remember(held),
            self.owned,
            self.generation,
            self._identity.rack,
        )

    def _sync(self) -> SyncGroupRequest:
        assert self._assignor is not None
        return SyncGroupRequest(
            group_id=self._identity.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._identity.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._assignor.name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(given))
                for member, given in self._plan.items()
            ],
        )

    # -- the leader ------------------------------------------------------------------------------

    def plan(self, partitions: Partitions) -> None:
        """Shares out: the counts of all `needed_topics` that there are."""
        assert self.phase is Phase.ASSIGNING
        assert self._assignor is not None
        self._planned = dict(partitions)
        # A static leader that came back finds a group that needs no new plan (KIP-814).
        skip = self._skip_assignment
        self._plan = {} if skip else self._assignor.plan(partitions, self._members)
        self._go(Phase.SYNCING)

    def look(self, partitions: Partitions) -> None:
        """The leader looks whether its plan still fits the topics."""
        if self._planned is not None and self._planned != partitions:
            self._planned = None
            self._wants_rejoin("partitions were added or topics changed")

    # -- answers ---------------------------------------------------------------------------------

    def answered(self, request: Message, answer: Message, now: int) -> None:
        match answer:
            case JoinGroupResponse() if self.phase is Phase.JOINING:
                self._on_join(answer, now)
            case SyncGroupResponse() if self.phase is Phase.SYNCING:
                self._on_sync(answer)
            case HeartbeatResponse():
                assert isinstance(request, HeartbeatRequest)
                if request.generation_id == self.generation:
                    self._on_error(error_code(answer.error_code))

    def unanswered(self, request: Message, now: int) -> None:
        if isinstance(request, HeartbeatRequest):
            self._beat_at = now

    def commit_refused(self, code: ErrorCode) -> None:
        """Of what a coordinator says to a commit, some is about the member."""
        if code not in _ABOUT_MEMBER:
            return
        if self.generation != NO_GENERATION and self.phase in _BEATING:
            self._on_error(code)

    def _on_join(self, answer: JoinGroupResponse, now: int) -> None:
        code = error_code(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return
        if code:
            self._on_error(code)
            return
        assignor = self._assignors.get(answer.protocol_name or "")
        if assignor is None:
            self.fail(
                BrokerError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"the group chose the assignor {answer.protocol_name!r}",
                    about=self._identity.group_id,
                )
            )
            return
        self.member_id = answer.member_id
        self.generation = answer.generation_id
        self._assignor = assignor
        self._rejoin = ""
        self._planned = None
        self._plan = {}
        self._beat_at = now + self._identity.heartbeat_interval_ms
        if answer.leader != answer.member_id:
            self.needed_topics = frozenset()
            self._go(Phase.SYNCING)
            return
        self._members = tuple(
            _member(said.member_id, said.group_instance_id, said.metadata, assignor)
            for said in answer.members
        )
        self._skip_assignment = answer.skip_assignment
        self.needed_topics = frozenset().union(*(m.topics for m in self._members))
        self._go(Phase.ASSIGNING)

    def _on_sync(self, answer: SyncGroupResponse) -> None:
        code = error_code(answer.error_code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin = "another rebalance began"
            self._go(Phase.JOINING)
        elif code:
            self._on_error(code)
        else:
            self._adopt(answer.assignment)

    def _adopt(self, assignment: bytes) -> None:
        try:
            self._target = decode_assignment(assignment)
        except ParseError as damage:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            message = f"what the leader assigned makes no sense: {damage}"
            self.fail(BrokerError(code, message, about=f"group {self._identity.group_id}"))
        else:
            self._go(Phase.ADOPTING)

    def _on_error(self, code: ErrorCode) -> None:
        """What the coordinator's refusals mean, whatever was asked."""
        if code in _UNKNOWN:
            self._lose(code)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._wants_rejoin("a rebalance began")
        elif code:
            if code is ErrorCode.FENCED_INSTANCE_ID:
                # The id stays: joining as a new member would throw out whoever took over.
                self._lose(code)
            self.fail(BrokerError(code, about=f"group {self._identity.group_id}"))


def _member(member_id: str, instance: str | None, metadata: bytes, assignor: Assignor) -> Member:
    """A member whose subscription cannot be read gets nothing."""
    subscription = decode_subscription(metadata)
    if subscription is None:
        return Member(member_id, frozenset(), instance)
    return Member(member_id, frozenset(subscription.topics), instance, assignor.held(subscription))
