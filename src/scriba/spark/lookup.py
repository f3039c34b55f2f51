"""Asks a cluster what the planning of a read has to know: topics, partitions, where logs end."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scriba.client.cluster import Cluster
from scriba.client.errors import BrokerError
from scriba.client.model import Isolation, OffsetAndTimestamp, TopicPartition
from scriba.client.offsets import list_offsets
from scriba.errors import ErrorCode, error_code
from scriba.spark.options import EARLIEST, LATEST, OptionError, Place, ReadOptions, Subscription
from scriba.spark.positions import Positions, Spot
from scriba.wire.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from scriba.wire.uuids import to_text


class Shape(NamedTuple):
    """A topic as it is now."""

    id: str
    partitions: tuple[int, ...]


Shapes = Mapping[str, Shape]


async def shapes(cluster: Cluster, wanted: Subscription, timeout_ms: int) -> Shapes:
    """The topics that are subscribed to and exist."""
    named = wanted.names
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in named] if named else None,
        allow_auto_topic_creation=False,
    )

    async def attempt() -> MetadataResponse:
        connection = await cluster.any_connection()
        return await connection.request(request, MetadataResponse)

    answer = await cluster.retry(attempt, timeout_ms, "the topics")
    found: dict[str, Shape] = {}
    for topic in answer.topics:
        if topic.name is None or not wanted.wants(topic.name):
            continue
        if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            raise BrokerError(error_code(topic.error_code), about=f"topic {topic.name}")
        if wanted.pattern is not None and topic.is_internal:
            continue
        indexes = sorted(p.partition_index for p in topic.partitions)
        if topic.name in wanted.partitions:
            indexes = [p for p in indexes if p in wanted.partitions[topic.name]]
        found[topic.name] = Shape(to_text(topic.topic_id), tuple(indexes))
    return found


def demand(wanted: Subscription, found: Shapes) -> None:
    """OptionError for a topic or partition that was named and is not there."""
    for topic in wanted.names:
        if topic not in found:
            raise OptionError(f"topic {topic} does not exist; create it, or check its name")
        for partition in wanted.partitions.get(topic, ()):
            if partition not in found[topic].partitions:
                raise OptionError(f"{topic} has no partition {partition}; check option assign")
    if not found:
        raise OptionError(f"no topic matches subscribePattern {wanted.pattern!r}")


def everywhere(found: Shapes) -> list[TopicPartition]:
    return [TopicPartition(topic, p) for topic, shape in found.items() for p in shape.partitions]


async def ask(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: Isolation, timeout_ms: int
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    if not wanted:
        return {}
    return await list_offsets(cluster, wanted, isolation, timeout_ms)


async def ends(cluster: Cluster, found: Shapes, isolation: Isolation, timeout_ms: int) -> Positions:
    """Where every log ends: its high watermark, or its last stable offset for read_committed."""
    return gather(found, await named(cluster, everywhere(found), LATEST, isolation, timeout_ms))


async def named(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    place: int,
    isolation: Isolation,
    timeout_ms: int,
) -> dict[TopicPartition, int]:
    """The beginnings or ends of logs."""
    said = await ask(cluster, dict.fromkeys(partitions, place), isolation, timeout_ms)
    return {where: at.offset for where, at in said.items() if at is not None}


def gather(found: Shapes, offsets: Mapping[TopicPartition, int]) -> Positions:
    return {
        topic: Spot(shape.id, {p: offsets[TopicPartition(topic, p)] for p in shape.partitions})
        for topic, shape in found.items()
    }


async def resolve(
    cluster: Cluster,
    found: Shapes,
    place: Place,
    options: ReadOptions,
    timeout_ms: int,
    *,
    start: bool,
) -> Positions:
    """The offsets that a place stands for, partition by partition."""
    option = "startingOffsets" if start else "endingOffsets"
    option += "ByTimestamp" if place.by_time else ""
    wanted = _spread(found, place, option)
    offsets = {where: o for where, o in wanted.items() if o >= 0 and not place.by_time}
    to_ask = {where: o for where, o in wanted.items() if where not in offsets}
    said = await ask(cluster, to_ask, options.isolation, timeout_ms)
    late = [where for where, at in said.items() if at is None]
    if late and start and options.later_than_all == "error":
        where = late[0]
        raise OptionError(
            f"{where} has no record at or after the time {wanted[where]}; give an earlier one, or "
            "set startingOffsetsByTimestampStrategy=latest"
        )
    offsets.update({where: at.offset for where, at in said.items() if at is not None})
    offsets.update(await named(cluster, late, LATEST, options.isolation, timeout_ms))
    return gather(found, offsets)


def _spread(found: Shapes, place: Place, option: str) -> dict[TopicPartition, int]:
    """What was asked for each partition; OptionError unless that is exactly those there are."""
    if place.everywhere is not None:
        return dict.fromkeys(everywhere(found), place.everywhere)
    asked = {TopicPartition(t, p): o for t, each in place.each.items() for p, o in each.items()}
    there = set(everywhere(found))
    if missing := sorted(there - asked.keys()):
        raise OptionError(
            f"option {option}: says nothing of {missing[0]}; name every partition that is read "
            f"({EARLIEST} is the beginning, {LATEST} the end)"
        )
    if extra := sorted(asked.keys() - there):
        raise OptionError(f"option {option}: {extra[0]} is not read; leave it out")
    return asked
