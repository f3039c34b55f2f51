"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of members that speak the classic protocol in a
consumer group.

To them the group looks as it always did. Their generation is the member epoch; each of them is
answered as a follower, and the share it asks for in SyncGroup is what the coordinator gave it. That
something changed it learns as REBALANCE_IN_PROGRESS from a heartbeat, and joins again. A client
that revokes all before joining (eager) reports no owned partitions; one that keeps what it may
(cooperative) reports them, and is told to join again until what it must give up is gone and what it
waits for is free.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.groups.classic import join as classic_join
from scriba.groups.classic.embedded import by_id, read_subscription, version_of, write_assignment
from scriba.groups.classic.members import MEMBERS_LEAVE_TOGETHER_FROM, check_named
from scriba.groups.classic.rebalance import refused_join
from scriba.groups.consumer.group import CONSUMER, ConsumerGroup, Draft
from scriba.groups.consumer.heartbeat import (
    check_room,
    fence,
    refuse,
    replace_static,
    static_member,
)
from scriba.groups.consumer.member import Classic, ConsumerMember, MemberState
from scriba.groups.consumer.migration import downgrade, may_replace_last
from scriba.groups.consumer.progress import (
    JOIN,
    SYNC,
    keep_session,
    looked,
    retarget,
    settle,
    step,
    undo,
    update,
)
from scriba.groups.consumer.reconcile import Owned
from scriba.groups.refusals import refused
from scriba.groups.state import State, Timer, client_host, fresh_uuid
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token, at_once, begun, carry_on
from scriba.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


def _group(state: State, group_id: str) -> ConsumerGroup:
    group = state.store.groups[group_id]
    assert isinstance(group, ConsumerGroup)
    return group


# --- JoinGroup ---


def join(
    state: State, request: JoinGroupRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    group = _group(state, request.group_id)
    if group.empty():
        return _join_anew(state, group, request, token, caller, now)
    return begun(_join_living(state, group, request, token, caller, now))


def _join_living(
    state: State,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    token: Token,
    caller: Caller,
    now: Instant,
) -> Generator[None, None, Outcome]:
    out = Outcome(instead=partial(undo, state, request.group_id))
    try:
        error = classic_join.malformed(state, request)
        if error is not None:
            raise KafkaError(error)
        response = yield from _join(state, group, request, caller, out, now)
    except KafkaError as e:
        response = refused_join(caller.version, request.member_id, e.code)
        return Outcome(replies=[(token, response)])
    out.replies.append((token, response))
    return out


def _join_anew(
    state: State,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    token: Token,
    caller: Caller,
    now: Instant,
) -> Outcome:
    """An empty group takes the protocol of whoever comes first."""
    groups = state.store.groups
    del groups[group.group_id]
    out = classic_join.join(state, request, token, caller, now)
    if group.group_id in groups:
        out.records[:0] = group.tombstones()
    else:
        groups[group.group_id] = group
    return out


def _join(
    state: State,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    caller: Caller,
    out: Outcome,
    now: Instant,
) -> Generator[None, None, JoinGroupResponse]:
    member_id = request.member_id or fresh_uuid(caller)
    check_room(state, group, member_id)
    _check_protocols(group, request, member_id)
    nameless = not request.member_id and request.group_instance_id is None
    if nameless and caller.version >= classic_join.MEMBER_ID_REQUIRED_FROM:
        return refused_join(caller.version, member_id, ErrorCode.MEMBER_ID_REQUIRED)
    try:
        subscription = read_subscription(bytes(request.protocols[0].metadata))
    except ParseError as e:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"malformed subscription: {e}") from e
    draft = Draft(group)
    draft.sees = caller.sees
    replaced = group.static(request.group_instance_id)
    downwards = replaced is not None and may_replace_last(state, group, replaced)
    before = _find(draft, request, member_id)
    after = replace(
        before,
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        rebalance_timeout_ms=classic_join.rebalance_timeout_ms(request, caller.version),
        names=frozenset(subscription.topics),
        regex="",
        client_id=caller.client_id,
        client_host=client_host(caller),
        classic=Classic(request.session_timeout_ms, classic_join.protocols(request)),
    )
    named = ((each.topic, each.partitions) for each in subscription.owned_partitions)
    owned: Owned = by_id(named, state.topics)
    if downwards:
        member = _downgrade(state, draft, before, after, owned, out, now)
    else:
        member = yield from settle(state, draft, before, after, owned, out, now)
        out.records = draft.records
        state.timers.cancel(Timer(JOIN, group.group_id, member_id))
        keep_session(state, group.group_id, member, now)
        deadline = now.mono_ms + member.rebalance_timeout_ms
        state.timers.set(Timer(SYNC, group.group_id, member_id), deadline)
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0].name,
    )


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest, member_id: str) -> None:
    """It must share a protocol with all other classic members, should the group go back to that."""
    sets = [
        {name for name, _ in member.classic.protocols}
        for member in group.members.values()
        if member.classic is not None
    ]
    offered = {protocol.name for protocol in request.protocols}
    if request.protocol_type != CONSUMER or not offered.intersection(*sets):
        refuse(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Member {member_id}'s protocols are not supported.",
        )


