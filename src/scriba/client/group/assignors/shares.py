"""Range and round-robin: shares that follow from the subscriptions alone.

*range* cuts each topic into runs of neighbours, one for each subscriber; topics with as many
partitions are cut alike, so that a member gets the same numbers of both. *roundrobin* deals the
partitions of all topics out one by one.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Final

from scriba.client.group.assignors.model import (
    Assignor,
    Member,
    Partitions,
    Plan,
    in_order,
    partitions_of,
)
from scriba.client.model import TopicPartition


def plan_range(partitions: Partitions, members: Sequence[Member]) -> Plan:
    plan: Plan = {member.id: [] for member in members}
    ordered = in_order(members)
    for topic in sorted({topic for member in members for topic in member.topics}):
        subscribers = [member for member in ordered if topic in member.topics]
        share, more = divmod(partitions.get(topic, 0), len(subscribers))
        start = 0
        for number, member in enumerate(subscribers):
            end = start + share + (number < more)
            plan[member.id] += (TopicPartition(topic, index) for index in range(start, end))
            start = end
    return plan


def plan_round_robin(partitions: Partitions, members: Sequence[Member]) -> Plan:
    plan: Plan = {member.id: [] for member in members}
    turns = cycle(in_order(members))
    wanted = frozenset(topic for member in members for topic in member.topics)
    for where in partitions_of(partitions, wanted):
        member = next(member for member in turns if where.topic in member.topics)
        plan[member.id].append(where)
    return plan


RANGE: Final = Assignor("range", plan_range)
ROUND_ROBIN: Final = Assignor("roundrobin", plan_round_robin)
