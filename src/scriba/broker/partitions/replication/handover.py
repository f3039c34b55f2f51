"""Leaderships that a broker gives to other replicas, because it serves them badly.

Kafka has no request by which a leader steps down, so this takes two that every controller knows:
the broker goes to the end of each partition's list of replicas (AlterPartitionReassignments with
the same replicas in another order, which moves no data), and then the first of them is elected
(ElectLeaders). The list says as well who leads when all is well, so whoever hands over keeps the
old order and puts it back.

Only partitions are handed over of which another replica is in sync and its broker active; nothing
is ever lost by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import ControllerAccess, MetadataView
from scriba.errors import ErrorCode, KafkaError
from scriba.storage.directory.names import PartitionName
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.controller.image import BrokerImage, PartitionImage

AT_ONCE: Final = 500
"""Partitions of one request."""
PREFERRED: Final = 0

Orders = dict[PartitionName, tuple[int, ...]]
"""Replicas of partitions, the one first that should lead."""


class HandoverHost(ControllerAccess, MetadataView, Protocol):
    @property
    def id(self) -> int: ...


async def hand_over(node: HandoverHost, partitions: Iterable[Partition]) -> Orders:
    """Has others lead what can be led by others; what the orders were before.

    KafkaError where the controller cannot be asked: what was handed over until then stays so.
    """
    before: Orders = {}
    wanted: Orders = {}
    for partition in partitions:
        image = _image(node, PartitionName(partition.topic, partition.index))
        if partition.leader is None or image is None or image.is_reassigning:
            continue
        others = successors(image, node.id, node.image.brokers)
        if others:
            name = PartitionName(partition.topic, partition.index)
            before[name] = image.replicas
            rest = [each for each in image.replicas if each not in others and each != node.id]
            wanted[name] = (*others, *rest, node.id)
    await _order(node, wanted)
    for some in _slices(wanted):
        topics: dict[str, list[int]] = {}
        for name in some:
            topics.setdefault(name.topic, []).append(name.partition)
        await node.controller.call(
            ElectLeadersRequest(
                election_type=PREFERRED,
                topic_partitions=[
                    TopicPartitions(topic=topic, partitions=indexes)
                    for topic, indexes in topics.items()
                ],
            )
        )
    return before


def successors(image: PartitionImage, leader: int, brokers: Mapping[int, BrokerImage]) -> list[int]:
    """In-sync replicas that may lead instead, in the order of the replicas."""
    return [
        each
        for each in image.replicas
        if each != leader and each in image.isr and each in brokers and brokers[each].active
    ]


async def put_back(node: HandoverHost, orders: Orders) -> None:
    """Gives partitions the order of replicas that they had, unless somebody has moved them."""
    wanted: Orders = {}
    for name, replicas in orders.items():
        image = _image(node, name)
        if (
            image is not None
            and not image.is_reassigning
            and image.replicas != replicas
            and sorted(image.replicas) == sorted(replicas)
        ):
            wanted[name] = replicas
    await _order(node, wanted)


async def _order(node: HandoverHost, wanted: Orders) -> None:
    for some in _slices(wanted):
        topics: dict[str, ReassignableTopic] = {}
        for name, replicas in some.items():
            topic = topics.setdefault(name.topic, ReassignableTopic(name=name.topic))
            topic.partitions.append(
                ReassignablePartition(partition_index=name.partition, replicas=list(replicas))
            )
        answer = await node.controller.call(
            AlterPartitionReassignmentsRequest(
                allow_replication_factor_change=False, topics=list(topics.values())
            )
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")


def _slices(orders: Orders) -> Iterable[Orders]:
    left = iter(orders.items())
    while some := dict(islice(left, AT_ONCE)):
        yield some


def _image(node: HandoverHost, name: PartitionName) -> PartitionImage | None:
    topic = node.image.topics_by_name.get(name.topic)
    return topic.partitions.get(name.partition) if topic is not None else None
