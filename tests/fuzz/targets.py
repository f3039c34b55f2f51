"""What is called with foreign bytes: a target takes a view of them and raises where it must not.

The first bytes of an input choose the arguments, the rest is what came from outside. The answers of
the extension and of the fallback have to be equal, and so do the types of their errors: of two
faults in a record either may be named.
"""

import ctypes
import os
import struct
import threading
from array import array
from collections.abc import Callable
from typing import Any, Final

from scriba.broker.fastpath.fetch.located import FIELDS as FETCH_FIELDS
from scriba.broker.fastpath.produce import _FIELDS
from scriba.errors import ParseError
from scriba.native import headers, implementation
from scriba.records.crc import crc32c
from scriba.records.header import CRC_OFFSET, CRC_START, HEADER_SIZE, LOG_OVERHEAD
from scriba.wire.locator import plan
from scriba.wire.messages.fetch import FetchRequest
from scriba.wire.messages.produce import ProduceRequest

Target = Callable[[memoryview], None]

ANY_TIME: Final = (-(2**63), 2**63 - 1)
SEED: Final = bytes(range(16))
MOST_BYTES: Final = 1 << 22
EXPECTED: Final = (ParseError, ValueError, OverflowError, TypeError)

FALLBACK: Final = implementation.FALLBACK
NATIVE: Final = implementation.NATIVE or FALLBACK


Presented: Final = type("Presented", (NATIVE.RecordFields,), {"__slots__": ()})
"""What a consumer hands out: made without a call where it inherits the extension's fields."""


