"""`range`: each topic is cut into one run of partitions per subscriber, in the order of members.

Members with the same subscriptions get the same share of every topic, so that topics with equally
many partitions are co-partitioned. Static members come first, by their instance id, and so keep
their runs over a restart. It pays for that by not being sticky.
"""

from collections.abc import Mapping

from scriba.groups.assignors.spec import AT_ONCE, Assigning, MemberSpec


def ranges(members: Mapping[str, MemberSpec], partitions: Mapping[bytes, int]) -> Assigning:
    order = sorted(members, key=lambda member_id: _rank(member_id, members[member_id]))
    plan: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in order}
    for topic in sorted(set().union(*(spec.topics for spec in members.values()))):
        subscribers = [member_id for member_id in order if topic in members[member_id].topics]
        share, extra = divmod(partitions[topic], len(subscribers))
        start = 0
        for place, member_id in enumerate(subscribers):
            if (place + 1) % AT_ONCE == 0:
                yield
            end = start + share + (place < extra)
            if end > start:
                plan[member_id][topic] = frozenset(range(start, end))
            start = end
    return {**plan}


def _rank(member_id: str, spec: MemberSpec) -> tuple[bool, str]:
    static = spec.instance_id is not None
    return (not static, spec.instance_id if spec.instance_id is not None else member_id)
