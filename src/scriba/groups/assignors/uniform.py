"""`uniform`: every member gets about as many partitions as any other, and keeps those it had.

Alike subscriptions: each member's share is fixed beforehand (all get the quotient, as many as the
remainder says get one more), so members above their share give up exactly the excess. The extra
ones go to members that already hold one more, which is what makes the moves as few as possible.

Different subscriptions: partitions without an owner go to the least loaded subscriber, topics
with the most partitions per subscriber first, since they have the fewest places to go. Then
partitions move from the most to the least loaded subscriber of their topic while that evens out
two or more. Every move brings the sum of squared loads down, so this comes to an end.
"""

import heapq
from collections.abc import Generator, Mapping
from typing import Final

from scriba.groups.assignors.spec import AT_ONCE, Assigning, Assignment, MemberSpec

_Plan = dict[str, dict[bytes, set[int]]]

_MAX_PASSES: Final = 16
"""Over all topics, while balancing: a cap on the time, reached by no ordinary group."""


def uniform(members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]) -> Assigning:
    if not members:
        return {}
    plan, free = yield from _keep(members, partitions)
    if len({spec.topics for spec in members.values()}) == 1:
        yield from _fill_shares(plan, free)
    else:
        loads = {member_id: sum(map(len, topics.values())) for member_id, topics in plan.items()}
        subscribers = yield from _subscribers(members)
        order = sorted(
            subscribers,
            key=lambda topic: (
                -partitions[topic] / len(subscribers[topic]),
                len(subscribers[topic]),
                topic,
            ),
        )
        yield from _place_free(plan, free, order, subscribers, loads)
        shared = [topic for topic in order if len(subscribers[topic]) > 1]
        yield from _balance(plan, shared, subscribers, loads)
    target: dict[str, Assignment] = {}
    for count, (member_id, topics) in enumerate(plan.items(), 1):
        target[member_id] = {topic: frozenset(held) for topic, held in topics.items() if held}
        if count % AT_ONCE == 0:
            yield
    return target


def _keep(
    members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]
) -> Generator[None, None, tuple[_Plan, dict[bytes, list[int]]]]:
    """What members had and may still have, and the partitions that nobody has."""
    owned: dict[bytes, set[int]] = {}
    plan: _Plan = {}
    for count, member_id in enumerate(sorted(members), 1):
        spec = members[member_id]
        plan[member_id] = {}
        if count % AT_ONCE == 0:
            yield
        for topic in sorted(spec.target):
            if topic not in spec.topics:
                continue
            taken = owned.setdefault(topic, set())
            held = {p for p in spec.target[topic] if p < partitions[topic]} - taken
            taken |= held
            plan[member_id][topic] = held
    topics = set().union(*(spec.topics for spec in members.values()))
    free: dict[bytes, list[int]] = {}
    for count, topic in enumerate(sorted(topics), 1):
        taken = owned.get(topic, set())
        free[topic] = [p for p in range(partitions[topic]) if p not in taken]
        if count % AT_ONCE == 0:
            yield
    return plan, free


def _fill_shares(plan: _Plan, free: dict[bytes, list[int]]) -> Generator[None, None, None]:
    loads = {member_id: sum(map(len, topics.values())) for member_id, topics in plan.items()}
    total = sum(loads.values()) + sum(map(len, free.values()))
    share, extra = divmod(total, len(plan))
    above = [member_id for member_id in plan if loads[member_id] > share]
    others = [member_id for member_id in plan if loads[member_id] <= share]
    quotas = {
        member_id: share + (place < extra) for place, member_id in enumerate([*above, *others])
    }
    for count, member_id in enumerate(above, 1):
        if count % AT_ONCE == 0:
            yield
        _give_up(plan[member_id], loads[member_id] - quotas[member_id], free)
    queue = [(topic, partition) for topic, left in free.items() for partition in left]
    queue.reverse()
    for count, (member_id, topics) in enumerate(plan.items(), 1):
        if count % AT_ONCE == 0:
            yield
        for _ in range(quotas[member_id] - loads[member_id]):
            topic, partition = queue.pop()
            topics.setdefault(topic, set()).add(partition)
    assert not queue, "shares add up to all partitions"


def _give_up(topics: dict[bytes, set[int]], count: int, free: dict[bytes, list[int]]) -> None:
    for topic in reversed(topics):
        for partition in sorted(topics[topic], reverse=True)[:count]:
            topics[topic].remove(partition)
            free[topic].append(partition)
            count -= 1


def _subscribers(
    members: Mapping[str, MemberSpec],
) -> Generator[None, None, dict[bytes, list[str]]]:
    found: dict[bytes, list[str]] = {}
    for count, member_id in enumerate(sorted(members), 1):
        if count % AT_ONCE == 0:
            yield
        for topic in members[member_id].topics:
            found.setdefault(topic, []).append(member_id)
    return found


def _place_free(
    plan: _Plan,
    free: dict[bytes, list[int]],
    order: list[bytes],
    subscribers: dict[bytes, list[str]],
    loads: dict[str, int],
) -> Generator[None, None, None]:
    placed = 0
    for topic in order:
        if not free[topic]:
            continue
        heap = [(loads[member_id], member_id) for member_id in subscribers[topic]]
        heapq.heapify(heap)
        for partition in free[topic]:
            placed += 1
            if placed % AT_ONCE == 0:
                yield
            load, member_id = heap[0]
            plan[member_id].setdefault(topic, set()).add(partition)
            loads[member_id] = load + 1
            heapq.heapreplace(heap, (load + 1, member_id))


def _balance(
    plan: _Plan,
    order: list[bytes],
    subscribers: dict[bytes, list[str]],
    loads: dict[str, int],
) -> Generator[None, None, None]:
    looked_at = 0
    for _ in range(_MAX_PASSES):
        moved = 0
        for topic in order:
            moved += yield from _balance_topic(plan, topic, subscribers[topic], loads)
            looked_at += len(subscribers[topic])
            if looked_at >= AT_ONCE:
                looked_at = 0
                yield
        if not moved:
            return


def _balance_topic(
    plan: _Plan, topic: bytes, subscribers: list[str], loads: dict[str, int]
) -> Generator[None, None, int]:
    """Evens out one topic. Within it a giver never receives: the loads of givers only sink and
    those of takers only rise until they meet, so two heaps without corrections are enough."""
    takers = [(loads[member_id], member_id) for member_id in subscribers]
    givers = [
        (-loads[member_id], member_id) for member_id in subscribers if plan[member_id].get(topic)
    ]
    heapq.heapify(takers)
    heapq.heapify(givers)
    moved = 0
    while givers and -givers[0][0] - takers[0][0] > 1:
        load, giver = givers[0]
        taken, taker = takers[0]
        partition = max(plan[giver][topic])
        plan[giver][topic].remove(partition)
        plan[taker].setdefault(topic, set()).add(partition)
        loads[giver] -= 1
        loads[taker] += 1
        heapq.heapreplace(takers, (taken + 1, taker))
        if plan[giver][topic]:
            heapq.heapreplace(givers, (load + 1, giver))
        else:
            heapq.heappop(givers)
        moved += 1
        if moved % AT_ONCE == 0:
            yield
    return moved
