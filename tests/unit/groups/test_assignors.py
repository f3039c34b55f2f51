"""The server-side assignors: every partition has one owner, loads are even, little moves."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.groups.assignors import ASSIGNORS, Assignment, MemberSpec
from scriba.outcome import at_once

A, B, C, D = (bytes([n]) * 16 for n in range(1, 5))

Plan = dict[str, Assignment]


def specs(
    subscriptions: Mapping[str, set[bytes]], last: Plan | None = None
) -> dict[str, MemberSpec]:
    return {
        member_id: MemberSpec(frozenset(topics), (last or {}).get(member_id, {}))
        for member_id, topics in subscriptions.items()
    }


def assign(
    subscriptions: Mapping[str, set[bytes]],
    partitions: dict[bytes, int],
    last: Plan | None = None,
    assignor: str = "uniform",
) -> Plan:
    return at_once(ASSIGNORS[assignor](specs(subscriptions, last), partitions))


def load(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def owners(plan: Plan) -> dict[tuple[bytes, int], str]:
    found: dict[tuple[bytes, int], str] = {}
    for member_id, assignment in plan.items():
        for topic, held in assignment.items():
            assert held, "a topic without partitions is absent"
            for partition in held:
                assert (topic, partition) not in found, "one owner each"
                found[topic, partition] = member_id
    return found


def moves(before: Plan, after: Plan) -> int:
    old, new = owners(before), owners(after)
    return sum(1 for place, owner in old.items() if new.get(place) != owner)


def check(
    subscriptions: Mapping[str, set[bytes]], partitions: dict[bytes, int], plan: Plan
) -> None:
    assert set(plan) == set(subscriptions)
    subscribed = set().union(*subscriptions.values()) if subscriptions else set()
    places = {(topic, p) for topic in subscribed for p in range(partitions[topic])}
    found = owners(plan)
    assert set(found) == places
    assert all(topic in subscriptions[owner] for (topic, _), owner in found.items())


PARTITIONS = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in (A, B, C, D)})
NAMES = [f"m{n}" for n in range(8)]
SAME = st.tuples(
    st.sets(st.sampled_from(NAMES), min_size=1), st.sets(st.sampled_from([A, B, C, D]))
).map(lambda pair: {name: set(pair[1]) for name in sorted(pair[0])})
MIXED = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from([A, B, C, D])), min_size=1)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@given(partitions=PARTITIONS, subscriptions=SAME | MIXED)
def test_every_partition_goes_to_exactly_one_subscriber(
    assignor: str, partitions: dict[bytes, int], subscriptions: dict[str, set[bytes]]
) -> None:
    plan = assign(subscriptions, partitions, assignor=assignor)
    check(subscriptions, partitions, plan)
    assert assign(subscriptions, partitions, plan, assignor) == plan, (
        "nothing changed, nothing moves"
    )


@given(PARTITIONS, SAME, SAME)
def test_with_one_subscription_for_all_loads_differ_by_one_and_the_fewest_partitions_move(
    partitions: dict[bytes, int], before: dict[str, set[bytes]], after: dict[str, set[bytes]]
) -> None:
    topics = next(iter(before.values()))
    after = dict.fromkeys(after, topics)
    old = assign(before, partitions)
    new = assign(after, partitions, old)
    check(after, partitions, new)
    loads = [load(assignment) for assignment in new.values()]
    assert max(loads) - min(loads) <= 1
    total = sum(loads)
    share, extra = divmod(total, len(after))
    kept = sorted((load(old.get(member_id, {})) for member_id in after), reverse=True)
    best = sum(min(held, share + (place < extra)) for place, held in enumerate(kept))
    assert moves(old, new) == total - best


@given(PARTITIONS, MIXED, MIXED)
def test_with_different_subscriptions_no_single_move_would_even_out_more(
    partitions: dict[bytes, int], before: dict[str, set[bytes]], after: dict[str, set[bytes]]
) -> None:
    new = assign(after, partitions, assign(before, partitions))
    check(after, partitions, new)
    for (topic, _), owner in owners(new).items():
        for other, topics in after.items():
            if topic in topics:
                assert load(new[owner]) - load(new[other]) <= 1


def test_a_member_that_joins_takes_only_its_share() -> None:
    two = {"a": {A}, "b": {A}}
    before = assign(two, {A: 10})
    after = assign({**two, "c": {A}}, {A: 10}, before)
    assert load(after["c"]) == 3
    assert moves(before, after) == 3


def test_a_member_that_leaves_moves_only_what_it_held() -> None:
    three = {"a": {A}, "b": {A}, "c": {A}}
    before = assign(three, {A: 10})
    del three["b"]
    after = assign(three, {A: 10}, before)
    assert moves(before, after) == load(before["b"])
    assert [load(after["a"]), load(after["c"])] == [5, 5]


def test_partitions_added_to_a_topic_move_none_of_the_old_ones() -> None:
    both = {"a": {A}, "b": {A}}
    before = assign(both, {A: 4})
    after = assign(both, {A: 9}, before)
    assert moves(before, after) == 0
    assert sorted(map(load, after.values())) == [4, 5]


def test_members_beyond_the_number_of_partitions_stay_idle() -> None:
    plan = assign({"a": {A}, "b": {A}, "c": {A}}, {A: 2})
    assert sorted(map(load, plan.values())) == [0, 1, 1]


def test_a_plan_for_nobody_is_empty() -> None:
    assert assign({}, {}) == {}
    assert assign({}, {}, assignor="range") == {}


def test_range_gives_the_same_runs_of_every_topic() -> None:
    plan = assign({"a": {A, B}, "b": {A, B}}, {A: 5, B: 5}, assignor="range")
    assert plan["a"] == {A: frozenset({0, 1, 2}), B: frozenset({0, 1, 2})}
    assert plan["b"] == {A: frozenset({3, 4}), B: frozenset({3, 4})}


def test_range_serves_static_members_first_so_that_a_restart_changes_nothing() -> None:
    def plan(member_id: str) -> Plan:
        members = {
            "a": MemberSpec(frozenset({A}), {}),
            member_id: MemberSpec(frozenset({A}), {}, instance_id="one"),
        }
        return at_once(ASSIGNORS["range"](members, {A: 3}))

    assert plan("z")["z"] == plan("b")["b"] == {A: frozenset({0, 1})}
