"""One transaction from its beginning to its end, in both generations, and what can come between."""

from typing import Any

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.outcome import Caller
from scriba.txn.messages import WriteMarkers
from scriba.txn.states import VALID, TxnState
from scriba.wire.messages.groups import HeartbeatRequest
from scriba.wire.messages.stored import TransactionLogValue
from tests.typed import present
from tests.unit.txn.shard import CLASSIC, TV2, Shard, pair

LAST = 32_766
"""The last epoch that a producer is given."""


def at_epoch(shard: Shard, epoch: int) -> tuple[int, int]:
    """A producer that has come so far: the log is rewritten as if it had."""
    pid, _ = shard.producer()
    key, value = shard.log[-1]
    stored = TransactionLogValue.decode(present(value), 1)
    stored.producer_epoch = epoch
    shard.log[-1] = key, stored.encode(1)
    shard.crash()
    return pid, epoch


# ---- one transaction ----


def test_a_transaction_of_version_2_commits_and_its_producer_goes_on_with_the_next_epoch() -> None:
    shard = Shard()
    first = shard.producer()
    assert first == (1001, 0)
    assert shard.add(first, 0, 1) == [ErrorCode.NONE] * 2
    assert shard.state() == "Ongoing"
    following = pair(shard.end(first, commit=True))
    assert following == (1001, 1)
    assert shard.state() == "PrepareCommit"
    assert shard.sends == [
        WriteMarkers(7, "t", 1001, 1, True, (("orders", 0), ("orders", 1)), 2),
    ]
    shard.write_markers()
    assert shard.state() == "CompleteCommit"
    assert shard.add(following, 2) == [ErrorCode.NONE]
    assert pair(shard.end(following, commit=False)) == (1001, 2)
    (markers,) = shard.write_markers()
    assert (markers.producer_epoch, markers.commit) == (2, False)
    assert shard.state() == "CompleteAbort"


def test_a_classic_transaction_keeps_its_producers_epoch() -> None:
    shard = Shard()
    producer = shard.producer()
    for commit in (True, False):
        assert shard.add(producer, 0, version=CLASSIC) == [ErrorCode.NONE]
        answer = shard.end(producer, commit, version=CLASSIC)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, -1, -1)
        (markers,) = shard.write_markers()
        assert markers == WriteMarkers(7, "t", *producer, commit, (("orders", 0),), 0)
        assert shard.state() == ("CompleteCommit" if commit else "CompleteAbort")


def test_the_records_are_kafkas() -> None:
    shard = Shard()
    producer = shard.producer(timeout_ms=1234)
    shard.add(producer, 1, 0)
    shard.add(producer, 0, topic="audit")
    shard.end(producer, commit=True)
    shard.write_markers()
    values = [TransactionLogValue.decode(present(value), 1) for _, value in shard.log]
    assert [v.transaction_status for v in values] == [0, 1, 1, 2, 4]
    assert [v.producer_epoch for v in values] == [0, 0, 0, 1, 1]
    assert values[0].transaction_partitions is None
    assert {v.transaction_timeout_ms for v in values} == {1234}
    assert [(p.topic, p.partition_ids) for p in present(values[3].transaction_partitions)] == [
        ("audit", [0]),
        ("orders", [0, 1]),
    ]
    assert values[4].transaction_partitions == []
    assert [v.client_transaction_version for v in values] == [0, 2, 2, 2, 2]
    assert [v.previous_producer_id for v in values] == [1001] * 5


def test_a_partition_that_is_there_already_costs_no_record() -> None:
    shard = Shard()
    producer = shard.producer()
    shard.add(producer, 0, 1)
    written = len(shard.log)
    assert shard.add(producer, 1) == [ErrorCode.NONE]
    assert len(shard.log) == written


# ---- InitProducerId ----


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_must_lie_within_its_bounds(timeout_ms: int) -> None:
    refused = Shard().init(timeout_ms=timeout_ms)
    assert refused.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (refused.producer_id, refused.producer_epoch) == (-1, -1)


