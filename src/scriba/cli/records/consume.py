"""`scriba consume`: records of topics to standard output."""

import argparse
import asyncio
import contextlib
import re
import select
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from scriba.cli.output import note, warn
from scriba.cli.parsing.positions import BEGINNING, Position
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.records.arguments import refuse_commas
from scriba.cli.records.envelope import to_line
from scriba.cli.records.template import Render, compile_template, key_and_value
from scriba.cli.records.waiting import watched
from scriba.cli.session import client_settings, open_admin, run_session, timeout_ms
from scriba.cli.stops import until_stopped
from scriba.cli.topics.gone import still_there
from scriba.client import (
    Admin,
    ClientError,
    Consumer,
    ConsumerRecord,
    OffsetAndMetadata,
    TopicPartition,
)

POLL_MS: Final = 200
POLL_RECORDS: Final = 2_000
FAREWELL_MS: Final = 5_000
"""How long the last commit may take after a signal."""

GROWTH_SECONDS: Final = 5.0
"""How often new partitions, and new topics of a pattern, are looked for."""

Record = ConsumerRecord[Any, Any]


def run(options: argparse.Namespace) -> int:
    _check(options)
    if sys.stdout is None:
        raise CommandError("standard output is closed", "name a file, or /dev/null")
    return run_session(options, until_stopped(_consume(options, Output(_render(options)))))


def _check(options: argparse.Namespace) -> None:
    ways = {
        "--json": options.json,
        "--format": options.format is not None,
        "--key-separator": options.key_separator is not None,
    }
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) > 1:
        raise Misuse(
            f"{given[0]} and {given[1]} both say how to write a record", "drop one of the two"
        )
    if options.json and options.null_marker is not None:
        raise Misuse("--null-marker says nothing about --json", "drop one of the two")
    if bool(options.topics) == (options.pattern is not None):
        raise Misuse("say what to read", "name topics, or give --pattern; not both")
    refuse_commas(options.topics)
    if options.group and (options.partition is not None or options.start is not None):
        raise Misuse(
            "a group decides itself which partitions it reads, and from where",
            "drop --partition and --from; `scriba group reset` moves a group",
        )


def _render(options: argparse.Namespace) -> Render:
    """Bytes of a record. On a terminal what it would obey is written out, unless --raw."""
    if options.json:
        return lambda record: to_line(record).encode() + b"\n"
    escape = sys.stdout.isatty() and not options.raw
    null = (options.null_marker or "").encode()
    if options.format is None:
        return key_and_value(options.key_separator, null, escape)
    return compile_template(options.format, null, escape)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Those of the consumer. One that is no member commits nothing, though a profile may name a
    group: by itself a consumer would commit what it was given, and not what was written."""
    before: dict[str, Any] = {
        "default.api.timeout.ms": timeout_ms(options),
        "auto.offset.reset": "earliest",  # what is deleted while it is read is passed over
        "allow.auto.create.topics": False,
    }
    after = {"group.id": options.group} if options.group else {"enable.auto.commit": False}
    return before | client_settings(options, "consumer") | after


async def _consume(options: argparse.Namespace, output: "Output") -> int:
    async with (
        Consumer(_settings(options)) as consumer,
        open_admin(options, beside_another=True) as admin,
        watched(consumer),
    ):
        partitions = await _partitions(admin, options)
        if options.group:
            await _as_member(consumer, options, output)
            return 0
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        starts = await _seek(consumer, partitions, options.start or BEGINNING, ends)
        if options.exit:
            left = {where: end for where, end in ends.items() if starts[where] < end}
            await _read_to(consumer, left, options.count, output)
        else:
            growth = (
                None if options.partition is not None else NewPartitions(admin, options, consumer)
            )
            await _follow(consumer, options.count, output, growth)
    return 0


class Output:
    """Standard output, and how far each partition has come there."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._poll = select.poll()
        self._poll.register(sys.stdout.fileno(), 0)  # only whether the other end is closed
        self.written: dict[TopicPartition, OffsetAndMetadata] = {}

    def write(self, records: Sequence[Record]) -> None:
        """BrokenPipeError when nobody reads it any more, also when there is nothing to write."""
        if not records:
            if any(what & select.POLLERR for _, what in self._poll.poll(0)):
                raise BrokenPipeError
            return
        out = sys.stdout.buffer
        out.write(b"".join([self._render(record) for record in records]))
        out.flush()
        last = {(record.topic, record.partition): record for record in records}
        for where, record in last.items():
            place = OffsetAndMetadata(record.offset + 1, leader_epoch=record.leader_epoch)
            self.written[TopicPartition(*where)] = place


# -- as a member of a group ----------------------------------------------------------------------


