"""Preferred leaders come back: in sync everywhere, a few a second, coordinators last."""

from itertools import pairwise
from typing import Any

from scriba.controller.partitions.preferred_leaders import AT_ONCE
from tests.unit.controller.rig import Cluster, alter, reassign

BROKERS = (1, 2, 3)
ROUND_MS = 10_000


def displaced(partitions: int = 12, **settings: Any) -> Cluster:
    """Broker 1 was away: it leads nothing, and is in sync with nothing but what rejoins."""
    settings.setdefault("leader_imbalance_check_interval_seconds", "10")
    made = Cluster(**settings).with_brokers(*BROKERS)
    made.create("__consumer_offsets", -1, -1, assignments={n: [1, 2, 3] for n in range(2)})
    made.create("t", -1, -1, assignments={n: [1, 2, 3] for n in range(partitions)})
    made.beat(1, want_fence=True)
    made.beat(1)
    return made


def rejoin(cluster: Cluster, topic: str, index: int) -> None:
    partition = cluster.partition(topic, index)
    answer = alter(
        cluster,
        [*partition.isr, 1],
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        index=index,
        topic=cluster.image.topics_by_name[topic].id,
    )
    assert not answer.error_code


def led(cluster: Cluster, topic: str) -> int:
    """How many partitions of a topic broker 1 leads."""
    partitions = cluster.image.topics_by_name[topic].partitions.values()
    return sum(each.leader == 1 for each in partitions)


def all_rejoin(cluster: Cluster) -> None:
    for topic in cluster.image.topics_by_name.values():
        for index in topic.partitions:
            rejoin(cluster, topic.name, index)


def test_they_come_back_a_few_a_second_and_the_coordinators_last() -> None:
    cluster = displaced()
    all_rejoin(cluster)
    assert led(cluster, "t") == 0
    seen = []
    for _ in range(20):
        cluster.wait(1000, *BROKERS)
        seen.append((led(cluster, "t"), led(cluster, "__consumer_offsets")))
    assert seen[-1] == (12, 2)
    for (few, last), (more, then) in pairwise(seen):
        assert more + then - few - last <= AT_ONCE
        assert not then or more == 12, "coordinators' topics go last"


def test_a_broker_that_is_behind_in_one_partition_gets_none_back() -> None:
    cluster = displaced()
    for index in range(11):
        rejoin(cluster, "t", index)
    for index in range(2):
        rejoin(cluster, "__consumer_offsets", index)
    cluster.wait(2 * ROUND_MS, *BROKERS)
    assert led(cluster, "t") == 0
    rejoin(cluster, "t", 11)
    cluster.wait(2 * ROUND_MS, *BROKERS)
    assert led(cluster, "t") == 12


def test_switched_off_nobody_comes_back_by_himself() -> None:
    cluster = displaced(auto_leader_rebalance_enable="false")
    all_rejoin(cluster)
    cluster.wait(3 * ROUND_MS, *BROKERS)
    assert led(cluster, "t") == 0


def test_what_is_being_added_does_not_hold_the_others_up() -> None:
    cluster = displaced()
    all_rejoin(cluster)
    cluster.create("u", -1, -1, assignments={0: [2]})
    reassign(cluster, [1], "u")
    cluster.wait(2 * ROUND_MS, *BROKERS)
    assert led(cluster, "t") == 12
