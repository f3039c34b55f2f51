"""Topics are made, widened and deleted; every refusal has Kafka's code."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from scriba.controller.image import BROKER, TOPIC
from scriba.controller.topics import MAX_PARTITIONS_PER_REQUEST
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from scriba.wire.messages.stored import ConfigRecord, PartitionRecord, TopicRecord
from tests.unit.controller.rig import SET, change


def test_new_topic_is_a_topic_record_then_configs_then_partitions(cluster: Any) -> None:
    result = cluster.create("orders", 2, configs={"retention.ms": "1000"})
    assert result.error_code == ErrorCode.NONE
    assert (result.num_partitions, result.replication_factor) == (2, 1)
    assert [type(r) for r in cluster.records] == [
        TopicRecord,
        ConfigRecord,
        PartitionRecord,
        PartitionRecord,
    ]
    directory = cluster.image.brokers[1].directories[0]
    partition = cluster.image.topics_by_name["orders"].partitions[1]
    assert partition.replicas == partition.isr == (1,)
    assert partition.directories == (directory,)
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 0, 0)
    assert cluster.image.topics_by_id[result.topic_id].name == "orders"
    shown = {config.name: config for config in result.configs}
    assert shown["retention.ms"].value == "1000"
    assert shown["segment.bytes"].value == str(1 << 30)


def test_defaults_come_from_the_node(make_cluster: Any) -> None:
    cluster = make_cluster(num_partitions="7").with_brokers(1)
    assert cluster.create("t", -1, -1).num_partitions == 7


def test_partitions_are_spread_over_all_brokers(trio: Any) -> None:
    trio.create("t", 30, 2)
    partitions = trio.image.topics_by_name["t"].partitions.values()
    leaders = [p.leader for p in partitions]
    assert {leaders.count(broker) for broker in (1, 2, 3)} == {10}
    held = [broker for p in partitions for broker in p.replicas]
    assert all(len(set(p.replicas)) == 2 for p in partitions)
    assert {broker: held.count(broker) for broker in (1, 2, 3)} == {1: 20, 2: 20, 3: 20}


def test_fenced_broker_gets_replicas_only_when_needed_and_never_leads(trio: Any) -> None:
    trio.beat(2, want_fence=True)
    trio.create("two", 12, 2)
    trio.create("three", 12, 3)
    assert all(2 not in p.replicas for p in trio.image.topics_by_name["two"].partitions.values())
    for partition in trio.image.topics_by_name["three"].partitions.values():
        assert set(partition.replicas) == {1, 2, 3}
        assert partition.leader != 2
        assert 2 not in partition.isr


def in_racks(make_cluster: Any, racks: Mapping[int, str | None]) -> Any:
    cluster = make_cluster()
    for broker, rack in racks.items():
        cluster.register(broker, rack=rack)
        cluster.beat(broker)
    return cluster


def test_replicas_of_a_partition_are_in_different_racks(make_cluster: Any) -> None:
    racks = {broker: f"r{broker % 3}" for broker in range(1, 10)}
    cluster = in_racks(make_cluster, racks)
    for factor in (2, 3):
        cluster.create(f"t{factor}", 90, factor)
        partitions = cluster.image.topics_by_name[f"t{factor}"].partitions.values()
        assert all(len({racks[b] for b in p.replicas}) == factor for p in partitions)
        leaders = Counter(p.leader for p in partitions)
        assert leaders == dict.fromkeys(range(1, 10), 10)
        held = Counter(b for p in partitions for b in p.replicas)
        assert held == dict.fromkeys(range(1, 10), 10 * factor)
        assert len({frozenset(p.replicas) for p in partitions}) > 9, "not always the same beside"


def test_more_replicas_than_racks_share_them_evenly(make_cluster: Any) -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: None}
    cluster = in_racks(make_cluster, racks)
    cluster.create("t", 40, 4)
    for partition in cluster.image.topics_by_name["t"].partitions.values():
        assert len(set(partition.replicas)) == 4
        assert 6 in partition.replicas, "brokers without a rack are one"
        used = Counter(racks[b] for b in partition.replicas)
        assert max(used.values()) == 2
    leaders = [p.leader for p in cluster.image.topics_by_name["t"].partitions.values()]
    assert {leaders.count(broker) for broker in racks} == {6, 7}, "racks differ, leaders do not"
    cluster.create("all", 2, 6)
    for partition in cluster.image.topics_by_name["all"].partitions.values():
        assert set(partition.replicas) == set(racks)


def test_fenced_brokers_come_last_in_their_rack_and_lead_in_none(make_cluster: Any) -> None:
    cluster = in_racks(make_cluster, {1: "a", 2: "a", 3: "b", 4: "c"})
    for broker in (2, 3):
        cluster.beat(broker, want_fence=True)
    cluster.create("t", 20, 3)
    for partition in cluster.image.topics_by_name["t"].partitions.values():
        assert set(partition.replicas) == {1, 3, 4}, "a rack of its own counts for more"
        assert partition.leader in (1, 4)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a" * 250, "x\0", "topic:name"])
def test_illegal_names_are_refused(cluster: Any, name: str) -> None:
    assert cluster.create(name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not cluster.image.topics_by_name


def test_longest_legal_name_is_taken(cluster: Any) -> None:
    assert cluster.create("a" * 249).error_code == ErrorCode.NONE


def test_dot_and_underscore_collide(cluster: Any) -> None:
    cluster.create("my.topic_one")
    assert cluster.create("my_topic.one").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert cluster.create("my.topic_one").error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert cluster.create("my-topic-one").error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (0, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (MAX_PARTITIONS_PER_REQUEST + 1, 1, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_sizes_out_of_range(cluster: Any, partitions: int, factor: int, code: ErrorCode) -> None:
    assert cluster.create("t", partitions, factor).error_code == code
    assert not cluster.records


def test_no_broker_no_topic(make_cluster: Any) -> None:
    cluster = make_cluster()
    assert cluster.create("t").error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.register(1)
    assert cluster.create("t").error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"retention.m": "1"}, "retention.ms"),
        ({"retention.ms": None}, "retention.ms"),
        ({"cleanup.policy": "x" * 40_000}, "32767"),
    ],
)
def test_bad_configs_are_told(cluster: Any, configs: dict[str, str | None], said: str) -> None:
    result = cluster.create("t", configs=configs)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert said in result.error_message


def test_validate_only_checks_and_changes_nothing(cluster: Any) -> None:
    assert cluster.create("t", 3, validate_only=True).num_partitions == 3
    assert cluster.create("t", 0, validate_only=True).error_code == ErrorCode.INVALID_PARTITIONS
    assert not cluster.records
    assert not cluster.image.topics_by_name


def test_name_given_twice_is_refused_once_and_others_go_through(cluster: Any) -> None:
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("twice", "once", "twice", "__cluster_metadata")
    ]
    response = cluster.do(CreateTopicsRequest(topics=topics))
    codes = {result.name: result.error_code for result in response.topics}
    assert len(response.topics) == 3
    assert codes == {
        "twice": ErrorCode.INVALID_REQUEST,
        "once": ErrorCode.NONE,
        "__cluster_metadata": ErrorCode.INVALID_REQUEST,
    }
    assert list(cluster.image.topics_by_name) == ["once"]


def test_one_bad_topic_does_not_spoil_the_others(cluster: Any) -> None:
    topics = [
        CreatableTopic(name="good", num_partitions=1, replication_factor=1),
        CreatableTopic(name="bad", num_partitions=1, replication_factor=9),
    ]
    response = cluster.do(CreateTopicsRequest(topics=topics))
    assert [r.error_code for r in response.topics] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    ]


def test_manual_assignment_is_followed(trio: Any) -> None:
    result = trio.create("t", -1, -1, assignments={0: [3, 1], 1: [2, 3]})
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    partitions = trio.image.topics_by_name["t"].partitions
    assert partitions[0].replicas == (3, 1)
    assert partitions[1].leader == 2


@pytest.mark.parametrize(
    ("partitions", "factor", "assignments", "code"),
    [
        (2, -1, {0: [1]}, ErrorCode.INVALID_REQUEST),
        (-1, 1, {0: [1]}, ErrorCode.INVALID_REQUEST),
        (-1, -1, {0: []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {0: [1, 1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {0: [9]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {0: [1], 1: [1, 2]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, -1, {1: [1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_bad_manual_assignments(
    trio: Any, partitions: int, factor: int, assignments: dict[int, list[int]], code: ErrorCode
) -> None:
    assert trio.create("t", partitions, factor, assignments=assignments).error_code == code


def test_ten_thousand_partitions_in_one_request_fold_into_one_topic(cluster: Any) -> None:
    assert cluster.create("wide", 10_000).error_code == ErrorCode.NONE
    assert len(cluster.records) == 10_001
    topic = cluster.image.topics_by_name["wide"]
    assert list(topic.partitions) == list(range(10_000))
    assert cluster.reloaded() == cluster.image


def test_topics_are_deleted_by_name_and_by_id(cluster: Any) -> None:
    cluster.create("a", configs={"retention.ms": "5"})
    by_id = cluster.create("b").topic_id
    response = cluster.do(
        DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), DeleteTopicState(topic_id=by_id)])
    )
    assert {r.name: r.error_code for r in response.responses} == {"a": 0, "b": 0}
    assert not cluster.image.topics_by_name
    assert not cluster.image.topics_by_id
    assert list(cluster.image.configs) == [(BROKER, "")], "a topic's configs go with it"
    assert cluster.create("a").error_code == ErrorCode.NONE


def test_what_cannot_be_deleted_is_told_one_by_one(cluster: Any) -> None:
    known = cluster.create("known").topic_id
    unknown = bytes(15) + b"\x77"
    twice = bytes(15) + b"\x78"
    topics = [
        DeleteTopicState(name="nobody"),
        DeleteTopicState(topic_id=unknown),
        DeleteTopicState(topic_id=twice),
        DeleteTopicState(topic_id=twice),
        DeleteTopicState(name="both", topic_id=known),
        DeleteTopicState(),
        DeleteTopicState(name="x"),
        DeleteTopicState(name="x"),
    ]
    response = cluster.do(DeleteTopicsRequest(topics=topics))
    codes = {(r.name, r.topic_id): ErrorCode(r.error_code) for r in response.responses}
    assert codes == {
        ("nobody", bytes(16)): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (None, unknown): ErrorCode.UNKNOWN_TOPIC_ID,
        (None, twice): ErrorCode.INVALID_REQUEST,
        ("both", known): ErrorCode.INVALID_REQUEST,
        (None, bytes(16)): ErrorCode.INVALID_REQUEST,
        ("x", bytes(16)): ErrorCode.INVALID_REQUEST,
    }
    assert "known" in cluster.image.topics_by_name


def test_old_requests_delete_by_name(cluster: Any) -> None:
    cluster.create("a")
    response = cluster.do(DeleteTopicsRequest(topic_names=["a", "b"]), version=5)
    assert {r.name: r.error_code for r in response.responses} == {
        "a": 0,
        "b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize(
    ("version", "code"),
    [(2, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_deletion_can_be_switched_off(make_cluster: Any, version: int, code: ErrorCode) -> None:
    cluster = make_cluster(delete_topic_enable="false").with_brokers(1)
    with pytest.raises(KafkaError) as refused:
        cluster.do(DeleteTopicsRequest(), version=version)
    assert refused.value.code is code


def grow(cluster: Any, name: str, count: int, assignments: Any = None, **more: Any) -> ErrorCode:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    response = cluster.do(CreatePartitionsRequest(topics=[topic], **more))
    return ErrorCode(response.results[0].error_code)


def test_topic_grows_at_its_end(trio: Any) -> None:
    trio.create("t", 2, 2)
    before = dict(trio.image.topics_by_name["t"].partitions)
    assert grow(trio, "t", 5) is ErrorCode.NONE
    after = trio.image.topics_by_name["t"].partitions
    assert list(after) == [0, 1, 2, 3, 4]
    assert {i: after[i] for i in before} == before
    assert all(len(p.replicas) == 2 for p in after.values())


def test_topic_grows_as_assigned(trio: Any) -> None:
    trio.create("t", 1, 2)
    wanted = [CreatePartitionsAssignment(broker_ids=[3, 2])]
    assert grow(trio, "t", 2, wanted) is ErrorCode.NONE
    assert trio.image.topics_by_name["t"].partitions[1].replicas == (3, 2)


def test_topic_never_shrinks_and_bad_growth_is_refused(trio: Any) -> None:
    trio.create("t", 3, 2)
    assert grow(trio, "nobody", 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(trio, "t", 3) is ErrorCode.INVALID_PARTITIONS
    assert grow(trio, "t", 1) is ErrorCode.INVALID_PARTITIONS
    assert grow(trio, "t", 20_000) is ErrorCode.POLICY_VIOLATION
    one = [CreatePartitionsAssignment(broker_ids=[1])]
    assert grow(trio, "t", 4, one) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(trio, "t", 5, one) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(trio, "t", 9, validate_only=True) is ErrorCode.NONE
    assert len(trio.image.topics_by_name["t"].partitions) == 3


def test_growth_asked_twice_is_refused(cluster: Any) -> None:
    cluster.create("t")
    topics = [CreatePartitionsTopic(name="t", count=n, assignments=None) for n in (2, 3)]
    response = cluster.do(CreatePartitionsRequest(topics=topics))
    assert [(r.name, r.error_code) for r in response.results] == [("t", ErrorCode.INVALID_REQUEST)]


# ---- how many replicas ----


def min_isr(cluster: Any, topic: str = "t") -> str | None:
    return cluster.image.config(TOPIC, topic).get("min.insync.replicas")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("brokers", "factor", "required"), [((1,), 1, None), ((1, 2), 2, None), ((1, 2, 3, 4), 3, "2")]
)
def test_topic_has_as_many_replicas_as_the_cluster_allows_up_to_three(
    make_cluster: Any, brokers: tuple[int, ...], factor: int, required: str | None
) -> None:
    cluster = make_cluster().with_brokers(*brokers)
    created = cluster.create("t", 2, -1)
    assert created.replication_factor == factor
    assert len(cluster.partition().replicas) == factor
    assert min_isr(cluster) == required
    told = {config.name: config.value for config in created.configs}
    assert told["min.insync.replicas"] == (required or "1")


def test_topic_made_while_a_broker_is_away_is_like_the_others(trio: Any) -> None:
    trio.beat(2, want_fence=True)
    assert trio.create("t", 1, -1).replication_factor == 3
    assert set(trio.partition().isr) == {1, 3}
    trio.create("moving", 3, 3)
    trio.beat(1, want_shut_down=True)
    assert trio.image.brokers[1].in_controlled_shutdown
    assert trio.create("u", 1, -1).error_code == ErrorCode.NONE
    assert set(trio.partition("u").replicas) == {1, 2, 3}
    assert trio.partition("u").isr == (3,)


def test_what_somebody_chose_wins(make_cluster: Any) -> None:
    trio = make_cluster().with_brokers(1, 2, 3)
    trio.create("asked", 1, 3)
    assert min_isr(trio, "asked") is None, "the factor was asked for"
    trio.create("own", 1, -1, configs={"min.insync.replicas": "1"})
    assert (len(trio.partition("own").replicas), min_isr(trio, "own")) == (3, "1")
    chosen = make_cluster(default_replication_factor="2").with_brokers(1, 2, 3)
    assert chosen.create("t", 1, -1).replication_factor == 2
    factor = make_cluster(default_replication_factor="3").with_brokers(1, 2, 3)
    factor.create("t", 1, -1)
    assert min_isr(factor) is None
    static = make_cluster(min_insync_replicas="1").with_brokers(1, 2, 3)
    static.create("t", 1, -1)
    assert min_isr(static) is None
    change(trio, BROKER, "", ("min.insync.replicas", SET, "3"))
    trio.create("later", 1, -1)
    assert min_isr(trio, "later") is None


def test_factor_that_was_chosen_is_not_lowered(make_cluster: Any) -> None:
    cluster = make_cluster(default_replication_factor="3").with_brokers(1, 2)
    refused = cluster.create("t", 1, -1)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_broker_whose_directories_are_all_cordoned_gets_no_new_replicas(trio: Any) -> None:
    """KIP-1066: brokers say with a heartbeat which of their directories are cordoned."""
    directories = trio.image.brokers[2].directories
    trio.beat(2, cordoned_log_dirs=list(directories))
    trio.create("two", 12, 2)
    assert all(2 not in p.replicas for p in trio.image.topics_by_name["two"].partitions.values())
    refused = trio.create("three", 1, 3)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "at hand: 2, all directories cordoned: 1" in refused.error_message
    trio.beat(2, cordoned_log_dirs=[])
    assert trio.create("three", 1, 3).error_code == ErrorCode.NONE
