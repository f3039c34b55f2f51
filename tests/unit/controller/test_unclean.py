"""Unclean elections go by what replicas answer: the most of the newest epoch leads."""

from typing import Any

import pytest

from scriba.controller.image import NO_LEADER, RECOVERING, TOPIC
from scriba.controller.machine import Controller
from scriba.controller.partitions.elections import End
from scriba.controller.partitions.unclean import Choice
from scriba.controller.state import Ends
from scriba.errors import ErrorCode
from scriba.wire.messages.admin import ElectLeadersRequest, TopicPartitions
from tests.unit.controller.rig import SET, Cluster, alter, change, reassign

ALLOWED = ("unclean.leader.election.enable", SET, "true")


def cluster_of(*, wait_ms: int = 1000) -> Cluster:
    """Partition t-0 of four brokers, led by 4, which was alone in sync and is gone."""
    made = Cluster(scriba_unclean_wait_ms=str(wait_ms)).with_brokers(1, 2, 3, 4)
    configs: dict[str, str | None] = {"min.insync.replicas": "1"}
    made.create("t", -1, -1, assignments={0: [4, 1, 2, 3]}, configs=configs)
    assert alter(made, [4], leader=4).error_code == ErrorCode.NONE
    made.beat(4, want_fence=True)
    assert made.partition().leader == NO_LEADER
    return made


@pytest.fixture
def cluster() -> Cluster:
    return cluster_of()


def answers(cluster: Cluster, **ends: End) -> None:
    cluster.has = lambda broker: ends.get(f"b{broker}")


def elect(cluster: Cluster) -> Any:
    asked = [TopicPartitions(topic="t", partitions=[0])]
    response = cluster.do(ElectLeadersRequest(election_type=1, topic_partitions=asked))
    return response.replica_election_results[0].partition_result[0]


def test_the_longest_log_of_the_newest_epoch_leads(cluster: Cluster) -> None:
    answers(cluster, b1=End(0, 90), b2=End(1, 70), b3=End(1, 80))
    epoch = cluster.partition().leader_epoch
    cluster.controller.state.image.topics_by_name["t"].partitions[0] = cluster.partition()._replace(
        leader_epoch=max(epoch, 2)
    )
    change(cluster, TOPIC, "t", ALLOWED)
    cluster.wait(500, 1, 2, 3)
    partition = cluster.partition()
    assert (partition.leader, partition.isr) == (3, (3,))
    assert partition.leader_recovery_state == RECOVERING
    (choice,) = cluster.choices
    assert choice.partition == "t-0"
    assert choice.text == (
        "broker 3 leads with what it has up to offset 80 (epoch 1)"
        "; broker 1 had up to 90 (epoch 0), offsets 80 to 89 of it go"
        "; broker 2 had up to 70 (epoch 1)"
        "; broker 4 did not answer: what only it had from offset 80 on is lost"
    )


def test_the_first_of_equals_leads(cluster: Cluster) -> None:
    answers(cluster, b3=End(0, 7), b2=End(0, 7), b1=End(0, 6))
    assert elect(cluster).error_code == ErrorCode.NONE
    assert cluster.partition().leader == 2


def test_replicas_that_name_the_epoch_they_follow_are_compared_by_offset(cluster: Cluster) -> None:
    """Apache Kafka's replicas do: that says nothing about their logs."""
    followed = cluster.partition().leader_epoch
    answers(cluster, b1=End(followed, 10), b2=End(0, 30), b3=End(followed, 20))
    elect(cluster)
    assert cluster.partition().leader == 2


def test_whoever_does_not_answer_is_passed_over(cluster: Cluster) -> None:
    answers(cluster, b3=End(0, 5))
    result = elect(cluster)
    assert cluster.partition().leader == 3
    assert result.error_code == ErrorCode.NONE
    assert "brokers 4, 1, 2 did not answer" in result.error_message


