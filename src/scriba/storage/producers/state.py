"""What a partition remembers of each producer: enough to refuse gaps and to recognise repeats.

Per producer id: the epoch, the last five batches (sequence numbers and offsets), and the first
offset of a transaction that is open here. A batch with the sequence numbers of a remembered one is
a repeat and gets that one's offsets back; any other must follow the last one without a gap. A
higher epoch starts again at sequence zero; a lower one is fenced.

Transactions: from the first record of an open transaction on, nothing is stable. When its marker
comes, it still holds back readers until the high watermark has passed the marker.

A transaction opens here only by a batch that was verified: before it is asked of the coordinator
whether the partition is part of the transaction, the producer is noted in `_verifying`, and a
marker that comes meanwhile strikes it out again (KIP-890). So no late batch can open a transaction
that nobody will ever end. Under transaction version 2 a marker's epoch is above that of its
transaction, and the first batch of the next one has sequence zero.

The state is a function of the log below `end_offset`: snapshots (Kafka's format, version 1) make
reading it all unnecessary. Kafka's file holds one batch per producer; ours lists a producer once
for each batch it remembers, the last one last, which Kafka reads as the last one and from which a
restart here gets all five.
"""

import struct
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.outcome import at_once
from scriba.records.batch import EndTxnMarker
from scriba.records.crc import crc32c
from scriba.records.header import CONTROL, MAX_SEQUENCE, TRANSACTIONAL, BatchHeader

REMEMBERED: Final = 5
SNAPSHOT_VERSION: Final = 1
MAX_EPOCH: Final = 32_767
BUMPING_VERSION: Final = 2
"""The transaction version from which on every transaction has an epoch of its own."""

_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
HEAD_SIZE: Final = _HEAD.size + _COUNT.size
COUNTED_AT_ONCE: Final = 20_000
"""Producers of a capture whose batches are counted in one step."""

LastBatch = tuple[int, int, int, int]
"""(last sequence, last offset, offset delta, timestamp): a plain tuple, one per append."""
_NO_BATCH: Final[LastBatch] = (-1, -1, 0, -1)


class Repeat(NamedTuple):
    """A batch that is in the log already."""

    base_offset: int
    last_offset: int
    timestamp: int


class AbortedTxn(NamedTuple):
    """A line of the transaction index: these records of a producer never happened."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class LastOf(NamedTuple):
    """The last that a known producer wrote: what its sequence or its epoch is read from."""

    offset: int
    """Of its last record of data, -1 if its last batch is a marker."""
    epoch: int


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_start_offset: int


class Verification:
    """A producer that is about to open a transaction here, while the coordinator is asked."""

    __slots__ = ("bumps", "epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, sequence: int, bumps: bool, now_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.bumps = bumps
        """Whether every transaction of it has an epoch of its own: transaction version 2."""
        self.since_ms = now_ms

    def also(self, epoch: int, sequence: int, bumps: bool) -> None:
        """Another batch is asked about meanwhile, perhaps of a producer that took over."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
            self.bumps = bumps
        elif epoch == self.epoch:
            self.lowest_sequence = min(sequence, self.lowest_sequence)
            # In doubt the next marker strikes it out: that costs one more question.
            self.bumps = bumps and self.bumps


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "seen_ms", "timestamp", "txn_start")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[LastBatch] = []
        self.timestamp = -1
        self.seen_ms = -1
        self.coordinator_epoch = -1
        self.txn_start = -1

    def remember(self, batch: LastBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) > REMEMBERED:
            del self.batches[0]

    def copy(self) -> "_Producer":
        other = _Producer(self.epoch)
        other.batches = self.batches.copy()
        other.timestamp = self.timestamp
        other.seen_ms = self.seen_ms
        other.coordinator_epoch = self.coordinator_epoch
        other.txn_start = self.txn_start
        return other


class Capture:
    """The producers as they are at one point of the log, while they go on changing.

    It costs nothing to take: each producer that changes meanwhile is copied first.
    """

    __slots__ = ("_of", "by_id")

    def __init__(self, of: "Producers", by_id: dict[int, _Producer]) -> None:
        self.by_id = by_id
        self._of: Producers | None = of

    @property
    def ended(self) -> bool:
        return self._of is None

    def encode(self, at_once: int) -> Iterator[tuple[int, bytes]]:
        return _encode(self.by_id, at_once)

    def end(self) -> None:
        """Nobody needs it any more."""
        if self._of is not None:
            self._of.merge(self.by_id)
            self._of = None


