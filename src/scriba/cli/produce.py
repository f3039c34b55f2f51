"""`scriba produce`: one record for each line.

A thread reads, so that the event loop can send meanwhile, and so that a terminal or a pipe that
says nothing for a while holds up neither the sending nor Ctrl-C. The first record that fails ends
the work, named by its line.
"""

import argparse
import asyncio
import contextlib
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from scriba.cli.envelope import Outgoing, from_line
from scriba.cli.output import counted, size
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import client_settings, run_session, timeout_ms
from scriba.client import BufferFull, ClientError, Delivery, Producer, TimedOut

CHUNK: Final = 1 << 16
CHUNKS_AHEAD: Final = 16
LONGEST_LINE: Final = 64 << 20
FAREWELL_MS: Final = 5_000
"""How long records that were read get to be sent after Ctrl-C, or after one that failed."""

REPORT_SECONDS: Final = 0.5

Parse = Callable[[bytes], Outgoing | None]


def run(options: argparse.Namespace) -> int:
    if options.json and options.key_separator is not None:
        raise Misuse("--key-separator says nothing about --json; drop one of the two")
    if options.repartition and not options.json:
        raise Misuse("--repartition is about the partitions in lines of --json; drop it")
    if options.repartition and options.partition is not None:
        raise Misuse("--partition and --repartition contradict each other; drop one of the two")
    if options.key_separator == "":
        raise Misuse("--key-separator is empty", "give the text between key and value")
    parse = _json_line if options.json else _plain_line(options.key_separator)
    if options.file in (None, "-"):
        if sys.stdin is None:
            raise CommandError("standard input is closed", "name a file to read")
        return run_session(options, _produce(options, sys.stdin.fileno(), parse))
    with open(options.file, "rb", buffering=0) as file:
        return run_session(options, _produce(options, file.fileno(), parse))


async def _produce(options: argparse.Namespace, source: int, parse: Parse) -> int:
    settings = {
        "max.block.ms": timeout_ms(options),  # for the topic to be found
        "compression.type": options.compression,
    }
    async with Producer(settings | client_settings(options)) as producer:
        await producer.partitions(options.topic)
        work = Work(producer, options, parse)
        progress = Progress(source) if _watched(options) else None
        try:
            async for chunk in read_ahead(source):
                await work.take(chunk)
                if progress is not None:
                    progress.show(work.sent, work.bytes)
            await work.finish()
        except asyncio.CancelledError:
            await _farewell(producer)
            raise
        except CommandError as error:
            await _farewell(producer)
            written = counted(work.written, "record was", "records were")
            raise CommandError(str(error), f"{written} written") from error
        finally:
            if progress is not None:
                progress.end(work.written, work.bytes)
    return 0


async def _farewell(producer: Producer) -> None:
    with contextlib.suppress(TimedOut):
        await producer.flush(FAREWELL_MS)


def _watched(options: argparse.Namespace) -> bool:
    return options.file not in (None, "-") and not options.quiet


class Work:
    """From bytes to records that a broker has."""

    def __init__(self, producer: Producer, options: argparse.Namespace, parse: Parse) -> None:
        self._producer = producer
        self._topic: str = options.topic
        self._partition: int | None = options.partition
        self._repartition: bool = options.repartition
        self._headers = [(name, value.encode()) for name, value in options.header]
        self._parse = parse
        self._rest = b""
        self._line = 0
        self._under_way: deque[tuple[int, Delivery]] = deque()
        self.sent = 0
        self.bytes = 0

    @property
    def written(self) -> int:
        """Records that a broker has for certain."""
        lost = sum(not d.done() or d.exception() is not None for _, d in self._under_way)
        return self.sent - lost

    async def take(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise CommandError(f"line {self._line + 1} is longer than {size(LONGEST_LINE)}")
        await self._send(lines)
        self._reap()

    async def finish(self) -> None:
        """The last line may lack its end."""
        if self._rest:
            await self._send([self._rest])
        await self._producer.flush()
        self._reap()

    async def _send(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._line += 1
            try:
                record = self._parse(line)
            except ValueError as error:
                raise CommandError(f"line {self._line} {error}") from None
            if record is None:
                continue
            while (delivery := self._put(record)) is None:
                with contextlib.suppress(ClientError):  # told by the next line
                    await self._under_way[0][1]
                self._reap()
            self._under_way.append((self._line, delivery))
            self.sent += 1

    def _put(self, record: Outgoing) -> Delivery | None:
        """Puts a record on its way; None when another one has to arrive first."""
        partition = self._partition if record.partition is None else record.partition
        try:
            return self._producer.send_nowait(
                self._topic,
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

    def _reap(self) -> None:
        """Forgets the records that have arrived; raises if one did not."""
        while self._under_way and self._under_way[0][1].done():
            line, delivery = self._under_way[0]
            error = delivery.exception()
            if error is not None:
                raise CommandError(f"line {line}: {error}") from error
            self._under_way.popleft()


# -- lines ---------------------------------------------------------------------------------------


def _plain_line(key_separator: str | None) -> Parse:
    if key_separator is None:
        return Outgoing
    separator = key_separator.encode()

    def parse(line: bytes) -> Outgoing:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"has no key: {key_separator!r} is not in it")
        return Outgoing(value, key)

    return parse


def _json_line(line: bytes) -> Outgoing | None:
    return from_line(line) if line.strip() else None


async def read_ahead(source: int) -> AsyncIterator[bytes]:
    """What can be read from a descriptor, piece by piece until its end.

    The thread is not waited for: it may be in a read that never ends.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)

    def read() -> None:
        piece: bytes | OSError = b"more"
        while isinstance(piece, bytes) and piece:
            room.acquire()
            try:
                piece = os.read(source, CHUNK)
            except OSError as error:
                piece = error
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:
                return  # the loop is closed: nobody waits for it any more

    threading.Thread(target=read, name="scriba-input", daemon=True).start()
    while piece := await pieces.get():
        if isinstance(piece, OSError):
            raise piece
        yield piece
        room.release()


class Progress:
    """How far a file is, on standard error: a line that is written over if that is a terminal."""

    def __init__(self, source: int) -> None:
        self._began = self._shown = time.monotonic()
        status = os.fstat(source)
        self._total = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._terminal = sys.stderr.isatty()

    def show(self, records: int, done: int) -> None:
        now = time.monotonic()
        if self._terminal and now - self._shown >= REPORT_SECONDS:
            self._shown = now
            share = f"{100 * done // self._total:3d}%, " if self._total else ""
            line = f"{share}{self._told(records, done, now)}"
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    def end(self, records: int, done: int) -> None:
        start = "\r\033[K" if self._terminal else ""
        print(f"{start}{self._told(records, done, time.monotonic())}", file=sys.stderr)

    def _told(self, records: int, done: int, now: float) -> str:
        seconds = max(now - self._began, 1e-3)
        return (
            f"{counted(records, 'record')}, {size(done)} in {seconds:.1f} s "
            f"({records / seconds:,.0f} records/s)"
        )
