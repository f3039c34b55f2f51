"""What follows when a member has said something: new epoch, new target, the member's next step.

Whatever a member changed is written to a draft of its group first. Then, in this order: the
expressions of subscriptions are resolved; the group epoch rises if what is to be shared changed; a
new target is computed if there is none for that epoch, and the last one is old enough
(`group.consumer.assignment.interval.ms`, so that many members that come at once cost few targets);
and the member makes one step towards its target.
"""

from collections.abc import Generator
from typing import Final

from scriba.events import Event, EventKind
from scriba.groups.assignors import ASSIGNORS, AT_ONCE, MemberSpec
from scriba.groups.consumer import records
from scriba.groups.consumer.group import ConsumerGroup, Draft
from scriba.groups.consumer.member import STATIC_LEAVE_EPOCH, ConsumerMember, MemberState
from scriba.groups.consumer.reconcile import Goal, Owned, reconcile
from scriba.groups.consumer.topic_hash import hashing
from scriba.groups.regex.syntax import BadExpression
from scriba.groups.state import State, Timer
from scriba.instant import Instant
from scriba.outcome import Outcome

SESSION: Final = "consumer-session"
REBALANCE: Final = "consumer-rebalance"
JOIN: Final = "consumer-classic-join"
SYNC: Final = "consumer-classic-sync"
"""Timers of a member: until it is heard of again; until it has given up what it must. The last two
are for members of the classic protocol: until it joins again, until it asks for its share."""

REFRESH_FLOOR_MS: Final = 10_000
"""New topics are held against the expressions of a group at most this often."""


def settle(
    state: State,
    draft: Draft,
    before: ConsumerMember,
    after: ConsumerMember,
    owned: Owned,
    out: Outcome,
    now: Instant,
) -> Generator[None, None, ConsumerMember]:
    """The member as it comes out of this; `before` is what it was, or a blank if it is new."""
    yield from update(state, draft, before, after, out, now)
    yield from retarget(state, draft, now)
    member = step(state, draft, owned, before, after, now)
    looked(state, draft)
    return member


def update(
    state: State,
    draft: Draft,
    before: ConsumerMember,
    after: ConsumerMember,
    out: Outcome,
    now: Instant,
) -> Generator[None, None, None]:
    """Stores what the member says of itself, and the new group epoch that follows from it or from
    topics that have changed. Where there are many topics, or expressions, that is done in slices.
    """
    if draft.group.members.get(after.member_id) != after:
        draft.write(records.member(draft.group.group_id, after))
    matched_others = yield from _resolve(state, draft, before, after, out, now)
    group = draft.group
    if matched_others or _resubscribed(before, after):
        yield from raise_epoch(state, draft)
    elif group.stale:
        hashed = yield from hashing(group.topics(), state.topics)
        if hashed != group.metadata_hash:
            _write_epoch(draft, hashed)


def _resubscribed(before: ConsumerMember, after: ConsumerMember) -> bool:
    return before.names != after.names or before.regex != after.regex


def looked(state: State, draft: Draft) -> None:
    """Marks the standing group: its topics have been looked at."""
    standing = state.store.groups.get(draft.group.group_id)
    if isinstance(standing, ConsumerGroup):
        standing.stale, standing.topics_came = False, draft.group.topics_came


def raise_epoch(state: State, draft: Draft) -> Generator[None, None, None]:
    _write_epoch(draft, (yield from hashing(draft.group.topics(), state.topics)))


def _write_epoch(draft: Draft, hashed: int) -> None:
    group = draft.group
    draft.write(records.epoch(group.group_id, group.epoch + 1, hashed))
    if group.has_partition_metadata:
        draft.write(records.no_partition_metadata(group.group_id))


# --- expressions ---


def _resolve(
    state: State,
    draft: Draft,
    before: ConsumerMember,
    after: ConsumerMember,
    out: Outcome,
    now: Instant,
) -> Generator[None, None, bool]:
    """Brings the topics of the group's expressions up to date; whether any of them changed.

    Unlike Kafka, which does it aside and tells at a later heartbeat, a new expression is resolved
    at once, unless there are so many topics that it takes a while. As in Kafka, what the member
    sees who brings it about is what the group shares."""
    group_id = draft.group.group_id
    if before.regex != after.regex:
        drop_unused_regex(draft, before.regex)
    if after.regex and after.regex not in draft.group.regexes:
        topics = state.topics.matching(after.regex, draft.sees)
        if topics is None:
            return False
        draft.write(records.regex(group_id, after.regex, topics, 1, now.wall_ms))
        return True
    return (yield from _refresh(state, draft, out, now)) if draft.group.regexes else False


def drop_unused_regex(draft: Draft, regex: str) -> None:
    group = draft.group
    if regex in group.regexes and all(m.regex != regex for m in group.members.values()):
        draft.write(records.no_regex(group.group_id, regex))


