"""Brokers register, beat, are fenced and leave; partitions follow."""

from typing import Any

import pytest

from scriba.controller.image import NO_LEADER, TOPIC
from scriba.controller.partitions.elections import AT_ONCE
from scriba.controller.plans import Cut, next_slice
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.admin import ElectLeadersRequest, TopicPartitions
from scriba.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequestFeature,
    ControllerRegistrationRequest,
    ControllerRegistrationRequestFeature,
    UnregisterBrokerRequest,
)
from scriba.wire.messages.stored import BrokerRegistrationChangeRecord, PartitionChangeRecord
from tests.unit.controller.rig import SET, alter, change


def refusal(cluster: Any, request: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        cluster.do(request) if not callable(request) else request()
    return refused.value.code


def test_broker_registers_fenced_and_is_unfenced_when_it_has_seen_that(make_cluster: Any) -> None:
    cluster = make_cluster()
    at = cluster.image.end_offset
    assert cluster.register(1).broker_epoch == at
    broker = cluster.image.brokers[1]
    assert (broker.epoch, broker.fenced, broker.registered_at) == (at, True, at)
    early = cluster.beat(1, current_metadata_offset=at - 1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    assert cluster.image.brokers[1].fenced
    now = cluster.beat(1)
    assert (now.is_caught_up, now.is_fenced, now.should_shut_down) == (True, False, False)
    assert not cluster.image.brokers[1].fenced


def test_registration_names_listeners_directories_and_features(cluster: Any) -> None:
    broker = cluster.image.brokers[1]
    assert broker.listeners[0] == ("PLAINTEXT", "broker1", 9092, 0)
    assert len(broker.directories) == 1
    assert broker.features["metadata.version"] == (17, 30)


def test_foreign_cluster_is_refused(cluster: Any) -> None:
    code = refusal(cluster, lambda: cluster.register(2, cluster_id="other"))
    assert code is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_second_broker_with_the_same_id_is_refused_while_the_first_lives(cluster: Any) -> None:
    other = {"incarnation_id": b"another one's id"}
    assert (
        refusal(cluster, lambda: cluster.register(1, **other))
        is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    )
    cluster.wait(9_000)
    assert cluster.register(1, **other).broker_epoch > 0


def test_broker_of_the_controllers_own_process_need_not_wait(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1, 2)
    again = make_cluster(cluster.reloaded(), own_broker=1)
    again.register(1, incarnation_id=b"after a kill -9!")
    other = {"incarnation_id": b"nobody knows it!", "log_dirs": [b"another's  disk."]}
    code = refusal(again, lambda: again.register(2, **other))
    assert code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_own_broker_that_lives_keeps_its_session_when_its_controller_takes_over(
    make_cluster: Any,
) -> None:
    cluster = make_cluster().with_brokers(1, 2)
    incarnation = cluster.image.brokers[1].incarnation_id
    again = make_cluster(cluster.reloaded(), own_broker=1, own_incarnation=incarnation)
    again.wait(8_500)
    assert not again.image.brokers[1].fenced
    impostor = {"incarnation_id": b"another process."}
    code = refusal(again, lambda: again.register(1, **impostor))
    assert code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    again.wait(500)
    assert again.image.brokers[1].fenced, "it gets no more than the others"


def test_own_broker_that_died_with_the_process_is_fenced_unless_its_successor_comes(
    make_cluster: Any,
) -> None:
    cluster = make_cluster().with_brokers(1, 2)
    again = make_cluster(cluster.reloaded(), own_broker=1, own_incarnation=b"not registered..")
    again.wait(500)
    assert again.image.brokers[1].fenced
    assert not again.image.brokers[2].fenced


def test_successor_of_a_broker_that_lost_its_connection_need_not_wait(cluster: Any) -> None:
    broker = cluster.image.brokers[1]
    successor = {"incarnation_id": b"after a kill -9!"}
    stranger = successor | {"log_dirs": [b"another's  disk."]}
    cluster.controller.broker_disconnected(1, broker.epoch - 1)
    code = refusal(cluster, lambda: cluster.register(1, **successor))
    assert code is ErrorCode.DUPLICATE_BROKER_REGISTRATION, "that was an earlier connection"
    cluster.controller.broker_disconnected(1, broker.epoch)
    code = refusal(cluster, lambda: cluster.register(1, **stranger))
    assert code is ErrorCode.DUPLICATE_BROKER_REGISTRATION, "it holds other directories"
    cluster.beat(1)
    code = refusal(cluster, lambda: cluster.register(1, **successor))
    assert code is ErrorCode.DUPLICATE_BROKER_REGISTRATION, "it came back"
    cluster.controller.broker_disconnected(1, broker.epoch)
    assert cluster.register(1, **successor).broker_epoch > broker.epoch


def test_new_controller_suspects_whom_it_has_not_heard(trio: Any) -> None:
    again = trio.restarted()
    epochs = {broker.id: broker.epoch for broker in again.image.brokers.values()}
    assert again.controller.suspects() == list(epochs.items())
    again.beat(2)
    assert again.controller.suspects() == [(1, epochs[1]), (3, epochs[3])]
    again.controller.broker_disconnected(2, epochs[2])
    assert len(again.controller.suspects()) == 3
    again.beat(1, want_fence=True)
    assert again.controller.suspects() == [(2, epochs[2]), (3, epochs[3])]


def test_broker_that_is_proven_dead_is_fenced_at_once(trio: Any) -> None:
    trio.create("t", 6, 3)
    broker, since = trio.image.brokers[2], trio.now
    trio.pass_time(20)
    trio.append(trio.controller.broker_lost(2, broker.epoch, since, trio.now))
    assert trio.image.brokers[2].fenced
    assert all(2 not in p.isr for p in trio.image.topics_by_name["t"].partitions.values())
    assert trio.register(2, incarnation_id=b"after a kill -9!").broker_epoch > broker.epoch


def test_proof_of_death_of_a_broker_that_spoke_since_is_none(trio: Any) -> None:
    broker, since = trio.image.brokers[2], trio.now
    trio.pass_time(20)
    assert not list(trio.controller.broker_lost(9, 1, since, trio.now)), "unknown"
    assert not list(trio.controller.broker_lost(2, broker.epoch - 1, since, trio.now))
    trio.beat(2)
    assert not list(trio.controller.broker_lost(2, broker.epoch, since, trio.now))
    assert not trio.image.brokers[2].fenced


def test_same_incarnation_keeps_its_epoch_and_its_standing(cluster: Any) -> None:
    before = cluster.image.brokers[1]
    assert cluster.register(1, rack="r2").broker_epoch == before.epoch
    after = cluster.image.brokers[1]
    assert (after.epoch, after.fenced, after.rack) == (before.epoch, False, "r2")


@pytest.mark.parametrize("log_dirs", [[], [bytes(16)], [bytes(15) + b"c"], [b"x" * 16, b"x" * 16]])
def test_bad_directories_are_refused(cluster: Any, log_dirs: list[bytes]) -> None:
    code = refusal(cluster, lambda: cluster.register(2, log_dirs=log_dirs))
    assert code is ErrorCode.INVALID_REGISTRATION


def test_directory_belongs_to_one_broker(cluster: Any) -> None:
    taken = list(cluster.image.brokers[1].directories)
    code = refusal(cluster, lambda: cluster.register(2, log_dirs=taken))
    assert code is ErrorCode.INVALID_REGISTRATION


@pytest.mark.parametrize(
    ("ranges", "code"),
    [
        ({}, ErrorCode.INVALID_REGISTRATION),
        ({"metadata.version": (1, 29)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"metadata.version": (30, 31), "new.thing": (1, 2)}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_broker_that_cannot_follow_the_cluster_stays_outside(
    cluster: Any, ranges: dict[str, tuple[int, int]], code: ErrorCode
) -> None:
    features = [
        BrokerRegistrationRequestFeature(
            name=name, min_supported_version=low, max_supported_version=high
        )
        for name, (low, high) in ranges.items()
    ]
    assert refusal(cluster, lambda: cluster.register(2, features=features)) is code


def test_heartbeats_of_strangers_and_of_the_past_are_refused(cluster: Any) -> None:
    epoch = cluster.image.brokers[1].epoch
    stranger = BrokerHeartbeatRequest(broker_id=9, broker_epoch=1)
    past = BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch - 1)
    assert refusal(cluster, stranger) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert refusal(cluster, past) is ErrorCode.STALE_BROKER_EPOCH


def test_quiet_heartbeat_writes_nothing(cluster: Any) -> None:
    cluster.beat(1)
    assert not cluster.records


def test_broker_that_falls_silent_is_fenced_and_its_leaderships_move(trio: Any) -> None:
    trio.create("t", 6, 3)
    trio.wait(9_000, 1, 3)
    assert trio.image.brokers[2].fenced
    for partition in trio.image.topics_by_name["t"].partitions.values():
        assert partition.leader in (1, 3)
        assert 2 not in partition.isr
        assert 2 in partition.replicas
    assert not trio.append(trio.controller.tick(trio.now)), "once is enough"


def test_controller_that_slept_itself_fences_nobody(trio: Any) -> None:
    trio.wait(6_000)
    trio.pass_time(60_000)
    assert not list(trio.controller.tick(trio.now))
    trio.wait(1_000)
    assert not any(broker.fenced for broker in trio.image.brokers.values())
    trio.wait(1_000)
    assert all(broker.fenced for broker in trio.image.brokers.values()), "9 s of listening passed"


def test_controller_that_slept_often_still_fences_who_is_silent(trio: Any) -> None:
    for _ in range(9):
        trio.pass_time(60_000)
        trio.beat(1)
        trio.beat(2)
        trio.append(trio.controller.tick(trio.now))
    assert [broker.fenced for broker in trio.image.brokers.values()] == [False, False, True]


def test_controller_that_slept_takes_nobody_for_dead_at_a_registration(cluster: Any) -> None:
    cluster.pass_time(60_000)
    code = refusal(cluster, lambda: cluster.register(1, incarnation_id=b"another process."))
    assert code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_all_silent_brokers_are_fenced_in_one_tick_with_one_election_each(
    make_cluster: Any,
) -> None:
    cluster = make_cluster().with_brokers(1, 2, 3, 4, 5)
    cluster.create("t", 10, 5)
    cluster.wait(8_500, 4, 5)
    cluster.pass_time(500)
    records = cluster.append(cluster.controller.tick(cluster.now))
    changed = [r.partition_id for r in records if isinstance(r, PartitionChangeRecord)]
    assert sorted(changed) == list(range(10))
    partitions = cluster.image.topics_by_name["t"].partitions.values()
    assert all(set(p.isr) == {4, 5} and p.leader in (4, 5) for p in partitions)
    assert all(p.leader_epoch <= 1 for p in partitions)
    assert [b.fenced for b in cluster.image.brokers.values()] == [True, True, True, False, False]


def test_new_controller_finishes_the_elections_that_its_predecessor_left(trio: Any) -> None:
    trio.create("t", -1, -1, assignments={0: [1]})
    trio.beat(1, want_fence=True)
    request = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=trio.image.brokers[1].epoch,
        current_metadata_offset=trio.image.last_offset,
    )
    records = list(trio.controller.handle(request, 1, trio.now).records)
    assert len(records) == 2, "unfenced, and elected"
    trio.append(records[:1])
    assert trio.partition().leader == NO_LEADER
    again = trio.restarted()
    again.wait(500)
    assert again.partition().leader == 1


def test_new_controller_finishes_a_shutdown_that_its_predecessor_began(trio: Any) -> None:
    trio.create("t", 6, 3)
    request = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=trio.image.brokers[1].epoch,
        current_metadata_offset=trio.image.last_offset,
        want_shut_down=True,
    )
    trio.append(list(trio.controller.handle(request, 1, trio.now).records)[:2])
    again = trio.restarted()
    again.beat(2), again.beat(3)
    assert again.beat(1, want_shut_down=True).should_shut_down is False
    assert all(p.leader != 1 for p in again.image.topics_by_name["t"].partitions.values())
    again.beat(2), again.beat(3)
    assert again.beat(1, want_shut_down=True).should_shut_down is True


def test_shutdown_need_not_wait_for_heartbeats_of_brokers_whose_position_is_known(
    trio: Any,
) -> None:
    trio.create("t", 6, 3)
    assert trio.beat(1, want_shut_down=True).should_shut_down is False
    end = trio.image.end_offset
    trio.controller.note_position(2, end)
    trio.controller.note_position(3, end - 1)
    assert trio.beat(1, want_shut_down=True).should_shut_down is False
    trio.controller.note_position(3, end)
    trio.controller.note_position(3, 5)
    assert trio.beat(1, want_shut_down=True).should_shut_down is True


def test_last_replica_stays_in_sync_without_a_leader_and_leads_when_it_returns(
    older: Any,
) -> None:
    older.create("t", -1, -1, assignments={0: [1], 1: [1]})
    older.beat(1, want_fence=True)
    for partition in older.image.topics_by_name["t"].partitions.values():
        assert (partition.leader, partition.isr) == (NO_LEADER, (1,))
        assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    older.beat(1)
    for partition in older.image.topics_by_name["t"].partitions.values():
        assert (partition.leader, partition.leader_epoch) == (1, 2)


def test_new_incarnation_loses_its_leaderships_until_it_is_unfenced(cluster: Any) -> None:
    cluster.create("t")
    cluster.wait(10_000)
    cluster.register(1, incarnation_id=b"after a kill -9!")
    assert cluster.image.topics_by_name["t"].partitions[0].leader == NO_LEADER
    cluster.beat(1)
    partition = cluster.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch) == (1, 2)


def test_controlled_shutdown_moves_leaderships_first_then_lets_go(trio: Any) -> None:
    trio.create("t", 6, 2)
    assert trio.beat(1, want_shut_down=True).should_shut_down is False
    assert trio.image.brokers[1].in_controlled_shutdown
    first = trio.records[0]
    assert isinstance(first, BrokerRegistrationChangeRecord)
    assert all(isinstance(record, PartitionChangeRecord) for record in trio.records[1:])
    partitions = trio.image.topics_by_name["t"].partitions.values()
    assert all(1 not in p.isr and p.leader != 1 for p in partitions)
    before = trio.image.last_offset - len(trio.records)
    for other in (2, 3):
        trio.beat(other, current_metadata_offset=before)
    assert trio.beat(1, want_shut_down=True).should_shut_down is False, "others do not know yet"
    for other in (2, 3):
        trio.beat(other)
    assert trio.beat(1, want_shut_down=True).should_shut_down is True
    assert trio.image.brokers[1].fenced


def test_single_broker_shuts_down_in_two_heartbeats(cluster: Any) -> None:
    cluster.create("t", 3)
    assert cluster.beat(1, want_shut_down=True).should_shut_down is False
    assert cluster.beat(1, want_shut_down=True).should_shut_down is True
    partitions = cluster.image.topics_by_name["t"].partitions.values()
    assert all((p.leader, p.isr) == (NO_LEADER, ()) for p in partitions)
    assert all(p.eligible_leader_replicas == (1,) for p in partitions), "it shut down cleanly"


def test_broker_without_leaderships_may_go_at_once(cluster: Any) -> None:
    assert cluster.beat(1, want_shut_down=True).should_shut_down is True


def test_no_new_replicas_for_a_broker_that_shuts_down(trio: Any) -> None:
    trio.create("t", 3, 3)
    trio.beat(1, want_shut_down=True)
    trio.create("u", 8, 2)
    assert all(1 not in p.replicas for p in trio.image.topics_by_name["u"].partitions.values())


def test_offline_directory_takes_its_replicas_out(make_cluster: Any) -> None:
    cluster = make_cluster()
    first, second = b"first directory.", b"second directory"
    cluster.register(1, log_dirs=[first, second])
    cluster.register(2)
    cluster.beat(1)
    cluster.beat(2)
    cluster.create("t", -1, -1, assignments={0: [1, 2]})
    topic = cluster.image.topics_by_name["t"]
    assert topic.partitions[0].directories[0] == bytes(15) + b"\x01", "the broker chooses"
    assert cluster.beat(1, offline_log_dirs=[second]).is_fenced is False
    assert cluster.image.brokers[1].directories == (first,)
    assert cluster.image.topics_by_name["t"].partitions[0].leader == 1


def test_cordoned_directories_are_kept_with_the_broker(cluster: Any) -> None:
    directory = cluster.image.brokers[1].directories[0]
    cluster.beat(1, cordoned_log_dirs=[directory])
    assert cluster.image.brokers[1].cordoned_directories == (directory,)
    cluster.beat(1, cordoned_log_dirs=[directory])
    assert not cluster.records
    cluster.beat(1, cordoned_log_dirs=[])
    assert cluster.image.brokers[1].cordoned_directories == ()


def test_broker_can_be_removed_for_good(trio: Any) -> None:
    trio.create("t", 3, 3)
    trio.do(UnregisterBrokerRequest(broker_id=2))
    assert 2 not in trio.image.brokers
    assert all(2 not in p.isr for p in trio.image.topics_by_name["t"].partitions.values())
    again = UnregisterBrokerRequest(broker_id=2)
    assert refusal(trio, again) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_controllers_register_too(cluster: Any) -> None:
    feature = ControllerRegistrationRequestFeature(
        name="metadata.version", min_supported_version=30, max_supported_version=30
    )
    cluster.do(ControllerRegistrationRequest(controller_id=7, features=[feature]))
    assert cluster.image.controllers[7].features == {"metadata.version": (30, 30)}


def elect(cluster: Any, kind: int, *partitions: int, topic: str = "t") -> dict[int, ErrorCode]:
    asked = [TopicPartitions(topic=topic, partitions=list(partitions))] if partitions else None
    response = cluster.do(ElectLeadersRequest(election_type=kind, topic_partitions=asked))
    return {
        result.partition_id: ErrorCode(result.error_code)
        for each in response.replica_election_results
        for result in each.partition_result
    }


def test_preferred_leader_is_elected_when_it_is_back_in_sync(trio: Any) -> None:
    trio.create("t", -1, -1, assignments={0: [2, 1]})
    trio.beat(2, want_fence=True)
    assert trio.image.topics_by_name["t"].partitions[0].leader == 1
    trio.beat(2)
    assert elect(trio, 0, 0) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert elect(trio, 0, 5) == {5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert elect(trio, 0, 0, topic="x") == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_election_where_none_is_needed(cluster: Any) -> None:
    cluster.create("t")
    assert elect(cluster, 0, 0) == {0: ErrorCode.ELECTION_NOT_NEEDED}
    assert elect(cluster, 1, 0) == {0: ErrorCode.ELECTION_NOT_NEEDED}
    assert elect(cluster, 0) == {}, "all partitions: those that are well are not listed"
    request = ElectLeadersRequest(election_type=9)
    assert refusal(cluster, request) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("kind", ["older", "trio"])
def test_unclean_election_takes_whoever_is_alive_and_says_so(
    kind: str, request: pytest.FixtureRequest
) -> None:
    cluster = request.getfixturevalue(kind)
    cluster.create("t", -1, -1, assignments={0: [2, 1]})
    cluster.beat(1, want_fence=True)
    cluster.beat(2, want_fence=True)
    partition = cluster.partition()
    assert partition.leader == NO_LEADER
    assert (partition.isr or partition.eligible_leader_replicas) == (2,)
    assert elect(cluster, 1, 0) == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    cluster.beat(1)
    assert cluster.partition().leader == NO_LEADER
    assert elect(cluster, 1, 0) == {0: ErrorCode.NONE}
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (1, (1,), 1)
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())


def test_partition_gets_a_leader_when_unclean_elections_are_allowed_later(trio: Any) -> None:
    trio.create("t", -1, -1, assignments={0: [2, 1]})
    trio.beat(1, want_fence=True)
    trio.beat(2, want_fence=True)
    trio.beat(1)
    trio.wait(500, 1, 3)
    assert trio.partition().leader == NO_LEADER
    change(trio, TOPIC, "t", ("unclean.leader.election.enable", SET, "true"))
    trio.wait(500, 1, 3)
    assert trio.partition().leader == 1


def test_topic_that_allows_unclean_elections_gets_one_by_itself(trio: Any) -> None:
    trio.create(
        "t",
        -1,
        -1,
        assignments={0: [2, 1]},
        configs={"unclean.leader.election.enable": "true"},
    )
    trio.beat(1, want_fence=True)
    trio.beat(2, want_fence=True)
    trio.beat(1)
    assert trio.image.topics_by_name["t"].partitions[0].leader == 1


def test_election_that_a_request_names_twice_is_held_once(trio: Any) -> None:
    trio.create("t", -1, -1, assignments={0: [1, 2]})
    trio.beat(1, want_fence=True)
    trio.beat(1)
    assert alter(trio, [2, 1], leader=2, leader_epoch=1, partition_epoch=1).error_code == 0
    twice = [TopicPartitions(topic="t", partitions=[0, 0])] * 2
    answer = trio.do(ElectLeadersRequest(election_type=0, topic_partitions=twice))
    (told,) = [each for topic in answer.replica_election_results for each in topic.partition_result]
    assert told.error_code == ErrorCode.NONE
    assert (trio.partition().leader, trio.partition().leader_epoch) == (1, 2)


def test_all_partitions_are_looked_at_for_their_elections_in_slices(trio: Any) -> None:
    """Most of them need none, so that records alone would not end a slice."""
    trio.create("t", 3 * AT_ONCE, 1)
    request = ElectLeadersRequest(election_type=0, topic_partitions=None)
    plan = iter(trio.controller.handle(request, 2, trio.now).records)
    cuts = [next_slice(plan, lambda _: False) for _ in range(3)]
    assert cuts == [([], Cut.BARRIER)] * 3
