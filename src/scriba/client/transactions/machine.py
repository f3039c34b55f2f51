"""The transactions of one producer: which call fits where, and what an answer means for them.

    UNINITIALIZED -> INITIALIZING -> READY -> OPEN -> COMMITTING or ABORTING -> READY -> ...

`init_transactions` gives the producer its identity, a producer id and an epoch, and ends what an
earlier producer of the same transactional id left behind. Each transaction then writes under that
identity. There are two generations of the protocol, and the level of the feature
`transaction.version` when a transaction begins says which one it is in. In the first, the
coordinator is told of a partition or a group before anything is written there; in the second
(KIP-890) whoever writes it tells the coordinator (`implicit`), and the end of each transaction
raises the epoch.

Two ways out of it: ABORTABLE, when the transaction cannot succeed any more, but the producer can go
on after an abort; FATAL, when this producer is not, or no longer, the one to write. Invariants:

- Records leave only while OPEN or COMMITTING, so nothing of a transaction is sent after its end.
- The identity changes only when no batch is on its way, so no batch has two identities.
- Once the coordinator was asked to commit (`decided`), nothing but asking again leads on: the
  transaction may be committed, and an abort would be a lie.
- A batch that was numbered and not acknowledged leaves a gap, or a record that may come late. The
  next transaction begins under a raised epoch, which both brokers and late records respect
  (KIP-360).

What must never happen: READY after a commit whose transaction lacks a record that was sent in it.
"""

import enum
from collections.abc import Iterable
from typing import Final

from scriba.client.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFenced,
    TransactionError,
    TransactionStateError,
)
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, ClientError

Identity = tuple[int, int]
"""Producer id and epoch."""


class State(enum.Enum):
    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "ready to begin a transaction"
    OPEN = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE = "in a transaction that failed"
    FATAL = "beyond repair"


VALID: Final[dict[State, frozenset[State]]] = {
    State.UNINITIALIZED: frozenset({State.INITIALIZING}),
    State.INITIALIZING: frozenset({State.INITIALIZING, State.READY, State.FATAL}),
    State.READY: frozenset({State.OPEN, State.FATAL}),
    State.OPEN: frozenset({State.COMMITTING, State.ABORTING, State.ABORTABLE, State.FATAL}),
    State.COMMITTING: frozenset(
        {State.COMMITTING, State.READY, State.ABORTING, State.ABORTABLE, State.FATAL}
    ),
    State.ABORTABLE: frozenset({State.ABORTING, State.FATAL}),
    State.ABORTING: frozenset({State.ABORTING, State.READY, State.FATAL}),
    State.FATAL: frozenset(),
}
"""Where each state may lead. What times out may be asked for again, hence the loops."""

_NEXT: Final[dict[State, str]] = {
    State.UNINITIALIZED: "await init_transactions() first",
    State.INITIALIZING: "await init_transactions() to its end",
    State.READY: "begin_transaction() first",
    State.OPEN: "commit or abort the open transaction first",
    State.COMMITTING: "await commit_transaction() to its end",
    State.ABORTING: "await abort_transaction() to its end",
    State.ABORTABLE: "abort_transaction() first",
}
"""What leads on from a state, for whoever called something else."""

SENDING: Final = frozenset({State.OPEN, State.COMMITTING})

FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Answers of a coordinator that say that the transaction is not this producer's any more. The last
one is for a commit whose transaction was aborted because its time had passed."""

_FORGOTTEN: Final = frozenset(
    {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
"""The coordinator let go of an id that was not used for long; a raised epoch brings it back."""

_ABORTABLE: Final = _FORGOTTEN | {
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""Answers of a coordinator that concern this one transaction; others that say no are fatal."""

_FATAL_FOR_A_BATCH: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""Answers to a batch after which no other one would be taken either."""


def judged(failure: ClientError, doing: str) -> TransactionError:
    """What a coordinator's refusal means. A retriable one has been tried again before."""
    kind: type[TransactionError] = FatalTransactionError
    if isinstance(failure, BrokerError):
        if failure.code in FENCED:
            kind = ProducerFenced
        elif failure.code in _ABORTABLE:
            kind = AbortableTransactionError
    return kind(f"{doing}: {failure.args[0]}", cause=failure)


def judged_batch(failure: ClientError) -> TransactionError:
    """What it means that a batch was given up. An epoch that is too old is told for certain only
    by the coordinator, when the transaction is aborted (KIP-588)."""
    if isinstance(failure, TransactionError):
        return failure
    kind: type[TransactionError] = AbortableTransactionError
    if isinstance(failure, BrokerError):
        if failure.code is ErrorCode.PRODUCER_FENCED:
            kind = ProducerFenced
        elif failure.code in _FATAL_FOR_A_BATCH:
            kind = FatalTransactionError
    return kind(str(failure.args[0]), cause=failure)


