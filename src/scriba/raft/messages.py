"""What the machines of a quorum say to each other, and what they want done.

These are the facts of Kafka's Vote, BeginQuorumEpoch, EndQuorumEpoch and Fetch requests without
their packaging; the shell translates. A log's content travels as an opaque payload.
"""

from typing import Final, NamedTuple

NO_DIRECTORY: Final = bytes(16)
"""Of a voter whose directory nobody knows: one that stands in the settings (kraft.version 0)."""


class Position(NamedTuple):
    """An end of a log. Compared as tuples, the greater one is the more complete log."""

    epoch: int
    offset: int


class Voter(NamedTuple):
    id: int
    directory: bytes
    """A node that lost its disk comes back with another directory and is not the voter it was."""

    def is_replica(self, replica: "Voter") -> bool:
        """Whether this voter is that replica, as far as its directory is known."""
        return self.id == replica.id and self.directory in (NO_DIRECTORY, replica.directory)


class VoteRequest(NamedTuple):
    """A pre-vote asks, in the present epoch, whether an election would be won (KIP-996)."""

    epoch: int
    candidate: Voter
    end: Position
    pre_vote: bool
    keyed: bool = False
    """Whether the candidate named this voter by its directory: it knows the disk that is asked."""


class VoteReply(NamedTuple):
    epoch: int
    leader: int | None
    granted: bool
    pre_vote: bool


class BeginEpoch(NamedTuple):
    epoch: int
    leader: int


class EndEpoch(NamedTuple):
    """The leader leaves; `successors` are the voters with the most complete logs first."""

    epoch: int
    leader: int
    successors: tuple[int, ...]


class EpochReply(NamedTuple):
    """Answers BeginEpoch and EndEpoch."""

    epoch: int
    leader: int | None


class FetchRequest(NamedTuple):
    epoch: int
    replica: Voter
    offset: int
    last_epoch: int
    """The epoch of the last record the replica has; the leader finds out if they diverge."""
    high_watermark: int
    max_wait_ms: int


class Run(NamedTuple):
    """Records of one epoch, up to an end offset."""

    epoch: int
    end_offset: int


class FetchReply(NamedTuple):
    """What the leader has from a position on, or how the replica must first put its log right.

    `position` is what the request asked from: an answer that comes so late that the replica's log
    has changed must not be taken for the answer to a newer question. The leader's machine names
    the end of what it wants sent; the follower's gets the runs of epochs in it, with the payload.
    """

    epoch: int
    leader: int | None
    high_watermark: int = -1
    position: Position = Position(-1, -1)
    end_offset: int = -1
    diverging: Position | None = None
    snapshot: Position | None = None
    refused: bool = False
    runs: tuple[Run, ...] = ()
    payload: object = None


Request = VoteRequest | BeginEpoch | EndEpoch | FetchRequest
Reply = VoteReply | EpochReply | FetchReply


class HardState(NamedTuple):
    """What must be on disk before anything that follows from it leaves the node."""

    epoch: int
    leader: int | None = None
    voted: Voter | None = None


class Leadership(NamedTuple):
    epoch: int
    leader: int | None


class Ready(NamedTuple):
    """What to do, in this order: persist, truncate, append, then tell and send.

    The end offset of whatever is appended goes back to the machine by `persisted`, once flushed.
    """

    hard_state: HardState | None
    truncate_to: int | None
    append: FetchReply | None
    fetch_snapshot: Position | None
    leadership: Leadership | None
    high_watermark: int | None
    sends: list[tuple[int, Request]]
    replies: list[tuple[object, Reply]]
    faults: list[str]
    """What peers said that cannot be true, for an operator to look at."""
