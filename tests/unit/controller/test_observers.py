"""Observers: placed where the topic says, in no in-sync set, elected by nobody."""

import random
from collections import Counter
from typing import Any

import pytest

from scriba.controller.image import NO_LEADER, TOPIC, PartitionImage
from scriba.controller.partitions.elections import CHECKED_AT_ONCE
from scriba.controller.plans import Cut, next_slice
from scriba.errors import ErrorCode
from scriba.wire.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    ElectLeadersRequest,
    TopicPartitions,
)
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tests.unit.controller.rig import (
    DELETE,
    SET,
    WITHOUT_ELIGIBLE,
    Cluster,
    alter,
    change,
    reassign,
)

PLACEMENT = "scriba.replica.placement"
RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
ASKED = "voters=1@a,1@b;observers=1@c"
UNCLEAN = 1


def in_racks(**facts: Any) -> Cluster:
    made = Cluster(**facts)
    for broker, rack in RACKS.items():
        made.register(broker, rack=rack)
        made.beat(broker)
    return made


@pytest.fixture
def six() -> Cluster:
    """Six brokers in three racks; t-0 is on 1, 3 and, as an observer, on 5."""
    made = in_racks()
    made.create("t", -1, -1, assignments={0: [1, 3, 5]}, configs={PLACEMENT: ASKED})
    return made


def standing(partition: PartitionImage) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return partition.leader, partition.isr, partition.eligible_leader_replicas


def ask(cluster: Cluster, isr: list[int]) -> Any:
    now = cluster.partition()
    return alter(
        cluster,
        isr,
        leader=now.leader,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
    )


def elect(cluster: Cluster, kind: int) -> ErrorCode:
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    response = cluster.do(ElectLeadersRequest(election_type=kind, topic_partitions=wanted))
    return ErrorCode(response.replica_election_results[0].partition_result[0].error_code)


def lose(cluster: Cluster, *brokers: int) -> None:
    """Those are silent until they are fenced, the others are not."""
    cluster.wait(20_000, *(each for each in RACKS if each not in brokers))


# ---- new topics ----


def test_new_partitions_have_their_replicas_where_the_topic_says() -> None:
    cluster = in_racks()
    made = cluster.create("t", 12, -1, configs={PLACEMENT: "voters=1@b,2@a;observers=1@c"})
    assert (made.error_code, made.replication_factor) == (ErrorCode.NONE, 4)
    partitions = cluster.image.topics_by_name["t"].partitions.values()
    for each in partitions:
        assert Counter(RACKS[broker] for broker in each.replicas) == {"a": 2, "b": 1, "c": 1}
        assert RACKS[each.replicas[-1]] == "c", "observers come last"
        assert set(each.isr) == set(each.replicas[:-1])
    assert Counter(each.leader for each in partitions) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert Counter(each.replicas[-1] for each in partitions) == {5: 6, 6: 6}
    assert len({each.replicas for each in partitions}) > 4, "not always the same companions"


def test_partitions_that_are_added_are_placed_by_it_as_well(six: Cluster) -> None:
    topic = CreatePartitionsTopic(name="t", count=5, assignments=None)
    six.do(CreatePartitionsRequest(topics=[topic]))
    for index in range(5):
        each = six.partition(index=index)
        assert [RACKS[broker] for broker in sorted(each.replicas)] == ["a", "b", "c"]
        assert len(each.isr) == 2
        assert RACKS[each.replicas[-1]] == "c"


def test_three_voters_get_a_safe_min_isr_and_three_replicas_of_which_one_votes_do_not() -> None:
    cluster = in_racks()
    cluster.create("t", 1, -1, configs={PLACEMENT: "voters=2@a,1@b;observers=1@c"})
    cluster.create("u", 1, -1, configs={PLACEMENT: "voters=1@a;observers=2@c"})
    assert cluster.image.config(TOPIC, "t")["min.insync.replicas"] == "2"
    assert "min.insync.replicas" not in cluster.image.config(TOPIC, "u")


