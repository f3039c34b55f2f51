"""Whether the voters may be changed now (KIP-853): by one, and one change at a time.

Two sets that differ by one voter have no majorities that miss each other; two changes at once, or
one on top of what an earlier leader left uncommitted, could. So a leader begins a change only when
the voters before it are committed, and something of its own epoch is. A new voter must have the
log first: until it has, it would count for majorities and could not help to make them.

The checks refuse what is wrong as it is; `not_yet` and `lag` say what a change has to wait for.
"""

from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.raft.machine import Raft
from scriba.raft.messages import NO_DIRECTORY, Voter
from scriba.wire.uuids import to_text


def check_add(raft: Raft, voter: Voter) -> None:
    """KafkaError unless this voter could be added."""
    _check_key(voter)
    known = raft.voters.get(voter.id)
    if known is None:
        return
    text = f"controller {voter.id} is a voter already"
    if not known.is_replica(voter):
        text = (
            f"controller {voter.id} is a voter with another directory, {to_text(known.directory)}: "
            "remove that one first"
        )
    raise KafkaError(ErrorCode.DUPLICATE_VOTER, text)


def check_remove(raft: Raft, voter: Voter) -> None:
    """KafkaError unless this voter could be removed."""
    _check_key(voter)
    if voter not in raft.voters.values():
        names = ", ".join(str(each) for each in sorted(raft.voters))
        text = f"controller {voter.id} is not among the voters {names}"
        if voter.id in raft.voters:
            known = to_text(raft.voters[voter.id].directory)
            text = f"controller {voter.id} is a voter with another directory, {known}"
        raise KafkaError(ErrorCode.VOTER_NOT_FOUND, text)
    if len(raft.voters) == 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"controller {voter.id} is the last voter: nobody could add another one after it",
        )


def _check_key(voter: Voter) -> None:
    if voter.id < 0 or voter.directory == NO_DIRECTORY:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "a voter is named by its id and the id of its directory"
        )


def not_yet(raft: Raft) -> str | None:
    """Why a leader may not begin any change now; None when it may."""
    assert raft.progress is not None
    if raft.high_watermark <= raft.progress.start_offset:
        return f"the leader has committed nothing in its epoch {raft.epoch} yet"
    if raft.voters_since >= raft.high_watermark:
        return f"the change of voters before, at offset {raft.voters_since}, is not committed yet"
    return None


def lag(raft: Raft, voter: Voter, now: Instant) -> str | None:
    """Why a replica cannot be a voter now; None when it has the log."""
    assert raft.progress is not None
    replica = raft.progress.observers.get(voter)
    if replica is None:
        return f"controller {voter.id} {_elsewhere(raft, voter)}"
    patience = raft.patience_ms
    if replica.caught_up_at >= 0 and replica.caught_up_at > now.mono_ms - patience:
        return None
    missing = raft.log.end_offset - max(replica.end_offset, 0)
    return f"controller {voter.id} lags behind: {missing} of {raft.log.end_offset} records to fetch"


def is_known(raft: Raft, voter: Voter) -> bool:
    """Whether the replica has asked this leader for the log."""
    return raft.progress is not None and voter in raft.progress.observers


def _elsewhere(raft: Raft, voter: Voter) -> str:
    assert raft.progress is not None
    others = [each for each in raft.progress.observers if each.id == voter.id]
    if others:
        return f"fetches the metadata with another directory, {to_text(others[-1].directory)}"
    return "does not fetch the metadata; start it first, and name its directory"
