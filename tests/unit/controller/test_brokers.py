"""Brokers register, beat, are fenced and leave; partitions follow."""

from typing import Any

import pytest

from scriba.controller.image import NO_LEADER
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
    assert broker.features["metadata.version"] == (30, 30)


def test_foreign_cluster_is_refused(cluster: Any) -> None:
    code = refusal(cluster, lambda: cluster.register(2, cluster_id="other"))
    assert code is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_second_broker_with_the_same_id_is_refused_while_the_first_lives(cluster: Any) -> None:
    other = {"incarnation_id": b"another one's id"}
    assert (
        refusal(cluster, lambda: cluster.register(1, **other))
        is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    )
    cluster.pass_time(9_000)
    assert cluster.register(1, **other).broker_epoch > 0


def test_broker_of_the_controllers_own_process_need_not_wait(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1, 2)
    again = make_cluster(cluster.reloaded(), own_broker=1)
    again.register(1, incarnation_id=b"after a kill -9!")
    assert (
        refusal(again, lambda: again.register(2, incarnation_id=b"nobody knows it!"))
        is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    )


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
    for _ in range(4):
        trio.pass_time(3_000)
        trio.beat(1)
        trio.beat(3)
        trio.records = trio.append(trio.controller.tick(trio.now))
    assert trio.image.brokers[2].fenced
    for partition in trio.image.topics_by_name["t"].partitions.values():
        assert partition.leader in (1, 3)
        assert 2 not in partition.isr
        assert 2 in partition.replicas
    assert not trio.append(trio.controller.tick(trio.now)), "once is enough"


def test_controller_that_slept_itself_fences_nobody(trio: Any) -> None:
    trio.pass_time(60_000)
    assert not list(trio.controller.tick(trio.now))
    trio.pass_time(3_000)
    assert not list(trio.controller.tick(trio.now))


def test_last_replica_stays_in_sync_without_a_leader_and_leads_when_it_returns(
    cluster: Any,
) -> None:
    cluster.create("t", 2)
    cluster.beat(1, want_fence=True)
    for partition in cluster.image.topics_by_name["t"].partitions.values():
        assert (partition.leader, partition.isr) == (NO_LEADER, (1,))
        assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    cluster.beat(1)
    for partition in cluster.image.topics_by_name["t"].partitions.values():
        assert (partition.leader, partition.leader_epoch) == (1, 2)


def test_new_incarnation_loses_its_leaderships_until_it_is_unfenced(cluster: Any) -> None:
    cluster.create("t")
    cluster.pass_time(10_000)
    cluster.register(1, incarnation_id=b"after a kill -9!")
    assert cluster.image.topics_by_name["t"].partitions[0].leader == NO_LEADER
    cluster.beat(1)
    partition = cluster.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch) == (1, 2)


def test_controlled_shutdown_moves_leaderships_first_then_lets_go(trio: Any) -> None:
    trio.create("t", 6, 2)
    assert trio.beat(1, want_shut_down=True).should_shut_down is False
    assert trio.image.brokers[1].in_controlled_shutdown
    change = trio.records[0]
    assert isinstance(change, BrokerRegistrationChangeRecord)
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
    assert all((p.leader, p.isr) == (NO_LEADER, (1,)) for p in partitions)


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


def test_unclean_election_takes_whoever_is_alive_and_says_so(trio: Any) -> None:
    trio.create("t", -1, -1, assignments={0: [2, 1]})
    trio.beat(1, want_fence=True)
    trio.beat(2, want_fence=True)
    partition = trio.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.isr) == (NO_LEADER, (2,))
    assert elect(trio, 1, 0) == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    trio.beat(1)
    assert trio.image.topics_by_name["t"].partitions[0].leader == NO_LEADER
    assert elect(trio, 1, 0) == {0: ErrorCode.NONE}
    partition = trio.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (1, (1,), 1)


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
