"""Where the fields of a Fetch are in what the locator tells of its frame (`wire.locator`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scriba.wire.messages.fetch import FetchPartition

FIELDS: Final = frozenset(
    {
        "replica_id",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "isolation_level",
        "session_id",
        "session_epoch",
        "topics.topic",
        "topics.topic_id",
        "topics.partitions.partition",
        "topics.partitions.current_leader_epoch",
        "topics.partitions.fetch_offset",
        "topics.partitions.last_fetched_epoch",
        "topics.partitions.log_start_offset",
        "topics.partitions.partition_max_bytes",
        "forgotten_topics_data",
        "forgotten_topics_data.topic",
        "forgotten_topics_data.topic_id",
        "forgotten_topics_data.partitions",
    }
)
TOPICS_AT: Final = 9
"""Where topics begin in what a plan tells: behind the correlation id, the first seven of the fields
above, and the number of topics."""
PARTITIONS_AT: Final = 3
"""Where partitions begin in what is told of a topic: behind begin and end of its name or id, and
their number."""
COUNT_AT: Final = TOPICS_AT + PARTITIONS_AT - 1
"""Where the number of the first topic's partitions is."""
PER_PARTITION: Final = 6
"""Numbers of each: its index, and the five behind it in the fields above. Of a partition that is
forgotten there is its index alone."""
ONE_PARTITION: Final = TOPICS_AT + PARTITIONS_AT + PER_PARTITION + 1
"""Of how many numbers a plan tells where one partition is named, and none forgotten."""

SPAN: Final = 2
"""Numbers of a string, its begin and its end: the rack comes last of all, where it matters."""
RACK: Final = frozenset({"rack_id"})


def follow(asked: FetchPartition, located: list[int], at: int) -> None:
    """Takes what a request tells of a partition behind its index."""
    (
        asked.current_leader_epoch,
        asked.fetch_offset,
        asked.last_fetched_epoch,
        asked.log_start_offset,
        asked.partition_max_bytes,
    ) = located[at + 1 : at + PER_PARTITION]