class Input:
    """An input as arguments, taken from its front, and what is left of it."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def byte(self) -> int:
        taken, self._view = self._view[:1], self._view[1:]
        return taken[0] if taken else 0

    def number(self) -> int:
        """A number of 64 bits; small ones are as likely as those at the edges."""
        kind = self.byte()
        if kind < 0xF0:
            return kind - 8
        taken, self._view = bytes(self._view[:8]), self._view[8:]
        return int.from_bytes(taken, "big", signed=True)

    def part(self) -> memoryview:
        """As many bytes as a byte tells."""
        size = self.byte()
        taken, self._view = self._view[:size], self._view[size:]
        return taken

    def rest(self) -> memoryview:
        return self._view


def outcome(call: Callable[..., Any], *arguments: Any) -> object:
    try:
        return call(*arguments)
    except EXPECTED as error:
        return type(error)


def same(name: str, *arguments: Any) -> object:
    """What both answer."""
    ours = outcome(getattr(NATIVE, name), *arguments)
    theirs = outcome(getattr(FALLBACK, name), *arguments)
    assert ours == theirs, (name, ours, theirs)
    return ours


def exact(data: bytes | bytearray) -> memoryview:
    """The same in memory that ends with it, where `bytes` and `bytearray` have one byte more."""
    return memoryview((ctypes.c_ubyte * len(data)).from_buffer_copy(data)).cast("B")


def pieces_of(data: memoryview, size: int) -> list[memoryview]:
    return [data[at : at + size] for at in range(0, len(data), size)] if size else [data]


# ---- what a produce or a fetch brings ----


def records(view: memoryview) -> None:
    """The records of a batch: decoded, judged whole and in pieces, handed out, by column."""
    taken = Input(view)
    count, base, timestamp, first = (taken.number() for _ in range(4))
    flags, size = taken.byte(), taken.byte()
    data = taken.rest()
    append_time = timestamp if flags & 1 else None
    same("decode_records", data, count, base, timestamp, append_time)
    rules = (count, timestamp, bool(flags & 2), first, first + size if flags & 4 else 2**63 - 1)
    for cut in (0, size):
        pieces = pieces_of(data, cut)
        same("check_records", pieces, *rules)
        same("blame_records", pieces, *rules, 1 + flags % 5)
        same("find_record", pieces, count, timestamp, flags % 3, first, *ANY_TIME)
    meta = ("topic", 3, 1, 7)
    made = (data, count, base, timestamp, append_time, first)
    same("present_records", *made, lambda *fields: fields, *meta)
    handed = outcome(NATIVE.present_records, *made, Presented, *meta)
    if isinstance(handed, list):
        assert all(isinstance(each.headers, tuple) for each in handed)
    _columns(data, (count, base, timestamp, append_time, first, first + 3))


def _columns(data: memoryview, arguments: tuple[Any, ...]) -> None:
    ours, theirs = NATIVE.Columns(), FALLBACK.Columns()
    for _ in range(2):
        assert outcome(ours.add, data, *arguments) == outcome(theirs.add, data, *arguments)
    assert (ours.rows, ours.bytes) == (theirs.rows, theirs.bytes)
    assert ours.take() == theirs.take()


_PLANS: Final = {version: plan(ProduceRequest, version, _FIELDS) for version in (3, 9, 13)}
_FETCHES: Final = [plan(FetchRequest, version, FETCH_FIELDS) for version in (4, 12, 17)]
_PARTITIONS: Final = {index: str(index) for index in range(3)}


def frames(view: memoryview) -> None:
    """A Produce as it came: where its fields lie, and its batches judged where they lie.

    Or a Fetch: where its fields lie.
    """
    taken = Input(view)
    flags, now, most = taken.byte(), taken.number(), taken.number()
    frame = bytearray(taken.rest())
    if flags & 128:
        same("locate", _FETCHES[flags % 3], exact(frame), most)
        return
    version = (3, 9, 13)[flags % 3]
    located = same("locate", _PLANS[version], exact(frame), most)
    if flags & 16 and isinstance(located, list):
        for begin in range(len(frame)):  # a checksum that no luck would find
            if begin in located and begin + HEADER_SIZE <= len(frame):
                covered = memoryview(frame)[begin + CRC_START : _end(located, begin)]
                struct.pack_into(">I", frame, begin + CRC_OFFSET, crc32c(covered))
    topic = (4000, bool(flags & 32), now, 2**63 - 1 if flags & 64 else now, _PARTITIONS, 3000)
    known = {b"topic": topic, bytes(16): topic}
    arguments = (_PLANS[version], exact(frame), most, known, now, 50_000)
    ours = outcome(NATIVE.judge_produce, *arguments)
    theirs = outcome(FALLBACK.judge_produce, *arguments)
    if isinstance(ours, tuple) and not flags & 32:
        assert ours == theirs, (ours, theirs)


def _end(located: list[int], begin: int) -> int:
    return located[min(located.index(begin) + 1, len(located) - 1)]


# ---- lz4 ----

_FRAME: Final = bytes.fromhex("04224d186040") + b"\x82"
"""The start of a frame of independent blocks of 64 KB."""


def lz4(view: memoryview) -> None:
    """A frame as it came, or one made around a block: what is unpacked is what the library finds.

    The extension may leave any frame to the library. It steps over a checksum of the content, as
    Kafka does, so that the library may refuse what it took.
    """
    taken = Input(view)
    kind, count = taken.byte(), taken.byte() & 7
    frame = bytes(taken.rest())
    if kind & 1:
        frame = _FRAME + struct.pack("<I", len(frame)) + frame + bytes(4)
    elif kind & 2:
        half = len(frame) // 2
        parts = ((half, frame[:half]), (len(frame) - half | 1 << 31, frame[half:]))
        frame = _FRAME + b"".join(struct.pack("<I", size) + part for size, part in parts) + bytes(4)
    most = MOST_BYTES if kind & 4 else kind << 4
    rules = (most, count, 0, bool(kind & 8), *ANY_TIME)
    ours = outcome(NATIVE.check_lz4, exact(frame), *rules)
    theirs = outcome(FALLBACK.check_lz4, frame, *rules)
    if ours is None or theirs is None:
        return
    assert ours == theirs, (ours, theirs)


# ---- compaction ----


def compaction(view: memoryview) -> None:
    """Batches on the disk: their keys go into a map, and what it knows decides what stays.

    Those that a leader sent are walked over in the same way.
    """
    taken = Input(view)
    flags, count = taken.byte(), taken.number()
    base, latest, horizon, timestamp = (taken.number() for _ in range(4))
    data = taken.rest()
    ours, theirs = NATIVE.OffsetMap(5000, SEED), FALLBACK.OffsetMap(1 << 20, SEED)
    arguments = (data, count, base, latest)
    found = outcome(ours.put_records, *arguments)
    if found is ParseError or found == count:
        assert found == outcome(theirs.put_records, *arguments)
    if found == count:
        terms = (data, count, base, latest, timestamp, bool(flags & 1), horizon)
        assert outcome(ours.retain, *terms) == outcome(theirs.retain, *terms)
    _walk(_mended(data, flags), flags, (base, latest, timestamp, horizon))


def _mended(data: memoryview, flags: int) -> memoryview:
    """Batches with the right length, version and checksum, which no luck would find."""
    log = bytearray(data)
    at = 0
    while flags & 2 and len(log) - at >= HEADER_SIZE:
        rest = len(log) - at - LOG_OVERHEAD
        least = HEADER_SIZE - LOG_OVERHEAD
        length = min(rest, least + log[at + 11])
        struct.pack_into(">i", log, at + 8, length)
        log[at + 16] = 2
        end = at + LOG_OVERHEAD + length
        struct.pack_into(">I", log, at + CRC_OFFSET, crc32c(memoryview(log)[at + CRC_START : end]))
        at = end
    return exact(log)


def _walk(log: memoryview, flags: int, numbers: tuple[int, int, int, int]) -> None:
    base, latest, now, horizon = numbers
    same("checked_batches", log, base)
    _walk_headers(log, flags, (base, latest, now, horizon))
    offsets = NATIVE.OffsetMap(3000, SEED)
    at, _ = offsets.put_plain(log, 0, base, latest)
    assert 0 <= at <= len(log)
    out = bytearray(len(log) + (flags >> 2))
    needed = memoryview(bytes(1) + array("q", sorted((base, latest))).tobytes())[1:]
    walk = offsets.retain_plain(
        log, 0, base, len(log), out, 0, latest, now, horizon, flags & 31, needed, 0, -1, -1
    )
    used, end = walk[2], 0
    while end < used:
        (length,) = struct.unpack_from(">i", out, end + 8)
        (crc,) = struct.unpack_from(">I", out, end + CRC_OFFSET)
        size = length + LOG_OVERHEAD
        assert crc == crc32c(memoryview(out)[end + CRC_START : end + size])
        end += size
    assert end == used <= len(out)


def _walk_headers(log: memoryview, flags: int, numbers: tuple[int, int, int, int]) -> None:
    """The same batches as a segment that is about to be read."""
    base, last, upper, offset = (abs(number) >> 1 for number in numbers)
    end = len(log)
    stop = end * (flags & 7) // 7
    known = last if flags & 8 else -1
    fd = os.memfd_create("segment")
    try:
        os.pwrite(fd, log, 0)
        start = log[8] if len(log) > 8 and flags & 16 else 0
        lead = (0, start, stop, end, min(base, upper))
        places = (*lead, known, offset, upper, 1000, bool(flags & 32))
        ours = NATIVE.walk_headers(fd, *places)
        how, here = headers.walk(lambda view, at: os.preadv(fd, [view], at), *places)
        assert ours == (here if how == headers.ASCENDING else None), (ours, how, here, places)
    finally:
        os.close(fd)


# ---- what an application or Spark writes ----


def builder(view: memoryview) -> None:
    """Records and rows of Arrow's columns on the way into a batch."""
    taken = Input(view)
    flags, begin, end, partitions = taken.byte(), *(taken.number() for _ in range(3))
    timestamp, other = taken.number(), taken.number()
    key, value, bits = taken.part(), taken.part(), taken.part()
    headers = ((str(bytes(key), "latin-1"), value if flags & 4 else None),) * (flags & 3)
    ends = taken.rest()
    column = (ends, value, bits if flags & 8 else None)
    keys = (ends, key, bits if flags & 16 else None) if flags & 32 else None
    same("place_keys", column, begin, end, partitions, other)
    made = []
    for each in (NATIVE, FALLBACK):
        built = each.Builder(flags & 64, 50)
        results = [
            outcome(built.append, timestamp, key if flags & 16 else None, value, headers),
            outcome(built.append, other, None, key, ()),
            outcome(each.append_rows, built, timestamp, keys, column, begin, end, 200),
        ]
        fields = (built.count, built.size, built.base_timestamp, built.max_timestamp)
        made.append((results, fields, built.take()))
    assert made[0] == made[1], made


