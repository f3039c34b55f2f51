"""A producer's records on the way into their batches, in Python; `_native` does the same.

An `Intake` takes the plain case only: a record of bytes for a topic that is known, into a batch
that is open and has room for it, within the memory that there is. Everything else `put` leaves to
its caller, by returning None and changing nothing. Any thread may put, and any other may close a
batch meanwhile: a record is in it before it is closed, or not at all.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from scriba.native.fallback import Builder, murmur2
from scriba.records.record import Headers

RECORD_OVERHEAD: Final = 10
"""Length, attributes, deltas and lengths of key, value and headers of an ordinary record."""

HEADER_OVERHEAD: Final = 4

_MAX_NUMBERS: Final = 24
"""What the numbers of a record may take beyond the usual overhead."""

_MAX_INT64: Final = 2**63 - 1

Lock = AbstractContextManager[Any]
"""Between a look at a batch and the record in it nobody may close it. The extension needs none."""


class Ticket:
    """Which record of which batch: what the class of a producer's handles inherits."""

    __slots__ = ("batch", "index", "timestamp")

    batch: Any
    index: int
    timestamp: int


class Channel:
    """The open batches of one topic, and how its records find their partition."""

    __slots__ = ("_lock", "_slots", "known", "limit", "partitions", "room", "sticky")

    def __init__(self, limit: float, lock: Lock, /) -> None:
        self.known: object = None
        """What the producer knows of the topic. While that is something else, nothing is put."""
        self.partitions = 0
        """How many there are, by which the hash of a key is divided."""
        self.sticky = -1
        """The partition of records without a key; -1 when it has to be drawn."""
        self.room = 0
        """Bytes that may go there before somebody looks at it again."""
        self.limit = limit
        """Bytes at which a batch is full."""
        self._lock = lock
        self._slots: dict[int, tuple[Any, Builder]] = {}

    def open(self, partition: int, batch: object, builder: Builder, /) -> None:
        """From now on records of this partition go into this batch."""
        if not 0 <= partition < 2**31:
            raise ValueError("no partition has this number")
        self._slots[partition] = (batch, builder)

    def close(self, partition: int, /) -> None:
        """From now on nothing is put into the batch of this partition."""
        with self._lock:
            self._slots.pop(partition, None)


class Intake:
    __slots__ = (
        "_by_key",
        "_clock",
        "_lock",
        "_max_size",
        "_memory",
        "_topics",
        "channels",
        "shut",
        "ticket",
        "used",
    )

    def __init__(
        self,
        topics: dict[str, Any],
        ticket: Callable[[Any, int, int], Any],
        clock: Callable[[], int],
        real: bool,
        lock: Lock,
        memory: int,
        max_size: int,
        by_key: bool,
        /,
    ) -> None:
        self._topics = topics
        self.ticket = ticket
        """Makes what `put` returns: of a batch, an index and a timestamp."""
        self._clock = clock
        """Gives the time in milliseconds. If it is `real` the extension does not ask it."""
        self._lock = lock
        self._memory = memory
        self._max_size = max_size
        self._by_key = by_key
        """Whether a key decides on the partition."""
        self.channels: dict[str, Channel] = {}
        self.used = 0
        """Bytes of the memory that are in use; `spend` changes it."""
        self.shut = False
        """Whether nothing is taken but what was reserved for."""

    def spend(self, size: int, /) -> None:
        """Takes memory, or gives it back."""
        with self._lock:
            self.used += size

    def put(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Any,
        reserved: int | None = None,
        /,
    ) -> Any:
        """Puts a record into its batch; a ticket, or None when that is not for this to do.

        Whoever says how much memory was `reserved` for the record looks at the batch afterwards:
        only then it may get full. What the record does not need of that memory is given back.
        """
        size = plain_size(key, value, headers) if type(topic) is str else None
        if size is None or size > self._max_size or not _is_number(partition):
            return None
        if timestamp is None:
            timestamp = self._clock()
        if not _is_number(timestamp):
            return None
        with self._lock:
            margin = _MAX_NUMBERS if reserved is None else 0
            record = (timestamp, key, value, headers)
            return self._put(topic, partition, record, size, margin, reserved or 0)

    def _put(
        self,
        topic: str,
        partition: int | None,
        record: tuple[int, Any, Any, Headers],
        size: int,
        margin: int,
        reserved: int,
    ) -> Any:
        timestamp, key, _, _ = record
        if reserved <= 0 and (self.shut or self.used + size > self._memory):
            return None
        channel = self.channels.get(topic)
        if channel is None or channel.known is None:
            return None
        if self._topics.get(topic) is not channel.known:
            return None
        sticky = False
        if partition is None:
            if key is None or not self._by_key:
                sticky = True
                partition = channel.sticky if channel.room >= size else -1
            elif channel.partitions > 0:
                partition = (murmur2(key) & 0x7FFFFFFF) % channel.partitions
        batch, builder = channel._slots.get(-1 if partition is None else partition, _CLOSED)
        if builder is None:
            return None
        before = builder.size
        if before + size + margin > channel.limit:
            return None
        index = builder.count
        self.used += builder.append(*record) - before - reserved
        if sticky:
            channel.room -= size
        return self.ticket(batch, index, timestamp)


_CLOSED: Final = (None, None)


def _is_number(given: int | None) -> bool:
    """Whether it is a number of 63 bits, or left to be chosen."""
    return given is None or (type(given) is int and 0 <= given <= _MAX_INT64)


def plain_size(key: Any, value: Any, headers: object) -> int | None:
    """About how many bytes a record takes; None when it is not of bytes, strings and tuples."""
    size = RECORD_OVERHEAD
    contents = [key, value]
    if type(headers) is not tuple:
        return None
    for pair in headers:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            return None
        size += HEADER_OVERHEAD + len(pair[0])
        contents.append(pair[1])
    for content in contents:
        if content is not None:
            if not isinstance(content, bytes) and type(content) is not bytearray:
                return None
            size += len(content)
    return size
