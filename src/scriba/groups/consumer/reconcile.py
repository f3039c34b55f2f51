"""One step of a member towards its target.

A member that must give up partitions is asked to (UNREVOKED_PARTITIONS) and stays at its epoch
until it no longer reports them as its own; only then they are free for others. It then moves to
the target's epoch and gets what is free; while something of its target is still held by somebody
else, it waits for it (UNRELEASED_PARTITIONS) and gets it as soon as that changes. A partition is
therefore never with two members, and members move on without waiting for each other otherwise.

    STABLE ------> UNREVOKED_PARTITIONS     there is something to give up
    STABLE ------> UNRELEASED_PARTITIONS    there is something to wait for
    each of them -> each other, as the target changes under way
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.assignors import Assignment
from scriba.groups.consumer.member import ConsumerMember, Held, MemberState

Owned = Mapping[bytes, Set[int]] | None
"""What a member says it owns; None where it says nothing about it."""


class Goal(NamedTuple):
    epoch: int
    target: Assignment
    topics: Set[bytes]
    """What the member subscribes to now: a target made for an older subscription gives no more
    than that."""
    free: Callable[[bytes, int], bool]
    """Whether no other member holds a partition."""


def reconcile(
    member: ConsumerMember, goal: Goal, owned: Owned, resubscribed: bool
) -> ConsumerMember:
    """The member after one step, or itself where there is none to make."""
    if member.state is MemberState.UNKNOWN and (owned is None or any(owned.values())):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "the member's state is not known here: it must give up its partitions and join again",
        )
    waits = (
        member.reconciled(goal.epoch)
        if member.state is MemberState.STABLE
        else member.state is MemberState.UNREVOKED_PARTITIONS and owns(owned, member.revoking)
    )
    if waits:
        return _drop_unsubscribed(member, goal, owned) if resubscribed else member
    return _advance(member, goal, owned)


def owns(owned: Owned, held: Held) -> bool:
    """Whether the member may still have any of these partitions; silence is no release."""
    if owned is None:
        return True
    return any(
        partition in held.get(topic, ()) for topic, own in owned.items() for partition in own
    )


def owned_by(topics: Iterable[tuple[bytes, Iterable[int]]]) -> dict[bytes, set[int]]:
    owned: dict[bytes, set[int]] = {}
    for topic, partitions in topics:
        owned.setdefault(topic, set()).update(partitions)
    return owned


def _advance(member: ConsumerMember, goal: Goal, owned: Owned) -> ConsumerMember:
    wanted = {topic: held for topic, held in goal.target.items() if topic in goal.topics}
    kept: dict[bytes, Mapping[int, int]] = {}
    given: dict[bytes, Mapping[int, int]] = {}
    for topic, held in member.assigned.items():
        target = wanted.get(topic, frozenset())
        stay = {partition: epoch for partition, epoch in held.items() if partition in target}
        if stay:
            kept[topic] = stay
        if len(stay) < len(held):
            given[topic] = {p: epoch for p, epoch in held.items() if p not in target}
    if given and owns(owned, given):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=given,
        )
    waiting = False
    for topic in sorted(wanted):
        missing = sorted(wanted[topic] - kept.get(topic, {}).keys())
        got = [partition for partition in missing if goal.free(topic, partition)]
        waiting |= len(got) < len(missing)
        if got:
            held = {**kept.get(topic, {}), **dict.fromkeys(got, goal.epoch)}
            kept[topic] = dict(sorted(held.items()))
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waiting else MemberState.STABLE,
        epoch=goal.epoch,
        previous_epoch=member.epoch,
        assigned=kept,
        revoking={},
    )


def _drop_unsubscribed(member: ConsumerMember, goal: Goal, owned: Owned) -> ConsumerMember:
    """The member changed its subscription while nothing else is to be done: what it no longer
    asks for goes at once, without waiting for the next target."""
    gone = {topic: held for topic, held in member.assigned.items() if topic not in goal.topics}
    if not gone:
        return member
    kept = {topic: held for topic, held in member.assigned.items() if topic not in gone}
    revoking = {**member.revoking}
    for topic, held in gone.items():
        revoking[topic] = {**revoking.get(topic, {}), **held}
    if owns(owned, revoking):
        state = MemberState.UNREVOKED_PARTITIONS
    else:
        state, revoking = MemberState.STABLE, {}
    return replace(
        member, state=state, previous_epoch=member.epoch, assigned=kept, revoking=revoking
    )
