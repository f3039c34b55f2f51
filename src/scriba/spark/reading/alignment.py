"""A backlog read in step: all partitions up to the same time, by the timestamps of their records.

Spark keeps one watermark for all partitions of a source. When a backlog is shared out by numbers
alone, a partition whose records are spread over hours falls behind one whose records are of
minutes, and what it holds is then late, through no fault of its events. Here the cut is a time: the
latest before which there are no more records than a batch may take. Brokers look it up in their
indexes, so that a search takes some tens of small requests, and only while there is a backlog.
"""

from collections.abc import Mapping
from typing import Final

from scriba.client.cluster import Cluster
from scriba.client.consuming.list_offsets import list_offsets
from scriba.client.model import Isolation, OffsetAndTimestamp, TopicPartition
from scriba.spark.reading.positions import Positions, limit_rate, ranges, total

STEP_MS: Final = 1000
"""Partitions are this close to each other; what is left of a batch is shared out within it."""
FULL: Final = 0.8
"""Of what a batch may take: enough to stop searching for a better time."""
LAST_MS: Final = 1 << 62


async def align_by_timestamp(
    cluster: Cluster,
    begin: Positions,
    end: Positions,
    most: int,
    isolation: Isolation,
    timeout_ms: int,
) -> Positions:
    """How far to read: at most `most` offsets, and no partition ahead of another in time."""
    if total(begin, end) <= most:
        return end
    places = [part.where for part in ranges(begin, end)]

    async def up_to(time_ms: int) -> Positions:
        found = await list_offsets(cluster, dict.fromkeys(places, time_ms), isolation, timeout_ms)
        return before(begin, end, found)

    first = await list_offsets(cluster, dict.fromkeys(places, 0), isolation, timeout_ms)
    low_ms = min((at.timestamp for at in first.values() if at is not None), default=0)
    low, high, step = begin, end, STEP_MS
    high_ms = LAST_MS
    while low_ms + step < LAST_MS:
        there = await up_to(low_ms + step)
        if total(begin, there) > most:
            high, high_ms = there, low_ms + step
            break
        low, low_ms, step = there, low_ms + step, 2 * step
    while high_ms - low_ms > STEP_MS and total(begin, low) < FULL * most:
        middle_ms = (low_ms + high_ms) // 2
        there = await up_to(middle_ms)
        if total(begin, there) > most:
            high, high_ms = there, middle_ms
        else:
            low, low_ms = there, middle_ms
    if total(begin, low) >= FULL * most:
        return low
    return limit_rate(low, high, most - total(begin, low))


def before(
    begin: Positions, end: Positions, found: Mapping[TopicPartition, OffsetAndTimestamp | None]
) -> Positions:
    """Each partition up to where a time begins in it, within `begin` and `end`."""
    cut = {}
    for topic, spot in end.items():
        offsets = {}
        for partition, last in spot.offsets.items():
            at = found.get(TopicPartition(topic, partition))
            first = begin[topic].offsets[partition]
            offsets[partition] = last if at is None else max(first, min(last, at.offset))
        cut[topic] = spot._replace(offsets=offsets)
    return cut
