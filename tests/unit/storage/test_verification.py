"""A transaction opens in a partition only where its coordinator knows of it (KIP-890)."""

from collections.abc import Callable
from typing import Any

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import at_once
from scriba.records.batch import EndTxnMarker, Record, encode_batch, end_txn_batch, read_header
from scriba.records.header import BatchHeader
from scriba.storage.producers.state import MAX_EPOCH, AbortedTxn, Producers, Verification
from tests.typed import present

NOW = 1_000


def header(sequence: int = 0, *, epoch: int = 0, pid: int = 1) -> BatchHeader:
    return read_header(
        encode_batch(
            [Record(timestamp=50)],
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


def verify(
    state: Producers, epoch: int = 0, sequence: int = 0, bumps: bool = True
) -> Verification | None:
    return state.begin_verification(1, epoch, sequence, bumps, NOW)


def write(
    state: Producers, offset: int, sequence: int, verification: Verification | None, epoch: int = 0
) -> None:
    batch = header(sequence, epoch=epoch)
    state.admit(batch, verification)
    assert state.check(batch) is None
    state.update(batch, offset, NOW)


def end(
    state: Producers, offset: int, epoch: int, version: int = 2, commit: bool = True
) -> AbortedTxn | None:
    marker = EndTxnMarker(commit, 0)
    batch = read_header(end_txn_batch(1, epoch, marker, 60))
    state.check_marker_epoch(1, epoch, version)
    state.check_marker(batch, marker)
    return state.end_txn(batch, marker, offset, NOW)


def code(call: Callable[..., object], *arguments: object, **named: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call(*arguments, **named)
    return refused.value.code


def test_the_first_batch_is_verified_and_those_after_it_need_not_be() -> None:
    state = Producers()
    write(state, 0, 0, verify(state))
    assert state.in_txn(1, 0)
    assert verify(state, sequence=1) is None
    write(state, 1, 1, None)


def test_a_batch_that_nobody_verified_opens_no_transaction() -> None:
    state = Producers()
    assert code(state.admit, header(), None) is ErrorCode.INVALID_TXN_STATE
    stranger = Verification(0, 0, True, NOW)
    assert code(state.admit, header(), stranger) is ErrorCode.INVALID_TXN_STATE
    verify(state)
    assert code(state.admit, header(), stranger) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("bumps", [True, False])
def test_a_marker_that_comes_while_the_coordinator_is_asked_makes_the_answer_worthless(
    bumps: bool,
) -> None:
    state = Producers()
    verification = verify(state, bumps=bumps)
    end(state, 0, epoch=1 if bumps else 0, commit=False)
    expected = ErrorCode.INVALID_PRODUCER_EPOCH if bumps else ErrorCode.INVALID_TXN_STATE
    assert code(state.admit, header(), verification) is expected


def test_the_marker_of_the_last_transaction_does_not_hinder_the_next_one() -> None:
    state = Producers()
    write(state, 0, 0, verify(state))
    following = verify(state, epoch=1)
    end(state, 1, epoch=1)
    write(state, 2, 0, following, epoch=1)
    assert state.last_stable_offset(10) == 2


def test_after_a_marker_the_epoch_of_its_transaction_is_fenced() -> None:
    state = Producers()
    write(state, 0, 0, verify(state))
    end(state, 1, epoch=1)
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(verify, state) is fenced
    assert code(state.admit, header(1), None) is fenced
    assert code(state.check, header(1)) is fenced


def test_a_new_epoch_begins_with_sequence_zero() -> None:
    state = Producers()
    write(state, 0, 0, verify(state))
    end(state, 1, epoch=1)
    following = verify(state, epoch=1, sequence=1)
    late = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(state.admit, header(1, epoch=1), following) is late


def test_a_producer_of_version_2_that_is_unknown_here_begins_with_sequence_zero() -> None:
    late = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    state = Producers()
    assert code(state.admit, header(4), verify(state, sequence=4)) is late
    classic = Producers()
    classic.admit(header(4), verify(classic, sequence=4, bumps=False))


def test_a_batch_does_not_overtake_an_earlier_one_that_is_still_being_verified() -> None:
    state = Producers()
    verification = verify(state, sequence=0, bumps=False)
    assert verify(state, sequence=3, bumps=False) is verification
    late = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(state.admit, header(3), verification) is late
    write(state, 0, 0, verification)


def test_a_higher_epoch_takes_over_a_verification_that_is_under_way() -> None:
    state = Producers()
    first = present(verify(state, epoch=0, sequence=5, bumps=False))
    assert verify(state, epoch=1, sequence=0, bumps=False) is first
    assert (first.epoch, first.lowest_sequence) == (1, 0)


def test_a_marker_of_version_2_has_a_higher_epoch_than_its_transaction() -> None:
    state = Producers()
    write(state, 0, 0, verify(state))
    assert code(end, state, 1, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.in_txn(1, 0)
    end(state, 1, epoch=1)


def test_a_marker_that_comes_twice_is_taken_twice() -> None:
    state = Producers()
    write(state, 0, 0, verify(state))
    end(state, 1, epoch=1)
    end(state, 2, epoch=1)
    write(state, 3, 0, verify(state, epoch=1), epoch=1)
    assert code(end, state, 4, epoch=1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_of_the_older_versions_has_the_epoch_of_its_transaction() -> None:
    state = Producers()
    write(state, 0, 0, verify(state, bumps=False))
    aborted = present(end(state, 1, epoch=0, version=0, commit=False))
    assert (aborted.first_offset, aborted.last_offset) == (0, 1)
    write(state, 2, 1, verify(state, sequence=1, bumps=False))


def test_the_highest_epoch_of_all_ends_a_transaction_of_its_own() -> None:
    state = Producers()
    write(state, 0, 0, verify(state, epoch=MAX_EPOCH), epoch=MAX_EPOCH)
    end(state, 1, epoch=MAX_EPOCH)
    assert not state.in_txn(1, MAX_EPOCH)


def test_a_verification_that_leads_to_nothing_is_forgotten() -> None:
    state = Producers()
    verification = verify(state)
    at_once(state.expire(NOW + 500, 501))
    state.admit(header(), verification)
    at_once(state.expire(NOW + 501, 501))
    assert code(state.admit, header(), verification) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("first", [0, 4])
def test_what_a_newer_client_left_unanswered_does_not_spare_an_older_one_its_marker(
    first: int,
) -> None:
    state = Producers()
    verify(state, epoch=first)  # of version 2; its coordinator never agreed
    verification = verify(state, epoch=4, bumps=False)
    end(state, 0, epoch=4, version=0, commit=False)
    late = header(epoch=4)
    assert code(state.admit, late, verification) is ErrorCode.INVALID_TXN_STATE