def intake(view: memoryview) -> None:
    """Records of an application on the way into batches that are opened and closed meanwhile."""
    taken = Input(view)
    flags, limit, memory, room = (taken.byte() for _ in range(4))
    sides = [_Producer(each, flags, 40 * limit, 40 * memory, 40 * room) for each in _SIDES]
    while len(taken.rest()) > 1:
        step = _step(taken)
        ours, theirs = (side.do(*step) for side in sides)
        assert ours == theirs, (step, ours, theirs)
    assert sides[0].batches() == sides[1].batches()


_SIDES: Final = (NATIVE, FALLBACK)
_TOPIC: Final = object()


def _step(taken: Input) -> tuple[int, tuple[Any, ...]]:
    """What is done next, and with what."""
    kind = taken.byte()
    if kind & 7 == 0:
        return 0, (taken.byte() & 3,)  # opens a batch
    if kind & 7 == 1:
        return 1, (taken.byte() & 3,)  # closes one
    if kind & 7 == 2:
        return 2, (taken.byte() - 128,)  # spends memory
    key: Any = taken.part()
    value: Any = taken.part()
    partition, timestamp = taken.number(), taken.number()
    if len(key) > 100:
        name = bytes(key[:-1]) if len(key) % 2 else bytes(key)
        headers: Any = ((str(name, "utf-16-le", "replace") + "\ud800" * (kind >> 7), value),)
    else:
        headers = (("h", bytes(value)),) * (kind >> 7)
    record = (
        None if kind & 8 else bytearray(value) if kind & 16 else bytes(value),
        None if kind & 32 else bytearray(key) if kind & 16 else bytes(key),
        partition if kind & 64 else None,
        timestamp if kind & 8 else None,
        headers,
    )
    return 3, ((*record, timestamp & 1023) if kind & 7 == 3 else record)