@pytest.mark.parametrize(
    ("placement", "factor", "code", "why"),
    [
        ("voters=1@a,1@z", -1, ErrorCode.INVALID_CONFIG, "rack z, where no broker is; they are in"),
        ("voters=3@a", -1, ErrorCode.INVALID_REPLICATION_FACTOR, "rack a has 2 brokers"),
        (ASKED, 2, ErrorCode.INVALID_REPLICATION_FACTOR, "asks for 3 replicas, the request for 2"),
        ("voters=two", -1, ErrorCode.INVALID_CONFIG, "must be voters=COUNT@RACK"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(
    placement: str, factor: int, code: ErrorCode, why: str
) -> None:
    cluster = in_racks()
    refused = cluster.create("t", 1, factor, configs={PLACEMENT: placement})
    assert refused.error_code == code
    assert why in refused.error_message
    assert "t" not in cluster.image.topics_by_name


def test_replicas_by_hand_are_held_against_the_placement() -> None:
    cluster = in_racks()
    configs: dict[str, str | None] = {PLACEMENT: ASKED}
    refused = cluster.create("t", -1, -1, assignments={0: [1, 2, 5]}, configs=configs)
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "partition 0 puts 2 in rack a" in refused.error_message
    refused = cluster.create("t", -1, -1, assignments={0: [5, 1, 3]}, configs=configs)
    assert "names observer 5 first" in refused.error_message


def test_a_topic_whose_voters_are_all_away_is_not_made() -> None:
    cluster = in_racks()
    lose(cluster, 1, 2)
    refused = cluster.create("t", 1, -1, configs={PLACEMENT: "voters=1@a;observers=1@c"})
    assert "no broker in the racks of the voters is active" in refused.error_message


# ---- the in-sync set ----


def test_an_observer_in_an_isr_by_hand_is_refused(six: Cluster) -> None:
    before = six.partition()
    assert ask(six, [1, 3, 5]).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert six.partition() == before
    assert ask(six, [1, 3]).error_code == ErrorCode.NONE


def test_the_placement_of_a_living_topic_takes_observers_out_of_the_isr() -> None:
    cluster = in_racks()
    cluster.create("t", -1, -1, assignments={0: [5, 1, 3]})
    assert cluster.partition().leader == 5
    assert not change(cluster, TOPIC, "t", (PLACEMENT, SET, ASKED)).error_code
    now = cluster.partition()
    assert standing(now) == (1, (1, 3), ())
    assert now.replicas == (1, 3, 5), "the first one is to lead"
    assert now.directory(5) == cluster.image.brokers[5].directories[0]
    assert not change(cluster, TOPIC, "t", (PLACEMENT, DELETE, None)).error_code
    assert ask(cluster, [1, 3, 5]).error_code == ErrorCode.NONE, "it votes again"


def test_a_placement_that_leaves_nobody_to_lead_is_refused(six: Cluster) -> None:
    before = six.partition()
    answer = change(six, TOPIC, "t", (PLACEMENT, SET, "voters=1@c;observers=1@a,1@b"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "t-0 would have no voter in sync: brokers [1, 3] would observe" in answer.error_message
    assert six.partition() == before
    assert six.image.config(TOPIC, "t")[PLACEMENT] == ASKED


@pytest.mark.parametrize("dry", [False, True])
def test_a_placement_is_held_against_many_partitions_in_slices(dry: bool) -> None:
    """The last of them refuses it for all, and then nothing may have been written."""
    cluster = in_racks()
    many = {index: [5, 1] for index in range(2 * CHECKED_AT_ONCE)}
    cluster.create("t", -1, -1, assignments={**many, 2 * CHECKED_AT_ONCE: [5, 6]})
    config = IncrementalAlterConfigsRequestAlterableConfig(
        name=PLACEMENT, config_operation=SET, value=ASKED
    )
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    result = cluster.controller.handle(request, 1, cluster.now)
    plan = iter(result.records)
    cuts = [next_slice(plan, lambda _: False) for _ in range(3)]
    assert cuts == [([], Cut.BARRIER), ([], Cut.BARRIER), ([], Cut.END)]
    assert isinstance(result.response, IncrementalAlterConfigsResponse)
    (answer,) = result.response.responses
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert f"t-{2 * CHECKED_AT_ONCE} would have no voter" in str(answer.error_message)


def test_no_more_than_the_voters_are_asked_to_be_in_sync() -> None:
    """min.insync.replicas of the cluster may be more than a topic has voters."""
    cluster = in_racks()
    configs: dict[str, str | None] = {
        PLACEMENT: "voters=1@a;observers=2@c",
        "min.insync.replicas": "2",
    }
    cluster.create("t", -1, -1, assignments={0: [1, 5, 6]}, configs=configs)
    assert ask(cluster, [1]).error_code == ErrorCode.NONE
    assert standing(cluster.partition()) == (1, (1,), ())


# ---- elections ----


def test_an_observer_is_elected_by_nobody(six: Cluster) -> None:
    lose(six, 1, 3)
    gone = six.partition()
    assert gone.leader == NO_LEADER
    assert 5 not in (*gone.isr, *gone.eligible_leader_replicas, *gone.last_known_elr)
    assert elect(six, UNCLEAN) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    change(six, TOPIC, "t", ("unclean.leader.election.enable", SET, "true"))
    six.wait(2_000, 2, 4, 5, 6)
    assert six.partition().leader == NO_LEADER


def test_the_same_without_eligible_replicas() -> None:
    cluster = in_racks(supported=WITHOUT_ELIGIBLE)
    configs: dict[str, str | None] = {PLACEMENT: ASKED}
    cluster.create("t", -1, -1, assignments={0: [1, 3, 5]}, configs=configs)
    lose(cluster, 1, 3)
    assert cluster.partition().leader == NO_LEADER
    assert elect(cluster, UNCLEAN) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_an_observer_is_promoted_by_an_operator_alone(six: Cluster) -> None:
    """The regions of the voters are lost: another placement, then an unclean election."""
    lose(six, 1, 3)
    assert not change(six, TOPIC, "t", (PLACEMENT, SET, "voters=1@c;observers=1@a,1@b")).error_code
    assert six.partition().leader == NO_LEADER, "nothing is lost yet"
    assert elect(six, UNCLEAN) == ErrorCode.NONE
    now = six.partition()
    assert (now.leader, now.isr, now.leader_recovery_state) == (5, (5,), 1)
    for back in (1, 3):
        six.beat(back)
    assert ask(six, [5, 1]).error_code == ErrorCode.INELIGIBLE_REPLICA, "they observe now"


def test_a_voter_that_comes_back_before_the_promotion_leads(six: Cluster) -> None:
    lose(six, 1, 3)
    change(six, TOPIC, "t", (PLACEMENT, SET, "voters=1@c;observers=1@a,1@b"))
    last = (*six.partition().isr, *six.partition().eligible_leader_replicas)[0]
    six.beat(last)
    assert six.partition().leader == last, "it has all that was acknowledged"


def test_a_broker_that_comes_back_in_an_observers_rack_leads_until_a_voter_is_in_sync() -> None:
    cluster = in_racks()
    configs: dict[str, str | None] = {PLACEMENT: ASKED, "min.insync.replicas": "1"}
    cluster.create("t", -1, -1, assignments={0: [1, 3, 5]}, configs=configs)
    ask(cluster, [1])
    epoch = cluster.image.brokers[1].epoch
    cluster.controller.broker_disconnected(1, epoch)
    cluster.register(1, rack="c", incarnation_id=bytes(15) + b"x", previous_broker_epoch=epoch)
    cluster.beat(1)
    assert standing(cluster.partition())[:2] == (1, (1,)), "nobody else has it all"
    assert ask(cluster, [1, 3]).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert standing(cluster.partition())[:2] == (3, (3,))


def test_a_broker_of_observers_gets_its_leaderships_back() -> None:
    """Its observers are never in sync, which is no reason to wait."""
    cluster = in_racks()
    cluster.create("t", -1, -1, assignments={0: [1, 3, 5]}, configs={PLACEMENT: ASKED})
    cluster.create("u", -1, -1, assignments={0: [5, 1]})
    lose(cluster, 5)
    cluster.beat(5)
    moved = cluster.partition("u")
    assert moved.leader == 1
    alter(
        cluster,
        [1, 5],
        topic=cluster.image.topics_by_name["u"].id,
        leader_epoch=moved.leader_epoch,
        partition_epoch=moved.partition_epoch,
    )
    cluster.wait(310_000, *RACKS)
    assert cluster.partition("u").leader == 5


# ---- reassignments ----


def test_an_observer_that_moves_is_copied_before_the_old_one_goes(six: Cluster) -> None:
    assert reassign(six, [1, 3, 6]).error_code == ErrorCode.NONE
    moving = six.partition()
    assert (moving.adding_replicas, moving.removing_replicas) == ((6,), (5,))
    lose(six, 3)
    assert six.partition().is_reassigning, "a change of the in-sync set says nothing of it"
    six.beat(3)
    assert ask(six, [1, 3]).error_code == ErrorCode.NONE
    assert six.partition().is_reassigning
    assert ask(six, [1, 3]).error_code == ErrorCode.NONE, "the leader asks for what is: it is there"
    done = six.partition()
    assert (done.replicas, done.isr, done.is_reassigning) == ((1, 3, 6), (1, 3), False)


def test_a_voter_that_moves_does_not_wait_for_observers(six: Cluster) -> None:
    reassign(six, [2, 3, 5])
    assert ask(six, [1, 3, 2]).error_code == ErrorCode.NEW_LEADER_ELECTED
    done = six.partition()
    assert (done.replicas, done.is_reassigning) == ((2, 3, 5), False)


@pytest.mark.parametrize(
    ("replicas", "why"),
    [
        ([1, 2, 5], "t-0 puts 2 in rack a; scriba.replica.placement asks for 1 there"),
        ([1, 3, 5, 6], "t-0 puts 2 in rack c"),
        ([1, 3], "t-0 puts 0 in rack c"),
        ([5, 1, 3], "t-0 names observer 5 first"),
    ],
)
def test_a_reassignment_away_from_the_placement_is_refused(
    six: Cluster, replicas: list[int], why: str
) -> None:
    before = six.partition()
    refused = reassign(six, replicas)
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert why in refused.error_message
    assert six.partition() == before


def test_a_topic_is_brought_to_its_new_placement_step_by_step() -> None:
    cluster = in_racks()
    cluster.create("t", -1, -1, assignments={0: [1, 2, 3]})
    change(cluster, TOPIC, "t", (PLACEMENT, SET, ASKED))
    assert standing(cluster.partition())[:2] == (1, (1, 2, 3)), "all of them vote"
    assert reassign(cluster, [1, 3, 5]).error_code == ErrorCode.NONE
    ask(cluster, [1, 2, 3])
    assert cluster.partition().replicas == (1, 3, 5)
    assert cluster.partition().isr == (1, 3)


# ---- whatever happens ----

PLACEMENTS = (ASKED, "voters=2@a;observers=1@c", "voters=1@a,1@c;observers=1@b", "voters=1@b,1@c")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("facts", [{}, {"supported": WITHOUT_ELIGIBLE}], ids=["elr", "no elr"])
def test_an_observer_is_never_trusted_beside_a_voter(facts: Any, seed: int) -> None:
    """All that are trusted may have become observers while nobody led: then one of them may."""
    draw = random.Random(seed)
    cluster = in_racks(**facts)
    configs: dict[str, str | None] = {PLACEMENT: ASKED, "min.insync.replicas": "2"}
    cluster.create("t", 2, -1, configs=configs)
    away: set[int] = set()
    for _ in range(60):
        index = draw.randrange(2)
        now = cluster.partition(index=index)
        match draw.randrange(6):
            case 0 if len(away) < 5:
                away.add(draw.choice([b for b in RACKS if b not in away]))
                lose(cluster, *away)
            case 1 if away:
                away.discard(back := draw.choice(sorted(away)))
                cluster.beat(back)
            case 2 if now.leader != NO_LEADER:
                isr = [b for b in now.replicas if b == now.leader or draw.random() < 0.6]
                alter(
                    cluster,
                    isr,
                    index=index,
                    leader=now.leader,
                    leader_epoch=now.leader_epoch,
                    partition_epoch=now.partition_epoch,
                )
            case 3:
                change(cluster, TOPIC, "t", (PLACEMENT, SET, draw.choice(PLACEMENTS)))
            case 4:
                elect(cluster, draw.randrange(2))
            case 5:
                reassign(cluster, draw.sample(sorted(RACKS), draw.randint(2, 3)), index=index)
        _check(cluster)
    assert cluster.reloaded() == cluster.image


def _check(cluster: Cluster) -> None:
    image = cluster.image
    observing = image.observing(image.placement("t"))
    for index in range(2):
        now = cluster.partition(index=index)
        trusted = {*now.isr, *now.eligible_leader_replicas}
        if trusted - observing:
            assert not trusted & observing
            assert now.leader not in observing
        assert now.leader == NO_LEADER or now.leader in now.isr
