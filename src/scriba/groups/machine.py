"""The group coordinator of one partition of `__consumer_offsets`: a pure machine.

A request is looked up by its type, a due timer by its kind, a replayed record by the type of its
key; the functions found in these tables do the work on the shared `State`. What is stored changes
only in replay: of a record (`replay`), of the marker of a transaction (`replay_marker`), or of the
records of a fast path, which knows what they say (`offsets.repeats.replay_repeat`). What lives
(members' sessions, waiting joins and syncs, a generation that is forming, the classic group ahead
of its record) changes in `handle` and `tick`, and begins anew after a load from what is stored.

To add a protocol: write functions of the shapes `Handler`, `OnTimer`, `Replay` and so on, and
enter them in the tables below. A group of another protocol implements `store.Group`, is put into
`state.store.groups` by its replay functions, and is listed in IN_GROUP_OF with the functions that
take classic requests (JoinGroup and so on) sent to such a group. A function that finds a group
of the other kind asks `group.kind`.

One timer runs per tick, since the next must see what the first one stored: while `next_deadline`
lies in the past, the shell ticks again.

Never: change an offset or what is stored of a group in `handle` or `tick`, answer a member of
another generation, keep a request waiting that no timer or member can end.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final

from scriba.errors import ErrorCode, KafkaError
from scriba.groups import listing
from scriba.groups.classic import join as classic_join
from scriba.groups.classic import members as classic_members
from scriba.groups.classic import rebalance as classic_rebalance
from scriba.groups.consumer import classic_members as consumer_classic
from scriba.groups.consumer import describe as consumer_describe
from scriba.groups.consumer import group as consumer_group
from scriba.groups.consumer import heartbeat as consumer_heartbeat
from scriba.groups.consumer import progress as consumer_progress
from scriba.groups.facts import GroupSettings, Topics
from scriba.groups.offsets import commit as offsets
from scriba.groups.offsets import expiry
from scriba.groups.offsets import fetch as offsets_read
from scriba.groups.state import State, Timer, merge
from scriba.instant import ClockWatch, Instant
from scriba.outcome import Caller, Origin, Outcome, Token
from scriba.wire.messages import groups as wire
from scriba.wire.messages import stored_groups as stored
from scriba.wire.messages.txn import TxnOffsetCommitRequest
from scriba.wire.schema import Message

Handler = Callable[[State, Any, Token, Caller, Instant], Outcome]
OnTimer = Callable[[State, Timer, Instant], Outcome]
Replay = Callable[[State, Any, Any, Origin], None]
OnLoad = Callable[[State, Instant], Outcome]
OnTopics = Callable[[State, Iterable[str], Instant], Outcome]

HANDLERS: Final[Mapping[type[Message], Handler]] = {
    wire.JoinGroupRequest: classic_join.join,
    wire.SyncGroupRequest: classic_members.sync,
    wire.HeartbeatRequest: classic_members.heartbeat,
    wire.LeaveGroupRequest: classic_members.leave,
    wire.OffsetCommitRequest: offsets.commit,
    TxnOffsetCommitRequest: offsets.commit_in_txn,
    wire.OffsetFetchRequest: offsets_read.fetch,
    wire.OffsetDeleteRequest: offsets_read.delete,
    wire.DescribeGroupsRequest: listing.describe,
    wire.ListGroupsRequest: listing.list_groups,
    wire.DeleteGroupsRequest: listing.delete_groups,
    wire.ConsumerGroupHeartbeatRequest: consumer_heartbeat.heartbeat,
    wire.ConsumerGroupDescribeRequest: consumer_describe.describe,
}

IN_GROUP_OF: Final[Mapping[str, Mapping[type[Message], Handler]]] = {
    consumer_group.ConsumerGroup.kind: {
        wire.JoinGroupRequest: consumer_classic.join,
        wire.SyncGroupRequest: consumer_classic.sync,
        wire.HeartbeatRequest: consumer_classic.heartbeat,
        wire.LeaveGroupRequest: consumer_classic.leave,
    },
}
"""Kind of group -> request type -> who takes it there instead, by the request's `group_id`."""

TIMERS: Final[Mapping[str, OnTimer]] = {
    classic_rebalance.SESSION: classic_rebalance.on_session_timer,
    classic_rebalance.JOIN: classic_rebalance.on_join_timer,
    classic_rebalance.SYNC: classic_rebalance.on_sync_timer,
    expiry.EXPIRY: expiry.on_expiry_timer,
    consumer_progress.SESSION: consumer_heartbeat.on_session_timer,
    consumer_progress.REBALANCE: consumer_heartbeat.on_rebalance_timer,
    consumer_progress.JOIN: consumer_heartbeat.on_join_timer,
    consumer_progress.SYNC: consumer_heartbeat.on_sync_timer,
}

REPLAY: Final[Mapping[type[Message], Replay]] = {
    stored.LegacyOffsetCommitKey: offsets.replay_legacy_offset,
    stored.OffsetCommitKey: offsets.replay_offset,
    stored.GroupMetadataKey: classic_members.replay_group,
    **dict.fromkeys(consumer_group.KEYS, consumer_describe.replay),
}

ON_LOAD: Final[tuple[OnLoad, ...]] = (
    classic_members.begin_sessions,
    consumer_heartbeat.begin_sessions,
    expiry.begin_expiry,
)

ON_TOPICS: Final[tuple[OnTopics, ...]] = (
    expiry.on_topics_changed,
    consumer_describe.on_topics_changed,
)


class Groups:
    """Implements `outcome.Machine`."""

    def __init__(
        self, settings: GroupSettings, topics: Topics, watch: ClockWatch | None = None
    ) -> None:
        """`watch` says whether to believe the clock; without one it is watched from the load on."""
        self.state = State(settings, topics)
        self.state.clock_watch = watch

    @property
    def settings(self) -> GroupSettings:
        return self.state.settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        self.state.settings = settings

    def replay(self, key: Message, value: Message | None, origin: Origin) -> None:
        replay = REPLAY.get(type(key))
        if replay is not None:
            replay(self.state, key, value, origin)

    def replay_marker(
        self, producer_id: int, producer_epoch: int, commit: bool
    ) -> Generator[None, None, None]:
        return self.state.store.end_txn(producer_id, commit)

    def loaded(self, now: Instant) -> Outcome:
        self.state.leading = True
        outcome = Outcome(splittable=True)
        for begin in ON_LOAD:
            merge(outcome, begin(self.state, now))
        return outcome

    def handle(self, request: Message, token: Token, caller: Caller, now: Instant) -> Outcome:
        handler = HANDLERS.get(type(request))
        if handler is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the group coordinator does not serve {type(request).__name__}",
            )
        group = self.state.store.groups.get(getattr(request, "group_id", ""))
        if group is not None:
            handler = IN_GROUP_OF.get(group.kind, {}).get(type(request), handler)
        return handler(self.state, request, token, caller, now)

    def tick(self, now: Instant) -> Outcome:
        timer = self.state.timers.take_due(now.mono_ms)
        return Outcome() if timer is None else TIMERS[timer.kind](self.state, timer, now)

    def next_deadline(self) -> int | None:
        return self.state.timers.next_deadline()

    def topics_changed(self, names: Iterable[str], now: Instant) -> Outcome:
        changed = sorted(set(names))
        outcome = Outcome(splittable=True)
        for tell in ON_TOPICS:
            merge(outcome, tell(self.state, changed, now))
        return outcome
