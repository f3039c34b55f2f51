"""SyncGroup, Heartbeat and LeaveGroup of classic groups; what is stored of them; loading."""

from collections.abc import Generator
from functools import partial

from scriba.errors import ErrorCode, KafkaError
from scriba.events import Event, EventKind
from scriba.groups.classic.group import AT_ONCE, ClassicGroup, Member, Phase, Waiter, refuse
from scriba.groups.classic.rebalance import (
    SYNC,
    answer_sync,
    complete_if_all_joined,
    drop,
    keep_session,
    prepare,
    synced,
    wait_to_sync,
)
from scriba.groups.refusals import refused
from scriba.groups.state import State, Timer
from scriba.instant import Instant
from scriba.outcome import Caller, Origin, Outcome, Token, carry_on
from scriba.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)
from scriba.wire.messages.stored_groups import GroupMetadataKey, GroupMetadataValue

MEMBERS_LEAVE_TOGETHER_FROM = 3
PROTOCOL_NAMED_FROM = 5


def _living(state: State, group_id: str) -> ClassicGroup:
    if not group_id:
        refuse(ErrorCode.INVALID_GROUP_ID)
    group = state.store.groups.get(group_id)
    if not isinstance(group, ClassicGroup):
        refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    return group


# --- SyncGroup ---


def sync(
    state: State, request: SyncGroupRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """A follower waits for the leader, whose request stores and hands out the assignment."""
    out = Outcome()
    try:
        check_named(request, caller.version)
        group = _living(state, request.group_id)
        member = _check_sync(group, request)
    except KafkaError as e:
        out.replies.append((token, refused(request, e.code, caller.version)))
        return out
    group.awaiting_sync.pop(member.member_id, None)
    if not group.awaiting_sync:
        state.timers.cancel(Timer(SYNC, group.group_id))
    if group.phase is Phase.STABLE:
        out.replies.append((token, synced(group, member)))
        return out
    wait_to_sync(member, Waiter(token, caller.version), out)
    if member.member_id == group.leader:
        shares = {share.member_id: bytes(share.assignment) for share in request.assignments}
        carry_on(out, _assign(state, group, shares, out, now))
    return out


def check_named(request: SyncGroupRequest, version: int) -> None:
    """From there on a request must name what its member joined with (KIP-559)."""
    unnamed = request.protocol_type is None or request.protocol_name is None
    if version >= PROTOCOL_NAMED_FROM and unnamed:
        refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> Member:
    if group.empty():
        refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        refuse(ErrorCode.ILLEGAL_GENERATION)
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.protocol_name is not None and request.protocol_name != group.protocol:
        refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.phase is Phase.PREPARING:
        refuse(ErrorCode.REBALANCE_IN_PROGRESS)
    return member


def _assign(
    state: State, group: ClassicGroup, shares: dict[str, bytes], out: Outcome, now: Instant
) -> Generator[None, None, None]:
    for member in group.members.values():
        member.assignment = shares.get(member.member_id, b"")
    out.records.append((yield from group.record()))
    group.become(Phase.STABLE, now.wall_ms)
    for count, member in enumerate(group.members.values(), 1):
        answer_sync(state, group, member, ErrorCode.NONE, out, now)
        if count % AT_ONCE == 0:
            yield
    text = f"generation {group.generation} is stable with {len(group.members)} members"
    out.events.append(Event(EventKind.GROUP_REBALANCE, group.group_id, text))
    out.instead = partial(_unassign, state, group)


def _unassign(state: State, group: ClassicGroup, now: Instant) -> Outcome:
    """The assignment cannot be stored; members that are told so may come back with less."""
    out = Outcome()
    for member in group.members.values():
        member.assignment = b""
    prepare(state, group, "what it was assigned is too large to be stored", out, now)
    return out


# --- Heartbeat ---


def heartbeat(
    state: State, request: HeartbeatRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    try:
        group = _living(state, request.group_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            refuse(ErrorCode.ILLEGAL_GENERATION)
    except KafkaError as e:
        return Outcome(replies=[(token, refused(request, e.code, caller.version))])
    keep_session(state, group, member, now)
    preparing = group.phase is Phase.PREPARING
    error = ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE
    return Outcome(replies=[(token, HeartbeatResponse(error_code=error))])


# --- LeaveGroup ---


def leave(
    state: State, request: LeaveGroupRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Removes the members named; an administrator names instances only."""
    out = Outcome()
    try:
        group = _living(state, request.group_id)
    except KafkaError as e:
        out.replies.append((token, refused(request, e.code, caller.version)))
        return out
    together = caller.version >= MEMBERS_LEAVE_TOGETHER_FROM
    leaving = request.members if together else [MemberIdentity(member_id=request.member_id)]
    answers = [_leave(state, group, identity, out) for identity in leaving]
    if together:
        out.replies.append((token, LeaveGroupResponse(members=answers)))
    else:
        out.replies.append((token, LeaveGroupResponse(error_code=answers[0].error_code)))
    gone = [answer.member_id or answer.group_instance_id for answer in answers]
    if all(answer.error_code for answer in answers):
        return out
    if group.phase in (Phase.STABLE, Phase.COMPLETING):
        prepare(state, group, f"{', '.join(str(each) for each in gone)} left", out, now)
    else:
        complete_if_all_joined(state, group, out, now)
    return out


def _leave(
    state: State, group: ClassicGroup, identity: MemberIdentity, out: Outcome
) -> MemberResponse:
    answer = MemberResponse(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=0
    )
    member_id: str | None = identity.member_id
    try:
        if not member_id:
            member_id = group.statics.get(identity.group_instance_id or "")
            if member_id is None:
                refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        elif member_id not in group.pending:
            group.check_member(member_id, identity.group_instance_id)
        drop(state, group, member_id, out)
    except KafkaError as e:
        answer.error_code = e.code
    return answer


# --- stored ---


def replay_group(
    state: State, key: GroupMetadataKey, value: GroupMetadataValue | None, origin: Origin
) -> None:
    """While leading, the living group is the source of the record and already ahead of it, unless
    the record made it: a group that came over from the other protocol."""
    groups = state.store.groups
    group = groups.get(key.group)
    if value is not None:
        if state.leading and isinstance(group, ClassicGroup):
            group.stored = value
        else:
            groups[key.group] = ClassicGroup.read(key.group, value)
    elif isinstance(group, ClassicGroup):
        group.become(Phase.DEAD, origin.timestamp_ms)
        del groups[key.group]


def begin_sessions(state: State, now: Instant) -> Outcome:
    """Everybody gets a full session to find the new coordinator."""
    out = Outcome()
    for group in state.store.groups.values():
        if not isinstance(group, ClassicGroup):
            continue
        for member in group.members.values():
            keep_session(state, group, member, now)
        if len(group.members) > state.settings.max_size:
            prepare(state, group, "loaded with more members than are allowed now", out, now)
    return out
