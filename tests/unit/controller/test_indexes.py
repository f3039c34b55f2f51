"""The indexes tell what a walk through all partitions would, at the cost of those concerned."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scriba.controller.indexes import PartitionIndex
from scriba.wire.messages.admin import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from tests.unit.controller.indexed import BROKERS, check
from tests.unit.controller.rig import Cluster

steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from("abc"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.sampled_from(["fence", "unfence", "crash"]), st.just(""), st.integers(1, 4)),
        st.tuples(st.just("lost"), st.just(""), st.integers(1, 4)),
    ),
    max_size=25,
)


def play(cluster: Cluster, step: tuple[str, str, int]) -> None:
    what, name, number = step
    topics, brokers = cluster.image.topics_by_name, cluster.image.brokers
    if what == "create" and name not in topics:
        cluster.create(name, number, min(number, 4))
    elif what == "delete" and name in topics:
        cluster.do(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]))
    elif what == "fence":
        cluster.beat(number, want_fence=True)
    elif what == "unfence":
        cluster.beat(number)
    elif what == "crash":
        cluster.controller.broker_disconnected(number, brokers[number].epoch)
        cluster.register(number, incarnation_id=cluster.controller.state.uuid())
    elif what == "lost":
        now = cluster.now
        cluster.append(cluster.controller.broker_lost(number, brokers[number].epoch, now, now))


@given(steps)
@settings(deadline=None)
def test_indexes_follow_the_image_through_every_change(plan: list[tuple[str, str, int]]) -> None:
    cluster = Cluster().with_brokers(*BROKERS)
    for step in plan:
        play(cluster, step)
        check(cluster)
    again = PartitionIndex()
    for _ in again.fill(cluster.image):
        pass
    cluster.controller.state.partitions = again
    check(cluster)


def test_topic_that_is_changed_and_deleted_in_one_batch_is_forgotten(trio: Any) -> None:
    trio.create("t", 4, 3)
    fenced = list(trio.controller.broker_lost(1, trio.image.brokers[1].epoch, trio.now, trio.now))
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    result = trio.controller.handle(gone, 6, trio.now)
    assert result.response.responses == [
        DeletableTopicResult(name="t", topic_id=trio.image.topics_by_name["t"].id)
    ]
    trio.append([*fenced, *result.records])
    index = trio.controller.state.partitions
    assert not list(index.in_sync(trio.image, [1, 2, 3]))
    assert not list(index.leaderless(trio.image))


@pytest.fixture
def large(make_cluster: Any) -> Any:
    """A thousand partitions on four brokers, of which broker 5 has three, in sync with all."""
    cluster = make_cluster().with_brokers(1, 2, 3, 4)
    cluster.create("large", 1000, 3)
    cluster.with_brokers(5)
    cluster.create("few", -1, -1, assignments={0: [5, 1], 1: [1, 5]})
    cluster.create("one", -1, -1, assignments={0: [5]})
    cluster.controller.state.partitions.visited = 0
    return cluster


def visited(cluster: Any) -> int:
    index = cluster.controller.state.partitions
    count, index.visited = index.visited, 0
    return int(count)


def test_a_broker_that_is_fenced_and_returns_costs_its_own_partitions(large: Any) -> None:
    large.beat(5, want_fence=True)
    assert visited(large) == 3
    large.beat(5)
    assert visited(large) == 1, "the one that has no leader"
    large.wait(8_500, 1, 2, 3, 4)
    large.pass_time(500)
    large.append(large.controller.tick(large.now))
    assert large.image.brokers[5].fenced
    assert visited(large) <= 3


def test_a_broker_that_returns_looks_at_no_partition_that_waits_for_others(large: Any) -> None:
    for broker in (1, 2, 3, 4):
        large.beat(broker, want_fence=True)
    large.beat(5, want_fence=True)
    offline = large.controller.offline_count
    assert offline >= 1000
    visited(large)
    large.beat(5)
    assert visited(large) == 3, "of more than a thousand that nobody leads"
    assert large.controller.offline_count < offline


def test_a_quiet_heartbeat_and_a_tick_look_at_no_partition(large: Any) -> None:
    large.wait(1_000, 1, 2, 3, 4, 5)
    visited(large)
    large.wait(1_000, 1, 2, 3, 4, 5)
    assert visited(large) == 0


def test_a_controlled_shutdown_costs_its_own_partitions_however_often_it_asks(large: Any) -> None:
    assert large.beat(5, want_shut_down=True).should_shut_down is False
    assert visited(large) == 3
    for _ in range(10):
        assert large.beat(5, want_shut_down=True).should_shut_down is False
    assert visited(large) == 0
    for other in (1, 2, 3, 4):
        large.beat(other)
    assert large.beat(5, want_shut_down=True).should_shut_down is True
    assert visited(large) <= 1, "the one that nobody else has"


def test_a_crash_and_a_failed_directory_cost_the_brokers_partitions(large: Any) -> None:
    large.controller.broker_disconnected(5, large.image.brokers[5].epoch)
    large.register(5, incarnation_id=b"after a kill -9!")
    assert visited(large) == 3
    large.beat(5)
    visited(large)
    large.beat(5, offline_log_dirs=list(large.image.brokers[5].directories))
    assert visited(large) <= 3
