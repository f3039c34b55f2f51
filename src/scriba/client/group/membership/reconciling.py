"""Membership by the consumer protocol (KIP-848): the broker shares out, heartbeats carry it all.

    OUT        no member: nothing is subscribed to, or it has left
    JOINING    the first heartbeat, with epoch 0, says everything
    MEMBER     heartbeats; the answer may bring a target, which the application moves to
    FENCED     the broker does not know this member or epoch: all is lost, then it joins again
    AWAY       the application does not poll: it has left, and joins again when it does

There is no barrier. A target names topics by id and holds only what is free: the member gives up
what is not in it, takes what is new, and says in the next heartbeat, at once, what it then has.
Partitions of topics whose names are not known yet are taken when they are.

A heartbeat says only what has changed since one that was answered; after a failure, everything.
What a member does not say that it has, the broker may give to somebody else at once, also where it
was in its last answer. So what is about to be taken is said as well, and nothing else is taken
until the heartbeat is answered.
"""

import enum
from collections.abc import Mapping
from typing import Final

from scriba.client.group.membership.machine import Machine
from scriba.client.group.membership.model import Change, Identity, Subscribed
from scriba.client.group.membership.payload import by_topic
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode, error_code
from scriba.peers.errors import BrokerError
from scriba.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from scriba.wire.schema import Message

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2


class Phase(enum.Enum):
    OUT = "out"
    JOINING = "joining"
    MEMBER = "member"
    FENCED = "fenced"
    AWAY = "away"


_P = Phase
VALID: Final[Mapping[Phase, frozenset[Phase]]] = {
    _P.OUT: frozenset({_P.JOINING}),
    _P.JOINING: frozenset({_P.MEMBER, _P.FENCED, _P.OUT}),
    _P.MEMBER: frozenset({_P.FENCED, _P.AWAY, _P.OUT}),
    _P.FENCED: frozenset({_P.JOINING, _P.OUT}),
    _P.AWAY: frozenset({_P.FENCED, _P.OUT}),
}

