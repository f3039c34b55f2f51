"""The bytes of a Fetch's answer: packed once where they repeat, joined around the records."""

from __future__ import annotations

import struct
from itertools import repeat
from typing import TYPE_CHECKING, Final

from scriba.broker.fastpath import records
from scriba.broker.fastpath.fetch.targets import (
    Found,
    Name,
    PartlyAborted,
    Reading,
    Target,
    Topic,
    Wanted,
    id_and_name,
)
from scriba.broker.handlers.records.isolation import READ_UNCOMMITTED
from scriba.storage.results import EMPTY, Empty, Slice
from scriba.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from scriba.wire.template import beginning_packer, packer
from scriba.wire.varint import write_uvarint

if TYPE_CHECKING:
    from scriba.broker.net.answers import Parts
    from scriba.broker.observe.counters import Counters
    from scriba.broker.partitions.fetch_sessions import Session, Watched
    from scriba.broker.partitions.partition import Partition
    from scriba.storage.producers.state import AbortedTxn

_PACKED: Final = ("partition_index", "high_watermark", "last_stable_offset", "log_start_offset")
_EMPTY: Final[tuple[dict[str, object], ...]] = (
    {"aborted_transactions": None},
    {"aborted_transactions": []},
)
"""What is told of transactions where none was aborted, by isolation level."""
_INT32: Final = struct.Struct(">i")