def _refresh(state: State, draft: Draft, out: Outcome, now: Instant) -> Generator[None, None, bool]:
    group = draft.group
    age = now.wall_ms - min(resolved.wall_ms for resolved in group.regexes.values())
    limit = state.settings.consumer_regex_refresh_interval_ms
    if group.topics_came:
        limit = min(limit, REFRESH_FLOOR_MS)
    # A wall clock that was set back must not stop the refreshing until it is there again.
    if 0 <= age <= limit:
        return False
    found: dict[str, frozenset[str]] = {}
    for regex, resolved in sorted(group.regexes.items()):
        try:
            topics = state.topics.matching(regex, draft.sees)
        except BadExpression as e:
            # It was fine when it was accepted: there are more topics now. Its members keep theirs.
            out.events.append(Event(EventKind.SUBSCRIPTION_UNRESOLVED, group.group_id, e.message))
            topics = resolved.topics
        if topics is None:
            return False  # a later heartbeat will know
        found[regex] = topics
        yield
    moved = False
    for regex, topics in found.items():
        resolved = group.regexes[regex]
        moved |= topics != resolved.topics
        draft.write(records.regex(group.group_id, regex, topics, resolved.version + 1, now.wall_ms))
    draft.group.topics_came = False
    return moved


# --- target ---


def retarget(state: State, draft: Draft, now: Instant) -> Generator[None, None, None]:
    """Computes a target for the group epoch, unless there is one or the last is too young. In a
    large group that is done in slices."""
    group = draft.group
    if group.target_epoch >= group.epoch:
        return
    age = now.wall_ms - group.target_wall_ms
    interval = state.settings.of(group.group_id).consumer_assignment_interval_ms
    if group.target_wall_ms and 0 <= age < interval:
        return
    assign = ASSIGNORS[group.assignor(state.settings.consumer_assignors)]
    partitions: dict[bytes, int] = {}
    specs: dict[str, MemberSpec] = {}
    topics: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
    for count, member in enumerate(group.members.values(), 1):
        if count % AT_ONCE == 0:
            yield
        wanted = (member.names, member.regex)
        if wanted not in topics:
            subscription = group.subscription(member, state.topics)
            partitions |= subscription
            topics[wanted] = frozenset(subscription)
        specs[member.member_id] = MemberSpec(
            topics[wanted], group.target.get(member.member_id, {}), member.instance_id
        )
    target = yield from assign(specs, partitions)
    for count, member_id in enumerate(sorted(target), 1):
        if group.target.get(member_id) != target[member_id]:
            draft.write(records.target(group.group_id, member_id, target[member_id]))
        if count % AT_ONCE == 0:
            yield
    draft.write(records.target_epoch(group.group_id, group.epoch, now.wall_ms))


# --- the member's step ---


def step(
    state: State,
    draft: Draft,
    owned: Owned,
    before: ConsumerMember,
    after: ConsumerMember,
    now: Instant,
) -> ConsumerMember:
    group = draft.group
    member = group.members[after.member_id]
    resubscribed = _resubscribed(before, after)
    if not resubscribed and member.reconciled(group.target_epoch):
        return member
    goal = Goal(
        group.target_epoch,
        group.target.get(member.member_id, {}),
        group.subscription(member, state.topics).keys(),
        group.free_for(member.member_id),
    )
    stepped = reconcile(member, goal, owned, resubscribed)
    if stepped != member:
        draft.write(records.current(group.group_id, stepped))
        if stepped.classic is None:
            guard_revocation(state, group.group_id, stepped, now)
    return stepped


def guard_revocation(state: State, group_id: str, member: ConsumerMember, now: Instant) -> None:
    timer = Timer(REBALANCE, group_id, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        state.timers.set(timer, now.mono_ms + member.rebalance_timeout_ms)
    else:
        state.timers.cancel(timer)


def keep_session(state: State, group_id: str, member: ConsumerMember, now: Instant) -> None:
    timeout = (
        state.settings.of(group_id).consumer_session_timeout_ms
        if member.classic is None
        else member.classic.session_timeout_ms
    )
    state.timers.set(Timer(SESSION, group_id, member.member_id), now.mono_ms + timeout)


def undo(state: State, group_id: str, now: Instant) -> Outcome:
    """A change that the log can never take: the group is as it was, and so are its timers."""
    group = state.store.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        group.stale = group.topics_came = True  # the next heartbeat looks again
        for member in group.members.values():
            if Timer(SESSION, group_id, member.member_id) not in state.timers:
                keep_session(state, group_id, member, now)
            guard = Timer(REBALANCE, group_id, member.member_id)
            if member.classic is not None or member.epoch == STATIC_LEAVE_EPOCH:
                state.timers.cancel(guard)
            elif member.state is not MemberState.UNREVOKED_PARTITIONS or guard not in state.timers:
                guard_revocation(state, group_id, member, now)
    return Outcome()


def cancel_timers(state: State, group_id: str, member_id: str) -> None:
    for kind in (SESSION, REBALANCE, JOIN, SYNC):
        state.timers.cancel(Timer(kind, group_id, member_id))
