"""The states of a transactional producer, without a network."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.client.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFenced,
    TransactionError,
    TransactionStateError,
)
from scriba.client.model import TopicPartition
from scriba.client.transactions.machine import VALID, State, Transactions, judged, judged_batch
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, ClientError, TimedOut

HERE = TopicPartition("t", 0)
THERE = TopicPartition("t", 1)


def ready() -> Transactions:
    machine = Transactions("orders")
    machine.initialize()
    machine.initialized((7, 0))
    return machine


def begun(implicit: bool = True) -> Transactions:
    machine = ready()
    machine.begin(implicit)
    return machine


def refusal(code: ErrorCode) -> BrokerError:
    return BrokerError(code)


# -- the order of calls --------------------------------------------------------------------------


def test_every_state_is_in_the_table_and_only_a_fatal_one_leads_nowhere() -> None:
    assert set(VALID) == set(State)
    assert [state for state in State if not VALID[state]] == [State.FATAL]
    reached = {State.UNINITIALIZED}
    for _ in State:
        reached |= {after for state in reached for after in VALID[state]}
    assert reached == set(State)


def test_a_transaction_is_begun_filled_and_committed_and_the_next_one_too() -> None:
    machine = ready()
    for epoch in (1, 2):
        machine.begin(implicit=True)
        machine.check_send()
        assert machine.admits(HERE)
        machine.commit()
        machine.ended((7, epoch))
        assert (machine.state, machine.identity) == (State.READY, (7, epoch))
        assert not machine.touched


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Transactions("x").begin(True), "not initialized.*init_transactions"),
        (lambda: Transactions("x").check_send(), "sending.*not initialized"),
        (lambda: ready().initialize(), "initialized before"),
        (lambda: ready().check_send(), "begin_transaction"),
        (lambda: ready().commit(), "commit_transaction.*ready"),
        (lambda: ready().abort(), "abort_transaction.*ready"),
        (lambda: ready().check_offsets(), "send_offsets_to_transaction"),
        (lambda: begun().begin(True), "commit or abort the open transaction first"),
        (lambda: begun().initialize(), "in a transaction"),
    ],
)
def test_a_call_in_the_wrong_order_says_what_comes_first(
    call: Callable[[], None], told: str
) -> None:
    with pytest.raises(TransactionStateError, match=told):
        call()


def test_nothing_joins_a_transaction_that_is_being_committed() -> None:
    machine = begun()
    machine.commit()
    for check in (machine.check_send, machine.check_offsets):
        with pytest.raises(TransactionStateError, match="commit_transaction"):
            check()
    assert machine.sending, "what was sent before still goes out"


def test_a_commit_that_was_asked_for_can_be_asked_for_again_and_not_aborted() -> None:
    machine = begun()
    machine.commit()
    machine.decided = True
    with pytest.raises(TransactionStateError, match="may have happened"):
        machine.abort()
    machine.commit()
    machine.ended((7, 1))
    assert machine.state is State.READY
    assert not machine.decided


def test_a_commit_that_was_not_yet_asked_for_can_be_aborted() -> None:
    machine = begun()
    machine.commit()
    machine.abort()
    assert machine.state is State.ABORTING
    assert not machine.sending


# -- who is told of a partition ------------------------------------------------------------------


def test_first_generation_a_partition_waits_until_the_coordinator_knows_it() -> None:
    machine = begun(implicit=False)
    assert not machine.admits(HERE)
    assert not machine.touched, "it was not asked yet"
    assert machine.telling() == [HERE]
    assert machine.touched, "from here on it may know"
    machine.admits(THERE)
    machine.told([HERE])
    assert machine.admits(HERE)
    assert machine.telling() == [THERE]
    machine.abort()
    assert not machine.missing


def test_first_generation_each_transaction_tells_its_partitions_anew() -> None:
    machine = begun(implicit=False)
    machine.admits(HERE)
    machine.told(machine.telling())
    machine.commit()
    machine.ended()
    assert machine.identity == (7, 0)
    machine.begin(implicit=False)
    assert not machine.admits(HERE)


def test_second_generation_partitions_go_at_once_and_make_an_end_necessary() -> None:
    machine = begun(implicit=True)
    assert not machine.touched
    assert machine.admits(HERE)
    assert machine.touched
    assert not machine.missing


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, FatalTransactionError),
        (ErrorCode.INVALID_TXN_STATE, ProducerFenced),
        (ErrorCode.TRANSACTION_ABORTABLE, AbortableTransactionError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, AbortableTransactionError),
        (ErrorCode.ILLEGAL_GENERATION, AbortableTransactionError),
        (ErrorCode.FENCED_INSTANCE_ID, AbortableTransactionError),
        (ErrorCode.UNKNOWN_PRODUCER_ID, AbortableTransactionError),
    ],
)
def test_what_a_coordinator_says_is_fatal_or_abortable(
    code: ErrorCode, kind: type[TransactionError]
) -> None:
    error = judged(refusal(code), "committing")
    assert type(error) is kind
    assert isinstance(error.cause, BrokerError)
    assert error.fix


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (refusal(ErrorCode.PRODUCER_FENCED), ProducerFenced),
        (refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), FatalTransactionError),
        (refusal(ErrorCode.INVALID_PRODUCER_EPOCH), AbortableTransactionError),
        (refusal(ErrorCode.INVALID_TXN_STATE), AbortableTransactionError),
        (refusal(ErrorCode.MESSAGE_TOO_LARGE), AbortableTransactionError),
        (TimedOut("not delivered"), AbortableTransactionError),
    ],
)
def test_what_befalls_a_batch_is_fatal_or_abortable(
    failure: ClientError, kind: type[TransactionError]
) -> None:
    machine = begun()
    error = machine.lost(failure, numbered=True)
    assert type(error) is kind is type(judged_batch(failure))
    assert machine.error is error
    fatal = issubclass(kind, FatalTransactionError)
    assert machine.state is (State.FATAL if fatal else State.ABORTABLE)
    with pytest.raises(kind):
        machine.check_send()
    with pytest.raises(kind):
        machine.commit()


def test_after_an_abortable_error_only_an_abort_leads_on() -> None:
    machine = begun()
    machine.lost(TimedOut("late"), numbered=False)
    with pytest.raises(AbortableTransactionError):
        machine.begin(True)
    machine.abort()
    machine.ended((7, 1))
    machine.begin(True)
    assert machine.error is None


def test_after_a_fatal_error_nothing_leads_on() -> None:
    machine = begun()
    machine.fail(judged(refusal(ErrorCode.PRODUCER_FENCED), "committing"))
    for call in (machine.commit, machine.abort, machine.initialize, machine.check_send):
        with pytest.raises(ProducerFenced):
            call()
    machine.fail(AbortableTransactionError("later"))
    assert machine.state is State.FATAL


@pytest.mark.parametrize(
    ("implicit", "numbered", "raised"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_a_number_that_was_lost_takes_a_new_epoch_unless_the_end_brings_one(
    implicit: bool, numbered: bool, raised: bool
) -> None:
    machine = begun(implicit)
    machine.lost(TimedOut("late"), numbered=numbered)
    machine.abort()
    assert machine.needs_new_epoch is raised
    machine.initialized((7, 1))
    assert not machine.needs_new_epoch


def test_a_producer_that_was_forgotten_takes_a_new_epoch_in_both_generations() -> None:
    for implicit in (False, True):
        machine = begun(implicit)
        machine.fail(judged(refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING), "adding"))
        machine.abort()
        assert machine.needs_new_epoch


CALLS: dict[str, Callable[[Transactions], object]] = {
    "initialize": lambda m: m.initialize(),
    "initialized": lambda m: m.initialized((7, 0)),
    "begin": lambda m: m.begin(True),
    "begin explicit": lambda m: m.begin(False),
    "admit": lambda m: m.sending and m.admits(HERE),
    "lose": lambda m: m.lost(TimedOut("late"), numbered=True),
    "fence": lambda m: m.fail(judged(refusal(ErrorCode.PRODUCER_FENCED), "x")),
    "abortable": lambda m: m.fail(AbortableTransactionError("x")),
    "commit": lambda m: m.commit(),
    "abort": lambda m: m.abort(),
    "ended": lambda m: m.ended((7, 1)),
}


@given(st.lists(st.sampled_from(sorted(CALLS)), max_size=30))
def test_whatever_is_called_in_whatever_order_the_table_is_kept(calls: list[str]) -> None:
    machine = Transactions("any")
    failed = False
    for call in calls:
        before = machine.state
        try:
            CALLS[call](machine)
        except TransactionError:
            assert machine.state is before, "a refused call changes nothing"
        assert machine.state is before or machine.state in VALID[before]
        if before is not State.READY and machine.state is State.READY and failed:
            assert before in (State.ABORTING, State.INITIALIZING), "a failed one never commits"
        failed = machine.state in (State.ABORTABLE, State.FATAL, State.ABORTING)
        if machine.state in (State.ABORTABLE, State.FATAL):
            assert machine.error is not None
        assert not (machine.sending and machine.identity is None)
