"""Leaderships that a broker gives to other replicas, because it serves them badly.

Kafka has no request by which a leader steps down, so this takes two that every controller knows:
the broker goes to the end of each partition's list of replicas (AlterPartitionReassignments with
the same replicas in another order, which moves no data), and then the first of them is elected
(ElectLeaders). The list says as well who leads when all is well, so whoever hands over keeps the
order that it found and puts it back.

Only partitions are handed over of which another replica is in sync and its broker active; nothing
is ever lost by it. Replicas in cordoned directories (KIP-1066), which is how other brokers see one
that is nearly full, come last, and whoever hands over for want of room passes them over.

Several brokers may hand over the same partition, one after the other, and put their orders back in
any order. So each changes and keeps only what it knows: cordoned replicas at the end, which may
have stood elsewhere before they handed over themselves, stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scriba.broker.ports import ControllerAccess, MetadataView, Timekeeping
from scriba.errors import ErrorCode, KafkaError
from scriba.runtime.loop.pace import Pace
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
LEADERLESS_MS: Final = 1_000
"""How long a controller is awaited: whoever hands over tries again later."""
NOT_YET: Final = (ErrorCode.REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
"""What the controller answers where the partition moves, and where it has other replicas."""

TopicIdPartition = tuple[bytes, int]
"""Topic id and index of a partition."""
Orders = dict[TopicIdPartition, tuple[int, ...]]
"""Replicas of partitions, the one first that should lead."""


class HandoverHost(ControllerAccess, MetadataView, Timekeeping, Protocol):
    @property
    def id(self) -> int: ...


class Decision(NamedTuple):
    """How a partition is handed over."""

    order: tuple[int, ...]
    """Its replicas, the next leader first."""
    known: tuple[int, ...]
    """Those of them whose order is to be put back, in that order."""


async def plan(
    node: HandoverHost,
    partitions: Iterable[Partition],
    before: Orders,
    *,
    even_cordoned: bool,
) -> Orders:
    """The orders of replicas by which others lead.

    `before` gets the orders as they are now, where it has none that still fits. `even_cordoned`
    gives a partition to a replica in a cordoned directory where there is no other.
    """
    wanted: Orders = {}
    pace = Pace(node.world.clock)
    for partition in partitions:
        await pace()
        place = (partition.topic_id, partition.index)
        image = _image(node, place)
        if partition.leader is None or image is None or image.leader != node.id:
            continue
        found = decide(image, node.image.brokers, even_cordoned)
        if found is None:
            continue
        wanted[place] = found.order
        kept = before.get(place)
        if found.known[-1] != node.id and (kept is None or not {*kept} <= {*image.replicas}):
            before[place] = found.known
    return wanted


async def carry_out(node: HandoverHost, wanted: Orders) -> None:
    """Gives partitions these orders, and to the first of each the leadership.

    KafkaError where the controller cannot be asked: what was handed over until then stays so.
    """
    await _order(node, wanted)
    for topics in _requests(node, wanted):
        await node.controller.call(
            ElectLeadersRequest(
                election_type=PREFERRED,
                topic_partitions=[
                    TopicPartitions(topic=topic, partitions=list(orders))
                    for topic, orders in topics.items()
                ],
            ),
            leaderless_ms=LEADERLESS_MS,
        )


def decide(
    image: PartitionImage, brokers: Mapping[int, BrokerImage], even_cordoned: bool
) -> Decision | None:
    """How the leader of a partition hands it over; None where nobody else may lead now."""
    ready = [
        each
        for each in image.replicas
        if each != image.leader and each in image.isr and each in brokers and brokers[each].active
    ]
    cordoned = {each for each in image.replicas if _is_cordoned(image, each, brokers)}
    with_room = [each for each in ready if each not in cordoned]
    if image.is_reassigning or not (with_room or (even_cordoned and ready)):
        return None
    known = list(image.replicas)
    while with_room and known[-1] != image.leader and known[-1] in cordoned:
        known.pop()
    first = [*with_room, *(each for each in ready if each in cordoned and each in known)]
    rest = [each for each in known if each not in first and each != image.leader]
    behind = image.replicas[len(known) :]
    return Decision((*first, *rest, image.leader, *behind), tuple(known))


def _is_cordoned(image: PartitionImage, broker: int, brokers: Mapping[int, BrokerImage]) -> bool:
    known = brokers.get(broker)
    return known is not None and (
        image.directory(broker) in known.cordoned_directories or not known.takes_new
    )


async def put_back(node: HandoverHost, orders: Orders) -> Orders:
    """Gives partitions the orders of replicas that they had, unless somebody has moved them.

    What is left for later: partitions that are moving now, or of whose move only the controller
    knows. Whether an order still fits shows when this node knows it as well.
    """
    wanted: Orders = {}
    later: Orders = {}
    for place, known in orders.items():
        image = _image(node, place)
        if image is None or not {*known} <= {*image.replicas} or node.id not in known:
            continue
        if image.is_reassigning:
            later[place] = known
        elif (order := reordered(image.replicas, known, node.id)) != image.replicas:
            wanted[place] = order
    moving = await _order(node, wanted)
    return later | {place: orders[place] for place in moving}


def reordered(replicas: tuple[int, ...], known: tuple[int, ...], broker: int) -> tuple[int, ...]:
    """The replicas with those of a known order in that order, in the places that they hold now.

    As they are if the broker stands before all again that it stood before: somebody has seen to it.
    """
    behind = known[known.index(broker) + 1 :]
    if all(replicas.index(broker) < replicas.index(each) for each in behind):
        return replicas
    left = iter(known)
    return tuple(next(left) if each in known else each for each in replicas)


async def _order(node: HandoverHost, wanted: Orders) -> set[TopicIdPartition]:
    """Asks for these orders; returns those that were not given, since the partition moves or has
    moved."""
    places = {(node.topic_name(place[0]), place[1]): place for place in wanted}
    for topics in _requests(node, wanted):
        answer = await node.controller.call(
            AlterPartitionReassignmentsRequest(
                allow_replication_factor_change=False,
                order_only=True,
                topics=[
                    ReassignableTopic(
                        name=topic,
                        partitions=[
                            ReassignablePartition(partition_index=index, replicas=list(replicas))
                            for index, replicas in orders.items()
                        ],
                    )
                    for topic, orders in topics.items()
                ],
            ),
            leaderless_ms=LEADERLESS_MS,
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
        for named in answer.responses:
            for told in named.partitions:
                if told.error_code not in NOT_YET:
                    places.pop((named.name, told.partition_index), None)
    return set(places.values())


def _requests(
    node: HandoverHost, orders: Orders
) -> Iterable[dict[str, dict[int, tuple[int, ...]]]]:
    """The orders of as many partitions as go into one request, by topic.

    Looked at once more as it is sent: a controller that does not know `order_only` takes a request
    for the old replicas for the end of a reassignment that has begun since.
    """
    left = iter(orders.items())
    while some := list(islice(left, AT_ONCE)):
        topics: dict[str, dict[int, tuple[int, ...]]] = {}
        for (topic_id, index), replicas in some:
            name, image = node.topic_name(topic_id), _image(node, (topic_id, index))
            if name is None or image is None or image.is_reassigning:
                continue
            if {*image.replicas} == {*replicas}:
                topics.setdefault(name, {})[index] = replicas
        if topics:
            yield topics


def _image(node: HandoverHost, place: TopicIdPartition) -> PartitionImage | None:
    topic = node.image.topics_by_id.get(place[0])
    return topic.partitions.get(place[1]) if topic is not None else None
