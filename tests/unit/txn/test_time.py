"""Time in a transaction coordinator: open transactions run out of it, idle ids are forgotten."""

import pytest

from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.instant import PAUSE_MS, Instant
from tests.unit.txn.shard import CLASSIC, Shard, pair


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(level: int) -> None:
    shard = Shard(transaction_version=level)
    pid, epoch = shard.producer(timeout_ms=5_000)
    shard.add((pid, epoch), 0)
    shard.pass_time(4_999)
    assert shard.state() == "Ongoing"
    shard.pass_time(1)
    assert shard.state() == "PrepareAbort"
    assert [event.about for event in shard.events] == ["t"]
    (markers,) = shard.write_markers()
    assert (markers.producer_epoch, markers.commit) == (epoch + 1, False)
    assert shard.add((pid, epoch), 0) == [ErrorCode.PRODUCER_FENCED]
    assert shard.end((pid, epoch), True, version=CLASSIC).error_code == ErrorCode.PRODUCER_FENCED


def test_a_producer_whose_transaction_timed_out_learns_of_it_and_goes_on() -> None:
    shard = Shard()
    producer = pid, epoch = shard.producer(timeout_ms=5_000)
    shard.add(producer, 0)
    shard.pass_time(6_000)
    shard.write_markers()
    assert shard.end(producer, commit=True).error_code == ErrorCode.INVALID_TXN_STATE
    assert pair(shard.end(producer, commit=False)) == (pid, epoch + 1)


def test_a_transaction_counts_its_time_from_its_first_partition() -> None:
    shard = Shard()
    producer = shard.producer(timeout_ms=5_000)
    shard.pass_time(100_000)
    shard.add(producer, 0)
    shard.pass_time(4_000)
    shard.add(producer, 1)
    shard.pass_time(999)
    assert shard.state() == "Ongoing"
    shard.pass_time(1)
    assert shard.state() == "PrepareAbort"


def test_looks_for_overdue_transactions_keep_their_distance() -> None:
    shard = Shard(abort_interval_ms=10_000)
    first, second = shard.producer("a", 1_000), shard.producer("b", 2_000)
    shard.add(first, 0, tid="a")
    shard.add(second, 0, tid="b")
    shard.pass_time(2_500)
    assert (shard.state("a"), shard.state("b")) == ("PrepareAbort", "Ongoing")
    shard.pass_time(8_500)
    assert shard.state("b") == "PrepareAbort"


def test_the_clock_of_an_open_transaction_goes_on_after_a_restart() -> None:
    shard = Shard()
    shard.add(shard.producer(timeout_ms=5_000), 0)
    shard.pass_time(3_000)
    shard.crash()
    shard.pass_time(1_999)
    assert shard.state() == "Ongoing"
    shard.pass_time(1)
    assert shard.state() == "PrepareAbort"


@pytest.mark.parametrize("jump_ms", [-(10**9), 10**9])
def test_a_wall_clock_that_jumps_ends_no_transaction_early_and_keeps_none_for_ever(
    jump_ms: int,
) -> None:
    shard = Shard()
    shard.add(shard.producer(timeout_ms=5_000), 0)
    shard.now = Instant(shard.now.mono_ms, shard.now.wall_ms + jump_ms)
    shard.pass_time(4_999)
    assert shard.state() == "Ongoing"
    shard.crash()
    shard.pass_time(5_000)
    assert shard.state() == "PrepareAbort"


def test_an_id_that_nobody_uses_is_forgotten_and_one_in_use_is_not() -> None:
    shard = Shard(expiration_ms=1_000_000, expiry_interval_ms=1_000)
    shard.producer("idle")
    busy = shard.producer("busy", timeout_ms=800_000)
    shard.pass_time(900_000)
    shard.add(busy, 0, tid="busy")
    shard.pass_time(101_000)
    assert shard.describe("idle").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert shard.state("busy") == "Ongoing"
    assert shard.log[-1][1] is None
    shard.crash()
    assert shard.describe("idle").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert shard.add((1001, 0), 0, tid="idle") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_an_id_whose_markers_are_not_written_is_never_forgotten() -> None:
    shard = Shard(expiration_ms=1_000, expiry_interval_ms=1_000)
    producer = shard.producer()
    shard.add(producer, 0)
    shard.end(producer, commit=True)
    shard.pass_time(1_000_000)
    assert shard.state() == "PrepareCommit"
    shard.write_markers()
    shard.pass_time(2_000)
    assert shard.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_many_ids_are_forgotten_a_part_at_a_time() -> None:
    shard = Shard(expiration_ms=1_000, expiry_interval_ms=1_000)
    for number in range(4_500):
        shard.producer(str(number))
    shard.now = Instant(shard.now.mono_ms + 2_000, shard.now.wall_ms + 2_000)
    gone = []
    while (due := shard.machine.next_deadline()) is not None and due <= shard.now.mono_ms:
        outcome = shard.machine.tick(shard.now)
        assert outcome.splittable
        gone.append(len(outcome.records))
        shard._do(outcome)
    assert gone == [2_000, 2_000, 500]


def test_a_wall_clock_that_jumps_ahead_forgets_no_id() -> None:
    shard = Shard(expiration_ms=7 * 86_400_000, expiry_interval_ms=3_600_000)
    producer = shard.producer()
    jump_ms = 30 * 86_400_000
    shard.now = Instant(shard.now.mono_ms, shard.now.wall_ms + jump_ms)
    shard.pass_time(PAUSE_MS)
    assert shard.add(producer, 0) == [ErrorCode.NONE]
    assert [event.kind for event in shard.events] == [EventKind.CLOCK_IN_DOUBT]
    shard.end(producer, commit=True)
    shard.write_markers()
    shard.pass_time(8 * 86_400_000)
    assert shard.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "believed by now"
