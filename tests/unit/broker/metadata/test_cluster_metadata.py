"""Metadata of a cluster of which this broker hosts little: the handler is given an image alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from scriba.broker.access import AllowAll
from scriba.broker.handlers.metadata import (
    SHORT,
    describe_cluster,
    describe_topic_partitions,
    metadata,
)
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.controller.image import ClusterImage
from scriba.controller.parts import (
    BrokerImage,
    Listener,
    PartitionImage,
    TopicImage,
)
from scriba.errors import ErrorCode
from scriba.settings import NodeSettings
from scriba.wire.apis import ApiKey
from scriba.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
)

OTHER = 2
VERSION = 12
DIRECTORY = b"d" * 16


def broker(
    id: int, *listeners: str, fenced: bool = False, directory: bytes = DIRECTORY
) -> BrokerImage:
    return BrokerImage(
        id=id,
        epoch=id,
        incarnation_id=bytes(16),
        listeners=tuple(Listener(name, f"host-{id}", 9092, 0) for name in listeners),
        features={},
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        directories=(directory,),
        cordoned_directories=(),
        registered_at=0,
    )


def image_with(partitions: int) -> ClusterImage:
    """One topic, all of whose replicas another broker hosts."""
    image = ClusterImage()
    image.brokers = {3: broker(3, "PLAINTEXT", fenced=True), OTHER: broker(OTHER, "PLAINTEXT")}
    there = PartitionImage((OTHER,), (DIRECTORY,), (OTHER,), OTHER, 0, 0)
    topic = TopicImage("t", b"t" * 16, dict.fromkeys(range(partitions), there))
    image.topics_by_name["t"] = image.topics_by_id[topic.id] = topic
    return image


def host(image: ClusterImage, *, id: int = 1, controller: int = 1) -> Any:
    return SimpleNamespace(
        id=id,
        access=AllowAll(),
        cluster_id="c",
        active_controller_id=controller,
        controllers_on=lambda listener: [(id, f"host-{id}", 9093) for id in (11, 12)],
        image=image,
        internal_topics=frozenset(),
        is_controller_listener=lambda name: name == "CONTROLLER",
        settings=NodeSettings.parse({}),
        world=SimpleNamespace(clock=None),
    )


def context(api: ApiKey, version: int, listener: str = "PLAINTEXT") -> Context:
    return Context(ANONYMOUS, listener, None, "", api, version, 0)


def ask(
    image: ClusterImage, version: int = VERSION
) -> MetadataResponse | Deferred[MetadataResponse]:
    asked = MetadataRequest(topics=None if version else [])
    return metadata(host(image), context(ApiKey.METADATA, version), asked)


def cluster(*known: BrokerImage, **partition: Any) -> ClusterImage:
    """Brokers, and one partition with replicas on 1, 2 and 3."""
    image = ClusterImage()
    image.brokers = {each.id: each for each in known}
    usual = PartitionImage((1, 2, 3), (DIRECTORY,) * 3, (1, 2, 3), 1, 4, 7)
    topic = TopicImage("t", b"t" * 16, {0: usual._replace(**partition)})
    image.topics_by_name["t"] = image.topics_by_id[topic.id] = topic
    return image


def told(image: ClusterImage, version: int = VERSION) -> MetadataResponsePartition:
    answer = ask(image, version)
    assert isinstance(answer, MetadataResponse)
    return answer.topics[0].partitions[0]


def test_a_list_is_long_by_the_partitions_of_the_cluster_and_not_by_those_hosted_here() -> None:
    answer = ask(image_with(SHORT + 1))
    assert isinstance(answer, Deferred)
    answer.awaitable.close()  # type: ignore[attr-defined]


def test_a_short_list_of_partitions_hosted_elsewhere_names_their_leader() -> None:
    answer = ask(image_with(SHORT))
    assert isinstance(answer, MetadataResponse)
    (topic,) = answer.topics
    assert len(topic.partitions) == SHORT
    assert {partition.leader_id for partition in topic.partitions} == {OTHER}
    assert [(b.node_id, b.host) for b in answer.brokers] == [(OTHER, f"host-{OTHER}")]


@pytest.mark.parametrize(
    ("listener", "fenced", "ids"),
    [("PLAINTEXT", False, [1, 4]), ("PLAINTEXT", True, [1, 3, 4]), ("SSL", False, [2])],
)
def test_clients_of_a_listener_are_sent_to_brokers_that_have_it(
    listener: str, fenced: bool, ids: list[int]
) -> None:
    image = ClusterImage()
    known = [broker(4, "PLAINTEXT"), broker(2, "SSL"), broker(3, "PLAINTEXT", fenced=True)]
    image.brokers = {each.id: each for each in [*known, broker(1, "PLAINTEXT")]}
    assert [found.id for found, _, _ in image.brokers_on(listener, fenced=fenced)] == ids


def plain(*ids: int) -> list[BrokerImage]:
    return [broker(id, "PLAINTEXT") for id in ids]


def test_replicas_are_offline_by_their_broker_or_by_their_directory() -> None:
    away = broker(2, "PLAINTEXT", fenced=True)
    failed = broker(3, "PLAINTEXT", directory=b"another one.....")
    partition = told(cluster(*plain(1), away, failed))
    assert partition.offline_replicas == [2, 3]
    assert partition.replica_nodes == partition.isr_nodes == [1, 2, 3]
    assert partition.error_code == ErrorCode.NONE
    assert told(cluster(*plain(1, 2))).offline_replicas == [3], "not registered"
    assert told(cluster(*plain(1, 2), broker(3, "SSL"))).offline_replicas == [3]
    assert told(cluster(*plain(1, 2, 3))).offline_replicas == []
    unassigned = (bytes(15) + b"\x01",) * 3
    assert told(cluster(*plain(1, 2, 3), directories=unassigned)).offline_replicas == []


@pytest.mark.parametrize(
    ("version", "code"),
    [(12, ErrorCode.LISTENER_NOT_FOUND), (5, ErrorCode.LEADER_NOT_AVAILABLE)],
)
def test_leader_without_the_clients_listener_is_not_named(version: int, code: ErrorCode) -> None:
    partition = told(cluster(broker(1, "SSL"), *plain(2, 3)), version)
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (code, -1, 4)


def test_partition_without_a_leader_says_so() -> None:
    partition = told(cluster(*plain(1, 2, 3), leader=-1, isr=()))
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    partition = told(cluster(*plain(2, 3)))
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE, "its leader is unregistered"


def test_oldest_clients_are_told_of_replicas_that_live() -> None:
    partition = told(cluster(*plain(1, 3)), 0)
    assert partition.replica_nodes == partition.isr_nodes == [1, 3]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.REPLICA_NOT_AVAILABLE, 1)


def test_description_of_partitions_tells_who_may_lead() -> None:
    image = cluster(
        *plain(2, 3), leader=-1, isr=(), eligible_leader_replicas=(2,), last_known_elr=(1,)
    )
    ctx = context(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)
    answer = describe_topic_partitions(host(image), ctx, DescribeTopicPartitionsRequest())
    assert isinstance(answer, DescribeTopicPartitionsResponse)
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, partition.isr_nodes) == (-1, [])
    assert partition.eligible_leader_replicas == [2]
    assert partition.last_known_elr == [1]
    assert partition.offline_replicas == [1]
    assert partition.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("id", "controller", "named"), [(2, 3, 3), (2, 9, 2), (2, -1, 2), (8, 9, 1), (8, 7, 1)]
)
def test_controller_that_clients_are_told_of_is_a_broker_they_reach(
    id: int, controller: int, named: int
) -> None:
    """The active one, else this one, else any."""
    image = cluster(*plain(1, 2, 3), broker(7, "PLAINTEXT", fenced=True))
    node = host(image, id=id, controller=controller)
    answer = metadata(node, context(ApiKey.METADATA, VERSION), MetadataRequest(topics=[]))
    assert isinstance(answer, MetadataResponse)
    assert answer.controller_id == named
    ctx = context(ApiKey.DESCRIBE_CLUSTER, 2)
    assert describe_cluster(node, ctx, DescribeClusterRequest()).controller_id == named


def test_nobody_is_named_where_no_broker_lives() -> None:
    answer = metadata(
        host(cluster()), context(ApiKey.METADATA, VERSION), MetadataRequest(topics=[])
    )
    assert isinstance(answer, MetadataResponse)
    assert (answer.controller_id, answer.brokers) == (-1, [])


def test_controllers_describe_themselves_and_name_the_active_one() -> None:
    image = cluster(*plain(1, 2))
    ctx = context(ApiKey.DESCRIBE_CLUSTER, 2, "CONTROLLER")
    node = host(image, id=11, controller=12)
    answer = describe_cluster(node, ctx, DescribeClusterRequest(endpoint_type=2))
    assert answer.controller_id == 12
    assert [(each.broker_id, each.port) for each in answer.brokers] == [(11, 9093), (12, 9093)]


def test_description_of_the_cluster_tells_of_fenced_brokers_where_asked() -> None:
    image = cluster(*plain(1), broker(2, "PLAINTEXT", fenced=True))
    ctx = context(ApiKey.DESCRIBE_CLUSTER, 2)
    without = describe_cluster(host(image), ctx, DescribeClusterRequest())
    assert [(each.broker_id, each.is_fenced) for each in without.brokers] == [(1, False)]
    asked = DescribeClusterRequest(include_fenced_brokers=True)
    told = describe_cluster(host(image), ctx, asked)
    assert [(each.broker_id, each.is_fenced) for each in told.brokers] == [(1, False), (2, True)]
