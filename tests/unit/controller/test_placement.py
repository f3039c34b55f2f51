"""Replicas of new partitions: in other racks first, then on other machines, then on others."""

import random
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scriba.controller.image import BrokerImage
from scriba.controller.partitions.placement import place
from scriba.controller.parts import Listener
from scriba.errors import ErrorCode, KafkaError
from scriba.placement.spreading import BrokerLocation, by_turns
from scriba.settings.placement import parse
from scriba.wire.messages.admin import CreatePartitionsRequest, CreatePartitionsTopic
from scriba.wire.messages.brokers import BrokerRegistrationRequestListener

Where = dict[int, tuple[str | None, str]]
"""By broker, its rack and its host."""


def broker(node: int, rack: str | None, host: str, fenced: bool = False) -> BrokerImage:
    listeners = (Listener("PLAINTEXT", host, 9092 + node, 0),)
    return BrokerImage(node, 1, b"", listeners, {}, rack, fenced, False, (b"d",), (), 1)


def placed(
    where: Where,
    factor: int,
    partitions: int,
    seed: int = 0,
    fenced: frozenset[int] = frozenset(),
    asked: str | None = None,
) -> list[tuple[int, ...]]:
    images = [broker(n, rack, host, n in fenced) for n, (rack, host) in where.items()]
    chance = random.Random(seed)
    made = place(images, factor, chance.randrange, parse(asked) if asked else None)
    return list(islice(made, partitions))


def advertised(host: str, port: int) -> BrokerRegistrationRequestListener:
    return BrokerRegistrationRequestListener(
        name="PLAINTEXT", host=host, port=port, security_protocol=0
    )


@st.composite
def clusters(draw: Any) -> Where:
    """Racks with machines, on each of which are one or several brokers."""
    where: Where = {}
    racks = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1))
    named = [None if draw(st.booleans()) else "r0", *(f"r{at}" for at in range(1, len(racks)))]
    for rack, machines in zip(named, racks[:4], strict=False):
        for at, size in enumerate(machines):
            for _ in range(size):
                where[len(where) + 1] = (rack, f"{rack}-{at}")
    nodes = list(where)
    mixed = draw(st.permutations(nodes))
    return {node: where[at] for node, at in zip(nodes, mixed, strict=True)}


def free_machine(where: Where, replicas: tuple[int, ...], among: frozenset[int]) -> str | None:
    """A machine without a replica, in a rack where another has two."""
    used = {where[b][1] for b in replicas}
    for rack in {where[b][0] for b in replicas}:
        hosts = Counter(where[b][1] for b in replicas if where[b][0] == rack and b in among)
        if hosts and max(hosts.values()) > 1:
            for node in among:
                if where[node][0] == rack and where[node][1] not in used:
                    return where[node][1]
    return None


