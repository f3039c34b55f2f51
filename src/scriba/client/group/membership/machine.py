"""What the machines of both protocols have in common: see `model` for what they do."""

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from scriba.client.group.membership.model import Change, Identity, Subscribed
from scriba.client.model import TopicPartition
from scriba.peers.errors import ClientError

P = TypeVar("P", bound=Enum)


class Machine(Generic[P]):
    """`valid` are the ways from phase to phase; in those of `polling` the application has to poll
    within max.poll.interval.ms."""

    def __init__(
        self,
        identity: Identity,
        phase: P,
        valid: Mapping[P, frozenset[P]],
        polling: frozenset[P],
    ) -> None:
        self.phase = phase
        self.owned: tuple[TopicPartition, ...] = ()
        self._identity = identity
        self._valid = valid
        self._polling = polling
        self._wish = Subscribed()
        self._changing = False
        self._error: ClientError | None = None
        self._beat_at = 0
        self._last_poll: int | None = None

    def _go(self, phase: P) -> None:
        assert phase in self._valid[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    # -- errors ----------------------------------------------------------------------------------

    @property
    def has_error(self) -> bool:
        return self._error is not None

    def fail(self, error: ClientError) -> None:
        self._error = error

    def take_error(self) -> ClientError | None:
        error, self._error = self._error, None
        return error

    # -- time ------------------------------------------------------------------------------------

    def _away_at(self) -> int | None:
        """When the application has not polled for too long; None while it need not poll."""
        if self._last_poll is None or self.phase not in self._polling:
            return None
        return self._last_poll + self._identity.max_poll_interval_ms

    def _is_away(self, now: int) -> bool:
        limit = self._away_at()
        return limit is not None and now >= limit

    def _wake_at(self, beats: bool) -> int | None:
        """The next heartbeat, or the end of the application's time."""
        if self._error is not None:
            return None
        limit = self._away_at()
        times = [self._beat_at] if beats else []
        if limit is not None:
            times.append(limit)
        return min(times, default=None)

    # -- changes of the partitions ---------------------------------------------------------------

    def begin(self, change: Change) -> None:
        """The application has begun with it; until `changed` it may have either."""
        self._changing = True

    def _carried_out(self, change: Change) -> None:
        """The application is done with it."""
        self._changing = False
        gone = set(change.release)
        self.owned = tuple(where for where in self.owned if where not in gone)
        if change.assign is not None:
            self.owned = change.assign
