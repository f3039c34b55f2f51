"""`scriba produce`: one record for each line, in every topic that was named.

With --json and no topic a line goes to the topic that it names itself. The first record that fails
ends the work, named by its line. A signal ends it as the end of the input does: what has been read
is written first.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from scriba.cli.output import counted, note, print_event, size, warn
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.records.arguments import refuse_commas
from scriba.cli.records.envelope import Outgoing, from_line
from scriba.cli.records.reading import Input
from scriba.cli.records.waiting import watched
from scriba.cli.session import client_settings, run_session, timeout_ms
from scriba.cli.stops import until_stopped
from scriba.client import BufferFull, ClientError, Delivery, Producer, TimedOut

LONGEST_LINE: Final = 64 << 20
FAREWELL_MS: Final = 5_000
"""How long records that were read get to be sent after a signal, or after one that failed."""

REPORT_SECONDS: Final = 0.5
PATTERN: Final = frozenset("*+?|^$\\()[]{}")
"""No name of a topic has one of these; a regular expression does."""

Parse = Callable[[bytes], Outgoing | None]


def run(options: argparse.Namespace) -> int:
    options.topics, options.file = sort_words(options.words, os.path.isfile)
    if not options.topics and not options.json:
        raise Misuse("say where to write", "name one topic or more")
    parse = _parser(options)
    if options.file in (None, "-"):
        if sys.stdin is None:
            raise CommandError("standard input is closed", "name a file to read")
        if sys.stdin.isatty() and not options.quiet:
            each = " in each topic" if len(options.topics) > 1 else ""
            note(f"each line becomes a record{each}; Ctrl-D ends the input")
        return run_session(options, until_stopped(_produce(options, sys.stdin.fileno(), parse)))
    with open(options.file, "rb", buffering=0) as file:
        return run_session(options, until_stopped(_produce(options, file.fileno(), parse)))


def sort_words(
    words: Sequence[str], is_file: Callable[[str], bool]
) -> tuple[list[str], str | None]:
    """The topics, and the file to read if the last word is one: `-`, or one with a slash, which no
    topic has in its name. What could be meant as either is asked back."""
    named = bool(words) and (words[-1] == "-" or "/" in words[-1])
    topics = list(dict.fromkeys(words[:-1] if named else words))
    refuse_commas(topics)
    for topic in topics:
        if "/" in topic:
            raise Misuse(f"{topic} is not the name of a topic", "a file to read comes last")
        if not PATTERN.isdisjoint(topic):
            raise Misuse(
                f"{topic} is not the name of a topic",
                "records are written to topics by name, only consume takes a --pattern",
            )
    for topic in topics[1:]:
        if not named and is_file(topic):
            raise Misuse(
                f"{topic} may be a topic, and is a file here",
                f"write ./{topic} to read it, or - at the end to read standard input",
            )
    return topics, words[-1] if named else None


async def _produce(options: argparse.Namespace, source: int, parse: Parse) -> int:
    settings = {
        "max.block.ms": timeout_ms(options),  # for the topic to be found
        "compression.type": options.compression,
    }
    async with Producer(settings | client_settings(options, "producer")) as producer:
        async with watched(producer):
            try:
                for topic in options.topics:
                    await producer.partitions(topic)
            except asyncio.CancelledError:
                warn(f"nothing was read, and nothing written{_because(producer.trouble)}")
                raise
        work = LineProducer(producer, options, parse)
        input = Input(source)
        progress = Progress(input.size) if _watched(options) else None
        async with watched(producer, patience=0):
            try:
                async for chunk in input.pieces():
                    await work.take(chunk)
                    if progress is not None:
                        progress.show(work.sent, work.bytes)
                await work.finish()
            except asyncio.CancelledError:
                await _wind_up(work, input)
                raise
            except CommandError as error:
                await work.flush()
                written = counted(work.written, "record was", "records were")
                raise CommandError(f"{error}; {written} written") from error
            finally:
                if progress is not None:
                    progress.end(work.written, work.bytes)
    return 0


async def _wind_up(work: "LineProducer", input: Input) -> None:
    """After a signal: writes what has been read, and says what is lost."""
    input.stop()
    try:
        async with asyncio.timeout(FAREWELL_MS / 1000):
            async for chunk in input.pieces():
                await work.take(chunk)
            await work.send()
            await work.flush()
            work.reap()
    except TimeoutError:
        pass
    except CommandError as error:
        warn(str(error))
    if work.unwritten:
        lost = counted(work.unwritten, "record that was read was", "records that were read were")
        warn(f"{lost} not written{_because(work.trouble)}")
    if work.unfinished:
        warn(f"the last line had no end and was not sent ({size(work.unfinished)})")


def _because(trouble: ClientError | None) -> str:
    return f": {trouble}" if trouble is not None else ""


def _watched(options: argparse.Namespace) -> bool:
    return options.file not in (None, "-") and not options.quiet


class LineProducer:
    """From bytes to records that a broker has."""

    def __init__(self, producer: Producer, options: argparse.Namespace, parse: Parse) -> None:
        self._producer = producer
        self._topics: list[str] = options.topics
        self._found = set(self._topics)
        self._partition: int | None = options.partition
        self._repartition: bool = options.repartition
        self._headers = [(name, value.encode()) for name, value in options.header]
        self._parse = parse
        self._rest = b""
        self._lines: deque[bytes] = deque()
        """Read and not sent: a signal may come while there is no room for them."""
        self._line = 0
        self._ready: deque[tuple[str, Outgoing]] = deque()
        """Of the line with that number, what is not sent yet."""
        self._under_way: deque[tuple[int, Delivery]] = deque()
        self.sent = 0
        self.bytes = 0

    @property
    def written(self) -> int:
        """Records that a broker has for certain."""
        return self.sent - self._lost

    @property
    def unwritten(self) -> int:
        """Records that were read and are not known to be written."""
        return self._lost + len(self._ready) + len(self._lines) * max(1, len(self._topics))

    @property
    def unfinished(self) -> int:
        """Bytes of the last line, which has no end yet."""
        return len(self._rest)

    @property
    def trouble(self) -> ClientError | None:
        return self._producer.trouble

    @property
    def _lost(self) -> int:
        return sum(not d.done() or d.exception() is not None for _, d in self._under_way)

    async def take(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._lines.extend(lines)
        if len(self._rest) > LONGEST_LINE:
            raise CommandError(f"line {self._line + 1} is longer than {size(LONGEST_LINE)}")
        await self.send()
        self.reap()

    async def finish(self) -> None:
        """The last line may lack its end."""
        if self._rest:
            self._lines.append(self._rest)
            self._rest = b""
            await self.send()
        await self._producer.flush()
        self.reap()

    async def flush(self) -> None:
        """Gives what is on its way a last chance."""
        with contextlib.suppress(TimedOut):
            await self._producer.flush(FAREWELL_MS)

    async def send(self) -> None:
        """Puts all whole lines on their way, from where an earlier call was ended."""
        while self._ready or self._lines:
            if not self._ready:
                self._line += 1
                self._ready.extend(self._records(self._lines[0]))
                self._lines.popleft()
            while self._ready:
                topic, record = self._ready[0]
                if topic not in self._found:
                    await self._find(topic)
                while (delivery := self._put(topic, record)) is None:
                    with contextlib.suppress(ClientError):  # told by the next line
                        await self._under_way[0][1]
                    self.reap()
                self._under_way.append((self._line, delivery))
                self.sent += 1
                self._ready.popleft()

    def _records(self, line: bytes) -> list[tuple[str, Outgoing]]:
        """What becomes of a line, and where."""
        try:
            record = self._parse(line)
        except ValueError as error:
            raise CommandError(f"line {self._line} {error}") from None
        if record is None:
            return []
        if self._topics:
            return [(topic, record) for topic in self._topics]
        if record.topic is None:
            raise CommandError(f"line {self._line} has no topic, and none is named after `produce`")
        return [(record.topic, record)]

    async def _find(self, topic: str) -> None:
        """Learns of a topic that a line names."""
        try:
            await self._producer.partitions(topic)
        except ClientError as error:
            raise CommandError(f"line {self._line}: {error}") from error
        self._found.add(topic)

    def _put(self, topic: str, record: Outgoing) -> Delivery | None:
        """Puts a record on its way; None when another one has to arrive first."""
        partition = self._partition if record.partition is None else record.partition
        try:
            return self._producer.send_nowait(
                topic,
                record.value,
                record.key,
                partition=None if self._repartition else partition,
                timestamp=record.timestamp,
                headers=(*record.headers, *self._headers),
            )
        except BufferFull:
            if not self._under_way:
                raise
            return None
        except ClientError as error:
            raise CommandError(f"line {self._line}: {error}") from error

    def reap(self) -> None:
        """Forgets the records that have arrived; raises if one did not."""
        while self._under_way and self._under_way[0][1].done():
            line, delivery = self._under_way[0]
            error = delivery.exception()
            if error is not None:
                raise CommandError(f"line {line}: {error}") from error
            self._under_way.popleft()


# -- lines ---------------------------------------------------------------------------------------


def _parser(options: argparse.Namespace) -> Parse:
    """How a line becomes a record; options that contradict each other are refused."""
    plain = {
        "--key-separator": options.key_separator is not None,
        "--key": options.key is not None,
        "--null-marker": options.null_marker is not None,
        "--tombstone": options.tombstone,
    }
    given = [name for name, is_given in plain.items() if is_given]
    if options.json and given:
        raise Misuse(f"{given[0]} says nothing about --json", "drop one of the two")
    if options.repartition and not options.json:
        raise Misuse("--repartition is about the partitions in lines of --json", "drop it")
    if options.repartition and options.partition is not None:
        raise Misuse("--partition and --repartition contradict each other", "drop one of the two")
    if options.key_separator == "":
        raise Misuse("--key-separator is empty", "give the text between key and value")
    if options.tombstone and len(given) > 1:
        raise Misuse(f"with --tombstone a line is a key, {given[0]} says otherwise", "drop one")
    if options.key is not None and options.key_separator is not None:
        raise Misuse("--key and --key-separator both say what the key is", "drop one of the two")
    if options.json:
        return _json_line
    if options.tombstone:
        return _tombstone
    return _plain_line(options.key_separator, options.key, options.null_marker)


def _plain_line(key_separator: str | None, key: str | None, null_marker: str | None) -> Parse:
    if key_separator is None and key is None and null_marker is None:
        return Outgoing
    separator = None if key_separator is None else key_separator.encode()
    one_key = None if key is None else key.encode()
    null = None if null_marker is None else null_marker.encode()

    def parse(line: bytes) -> Outgoing:
        if separator is None:
            return Outgoing(None if line == null else line, one_key)
        name, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"has no key: {key_separator!r} is not in it")
        return Outgoing(None if value == null else value, None if name == null else name)

    return parse


def _tombstone(line: bytes) -> Outgoing:
    if not line:
        raise ValueError("is empty; --tombstone needs a key in each line")
    return Outgoing(None, line)


def _json_line(line: bytes) -> Outgoing | None:
    return from_line(line) if line.strip() else None


class Progress:
    """How far a file is, on standard error: a line that is written over if that is a terminal."""

    def __init__(self, total: int | None) -> None:
        self._began = self._shown = time.monotonic()
        self._total = total or 0
        self._terminal = sys.stderr.isatty()

    def show(self, records: int, done: int) -> None:
        now = time.monotonic()
        if self._terminal and now - self._shown >= REPORT_SECONDS:
            self._shown = now
            share = f"{100 * done // self._total:3d}%, " if self._total else ""
            line = f"{share}{self._told(records, done, now)}"
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def end(self, records: int, done: int) -> None:
        now = time.monotonic()
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr)
        figures = {"records": records, "bytes": done, "seconds": round(now - self._began, 3)}
        print_event(self._told(records, done, now), {"done": figures})

    def _told(self, records: int, done: int, now: float) -> str:
        seconds = max(now - self._began, 1e-3)
        return (
            f"{counted(records, 'record')}, {size(done)} in {seconds:.1f} s "
            f"({records / seconds:,.0f} records/s)"
        )