def test_an_empty_transactional_id_is_no_id() -> None:
    assert Shard().init(tid="").error_code == ErrorCode.INVALID_REQUEST


def test_two_phase_commit_is_refused_as_kafka_does_while_it_is_off() -> None:
    shard = Shard()
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert shard.init(enable2_pc=True).error_code == refused
    assert shard.init(keep_prepared_txn=True).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_transaction_of_two_phase_commit_never_times_out() -> None:
    shard = Shard(two_phase_commit=True)
    producer = pair(shard.init(timeout_ms=-5, enable2_pc=True))
    shard.add(producer, 0)
    shard.pass_time(10**10)
    assert shard.state() == "Ongoing"


def test_a_second_producer_under_an_id_fences_the_first() -> None:
    shard = Shard()
    old = shard.producer()
    new = shard.producer()
    assert new == (old[0], old[1] + 1)
    assert shard.add(old, 0) == [ErrorCode.PRODUCER_FENCED]
    assert shard.end(old, commit=True).error_code == ErrorCode.PRODUCER_FENCED
    assert shard.end(old, commit=True, version=CLASSIC).error_code == ErrorCode.PRODUCER_FENCED
    assert shard.add(new, 0) == [ErrorCode.NONE]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_open_transaction_is_aborted_before_its_id_is_taken_over(level: int) -> None:
    shard = Shard(transaction_version=level)
    pid, epoch = shard.producer()
    shard.add((pid, epoch), 0)
    assert shard.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert [event.kind for event in shard.events] == [EventKind.PRODUCER_FENCED]
    assert shard.state() == "PrepareAbort"
    assert shard.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    (markers,) = shard.write_markers()
    assert (markers.producer_epoch, markers.commit) == (epoch + 1, False)
    assert markers.transaction_version == (2 if level == 2 else 0)
    assert shard.producer() == (pid, epoch + 2)


def test_a_producer_that_names_itself_gets_the_next_epoch_and_the_same_one_if_it_asks_again() -> (
    None
):
    shard = Shard()
    first = shard.producer()
    second = pair(shard.init(producer=first))
    assert second == (first[0], 1)
    assert pair(shard.init(producer=first)) == second
    assert shard.init(producer=(first[0], 7)).error_code == ErrorCode.PRODUCER_FENCED
    assert shard.init(producer=(first[0] + 1, 1)).error_code == ErrorCode.PRODUCER_FENCED


def test_a_producer_that_names_itself_after_another_took_over_is_fenced() -> None:
    shard = Shard()
    first = shard.producer()
    shard.producer()
    assert shard.init(producer=first).error_code == ErrorCode.PRODUCER_FENCED


def test_a_producer_of_a_forgotten_id_begins_anew() -> None:
    assert pair(Shard().init(producer=(44, 9))) == (1001, 0)


