"""Asks a cluster what the planning of a read has to know: topics, partitions, where logs end.

A topic may be deleted between two questions. A leader that does not know a partition may also have
heard too little yet, so its word is held against the cluster's metadata: what is not there either
is gone, and waiting would be in vain.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scriba.client import BrokerError, ClientError
from scriba.client.cluster import Cluster
from scriba.client.consuming.list_offsets import look_up
from scriba.client.model import Isolation, OffsetAndTimestamp, TopicPartition
from scriba.errors import ErrorCode, error_code
from scriba.spark.options import (
    EARLIEST,
    LATEST,
    OffsetChoice,
    OptionError,
    ReadOptions,
    Subscription,
)
from scriba.spark.reading.positions import Positions, TopicOffsets
from scriba.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from scriba.wire.uuids import to_text


class Topic(NamedTuple):
    """A topic as it is now."""

    id: str
    partitions: tuple[int, ...]


Topics = Mapping[str, Topic]


class TopicGone(ClientError):
    """A topic, or a partition, that was there when it was looked up and is not any more."""


async def describe_topics(cluster: Cluster, wanted: Subscription, timeout_ms: int) -> Topics:
    """The topics that are subscribed to and exist."""
    answer = await cluster.retry(lambda: _metadata(cluster, wanted), timeout_ms, "the topics")
    found: dict[str, Topic] = {}
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
        found[topic.name] = Topic(to_text(topic.topic_id), tuple(indexes))
    return found


async def _metadata(cluster: Cluster, wanted: Subscription) -> MetadataResponse:
    named = wanted.names
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in named] if named else None,
        allow_auto_topic_creation=False,
    )
    connection = await cluster.any_connection()
    return await connection.request(request, MetadataResponse)


def require_all(wanted: Subscription, found: Topics) -> None:
    """OptionError for a topic or partition that was named and is not there."""
    for topic in wanted.names:
        if topic not in found:
            raise OptionError(f"topic {topic} does not exist; create it, or check its name")
        for partition in wanted.partitions.get(topic, ()):
            if partition not in found[topic].partitions:
                raise OptionError(f"{topic} has no partition {partition}; check option assign")


def all_partitions(found: Topics) -> list[TopicPartition]:
    return [
        TopicPartition(topic, p) for topic, described in found.items() for p in described.partitions
    ]


async def ask(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: Isolation, timeout_ms: int
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Offsets for names or timestamps, None where nothing is at or after it; TopicGone."""
    if not wanted:
        return {}
    done: dict[TopicPartition, OffsetAndTimestamp | None] = {}

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp | None]:
        rest = {where: target for where, target in wanted.items() if where not in done}
        await _ensure_metadata(cluster, {where.topic for where in rest})
        found = await look_up(cluster, rest, isolation)
        done.update(found.offsets)
        if found.failures:
            await _raise_if_gone(cluster, list(found.failures))
            raise min(found.failures.values(), key=lambda failure: failure.retriable)
        return {where: done[where] for where in wanted}

    return await cluster.retry(attempt, timeout_ms, "the offsets")


async def _ensure_metadata(cluster: Cluster, topics: Iterable[str]) -> None:
    """Has these topics in the cluster's picture, if they are there at all."""
    for topic in topics:
        cluster.want(topic)
    if any(topic not in cluster.topics for topic in topics):
        cluster.stale()
        await cluster.next_update()


async def _raise_if_gone(cluster: Cluster, asked: Iterable[TopicPartition]) -> None:
    """TopicGone if one of these is not there, going by what the cluster says now."""
    names = tuple(sorted({where.topic for where in asked}))
    answer = await _metadata(cluster, Subscription(topics=names))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    gone = {topic.name for topic in answer.topics if topic.error_code == unknown}
    there = {
        TopicPartition(topic.name or "", p.partition_index)
        for topic in answer.topics
        for p in topic.partitions
    }
    for where in asked:
        if where.topic in gone or (where not in there and where.topic in _whole(answer)):
            what = f"topic {where.topic}" if where.topic in gone else f"partition {where}"
            raise TopicGone(f"{what} was deleted while the read was planned")


def _whole(answer: MetadataResponse) -> set[str]:
    """Topics of which the answer lists every partition."""
    return {topic.name or "" for topic in answer.topics if not topic.error_code}


async def ends(cluster: Cluster, found: Topics, isolation: Isolation, timeout_ms: int) -> Positions:
    """Where every log ends: its high watermark, or its last stable offset for read_committed."""
    return as_positions(
        found, await log_bounds(cluster, all_partitions(found), LATEST, isolation, timeout_ms)
    )


async def log_bounds(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    bound: int,
    isolation: Isolation,
    timeout_ms: int,
) -> dict[TopicPartition, int]:
    """The beginnings or ends of logs."""
    said = await ask(cluster, dict.fromkeys(partitions, bound), isolation, timeout_ms)
    return {where: at.offset for where, at in said.items() if at is not None}


def as_positions(found: Topics, offsets: Mapping[TopicPartition, int]) -> Positions:
    return {
        topic: TopicOffsets(
            described.id, {p: offsets[TopicPartition(topic, p)] for p in described.partitions}
        )
        for topic, described in found.items()
    }


async def resolve(
    cluster: Cluster,
    found: Topics,
    choice: OffsetChoice,
    options: ReadOptions,
    timeout_ms: int,
    *,
    start: bool,
) -> Positions:
    """The offsets that a place stands for, partition by partition."""
    option = "startingOffsets" if start else "endingOffsets"
    option += "ByTimestamp" if choice.by_timestamp else ""
    wanted = _spread(found, choice, option)
    offsets = {where: o for where, o in wanted.items() if o >= 0 and not choice.by_timestamp}
    to_ask = {where: o for where, o in wanted.items() if where not in offsets}
    said = await ask(cluster, to_ask, options.isolation, timeout_ms)
    late = [where for where, at in said.items() if at is None]
    if late and start and options.timestamp_strategy == "error":
        where = late[0]
        raise OptionError(
            f"{where} has no record at or after the time {wanted[where]}; give an earlier one, or "
            "set startingOffsetsByTimestampStrategy=latest"
        )
    offsets.update({where: at.offset for where, at in said.items() if at is not None})
    offsets.update(await log_bounds(cluster, late, LATEST, options.isolation, timeout_ms))
    return as_positions(found, offsets)


def _spread(found: Topics, choice: OffsetChoice, option: str) -> dict[TopicPartition, int]:
    """What was asked for each partition; OptionError unless that is exactly those there are."""
    if choice.for_all is not None:
        return dict.fromkeys(all_partitions(found), choice.for_all)
    asked = {
        TopicPartition(t, p): o for t, each in choice.by_partition.items() for p, o in each.items()
    }
    there = set(all_partitions(found))
    if missing := sorted(there - asked.keys()):
        raise OptionError(
            f"option {option}: says nothing of {missing[0]}; name every partition that is read "
            f"({EARLIEST} is the beginning, {LATEST} the end)"
        )
    if extra := sorted(asked.keys() - there):
        raise OptionError(f"option {option}: {extra[0]} is not read; leave it out")
    return asked
