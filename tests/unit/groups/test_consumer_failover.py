"""Partitions that are added around a failover of the coordinator: every member hears of them.

What the coordinator is told of topics is not stored, and the next one loads at an image of its own.
It may be ahead of what the log knows, or behind it.
"""

from collections.abc import Callable

import pytest

from tests.unit.groups.consumers import Consumer, group_of, picture, settle
from tests.unit.groups.shard import Shard

KINDS: dict[str, Callable[[Shard, str], Consumer]] = {
    "dynamic": lambda shard, name: Consumer(shard, name, "t"),
    "static": lambda shard, name: Consumer(shard, name, "t", instance_id=f"i-{name}"),
    "regex": lambda shard, name: Consumer(shard, name, subscribed_topic_regex="t"),
}


@pytest.fixture(params=KINDS)
def join(request: pytest.FixtureRequest, shard: Shard) -> Callable[[str], Consumer]:
    def joined(name: str) -> Consumer:
        consumer = KINDS[request.param](shard, name)
        assert consumer.join().error_code == 0
        return consumer

    return joined


@pytest.fixture
def pair(join: Callable[[str], Consumer]) -> tuple[Consumer, Consumer]:
    members = join("a"), join("b")
    settle(*members)
    return members


def resize(shard: Shard, partitions: int, *, told: bool) -> None:
    shard.topics.topics["t"] = shard.topics.topics["t"]._replace(partitions=partitions)
    if told:
        shard.change_topics("t")


def shared_out(*members: Consumer) -> None:
    """All six partitions are with one member each, and the next load finds the same."""
    settle(*members)
    held = [member.share().get("t", set()) for member in members]
    assert sorted(partition for each in held for partition in each) == [0, 1, 2, 3, 4, 5]
    assert all(held)
    shard = members[0].shard
    assert picture(shard) == picture(shard, shard.reloaded())


def test_they_come_and_the_coordinator_dies_before_a_heartbeat(
    shard: Shard, pair: tuple[Consumer, Consumer]
) -> None:
    resize(shard, 6, told=True)
    shard.crash()
    shared_out(*pair)


def test_they_come_while_the_next_coordinator_loads(
    shard: Shard, pair: tuple[Consumer, Consumer]
) -> None:
    """A machine that loads is told nothing."""
    resize(shard, 6, told=False)
    shard.crash()
    shared_out(*pair)


def test_they_come_between_the_load_and_the_first_heartbeat(
    shard: Shard, pair: tuple[Consumer, Consumer]
) -> None:
    shard.crash()
    resize(shard, 6, told=True)
    shared_out(*pair)


@pytest.mark.parametrize("heard", [1, 2])
def test_the_next_coordinator_is_behind_and_shares_out_again_when_it_has_caught_up(
    shard: Shard, pair: tuple[Consumer, Consumer], heard: int
) -> None:
    """What its image lacks is with nobody for as long."""
    resize(shard, 6, told=True)
    settle(*pair)
    resize(shard, 4, told=False)
    shard.crash()
    for member in pair[:heard]:
        shard.pass_time(1_000)
        assert member.beat().error_code == 0
    resize(shard, 6, told=True)
    shared_out(*pair)


def test_the_epoch_rose_and_the_target_is_left_to_the_next_coordinator(
    shard: Shard, pair: tuple[Consumer, Consumer]
) -> None:
    resize(shard, 5, told=True)
    pair[0].beat()
    resize(shard, 6, told=True)
    pair[0].beat()  # within the interval of targets: the epoch alone is stored
    assert group_of(shard).epoch > group_of(shard).target_epoch
    shard.crash()
    shared_out(*pair)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_they_come_while_the_answer_to_a_join_is_lost(
    shard: Shard, join: Callable[[str], Consumer], lost: str
) -> None:
    """The member sends the same request again; a static one is refused until its session ends, as
    in Kafka, and comes back under another id then."""
    members = {name: join(name) for name in "ab"}
    member = members[lost]
    member.epoch, member.assigned, member.owned = 0, {}, {}
    shard.crash()
    resize(shard, 6, told=True)
    if "instance_id" in member.full:
        other = members["b" if lost == "a" else "a"]
        for _ in range(10):
            shard.pass_time(5_000)
            other.beat()
        member.member_id += "-again"
    assert member.join().error_code == 0
    shared_out(*members.values())


def test_they_come_while_a_member_is_fenced_and_joins_again(
    shard: Shard, pair: tuple[Consumer, Consumer]
) -> None:
    first, second = pair
    resize(shard, 6, told=True)
    shard.crash()
    for _ in range(10):
        shard.pass_time(5_000)
        second.beat()
    assert first.member_id not in group_of(shard).members
    assert first.beat().error_code
    shard.crash()
    assert first.join().error_code == 0
    shared_out(first, second)


@pytest.mark.parametrize("step", ["asked", "given"])
def test_they_come_while_partitions_change_hands(
    shard: Shard, join: Callable[[str], Consumer], step: str
) -> None:
    """The answer that asks for partitions, or that gives them, dies with its coordinator."""
    first = join("a")
    shard.pass_time(1_000)
    second = join("b")
    shard.pass_time(1_000)
    if step == "given":
        first.beat()
        first.beat()
        second.miss()
    else:
        first.miss()
    resize(shard, 6, told=False)
    shard.crash()
    shared_out(first, second)


def test_a_topic_made_anew_under_its_name_is_read_after_a_failover(
    shard: Shard, pair: tuple[Consumer, Consumer]
) -> None:
    old = shard.topics.topics["t"].id
    shard.topics.create("t", 6)
    shard.crash()
    shared_out(*pair)
    assert all(topic != old for member in pair for topic in member.owned)


def test_a_load_alone_costs_nobody_a_rebalance(
    shard: Shard, pair: tuple[Consumer, Consumer]
) -> None:
    epoch = group_of(shard).epoch
    shard.crash()
    settle(*pair)
    assert group_of(shard).epoch == epoch