def test_a_new_producer_id_is_given_when_the_epochs_run_out() -> None:
    shard = Shard()
    worn = at_epoch(shard, LAST)
    fresh = pair(shard.init(producer=worn))
    assert fresh == (1002, 0)
    assert pair(shard.init(producer=worn)) == fresh
    shard.add(fresh, 0)
    assert shard.add(worn, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_the_last_epoch_ends_its_transaction_and_the_next_one_has_another_producer_id() -> None:
    shard = Shard()
    worn = at_epoch(shard, LAST)
    shard.add(worn, 0)
    fresh = pair(shard.end(worn, commit=True))
    assert fresh == (1002, 0)
    (markers,) = shard.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (worn[0], LAST + 1)
    assert shard.state() == "CompleteCommit"
    assert pair(shard.end(worn, commit=True)) == fresh
    assert shard.end(worn, commit=False).error_code == ErrorCode.INVALID_TXN_STATE
    assert shard.add(fresh, 0) == [ErrorCode.NONE]
    assert shard.end(worn, commit=True).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("by", ["time-out", "successor"])
def test_a_producer_fenced_in_its_last_epoch_is_replaced_by_another_id(by: str) -> None:
    shard = Shard()
    worn = at_epoch(shard, LAST)
    shard.add(worn, 0)
    if by == "time-out":
        shard.pass_time(60_001)
    else:
        assert shard.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    (markers,) = shard.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (worn[0], LAST + 1)
    pid, epoch = pair(shard.init(producer=worn))
    assert pid != worn[0]
    assert epoch == 0


def test_nobody_is_sent_on_with_the_epoch_that_only_fences() -> None:
    shard = Shard()
    worn = at_epoch(shard, LAST)
    shard.add(worn, 0)
    shard.pass_time(60_001)
    shard.write_markers()
    assert shard.end(worn, commit=False).error_code == ErrorCode.PRODUCER_FENCED


# ---- AddPartitionsToTxn ----


def test_partitions_join_only_for_the_producer_of_the_id() -> None:
    shard = Shard()
    pid, epoch = shard.producer()
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.add((pid, epoch), 0, tid="other") == [mapping]
    assert shard.add((pid + 1, epoch), 0) == [mapping]
    assert shard.add((pid, epoch + 1), 0) == [ErrorCode.PRODUCER_FENCED]
    assert shard.add((pid, epoch), 0, tid="") == [ErrorCode.INVALID_REQUEST]
    assert shard.state() == "Empty"


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    shard = Shard()
    producer = shard.producer()
    shard.add(producer, 0)
    following = pair(shard.end(producer, commit=True))
    assert shard.add(following, 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert shard.end(following, commit=True).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    assert shard.add(following, 0) == [ErrorCode.NONE]


def test_a_write_is_verified_only_where_its_partition_is_part_of_the_transaction() -> None:
    shard = Shard()
    producer = pid, epoch = shard.producer()
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert shard.add(producer, 0, verify=True) == [abortable]
    shard.add(producer, 0, version=CLASSIC)
    assert shard.add(producer, 0, 1, verify=True) == [ErrorCode.NONE, abortable]
    assert shard.add((pid, epoch + 1), 0, verify=True) == [ErrorCode.PRODUCER_FENCED]
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shard.add((pid + 1, epoch), 0, verify=True) == [mapping]
    assert shard.add(producer, 0, tid="other", verify=True) == [mapping]
    assert shard.add(producer, 0, tid="", verify=True) == [ErrorCode.INVALID_REQUEST]
    shard.end(producer, commit=True, version=CLASSIC)
    assert shard.add(producer, 0, verify=True) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    shard.write_markers()
    assert shard.add(producer, 0, verify=True) == [abortable]


# ---- EndTxn ----


def test_an_end_that_is_asked_for_again_gets_the_same_answer() -> None:
    shard = Shard()
    producer = shard.producer()
    shard.add(producer, 0)
    following = pair(shard.end(producer, commit=True))
    assert shard.end(producer, commit=True).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    shard.write_markers()
    written = len(shard.log)
    assert pair(shard.end(producer, commit=True)) == following
    assert shard.end(producer, commit=False).error_code == ErrorCode.INVALID_TXN_STATE
    assert len(shard.log) == written


def test_a_classic_end_that_is_asked_for_again_gets_the_same_answer() -> None:
    shard = Shard()
    producer = shard.producer()
    assert shard.end(producer, True, version=CLASSIC).error_code == ErrorCode.INVALID_TXN_STATE
    shard.add(producer, 0, version=CLASSIC)
    shard.end(producer, commit=False, version=CLASSIC)
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert shard.end(producer, commit=False, version=CLASSIC).error_code == busy
    shard.write_markers()
    assert shard.end(producer, commit=False, version=CLASSIC).error_code == 0
    wrong = ErrorCode.INVALID_TXN_STATE
    assert shard.end(producer, commit=True, version=CLASSIC).error_code == wrong


def test_what_has_not_begun_can_be_aborted_but_not_committed() -> None:
    """Under version 2 a write may have reached its partition, and its answer been lost."""
    shard = Shard()
    producer = shard.producer()
    assert shard.end(producer, commit=True).error_code == ErrorCode.INVALID_TXN_STATE
    following = pair(shard.end(producer, commit=False))
    assert following == (producer[0], 1)
    assert shard.state() == "CompleteAbort"
    assert not shard.sends
    assert shard.end(following, commit=True).error_code == ErrorCode.INVALID_TXN_STATE
    assert pair(shard.end(following, commit=False)) == (producer[0], 2)


def test_an_end_for_an_unknown_id_or_producer_is_refused() -> None:
    shard = Shard()
    pid, epoch = shard.producer()
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for version in (CLASSIC, TV2):
        assert shard.end((pid, epoch), True, tid="x", version=version).error_code == mapping
        assert shard.end((pid + 1, epoch), True, version=version).error_code == mapping
        invalid = shard.end((pid, epoch), True, tid="", version=version)
        assert invalid.error_code == ErrorCode.INVALID_REQUEST


def test_markers_that_were_written_for_an_older_end_complete_nothing() -> None:
    shard = Shard()
    producer = shard.producer()
    shard.add(producer, 0)
    following = pair(shard.end(producer, commit=True))
    (old,) = shard.write_markers()
    shard.add(following, 0)
    shard.end(following, commit=True)
    shard.written(old)
    assert shard.state() == "PrepareCommit"
    shard.written(old._replace(producer_epoch=2, commit=False))
    assert shard.state() == "PrepareCommit"


# ---- restarts ----


@pytest.mark.parametrize("commit", [True, False])
def test_markers_are_sent_again_by_the_coordinator_that_loads_their_outcome(commit: bool) -> None:
    shard = Shard()
    producer = shard.producer()
    shard.add(producer, 0, 1)
    shard.end(producer, commit)
    sent = list(shard.sends)
    shard.crash()
    assert shard.sends == sent
    shard.write_markers()
    assert shard.state() == ("CompleteCommit" if commit else "CompleteAbort")
    shard.crash()
    assert shard.sends == []


# ---- what an operator asks ----


def test_a_transaction_is_described_with_its_partitions_until_it_is_complete() -> None:
    shard = Shard()
    producer = shard.producer()
    shard.pass_time(500)
    shard.add(producer, 3, 1)
    told = shard.describe()
    assert (told.producer_id, told.producer_epoch, told.transaction_timeout_ms) == (
        *producer,
        60_000,
    )
    assert told.transaction_start_time_ms == 1_000_500
    assert [(t.topic, t.partitions) for t in told.topics] == [("orders", [1, 3])]
    shard.end(producer, commit=True)
    shard.write_markers()
    assert shard.describe().topics == []
    assert shard.describe("").error_code == ErrorCode.INVALID_REQUEST
    assert shard.describe("x").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_transactions_are_listed_by_state_producer_and_duration() -> None:
    shard = Shard()
    old, new = shard.producer("app-old"), shard.producer("app-new")
    shard.producer("idle")
    shard.add(old, 0, tid="app-old")
    shard.pass_time(10_000)
    shard.add(new, 0, tid="app-new")

    def named(**filters: Any) -> list[str]:
        return sorted(t.transactional_id for t in shard.list(**filters).transaction_states)

    assert named() == ["app-new", "app-old", "idle"]
    assert named(state_filters=["Ongoing"]) == ["app-new", "app-old"]
    assert named(producer_id_filters=[new[0]]) == ["app-new"]
    assert named(state_filters=["Ongoing"], duration_filter=9_999) == ["app-old"]
    assert named(duration_filter=0, producer_id_filters=[new[0]]) == []
    assert named(state_filters=["Sleeping"]) == []


def test_a_request_that_is_not_for_transactions_is_refused() -> None:
    shard = Shard()
    with pytest.raises(KafkaError):
        shard.machine.handle(HeartbeatRequest(), 1, Caller(0, "", "", b""), shard.now)


# ---- the table ----


def test_every_state_is_in_the_table_and_only_a_dead_id_has_no_future() -> None:
    assert set(VALID) == set(TxnState)
    assert [state for state, following in VALID.items() if not following] == [TxnState.DEAD]