def _find(draft: Draft, request: JoinGroupRequest, member_id: str) -> ConsumerMember:
    group = draft.group
    if request.group_instance_id is None:
        return group.members.get(member_id, ConsumerMember(member_id))
    if request.member_id:
        return static_member(group, request.group_instance_id, member_id)
    static = group.static(request.group_instance_id)
    return ConsumerMember(member_id) if static is None else replace_static(draft, static, member_id)


def _downgrade(
    state: State,
    draft: Draft,
    before: ConsumerMember,
    after: ConsumerMember,
    owned: Owned,
    out: Outcome,
    now: Instant,
) -> ConsumerMember:
    """The last member of the consumer protocol came back as a classic one. Unless it changed
    something, the target still holds, and the group need not rebalance."""
    # In one go: the rebalance may be the work of this outcome, and then nothing is to come before.
    at_once(update(state, draft, before, after, out, now))
    member = draft.group.members[after.member_id]
    why = None
    if draft.group.target_epoch < draft.group.epoch:
        why = "the last member of the consumer protocol came back as a classic one"
    else:
        member = step(state, draft, owned, before, after, now)
    downgrade(state, draft.group, set(), why, out, now)
    return member


# --- SyncGroup and Heartbeat ---


def sync(
    state: State, request: SyncGroupRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    group = _group(state, request.group_id)
    try:
        check_named(request, caller.version)
        member, classic = _check_member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        name = classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (
            None,
            name,
        ):
            refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the member joined with {name}")
        if member.epoch < group.target_epoch and not _revoking(member):
            _await_join(state, group, member, now)
            refuse(ErrorCode.REBALANCE_IN_PROGRESS, "there is a newer target; join again")
    except KafkaError as e:
        return Outcome(replies=[(token, refused(request, e.code, caller.version))])
    state.timers.cancel(Timer(SYNC, group.group_id, member.member_id))
    keep_session(state, group.group_id, member, now)
    share = {topic: frozenset(held) for topic, held in member.assigned.items()}
    response = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(share, state.topics, version_of(classic.protocols[0][1])),
    )
    return Outcome(replies=[(token, response)])


def heartbeat(
    state: State, request: HeartbeatRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    group = _group(state, request.group_id)
    try:
        member, _ = _check_member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
    except KafkaError as e:
        return Outcome(replies=[(token, refused(request, e.code, caller.version))])
    out = Outcome(instead=partial(undo, state, request.group_id))
    draft = Draft(group)
    draft.sees = caller.sees
    carry_on(out, _heartbeat(state, draft, member, token, out, now))
    return out


def _heartbeat(
    state: State, draft: Draft, member: ConsumerMember, token: Token, out: Outcome, now: Instant
) -> Generator[None, None, None]:
    group = draft.group
    # Where only classic members are left there may be no other heartbeat to find this out.
    yield from update(state, draft, member, member, out, now)
    yield from retarget(state, draft, now)
    looked(state, draft)
    out.records = draft.records
    keep_session(state, group.group_id, member, now)
    error = ErrorCode.NONE
    if (
        member.epoch < draft.group.target_epoch
        or _revoking(member)
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waiting(draft.group, member))
    ):
        error = ErrorCode.REBALANCE_IN_PROGRESS
        _await_join(state, group, member, now)
    out.replies.append((token, HeartbeatResponse(error_code=error)))


def _check_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, Classic]:
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = static_member(group, instance_id, member_id)
    if member.classic is None:
        refuse(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not use the classic protocol")
    if generation != member.epoch:
        refuse(ErrorCode.ILLEGAL_GENERATION, f"{member_id} is at epoch {member.epoch}")
    return member, member.classic


def _revoking(member: ConsumerMember) -> bool:
    return member.state is MemberState.UNREVOKED_PARTITIONS


def _waiting(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether something of its target is still held by another."""
    free = group.free_for(member.member_id)
    return any(
        not free(topic, partition)
        for topic, held in group.target.get(member.member_id, {}).items()
        for partition in held
    )


def _await_join(state: State, group: ConsumerGroup, member: ConsumerMember, now: Instant) -> None:
    timer = Timer(JOIN, group.group_id, member.member_id)
    if timer not in state.timers:
        state.timers.set(timer, now.mono_ms + member.rebalance_timeout_ms)


# --- LeaveGroup ---


def leave(
    state: State, request: LeaveGroupRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Any member may be named, also one of the consumer protocol: administrators remove so."""
    group = _group(state, request.group_id)
    together = caller.version >= MEMBERS_LEAVE_TOGETHER_FROM
    leaving = request.members if together else [MemberIdentity(member_id=request.member_id)]
    out = Outcome(instead=partial(undo, state, request.group_id))
    answers = []
    gone: dict[str, ConsumerMember] = {}
    for identity in leaving:
        answer = MemberResponse(
            member_id=identity.member_id, group_instance_id=identity.group_instance_id
        )
        try:
            member = _leaving(group, identity)
            gone[member.member_id] = member
        except KafkaError as e:
            answer.error_code = e.code
        answers.append(answer)
    fence(state, group, list(gone.values()), "left", out, now)
    if together:
        response = LeaveGroupResponse(members=answers)
    else:
        response = LeaveGroupResponse(error_code=answers[0].error_code)
    out.replies.append((token, response))
    return out


def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    """An administrator names an instance without saying who that is at the moment."""
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    static = group.static(identity.group_instance_id)
    member_id = identity.member_id or (static.member_id if static is not None else "")
    return static_member(group, identity.group_instance_id, member_id)
