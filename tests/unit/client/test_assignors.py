"""The plans of the assignors: complete, even, and as little changed as can be."""

from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import (
    RangePartitionAssignor,
)
from aiokafka.coordinator.assignors.roundrobin import (
    RoundRobinPartitionAssignor,
)
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyAssignorUserDataV1,
)
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberMetadata,
)
from hypothesis import given
from hypothesis import strategies as st

from scriba.client.group.assignors import ASSIGNORS
from scriba.client.group.assignors.model import Member, OwnedPartitions, Partitions, Plan
from scriba.client.group.assignors.sticky import decode_held, encode_generation, encode_held, owned
from scriba.client.model import TopicPartition
from scriba.wire.messages.groups import (
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)

TOPICS = ["a", "b", "c", "d"]

topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=4)


@st.composite
def groups(draw: st.DrawFn, alike: bool | None = None) -> list[Member]:
    count = draw(st.integers(1, 6))
    same = draw(st.booleans()) if alike is None else alike
    shared = draw(st.frozensets(st.sampled_from(TOPICS), min_size=1))
    made = []
    for number in range(count):
        wanted = shared if same else draw(st.frozensets(st.sampled_from(TOPICS), min_size=1))
        instance = draw(st.sampled_from([None, f"i{count - number}"]))
        made.append(Member(f"m{number}", wanted, instance))
    return made


def holding(member: Member, partitions: list[TopicPartition], generation: int) -> Member:
    held = OwnedPartitions(tuple(partitions), generation)
    return Member(member.id, member.topics, member.instance_id, held)


def given_out(plan: Plan) -> list[TopicPartition]:
    return sorted(where for held in plan.values() for where in held)


def everything(partitions: Mapping[str, int], members: list[Member]) -> list[TopicPartition]:
    wanted = {topic for member in members for topic in member.topics}
    return sorted(TopicPartition(t, p) for t in wanted for p in range(partitions.get(t, 0)))


def moves_left(plan: Plan, members: list[Member]) -> list[tuple[str, TopicPartition, str]]:
    """Single moves that would make the shares more even."""
    return [
        (giver, where, taker.id)
        for giver, held in plan.items()
        for where in held
        for taker in members
        if where.topic in taker.topics and len(plan[taker.id]) + 1 < len(held)
    ]


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(partitions=topics, members=groups())
def test_every_partition_goes_to_one_member_that_wants_it(
    name: str, partitions: Partitions, members: list[Member]
) -> None:
    plan = ASSIGNORS[name].plan(partitions, members)
    assert set(plan) == {member.id for member in members}
    assert given_out(plan) == everything(partitions, members)
    for member in members:
        assert all(where.topic in member.topics for where in plan[member.id])


@given(partitions=topics, members=groups())
def test_a_sticky_plan_is_as_even_as_single_moves_can_make_it(
    partitions: Partitions, members: list[Member]
) -> None:
    assert moves_left(ASSIGNORS["sticky"].plan(partitions, members), members) == []


@given(partitions=topics, members=groups(alike=True))
def test_a_round_robin_of_members_alike_is_even(
    partitions: Partitions, members: list[Member]
) -> None:
    sizes = [len(held) for held in ASSIGNORS["roundrobin"].plan(partitions, members).values()]
    assert max(sizes) - min(sizes) <= 1


@given(partitions=topics, members=groups())
def test_a_sticky_plan_changes_nothing_when_nothing_changed(
    partitions: Partitions, members: list[Member]
) -> None:
    plan = ASSIGNORS["sticky"].plan(partitions, members)
    again = [holding(member, plan[member.id], 1) for member in members]
    for name in ("sticky", "cooperative-sticky"):
        second = ASSIGNORS[name].plan(partitions, again)
        assert {m: sorted(p) for m, p in second.items()} == {m: sorted(p) for m, p in plan.items()}


@given(partitions=topics, members=groups(alike=True), gone=st.integers(0, 5))
def test_when_a_member_leaves_only_its_partitions_move(
    partitions: Partitions, members: list[Member], gone: int
) -> None:
    plan = ASSIGNORS["sticky"].plan(partitions, members)
    left = [m for n, m in enumerate(members) if n != gone % len(members)]
    second = ASSIGNORS["sticky"].plan(partitions, [holding(m, plan[m.id], 1) for m in left])
    for member in left:
        assert set(plan[member.id]) <= set(second[member.id])


@given(partitions=topics, members=groups(alike=True))
def test_a_new_member_takes_no_more_than_its_share(
    partitions: Partitions, members: list[Member]
) -> None:
    plan = ASSIGNORS["sticky"].plan(partitions, members)
    new = Member("new", members[0].topics)
    held = [holding(member, plan[member.id], 1) for member in members]
    second = ASSIGNORS["sticky"].plan(partitions, [*held, new])
    moved = sum(len(set(second[m.id]) - set(plan[m.id])) for m in members)
    assert moved == 0
    assert moves_left(second, [*members, new]) == []