async def _as_member(consumer: Consumer, options: argparse.Namespace, output: Output) -> None:
    """Reads what the group gives this member; with --exit up to the ends at that moment.

    Whatever ends it, the group goes on behind the last record that was written.
    """
    joined = asyncio.Event()
    consumer.subscribe(options.topics, pattern=options.pattern, on_assigned=lambda _: joined.set())
    try:
        if options.exit:
            await _read_share(consumer, joined, options.count, output)
        else:
            await _follow(consumer, options.count, output)
    except BaseException:
        # A consumer that is closed by an error commits nothing by itself, and takes its time.
        if consumer.settings.enable_auto_commit:
            await _commit(consumer, output)
        await consumer.close(FAREWELL_MS, commit=False)
        raise


async def _commit(consumer: Consumer, output: Output) -> None:
    mine = set(consumer.assignment())
    offsets: dict[tuple[str, int], int | OffsetAndMetadata] = {
        where: place for where, place in output.written.items() if where in mine
    }
    if not offsets:
        return
    try:
        await consumer.commit(offsets, FAREWELL_MS)
    except ClientError as error:
        warn(f"what was read last could not be committed and will be read again: {error}")


async def _read_share(
    consumer: Consumer, joined: asyncio.Event, count: int | None, output: Output
) -> None:
    left = count
    ends: dict[TopicPartition, int] = {}
    done = False
    while not done and (left is None or left > 0):
        records = await consumer.poll(POLL_MS, POLL_RECORDS if left is None else left)
        left = None if left is None else left - len(records)
        output.write(records)
        mine = consumer.assignment()
        fresh = [where for where in mine if where not in ends]
        if fresh:
            ends |= await consumer.end_offsets(fresh)
        done = joined.is_set()
        for where in mine:
            done = done and await consumer.position(where) >= ends[where]


# -- by assignment -------------------------------------------------------------------------------


async def _topics(admin: Admin, options: argparse.Namespace) -> list[str]:
    if options.pattern is None:
        return list(dict.fromkeys(options.topics))
    matches = re.compile(options.pattern).fullmatch
    return [topic.name for topic in await admin.list_topics() if matches(topic.name)]


async def _partitions(admin: Admin, options: argparse.Namespace) -> list[TopicPartition]:
    """Those asked for, or all. An `Admin` is told at once when there is no such topic, while a
    consumer would wait for it."""
    names = await _topics(admin, options)
    if not names:
        note(f"no topic matches {options.pattern} yet")
        return []
    found: list[TopicPartition] = []
    asked = admin.describe_topics(names)
    topics = await (asked if options.pattern is None else still_there(asked))
    for name, topic in topics.items():
        there = [p.partition for p in topic.partitions]
        wanted = there if options.partition is None else sorted(set(options.partition))
        for partition in wanted:
            if partition not in there:
                raise CommandError(
                    f"{name} has no partition {partition}", f"choose one below {len(there)}"
                )
        found += [TopicPartition(name, partition) for partition in wanted]
    return found


class NewPartitions:
    """Partitions that come while it reads: of the topics, or of new topics that match."""

    def __init__(self, admin: Admin, options: argparse.Namespace, consumer: Consumer) -> None:
        self._admin = admin
        self._options = options
        self._consumer = consumer
        self._next = time.monotonic() + GROWTH_SECONDS

    async def look(self) -> None:
        if time.monotonic() < self._next:
            return
        with contextlib.suppress(ClientError):  # what is in the way, the consumer meets as well
            names = await _topics(self._admin, self._options)
            described = await self._admin.describe_topics(names) if names else {}
            there = [
                TopicPartition(topic.name, p.partition)
                for topic in described.values()
                for p in topic.partitions
            ]
            mine = self._consumer.assignment()
            fresh = [where for where in there if where not in mine]
            if fresh:
                self._consumer.assign([*mine, *fresh])
                self._consumer.seek_to_beginning(*fresh)
        self._next = time.monotonic() + GROWTH_SECONDS


async def _seek(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    place: Position,
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


async def _follow(
    consumer: Consumer, count: int | None, output: Output, growth: NewPartitions | None = None
) -> None:
    """Writes records as they come, this many or without end."""
    while count is None or count > 0:
        most = POLL_RECORDS if count is None else min(POLL_RECORDS, count)
        if growth is not None and not consumer.assignment():
            records: list[Record] = []
            await asyncio.sleep(POLL_MS / 1000)  # a consumer without partitions refuses to poll
        else:
            records = await consumer.poll(POLL_MS, most)
        if count is not None:
            count -= len(records)
        output.write(records)
        if growth is not None:
            await growth.look()


async def _read_to(
    consumer: Consumer, ends: dict[TopicPartition, int], count: int | None, output: Output
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
        output.write(records)
        for where in [w for w, end in left.items() if await consumer.position(w) >= end]:
            del left[where]
            consumer.pause(where)
