"""A query's progress as the committed offsets of a consumer group, where every tool finds it."""

import logging
from typing import Final

from scriba.client import BrokerError, TimedOut
from scriba.client.coordinator import Coordinator, CoordinatorKind
from scriba.client.group.commits import CommittedOffsets
from scriba.client.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from scriba.errors import ErrorCode
from scriba.spark.link import Link
from scriba.spark.reading.positions import Positions

log = logging.getLogger(__name__)

PATIENCE_MS: Final = 5_000
"""How long a trigger may wait for a coordinator before it goes on without."""

_TAKEN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


def publish(link: Link, group: str, positions: Positions) -> bool:
    """Commits positions for a group without members; whether that worked.

    A broker that cannot be reached must not stop the query: it is told at the next trigger. One
    that refuses does, since nobody would ever see the lag that was asked for.
    """
    cluster = link.cluster
    offsets = CommittedOffsets(cluster, Coordinator(cluster, CoordinatorKind.GROUP, group))
    wanted = {
        TopicPartition(topic, partition): OffsetAndMetadata(offset)
        for topic, spot in positions.items()
        for partition, offset in spot.offsets.items()
    }
    member = ConsumerGroupMetadata(group)

    async def work() -> None:
        await cluster.ready(PATIENCE_MS)
        await cluster.retry(
            lambda: offsets.commit(member, wanted), PATIENCE_MS, f"progress of group {group}"
        )

    try:
        link.run(work())
    except TimedOut as late:
        log.warning("progress is not published yet: %s", late)
        return False
    except BrokerError as refused:
        if refused.code in _TAKEN:
            told = f"group {group} has members of its own; give the query another groupId"
            raise BrokerError(refused.code, told) from refused
        raise
    return True
