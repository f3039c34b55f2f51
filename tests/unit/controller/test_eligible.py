"""Replicas that left a short in-sync set may lead (KIP-966); those that crashed may not."""

from typing import Any

import pytest

from scriba.controller.image import (
    BROKER,
    DIRECTORY_LOST,
    NO_LEADER,
    RECOVERING,
    TOPIC,
    PartitionImage,
)
from scriba.controller.partitions import elections
from scriba.errors import ErrorCode
from scriba.wire.messages.brokers import UnregisterBrokerRequest
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from scriba.wire.messages.stored import ConfigRecord
from tests.unit.controller.rig import (
    DELETE,
    SET,
    WITHOUT_ELIGIBLE,
    Cluster,
    alter,
    assign,
    change,
    replace,
    update,
)


@pytest.fixture
def led(trio: Any) -> Cluster:
    """Partition t-0 with replicas 1, 2, 3, two of which must be in sync, led by 1."""
    trio.create("t", -1, -1, assignments={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
    return trio  # type: ignore[no-any-return]


def fence(cluster: Any, *brokers: int) -> PartitionImage:
    for broker in brokers:
        cluster.beat(broker, want_fence=True)
    return cluster.partition()  # type: ignore[no-any-return]


def restart(cluster: Any, broker: int, *, clean: bool) -> PartitionImage:
    """The broker comes back as a new process that did or did not shut down in good order."""
    known = cluster.image.brokers[broker]
    cluster.controller.broker_disconnected(broker, known.epoch)
    cluster.register(
        broker,
        incarnation_id=cluster.controller.state.uuid(),
        previous_broker_epoch=known.epoch if clean else -1,
    )
    return cluster.partition()  # type: ignore[no-any-return]


def sets(partition: PartitionImage) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return partition.leader, partition.isr, partition.eligible_leader_replicas


def test_nobody_is_eligible_beside_an_isr_that_is_large_enough(led: Any) -> None:
    assert sets(fence(led, 3)) == (1, (1, 2), ())


def test_who_leaves_a_short_isr_is_eligible_and_the_last_leaves_it_empty(led: Any) -> None:
    assert sets(fence(led, 3, 2)) == (1, (1,), (2,))
    partition = fence(led, 1)
    assert sets(partition) == (NO_LEADER, (), (1, 2))
    assert partition.last_known_elr == (1,)


def test_an_eligible_replica_leads_and_the_election_is_clean(led: Any) -> None:
    fence(led, 3, 2, 1)
    led.beat(3)
    assert sets(led.partition()) == (NO_LEADER, (), (1, 2)), "3 left while the others moved on"
    led.beat(2)
    partition = led.partition()
    assert sets(partition) == (2, (2,), (1,))
    assert (partition.leader_recovery_state, partition.last_known_elr) == (0, ())


def test_isr_that_has_grown_enough_ends_the_eligibility(led: Any) -> None:
    fence(led, 3, 2, 1)
    led.beat(2), led.beat(3)
    partition = led.partition()
    epochs = {"leader_epoch": partition.leader_epoch, "partition_epoch": partition.partition_epoch}
    assert alter(led, [2, 3], leader=2, **epochs).error_code == ErrorCode.NONE
    assert sets(led.partition()) == (2, (2, 3), ())


def test_leader_that_drops_a_follower_leaves_it_eligible(led: Any) -> None:
    assert alter(led, [1]).error_code == ErrorCode.NONE
    assert sets(led.partition()) == (1, (1,), (2, 3))
    led.beat(1, want_fence=True)
    assert sets(led.partition()) == (2, (2,), (1, 3))


def test_with_one_replica_required_an_elected_one_is_alone(trio: Any) -> None:
    """Both leave at once, both have everything; the one that leads then moves on alone."""
    trio.create("t", -1, -1, assignments={0: [1, 2]}, configs={"min.insync.replicas": "1"})
    trio.wait(8_500, 3)
    trio.pass_time(500)
    trio.beat(3)
    trio.append(trio.controller.tick(trio.now))
    assert sets(trio.partition()) == (NO_LEADER, (), (1, 2))
    trio.beat(2)
    assert sets(trio.partition()) == (2, (2,), ())


def test_clean_restart_keeps_the_eligibility(led: Any) -> None:
    fence(led, 3, 2, 1)
    assert sets(restart(led, 2, clean=True)) == (NO_LEADER, (), (1, 2))
    led.beat(2)
    assert sets(led.partition()) == (2, (2,), (1,))


def test_unclean_restart_ends_the_eligibility(led: Any) -> None:
    fence(led, 3, 2, 1)
    assert sets(restart(led, 2, clean=False)) == (NO_LEADER, (), (1,))
    led.beat(2)
    assert led.partition().leader == NO_LEADER, "1 is awaited"
    led.beat(1)
    partition = led.partition()
    assert (*sets(partition), partition.leader_recovery_state) == (1, (1,), (), 0)


def test_epoch_of_an_older_clean_shutdown_is_none(led: Any) -> None:
    older = led.image.brokers[2].epoch
    restart(led, 2, clean=True)
    led.beat(2)
    assert alter(led, [1, 2, 3], partition_epoch=1).error_code == ErrorCode.NONE
    fence(led, 3, 2, 1)
    led.controller.broker_disconnected(2, led.image.brokers[2].epoch)
    led.register(2, incarnation_id=b"from a backup...", previous_broker_epoch=older)
    assert led.partition().eligible_leader_replicas == (1,)


def test_unclean_restart_takes_a_broker_out_of_the_isr_as_well(led: Any) -> None:
    """It came back before anybody noticed that it had gone."""
    assert sets(restart(led, 1, clean=False)) == (2, (2, 3), ())
    assert sets(restart(led, 2, clean=False)) == (3, (3,), ())


def test_last_known_leader_is_elected_when_all_restarted_uncleanly(led: Any) -> None:
    fence(led, 3, 2, 1)
    for broker in (1, 2, 3):
        restart(led, broker, clean=False)
    partition = led.partition()
    assert (*sets(partition), partition.last_known_elr) == (NO_LEADER, (), (), (1,))
    led.beat(2), led.beat(3)
    assert led.partition().leader == NO_LEADER
    led.beat(1)
    partition = led.partition()
    assert sets(partition) == (1, (1,), ())
    assert partition.leader_recovery_state == RECOVERING, "records may be lost: it is flagged"
    assert partition.last_known_elr == ()


def test_the_last_leader_is_remembered_while_a_replica_in_sync_is_awaited(led: Any) -> None:
    """2 is in sync and cannot lead: its broker runs without the directory that holds it."""
    known, second = led.image.brokers[2], b"second directory"
    led.register(2, incarnation_id=known.incarnation_id, log_dirs=[second])
    partition = fence(led, 3, 1)
    assert (*sets(partition), partition.last_known_elr) == (NO_LEADER, (2,), (1,), (1,))
    led.controller.broker_disconnected(2, known.epoch)
    directories = [*known.directories, second]
    led.register(2, incarnation_id=b"after a crash...", log_dirs=directories)
    restart(led, 1, clean=False)
    led.beat(2)
    assert led.partition().leader == NO_LEADER, "it was never the leader"
    led.beat(1)
    assert led.partition().leader == 1


def test_replica_in_a_directory_that_the_broker_came_back_without_is_not_eligible(
    led: Any,
) -> None:
    """A clean shutdown tells of the directories that are there; another one begins empty."""
    first, second = led.image.brokers[2].directories[0], b"second directory"
    led.register(2, incarnation_id=led.image.brokers[2].incarnation_id, log_dirs=[first, second])
    led.create("u", -1, -1, assignments={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
    assert assign(led, 2, "u", second) == ErrorCode.NONE
    fence(led, 3, 2, 1)
    assert led.partition("t").eligible_leader_replicas == (1, 2)
    assert led.partition("u").eligible_leader_replicas == (1, 2)
    led.controller.broker_disconnected(2, led.image.brokers[2].epoch)
    led.register(
        2,
        incarnation_id=b"without one disk",
        previous_broker_epoch=led.image.brokers[2].epoch,
        log_dirs=[first, b"an empty one...."],
    )
    assert led.partition("t").eligible_leader_replicas == (1, 2)
    assert led.partition("u").eligible_leader_replicas == (1,)


def test_replica_that_was_in_sync_in_a_directory_that_is_missing_now_is_not_eligible(
    led: Any,
) -> None:
    """Its process was killed and comes back without a disk, before anybody has fenced it."""
    first, second = led.image.brokers[2].directories[0], b"second directory"
    led.register(2, incarnation_id=led.image.brokers[2].incarnation_id, log_dirs=[first, second])
    fence(led, 3)
    assert assign(led, 2, "t", second) == ErrorCode.NONE
    led.controller.broker_disconnected(2, led.image.brokers[2].epoch)
    led.register(
        2,
        incarnation_id=b"without one disk",
        previous_broker_epoch=led.image.brokers[2].epoch,
        log_dirs=[first],
    )
    assert sets(led.partition()) == (1, (1,), ())
    led.beat(2)
    assert assign(led, 2, "t", first) == ErrorCode.NONE
    assert sets(fence(led, 1)) == (NO_LEADER, (), (1,)), "the other one is empty"


def test_a_single_broker_that_lost_its_power_leads_again_and_it_is_flagged(cluster: Any) -> None:
    cluster.create("t")
    assert sets(restart(cluster, 1, clean=False)) == (NO_LEADER, (), ())
    cluster.beat(1)
    partition = cluster.partition()
    assert (*sets(partition), partition.leader_recovery_state) == (1, (1,), (), RECOVERING)


def test_a_single_broker_that_shut_down_leads_again_without_a_flag(cluster: Any) -> None:
    cluster.create("t")
    cluster.beat(1, want_shut_down=True)
    cluster.beat(1, want_shut_down=True)
    restart(cluster, 1, clean=True)
    cluster.beat(1)
    partition = cluster.partition()
    assert (*sets(partition), partition.leader_recovery_state) == (1, (1,), (), 0)


def test_unclean_election_is_the_last_resort_where_it_is_allowed(led: Any) -> None:
    change(led, TOPIC, "t", ("unclean.leader.election.enable", SET, "true"))
    fence(led, 3, 2)
    assert sets(led.partition()) == (1, (1,), (2,))
    led.beat(2), led.beat(3)
    assert sets(fence(led, 1)) == (2, (2,), (1,)), "an eligible one is better"
    assert sets(fence(led, 2)) == (3, (3,), ()), "then anybody"
    assert led.partition().leader_recovery_state == RECOVERING


def test_controlled_shutdown_leaves_the_broker_eligible(led: Any) -> None:
    fence(led, 3, 2)
    led.beat(1, want_shut_down=True)
    assert sets(led.partition()) == (NO_LEADER, (), (1, 2))
    led.beat(1, want_shut_down=True)
    restart(led, 1, clean=True)
    led.beat(1)
    assert sets(led.partition()) == (1, (1,), (2,))


def test_broker_that_is_unregistered_is_eligible_for_nothing(led: Any) -> None:
    fence(led, 3, 2, 1)
    led.do(UnregisterBrokerRequest(broker_id=2))
    assert sets(led.partition()) == (NO_LEADER, (), (1,))


def test_replica_on_a_failed_disk_does_not_lead(led: Any) -> None:
    directories = [b"first directory.", b"second directory"]
    known = led.image.brokers[1]
    restart(led, 1, clean=True)
    led.register(1, incarnation_id=led.image.brokers[1].incarnation_id, log_dirs=directories)
    led.beat(1)
    led.create("u", -1, -1, assignments={0: [1]})
    assert assign(led, 1, "u", directories[0]) == ErrorCode.NONE
    led.beat(1, offline_log_dirs=directories[:1])
    assert known.epoch < led.image.brokers[1].epoch
    assert not led.image.brokers[1].fenced
    partition = led.partition("u")
    assert (*sets(partition), partition.last_known_elr) == (NO_LEADER, (), (), (1,))
    led.wait(500, 1, 2, 3)
    assert led.partition("u").leader == NO_LEADER
    assert assign(led, 1, "u", directories[1]) == ErrorCode.NONE
    partition = led.partition("u")
    assert (partition.leader, partition.leader_recovery_state) == (1, RECOVERING), "it is empty"


def test_broker_that_lost_every_disk_is_fenced_until_it_has_one(led: Any) -> None:
    fence(led, 3, 2)
    directories = list(led.image.brokers[1].directories)
    assert led.beat(1, offline_log_dirs=directories).is_fenced
    assert sets(led.partition()) == (NO_LEADER, (), (1, 2))
    assert led.beat(1, offline_log_dirs=directories).is_fenced
    assert not led.records
    led.beat(2)
    assert sets(led.partition()) == (2, (2,), (1,))
    assert not led.beat(1).is_fenced


def test_replica_that_is_eligible_is_not_any_more_when_its_files_are_damaged(led: Any) -> None:
    fence(led, 3, 2)
    assert assign(led, 2, "t", DIRECTORY_LOST) == ErrorCode.NONE
    assert sets(led.partition()) == (1, (1,), ())
    known = list(led.image.brokers[2].directories)
    assert assign(led, 2, "t", known[0]) == ErrorCode.NONE
    led.beat(2)
    assert sets(fence(led, 1)) == (NO_LEADER, (), (1,)), "it has nothing to lead with"


def test_eligible_replica_on_a_disk_that_failed_is_not_eligible_any_more(led: Any) -> None:
    fence(led, 3, 2)
    epoch = led.image.brokers[2].incarnation_id
    known = list(led.image.brokers[2].directories)
    led.register(2, incarnation_id=epoch, log_dirs=[*known, b"second directory"])
    led.beat(2)
    assert sets(led.partition()) == (1, (1,), (2,))
    led.beat(2, offline_log_dirs=known)
    assert sets(led.partition()) == (1, (1,), ())


def test_replica_on_a_disk_that_failed_as_its_broker_leaves_is_not_eligible(led: Any) -> None:
    """The heartbeat that asks to leave is the first one that names the disk."""
    known = list(led.image.brokers[1].directories)
    incarnation = led.image.brokers[1].incarnation_id
    led.register(1, incarnation_id=incarnation, log_dirs=[*known, b"second directory"])
    fence(led, 3)
    led.beat(1, want_shut_down=True, offline_log_dirs=known)
    assert sets(led.partition()) == (2, (2,), ())


def test_replica_on_a_disk_that_failed_while_its_broker_was_away_is_not_elected(led: Any) -> None:
    """The heartbeat that has the broker unfenced is the first one that names the disk."""
    known = list(led.image.brokers[1].directories)
    incarnation = led.image.brokers[1].incarnation_id
    led.register(1, incarnation_id=incarnation, log_dirs=[*known, b"second directory"])
    assert sets(fence(led, 3, 2, 1)) == (NO_LEADER, (), (1, 2))
    led.beat(1, offline_log_dirs=known)
    assert not led.image.brokers[1].fenced
    assert sets(led.partition()) == (NO_LEADER, (), (2,))
    led.beat(2)
    assert sets(led.partition()) == (2, (2,), ())


def test_replica_put_into_a_directory_that_failed_meanwhile_leaves_the_isr(led: Any) -> None:
    assert assign(led, 1, "t", b"a failed one....") == ErrorCode.NONE
    assert sets(led.partition()) == (2, (2, 3), ())


# ---- min.insync.replicas ----


def test_lower_min_isr_ends_the_eligibility_in_one_batch(led: Any) -> None:
    fence(led, 3, 2)
    answer = change(led, TOPIC, "t", ("min.insync.replicas", SET, "1"))
    assert answer.error_code == ErrorCode.NONE
    assert [type(record).__name__ for record in led.records] == [
        "ConfigRecord",
        "PartitionChangeRecord",
    ]
    assert sets(led.partition()) == (1, (1,), ())


def test_lower_min_isr_of_the_cluster_leaves_topics_with_their_own_alone(led: Any) -> None:
    change(led, BROKER, "", ("min.insync.replicas", SET, "2"))
    led.create("u", -1, -1, assignments={0: [1, 2, 3]})
    fence(led, 3, 2)
    assert led.partition("u").eligible_leader_replicas == (2,)
    change(led, BROKER, "", ("min.insync.replicas", SET, "1"))
    assert led.partition("u").eligible_leader_replicas == ()
    assert led.partition("t").eligible_leader_replicas == (2,)
    change(led, TOPIC, "t", ("min.insync.replicas", DELETE, None))
    assert led.partition("t").eligible_leader_replicas == ()


@pytest.mark.parametrize(("kind", "name", "looked_up"), [(TOPIC, "t", ["t"]), (BROKER, "", ["u"])])
def test_change_of_min_isr_looks_once_at_the_rules_of_the_topics_that_it_concerns(
    led: Any, monkeypatch: pytest.MonkeyPatch, kind: int, name: str, looked_up: list[str]
) -> None:
    change(led, BROKER, "", ("min.insync.replicas", SET, "2"))
    led.create("u", -1, -1, assignments={at: [1, 2, 3] for at in range(5)})
    fence(led, 3, 2)
    asked: list[str] = []

    def count(state: Any, topic: str, *own: Any) -> elections.Rules:
        asked.append(topic)
        return rules(state, topic, *own)

    rules = elections.rules
    monkeypatch.setattr(elections, "rules", count)
    change(led, kind, name, ("min.insync.replicas", SET, "1"))
    assert asked == looked_up


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "")])
def test_what_a_change_of_min_isr_does_to_partitions_is_reckoned_as_it_is_pulled(
    led: Any, kind: int, name: str
) -> None:
    change(led, BROKER, "", ("min.insync.replicas", SET, "2"))
    fence(led, 3, 2)
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequestAlterableConfig(
                name="min.insync.replicas", config_operation=SET, value="1"
            )
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    index = led.controller.state.partitions
    index.visited = 0
    plan = iter(led.controller.handle(request, request.VERSIONS.high, led.now).records)
    assert isinstance(next(plan), ConfigRecord)
    assert not index.visited
    assert len(list(plan)) == (kind == TOPIC)
    assert index.visited


def test_topic_that_gets_a_min_isr_of_its_own_is_not_judged_by_that_of_the_cluster(
    led: Any,
) -> None:
    """Also where one request sets both."""
    change(led, TOPIC, "t", ("min.insync.replicas", DELETE, None))
    change(led, BROKER, "", ("min.insync.replicas", SET, "2"))
    fence(led, 3, 2)
    resources = [
        IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                IncrementalAlterConfigsRequestAlterableConfig(
                    name="min.insync.replicas", config_operation=SET, value=value
                )
            ],
        )
        for kind, name, value in ((TOPIC, "t", "2"), (BROKER, "", "1"))
    ]
    answer = led.do(IncrementalAlterConfigsRequest(resources=resources))
    assert [each.error_code for each in answer.responses] == [ErrorCode.NONE] * 2
    assert led.image.config(BROKER, "")["min.insync.replicas"] == "1"
    assert led.partition().eligible_leader_replicas == (2,)


