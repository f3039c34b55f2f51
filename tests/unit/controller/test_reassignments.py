"""Replicas move: added, caught up, taken over, the others removed; changed, cancelled (KIP-455)."""

from collections.abc import Iterator
from typing import Any

import pytest

from scriba.controller.image import NO_LEADER
from scriba.controller.partitions.elections import End
from scriba.errors import ErrorCode
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.unit.controller.rig import Cluster, alter, reassign


@pytest.fixture
def five() -> Cluster:
    """Partition t-0 with replicas 1, 2, 3 of five brokers, led by 1."""
    made = Cluster().with_brokers(1, 2, 3, 4, 5)
    configs: dict[str, str | None] = {"min.insync.replicas": "2"}
    made.create("t", -1, -1, assignments={0: [1, 2, 3]}, configs=configs)
    return made


def join(cluster: Cluster, *brokers: int) -> Any:
    """The leader says that these have caught up."""
    partition = cluster.partition()
    return alter(
        cluster,
        [*partition.isr, *brokers],
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )


def crash(cluster: Cluster, broker: int) -> None:
    """A broker dies, may have lost anything, and registers anew."""
    cluster.controller.broker_disconnected(broker, cluster.image.brokers[broker].epoch)
    incarnation = cluster.controller.state.uuid()
    cluster.register(broker, incarnation_id=incarnation, previous_broker_epoch=-1)


def listed(cluster: Cluster, topics: Any = None) -> dict[tuple[str, int], tuple[list[int], ...]]:
    response = cluster.do(ListPartitionReassignmentsRequest(topics=topics))
    return {
        (topic.name, each.partition_index): (
            each.replicas,
            each.adding_replicas,
            each.removing_replicas,
        )
        for topic in response.topics
        for each in topic.partitions
    }