@given(clusters(), st.integers(1, 6), st.integers(0, 99), st.data())
@settings(deadline=None)
def test_no_two_replicas_are_on_a_machine_while_another_of_the_rack_is_free(
    where: Where, factor: int, seed: int, data: Any
) -> None:
    fenced = frozenset(data.draw(st.sets(st.sampled_from(sorted(where)), max_size=len(where) - 1)))
    live = frozenset(where) - fenced
    factor = min(factor, len(where))
    racks = {rack for rack, _ in where.values()}
    made = placed(where, factor, 3 * len(where), seed, fenced)
    for replicas in made:
        assert len(set(replicas)) == factor
        assert len({where[b][0] for b in replicas}) == min(factor, len(racks)), "racks come first"
        assert free_machine(where, replicas, live) is None
        assert replicas[0] in live
    leaders = Counter(replicas[0] for replicas in made)
    counts = [leaders[b] for b in live]
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 99))
@settings(deadline=None)
def test_brokers_hold_equally_many_wherever_machines_allow_it(
    sizes: list[int], factor: int, seed: int
) -> None:
    hosts = [f"m{at}" for at, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(hosts)
    where: Where = {at + 1: (None, host) for at, host in enumerate(hosts)}
    factor = min(factor, len(hosts) // max(sizes))
    made = placed(where, factor, 2 * len(hosts), seed)
    assert all(len({where[b][1] for b in replicas}) == factor for replicas in made)
    assert Counter(b for replicas in made for b in replicas) == dict.fromkeys(where, 2 * factor)


@given(clusters(), st.integers(1, 6), st.integers(0, 99), st.booleans())
@settings(deadline=None)
def test_one_machine_for_all_is_as_good_as_one_for_each(
    where: Where, factor: int, seed: int, some_away: bool
) -> None:
    factor = min(factor, len(where))
    fenced = frozenset(b for b in where if some_away and b % 3 == 2)
    together = {node: (rack, "127.0.0.1") for node, (rack, _) in where.items()}
    apart = {node: (rack, f"host{node}") for node, (rack, _) in where.items()}
    made = placed(together, factor, 40, seed, fenced)
    assert made == placed(apart, factor, 40, seed, fenced)


@pytest.mark.parametrize(
    ("hosts", "ring"),
    [
        ("aaaa", [1, 2, 3, 4]),
        ("abcd", [1, 2, 3, 4]),
        ("aabb", [1, 3, 2, 4]),
        ("abcc", [3, 1, 4, 2]),
        ("abbb", [2, 1, 3, 4]),
        ("", []),
    ],
)
def test_machines_take_turns_on_the_ring(hosts: str, ring: list[int]) -> None:
    assert [p.id for p in by_turns([BrokerLocation(n + 1, h) for n, h in enumerate(hosts)])] == ring


def test_a_broker_that_is_away_comes_after_one_on_the_same_machine() -> None:
    where: Where = {1: (None, "m"), 2: (None, "m"), 3: (None, "n"), 4: (None, "n")}
    for replicas in placed(where, 2, 8, fenced=frozenset({3, 4})):
        assert {*replicas} == {1, 2}, "what is made while a machine is down is whole at once"
    for replicas in placed(where, 3, 8, fenced=frozenset({2, 4})):
        assert {1, 3} < {*replicas}


def test_a_topic_that_names_its_racks_is_spread_over_their_machines() -> None:
    racks: Mapping[str, str] = {"a": "mmnn", "b": "ppq", "c": "xxy"}
    where: Where = {}
    for rack, hosts in racks.items():
        where |= {len(where) + at: (rack, host) for at, host in enumerate(hosts, 1)}
    for replicas in placed(where, 5, 40, asked="voters=2@a,1@b;observers=2@c"):
        assert [where[b][0] for b in replicas].count("a") == 2
        assert [where[b][0] for b in replicas[3:]] == ["c", "c"]
        assert len({where[b][1] for b in replicas}) == 5


def test_topics_and_partitions_that_are_added_are_placed_by_machines(make_cluster: Any) -> None:
    cluster = make_cluster()
    for node in (1, 2, 3, 4):
        cluster.register(node, listeners=[advertised("m" if node <= 2 else "n", 9092 + node)])
        cluster.beat(node)
    cluster.create("t", 4, 2)
    topic = CreatePartitionsTopic(name="t", count=12, assignments=None)
    cluster.do(CreatePartitionsRequest(topics=[topic]))
    partitions = cluster.image.topics_by_name["t"].partitions
    assert len(partitions) == 12
    for partition in partitions.values():
        assert len({*partition.replicas} & {1, 2}) == 1


@pytest.mark.parametrize("factor", [0, -1])
def test_no_replica_at_all_is_refused_whoever_asks_for_it(factor: int) -> None:
    """As `default.replication.factor` may be set so: the controller must not look for ever."""
    with pytest.raises(KafkaError) as refused:
        placed({1: (None, "a"), 2: (None, "b")}, factor, 1)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "default.replication.factor" in refused.value.message
