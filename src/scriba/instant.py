"""The moment a decision is made at, handed to every machine as a value."""

from typing import Final, NamedTuple

FAR_MS: Final = 3_600_000
"""A clock is allowed to drift, to be corrected, or to be an hour wrong. More is a jump."""

OFF_MS: Final = 86_400_000
"""How long a node may have been off before its start rather looks like a clock that is wrong."""

PAUSE_MS: Final = 86_400_000
"""How long operators get to look at a clock that jumped before it is believed."""


class Instant(NamedTuple):
    """Deadlines count on `mono_ms`; record times and persisted expiry on `wall_ms`.

    Keeping both apart means that a jump of the wall clock expires no session and no lease.
    """

    mono_ms: int
    wall_ms: int


class ClockWatch:
    """Says when not to believe the wall clock. Asked before each pass that deletes by age.

    A clock that jumps against the monotonic one is not believed, nor is one that is far ahead, at
    the start, of the newest time that the node had written down. Both last until the clock is
    where it was expected, until somebody who has looked says so (`trust`), or for PAUSE_MS.
    """

    def __init__(self, now: Instant) -> None:
        self._ahead = now.wall_ms - now.mono_ms
        self._far = FAR_MS
        self._until = 0
        self.jump_ms = 0
        """How far the clock jumped ahead, while that is not believed; 0 otherwise."""
        self.surprised = False
        """Whether the last look was the one that found the jump: time to tell of it."""

    def suspect(self, witness_ms: int, now: Instant, ran_ms: int = 0) -> bool:
        """Whether the clock is too far ahead of a time that was right; then it is not believed.
        `ran_ms` of the pause have passed before this start."""
        jump = now.wall_ms - witness_ms
        if jump <= OFF_MS:
            return False
        self._ahead = witness_ms - now.mono_ms
        self._far = OFF_MS
        self._until = now.mono_ms + max(PAUSE_MS - ran_ms, 0)
        self.jump_ms = jump
        return True

    def trust(self, now: Instant) -> None:
        """Takes the clock as it is."""
        self._ahead = now.wall_ms - now.mono_ms
        self._far = FAR_MS
        self.jump_ms = 0

    @property
    def since_start(self) -> bool:
        """Whether it was not believed from the start on, or by order; otherwise it jumped."""
        return self._far == OFF_MS

    def expected_ms(self, now: Instant) -> int:
        """The wall time, had the clock not jumped."""
        return now.mono_ms + self._ahead

    def left_ms(self, now: Instant) -> int:
        """How long it will not be believed, if nobody does anything."""
        return max(self._until - now.mono_ms, 0) if self.jump_ms else 0

    def believes(self, now: Instant) -> bool:
        """Whether age may be told by the wall clock now."""
        jump = now.wall_ms - now.mono_ms - self._ahead
        self.surprised = jump > self._far and not self.jump_ms
        if jump <= self._far:  # back again, or backwards, which only keeps more
            self.jump_ms = 0
            if self._far != FAR_MS:
                self.trust(now)
            return True
        if not self.jump_ms:
            self._until = now.mono_ms + PAUSE_MS
        elif now.mono_ms >= self._until:
            self.trust(now)
            return True
        self.jump_ms = jump
        return False
