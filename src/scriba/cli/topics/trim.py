"""`scriba topic trim`: deletes the oldest records of a topic, shown as a plan first."""

import argparse
from collections.abc import Mapping
from typing import Any, NamedTuple

from scriba.cli.output import counted, print_json, print_table
from scriba.cli.parsing.partitions import offsets_at, partitions_named
from scriba.cli.parsing.positions import Position
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import with_admin
from scriba.client import Admin, ConfigResource, OffsetSpec, TopicPartition


class PartitionTrim(NamedTuple):
    """Of one partition: where its log starts, where it would start, and where it ends."""

    where: TopicPartition
    start: int
    before: int
    end: int

    @property
    def records(self) -> int:
        """At most so many go: compaction and transactions leave offsets without records."""
        return self.before - self.start


def cuts(
    before: Position,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    timed: Mapping[TopicPartition, int],
) -> list[PartitionTrim]:
    """`timed` has the offset of the first record at or after the time of a place; without one,
    all are older. Nothing outside the log is named: the nearest offset in it is taken."""
    found = []
    for where in sorted(ends):
        start, end = starts[where], ends[where]
        match before.kind:
            case "beginning":
                wanted = start
            case "end":
                wanted = end
            case "last":
                wanted = end - before.number
            case "offset":
                wanted = before.number
            case "time":
                wanted = timed.get(where, end)
        found.append(PartitionTrim(where, start, min(max(wanted, start), end), end))
    return found


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    if options.before.kind == "beginning":
        raise Misuse("nothing lies before the beginning", "give an offset, a time or end")
    partitions = await partitions_named(admin, [options.topic])
    await _refuse_compacted(admin, partitions[0].topic)
    starts = await offsets_at(admin, partitions, OffsetSpec.EARLIEST)
    ends = await offsets_at(admin, partitions)
    timed: dict[TopicPartition, int] = {}
    if options.before.kind == "time":
        timed = await offsets_at(admin, partitions, options.before.number)
    plan = cuts(options.before, starts, ends, timed)
    doomed: dict[tuple[str, int], int] = {cut.where: cut.before for cut in plan if cut.records}
    if options.apply and doomed:
        await admin.delete_records(doomed)
    if options.json:
        print_json(
            {
                "topic": plan[0].where.topic,
                "applied": options.apply,
                "partitions": [_document(cut) for cut in plan],
            }
        )
        return 0
    rows = [
        (c.where.topic, c.where.partition, c.start, c.before, c.end, c.records, c.end - c.before)
        for c in plan
    ]
    print_table(["TOPIC", "PARTITION", "START", "NEW START", "END", "DELETED", "KEPT"], rows)
    total = counted(sum(cut.records for cut in plan), "record")
    if not doomed:
        print("nothing lies before that place")
    elif options.apply:
        print(f"deleted {total}")
    else:
        print(f"nothing was changed; add --apply to delete {total}")
    return 0


async def _refuse_compacted(admin: Admin, topic: str) -> None:
    """Brokers refuse it too, but only once it is to be done."""
    resource = ConfigResource.topic(topic)
    found = (await admin.describe_configs([resource], names=["cleanup.policy"]))[resource]
    if found["cleanup.policy"].value == "compact":
        raise CommandError(
            f"{topic} is compacted, which keeps the last record of each key",
            f"`scriba produce {topic} --tombstone` removes keys, and with "
            "cleanup.policy=compact,delete a topic can be trimmed",
        )


def _document(cut: PartitionTrim) -> dict[str, Any]:
    return {
        "partition": cut.where.partition,
        "start_offset": cut.start,
        "new_start_offset": cut.before,
        "end_offset": cut.end,
        "records": cut.records,
    }