class FetchAnswers:
    """Answers in one version, which decides how topics are named and what is told of them."""

    __slots__ = (
        "_aborted_at",
        "_after",
        "_counters",
        "_end",
        "_ends",
        "_flexible",
        "_header_tags",
        "_no_records",
        "_pack",
        "_pack_aborted",
        "_pack_head",
        "_tags",
        "_version",
        "no_session",
    )

    def __init__(self, counters: Counters, version: int, tagged_from: int) -> None:
        self._counters = counters
        self._version = version
        self._flexible = flexible = version in FetchResponse.FLEXIBLE
        self._tags = bytes(flexible)
        """The tagged fields of a structure that has none."""
        self._header_tags = bytes(version >= tagged_from)
        self._pack = [
            packer(PartitionData, version, flexible, _PACKED, empty, until="records")
            for empty in _EMPTY
        ]
        """What is told of a partition up to its records, by isolation level."""
        self._pack_head = packer(FetchResponse, version, flexible, ("session_id",))
        names = ("producer_id", "first_offset")
        self._pack_aborted = packer(AbortedTransaction, version, flexible, names)
        before_aborted = packer(PartitionData, version, flexible, (), until="aborted_transactions")
        self._aborted_at = len(before_aborted())
        self._no_records = self._count(0) + self._tags
        """What ends a partition without records."""
        self._ends = -len(self._no_records)
        """Where an answer without topics ends, counted from its end, up to their number."""
        self.no_session = self._session_head(0)
        self._after = self._tags + self._tags
        """What ends the last topic, and the answer."""
        self._end = self._tags + self._after
        """What is behind the records of the last partition."""

    def topic(self, named: Name, name: str, isolation: int) -> Topic:
        head = self._topic_head(named)
        pack = beginning_packer(
            self.no_session + self._count(1) + head + self._count(1),
            PartitionData,
            self._version,
            self._flexible,
            _PACKED,
            _EMPTY[isolation],
            "records",
        )
        return Topic(name, isolation, head, {}, pack, len(pack(0, 0, 0, 0, 0, 0)) - _INT32.size)

    def head(self, topic: Topic, count: int) -> bytes:
        """An answer without a session that tells of this topic alone, up to the first partition."""
        return self.no_session + self._count(1) + topic.head + self._count(count)

    def several(
        self, correlation_id: int, session: Session | None, wanted: Wanted, reading: Reading
    ) -> Parts:
        """Tells of all partitions, or of those of which a session has to hear."""
        found, news, size = reading
        targets, _, _, _, head, items = wanted
        self._counters.topic_bytes_out += size
        answer = records.Answer(correlation_id)
        if session is not None or not head:
            self._add_topics(answer, session, targets, items, found)
            return answer.parts()
        pieces = answer.pieces
        pieces.append(head)
        told = 0
        for at in news:
            if at > told:
                pieces += found[told:at]  # type: ignore[arg-type]
            told = at + 1
            self._add_records(answer, targets[at], found[at])
        pieces += found[told:]  # type: ignore[arg-type]
        pieces.append(self._after)
        return answer.parts()

    def _add_topics(
        self,
        answer: records.Answer,
        session: Session | None,
        targets: list[Target],
        items: list[Watched],
        found: list[Found],
    ) -> None:
        last: Topic | None = None
        topics: list[tuple[Topic, int]] = []
        counts: list[int] = []
        pieces = answer.pieces
        pieces.append(b"")
        for target, one, item in zip(targets, found, items or repeat(None), strict=False):
            is_told = type(one) is bytes
            if session is not None and item is not None:
                if not item.hears(target.high_watermark, target.start_offset, not is_told):
                    continue
                if not is_told:
                    session.answered(item)
            if target.topic is not last:
                last = target.topic
                topics.append((last, len(pieces)))
                counts.append(0)
                pieces.append(b"")
            counts[-1] += 1
            if type(one) is bytes:
                pieces.append(one)
            else:
                self._add_records(answer, target, one)
        before = b""
        for (topic, at), count in zip(topics, counts, strict=True):
            pieces[at] = before + topic.head + self._count(count)
            before = self._tags
        pieces.append(self._after if topics else self._tags)
        head = self.no_session if session is None else self._session_head(session.id)
        pieces[1] = head + self._count(len(topics))

    def _add_records(self, answer: records.Answer, target: Target, found: Found) -> None:
        begin = target.begin or self._begin(target)
        if type(found) is PartlyAborted:
            begin = self._with_aborted(begin, found.transactions)
            found = found.records
        assert type(found) is Slice
        size = found.size
        length = write_uvarint(size + 1) if self._flexible else _INT32.pack(size)
        answer.add(begin + length, found, self._tags)

    def one(
        self, correlation_id: int, topic: Topic, partition: Partition, found: Slice | Empty
    ) -> Parts:
        """As `several` for a single partition without a session."""
        index, high_watermark = partition.index, partition.high_watermark.value
        stable_offset, start_offset = partition.stable_offset.value, partition.log.start_offset
        if found is EMPTY:
            end = self._no_records + self._after
            length = topic.size + len(end)
            return (
                topic.pack(
                    length, correlation_id, index, high_watermark, stable_offset, start_offset
                )
                + end,
            )
        size = found.size
        count = write_uvarint(size + 1) if self._flexible else _INT32.pack(size)
        end = self._end
        length = topic.size + len(count) + size + len(end)
        told = topic.pack(
            length, correlation_id, index, high_watermark, stable_offset, start_offset
        )
        return records.around(told + count, found, end)

    def _begin(self, target: Target) -> bytes:
        """What is told of a partition up to its records; keeps it."""
        target.begin = self._packed(target, target.topic.isolation)
        return target.begin

    def told(self, target: Target) -> bytes:
        """The same with no records; keeps it."""
        target.told = (target.begin or self._begin(target)) + self._no_records
        return target.told

    def unread(self, target: Target) -> bytes:
        """What is told of a partition that those before it left no bytes for.

        It is not looked for transactions in it, then.
        """
        return self._packed(target, READ_UNCOMMITTED) + self._no_records

    def _packed(self, target: Target, isolation: int) -> bytes:
        return self._pack[isolation](
            target.partition.index,
            target.high_watermark,
            target.stable_offset,
            target.start_offset,
        )

    def _with_aborted(self, data: bytes, transactions: list[AbortedTxn]) -> bytes:
        """What is told of a partition, with these in place of none."""
        at = self._aborted_at
        told = [self._pack_aborted(each.producer_id, each.first_offset) for each in transactions]
        none = len(self._count(0))
        return data[:at] + self._count(len(told)) + b"".join(told) + data[at + none :]

    def _count(self, count: int) -> bytes:
        return write_uvarint(count + 1) if self._flexible else _INT32.pack(count)

    def _session_head(self, session_id: int) -> bytes:
        """An answer up to its topics."""
        return self._header_tags + self._pack_head(session_id)[: self._ends]

    def _topic_head(self, named: Name) -> bytes:
        """A topic as it is in an answer, up to the number of its partitions."""
        topic_id, name = id_and_name(named)
        response = FetchResponse(responses=[FetchableTopicResponse(topic=name, topic_id=topic_id)])
        out = bytearray()
        response.encode_into(out, self._version)
        before = len(self._pack_head(0)[: self._ends] + self._count(1))
        return bytes(out[before : len(out) - len(self._count(0) + self._tags + self._tags)])