class _Producer:
    """One topic of four partitions, its batches open."""

    def __init__(
        self, each: implementation.Implementation, flags: int, limit: int, memory: int, room: int
    ) -> None:
        self._builder = each.Builder
        lock, by_key = threading.RLock(), bool(flags & 1)
        self._intake = each.Intake(
            {"t": _TOPIC}, lambda *fields: fields, lambda: 77, False, lock, memory, 1 << 10, by_key
        )
        self._channel = channel = each.Channel(limit, lock)
        channel.known = None if flags & 2 else _TOPIC
        channel.partitions, channel.sticky, channel.room = flags >> 5, flags >> 2 & 3, room
        self._intake.channels["t"] = channel
        self._open: list[Any] = []
        for partition in range(3):
            self._do(0, (partition,))

    def do(self, what: int, arguments: tuple[Any, ...]) -> object:
        done = outcome(self._do, what, arguments)
        return done, self._intake.used, self._channel.room

    def _do(self, what: int, arguments: tuple[Any, ...]) -> object:
        if what == 0:
            self._open.append(self._builder(5))
            self._channel.open(arguments[0], len(self._open), self._open[-1])
        elif what == 1:
            self._channel.close(*arguments)
        elif what == 2:
            self._intake.spend(*arguments)
        else:
            return self._intake.put("t", *arguments)
        return None

    def batches(self) -> list[tuple[int, bytes]]:
        return [(each.count, bytes(each.take())) for each in self._open]


# ---- a commit that repeats ----


def commits(view: memoryview) -> None:
    """A request like an earlier one, or not, and the batch that stores its offsets."""
    taken = Input(view)
    flags, now = taken.byte(), taken.number()
    holes = tuple((taken.number(), taken.number(), taken.number()) for _ in range(flags & 3))
    first = bytes(taken.part())
    stored = bytes(taken.part()) + bytes(HEADER_SIZE if flags & 4 else 0)
    other = bytearray(taken.rest()[: len(first)] if flags & 8 else taken.rest())
    if flags & 16:
        # The same but for what may differ, which no luck would find.
        repeated, free = bytearray(first), [(4, 8), *((at, at + 8) for at, _, _ in holes)]
        for begin, end in free:
            if begin >= 0 and end <= min(len(other), len(first)):
                repeated[begin:end] = other[begin:end]
        other = repeated
    results = []
    for each in _SIDES:
        batch = exact(stored)
        made: Any = outcome(each.CommitBytes, first, batch, holes)
        told = None if isinstance(made, type) else [outcome(made.take, exact(other), now)]
        results.append((made if isinstance(made, type) else None, told, bytes(batch)))
        del made
    assert results[0] == results[1], results


TARGETS: Final[dict[str, Target]] = {
    target.__name__: target
    for target in (records, frames, lz4, compaction, builder, intake, commits)
}