class Transactions:
    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.identity: Identity | None = None
        self.error: TransactionError | None = None
        """Why the state is ABORTABLE or FATAL."""
        self.implicit = False
        """Whether this transaction is of the second generation."""
        self.decided = False
        """Whether the coordinator was asked to end it."""
        self.missing: dict[TopicPartition, None] = {}
        """Partitions with something to send, of which the coordinator has to be told first."""
        self.groups: set[str] = set()
        """Groups of which the coordinator was told."""
        self._partitions: set[TopicPartition] = set()
        self.forgotten = False
        """Whether the coordinator let go of this identity, and has nothing to end."""
        self._touched = False
        self._gap = False

    # -- what the application calls --------------------------------------------------------------

    def initialize(self) -> None:
        if self.state is State.READY:
            raise TransactionStateError("the producer was initialized before")
        self._go(State.INITIALIZING, "init_transactions()")

    def initialized(self, identity: Identity) -> None:
        """From the start, or with a raised epoch at the end of an abort."""
        self._finish(identity)

    def begin(self, implicit: bool) -> None:
        self._go(State.OPEN, "begin_transaction()")
        self.implicit = implicit

    def check_send(self, parked: bool = False) -> None:
        """Raises unless a record may join the transaction; one that was parked has done so before,
        and only waits for its place."""
        if self.state is not State.OPEN and not (parked and self.sending):
            raise self._refusal("sending")

    def check_offsets(self) -> None:
        """Raises unless offsets may join the transaction."""
        if self.state is not State.OPEN:
            raise self._refusal("send_offsets_to_transaction()")

    def commit(self) -> None:
        if self.state is State.ABORTABLE:
            raise self._refusal("commit_transaction()")
        self._go(State.COMMITTING, "commit_transaction()")

    def check_commit(self) -> None:
        """Raises unless the commit may go on, after it waited: the transaction may have failed
        meanwhile, or have been aborted by another task or a close."""
        if self.state is State.ABORTING:
            raise AbortableTransactionError(
                "the transaction was aborted while its commit waited", fix="try it again"
            )
        if self.state is not State.COMMITTING:
            raise self._refusal("commit_transaction()")

    def abort(self) -> None:
        if self.state is State.COMMITTING and self.decided:
            raise TransactionStateError(
                "the commit is under way, and may have happened",
                fix="await commit_transaction() again, until it tells",
            )
        self._go(State.ABORTING, "abort_transaction()")
        self.missing.clear()

    def ended(self, identity: Identity | None = None) -> None:
        """The coordinator ended the transaction, and perhaps gave a new identity."""
        self._finish(identity or self.identity)

    # -- what it takes ---------------------------------------------------------------------------

    @property
    def sending(self) -> bool:
        """Whether batches may leave."""
        return self.state in SENDING

    @property
    def touched(self) -> bool:
        """Whether the coordinator may know of this transaction: else there is nothing to end."""
        return self._touched

    @property
    def needs_new_epoch(self) -> bool:
        """Whether an abort has to raise the epoch, as ending the transaction does not."""
        return self.forgotten or (self._gap and not self.implicit)

    def admits(self, where: TopicPartition) -> bool:
        """Whether a batch of this partition may leave now; if not, `missing` has it."""
        assert self.sending
        if self.implicit or where in self._partitions:
            self._touched = True
            return True
        self.missing[where] = None
        return False

    def telling(self) -> list[TopicPartition]:
        """Partitions for the coordinator. From now on it may know of the transaction."""
        self._touched = True
        return list(self.missing)

    def told(self, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self.missing.pop(where, None)
            self._partitions.add(where)

    def telling_group(self) -> None:
        """The same for a group."""
        self._touched = True

    def lost(self, failure: ClientError, numbered: bool) -> TransactionError:
        """A batch was given up, after or before it got its number; what that means."""
        self._gap = self._gap or numbered
        error = judged_batch(failure)
        self.fail(error)
        return error

    def dropped(self, numbered: bool) -> None:
        """A batch was given up because of the transaction."""
        self._gap = self._gap or numbered

    def fail(self, error: TransactionError) -> None:
        """An error of the transaction, or of the producer, whoever noticed it."""
        if self.state is State.FATAL:
            return
        if isinstance(error, FatalTransactionError):
            self._go(State.FATAL, "failing")
        elif self.state in SENDING:
            self._go(State.ABORTABLE, "failing")
        elif self.state is not State.ABORTING:
            return
        cause = error.cause
        if isinstance(cause, BrokerError) and cause.code in _FORGOTTEN:
            self.forgotten = True
        self.error = error
        self.missing.clear()

    # -- the table -------------------------------------------------------------------------------

    def _finish(self, identity: Identity | None) -> None:
        self._go(State.READY, "ending")
        self.identity = identity
        self.error = None
        self.decided = False
        self.groups.clear()
        self.missing.clear()
        self._partitions.clear()
        self._touched = False
        self._gap = False
        self.forgotten = False

    def _go(self, to: State, call: str) -> None:
        if to not in VALID[self.state]:
            raise self._refusal(call)
        self.state = to

    def _refusal(self, call: str) -> TransactionError:
        """Why a call is refused here: the error that stands in its way, or the wrong order."""
        if self.error is not None and self.state in (State.ABORTABLE, State.FATAL):
            return self.error.anew()
        return TransactionStateError(
            f"{call} is not possible while the producer is {self.state.value}",
            fix=_NEXT.get(self.state, ""),
        )
