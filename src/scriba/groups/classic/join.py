"""JoinGroup: who may come in, as whom, and whether that makes the group rebalance."""

from collections.abc import Generator

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.classic.group import (
    ClassicGroup,
    Member,
    Phase,
    Protocols,
    Waiter,
    empty_record,
)
from scriba.groups.classic.rebalance import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    SESSION,
    drop,
    joined,
    keep_session,
    prepare,
    rebalance,
    refused_join,
    turn_away,
    wait_to_join,
)
from scriba.groups.state import State, Timer, client_host, fresh_uuid
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token, carry_on
from scriba.wire.messages.groups import JoinGroupRequest

MEMBER_ID_REQUIRED_FROM = 4
SKIP_ASSIGNMENT_FROM = 9


def join(
    state: State, request: JoinGroupRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Answers at once, or when the generation that the member joins is formed."""
    out = Outcome()
    error = malformed(state, request)
    if error is not None:
        out.replies.append((token, refused_join(caller.version, request.member_id, error)))
        return out
    group = state.store.groups.get(request.group_id)
    is_new = group is None
    if group is None:
        if request.member_id:
            response = refused_join(caller.version, request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            out.replies.append((token, response))
            return out
        group = state.store.groups[request.group_id] = ClassicGroup(request.group_id, now.wall_ms)
    assert isinstance(group, ClassicGroup)
    admit(state, group, request, token, caller, out, now)
    if is_new and not out.records:
        out.records.append(empty_record(group))
    return out


def malformed(state: State, request: JoinGroupRequest) -> ErrorCode | None:
    settings = state.settings
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    timeout = request.session_timeout_ms
    if not settings.min_session_timeout_ms <= timeout <= settings.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return None


def admit(
    state: State,
    group: ClassicGroup,
    request: JoinGroupRequest,
    token: Token,
    caller: Caller,
    out: Outcome,
    now: Instant,
) -> None:
    """Lets a client into a group that exists, or answers why not."""
    waiter = Waiter(token, caller.version)

    def turn_back(member_id: str, error: ErrorCode) -> None:
        out.replies.append((token, refused_join(caller.version, member_id, error)))

    names = [protocol.name for protocol in request.protocols]
    if not group.has_room(request.member_id, state.settings.max_size):
        drop(state, group, request.member_id, out)
        turn_back("", ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif not group.supports(request.protocol_type, names):
        turn_back(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif request.member_id in group.pending:
        if request.group_instance_id is not None:
            # Ids are given out to dynamic members only.
            turn_back("", ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            _add(state, group, request, request.member_id, waiter, caller, out, now)
    elif request.member_id:
        try:
            member = group.check_member(request.member_id, request.group_instance_id)
        except KafkaError as e:
            turn_back(request.member_id, e.code)
        else:
            _join_again(state, group, member, request, waiter, out, now)
    elif request.group_instance_id is not None:
        member_id = f"{request.group_instance_id}-{fresh_uuid(caller)}"
        if request.group_instance_id in group.statics:
            _replace(state, group, request, member_id, waiter, out, now)
        else:
            _add(state, group, request, member_id, waiter, caller, out, now)
    elif caller.version >= MEMBER_ID_REQUIRED_FROM:
        # KIP-394: a client whose answer is lost must not leave a member behind that nobody is.
        member_id = f"{caller.client_id}-{fresh_uuid(caller)}"
        group.pending[member_id] = None
        timer = Timer(SESSION, group.group_id, member_id)
        state.timers.set(timer, now.mono_ms + request.session_timeout_ms)
        turn_back(member_id, ErrorCode.MEMBER_ID_REQUIRED)
    else:
        member_id = f"{caller.client_id}-{fresh_uuid(caller)}"
        _add(state, group, request, member_id, waiter, caller, out, now)


def _add(
    state: State,
    group: ClassicGroup,
    request: JoinGroupRequest,
    member_id: str,
    waiter: Waiter,
    caller: Caller,
    out: Outcome,
    now: Instant,
) -> None:
    member = Member(
        member_id,
        request.group_instance_id,
        caller.client_id,
        client_host(caller),
        rebalance_timeout_ms(request, waiter.version),
        request.session_timeout_ms,
        protocols(request),
        joining=waiter,
        fresh=True,
    )
    if group.phase is Phase.PREPARING and group.previous is Phase.EMPTY:
        group.grew = True
    group.add(member, request.protocol_type)
    keep_session(state, group, member, now, NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance(state, group, f"{member_id} joins{_because(request)}", out, now)


def _join_again(
    state: State,
    group: ClassicGroup,
    member: Member,
    request: JoinGroupRequest,
    waiter: Waiter,
    out: Outcome,
    now: Instant,
) -> None:
    """Nothing new from a member is answered with the generation as it stands: its client may have
    missed the first answer. But a leader that comes back to a stable group wants a rebalance."""
    same = member.protocols == protocols(request)
    settled = group.phase is Phase.COMPLETING or (
        group.phase is Phase.STABLE and group.leader != member.member_id
    )
    if group.phase is Phase.EMPTY:
        response = refused_join(waiter.version, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        out.replies.append((waiter.token, response))
    elif same and settled:
        out.replies.append((waiter.token, joined(group, member)))
    else:
        _update(group, member, request, waiter, out)
        rebalance(state, group, f"{member.member_id} joins again{_because(request)}", out, now)


def _replace(
    state: State,
    group: ClassicGroup,
    request: JoinGroupRequest,
    member_id: str,
    waiter: Waiter,
    out: Outcome,
    now: Instant,
) -> None:
    """A static member came back without its id (KIP-345). It takes the place of the one before,
    with its assignment; in a stable group nobody else need notice."""
    assert request.group_instance_id is not None
    member = group.members[group.statics[request.group_instance_id]]
    old_leader = group.leader
    turn_away(member, member.member_id, ErrorCode.FENCED_INSTANCE_ID, out)
    state.timers.cancel(Timer(SESSION, group.group_id, member.member_id))
    group.rename(member, member_id)
    keep_session(state, group, member, now)
    _update(group, member, request, waiter, out)
    reason = f"{request.group_instance_id} returns as {member_id}{_because(request)}"
    if group.phase is not Phase.STABLE or group.select_protocol() != group.protocol:
        if group.phase is Phase.COMPLETING:
            # The leader is assigning to the old id.
            prepare(state, group, reason, out, now)
        else:
            rebalance(state, group, reason, out, now)
        return
    member.joining = None
    carry_on(out, _stand_in(group, member, waiter, old_leader, out))


def _stand_in(
    group: ClassicGroup, member: Member, waiter: Waiter, old_leader: str | None, out: Outcome
) -> Generator[None, None, None]:
    """The generation goes on with the member under its new id."""
    out.records.append((yield from group.record()))
    if waiter.version >= SKIP_ASSIGNMENT_FROM:
        # KIP-814: a leader that was replaced hears of its members, but need not assign again.
        response = joined(group, member, skip=group.leader == member.member_id)
    else:
        # Told of the old leader, the client takes itself for a follower and does not assign.
        response = joined(group, member, as_leader=False)
        response.leader = old_leader or ""
    out.replies.append((waiter.token, response))


def _update(
    group: ClassicGroup, member: Member, request: JoinGroupRequest, waiter: Waiter, out: Outcome
) -> None:
    group.offer(member, protocols(request))
    member.rebalance_timeout_ms = rebalance_timeout_ms(request, waiter.version)
    member.session_timeout_ms = request.session_timeout_ms
    wait_to_join(member, waiter, out)


def protocols(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)


def rebalance_timeout_ms(request: JoinGroupRequest, version: int) -> int:
    """Version 0 knew only one timeout."""
    return request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms


def _because(request: JoinGroupRequest) -> str:
    return f" ({request.reason})" if request.reason else ""
