"""Idempotent producers and transactions, as one partition sees them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.outcome import at_once
from scriba.records.batch import (
    EndTxnMarker,
    Record,
    encode_batch,
    end_txn_batch,
    read_header,
    walk,
)
from scriba.records.header import BatchHeader
from scriba.settings import TopicSettings
from scriba.storage.log import Log, Slice
from scriba.storage.producers.state import AbortedTxn, Producers, Repeat
from tests.typed import present
from tests.unit.storage.shelf import BatchPosition, Shelf

NEVER = 2**62


def header(
    sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0, txn: bool = False
) -> BatchHeader:
    return read_header(
        encode_batch(
            [Record(timestamp=50)] * count,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=txn,
        )
    )


def write(state: Producers, offset: int, sequence: int, count: int = 1, **more: Any) -> None:
    batch = header(sequence, count, **more)
    assert state.check(batch) is None
    state.update(batch, offset, 100)


def end(
    state: Producers, offset: int, commit: bool, *, pid: int = 1, epoch: int = 0, by: int = 0
) -> AbortedTxn | None:
    marker = EndTxnMarker(commit, by)
    batch = read_header(end_txn_batch(pid, epoch, marker, 60))
    state.check_marker(batch, marker)
    return state.end_txn(batch, marker, offset, 100)


def refusal(state: Producers, sequence: int, **more: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        state.check(header(sequence, **more))
    return refused.value.code


def test_sequences_must_follow_without_a_gap() -> None:
    state = Producers()
    write(state, 0, 0, 3)
    write(state, 3, 3, 2)
    assert refusal(state, 6) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, 4, count=2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(state, 9, 5)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    state = Producers()
    write(state, 0, 17)
    write(state, 1, 18)


def test_the_last_five_batches_are_recognised_when_they_come_again() -> None:
    state = Producers()
    for i in range(7):
        write(state, 10 * i, 2 * i, 2)
    for i in range(2, 7):
        repeat = present(state.check(header(2 * i, 2)))
        assert (repeat.base_offset, repeat.last_offset) == (10 * i, 10 * i + 1)
    assert refusal(state, 2, count=2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap() -> None:
    state = Producers()
    write(state, 0, 2**31 - 2, 2)
    write(state, 2, 0)
    assert present(state.check(header(2**31 - 2, 2))).base_offset == 0


def test_a_higher_epoch_starts_at_zero_and_fences_the_lower() -> None:
    state = Producers()
    write(state, 0, 0)
    assert refusal(state, 1, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(state, 1, 0, epoch=1)
    assert refusal(state, 1, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH
    write(state, 2, 1, epoch=1)


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction() -> None:
    state = Producers()
    write(state, 0, 0, pid=1)
    write(state, 5, 0, pid=2, txn=True)
    write(state, 8, 0, pid=3, txn=True)
    assert state.last_stable_offset(3) == 3
    assert state.last_stable_offset(20) == 5
    assert end(state, 20, True, pid=2) is None
    assert state.last_stable_offset(20) == 5, "the marker is not replicated yet"
    assert state.last_stable_offset(21) == 8
    end(state, 21, True, pid=3)
    assert state.last_stable_offset(22) == 22


def test_an_abort_says_what_never_happened() -> None:
    state = Producers()
    write(state, 5, 0, pid=2, txn=True)
    write(state, 8, 0, pid=3, txn=True)
    assert end(state, 10, False, pid=3) == AbortedTxn(3, 8, 10, 5)
    assert end(state, 11, False, pid=2) == AbortedTxn(2, 5, 11, 12)
    assert end(state, 12, False, pid=2) is None, "nothing was open"


def test_in_an_open_transaction_nothing_else_may_be_written() -> None:
    state = Producers()
    write(state, 0, 0, txn=True)
    assert refusal(state, 1) is ErrorCode.INVALID_TXN_STATE
    write(state, 1, 1, txn=True)
    end(state, 2, True)
    write(state, 3, 2)


def test_markers_of_the_past_are_refused() -> None:
    state = Producers()
    write(state, 0, 0, epoch=3, txn=True)
    with pytest.raises(KafkaError) as refused:
        end(state, 1, True, epoch=2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    end(state, 1, True, epoch=3, by=7)
    with pytest.raises(KafkaError) as refused:
        end(state, 2, True, epoch=3, by=6)
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_may_bring_a_new_epoch() -> None:
    state = Producers()
    write(state, 0, 0, txn=True)
    end(state, 1, False, epoch=1)
    assert refusal(state, 1, txn=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    write(state, 2, 0, epoch=1, txn=True)


def test_silent_producers_expire_unless_their_transaction_is_open() -> None:
    state = Producers()
    write(state, 0, 0, pid=1)
    write(state, 1, 0, pid=2, txn=True)
    assert at_once(state.expire(100 + 9, 10)) == 0
    assert at_once(state.expire(100 + 10, 10)) == 1
    assert [each.producer_id for each in state.active()] == [2]


producers = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(0, 2), st.integers(1, 4), st.booleans(), st.booleans()
    ),
    max_size=40,
)


@given(producers)
def test_a_snapshot_brings_everything_back(steps: list[tuple[int, int, int, bool, bool]]) -> None:
    state = Producers()
    offset = 0
    epochs: dict[int, int] = {}
    sequences: dict[int, int] = {}
    for pid, bump, count, txn, ends in steps:
        epoch = epochs[pid] = epochs.get(pid, 0) + (bump == 2)
        if bump == 2:
            sequences[pid] = 0
        sequence = sequences.get(pid, 0)
        batch = header(sequence, count, pid=pid, epoch=epoch, txn=txn)
        try:
            state.check(batch)
        except KafkaError:
            end(state, offset, ends, pid=pid, epoch=epoch)
            offset += 1
            continue
        state.update(batch, offset, 100)
        sequences[pid] = sequence + count
        offset += count
        if txn and ends:
            end(state, offset, True, pid=pid, epoch=epoch)
            offset += 1
    again = Producers.decode(state.encode(), 0, NEVER)
    assert list(again.active()) == list(state.active())
    assert again.last_stable_offset(offset) == state.last_stable_offset(offset)
    assert again.encode() == state.encode()
    for pid, sequence in sequences.items():
        for back in range(1, 6):
            batch = header(max(sequence - back, 0), pid=pid, epoch=epochs[pid], txn=True)
            assert _outcome(again, batch) == _outcome(state, batch)


def _outcome(state: Producers, batch: BatchHeader) -> ErrorCode | tuple[int, int] | None:
    try:
        repeat = state.check(batch)
    except KafkaError as error:
        return error.code
    return repeat and (repeat.base_offset, repeat.last_offset)


@given(st.binary(max_size=200))
def test_a_damaged_snapshot_is_noticed(data: bytes) -> None:
    with pytest.raises(ParseError):
        Producers.decode(data, 0, NEVER)


def test_every_bit_of_a_snapshot_counts() -> None:
    state = Producers()
    write(state, 0, 0, 3)
    data = state.encode()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(ParseError):
            Producers.decode(bytes(changed), 0, NEVER)


# ---- through the log, across restarts ----


def send(shelf: Shelf, log: Log, sequence: int, count: int = 1, **more: Any) -> BatchPosition:
    return shelf.append(log, count, producer_id=4, producer_epoch=0, base_sequence=sequence, **more)


@pytest.mark.parametrize("how", ["clean", "crash", "crash without snapshots"])
async def test_a_retry_gets_its_original_offset_across_restarts(shelf: Shelf, how: str) -> None:
    log = shelf.open()
    for i in range(30):
        shelf.append(log)
        send(shelf, log, 2 * i, 2)
    if how == "clean":
        await log.close()
    else:
        await log.flush()
    if how == "crash without snapshots":
        for name in shelf.files(".snapshot"):
            (shelf.directory / name).unlink()
    log = shelf.open(recovery_point=90, clean=how == "clean")
    for i in range(25, 30):
        again = send(shelf, log, 2 * i, 2)
        assert again.repeat is not None
        assert again.base_offset == again.repeat.base_offset == 3 * i + 1
    assert log.end_offset == 90
    assert send(shelf, log, 60).base_offset == 90


async def test_a_repeat_reports_the_brokers_time_of_the_first(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(message_timestamp_type="LogAppendTime"))
    data = encode_batch(
        [Record()], producer_id=4, producer_epoch=0, base_sequence=0, log_append_time=77
    )
    assert shelf.append_batch(log, data) == (0, 0, 0, None)
    again = encode_batch(
        [Record()], producer_id=4, producer_epoch=0, base_sequence=0, log_append_time=99
    )
    assert shelf.append_batch(log, again) == (0, 0, 0, Repeat(0, 0, 77))


async def test_expired_producers_do_not_come_back_from_a_snapshot(shelf: Shelf) -> None:
    log = shelf.open()
    send(shelf, log, 0)
    await log.close()
    shelf.later(2000)
    log = shelf.open(recovery_point=1, clean=True, producer_expiration_ms=1000)
    assert list(log.active_producers()) == []
    send(shelf, log, 5)
    assert at_once(log.expire_producers(shelf.later(999), 1000)) == 0
    assert at_once(log.expire_producers(shelf.later(1), 1000)) == 1


@pytest.mark.parametrize("how", ["open", "clean", "crash", "damaged index"])
async def test_aborted_transactions_are_known_to_readers(shelf: Shelf, how: str) -> None:
    log = shelf.open()
    for turn in range(40):
        sent = {"producer_id": 8, "producer_epoch": 0, "transactional": True}
        shelf.append(log, 2, base_sequence=2 * turn, **sent)
        assert log.last_stable_offset(log.end_offset) == 3 * turn
        marker = EndTxnMarker(commit=turn % 2 == 0, coordinator_epoch=0)
        shelf.append_batch(log, end_txn_batch(8, 0, marker, shelf.now.wall_ms))
        if turn == 17:
            await log.flush()
    assert (log.segment_count > 2, log.flushed_offset) == (True, 54)
    if how in ("clean", "damaged index"):
        await log.close()
    if how == "damaged index":
        for name in shelf.files(".txnindex"):
            (shelf.directory / name).write_bytes(b"\1" * 34)
    if how != "open":
        log = shelf.open(recovery_point=120 if how != "crash" else 54, clean=how != "crash")
    expected = [(8, 3 * turn) for turn in range(1, 40, 2)]

    def aborted(start: int, end: int) -> list[tuple[int, int]]:
        return [each[:2] for each in log.aborted_transactions(start, end)]

    assert aborted(0, 120) == expected
    assert aborted(30, 60) == [each for each in expected if 28 < each[1] < 60]
    assert log.last_stable_offset(120) == 120
    log.truncation.truncate_to(60, shelf.now)
    assert aborted(0, 60) == [each for each in expected if each[1] < 60]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_reader_is_told_only_of_aborted_transactions_that_it_may_have_read(
    shelf: Shelf, restarted: bool
) -> None:
    often = TopicSettings(index_interval_bytes=1000)
    log = shelf.open(settings=often)
    sent = {"producer_id": 8, "producer_epoch": 0, "transactional": True}
    for turn in range(300):
        shelf.append(log, 1, base_sequence=turn, **sent)
        marker = EndTxnMarker(commit=False, coordinator_epoch=0)
        shelf.append_batch(log, end_txn_batch(8, 0, marker, shelf.now.wall_ms))
    if restarted:
        await log.close()
        log = shelf.open(settings=often, recovery_point=600, clean=True)
    for offset in range(0, 600, 7):
        found = log.read(offset, 500, 600)
        assert isinstance(found, Slice)
        view = memoryview(bytearray(found.size))
        found.file.pread_into(view, found.position)
        last = max(header.last_offset for _, header in walk(view))
        told = [each.first_offset for each in log.aborted_transactions(offset, 600, found)]
        assert told[0] <= offset
        assert told[-1] >= last - 1
        assert len(told) < 30


async def test_an_open_transaction_survives_restarts(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, 5)
    sent = {"producer_id": 8, "producer_epoch": 0, "transactional": True}
    shelf.append(log, 2, base_sequence=0, **sent)
    shelf.append(log, 5)
    await log.close()
    for clean in (True, False):
        log = shelf.open(recovery_point=12, clean=clean)
        assert log.last_stable_offset(12) == 5
        assert next(log.active_producers()).txn_start_offset == 5
    marker = end_txn_batch(8, 0, EndTxnMarker(False, 0), shelf.now.wall_ms)
    shelf.append_batch(log, marker)
    assert log.last_stable_offset(13) == 13
    assert log.aborted_transactions(0, 13)[0][:3] == (8, 5, 12)