class Producers:
    __slots__ = ("_by_id", "_capture", "_verifying", "ended", "open")

    def __init__(self) -> None:
        self._by_id: dict[int, _Producer] = {}
        """While there is a capture, those alone that have changed since."""
        self._capture: Capture | None = None
        self.open: dict[int, int] = {}
        """First offset of each open transaction, in rising order -> producer id."""
        self.ended: list[tuple[int, int]] = []
        """(first offset, marker's offset) of ended ones that the high watermark may not cover."""
        self._verifying: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._all())

    def _known(self, producer_id: int) -> _Producer | None:
        """What is known of a producer, to be looked at alone."""
        known = self._by_id.get(producer_id)
        if known is None and self._capture is not None:
            known = self._capture.by_id.get(producer_id)
        return known

    def _own(self, producer_id: int) -> _Producer | None:
        """What is known of a producer, to be changed."""
        known = self._by_id.get(producer_id)
        if known is None and self._capture is not None:
            captured = self._capture.by_id.get(producer_id)
            if captured is not None:
                known = self._by_id[producer_id] = captured.copy()
        return known

    def _all(self) -> dict[int, _Producer]:
        return self._by_id if self._capture is None else self._capture.by_id | self._by_id

    # ---- appending: check, write the batch, then update ----

    def check(self, header: BatchHeader) -> Repeat | None:
        """Refuses a client's batch that may not follow; returns what it repeats, if anything."""
        known = self._by_id.get(header.producer_id) or self._known(header.producer_id)
        if known is None:
            return None
        sequence = header.base_sequence
        if header.producer_epoch == known.epoch:
            if known.batches:
                if sequence != (known.batches[-1][0] + 1) & MAX_SEQUENCE:
                    return self._repeated(known, header)
            elif sequence != 0:
                raise _out_of_order(header, -1)
        elif header.producer_epoch < known.epoch:
            self.check_epoch(header)
        elif sequence != 0:
            raise _out_of_order(header, -1)
        if known.txn_start >= 0 and not header.attributes & TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} wrote outside of its open transaction",
            )
        return None

    def check_epoch(self, header: BatchHeader) -> None:
        """Refuses what a coordinator writes for a producer that has been fenced here.

        Offsets that a transaction commits carry no sequence of their own (Kafka writes zero in all
        of them), so nothing else can be held against them.
        """
        known = self._known(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            raise _fenced(header.producer_id, header.producer_epoch, known.epoch)

    def _repeated(self, known: _Producer, header: BatchHeader) -> Repeat:
        last_sequence = (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE
        for last, offset, delta, timestamp in known.batches:
            if last == last_sequence and delta == header.last_offset_delta:
                return Repeat(offset - delta, offset, timestamp)
        raise _out_of_order(header, known.batches[-1][0])

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Takes note of a data batch that is in the log."""
        producer_id = header.producer_id
        epoch = header.producer_epoch
        known = self._by_id.get(producer_id) or self._own(producer_id)
        if known is None:
            known = self._by_id[producer_id] = _Producer(epoch)
        elif known.epoch != epoch:
            known.epoch = epoch
            known.batches.clear()
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & MAX_SEQUENCE
        known.timestamp = timestamp = header.max_timestamp
        known.seen_ms = now_ms
        known.remember((last_sequence, base_offset + delta, delta, timestamp))
        if header.attributes & TRANSACTIONAL and known.txn_start < 0:
            known.txn_start = base_offset
            self.open[base_offset] = producer_id
            self._verifying.pop(producer_id, None)

    # ---- transactions: verified before they open, ended by a marker ----

    def in_txn(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this producer and epoch is open here."""
        known = self._known(producer_id)
        return known is not None and known.txn_start >= 0 and known.epoch == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, bumps: bool, now_ms: int
    ) -> Verification | None:
        """What `admit` is to be given once the coordinator agrees; None where it need not be asked.

        Refuses a fenced producer at once.
        """
        known = self._known(producer_id)
        if known is not None:
            if epoch < known.epoch:
                raise _fenced(producer_id, epoch, known.epoch)
            if self.in_txn(producer_id, epoch):
                return None
        pending = self._verifying.get(producer_id)
        if pending is None:
            pending = Verification(epoch, sequence, bumps, now_ms)
            self._verifying[producer_id] = pending
        else:
            pending.also(epoch, sequence, bumps)
        return pending

    def admit(self, header: BatchHeader, verification: Verification | None) -> None:
        """Refuses a transactional batch of a client that was not verified, or no longer is."""
        pending = self.admit_offsets(header.producer_id, header.producer_epoch, verification)
        if pending is None:
            return
        known = self._known(header.producer_id)
        if header.base_sequence > pending.lowest_sequence or (
            pending.bumps and header.base_sequence and (known is None or not known.batches)
        ):
            raise _out_of_order(header, -1)

    def admit_offsets(
        self, producer_id: int, epoch: int, verification: Verification | None
    ) -> Verification | None:
        """The same for offsets, which have no sequence; None where the transaction is open."""
        if self.in_txn(producer_id, epoch):
            return None
        known = self._known(producer_id)
        if known is not None and epoch < known.epoch:
            raise _fenced(producer_id, epoch, known.epoch)
        pending = self._verifying.get(producer_id)
        if pending is None or pending is not verification:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has no transaction open that this record is part of",
            )
        return pending

    def check_marker_epoch(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        """Under version 2 a marker is of the transaction before its epoch, or it is a repeat."""
        known = self._known(producer_id)
        if (
            known is not None
            and transaction_version >= BUMPING_VERSION
            and epoch == known.epoch
            and known.txn_start >= 0
            and epoch != MAX_EPOCH  # which cannot be raised any more
        ):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {epoch} cannot end a transaction of that epoch",
            )

    def check_marker(self, header: BatchHeader, marker: EndTxnMarker) -> None:
        """Refuses the marker of a coordinator that has been replaced, or of a fenced epoch."""
        known = self._known(header.producer_id)
        if known is None:
            return
        if header.producer_epoch < known.epoch:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise KafkaError(ErrorCode.TRANSACTION_COORDINATOR_FENCED)

    def end_txn(
        self, header: BatchHeader, marker: EndTxnMarker, offset: int, now_ms: int
    ) -> AbortedTxn | None:
        """Takes note of a marker that is in the log; returns the transaction if it aborts one."""
        known = self._own(header.producer_id)
        if known is None:
            known = self._by_id[header.producer_id] = _Producer(header.producer_epoch)
        elif known.epoch != header.producer_epoch:
            known.epoch = header.producer_epoch
            known.batches.clear()
        pending = self._verifying.get(header.producer_id)
        if pending is not None and not (pending.bumps and pending.epoch == header.producer_epoch):
            # Else it is the next transaction that is being verified already.
            del self._verifying[header.producer_id]
        known.coordinator_epoch = marker.coordinator_epoch
        known.timestamp = header.max_timestamp
        known.seen_ms = now_ms
        first = known.txn_start
        if first < 0:
            return None
        known.txn_start = -1
        self.open.pop(first, None)
        self.ended.append((first, offset))
        if marker.commit:
            return None
        stable = next(iter(self.open), offset + 1)
        return AbortedTxn(header.producer_id, first, offset, stable)

    def replay(
        self, header: BatchHeader, marker: EndTxnMarker | None, now_ms: int
    ) -> AbortedTxn | None:
        """Takes note of a batch read back from the log, which was checked when it was written."""
        if header.attributes & CONTROL:
            if marker is None:
                return None
            return self.end_txn(header, marker, header.base_offset, now_ms)
        self.update(header, header.base_offset, now_ms)
        return None

    # ---- what readers and operators ask ----

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction is decided, and everyone knows how."""
        ended = self.ended
        while ended and ended[0][1] < high_watermark:
            del ended[0]
        stable = next(iter(self.open), high_watermark)
        for first, _ in ended:
            if first < stable:
                stable = first
        return min(stable, high_watermark)

    def active(self) -> Iterator[ActiveProducer]:
        """Each as it is when it is come to; whoever comes meanwhile may be missing."""
        for producer_id in list(self._all()):
            known = self._known(producer_id)
            if known is not None:
                yield ActiveProducer(
                    producer_id,
                    known.epoch,
                    known.batches[-1][0] if known.batches else -1,
                    known.timestamp,
                    known.coordinator_epoch,
                    known.txn_start,
                )

    def last_written(self, below: int) -> Generator[None, None, dict[int, LastOf]]:
        """Of each producer that has written nothing from `below` on. In steps: each as it is when
        it is come to."""
        found: dict[int, LastOf] = {}
        for producer_id in list(self._all()):
            yield
            known = self._known(producer_id)
            if known is not None:
                last = known.batches[-1][1] if known.batches else -1
                if last < below:
                    found[producer_id] = LastOf(last, known.epoch)
        return found

    def expire(self, now_ms: int, expiration_ms: int) -> Generator[None, None, int]:
        """Forgets producers not heard of for so long, unless a transaction of theirs is open; how
        many. In steps, one for each that there is.

        While there is a capture, nobody is forgotten.
        """
        gone = 0
        for producer_id in list(self._by_id):
            yield
            if self._capture is not None:
                break
            known = self._by_id.get(producer_id)
            if known is None or known.txn_start >= 0:
                continue
            if now_ms - known.seen_ms >= expiration_ms:
                del self._by_id[producer_id]
                gone += 1
        if self._capture is not None:
            return gone
        for producer_id, pending in tuple(self._verifying.items()):
            if now_ms - pending.since_ms >= expiration_ms:
                del self._verifying[producer_id]
        return gone

    # ---- snapshots ----

    def encode(self) -> bytes:
        data = bytearray(HEAD_SIZE)
        for position, piece in _encode(self._all(), len(self) or 1):
            data[position : position + len(piece)] = piece
        return bytes(data)

    def capture(self) -> Capture:
        """There is one at a time: an earlier one ends."""
        if self._capture is not None:
            self._capture.end()
        self._capture, self._by_id = Capture(self, self._by_id), {}
        return self._capture

    def merge(self, captured: dict[int, _Producer]) -> None:
        """The capture has ended."""
        captured.update(self._by_id)
        self._by_id, self._capture = captured, None

    @classmethod
    def decode(cls, data: bytes, now_ms: int, expiration_ms: int) -> "Producers":
        """The state in a snapshot without what has expired; ParseError when it is damaged."""
        try:
            version, crc = _HEAD.unpack_from(data)
            (count,) = _COUNT.unpack_from(data, _HEAD.size)
        except struct.error:
            raise ParseError("a producer snapshot is cut short") from None
        body = memoryview(data)[_HEAD.size :]
        if version != SNAPSHOT_VERSION or crc32c(body) != crc:
            raise ParseError("a producer snapshot has a wrong version or checksum")
        if not 0 <= count * _ENTRY.size <= len(body) - _COUNT.size:
            raise ParseError("a producer snapshot is cut short")
        state = cls()
        for line in _ENTRY.iter_unpack(body[_COUNT.size : _COUNT.size + count * _ENTRY.size]):
            state._load(*line)
        at_once(state.expire(now_ms, expiration_ms))
        state.open = dict(
            sorted(
                (known.txn_start, producer_id)
                for producer_id, known in state._by_id.items()
                if known.txn_start >= 0
            )
        )
        return state

    def _load(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        delta: int,
        timestamp: int,
        coordinator_epoch: int,
        txn_start: int,
    ) -> None:
        known = self._by_id.get(producer_id)
        if known is None or known.epoch != epoch:
            known = self._by_id[producer_id] = _Producer(epoch)
        known.timestamp = known.seen_ms = timestamp
        known.coordinator_epoch = coordinator_epoch
        known.txn_start = txn_start
        if last_offset >= 0:
            known.remember((last_sequence, last_offset, delta, timestamp))


def _encode(by_id: dict[int, _Producer], at_once: int) -> Iterator[tuple[int, bytes]]:
    """What a snapshot has at which position, so many producers at a time; the head, with the
    checksum of the rest, comes last."""
    count = 0
    counted = iter(by_id.values())
    while some := list(islice(counted, COUNTED_AT_ONCE)):
        count += sum(len(known.batches) or 1 for known in some)
        yield 0, b""
    start = _COUNT.pack(count)
    position = HEAD_SIZE
    crc = crc32c(start)
    encoded = iter(by_id.items())
    while lines := _encode_lines(islice(encoded, at_once)):
        yield position, lines
        position += len(lines)
        crc = crc32c(lines, crc)
    yield 0, _HEAD.pack(SNAPSHOT_VERSION, crc) + start


def _encode_lines(producers: Iterable[tuple[int, _Producer]]) -> bytes:
    """One line for each batch that is remembered, the last one last."""
    lines = bytearray()
    for producer_id, known in producers:
        *earlier, (sequence, offset, delta, _) = known.batches or (_NO_BATCH,)
        for batch in *earlier, (sequence, offset, delta, known.timestamp):
            lines += _ENTRY.pack(
                producer_id, known.epoch, *batch, known.coordinator_epoch, known.txn_start
            )
    return bytes(lines)


def _fenced(producer_id: int, epoch: int, current: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} is fenced: it has epoch {epoch}, {current} is in use",
    )


def _out_of_order(header: BatchHeader, last: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} "
        f"in epoch {header.producer_epoch} after {last}",
    )
