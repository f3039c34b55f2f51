"""`scriba consume`: records of a topic's partitions to standard output."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

from scriba.cli.envelope import to_line
from scriba.cli.output import note
from scriba.cli.places import BEGINNING, Place
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import client_settings, open_admin, run_session, timeout_ms
from scriba.cli.template import Render, compile_template
from scriba.client import Consumer, ConsumerRecord, TopicPartition

POLL_MS: Final = 200
POLL_RECORDS: Final = 2_000
VALUE_A_LINE: Final = r"%s\n"


def run(options: argparse.Namespace) -> int:
    if options.json and options.format is not None:
        raise Misuse("--json and --format both say how to write a record; drop one of the two")
    if options.group and (options.partition is not None or options.start is not None):
        raise Misuse(
            "a group decides itself which partitions it reads, and from where",
            "drop --partition and --from; `scriba group reset` moves a group",
        )
    render = _json if options.json else compile_template(options.format or VALUE_A_LINE)
    return run_session(options, _consume(options, render))


def _json(record: ConsumerRecord[Any, Any]) -> bytes:
    return to_line(record).encode() + b"\n"


async def _consume(options: argparse.Namespace, render: Render) -> int:
    settings: dict[str, Any] = {
        "default.api.timeout.ms": timeout_ms(options),
        "auto.offset.reset": "earliest",  # what is deleted while it is read is passed over
        "allow.auto.create.topics": False,
    }
    if options.group:
        settings["group.id"] = options.group
    async with Consumer(settings | client_settings(options)) as consumer:
        partitions = await _partitions(options)
        if options.group:
            await _as_member(consumer, options, render)
            return 0
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        starts = await _seek(consumer, partitions, options.start or BEGINNING, ends)
        if options.exit:
            left = {where: end for where, end in ends.items() if starts[where] < end}
            await _read_to(consumer, left, options.count, render)
        else:
            await _follow(consumer, options.count, render)
    return 0


async def _as_member(consumer: Consumer, options: argparse.Namespace, render: Render) -> None:
    """Reads what the group gives this member; with --exit up to the ends at that moment."""
    joined = asyncio.Event()
    consumer.subscribe(options.topic, on_assigned=lambda _: joined.set())
    if not options.exit:
        await _follow(consumer, options.count, render)
        return
    left: int | None = options.count
    ends: dict[TopicPartition, int] = {}
    done = False
    while not done and (left is None or left > 0):
        records = await consumer.poll(POLL_MS, POLL_RECORDS if left is None else left)
        left = None if left is None else left - len(records)
        _write(records, render)
        mine = consumer.assignment()
        fresh = [where for where in mine if where not in ends]
        if fresh:
            ends |= await consumer.end_offsets(fresh)
        done = joined.is_set() and not records
        for where in mine:
            done = done and await consumer.position(where) >= ends[where]


async def _partitions(options: argparse.Namespace) -> list[TopicPartition]:
    """Those asked for, or all. An `Admin` is told at once when there is no such topic, while a
    consumer would wait for it."""
    async with open_admin(options, beside_another=True) as admin:
        topic = (await admin.describe_topics([options.topic]))[options.topic]
    there = [p.partition for p in topic.partitions]
    wanted = there if options.partition is None else sorted(set(options.partition))
    for partition in wanted:
        if partition not in there:
            raise CommandError(
                f"{options.topic} has no partition {partition}", f"choose one below {len(there)}"
            )
    return [TopicPartition(options.topic, partition) for partition in wanted]


async def _seek(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    place: Place,
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Puts the consumer where it is to begin; the offsets of that."""
    begins = await consumer.beginning_offsets(partitions)
    match place.kind:
        case "beginning":
            starts = dict(begins)
        case "end":
            starts = dict(ends)
        case "last":
            starts = {where: max(begins[where], end - place.number) for where, end in ends.items()}
        case "time":
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, place.number))
            starts = {
                where: ends[where] if at is None else at.offset for where, at in found.items()
            }
        case "offset":
            starts = {
                where: _within(where, place.number, begins[where], ends[where])
                for where in partitions
            }
    for where, offset in starts.items():
        consumer.seek(where, offset)
    return starts


def _within(where: TopicPartition, offset: int, begin: int, end: int) -> int:
    if begin <= offset <= end:
        return offset
    nearest = begin if offset < begin else end
    note(f"{where} has no offset {offset}; reading it from {nearest}")
    return nearest


async def _follow(consumer: Consumer, count: int | None, render: Render) -> None:
    """Writes records as they come, this many or without end."""
    while count is None or count > 0:
        most = POLL_RECORDS if count is None else min(POLL_RECORDS, count)
        records = await consumer.poll(POLL_MS, most)
        if count is not None:
            count -= len(records)
        _write(records, render)


async def _read_to(
    consumer: Consumer, ends: dict[TopicPartition, int], count: int | None, render: Render
) -> None:
    """Writes records up to these offsets, at most so many; partitions without an end are left
    out. A position may pass an offset without a record: a marker, or one that was cleaned away."""
    left = dict(ends)
    consumer.assign(left)  # those that are read keep their positions
    while left and (count is None or count > 0):
        records = [
            record
            for record in await consumer.poll(POLL_MS, POLL_RECORDS)
            if record.offset < ends[TopicPartition(record.topic, record.partition)]
        ][:count]
        if count is not None:
            count -= len(records)
        _write(records, render)
        for where in [w for w, end in left.items() if await consumer.position(w) >= end]:
            del left[where]
            consumer.pause(where)


def _write(records: Sequence[ConsumerRecord[Any, Any]], render: Render) -> None:
    if records:
        out = sys.stdout.buffer
        out.write(b"".join([render(record) for record in records]))
        out.flush()
