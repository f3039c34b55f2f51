"""Leaders change their in-sync set by compare-and-set; brokers get producer ids."""

from typing import Any

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    BrokerState,
)
from tests.unit.controller.rig import alter, assign


@pytest.fixture
def led(trio: Any) -> Any:
    """Partition t-0 with replicas 1, 2, 3, led by 1."""
    trio.create("t", -1, -1, assignments={0: [1, 2, 3]})
    return trio


@pytest.mark.parametrize("version", [2, 3])
def test_isr_shrinks_and_grows(led: Any, version: int) -> None:
    answer = alter(led, [1, 3], version=version)
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 3], 1)
    assert led.image.topics_by_name["t"].partitions[0].isr == (1, 3)
    answer = alter(led, [1, 3, 2], partition_epoch=1, version=version)
    assert (answer.isr, answer.leader_id, answer.leader_epoch) == ([1, 3, 2], 1, 0)


def test_asking_for_what_is_already_so_writes_nothing(led: Any) -> None:
    assert alter(led, [1, 2, 3]).error_code == ErrorCode.NONE
    assert not led.records


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"leader": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": []}, ErrorCode.INVALID_REQUEST),
        ({"isr": [2, 3]}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1, 1]}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1, 9]}, ErrorCode.INVALID_REQUEST),
        ({"recovery": 1, "isr": [1]}, ErrorCode.INVALID_REQUEST),
        ({"index": 4}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"epochs": {2: 1}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_refused_changes_change_nothing(led: Any, changes: dict[str, Any], code: ErrorCode) -> None:
    assert alter(led, **({"isr": [1, 2]} | changes)).error_code == code
    assert not led.records


def test_partition_that_a_request_names_twice_changes_once(led: Any) -> None:
    """Both would pass the compare-and-set: the image does not show the first change yet."""
    wanted = [
        AlterPartitionRequestPartitionData(
            new_isr_with_epochs=[BrokerState(broker_id=broker) for broker in isr]
        )
        for isr in ([1, 2], [1, 3])
    ]
    topic = AlterPartitionRequestTopicData(
        topic_id=led.image.topics_by_name["t"].id, partitions=wanted
    )
    epoch = led.image.brokers[1].epoch
    request = AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=[topic])
    first, second = led.do(request).topics[0].partitions
    assert (first.error_code, first.isr) == (ErrorCode.NONE, [1, 2])
    assert second.error_code == ErrorCode.INVALID_REQUEST
    assert (led.partition().isr, led.partition().partition_epoch) == ((1, 2), 1)


def test_fenced_replica_cannot_join(led: Any) -> None:
    led.beat(2, want_fence=True)
    partition = led.image.topics_by_name["t"].partitions[0]
    assert partition.isr == (1, 3)
    answer = alter(led, [1, 2, 3], partition_epoch=partition.partition_epoch)
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA


def test_replica_whose_directory_failed_cannot_join(led: Any) -> None:
    first, second = b"first directory.", b"second directory"
    led.controller.broker_disconnected(2, led.image.brokers[2].epoch)
    known = led.image.brokers[2].directories[0]
    led.register(2, incarnation_id=b"with more disks.", log_dirs=[first, second, known])
    led.beat(2)
    assert assign(led, 2, "t", first) == ErrorCode.NONE
    before = led.partition().partition_epoch
    assert alter(led, [1, 2, 3], partition_epoch=before).error_code == ErrorCode.NONE
    led.beat(2, offline_log_dirs=[first])
    partition = led.partition()
    assert partition.isr == (1, 3)
    answer = alter(led, [1, 2, 3], partition_epoch=partition.partition_epoch)
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA


def test_request_of_a_dead_incarnation_has_no_effect(led: Any) -> None:
    request = AlterPartitionRequest(broker_id=1, broker_epoch=-5)
    with pytest.raises(KafkaError) as refused:
        led.do(request)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_leader_that_recovered_says_so_and_may_grow_again(led: Any) -> None:
    led.beat(2, want_fence=True)
    led.beat(3, want_fence=True)
    led.beat(1, want_fence=True)
    led.beat(2)
    from scriba.wire.messages.admin import ElectLeadersRequest

    led.do(ElectLeadersRequest(election_type=1, topic_partitions=None))
    partition = led.image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.leader_recovery_state) == (2, 1)
    state = {
        "leader": 2,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
    }
    assert alter(led, [2], recovery=0, **state).error_code == ErrorCode.NONE
    assert led.image.topics_by_name["t"].partitions[0].leader_recovery_state == 0


def test_broker_says_in_which_directory_a_replica_is(make_cluster: Any) -> None:
    cluster = make_cluster()
    first, second = b"first directory.", b"second directory"
    cluster.register(1, log_dirs=[first, second])
    cluster.beat(1)
    cluster.create("t", 1)
    assert assign(cluster, 1, "t", second) == ErrorCode.NONE
    assert cluster.partition().directories == (second,)
    assert cluster.partition().leader == 1
    assert assign(cluster, 1, "t", second, index=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert assign(cluster, 1, b"x" * 16, second) == ErrorCode.UNKNOWN_TOPIC_ID
    cluster.beat(1, offline_log_dirs=[second])
    assert cluster.partition().leader == -1


def test_replica_is_put_into_one_directory_by_one_request(make_cluster: Any) -> None:
    cluster = make_cluster()
    directories = b"first directory.", b"second directory"
    cluster.register(1, log_dirs=[*directories])
    cluster.beat(1)
    cluster.create("t", 1)
    topic = AssignReplicasToDirsRequestTopicData(
        topic_id=cluster.image.topics_by_name["t"].id,
        partitions=[AssignReplicasToDirsRequestPartitionData(partition_index=0)],
    )
    asked = [
        AssignReplicasToDirsRequestDirectoryData(id=each, topics=[topic]) for each in directories
    ]
    epoch = cluster.image.brokers[1].epoch
    answer = cluster.do(
        AssignReplicasToDirsRequest(broker_id=1, broker_epoch=epoch, directories=asked)
    )
    codes = [each.topics[0].partitions[0].error_code for each in answer.directories]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert cluster.partition().directories == directories[:1]


def test_producer_ids_come_in_blocks_that_never_overlap(trio: Any) -> None:
    taken: list[int] = []
    for broker in (1, 2, 1, 3):
        epoch = trio.image.brokers[broker].epoch
        response = trio.do(AllocateProducerIdsRequest(broker_id=broker, broker_epoch=epoch))
        taken += range(response.producer_id_start, response.producer_id_start + 1000)
        assert response.producer_id_len == 1000
    assert taken == list(range(4000))
    assert trio.reloaded().next_producer_id == 4000
