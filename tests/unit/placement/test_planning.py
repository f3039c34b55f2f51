"""Plans for brokers to be emptied and for clusters to be balanced: few moves, spread well."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scriba.cli.cluster.directories import Replica, read_dirs
from scriba.cli.cluster.reassign import document, page, read_plan, told_shortage
from scriba.cli.problems import CommandError
from scriba.client import TopicPartition
from scriba.placement.planning import (
    CannotPlan,
    Facts,
    Placement,
    Shortage,
    balance,
    balancing,
    copied,
    drain,
    fill,
    loads,
    resize,
    shortages,
)
from scriba.placement.spreading import BrokerLocation
from scriba.settings.placement import parse

TraceFunction = Callable[[FrameType, str, Any], Any]


def facts(
    placed: Mapping[str, tuple[int, ...]],
    brokers: int = 4,
    racks: dict[int, str] | None = None,
    hosts: dict[int, str] | None = None,
    sizes: dict[str, int] | None = None,
    asked: dict[str, str] | None = None,
    gone: dict[int, str] | None = None,
    closed: frozenset[int] = frozenset(),
    fixed: tuple[str, ...] = (),
) -> Facts[TopicPartition]:
    return Facts(
        {at(name): replicas for name, replicas in placed.items()},
        {at(name): size for name, size in (sizes or {}).items()},
        {
            n: BrokerLocation(n, (hosts or {}).get(n, f"host{n}"), (racks or {}).get(n))
            for n in range(1, brokers + 1)
            if n not in (gone or {})
        },
        {**(racks or {}), **(gone or {})},
        {topic: parse(text) for topic, text in (asked or {}).items()},
        closed,
        {at(name) for name in fixed},
    )


def at(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def named(plan: Placement[TopicPartition]) -> dict[str, tuple[int, ...]]:
    return {str(where): replicas for where, replicas in plan.items()}


def test_a_drain_moves_what_the_broker_has_and_nothing_else() -> None:
    plan = drain(facts({"t-0": (1, 2, 3), "t-1": (2, 3, 4), "t-2": (4, 1, 2)}), {1})
    assert {*plan} == {at("t-0"), at("t-2")}
    assert {*plan[at("t-0")]} == {2, 3, 4}
    assert {*plan[at("t-2")]} == {4, 3, 2}


def test_a_drain_that_leaves_too_few_names_the_partition() -> None:
    with pytest.raises(CannotPlan, match="t-0 needs 3 brokers, and 2 would stay"):
        drain(facts({"t-0": (1, 2, 3)}, brokers=3), {3})


def test_another_rack_is_preferred_then_another_machine() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b", 5: "c"}
    plan = drain(facts({"t-0": (1, 2, 5)}, 5, racks=racks), {5})
    assert {*plan[at("t-0")]} in ({1, 2, 3}, {1, 2, 4})
    plan = drain(facts({"t-0": (1, 2)}, 5, racks=racks), {2})
    assert 5 in plan[at("t-0")] or 4 in plan[at("t-0")]
    hosts = {1: "m", 2: "n", 3: "m", 4: "o"}
    assert named(drain(facts({"t-0": (1, 2)}, 4, hosts=hosts), {2})) in (
        {"t-0": (1, 4)},
        {"t-0": (4, 1)},
    )


def test_a_balance_that_places_as_asked_prefers_another_machine() -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "b"}
    hosts = {2: "m", 3: "m", 4: "n"}
    plan = balance(
        facts(
            {"t-0": (1, 2), "t-1": (4, 1), "u-0": (4, 1)},
            racks=racks,
            hosts=hosts,
            asked={"t": "voters=1@a,2@b"},
        )
    )
    assert {*named(plan)["t-0"]} == {1, 2, 4}, "3 has fewer replicas, and shares a machine with 2"


def test_one_machine_is_no_reason_to_refuse() -> None:
    hosts = dict.fromkeys(range(1, 5), "m")
    assert drain(facts({"t-0": (1, 2, 3)}, 4, hosts=hosts), {3}) != {}


def test_what_is_balanced_stays() -> None:
    placed = {f"t-{n}": (n % 4 + 1, (n + 1) % 4 + 1) for n in range(8)}
    assert balance(facts(placed)) == {}


def test_a_new_broker_gets_its_share_by_the_fewest_moves() -> None:
    placed = {f"t-{n}": (n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1) for n in range(12)}
    sizes = {f"t-{n}": 100 + n for n in range(12)}
    found = facts(placed, 4, sizes=sizes)
    plan = balance(found)
    after = {**found.placed, **plan}
    moved = sum(len({*after[w]} - {*found.placed[w]}) for w in after)
    assert moved == 9
    assert [load.replicas for load in loads(after, found).values()] == [9, 9, 9, 9]
    assert [load.leaders for load in loads(after, found).values()] == [3, 3, 3, 3]
    assert copied(found.placed, plan, found) <= 9 * 111


def test_brokers_that_joined_are_filled_and_nothing_moves_between_the_others() -> None:
    placed = {f"t-{n}": (1, 2) if n < 8 else (2, 3) for n in range(12)}
    found = facts(placed, 5)
    plan = fill(found, {4, 5})
    after = {**found.placed, **plan}
    new = [({*after[w]} - {*found.placed[w]}) for w in plan]
    assert all(each <= {4, 5} for each in new)
    held = {b: load.replicas for b, load in loads(after, found).items()}
    assert held == {1: 5, 2: 5, 3: 4, 4: 5, 5: 5}
    assert sum(map(len, new)) == 10
    assert fill(Facts(after, found.sizes, found.places), {4, 5}) == {}
    assert fill(found, set()) == {}


def test_small_partitions_move_rather_than_large_ones() -> None:
    placed: dict[str, tuple[int, ...]] = {f"t-{n}": (1,) for n in range(4)}
    plan = balance(facts(placed, 2, sizes={"t-0": 10**9, "t-1": 10, "t-2": 10**9, "t-3": 5}))
    assert {*plan} == {at("t-1"), at("t-3")}


def test_leaders_are_spread_by_order_alone() -> None:
    found = facts({"t-0": (1, 2, 3), "t-1": (1, 2, 3), "t-2": (1, 2, 3)}, 3)
    plan = balance(found)
    assert copied(found.placed, plan, found) == 0
    after = {**found.placed, **plan}
    assert all({*after[w]} == {*found.placed[w]} for w in after)
    assert [load.leaders for load in loads(after, found).values()] == [1, 1, 1]


def test_replicas_that_share_a_rack_are_parted_where_there_is_another() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    plan = balance(facts({"t-0": (1, 2), "t-1": (3, 4)}, 4, racks=racks))
    assert all(len({racks[b] for b in replicas}) == 2 for replicas in plan.values())
    assert {*plan} == {at("t-0"), at("t-1")}


def test_replicas_that_share_a_machine_are_parted_in_one_rack_as_well() -> None:
    hosts = {1: "m", 2: "m", 3: "n", 4: "n"}
    found = facts({"t-0": (1, 2), "t-1": (3, 4), "t-2": (2, 4), "t-3": (3, 1)}, 4, hosts=hosts)
    plan = balance(found)
    after = {**found.placed, **plan}
    assert all(len({hosts[b] for b in replicas}) == 2 for replicas in after.values())
    assert copied(found.placed, plan, found) == 0
    assert sum(len({*after[w]} - {*found.placed[w]}) for w in after) == 2
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    found = facts({"t-0": (1, 2, 4)}, 4, racks=racks, hosts={1: "m", 2: "m", 3: "n"})
    assert named(balance(found)) in ({"t-0": (3, 2, 4)}, {"t-0": (1, 3, 4)})


# ---- brokers that are cordoned, and partitions that wait for one that is gone ----


def test_a_cordoned_broker_is_given_nothing_and_keeps_what_it_has() -> None:
    placed = {f"t-{n}": (n % 3 + 1, (n + 1) % 3 + 1) for n in range(12)} | {"u-0": (4, 1)}
    found = facts(placed, 4, closed=frozenset({4}))
    for plan in (drain(found, {3}), balance(found)):
        assert all(4 not in replicas for where, replicas in plan.items() if where != at("u-0"))
    after = {**found.placed, **balance(found)}
    assert 4 in after[at("u-0")]
    assert after[at("u-0")][0] == 4 or found.placed[at("u-0")] == (4, 1)
    assert fill(found, {4}) == {}
    with pytest.raises(CannotPlan, match="t-0 needs 3 brokers, and 2 would stay; all log dir"):
        drain(facts({"t-0": (1, 2, 3)}, 4, closed=frozenset({4})), {3})


def test_a_cordoned_broker_is_not_given_what_a_placement_asks_for() -> None:
    found = facts({"t-0": (1, 3)}, 6, RACKS, asked=ASKED, closed=frozenset({5}))
    assert balance(found)[at("t-0")][-1] == 6
    found = facts({"t-0": (1, 3, 5)}, 6, RACKS, asked=ASKED, closed=frozenset({6}))
    with pytest.raises(CannotPlan, match="none would stay; all log directories of broker 6 are"):
        drain(found, {5})


def test_a_balance_gives_a_cordoned_broker_no_leaders() -> None:
    found = facts({f"t-{n}": (1, 2) for n in range(4)}, 2, closed=frozenset({2}))
    assert balance(found) == {}


def test_what_is_fixed_is_counted_and_stays() -> None:
    placed: dict[str, tuple[int, ...]] = {f"t-{n}": (1,) for n in range(4)}
    found = facts(placed, 2, fixed=("t-0", "t-1"))
    assert {*balance(found)} == {at("t-2"), at("t-3")}
    assert {*fill(found, {2})} == {at("t-2"), at("t-3")}
    assert {*drain(found, {1})} == {at("t-2"), at("t-3")}


def test_a_move_waits_for_those_of_its_target_that_vote_and_are_away() -> None:
    found = facts({"u-0": (1, 3, 5)}, 6, RACKS, gone={3: "b"})
    assert found.awaited(at("u-0"), (1, 3, 6)) == [3]
    assert found.awaited(at("u-0"), (3, 5, 1)) == [], "another order is done at once"
    assert found.awaited(at("u-0"), (1, 4, 5)) == []
    found = facts({"t-0": (1, 3, 5)}, 6, RACKS, asked=ASKED, gone={5: "c"})
    assert found.awaited(at("t-0"), (2, 3, 5)) == [], "an observer is not waited for"


# ---- so many replicas ----


def test_new_replicas_go_to_other_racks_and_machines_first() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    grown = resize(facts({"t-0": (1,), "u-0": (4,), "u-1": (4,)}, 4, racks), 2, (), {})
    assert grown[at("t-0")] == (1, 4), "4 has more than 2 and 3, and is in another rack"
    hosts = {1: "m", 2: "m", 3: "n"}
    grown = resize(facts({"t-0": (1,), "u-0": (3, 1)}, 3, hosts=hosts), 2, (), {})
    assert named(grown) == {"t-0": (1, 3)}


def test_fewer_replicas_stay_in_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    in_sync = {at("t-0"): (1, 2, 3)}
    assert named(resize(facts({"t-0": (1, 2, 3)}, 3, racks), 2, (), in_sync)) == {"t-0": (1, 3)}


def test_more_replicas_go_to_no_cordoned_broker() -> None:
    found = facts({"t-0": (1,), "u-0": (3, 1)}, 4, closed=frozenset({3}))
    plan = resize(found, 2, (), {})
    assert {*plan} == {at("t-0")}
    assert plan[at("t-0")][1] in (2, 4)
    with pytest.raises(CannotPlan, match="t-0 has no other broker for 4 replicas"):
        resize(found, 4, (), {})


placements = st.integers(2, 6).flatmap(
    lambda brokers: st.tuples(
        st.just(brokers),
        st.lists(
            st.lists(st.integers(1, brokers), min_size=1, max_size=3, unique=True).map(tuple),
            max_size=20,
        ),
    )
)


@given(placements)
@settings(deadline=None)
def test_a_balance_evens_out_keeps_every_replica_count_and_is_done_once(
    drawn: tuple[int, list[tuple[int, ...]]],
) -> None:
    brokers, lists = drawn
    found = facts({f"t-{n}": replicas for n, replicas in enumerate(lists)}, brokers)
    plan = balance(found)
    after = {**found.placed, **plan}
    for where, replicas in after.items():
        assert len(replicas) == len({*replicas}) == len(found.placed[where])
    held = [load.replicas for load in loads(after, found).values()]
    assert max(held) - min(held) <= 1
    again = Facts(after, found.sizes, found.places)
    assert balance(again) == {}
    too_much = sum(
        max(load.replicas - max(held), 0) for load in loads(found.placed, found).values()
    )
    moved = sum(len({*after[w]} - {*found.placed[w]}) for w in after)
    assert moved <= too_much + len(held)


@given(placements, st.integers(1, 6))
@settings(deadline=None)
def test_a_drained_broker_has_nothing_left(
    drawn: tuple[int, list[tuple[int, ...]]], leaving: int
) -> None:
    brokers, lists = drawn
    found = facts({f"t-{n}": replicas for n, replicas in enumerate(lists)}, brokers)
    try:
        plan = drain(found, {leaving})
    except CannotPlan:
        assert any(len(r) >= brokers for r in lists)
        return
    after = {**found.placed, **plan}
    assert all(leaving not in replicas for replicas in after.values())
    assert all({*plan[w]} - {*found.placed[w]} for w in plan if leaving in found.placed[w])


def test_a_plan_is_read_from_a_file_of_kafkas_tools(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(
        '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2, 1], '
        '"log_dirs": ["any", "any"]}]}'
    )
    assert read_plan(str(file)) == {at("t-0"): (2, 1)}
    assert read_dirs(str(file)) == {}
    file.write_text(file.read_text().replace('"any"]', '"/disk-1/"]'))
    assert read_plan(str(file)) == {at("t-0"): (2, 1)}
    assert read_dirs(str(file)) == {Replica(1, at("t-0")): "/disk-1"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not JSON at line 1, column 2"),
        ("[]", "the whole of it is not an object: []"),
        ("5", "the whole of it is not an object: 5"),
        ("\udcff", "it is not text in UTF-8"),
        ("{}", '"partitions" is missing'),
        ('{"partitions": [{"topic": "t"}]}', '"partition" is missing'),
        ('{"partitions": 3}', '"partitions" is not a list: 3'),
        ('{"partitions": {}}', '"partitions" is not a list: {}'),
        ('{"partitions": [null]}', 'one of "partitions" is not an object: null'),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"version": 2, "partitions": []}', "version 2 is not known, 1 is"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": "12"}]}',
            '"replicas" is not a list: "12"',
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}',
            "a replica of t-0 is not a whole number: true",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}',
            '"partition" is not a whole number: "0"',
        ),
        (
            '{"partitions": [{"topic": 7, "partition": 0, "replicas": [1]}]}',
            '"topic" is not a string: 7',
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [7]}]}',
            "a directory of t-0 is not a string: 7",
        ),
    ],
)
def test_what_is_no_plan_is_told_in_words(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CommandError) as refused:
        read_plan(str(file))
    assert refused.value.cause == f"{file} is no plan: {why}"
    assert refused.value.fix.startswith('write {"partitions": [{"topic": "orders", ')


def test_a_single_broker_that_is_needed_is_told_as_one() -> None:
    with pytest.raises(CannotPlan, match="t-0 needs 1 broker, and 0 would stay"):
        drain(facts({"t-0": (1,)}, 1), {1})


# ---- topics that say where their replicas are to be ----

RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
ASKED = {"t": "voters=1@a,1@b;observers=1@c"}


def test_a_drained_broker_of_observers_gives_them_to_its_rack() -> None:
    placed = {"t-0": (1, 3, 5), "t-1": (2, 4, 5), "t-2": (3, 1, 6)}
    plan = drain(facts(placed, 6, RACKS, asked=ASKED), {5})
    assert named(plan) == {"t-0": (1, 3, 6), "t-1": (2, 4, 6)}


def test_a_drained_broker_that_does_not_live_gives_to_its_rack_as_well() -> None:
    plan = drain(facts({"t-0": (1, 3, 5)}, 6, RACKS, asked=ASKED, gone={3: "b"}), {3})
    assert named(plan) == {"t-0": (1, 4, 5)}


def test_what_a_rack_has_too_few_brokers_for_is_told_by_a_balance() -> None:
    placed = {"t-0": (1,), "t-1": (3,), "u-0": (1, 3)}
    known = facts(
        placed, 3, {1: "a", 2: "a", 3: "far"}, asked={"t": "voters=2@far", "u": "voters=1@a,1@far"}
    )
    plan = balance(known)
    (short,) = shortages(known, plan)
    assert short == Shortage("t", "far", asked=2, brokers=1, partitions=2)
    assert told_shortage(short) == (
        "t asks for 2 replicas in rack far (scriba.replica.placement), where 1 broker can take "
        "them: 2 partitions with fewer; start more brokers there, or ask for fewer"
    )
    told = document(known, {}, short=[short])
    assert told["short"] == [
        {"topic": "t", "rack": "far", "asked": 2, "brokers": 1, "partitions": 2}
    ]
    assert page(told, 0) == ["nothing can be moved to where it should be"]
    assert page(document(known, {}), 0) == ["every replica is where it should be"]


def test_a_replica_that_is_there_counts_though_its_broker_takes_none() -> None:
    racks = {1: "far", 2: "far", 3: "far"}
    asked = {"t": "voters=2@far"}
    held = facts({"t-0": (1, 2)}, 2, racks, asked=asked, closed=frozenset({2}))
    assert shortages(held, {}) == []
    lacks = facts({"t-0": (1,)}, 2, racks, asked=asked, closed=frozenset({2}))
    assert [each.brokers for each in shortages(lacks, {})] == [1]


def test_a_drain_that_leaves_a_rack_without_brokers_is_refused_with_its_name() -> None:
    with pytest.raises(CannotPlan, match="t-0 needs another broker in rack c, by its scriba"):
        drain(facts({"t-0": (1, 3, 5)}, 6, RACKS, asked=ASKED), {5, 6})


def test_a_balance_keeps_racks_and_has_no_observer_first() -> None:
    placed = {f"t-{n}": (1, 3, 5) for n in range(6)}
    found = facts(placed, 6, RACKS, asked=ASKED)
    after = {**found.placed, **balance(found)}
    for replicas in after.values():
        assert sorted(RACKS[broker] for broker in replicas) == ["a", "b", "c"]
        assert RACKS[replicas[0]] != "c"
    counted = loads(after, found)
    assert [counted[n].replicas for n in RACKS] == [3] * 6
    assert [counted[n].leaders for n in (5, 6)] == [0, 0]
    assert max(counted[n].leaders for n in (1, 2, 3, 4)) == 2


def test_a_balance_brings_a_topic_to_the_placement_that_it_was_given() -> None:
    found = facts({"t-0": (1, 2), "u-0": (1, 2)}, 6, RACKS, asked=ASKED)
    plan = balance(found)
    assert len(plan[at("t-0")]) == 3
    assert sorted(RACKS[broker] for broker in plan[at("t-0")]) == ["a", "b", "c"]
    assert RACKS[plan[at("t-0")][-1]] == "c"


def test_a_balance_takes_no_replica_away_while_a_rack_has_no_broker_for_it() -> None:
    gone = {5: "c", 6: "c"}
    found = facts({"t-0": (1, 2, 3)}, 6, RACKS, asked=ASKED, gone=gone)
    assert len({**found.placed, **balance(found)}[at("t-0")]) == 3


def test_a_plan_over_hundreds_of_brokers_is_made_in_short_steps() -> None:
    """An event loop serves others in between: a step may look at each broker, not at each pair."""
    brokers = 120
    old = range(1, brokers // 2 + 1)
    placed: Placement[TopicPartition] = {
        at(f"t-{n}"): (old[n % 60], old[(n + 1) % 60]) for n in range(240)
    }
    places = {n: BrokerLocation(n, f"host{n}", None) for n in range(1, brokers + 1)}
    lines = longest = 0

    def count(frame: FrameType, event: str, _: object) -> TraceFunction:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for _ in balancing(Facts(placed, {}, places)):
            longest, lines = max(longest, lines), 0
    finally:
        sys.settrace(before)
    assert max(longest, lines) < 10 * brokers