class Unread(list[int]):
    """Partitions that nobody looks at."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("a topic without reassignments was looked through")


def test_only_topics_with_reassignments_are_looked_through(five: Cluster) -> None:
    many = ListPartitionReassignmentsTopics(name="other", partition_indexes=Unread(range(100)))
    assert listed(five, [many]) == {}
    assert reassign(five, [4, 2, 1]).error_code == ErrorCode.NONE
    asked = [
        ListPartitionReassignmentsTopics(name="t", partition_indexes=[each]) for each in (1, 0)
    ]
    assert listed(five, [many, asked[0]]) == {}
    assert listed(five, [*asked, many]) == {("t", 0): ([4, 2, 1, 3], [4], [3])}


def test_a_replica_is_added_catches_up_and_takes_the_place_of_another(five: Cluster) -> None:
    assert reassign(five, [4, 2, 1]).error_code == ErrorCode.NONE
    moving = five.partition()
    assert moving.replicas == (4, 2, 1, 3)
    assert (moving.adding_replicas, moving.removing_replicas) == ((4,), (3,))
    assert (moving.isr, moving.leader, moving.leader_epoch) == ((1, 2, 3), 1, 0)
    assert moving.directory(4) == five.image.brokers[4].directories[0]
    assert listed(five) == {("t", 0): ([4, 2, 1, 3], [4], [3])}
    answer = join(five, 4)
    assert answer.error_code == ErrorCode.NONE
    assert answer.leader_epoch == 1, "a fetch of the replica that is gone counts no more"
    done = five.partition()
    assert (done.replicas, done.isr) == ((4, 2, 1), (1, 2, 4))
    assert not done.is_reassigning
    assert (done.leader, done.leader_epoch) == (1, 1)
    assert listed(five) == {}


def test_nothing_is_removed_before_all_that_stay_are_in_sync(five: Cluster) -> None:
    reassign(five, [4, 5])
    join(five, 4)
    moving = five.partition()
    assert moving.replicas == (4, 5, 1, 2, 3)
    assert moving.isr == (1, 2, 3, 4)
    assert moving.leader == 1
    answer = join(five, 5)
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    done = five.partition()
    assert (done.replicas, done.isr) == ((4, 5), (4, 5))
    assert (done.leader, done.leader_epoch) == (4, 1), "the first of the target that is in sync"


def test_a_replica_that_stays_and_is_behind_is_waited_for(five: Cluster) -> None:
    alter(five, [1, 2])
    reassign(five, [1, 3])
    assert five.partition().removing_replicas == (2,)
    assert five.partition().isr == (1, 2)
    join(five, 3)
    assert (five.partition().replicas, five.partition().isr) == ((1, 3), (1, 3))


def test_another_order_is_done_at_once_and_leaves_the_leader(five: Cluster) -> None:
    reassign(five, [3, 2, 1])
    done = five.partition()
    assert (done.replicas, done.leader, done.leader_epoch) == ((3, 2, 1), 1, 0)
    assert not done.is_reassigning
    assert reassign(five, [3, 2, 1]).error_code == ErrorCode.NONE
    assert not five.records


def test_directories_go_with_their_replicas(five: Cluster) -> None:
    before = five.partition()
    reassign(five, [3, 1])
    after = five.partition()
    assert after.replicas == (3, 1)
    assert after.directories == (before.directory(3), before.directory(1))


@pytest.mark.parametrize(("target", "isr"), [([1], (1,)), ([2], (2,)), ([2, 3], (2, 3))])
def test_fewer_replicas_are_had_at_once(
    five: Cluster, target: list[int], isr: tuple[int, ...]
) -> None:
    assert reassign(five, target).error_code == ErrorCode.NONE
    done = five.partition()
    assert (done.replicas, done.isr) == (tuple(target), isr)
    assert done.leader in target
    assert done.leader_epoch == 1


def test_more_replicas_catch_up_first(five: Cluster) -> None:
    reassign(five, [1, 2, 3, 4, 5])
    assert five.partition().adding_replicas == (4, 5)
    join(five, 4)
    assert five.partition().is_reassigning
    join(five, 5)
    done = five.partition()
    assert (len(done.isr), done.is_reassigning, done.leader_epoch) == (5, False, 0)


def test_cancelled_it_is_as_before(five: Cluster) -> None:
    reassign(five, [4, 5, 2])
    join(five, 4)
    assert reassign(five, None).error_code == ErrorCode.NONE
    back = five.partition()
    assert {*back.replicas} == {1, 2, 3}
    assert back.isr == (1, 2, 3)
    assert back.leader == 1
    assert back.leader_epoch == 1
    assert listed(five) == {}
    assert reassign(five, None).error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_changed_while_it_runs_it_is_still_cancelled_to_where_it_began(five: Cluster) -> None:
    reassign(five, [1, 2, 4])
    join(five, 2)
    reassign(five, [1, 2, 5])
    moving = five.partition()
    assert moving.target == (1, 2, 5)
    assert {*moving.original} == {1, 2, 3}
    assert 4 not in moving.replicas, "it had nothing yet that anybody needs"
    reassign(five, None)
    assert {*five.partition().replicas} == {1, 2, 3}


def test_one_no_longer_wanted_that_is_in_sync_stays_until_the_others_are(five: Cluster) -> None:
    reassign(five, [1, 4, 5])
    join(five, 4)
    reassign(five, [1, 2, 5])
    moving = five.partition()
    assert (moving.adding_replicas, moving.removing_replicas) == ((4, 5), (3, 4))
    assert moving.isr == (1, 2, 3, 4)
    join(five, 5)
    assert (five.partition().replicas, five.partition().isr) == ((1, 2, 5), (1, 2, 5))


def test_asked_back_to_where_it_is_it_ends(five: Cluster) -> None:
    reassign(five, [1, 2, 4])
    reassign(five, [1, 2, 3])
    done = five.partition()
    assert (done.replicas, done.is_reassigning) == ((1, 2, 3), False)


def test_cancelling_never_takes_the_last_leader_away(five: Cluster) -> None:
    reassign(five, [4, 5])
    join(five, 4)
    for broker in (1, 2, 3):
        crash(five, broker)
    assert five.partition().leader == 4
    refused = reassign(five, None)
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "t-0 would have no replica that may lead" in refused.error_message
    assert five.partition().leader == 4


UNCLEAN: dict[str, str | None] = {"unclean.leader.election.enable": "true"}


def only_the_added_one_is_in_sync(cluster: Cluster) -> None:
    """Partition u-0 was on broker 1 and goes to 4 and 5; 4 has caught up, and 1 has crashed."""
    cluster.create("u", -1, -1, assignments={0: [1]}, configs=UNCLEAN)
    reassign(cluster, [4, 5], "u")
    epoch = cluster.partition("u").partition_epoch
    alter(cluster, [1, 4], topic=cluster.image.topics_by_name["u"].id, partition_epoch=epoch)
    crash(cluster, 1)
    cluster.beat(1)
    assert cluster.partition("u").isr == (4,)


def test_cancelling_elects_nobody_uncleanly_who_was_not_asked_what_he_has(five: Cluster) -> None:
    only_the_added_one_is_in_sync(five)
    before = five.partition("u")
    refused = reassign(five, None, "u")
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "stop broker 4 and run `scriba cluster elect --unclean`" in refused.error_message
    assert five.partition("u") == before

    five.beat(4, want_fence=True)  # as it says: brokers that live are asked, and 1 has next to none
    after = five.partition("u")
    assert (after.leader, after.leader_recovery_state) == (1, 1)
    assert "broker 4 did not answer" in five.choices[-1].text
    assert reassign(five, None, "u").error_code == ErrorCode.NONE
    assert (five.partition("u").replicas, five.partition("u").leader) == ((1,), 1)


def test_where_nobody_is_to_be_asked_it_is_cancelled_by_an_unclean_election() -> None:
    cluster = Cluster(scriba_unclean_wait_ms="0").with_brokers(1, 2, 3, 4, 5)
    only_the_added_one_is_in_sync(cluster)
    assert reassign(cluster, None, "u").error_code == ErrorCode.NONE
    after = cluster.partition("u")
    assert (after.replicas, after.leader, after.leader_recovery_state) == ((1,), 1, 1)


@pytest.mark.parametrize("cancel", [False, True], ids=["begun", "cancelled"])
def test_a_move_of_a_partition_without_a_leader_leaves_the_election_to_those_asked(
    five: Cluster, cancel: bool
) -> None:
    five.create("u", -1, -1, assignments={0: [1, 2, 3]}, configs=UNCLEAN)
    if cancel:
        reassign(five, [4, 2, 3], "u")
    now = five.partition("u")
    topic = five.image.topics_by_name["u"].id
    alter(five, [1], topic=topic, partition_epoch=now.partition_epoch)
    five.has = lambda broker: None
    five.beat(1, want_fence=True)
    assert five.partition("u").leader == NO_LEADER
    five.has = lambda broker: End(0, {2: 20, 3: 30}.get(broker, 0))
    assert reassign(five, None if cancel else [5, 2, 3], "u").error_code == ErrorCode.NONE
    after = five.partition("u")
    assert (after.leader, after.leader_recovery_state) == (3, 1), "broker 2 has less"
    assert "broker 2 had up to 20" in five.choices[-1].text


def test_a_fenced_broker_can_be_a_target_and_is_waited_for(five: Cluster) -> None:
    five.beat(4, want_fence=True)
    assert reassign(five, [1, 2, 4]).error_code == ErrorCode.NONE
    assert five.partition().replicas == (1, 2, 4, 3)
    assert join(five, 4).error_code == ErrorCode.INELIGIBLE_REPLICA
    five.beat(4)
    join(five, 4)
    assert five.partition().replicas == (1, 2, 4)


@pytest.mark.parametrize("whose", [1, 4])
def test_the_death_of_source_or_target_holds_it_up_and_does_not_end_it(
    five: Cluster, whose: int
) -> None:
    reassign(five, [4, 2, 3])
    five.beat(whose, want_fence=True)
    moving = five.partition()
    assert moving.is_reassigning
    assert moving.leader in (1, 2)
    five.beat(whose)
    again = five.restarted()
    assert listed(again) == {("t", 0): ([4, 2, 3, 1], [4], [1])}
    again.with_brokers()
    join(again, *(b for b in (1, 4) if b not in again.partition().isr))
    done = again.partition()
    assert done.replicas == (4, 2, 3)
    assert {*done.isr} == {4, 2, 3}


def test_an_unclean_election_takes_one_being_added_last(five: Cluster) -> None:
    five.create(
        "u", -1, -1, assignments={0: [1, 2]}, configs={"unclean.leader.election.enable": "true"}
    )
    topic = five.image.topics_by_name["u"].id
    alter(five, [1], topic=topic)
    reassign(five, [4, 5], "u")
    five.beat(1, want_fence=True)
    assert five.partition("u").leader == 2


def test_new_partitions_have_as_many_replicas_as_the_target(five: Cluster) -> None:
    reassign(five, [4, 5])
    topic = CreatePartitionsTopic(name="t", count=2, assignments=None)
    five.do(CreatePartitionsRequest(topics=[topic]))
    assert len(five.partition(index=1).replicas) == 2


def test_a_topic_is_deleted_in_the_middle_of_it(five: Cluster) -> None:
    reassign(five, [4, 5])
    five.do(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    assert listed(five) == {}


def test_those_named_are_listed(five: Cluster) -> None:
    five.create("u", -1, -1, assignments={0: [1], 1: [2]})
    for index in (0, 1):
        reassign(five, [3], "u", index)
    named = [
        ListPartitionReassignmentsTopics(name="u", partition_indexes=[1, 7]),
        ListPartitionReassignmentsTopics(name="t", partition_indexes=[0]),
        ListPartitionReassignmentsTopics(name="absent", partition_indexes=[0]),
    ]
    assert listed(five, named) == {("u", 1): ([3, 2], [3], [2])}
    assert listed(five).keys() == {("u", 0), ("u", 1)}


@pytest.mark.parametrize(
    ("replicas", "code", "told"),
    [
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "t-0 has no replicas"),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "t-0 names broker 1 twice"),
        ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "t-0 names broker 9, which"),
        ([1, -1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "t-0 names broker -1, which"),
    ],
)
def test_what_cannot_be_is_refused_with_the_partitions_name(
    five: Cluster, replicas: list[int], code: ErrorCode, told: str
) -> None:
    before = five.partition()
    answer = reassign(five, replicas)
    assert answer.error_code == code
    assert told in answer.error_message
    assert five.partition() == before


def test_unknown_and_repeated_partitions_do_not_hold_the_others_up(five: Cluster) -> None:
    def asked(topic: str, *partitions: int) -> ReassignableTopic:
        return ReassignableTopic(
            name=topic,
            partitions=[ReassignablePartition(partition_index=p, replicas=[4]) for p in partitions],
        )

    five.create("u", -1, -1, assignments={0: [1], 1: [2]})
    response = five.do(
        AlterPartitionReassignmentsRequest(
            topics=[asked("absent", 0), asked("t", 0, 5), asked("u", 0, 1), asked("u", 1)]
        )
    )
    told = [
        (topic.name, each.partition_index, each.error_code)
        for topic in response.responses
        for each in topic.partitions
    ]
    assert told == [
        ("absent", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, ErrorCode.NONE),
        ("t", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, ErrorCode.NONE),
        ("u", 1, ErrorCode.NONE),
        ("u", 1, ErrorCode.INVALID_REQUEST),
    ]
    assert listed(five).keys() == {("t", 0), ("u", 0), ("u", 1)}


def test_who_asks_for_another_order_alone_undoes_no_move(five: Cluster) -> None:
    def order(*replicas: int) -> int:
        asked = ReassignablePartition(partition_index=0, replicas=list(replicas))
        response = five.do(
            AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(name="t", partitions=[asked])], order_only=True
            )
        )
        return int(response.responses[0].partitions[0].error_code)

    assert order(2, 3, 1) == ErrorCode.NONE
    assert five.partition().replicas == (2, 3, 1)
    reassign(five, [4, 5, 1])
    assert order(3, 1, 2) == ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert five.partition().target == (4, 5, 1)
    join(five, 4, 5)
    assert five.partition().replicas == (4, 5, 1)
    assert order(3, 1, 2) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert not five.partition().is_reassigning
    assert order(5, 1, 4) == ErrorCode.NONE


def test_the_replication_factor_stays_where_it_is_not_to_change(five: Cluster) -> None:
    answer = reassign(five, [1, 2], factor_may_change=False)
    assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "t-0" in answer.error_message
    assert reassign(five, [1, 2, 4], factor_may_change=False).error_code == ErrorCode.NONE
    again = reassign(five, [1, 2, 4, 5], factor_may_change=False)
    assert again.error_code == ErrorCode.INVALID_REPLICATION_FACTOR, "the target counts"
    assert reassign(five, [1, 2, 4, 5]).error_code == ErrorCode.NONE


def test_a_partition_without_a_leader_moves_when_it_has_one(five: Cluster) -> None:
    for broker in (1, 2, 3):
        five.beat(broker, want_fence=True)
    assert five.partition().leader == NO_LEADER
    assert reassign(five, [4, 5]).error_code == ErrorCode.NONE
    assert five.partition().leader == NO_LEADER
    five.beat(3)
    assert five.partition().leader == 3
    join(five, 4, 5)
    assert (five.partition().replicas, five.partition().leader) == ((4, 5), 4)
