"""What a service has read of the topics, on its local disk: a cache that knows where it stands.

One SQLite file holds the positions and what was read up to them, changed together in one
transaction, so that a service that was killed goes on exactly where its file is. The file may be
deleted at any time; it is made again from the topics. It belongs to one cluster and to the topics
by their ids: made for others, it is thrown away.

The books are checked while they are written: an event that does not follow from the one before it
(`version`, `stock`) is damage, and nothing is believed any more until somebody has looked.

Writes come from one thread, reads from another; each has a connection of its own.
"""

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scriba.client import TopicPartition
from scriba.pipelines.inventory.decide import Books, Level
from scriba.pipelines.inventory.model import Command, Event, Malformed, decode_event
from scriba.pipelines.inventory.topics import Names

FILE: Final = "books.sqlite"
LAYOUT: Final = "1"

_TABLES: Final = """
create table if not exists facts (name text primary key, value text) without rowid;
create table if not exists positions (
    topic text, part integer, next integer, primary key (topic, part)
) without rowid;
create table if not exists stock (
    item text primary key, stock integer, version integer, event text, part integer, at integer
) without rowid;
create table if not exists history (
    item text, version integer, stock integer, command text, line integer, sequence integer,
    event text, part integer, at integer, primary key (item, version)
) without rowid;
create index if not exists by_command on history (command, line);
create index if not exists by_sequence on history (sequence);
"""


class BooksDamaged(Exception):
    """The topics say what no writer of ours can have written. The message names the place."""


class StoreInUse(Exception):
    """Another process has the folder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Told:
    """An event and where it is in its topic."""

    event: Event
    partition: int
    offset: int


class Store:
    def __init__(self, folder: Path, names: Names) -> None:
        self._folder = folder
        self._names = names
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StoreInUse(
                f"{folder} belongs to a service that runs; give each its own folder with --data"
            ) from None
        self._write, self._read = self._connect()

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        try:
            return self._open(), self._open()
        except sqlite3.DatabaseError:
            self._delete()
            return self._open(), self._open()

    def _open(self) -> sqlite3.Connection:
        path = self._folder / FILE
        made = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        made.execute("pragma journal_mode=wal")
        # What a power cut takes is read again: the positions go with it.
        made.execute("pragma synchronous=normal")
        made.executescript(_TABLES)
        return made

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / (FILE + suffix))

    def close(self) -> None:
        self._write.close()
        self._read.close()
        self._lock.close()

    def facts(self) -> dict[str, str]:
        """What the file was made for; empty when it is new."""
        return dict(self._read.execute("select name, value from facts"))

    def belongs_to(self, identity: Mapping[str, str]) -> bool:
        """Whether the file is of these topics; one of others is emptied, and told about."""
        wanted = {"layout": LAYOUT, **identity}
        found = self.facts()
        if found == wanted:
            return True
        self._write.close()
        self._read.close()
        self._delete()
        self._write, self._read = self._connect()
        self._write.executemany("insert into facts values (?, ?)", wanted.items())
        return not found

    # -- writing ---------------------------------------------------------------------------------

    def apply(self, entries: Iterable[Entry], positions: Mapping[TopicPartition, int]) -> None:
        """Takes records and the positions behind them, both or neither."""
        write = self._write
        write.execute("begin immediate")
        try:
            for entry in entries:
                self._take(entry)
            write.executemany(
                "insert or replace into positions values (?, ?, ?)",
                [(*where, offset) for where, offset in positions.items()],
            )
            write.execute("commit")
        except BaseException:
            write.execute("rollback")
            raise

    def _take(self, entry: Entry) -> None:
        where = f"{entry.topic}-{entry.partition} at offset {entry.offset}"
        try:
            event = decode_event(entry.value)
        except Malformed as damage:
            raise BooksDamaged(f"{where}: {damage}") from None
        if entry.key != event.item.encode():
            raise BooksDamaged(f"{where}: the key is not the item {event.item}")
        if entry.topic == self._names.audit:
            self._chain(entry, event, where)
        else:
            self._latest(entry, event, where)

    def _chain(self, entry: Entry, event: Event, where: str) -> None:
        """The next event of an item follows from the last."""
        found = self._write.execute(
            "select stock, version from history where item = ? order by version desc limit 1",
            (event.item,),
        ).fetchone()
        level = Level(*found) if found else Level()
        if (event.version, event.stock) != (level.version + 1, level.stock + event.change):
            raise BooksDamaged(
                f"{where}: {event.item} has version {event.version} and stock {event.stock}, after "
                f"version {level.version}, stock {level.stock} and a change of {event.change}"
            )
        row = (event.item, event.version, event.stock, event.command, event.line, event.sequence)
        place = (_text(entry), entry.partition, entry.offset)
        self._write.execute("insert into history values (?,?,?,?,?,?,?,?,?)", row + place)

    def _latest(self, entry: Entry, event: Event, where: str) -> None:
        """Compaction may have left out versions, but never turns them round."""
        found = self._write.execute(
            "select version from stock where item = ?", (event.item,)
        ).fetchone()
        if found and found[0] >= event.version:
            raise BooksDamaged(
                f"{where}: {event.item} has version {event.version} after version {found[0]}"
            )
        row = (event.item, event.stock, event.version, _text(entry), entry.partition, entry.offset)
        self._write.execute("insert or replace into stock values (?,?,?,?,?,?)", row)

    # -- reading ---------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        rows = self._read.execute("select topic, part, next from positions")
        return {TopicPartition(topic, part): offset for topic, part, offset in rows}

    def books(self, command: Command) -> Books:
        """What decides a command. Both topics have to say the same."""
        earlier = self.command(command.id)
        levels = {}
        for line in command.lines:
            level, audited = self._level("stock", line.item), self._level("history", line.item)
            if level != audited:
                raise BooksDamaged(
                    f"{self._names.events} and {self._names.audit} differ about {line.item}: "
                    f"{level} and {audited}"
                )
            levels[line.item] = level
        last = self._read.execute("select max(sequence) from history").fetchone()[0]
        return Books(levels, tuple(told.event for told in earlier), last or 0)

    def _level(self, table: str, item: str) -> Level:
        found = self._read.execute(
            f"select stock, version from {table} where item = ? order by version desc limit 1",
            (item,),
        ).fetchone()
        return Level(*found) if found else Level()

    def stock(self, item: str) -> Told | None:
        found = self._told("select event, part, at from stock where item = ?", item)
        return found[0] if found else None

    def stocks(self, after: str, limit: int) -> list[Told]:
        return self._told(
            "select event, part, at from stock where item > ? order by item limit ?", after, limit
        )

    def history(self, item: str, after: int, limit: int) -> list[Told]:
        return self._told(
            "select event, part, at from history where item = ? and version > ? "
            "order by version limit ?",
            item,
            after,
            limit,
        )

    def command(self, name: str) -> list[Told]:
        """The events of a command, in the order of its lines."""
        return self._told(
            "select event, part, at from history where command = ? order by line", name
        )

    def counts(self) -> dict[str, int]:
        query = "select (select count(*) from stock), (select count(*) from history)"
        items, events = self._read.execute(query).fetchone()
        return {"items": items, "events": events}

    def _told(self, query: str, *values: Any) -> list[Told]:
        rows = self._read.execute(query, values).fetchall()
        return [Told(decode_event(text.encode()), part, at) for text, part, at in rows]


def _text(entry: Entry) -> str:
    """As it was written; only Unicode is stored, and JSON is."""
    assert entry.value is not None
    return json.dumps(json.loads(entry.value), ensure_ascii=False, separators=(",", ":"))