def test_eligible_replicas_outlive_a_change_while_nobody_leads(led: Any) -> None:
    """Kafka forgets them, and the partition stays offline until somebody forces an election."""
    fence(led, 3, 2, 1)
    change(led, TOPIC, "t", ("min.insync.replicas", SET, "3"))
    assert sets(led.partition()) == (NO_LEADER, (), (1, 2))
    led.beat(1)
    assert led.partition().leader == 1


def test_min_isr_is_never_that_of_one_broker(trio: Any) -> None:
    answer = change(trio, BROKER, "1", ("min.insync.replicas", SET, "2"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    answer = change(trio, BROKER, "", ("min.insync.replicas", DELETE, None))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert replace(trio, BROKER, "", {"log.retention.ms": "5000"}) == ErrorCode.INVALID_CONFIG
    both: dict[str, str | None] = {"log.retention.ms": "5000", "min.insync.replicas": "2"}
    assert replace(trio, BROKER, "", both) == ErrorCode.NONE


def test_new_cluster_writes_its_min_isr_down(make_cluster: Any) -> None:
    assert make_cluster().image.config(BROKER, "") == {"min.insync.replicas": "1"}
    given = make_cluster(min_insync_replicas="2")
    assert given.image.config(BROKER, "") == {"min.insync.replicas": "2"}
    older = make_cluster(supported=WITHOUT_ELIGIBLE)
    assert older.image.config(BROKER, "") == {}


# ---- the feature is turned on and off ----


def turned_on(older: Any) -> Cluster:
    newer = Cluster(older.reloaded())
    for broker in older.image.brokers:
        restart_as_newer(newer, broker)
    answer = update(newer, eligible_leader_replicas_version=1)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return newer


def restart_as_newer(cluster: Cluster, broker: int) -> None:
    cluster.register(broker, incarnation_id=cluster.controller.state.uuid())
    cluster.beat(broker)


def test_older_cluster_turns_the_feature_on(older: Any) -> None:
    older.create("t", -1, -1, assignments={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
    change(older, BROKER, "2", ("min.insync.replicas", SET, "3"))
    newer = turned_on(older)
    assert newer.image.config(BROKER, "") == {"min.insync.replicas": "1"}
    assert newer.image.config(BROKER, "2") == {}
    leader = newer.partition().leader
    assert newer.partition().isr == (leader,)
    newer.beat(leader, want_fence=True)
    assert sets(newer.partition()) == (NO_LEADER, (), (leader,))


def test_turning_the_feature_off_leaves_somebody_in_sync(led: Any) -> None:
    led.create("u", -1, -1, assignments={0: [1, 2]})
    fence(led, 3, 2, 1)
    restart(led, 1, clean=False)
    assert led.partition("u").last_known_elr == (1,)
    assert led.partition("u").eligible_leader_replicas == ()
    answer = update(led, 2, eligible_leader_replicas_version=0)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    assert sets(led.partition("t")) == (NO_LEADER, (2,), ())
    assert sets(led.partition("u")) == (NO_LEADER, (1,), ())
    assert led.partition("t").last_known_elr == led.partition("u").last_known_elr == ()
    assert led.reloaded() == led.image
    led.beat(1), led.beat(2)
    assert (led.partition("t").leader, led.partition("u").leader) == (2, 1)


def test_leaderless_partition_of_an_older_cluster_knows_its_last_leader(older: Any) -> None:
    older.create("t", -1, -1, assignments={0: [1]})
    older.beat(1, want_fence=True)
    newer = Cluster(older.reloaded())
    restart_as_newer(newer, 2)
    restart_as_newer(newer, 3)
    newer.register(1, incarnation_id=b"one that is new.")
    assert update(newer, eligible_leader_replicas_version=1).error_code == ErrorCode.NONE
    newer.register(1, incarnation_id=b"and one more....")
    assert newer.partition().last_known_elr == (1,)
    newer.beat(1)
    assert newer.partition().leader == 1
