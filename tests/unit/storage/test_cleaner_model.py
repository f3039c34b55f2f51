"""The cleaner against a dictionary: any mix of keys, deletes, codecs, transactions and time."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scriba.instant import Instant
from scriba.native import implementation
from scriba.outcome import at_once
from scriba.records.batch import (
    EndTxnMarker,
    Record,
    decode_records,
    end_txn_batch,
    read_header,
    walk,
)
from scriba.records.compression import Codec
from scriba.runtime.files.disk import PosixDisk
from scriba.runtime.work.offload import ThreadOffload
from scriba.settings import TopicSettings
from scriba.storage.log import Log, NotResident, Slice
from scriba.testing.sim.plays.compacting import MEANS, append, compact

RETENTION_MS = 1000
TOPIC = TopicSettings(
    cleanup_policy=("compact",),
    segment_bytes=1200,
    index_interval_bytes=64,
    delete_retention_ms=RETENTION_MS,
)

Act = tuple[str, Any, Any]
"""What is done, and its two arguments, which are of the kinds that `act` draws."""

key = st.integers(0, 6).map("k{}".format)
value = st.none() | st.integers(0, 99).map("v{}".format)
pairs = st.lists(st.tuples(key, value), min_size=1, max_size=5)
act = st.one_of(
    st.tuples(st.just("write"), pairs, st.sampled_from(Codec)),
    st.tuples(st.just("sequence"), pairs, st.integers(0, 1)),
    st.tuples(st.just("txn"), pairs, st.integers(2, 4)),
    st.tuples(st.just("end"), st.integers(2, 4), st.booleans()),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("wait"), st.integers(1, 900), st.none()),
    st.tuples(st.just("clean"), st.sampled_from([700, 3000, 1 << 20]), st.none()),
    st.tuples(st.just("forget"), st.none(), st.none()),
)


@dataclass
class Model:
    """Every record ever written, and what became of its transaction."""

    written: list[tuple[int, Record, int | None]] = field(default_factory=list)
    """(offset, record, producer of its transaction)"""
    fate: dict[int, bool] = field(default_factory=dict)
    """By offset, for records of transactions that have ended: committed?"""
    open: dict[int, list[int]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def wrote(
        self, first: int, given: list[tuple[str, str | None]], at_ms: int, txn: int | None
    ) -> None:
        for offset, (name, text) in enumerate(given, first):
            record = Record(offset, at_ms, name.encode(), None if text is None else text.encode())
            self.written.append((offset, record, txn))
            if txn is not None:
                self.open.setdefault(txn, []).append(offset)

    def ended(self, producer: int, commit: bool) -> None:
        for offset in self.open.pop(producer, []):
            self.fate[offset] = commit

    def visible(self) -> list[Record]:
        """What a reader of committed records of the whole log would have seen."""
        return [
            record
            for offset, record, txn in self.written
            if txn is None or self.fate.get(offset, False)
        ]


def latest(records: list[Record]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


async def committed(log: Log, stable: int) -> list[Record]:
    """What a reader of committed records gets, by the rules that consumers follow."""
    aborted = {(txn.producer_id, txn.first_offset): txn for txn in
               log.aborted_transactions(log.start_offset, stable)}  # fmt: skip
    records: list[Record] = []
    offset = log.start_offset
    while offset < stable:
        while isinstance(found := log.read(offset, 300, stable), NotResident):
            await found.file.load(found.position, found.size)
        if not isinstance(found, Slice):
            break
        view = memoryview(bytearray(found.size))
        found.file.pread_into(view, found.position)
        for position, header in walk(view):
            offset = header.next_offset
            skip = header.is_control or any(
                txn.producer_id == header.producer_id
                and txn.first_offset <= header.base_offset <= txn.last_offset
                for txn in aborted.values()
                if header.is_transactional
            )
            if not skip and header.base_offset < stable:
                records += decode_records(view[position : position + header.size])
    return records


class Story:
    def __init__(self, root: Path) -> None:
        self.disk = PosixDisk(ThreadOffload(1))
        self.now = Instant(1000, 1_700_000_000_000)
        self.log = Log.open(self.disk, str(root / "t-0"), "t", 0, None, TOPIC, self.now)
        self.model = Model()
        self.checkpoint = 0
        self.dead_since: dict[int, int] = {}

    def later(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)

    async def play(self, what: str, first: Any, second: Any) -> None:
        model, log = self.model, self.log
        match what:
            case "write":
                at = append(log, first, self.now, second)
                model.wrote(at, first, self.now.wall_ms, None)
            case "sequence" | "txn":
                self.produce(first, second, what == "txn")
            case "end":
                self.end(first, second)
            case "roll":
                log.roll(self.now)
            case "wait":
                self.later(first)
            case "forget":
                at_once(log.producers.expire(self.now.wall_ms + 1, 1))
            case "clean":
                await self.clean(first)

    def produce(
        self, given: list[tuple[str, str | None]], producer: int, transactional: bool
    ) -> None:
        model = self.model
        if producer not in {each.producer_id for each in self.log.active_producers()}:
            model.sequences[producer] = 0
        at = append(
            self.log,
            given,
            self.now,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=model.sequences.get(producer, 0),
            transactional=transactional,
        )
        model.sequences[producer] = model.sequences.get(producer, 0) + len(given)
        model.wrote(at, given, self.now.wall_ms, producer if transactional else None)

    def end(self, producer: int, commit: bool) -> None:
        batch = end_txn_batch(producer, 0, EndTxnMarker(commit, 0), self.now.wall_ms)
        self.log.append(memoryview(batch), read_header(batch), 0, self.now)
        self.model.ended(producer, commit)

    async def clean(self, map_bytes: int) -> None:
        log = self.log
        before = await committed(log, log.last_stable_offset(log.end_offset))
        means = MEANS._replace(map_bytes=map_bytes)
        done = await compact(self.disk, log, self.now, self.checkpoint, means)
        assert self.checkpoint <= done.end_offset <= log.end_offset
        self.checkpoint = done.end_offset
        await self.check(before)

    async def check(self, before: list[Record]) -> None:
        log, model = self.log, self.model
        stable = log.last_stable_offset(log.end_offset)
        after = await committed(log, stable)
        assert [record.offset for record in after] == sorted(record.offset for record in after)
        known = {record.offset: record for record in model.visible()}
        assert all(known[record.offset] == record for record in after)
        expected = [record for record in model.visible() if record.offset < stable]
        assert latest(after) == latest(expected)
        last = {record.key: record.offset for record in expected}
        left = {record.offset for record in after}
        for record in before:
            if record.offset not in left:
                # Either a later record of the key is there, or it was a tombstone that had time.
                superseded = last[record.key] > record.offset
                old = self.now.wall_ms - record.timestamp >= RETENTION_MS
                assert superseded or (record.value is None and old)
        assert set(left) <= {record.offset for record in before}, "nothing comes back to life"

    async def reopen(self) -> None:
        end, stable = self.log.end_offset, self.log.last_stable_offset(self.log.end_offset)
        before = await committed(self.log, stable)
        await self.log.close()
        self.log = Log.open(
            self.disk, self.log.directory, "t", 0, None, TOPIC, self.now, recovery_point=end
        )
        assert self.log.failure is None
        assert self.log.end_offset == end
        assert self.log.last_stable_offset(end) == stable
        assert await committed(self.log, stable) == before


@pytest.mark.parametrize("name", ["native", "fallback"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(act, max_size=40))
def test_a_compacted_log_says_what_a_dictionary_of_all_that_was_written_says(
    name: str, acts: list[Act], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = implementation.FALLBACK if name == "fallback" else implementation.NATIVE
    assert chosen is not None
    monkeypatch.setattr(implementation, "chosen", chosen)

    async def main(root: Path) -> None:
        story = Story(root)
        for what, first, second in acts:
            await story.play(what, first, second)
        story.log.roll(story.now)
        await story.clean(1 << 20)
        await story.reopen()
        story.later(RETENTION_MS)
        await story.clean(1 << 20)
        await story.log.close()

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(Path(root)))


def files_after(
    acts: list[Act], chosen: implementation.Implementation, monkeypatch: pytest.MonkeyPatch
) -> dict[str, bytes]:
    """What lies in the log's directory when it has been played through and closed."""
    monkeypatch.setattr(implementation, "chosen", chosen)

    async def main(root: Path) -> None:
        story = Story(root)
        for what, first, second in acts:
            # A map of some bytes holds fewer keys in Python; one that is large holds all.
            await story.play(what, 1 << 20 if what == "clean" else first, second)
        story.log.roll(story.now)
        await story.clean(1 << 20)
        await story.log.close()

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(Path(root)))
        return {path.name: path.read_bytes() for path in Path(root, "t-0").iterdir()}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(act, max_size=40))
def test_both_implementations_leave_the_same_bytes(
    acts: list[Act], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert implementation.NATIVE is not None
    assert files_after(acts, implementation.NATIVE, monkeypatch) == files_after(
        acts, implementation.FALLBACK, monkeypatch
    )
