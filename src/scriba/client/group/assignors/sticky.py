"""Sticky and cooperative-sticky: even shares that change as little as they can.

A plan starts from what members hold. Of two claims to a partition the one of the younger
generation counts; two of the same generation cannot both be right, so neither counts. What nobody
holds goes to whoever has least; then partitions move from those with more to those with less, until
no single move would make the shares more even. When all want the same topics the shares follow at
once from the counts: each keeps what it holds up to its share.

*cooperative-sticky* never gives away what another member still holds: the partition is left out of
this plan, its holder gives it up, joins again, and the next plan hands it out (KIP-429).

What members say of themselves is Java's: for *sticky* the partitions and the generation they are
from in the user data, for *cooperative-sticky* only the generation, since the subscription itself
names the partitions.
"""

from collections import deque
from collections.abc import Sequence
from struct import Struct as Layout
from typing import Final

from scriba.client.group.assignors.model import (
    Assignor,
    Member,
    OwnedPartitions,
    Partitions,
    Plan,
    in_order,
    partitions_of,
)
from scriba.client.model import TopicPartition
from scriba.errors import ParseError
from scriba.wire.messages.groups import ConsumerProtocolSubscription

_INT: Final = Layout(">i")
_SHORT: Final = Layout(">h")


def plan_sticky(partitions: Partitions, members: Sequence[Member]) -> Plan:
    ordered = in_order(members)
    holders = _holders(ordered)
    kept = {member.id: _kept(partitions, member, holders) for member in ordered}
    if len({member.topics for member in ordered}) <= 1:
        return _plan_alike(partitions, ordered, kept)
    return _plan_unlike(partitions, ordered, kept)


def plan_cooperative(partitions: Partitions, members: Sequence[Member]) -> Plan:
    holders = _holders(members)
    return {
        member_id: [where for where in given if holders.get(where, member_id) == member_id]
        for member_id, given in plan_sticky(partitions, members).items()
    }


def _holders(members: Sequence[Member]) -> dict[TopicPartition, str | None]:
    """Who holds each partition that is held; None when two claim it with the same right."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for where in dict.fromkeys(member.held.partitions):
            generation, _ = claims.get(where, (-2, None))
            if member.held.generation > generation:
                claims[where] = (member.held.generation, member.id)
            elif member.held.generation == generation:
                claims[where] = (generation, None)
    return {where: holder for where, (_, holder) in claims.items()}


def _kept(
    partitions: Partitions, member: Member, holders: dict[TopicPartition, str | None]
) -> list[TopicPartition]:
    """What a member holds and still wants, of what there is."""
    return sorted(
        where
        for where in dict.fromkeys(member.held.partitions)
        if holders[where] == member.id
        and where.topic in member.topics
        and 0 <= where.partition < partitions.get(where.topic, 0)
    )


def _plan_alike(partitions: Partitions, members: Sequence[Member], kept: Plan) -> Plan:
    """All want the same: everyone gets the same number, or one more."""
    if not members:
        return {}
    everything = partitions_of(partitions, members[0].topics)
    share, more = divmod(len(everything), len(members))
    plan: Plan = {}
    # Those that hold most keep the extra ones, so that fewest move.
    for member in sorted(members, key=lambda m: -len(kept[m.id])):
        held = kept[member.id]
        extra = more > 0 and len(held) > share
        more -= extra
        plan[member.id] = held[: share + extra]
    taken = {where for held in plan.values() for where in held}
    free = deque(where for where in everything if where not in taken)
    while free:
        smallest = min(share, min(len(held) for held in plan.values()))
        for member in members:
            if free and len(plan[member.id]) <= smallest:
                plan[member.id].append(free.popleft())
    return {member.id: plan[member.id] for member in members}


def _plan_unlike(partitions: Partitions, members: Sequence[Member], kept: Plan) -> Plan:
    plan = {member.id: list(kept[member.id]) for member in members}
    wanted = frozenset(topic for member in members for topic in member.topics)
    takers = {topic: [m.id for m in members if topic in m.topics] for topic in wanted}
    taken = {where for held in plan.values() for where in held}
    free = [where for where in partitions_of(partitions, wanted) if where not in taken]
    # What few can take is given first: the others can still make up for it.
    for where in sorted(free, key=lambda w: (len(takers[w.topic]), w)):
        plan[min(takers[where.topic], key=lambda member_id: len(plan[member_id]))].append(where)
    while _even_out(plan, takers):
        pass
    return plan


def _even_out(plan: Plan, takers: dict[str, list[str]]) -> bool:
    """Moves partitions to members with at least two fewer, the largest shares first; whether any
    was moved. Every move makes the shares more even, so that there is a last one."""
    moved = False
    for giver in sorted(plan, key=lambda member_id: -len(plan[member_id])):
        for where in reversed(list(plan[giver])):
            taker = min(takers[where.topic], key=lambda member_id: len(plan[member_id]))
            if len(plan[taker]) + 1 < len(plan[giver]):
                plan[giver].remove(where)
                plan[taker].append(where)
                moved = True
    return moved


# -- what members say of themselves -------------------------------------------------------------


def encode_held(held: OwnedPartitions) -> bytes | None:
    """The user data of *sticky*: topics with their partitions, then the generation."""
    if held.generation < 0:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in held.partitions:
        topics.setdefault(topic, []).append(partition)
    out = bytearray(_INT.pack(len(topics)))
    for topic, indexes in topics.items():
        name = topic.encode()
        out += _SHORT.pack(len(name)) + name + _INT.pack(len(indexes))
        for index in indexes:
            out += _INT.pack(index)
    return bytes(out + _INT.pack(held.generation))


def decode_held(subscription: ConsumerProtocolSubscription) -> OwnedPartitions:
    """Nothing is held when the data cannot be read: another client's mistake costs a move."""
    data = subscription.user_data
    try:
        return OwnedPartitions() if not data else _decode_held(bytes(data))
    except (ParseError, ValueError):
        return OwnedPartitions()


def _decode_held(data: bytes) -> OwnedPartitions:
    at = 0

    def number(layout: Layout) -> int:
        nonlocal at
        if at + layout.size > len(data):
            raise ParseError("the user data ends too early")
        (value,) = layout.unpack_from(data, at)
        at += layout.size
        return int(value)

    found: list[TopicPartition] = []
    for _ in range(number(_INT)):
        size = number(_SHORT)
        topic = data[at : at + max(0, size)].decode()
        at += max(0, size)
        found += [TopicPartition(topic, number(_INT)) for _ in range(number(_INT))]
    generation = number(_INT) if at < len(data) else -1
    return OwnedPartitions(tuple(found), generation)


def encode_generation(held: OwnedPartitions) -> bytes | None:
    return _INT.pack(held.generation)


def owned(subscription: ConsumerProtocolSubscription) -> OwnedPartitions:
    """What a cooperative member holds; before version 2 the generation is in the user data."""
    generation = subscription.generation_id
    data = subscription.user_data
    if generation < 0 and data and len(data) >= _INT.size:
        (generation,) = _INT.unpack_from(data)
    partitions = tuple(
        TopicPartition(said.topic, index)
        for said in subscription.owned_partitions
        for index in said.partitions
    )
    return OwnedPartitions(partitions, generation)


STICKY: Final = Assignor("sticky", plan_sticky, remember=encode_held, held=decode_held)
COOPERATIVE_STICKY: Final = Assignor(
    "cooperative-sticky", plan_cooperative, True, encode_generation, owned
)
