"""ConsumerGroupHeartbeat: joining, staying, leaving; and what a member's timers do."""

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

from scriba.errors import ErrorCode, KafkaError
from scriba.events import Event, EventKind
from scriba.groups.classic.group import ClassicGroup
from scriba.groups.classic.rebalance import dissolve
from scriba.groups.consumer import records
from scriba.groups.consumer.group import ConsumerGroup, Draft
from scriba.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
)
from scriba.groups.consumer.migration import downgrade, may_downgrade, upgrade
from scriba.groups.consumer.progress import (
    REBALANCE,
    cancel_timers,
    drop_unused_regex,
    guard_revocation,
    keep_session,
    raise_epoch,
    settle,
    undo,
)
from scriba.groups.consumer.reconcile import Owned, owned_by
from scriba.groups.state import State, Timer, client_host
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token, begun, carry_on
from scriba.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from scriba.wire.uuids import to_text

SOON_MS: Final = 500
BURST_MS: Final = 3_000


def refuse(code: ErrorCode, text: str) -> NoReturn:
    raise KafkaError(code, text)


def heartbeat(
    state: State,
    request: ConsumerGroupHeartbeatRequest,
    token: Token,
    caller: Caller,
    now: Instant,
) -> Outcome:
    return begun(_heartbeat(state, request, token, caller, now))


def _heartbeat(
    state: State,
    request: ConsumerGroupHeartbeatRequest,
    token: Token,
    caller: Caller,
    now: Instant,
) -> Generator[None, None, Outcome]:
    out = Outcome(instead=partial(undo, state, request.group_id))
    try:
        _check(state, request, caller.version)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            response = _leave(state, request, out, now)
        else:
            response = yield from _stay(state, request, caller, out, now)
    except KafkaError as e:
        response = ConsumerGroupHeartbeatResponse(error_code=e.code, error_message=e.message)
        return Outcome(replies=[(token, response)])
    out.replies.append((token, response))
    return out


