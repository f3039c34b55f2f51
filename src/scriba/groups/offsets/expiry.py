"""What goes by itself: offsets nobody has used for long, groups without members and offsets, and
offsets of topics that were deleted.

A pass over all groups is made every `offsets.retention.check.interval.ms`, in bites: each tick
looks at some groups and sets the timer for the next at once, so that a shard with many groups goes
on answering in between. A group with many offsets is a tick of its own, in slices. While the wall
clock cannot be believed, nothing expires: offsets lost to a jump would make consumers start over.
"""

from collections.abc import Generator, Iterable
from typing import Final

from scriba.events import Event, EventKind
from scriba.groups.facts import NO_TOPIC_ID, TopicFacts
from scriba.groups.state import State, Timer
from scriba.groups.store import Committed, Group, TopicPartition, offset_tombstone
from scriba.instant import ClockWatch, Instant
from scriba.outcome import Outcome, at_once

EXPIRY: Final = "offsets-expiry"
PLACES_PER_TICK: Final = 500


def begin_expiry(state: State, now: Instant) -> Outcome:
    state.clock_watch = state.clock_watch or ClockWatch(now)
    _await_pass(state, now)
    return Outcome()


def _await_pass(state: State, now: Instant) -> None:
    deadline = now.mono_ms + state.settings.offsets_retention_check_interval_ms
    state.timers.set(Timer(EXPIRY), deadline)


def on_expiry_timer(state: State, timer: Timer, now: Instant) -> Outcome:
    out = Outcome(splittable=True)
    watch = state.clock_watch
    assert watch is not None
    if not watch.believes(now):
        if watch.surprised:
            text = f"jumped ahead by {watch.jump_ms} ms: no offset expires until it is right"
            out.events.append(Event(EventKind.CLOCK_IN_DOUBT, "group coordinator", text))
        state.to_expire.clear()
        _await_pass(state, now)
        return out
    state.to_expire = state.to_expire or list(state.store.groups)
    large = bool(state.to_expire) and _is_large(state, state.to_expire[-1])
    work = _expire_some(state, timer, now)
    return Outcome(work=work) if large else at_once(work)


def _is_large(state: State, group_id: str) -> bool:
    return len(state.store.offsets.get(group_id, ())) > PLACES_PER_TICK


def _expire_some(state: State, timer: Timer, now: Instant) -> Generator[None, None, Outcome]:
    out = Outcome(splittable=True)
    looked_at = 0
    while state.to_expire and looked_at < PLACES_PER_TICK:
        if looked_at and _is_large(state, state.to_expire[-1]):
            break
        group = state.store.groups.get(state.to_expire.pop())
        if group is not None:
            looked_at += 1 + len(state.store.offsets.get(group.group_id, ()))
            yield from _expire_group(state, group, out, now)
    if state.to_expire:
        state.timers.set(timer, now.mono_ms)
    else:
        _await_pass(state, now)
    return out


def _expire_group(
    state: State, group: Group, out: Outcome, now: Instant
) -> Generator[None, None, None]:
    offsets = state.store.offsets.get(group.group_id, {})
    expired = 0
    for count, (place, committed) in enumerate(offsets.items(), 1):
        if _expired(state, group, place, committed, now):
            out.records.append(offset_tombstone(group.group_id, place))
            expired += 1
        if count % PLACES_PER_TICK == 0:
            yield
    if expired:
        text = f"{expired} offsets expired"
        out.events.append(Event(EventKind.OFFSETS_EXPIRED, group.group_id, text))
    nothing_left = expired == len(offsets)
    if nothing_left and group.empty() and group.group_id not in state.store.open_txns:
        out.records += group.tombstones()


def _expired(
    state: State, group: Group, place: TopicPartition, committed: Committed, now: Instant
) -> bool:
    since = group.idle_since(committed)
    if since is None or group.subscribed(place[0]):
        return False
    if committed.expire_ms >= 0:
        due = now.wall_ms >= committed.expire_ms
    else:
        due = now.wall_ms - since >= state.settings.offsets_retention_ms
    return due and not state.store.is_pending(group.group_id, place)


def on_topics_changed(state: State, names: Iterable[str], now: Instant) -> Outcome:
    """Offsets of a topic go with it, and do not pass to a new one of the same name."""
    changed = [name for name in names if name in state.store.by_topic]
    work = _offsets_gone(state, changed)
    many = sum(sum(state.store.by_topic[name].values()) for name in changed) > PLACES_PER_TICK
    return Outcome(work=work) if many else at_once(work)


def _offsets_gone(state: State, names: Iterable[str]) -> Generator[None, None, Outcome]:
    out = Outcome(splittable=True)
    store = state.store
    for name in names:
        facts = state.topics.get(name)
        for group_id in list(store.by_topic.get(name, ())):
            places: dict[TopicPartition, Committed] = dict(store.offsets.get(group_id, {}))
            for producer_id in store.open_txns.get(group_id, ()):
                places.update(store.pending[producer_id][group_id])
            for count, (place, committed) in enumerate(places.items()):
                if place[0] == name and _outlived(facts, committed):
                    out.records.append(offset_tombstone(group_id, place))
                if count % PLACES_PER_TICK == 0:
                    yield
    return out


def _outlived(facts: TopicFacts | None, committed: Committed) -> bool:
    return facts is None or committed.topic_id not in (NO_TOPIC_ID, facts.id)
