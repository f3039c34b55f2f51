"""Who votes in the metadata quorum: as the settings say, or as the log says, and since when.

With kraft.version 0 the voters stand in the settings of every node, without their directories. With
kraft.version 1 they stand in the log, as VotersRecord, and count from the moment a node has the
record, committed or not: so two leaders can never count different majorities that do not meet. A
truncation takes a record back, and the voters with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scriba.broker.metadata.quorum.snapshots import QuorumFacts
from scriba.broker.metadata.quorum.wire import Endpoints
from scriba.raft.messages import NO_DIRECTORY, Voter
from scriba.settings.listeners import Voter as ConfiguredVoter
from scriba.wire.messages.stored import (
    Endpoint,
    KRaftVersionFeature,
    VotersRecord,
    VotersRecordVoter,
)

KRAFT_LEVEL: Final = 1
BEFORE_THE_LOG: Final = -1


class Identity(NamedTuple):
    """This node as a voter, and where its controller can be reached."""

    voter: Voter
    endpoints: Endpoints


class Membership(NamedTuple):
    """Who this node is in the quorum, and whom it was told to find there."""

    identity: Identity
    voters: tuple[ConfiguredVoter, ...] = ()
    """`controller.quorum.voters`: they vote unless the log names others."""
    bootstrap: tuple[int, ...] = ()
    """Whom to ask while the voters are not known, by the transport's numbers."""
    alone: bool = True
    """Whether this node was told of no controller but itself."""


class VoterHistory:
    """What is known of the quorum since which offset; the last entry is what counts."""

    def __init__(self, first: QuorumFacts, since: int, static: Iterable[ConfiguredVoter]) -> None:
        self._since = [since]
        self._facts = [first]
        self._static = tuple(static)

    @property
    def latest(self) -> QuorumFacts:
        return self._facts[-1]

    @property
    def in_log(self) -> bool:
        """Whether the voters were ever written to the log, rather than to a first snapshot."""
        return self._since[-1] > BEFORE_THE_LOG and self.latest.voters is not None

    @property
    def since(self) -> int:
        """Where the voters stand that count."""
        return self._since[-1]

    def removed_at(self, own: Voter) -> int:
        """Where a node that was a voter ceased to be one; -1 for one that never was, or still is.

        Only as far back as the log is kept: what came before is committed.
        """
        for since, facts, before in zip(
            reversed(self._since[1:]),
            reversed(self._facts[1:]),
            reversed(self._facts[:-1]),
            strict=True,
        ):
            if _is_voter(facts, own):
                return -1
            if _is_voter(before, own):
                return since
        return -1

    def at(self, offset: int) -> QuorumFacts:
        """As of everything before `offset`."""
        return self._facts[max(bisect_right(self._since, offset - 1) - 1, 0)]

    def add(self, offset: int, facts: QuorumFacts) -> None:
        """A control batch at `offset` says so."""
        if facts != self.latest or not self.in_log:
            self._since.append(offset)
            self._facts.append(facts)

    def truncate(self, offset: int) -> None:
        """Forgets what stood at `offset` or after."""
        while len(self._since) > 1 and self._since[-1] >= offset:
            self._since.pop()
            self._facts.pop()

    def forget_before(self, offset: int) -> None:
        """A snapshot at `offset` stands for all that came before."""
        keep = max(bisect_right(self._since, offset - 1) - 1, 0)
        del self._since[:keep]
        del self._facts[:keep]

    def reset(self, offset: int, facts: QuorumFacts) -> None:
        self._since, self._facts = [offset], [facts]

    # ---- as others want them ----

    def voters(self) -> list[Voter]:
        record = self.latest.voters
        if record is not None:
            return [Voter(v.voter_id, v.voter_directory_id) for v in record.voters]
        return [Voter(v.node_id, NO_DIRECTORY) for v in self._static]

    def endpoints(self) -> Mapping[int, Endpoints]:
        """Where each voter can be reached: listener, host and port."""
        record = self.latest.voters
        if record is not None:
            return {
                voter.voter_id: tuple((e.name, e.host, e.port) for e in voter.endpoints)
                for voter in record.voters
            }
        return {voter.node_id: (("", voter.host, voter.port),) for voter in self._static}

    def address(self, voter_id: int, listeners: Iterable[str]) -> tuple[str, int] | None:
        """A voter's address on the first of `listeners` that it has, else on any."""
        known = self.endpoints().get(voter_id, ())
        for listener in listeners:
            for name, host, port in known:
                if name == listener:
                    return host, port
        return (known[0][1], known[0][2]) if known else None


def voters_record(identities: Iterable[Identity]) -> VotersRecord:
    return VotersRecord(voters=[_voter(identity) for identity in identities])


def with_voter(record: VotersRecord, changed: Identity) -> VotersRecord:
    """The same voters, of which one says where it is now."""
    return VotersRecord(
        voters=[
            _voter(changed) if _key(voter) == changed.voter else voter for voter in record.voters
        ]
    )


def and_voter(record: VotersRecord, new: Identity, levels: tuple[int, int]) -> VotersRecord:
    """One more, which supports these levels of kraft.version."""
    return VotersRecord(voters=[*record.voters, _voter(new, levels)])


def without_voter(record: VotersRecord, gone: Voter) -> VotersRecord:
    return VotersRecord(voters=[voter for voter in record.voters if _key(voter) != gone])


def _key(voter: VotersRecordVoter) -> Voter:
    return Voter(voter.voter_id, voter.voter_directory_id)


def _is_voter(facts: QuorumFacts, own: Voter) -> bool:
    return facts.voters is not None and any(_key(voter) == own for voter in facts.voters.voters)


def _voter(identity: Identity, levels: tuple[int, int] = (0, KRAFT_LEVEL)) -> VotersRecordVoter:
    return VotersRecordVoter(
        voter_id=identity.voter.id,
        voter_directory_id=identity.voter.directory,
        endpoints=[
            Endpoint(name=name, host=host, port=port) for name, host, port in identity.endpoints
        ],
        kraft_version_feature=KRaftVersionFeature(
            min_supported_version=levels[0], max_supported_version=levels[1]
        ),
    )


def current_voters(history: VoterHistory, own: Voter, end_offset: int, alone: bool) -> list[Voter]:
    """Who votes, as far as this node can know."""
    if history.latest.voters is not None:
        return history.voters()
    if alone:
        return [own]  # a cluster that this node founds, or one whose version it raises
    # Whether the settings count (kraft.version 0) is to be seen from a leader's log.
    return history.voters() if end_offset else []
