"""What a node of a quorum can be, and how long it waits for the others."""

import enum
from typing import Final, NamedTuple

MAX_WAIT_MS: Final = 500
LAST_EPOCH: Final = (1 << 31) - 1
"""Epochs are numbers of 32 bits: nobody can be elected after this one."""


class Role(enum.Enum):
    UNATTACHED = "waits for a leader or an election"
    PROSPECTIVE = "asks whether it could win an election"
    CANDIDATE = "asks for votes in a new epoch"
    LEADER = "writes the log"
    FOLLOWER = "fetches from the leader"
    RESIGNED = "led this epoch and has stopped"


VALID: Final = {
    Role.UNATTACHED: {Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER},
    Role.PROSPECTIVE: {Role.UNATTACHED, Role.CANDIDATE, Role.FOLLOWER},
    Role.CANDIDATE: {Role.UNATTACHED, Role.PROSPECTIVE, Role.LEADER, Role.FOLLOWER},
    Role.LEADER: {Role.UNATTACHED, Role.RESIGNED, Role.FOLLOWER},
    Role.FOLLOWER: {Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER},
    Role.RESIGNED: {Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER},
}
"""Which role may follow which."""


class Timeouts(NamedTuple):
    election_ms: int = 1000
    fetch_ms: int = 2000
    request_ms: int = 2000
    backoff_ms: int = 20
    """Before a peer that could not be asked is asked again."""
    election_backoff_ms: int = 1000
    """The longest pause after an election that was lost."""

    @property
    def fetch_wait_ms(self) -> int:
        """How long a fetch may wait: well below what makes a follower doubt its leader."""
        return min(MAX_WAIT_MS, self.fetch_ms // 4, self.request_ms // 4)

    @property
    def majority_ms(self) -> int:
        """How long a leader leads without hearing a majority."""
        return self.fetch_ms * 3 // 2