@given(partitions=topics, members=groups(), data=st.data())
def test_a_cooperative_plan_gives_away_nothing_that_another_still_holds(
    partitions: Partitions, members: list[Member], data: st.DataObject
) -> None:
    plan = ASSIGNORS["sticky"].plan(partitions, members)
    changed = [
        Member(
            m.id,
            data.draw(st.frozensets(st.sampled_from(TOPICS), min_size=1)),
            m.instance_id,
            OwnedPartitions(tuple(plan[m.id]), 1),
        )
        for m in members
    ]
    changed.append(Member("new", frozenset(TOPICS)))
    # What was taken from members is given up, and handed out by a plan that follows.
    for generation in range(2, 12):
        plan = ASSIGNORS["cooperative-sticky"].plan(partitions, changed)
        for member in changed:
            others = {w for m in changed if m is not member for w in m.held.partitions}
            assert not set(plan[member.id]) & others
        if given_out(plan) == everything(partitions, changed):
            break
        changed = [holding(m, plan[m.id], generation) for m in changed]
    assert given_out(plan) == everything(partitions, changed)
    assert moves_left(plan, changed) == []


def test_of_two_claims_the_younger_counts_and_of_two_as_old_neither() -> None:
    where = TopicPartition("a", 0)
    wanted = frozenset(["a"])
    old, young = (Member(f"m{g}", wanted, None, OwnedPartitions((where,), g)) for g in (1, 2))
    assert ASSIGNORS["cooperative-sticky"].plan({"a": 1}, [old, young]) == {"m1": [], "m2": [where]}
    twin = Member("m3", wanted, None, OwnedPartitions((where,), 2))
    plan = ASSIGNORS["cooperative-sticky"].plan({"a": 1}, [young, twin])
    assert given_out(plan) == [], "both have to give it up first"


def test_static_members_come_first_by_their_names() -> None:
    wanted = frozenset(["a"])
    members = [Member("m1", wanted), Member("m2", wanted, "y"), Member("m3", wanted, "x")]
    plan = ASSIGNORS["range"].plan({"a": 4}, members)
    assert [len(plan[m]) for m in ("m3", "m2", "m1")] == [2, 1, 1]
    assert plan["m3"] == [TopicPartition("a", 0), TopicPartition("a", 1)]


class _Cluster:
    """What aiokafka's assignors ask for."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self.partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self.partitions.get(topic)
        return None if count is None else set(range(count))


@given(partitions=st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9)), members=groups())
@pytest.mark.parametrize(
    ("name", "foreign"),
    [("range", RangePartitionAssignor), ("roundrobin", RoundRobinPartitionAssignor)],
)
def test_range_and_round_robin_agree_with_aiokafka(
    name: str, foreign: Any, partitions: Partitions, members: list[Member]
) -> None:
    dynamic = [Member(m.id, m.topics) for m in members]
    theirs = foreign.assign(
        _Cluster(partitions),
        {m.id: ConsumerProtocolMemberMetadata(0, sorted(m.topics), b"") for m in dynamic},
    )
    told = {m: sorted(TopicPartition(*w) for w in a.partitions()) for m, a in theirs.items()}
    ours = ASSIGNORS[name].plan(partitions, dynamic)
    assert {m: sorted(held) for m, held in ours.items()} == told


def test_user_data_is_that_of_other_clients() -> None:
    held = OwnedPartitions(
        (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)), 7
    )
    data = encode_held(held)
    assert data == StickyAssignorUserDataV1([("a", [0, 2]), ("b", [1])], 7).encode()
    assert decode_held(ConsumerProtocolSubscription(topics=["a"], user_data=data)) == held
    assert encode_held(OwnedPartitions()) is None
    assert data is not None
    for damaged in (None, b"", b"\x00\x00\x00\x05", data[:-6], b"\xff" * 9):
        assert (
            decode_held(ConsumerProtocolSubscription(topics=["a"], user_data=damaged))
            == OwnedPartitions()
        )


def test_a_cooperative_member_names_what_it_owns_in_its_subscription() -> None:
    where = [ConsumerProtocolSubscriptionTopicPartition(topic="a", partitions=[3])]
    young = ConsumerProtocolSubscription(topics=["a"], owned_partitions=where, generation_id=5)
    assert owned(young) == OwnedPartitions((TopicPartition("a", 3),), 5)
    held = OwnedPartitions((TopicPartition("a", 3),), 9)
    old = ConsumerProtocolSubscription(
        topics=["a"], owned_partitions=where, user_data=encode_generation(held)
    )
    assert owned(old) == held
