"""Asks the leaders of partitions where in their logs something is."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scriba.client.cluster import NO_NODE, Cluster
from scriba.client.model import Isolation, OffsetAndTimestamp, OffsetSpec, TopicPartition
from scriba.client.settings import parse_duration_ms
from scriba.errors import ErrorCode, error_code
from scriba.peers.errors import BrokerError, ClientError
from scriba.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_NO_REPLICA = -1
_MAX_TIMESTAMP_SINCE = 7
_LOCAL_SINCE = 8
_TIERED_SINCE = 9
_NEEDS = {-3: _MAX_TIMESTAMP_SINCE, -4: _LOCAL_SINCE, -5: _TIERED_SINCE}


class Found(NamedTuple):
    """What one try gave: offsets (None where there is none), and what went wrong elsewhere."""

    offsets: dict[TopicPartition, OffsetAndTimestamp | None]
    failures: dict[TopicPartition, ClientError]


async def look_up(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> Found:
    """One try to find each partition's offset for a name or timestamp."""
    found = Found({}, {})
    by_leader: dict[int, dict[TopicPartition, ListOffsetsPartition]] = {}
    for where, target in wanted.items():
        known = cluster.partition(where)
        if known is None or known.leader == NO_NODE:
            found.failures[where] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, about=str(where))
            cluster.stale()
        else:
            by_leader.setdefault(known.leader, {})[where] = ListOffsetsPartition(
                partition_index=where.partition,
                current_leader_epoch=known.leader_epoch,
                timestamp=target,
            )
    await asyncio.gather(
        *(_ask(cluster, leader, part, isolation, found) for leader, part in by_leader.items())
    )
    return found


async def _ask(
    cluster: Cluster,
    leader: int,
    wanted: Mapping[TopicPartition, ListOffsetsPartition],
    isolation: Isolation,
    found: Found,
) -> None:
    topics: dict[str, ListOffsetsTopic] = {}
    for where, asked in wanted.items():
        topic = topics.setdefault(where.topic, ListOffsetsTopic(name=where.topic))
        topic.partitions.append(asked)
    request = ListOffsetsRequest(
        replica_id=_NO_REPLICA,
        isolation_level=isolation,
        topics=list(topics.values()),
        timeout_ms=cluster.settings.request_timeout_ms,
    )
    try:
        connection = await cluster.connect(leader)
        version = connection.version(ListOffsetsRequest)
        needed = max((_NEEDS.get(asked.timestamp, 0) for asked in wanted.values()), default=0)
        if version < needed:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "the broker is too old for this place")
        answer = await connection.request(request, ListOffsetsResponse, version=version)
    except ClientError as failure:
        found.failures.update(dict.fromkeys(wanted, failure))
        return
    for said in answer.topics:
        for p in said.partitions:
            where = TopicPartition(said.name, p.partition_index)
            if p.error_code:
                found.failures[where] = BrokerError(error_code(p.error_code), about=str(where))
                if error_code(p.error_code).retriable:
                    cluster.stale()
            elif p.offset < 0:
                found.offsets[where] = None
            else:
                found.offsets[where] = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    isolation: Isolation,
    timeout_ms: float,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Offsets for names or timestamps, with retries; None where nothing is at or after it."""
    done: dict[TopicPartition, OffsetAndTimestamp | None] = {}

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp | None]:
        rest = {where: target for where, target in wanted.items() if where not in done}
        await _know(cluster, {where.topic for where in rest}, timeout_ms)
        found = await look_up(cluster, rest, isolation)
        done.update(found.offsets)
        for failure in _worst_first(found.failures.values()):
            raise failure
        return {where: done[where] for where in wanted}

    return await cluster.retry(attempt, timeout_ms, "the offsets")


async def _know(cluster: Cluster, topics: Iterable[str], timeout_ms: float) -> None:
    for topic in sorted(topics):
        await cluster.topic(topic, timeout_ms)


def _worst_first(failures: Iterable[ClientError]) -> Sequence[ClientError]:
    return sorted(failures, key=lambda failure: failure.retriable)


class EpochEnd(NamedTuple):
    """The largest epoch up to the one asked for, and where it ended."""

    epoch: int
    end_offset: int


async def epoch_ends(
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, EpochEnd | ErrorCode]:
    """Where epochs ended in a leader's logs (KIP-320).

    `wanted` gives for each partition the leader's epoch and the epoch asked for.
    """
    topics: dict[str, OffsetForLeaderTopic] = {}
    for where, (current, epoch) in wanted.items():
        topic = topics.setdefault(where.topic, OffsetForLeaderTopic(topic=where.topic))
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=where.partition, current_leader_epoch=current, leader_epoch=epoch
            )
        )
    connection = await cluster.connect(leader)
    request = OffsetForLeaderEpochRequest(replica_id=_NO_REPLICA, topics=list(topics.values()))
    answer = await connection.request(request, OffsetForLeaderEpochResponse)
    return {
        TopicPartition(said.topic, p.partition): error_code(p.error_code)
        if p.error_code
        else EpochEnd(p.leader_epoch, p.end_offset)
        for said in answer.topics
        for p in said.partitions
    }


def reset_target(policy: str, wall_ms: int) -> int | None:
    """Where `auto.offset.reset` points to now; None when it says to tell the application."""
    if policy == "none":
        return None
    if policy == "latest":
        return OffsetSpec.LATEST
    if policy == "earliest":
        return OffsetSpec.EARLIEST
    duration = parse_duration_ms(policy.partition(":")[2])
    assert duration is not None, "checked with the settings"
    return max(0, wall_ms - duration)
