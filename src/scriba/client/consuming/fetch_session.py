"""One side of a fetch session (KIP-227): only what changed since the last request is sent again.

A session begins with a full request of epoch 0, in whose answer the broker gives it an id; from
then on each request carries the next epoch and the difference. A broker without room for sessions
gives the id 0, and every request stays a full one. After anything that leaves open what the broker
knows, the next request closes the session and begins another in one.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.wire.uuids import ZERO

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1


class FetchSpec(NamedTuple):
    """What to read of a partition, as the broker remembers it."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    max_bytes: int


class Plan(NamedTuple):
    """What to put into the next request."""

    session_id: int
    epoch: int
    by_id: bool
    send: Mapping[TopicPartition, FetchSpec]
    forget: Mapping[TopicPartition, FetchSpec]


class FetchSession:
    def __init__(self) -> None:
        self.id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._known: dict[TopicPartition, FetchSpec] = {}
        self._by_id = False

    def plan(self, wanted: Mapping[TopicPartition, FetchSpec], ids_spoken: bool) -> Plan:
        """The next request for these partitions; `ids_spoken` tells that topic ids may be used.

        Names and ids do not mix in a session, and a topic that was deleted and made again has
        another id: both begin a new session.
        """
        by_id = ids_spoken and all(want.topic_id != ZERO for want in wanted.values())
        known = self._known
        anew = self._epoch == FIRST_EPOCH or by_id != self._by_id
        anew = anew or any(
            where in known and known[where].topic_id != want.topic_id
            for where, want in wanted.items()
        )
        self._by_id = by_id
        self._known = dict(wanted)
        if anew:
            self._epoch = FIRST_EPOCH
            return Plan(self.id, FIRST_EPOCH, by_id, wanted, {})
        changed = {at: want for at, want in wanted.items() if known.get(at) != want}
        gone = {at: want for at, want in known.items() if at not in wanted}
        return Plan(self.id, self._epoch, by_id, changed, gone)

    def answered(self, session_id: int) -> None:
        """The broker has taken the request."""
        if self._epoch == FIRST_EPOCH:
            self.id = session_id
            self._epoch = FIRST_EPOCH if session_id == NO_SESSION else 1
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1

    def lost(self, error: ErrorCode | None = None) -> None:
        """The broker refused the session, or nobody knows whether it took the request."""
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.id = NO_SESSION
        self._epoch = FIRST_EPOCH
