"""How a classic group comes from one generation to the next, and what its timers do.

A rebalance begins when somebody joins, leaves, is expired, or changes what it can do, and when the
leader joins again: that is how clients make known that partitions were added or that a new topic
matches their pattern. In this protocol the members watch the topics; the coordinator does not.

The group is then PREPARING until all its members have joined, at most for the longest rebalance
timeout among them. Dynamic members that did not come are dropped; static ones stay until their
session ends, since an instance is expected back. Then all are answered, the leader with everybody's
metadata, and the group is COMPLETING until the leader's assignment arrives; who has not asked for
its share within another rebalance timeout is dropped, and the next rebalance begins.

A group that was empty waits first: `group.initial.rebalance.delay.ms`, again while members keep
coming, within the rebalance timeout.

What goes through all members gives way after each `AT_ONCE` of them, as one step all the same. So
what begins or ends a phase is the last part of its step.
"""

from collections.abc import Generator
from typing import Final

from scriba.errors import ErrorCode
from scriba.events import Event, EventKind
from scriba.groups.classic.group import AT_ONCE, ClassicGroup, Member, Phase, Waiter
from scriba.groups.state import State, Timer
from scriba.instant import Instant
from scriba.outcome import Outcome, carry_on
from scriba.wire.messages.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

SESSION: Final = "classic-session"
JOIN: Final = "classic-join"
SYNC: Final = "classic-sync"

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""Bounds the wait of a member that cannot heartbeat yet: its client may have gone, unnoticed."""


def rebalance(state: State, group: ClassicGroup, reason: str, out: Outcome, now: Instant) -> None:
    """Begins a rebalance, or ends its joining phase if one is under way and this was all it
    waited for."""
    if group.can_rebalance():
        prepare(state, group, reason, out, now)
    else:
        complete_if_all_joined(state, group, out, now)


def prepare(state: State, group: ClassicGroup, reason: str, out: Outcome, now: Instant) -> None:
    carry_on(out, _prepare(state, group, reason, out, now))


def _prepare(
    state: State, group: ClassicGroup, reason: str, out: Outcome, now: Instant
) -> Generator[None, None, None]:
    if group.phase is Phase.COMPLETING:
        for count, member in enumerate(group.members.values(), 1):
            member.assignment = b""
            answer_sync(state, group, member, ErrorCode.REBALANCE_IN_PROGRESS, out, now)
            if count % AT_ONCE == 0:
                yield
    group.awaiting_sync.clear()
    state.timers.cancel(Timer(SYNC, group.group_id))
    first = group.phase is Phase.EMPTY
    group.become(Phase.PREPARING, now.wall_ms)
    out.events.append(
        Event(
            EventKind.GROUP_REBALANCE,
            group.group_id,
            f"generation {group.generation} ends: {reason}",
        )
    )
    if first:
        group.grew = False
        delay = group.initial_delay_ms = state.settings.initial_rebalance_delay_ms
        group.initial_left_ms = max(group.rebalance_timeout_ms() - delay, 0)
        state.timers.set(Timer(JOIN, group.group_id), now.mono_ms + delay)
    elif group.all_joined():
        yield from _complete_join(state, group, out, now)
    else:
        _await_joins(state, group, now)


def complete_if_all_joined(
    state: State, group: ClassicGroup, out: Outcome, now: Instant, *, first_too: bool = False
) -> None:
    """An empty group's first rebalance is not cut short by everybody being there, only
    (`first_too`) by somebody being gone."""
    if group.phase is not Phase.PREPARING or not group.all_joined():
        return
    if first_too or group.previous is not Phase.EMPTY:
        carry_on(out, _complete_join(state, group, out, now))


def _complete_join(
    state: State, group: ClassicGroup, out: Outcome, now: Instant
) -> Generator[None, None, None]:
    state.timers.cancel(Timer(JOIN, group.group_id))
    for count, member in enumerate(list(group.members.values()), 1):
        if member.joining is None and member.instance_id is None:
            drop(state, group, member.member_id, out)
        if count % AT_ONCE == 0:
            yield
    if not group.elect_joined_leader() and group.members:
        # Nobody but silent static members: their sessions decide.
        _await_joins(state, group, now)
        return
    yield from group.next_generation(now.wall_ms)
    if group.empty():
        out.records.append((yield from group.record()))
        out.events.append(Event(EventKind.GROUP_REBALANCE, group.group_id, "the group is empty"))
        return
    for count, member in enumerate(group.members.values(), 1):
        if member.joining is not None:
            out.replies.append((member.joining.token, joined(group, member)))
            member.joining = None
        keep_session(state, group, member, now)
        member.fresh = False
        group.awaiting_sync[member.member_id] = None
        if count % AT_ONCE == 0:
            yield
    deadline = now.mono_ms + group.rebalance_timeout_ms()
    state.timers.set(Timer(SYNC, group.group_id), deadline)


def _await_joins(state: State, group: ClassicGroup, now: Instant) -> None:
    deadline = now.mono_ms + group.rebalance_timeout_ms()
    state.timers.set(Timer(JOIN, group.group_id), deadline)


# --- timers ---


def on_join_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    out = Outcome()
    group = state.store.groups.get(timer.group_id)
    if not isinstance(group, ClassicGroup) or group.phase is not Phase.PREPARING:
        return out
    if group.previous is Phase.EMPTY and group.grew and group.initial_left_ms:
        group.grew = False
        waited, left = group.initial_delay_ms, group.initial_left_ms
        group.initial_delay_ms = min(state.settings.initial_rebalance_delay_ms, left)
        group.initial_left_ms = max(left - waited, 0)
        state.timers.set(timer, now.mono_ms + group.initial_delay_ms)
    else:
        carry_on(out, _complete_join(state, group, out, now))
    return out


def on_sync_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    out = Outcome()
    group = state.store.groups.get(timer.group_id)
    if not isinstance(group, ClassicGroup) or not group.awaiting_sync:
        return out
    carry_on(out, _drop_late(state, group, out, now))
    return out


def _drop_late(
    state: State, group: ClassicGroup, out: Outcome, now: Instant
) -> Generator[None, None, None]:
    late = list(group.awaiting_sync)
    for count, member_id in enumerate(late, 1):
        drop(state, group, member_id, out)
        if count % AT_ONCE == 0:
            yield
    reason = f"{', '.join(late)} did not ask for an assignment"
    yield from _prepare(state, group, reason, out, now)


def on_session_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    out = Outcome()
    group = state.store.groups.get(timer.group_id)
    if not isinstance(group, ClassicGroup):
        return out
    if timer.member_id in group.pending:
        drop(state, group, timer.member_id, out)
        complete_if_all_joined(state, group, out, now, first_too=True)
        return out
    member = group.members.get(timer.member_id)
    if member is None or member.heard_of:
        return out
    drop(state, group, member.member_id, out)
    if group.phase in (Phase.STABLE, Phase.COMPLETING):
        prepare(state, group, f"the session of {member.member_id} expired", out, now)
    else:
        complete_if_all_joined(state, group, out, now, first_too=True)
    return out


def keep_session(
    state: State, group: ClassicGroup, member: Member, now: Instant, timeout_ms: int | None = None
) -> None:
    timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
    timer = Timer(SESSION, group.group_id, member.member_id)
    state.timers.set(timer, now.mono_ms + timeout_ms)


# --- members go ---


def drop(state: State, group: ClassicGroup, member_id: str, out: Outcome) -> None:
    """Takes out a member, or an id that was given out; a client still waiting joins anew."""
    member = group.members.get(member_id)
    if member is not None:
        turn_away(member, "", ErrorCode.UNKNOWN_MEMBER_ID, out)
    state.timers.cancel(Timer(SESSION, group.group_id, member_id))
    group.remove(member_id)


def turn_away(member: Member, member_id: str, error: ErrorCode, out: Outcome) -> None:
    """Answers whatever a member is waiting for with an error."""
    if member.joining is not None:
        response = refused_join(member.joining.version, member_id, error)
        out.replies.append((member.joining.token, response))
        member.joining = None
    if member.syncing is not None:
        out.replies.append((member.syncing.token, SyncGroupResponse(error_code=error)))
        member.syncing = None


def dissolve(state: State, group: ClassicGroup, error: ErrorCode, out: Outcome) -> None:
    """Ends all that lives beside the stored group: waiters get `error`, timers are cancelled.
    For a group that is deleted, or goes on under the other protocol."""
    for member in group.members.values():
        turn_away(member, member.member_id, error, out)
    for member_id in [*group.members, *group.pending]:
        state.timers.cancel(Timer(SESSION, group.group_id, member_id))
    state.timers.cancel(Timer(JOIN, group.group_id))
    state.timers.cancel(Timer(SYNC, group.group_id))


# --- answers ---


def joined(
    group: ClassicGroup, member: Member, *, as_leader: bool = True, skip: bool = False
) -> JoinGroupResponse:
    """What a member is told of the current generation; the leader learns who is in it."""
    members = []
    if as_leader and group.leader == member.member_id:
        members = [
            JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata(group.protocol),
            )
            for each in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        skip_assignment=skip,
        member_id=member.member_id,
        members=members,
    )


def refused_join(version: int, member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """No protocol was chosen: from version 7 on that is no name, before it an empty one."""
    return JoinGroupResponse(
        error_code=error, member_id=member_id, protocol_name=None if version >= 7 else ""
    )


def answer_sync(
    state: State, group: ClassicGroup, member: Member, error: ErrorCode, out: Outcome, now: Instant
) -> None:
    """Waiting for the assignment counted as a heartbeat; from here the session counts again."""
    if member.syncing is not None:
        out.replies.append((member.syncing.token, synced(group, member, error)))
        member.syncing = None
        keep_session(state, group, member, now)


def synced(
    group: ClassicGroup, member: Member, error: ErrorCode = ErrorCode.NONE
) -> SyncGroupResponse:
    if error:
        return SyncGroupResponse(error_code=error)
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def wait_to_join(member: Member, waiter: Waiter, out: Outcome) -> None:
    """A client that asks again has given up the request that was waiting; it is answered too, so
    that none waits for ever."""
    if member.joining is not None:
        response = refused_join(
            member.joining.version, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS
        )
        out.replies.append((member.joining.token, response))
    member.joining = waiter


def wait_to_sync(member: Member, waiter: Waiter, out: Outcome) -> None:
    if member.syncing is not None:
        response = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        out.replies.append((member.syncing.token, response))
    member.syncing = waiter