def _check(state: State, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    epoch = request.member_epoch
    if version >= 1 or epoch > 0 or epoch == LEAVE_EPOCH:
        _check_text(request.member_id, "MemberId")
    _check_text(request.group_id, "GroupId")
    _check_text(request.instance_id, "InstanceId")
    _check_text(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            refuse(
                ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must come with the first request."
            )
        if request.topic_partitions is None or request.topic_partitions:
            refuse(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty in a joining request.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            refuse(ErrorCode.INVALID_REQUEST, "A joining request must subscribe to something.")
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        refuse(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        refuse(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    offered = state.settings.consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in offered:
        refuse(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"{request.server_assignor} is not supported. Supported: {', '.join(offered)}.",
        )


def _check_text(text: str | None, name: str) -> None:
    if text is not None and not text.strip():
        refuse(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")


# --- joining and staying ---


def _stay(
    state: State,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    out: Outcome,
    now: Instant,
) -> Generator[None, None, ConsumerGroupHeartbeatResponse]:
    joining = request.member_epoch == JOIN_EPOCH
    standing = state.store.groups.get(request.group_id)
    draft = yield from _open(state, request.group_id, joining)
    draft.sees = caller.sees
    check_room(state, draft.group, request.member_id)
    owned = None
    if request.topic_partitions is not None:
        owned = owned_by((each.topic_id, each.partitions) for each in request.topic_partitions)
    member_id = request.member_id or to_text(caller.fresh)
    before = _find(draft, request, member_id, owned)
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    after = replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
        names=before.names if names is None else frozenset(names),
        regex=before.regex if regex is None else regex,
        client_id=caller.client_id,
        client_host=client_host(caller),
        classic=None,
    )
    member = yield from settle(state, draft, before, after, owned, out, now)
    if isinstance(standing, ClassicGroup):
        out.instead = None
        dissolve(state, standing, ErrorCode.REBALANCE_IN_PROGRESS, out)
        for other in draft.group.classic_members():
            keep_session(state, request.group_id, other, now)
    keep_session(state, request.group_id, member, now)
    out.records = draft.records
    full = timeout != -1 and (names is not None or regex is not None) and owned is not None
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=_interval_ms(state, draft.group, member, now),
    )
    if joining or full or member.assigned != before.assigned:
        response.assignment = _assignment(member)
    return response


def _interval_ms(state: State, group: ConsumerGroup, member: ConsumerMember, now: Instant) -> int:
    """Who waits for others, for the next target, or for its expression to be matched, is asked to
    come again soon. So is, for a short time after each target, who holds something: members tend
    to come one after the other, and the next ones wait for it. Kafka lets all of them wait a whole
    interval, which is most of the time that a rebalance takes there."""
    interval = state.settings.of(group.group_id).consumer_heartbeat_interval_ms
    waits = member.state is MemberState.UNRELEASED_PARTITIONS or group.epoch > group.target_epoch
    young = 0 <= now.wall_ms - group.target_wall_ms < BURST_MS
    unmatched = bool(member.regex) and member.regex not in group.regexes
    soon = waits or unmatched or (young and bool(member.assigned))
    return min(interval, SOON_MS) if soon else interval


def _open(state: State, group_id: str, joining: bool) -> Generator[None, None, Draft]:
    group = state.store.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return Draft(group)
    if not joining:
        what = "not found" if group is None else "is not a consumer group"
        refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
    if isinstance(group, ClassicGroup) and not group.empty():
        return (yield from upgrade(state, group))
    draft = Draft(ConsumerGroup(group_id))
    if group is not None:
        draft.records += group.tombstones()
    return draft


def check_room(state: State, group: ConsumerGroup, member_id: str) -> None:
    limit = state.settings.consumer_max_size
    if len(group.members) >= limit and member_id not in group.members:
        refuse(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {limit} members.",
        )


def _find(
    draft: Draft, request: ConsumerGroupHeartbeatRequest, member_id: str, owned: Owned
) -> ConsumerMember:
    """The member that speaks: one that is known, or a blank one that joins."""
    group = draft.group
    joining = request.member_epoch == JOIN_EPOCH
    if request.instance_id is None:
        known = group.members.get(member_id)
        if known is None and joining:
            return ConsumerMember(member_id)
        member = group.member(member_id)
        _check_epoch(member, request.member_epoch, owned)
        return member
    static = group.static(request.instance_id)
    if not joining:
        member = static_member(group, request.instance_id, member_id)
        _check_epoch(member, request.member_epoch, owned)
        return member
    if static is None:
        return group.members.get(member_id, ConsumerMember(member_id))
    if static.classic is None and static.epoch != STATIC_LEAVE_EPOCH:
        refuse(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Instance id {request.instance_id} is still owned by member {static.member_id}.",
        )
    return replace_static(draft, static, member_id)


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    member = group.static(instance_id)
    if member is None:
        refuse(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        refuse(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Instance id {instance_id} was taken over by member {member.member_id}.",
        )
    return member


def replace_static(draft: Draft, old: ConsumerMember, member_id: str) -> ConsumerMember:
    """A static member comes back under another id and takes over all that the old one had."""
    group_id = draft.group.group_id
    member = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
    target = draft.group.target.get(old.member_id, {})
    draft.write(
        *records.no_member(group_id, old.member_id),
        records.member(group_id, member),
        records.target(group_id, member_id, target),
        records.current(group_id, member),
    )
    return member


def _check_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> None:
    """An epoch one behind is taken from a member that owns no more than it should: the answer that
    told it of the new epoch may have been lost."""
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    behind = epoch == member.previous_epoch and owned is not None
    if behind and all(own <= member.assigned.get(t, {}).keys() for t, own in (owned or {}).items()):
        return
    refuse(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member sent epoch {epoch} and is at {member.epoch}. "
        "It must abandon all its partitions and join again.",
    )


def _assignment(member: ConsumerMember) -> ConsumerGroupHeartbeatResponseAssignment:
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic, partitions=list(held))
            for topic, held in member.assigned.items()
        ]
    )


# --- leaving ---


def _leave(
    state: State, request: ConsumerGroupHeartbeatRequest, out: Outcome, now: Instant
) -> ConsumerGroupHeartbeatResponse:
    group = state.store.groups.get(request.group_id)
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} {what}.")
    if request.instance_id is None:
        member = group.member(request.member_id)
    else:
        member = static_member(group, request.instance_id, request.member_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )
    if request.instance_id is None or request.member_epoch == LEAVE_EPOCH:
        fence(state, group, [member], "left", out, now)
        return response
    # It is expected back: it keeps what it has until its session ends.
    assigned = {topic: dict.fromkeys(held, 0) for topic, held in member.assigned.items()}
    away = replace(member, epoch=STATIC_LEAVE_EPOCH, assigned=assigned, revoking={})
    out.records.append(records.current(group.group_id, away))
    state.timers.cancel(Timer(REBALANCE, group.group_id, member.member_id))
    return response


def fence(
    state: State,
    group: ConsumerGroup,
    members: list[ConsumerMember],
    why: str,
    out: Outcome,
    now: Instant,
) -> None:
    """Takes members out, and what they had with them. If only members of the classic protocol
    remain, the group may go back to that protocol. It is the last part of its step."""
    if not members:
        return
    for member in members:
        cancel_timers(state, group.group_id, member.member_id)
        out.events.append(
            Event(EventKind.GROUP_MEMBER_REMOVED, group.group_id, f"{member.member_id}: {why}")
        )
    gone = {member.member_id for member in members}
    if may_downgrade(state, group, gone):
        downgrade(state, group, gone, f"{', '.join(sorted(gone))}: {why}", out, now)
        return
    draft = Draft(group)
    for member in members:
        draft.write(*records.no_member(group.group_id, member.member_id))
    for regex in sorted({member.regex for member in members}):
        drop_unused_regex(draft, regex)
    carry_on(out, _shrink(state, draft, out))


def _shrink(state: State, draft: Draft, out: Outcome) -> Generator[None, None, None]:
    yield from raise_epoch(state, draft)
    out.records += draft.records


# --- timers and loading ---


def on_session_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    return _expire(state, timer, "its session expired", now)


def on_join_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    return _expire(state, timer, "it did not join again within its rebalance timeout", now)


def on_sync_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    return _expire(state, timer, "it did not ask for its share within its rebalance timeout", now)


def on_rebalance_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    return _expire(state, timer, "it did not give up partitions within its rebalance timeout", now)


def _expire(state: State, timer: Timer, why: str, now: Instant) -> Outcome:
    out = Outcome(instead=partial(undo, state, timer.group_id))
    group = state.store.groups.get(timer.group_id)
    if isinstance(group, ConsumerGroup) and timer.member_id in group.members:
        fence(state, group, [group.members[timer.member_id]], why, out, now)
    return out


def begin_sessions(state: State, now: Instant) -> Outcome:
    """Everybody gets a full session to find the new coordinator."""
    for group in state.store.groups.values():
        if not isinstance(group, ConsumerGroup):
            continue
        for member in group.members.values():
            keep_session(state, group.group_id, member, now)
            if member.classic is None and member.epoch != STATIC_LEAVE_EPOCH:
                guard_revocation(state, group.group_id, member, now)
    return Outcome()
