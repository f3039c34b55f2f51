"""Metadata of a cluster of which this broker hosts little: the handler is given an image alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from scriba.broker.access import AllowAll
from scriba.broker.handlers.metadata import SHORT, metadata
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.controller.image import ClusterImage
from scriba.controller.parts import BrokerImage, Listener, PartitionImage, TopicImage
from scriba.settings import NodeSettings
from scriba.wire.apis import ApiKey
from scriba.wire.messages.metadata import MetadataRequest, MetadataResponse

OTHER = 2
VERSION = 12
DIRECTORY = b"d" * 16


def broker(id: int, *listeners: str, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        id=id,
        epoch=id,
        incarnation_id=bytes(16),
        listeners=tuple(Listener(name, f"host-{id}", 9092, 0) for name in listeners),
        features={},
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        directories=(DIRECTORY,),
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


def ask(image: ClusterImage) -> MetadataResponse | Deferred[MetadataResponse]:
    host: Any = SimpleNamespace(
        access=AllowAll(),
        cluster_id="c",
        controller_id=1,
        image=image,
        internal_topics=frozenset(),
        settings=NodeSettings.parse({}),
        world=SimpleNamespace(clock=None),
    )
    ctx = Context(ANONYMOUS, "PLAINTEXT", None, "", ApiKey.METADATA, VERSION, 0)
    return metadata(host, ctx, MetadataRequest(topics=None))


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