_FENCING: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class Reconciling(Machine[Phase]):
    def __init__(self, identity: Identity, member_id: str) -> None:
        super().__init__(identity, Phase.OUT, VALID, frozenset({Phase.MEMBER}))
        self.member_id = member_id
        self.generation = JOIN_EPOCH
        self._target: dict[bytes, tuple[int, ...]] = {}
        self._names: dict[bytes, str] = {}
        self._owned_ids: dict[str, bytes] = {}
        """Which topic of its name each owned partition belongs to."""
        self._said: tuple[Subscribed, tuple[TopicPartition, ...] | None] | None = None
        """What the broker has been told; None when it has to be told everything, or all that is
        owned."""
        self._at_once = False
        self._changing_to: dict[str, bytes] = {}
        self._taking: tuple[TopicPartition, ...] = ()
        """What the member has once the change under way is done."""
        self._claimed: frozenset[TopicPartition] | None = None
        """What the heartbeat under way says of partitions, if it does."""
        self._interval_ms = identity.heartbeat_interval_ms

    @property
    def lost(self) -> bool:
        return self.phase in (Phase.FENCED, Phase.AWAY)

    # -- what the application wants --------------------------------------------------------------

    def want(self, wish: Subscribed) -> None:
        if self.phase is Phase.OUT:
            self._go(Phase.JOINING)
        self._at_once = self._at_once or wish != self._wish
        self._wish = wish

    def polled(self, now: int) -> None:
        self._last_poll = now
        if self.phase is Phase.AWAY:
            self._go(Phase.FENCED)
            self._released()

    def leave(self, reason: str) -> ConsumerGroupHeartbeatRequest | None:
        # A first heartbeat that was sent may have arrived, answered or not.
        joined = self.phase is Phase.JOINING and self._said is not None
        known = joined or self.phase is Phase.MEMBER
        request = self._farewell() if known else None
        if self.phase is not Phase.OUT:
            self._go(Phase.OUT)
        self._reset()
        self._changing = False
        self.owned = ()
        self._wish = Subscribed()
        return request

    def _farewell(self) -> ConsumerGroupHeartbeatRequest:
        """A static member's partitions are kept for it until its session ends."""
        static = self._identity.instance_id is not None
        return ConsumerGroupHeartbeatRequest(
            group_id=self._identity.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_STATIC_EPOCH if static else LEAVE_EPOCH,
            instance_id=self._identity.instance_id,
        )

    def _reset(self) -> None:
        self.generation = JOIN_EPOCH
        self._target = {}
        self._said = None
        self._at_once = False

    # -- changes of the partitions ---------------------------------------------------------------

    @property
    def unnamed(self) -> list[bytes]:
        """Ids of topics in the target whose names are needed."""
        return [topic_id for topic_id in self._target if topic_id not in self._names]

    def learn(self, names: Mapping[bytes, str]) -> None:
        self._names.update(names)

    def change(self) -> Change | None:
        if self.phase is Phase.FENCED:
            return Change(self.owned, lost=True) if self.owned else None
        if self.phase is not Phase.MEMBER:
            return None
        ids = self._target_ids()
        reachable = tuple(
            TopicPartition(name, index)
            for name, topic_id in ids.items()
            for index in self._target[topic_id]
        )
        wanted = set(reachable)
        # A topic that was deleted and made anew has the same name and nothing else in common.
        release = tuple(
            where
            for where in self.owned
            if where not in wanted or ids[where.topic] != self._owned_ids[where.topic]
        )
        if not release and len(wanted) == len(self.owned):
            return None
        if self._claimed is not None and not wanted <= self._claimed:
            return None  # the answer will tell whether they are still this member's
        return Change(release, assign=reachable)

    def _target_ids(self) -> dict[str, bytes]:
        """The topics of the target whose names are known."""
        return {self._names[i]: i for i in self._target if i in self._names}

    def begin(self, change: Change) -> None:
        super().begin(change)
        self._changing_to = self._target_ids()
        self._taking = change.assign or ()

    def changed(self, change: Change) -> None:
        self._carried_out(change)
        self._taking = ()
        if change.assign is not None:
            self._owned_ids = self._changing_to
        if self._said is not None:
            self._said = (self._said[0], None)
        self._at_once = True
        self._released()

    def _released(self) -> None:
        if self.phase is Phase.FENCED and not self.owned and not self._changing:
            self._go(Phase.JOINING)

    # -- requests --------------------------------------------------------------------------------

    def next(self, now: int) -> Message | None:
        if self._error is not None:
            return None
        if self._is_away(now):
            self._go(Phase.AWAY)
            self._reset()
            return self._farewell()
        due = self._at_once or now >= self._beat_at
        if self.phase is Phase.JOINING or (self.phase is Phase.MEMBER and due):
            return self._heartbeat(now)
        return None

    def wake_at(self) -> int | None:
        return self._wake_at(self.phase is Phase.MEMBER)

    def _heartbeat(self, now: int) -> ConsumerGroupHeartbeatRequest:
        identity = self._identity
        self._at_once = False
        self._beat_at = now + self._interval_ms
        request = ConsumerGroupHeartbeatRequest(
            group_id=identity.group_id,
            member_id=self.member_id,
            member_epoch=self.generation,
            instance_id=identity.instance_id,
        )
        said, self._said = self._said, (self._wish, self.owned)
        if said is None:
            request.rack_id = identity.rack
            request.rebalance_timeout_ms = identity.max_poll_interval_ms
            request.server_assignor = identity.remote_assignor
        if said is None or said[0].topics != self._wish.topics:
            request.subscribed_topic_names = sorted(self._wish.topics)
        if said is None or said[0].regex != self._wish.regex:
            # An empty expression takes back an earlier one; at first there is none to take back.
            first = said is None and self._wish.regex is None
            request.subscribed_topic_regex = None if first else self._wish.regex or ""
        if said is None or said[1] != self.owned:
            self._claimed = frozenset((*self.owned, *self._taking))
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic, partitions=indexes)
                for topic, indexes in self._claims().items()
            ]
        return request

    def _claims(self) -> dict[bytes, list[int]]:
        claims: dict[bytes, list[int]] = {}
        for ids, partitions in ((self._owned_ids, self.owned), (self._changing_to, self._taking)):
            for topic, indexes in by_topic(partitions).items():
                known = claims.setdefault(ids[topic], [])
                known += [index for index in indexes if index not in known]
        return claims

    # -- answers ---------------------------------------------------------------------------------

    def answered(self, request: Message, answer: Message, now: int) -> None:
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self._claimed = None
        if request.member_epoch < JOIN_EPOCH or self.phase not in (Phase.JOINING, Phase.MEMBER):
            return
        code = error_code(answer.error_code)
        if code in _FENCING:
            self._fence()
        elif code:
            self._said = None
            self.fail(
                BrokerError(code, answer.error_message, about=f"group {self._identity.group_id}")
            )
        else:
            self._on_good(answer, now)

    def _on_good(self, answer: ConsumerGroupHeartbeatResponse, now: int) -> None:
        if self.phase is Phase.JOINING:
            self._go(Phase.MEMBER)
        self.member_id = answer.member_id or self.member_id
        self.generation = answer.member_epoch
        self._interval_ms = answer.heartbeat_interval_ms
        self._beat_at = now + self._interval_ms
        if answer.assignment is not None:
            self._target = {
                said.topic_id: tuple(said.partitions) for said in answer.assignment.topic_partitions
            }

    def unanswered(self, request: Message, now: int) -> None:
        self._claimed = None
        self._said = None
        self._at_once = True

    def commit_refused(self, code: ErrorCode) -> None:
        """Only heartbeats fence; they are sent now, so that the epoch is soon the right one."""
        if code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._at_once = True

    def _fence(self) -> None:
        self._reset()
        self._go(Phase.FENCED)
        self._released()