def test_nobody_leads_while_nobody_answers_and_all_are_asked_again(cluster: Cluster) -> None:
    answers(cluster)
    result = elect(cluster)
    assert result.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert result.error_message == "no replica that lives told within 1000 ms what it has"
    change(cluster, TOPIC, "t", ALLOWED)
    cluster.wait(1000, 1, 2, 3)
    assert cluster.partition().leader == NO_LEADER
    answers(cluster, b2=End(0, 1))
    cluster.wait(500, 1, 2, 3)
    assert cluster.partition().leader == 2


def test_without_a_wait_the_first_that_lives_leads_and_nobody_is_asked() -> None:
    cluster = cluster_of(wait_ms=0)
    answers(cluster, b3=End(5, 500))
    assert elect(cluster).error_message is None
    assert cluster.partition().leader == 1
    cluster = cluster_of(wait_ms=0)
    change(cluster, TOPIC, "t", ALLOWED)
    assert not cluster.controller.asks
    cluster.wait(500, 1, 2, 3)
    assert cluster.partition().leader == 1


def test_a_leader_that_returns_while_replicas_are_asked_leads(cluster: Cluster) -> None:
    cluster.ask = lambda: None  # type: ignore[method-assign]
    change(cluster, TOPIC, "t", ALLOWED)
    cluster.wait(500, 1, 2, 3)
    controller: Controller = cluster.controller
    questions = controller.questions()
    assert [question.brokers for question in questions] == [(1, 2, 3)]
    cluster.beat(4)
    assert cluster.partition().leader == 4
    ends = {each.place: Ends(each.leader_epoch, {1: End(0, 9)}) for each in questions}
    told: list[Choice] = []
    assert not list(controller.elect_unclean(questions, ends, told, cluster.now))
    assert not told
    assert not controller.asks


def test_permission_that_is_taken_back_while_replicas_are_asked_counts(cluster: Cluster) -> None:
    cluster.ask = lambda: None  # type: ignore[method-assign]
    change(cluster, TOPIC, "t", ALLOWED)
    cluster.wait(500, 1, 2, 3)
    questions = cluster.controller.questions()
    change(cluster, TOPIC, "t", ("unclean.leader.election.enable", SET, "false"))
    ends = {each.place: Ends(each.leader_epoch, {1: End(0, 9)}) for each in questions}
    assert not list(cluster.controller.elect_unclean(questions, ends, [], cluster.now))


def test_a_broker_that_returns_is_asked(cluster: Cluster) -> None:
    change(cluster, TOPIC, "t", ALLOWED)
    for broker in (1, 2, 3):
        cluster.beat(broker, want_fence=True)
    answers(cluster, b2=End(0, 3))
    change(cluster, TOPIC, "t", ("retention.ms", SET, "1000"))
    other = cluster.restarted()
    other.has = cluster.has
    other.beat(2)
    assert other.partition().leader == 2


def test_a_reassignment_to_the_one_that_is_elected_is_done_with_its_election() -> None:
    cluster = Cluster().with_brokers(1, 2, 3)
    cluster.create("t", -1, -1, assignments={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
    for broker in (3, 2, 1):
        cluster.beat(broker, want_fence=True)
    assert not reassign(cluster, [1]).error_code
    cluster.beat(1)
    partition = cluster.partition()
    assert (partition.leader, partition.replicas, partition.is_reassigning) == (1, (1,), False)


def test_what_nobody_was_elected_for_is_looked_at_again_after_the_interval() -> None:
    made = cluster_of()
    change(made, TOPIC, "t", ALLOWED)
    controller = made.controller
    assert list(controller.tick(made.now)) == []
    interval = controller.state.settings.unclean_leader_election_interval_ms
    assert controller.questions(), "they are asked, and whoever asked could not write it down"
    for _ in range(3):
        made.pass_time(interval // 4)
        list(controller.tick(made.now))
        assert not controller.asks
    made.pass_time(interval // 4)
    list(controller.tick(made.now))
    assert controller.asks
