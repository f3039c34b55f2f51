"""The moment a decision is made at, handed to every machine as a value."""

from typing import Final, NamedTuple

FAR_MS: Final = 3_600_000
"""A clock is allowed to drift, to be corrected, or to be an hour wrong. More is a jump."""

PAUSE_MS: Final = 86_400_000
"""How long operators get to look at a clock that jumped before it is believed."""


class Instant(NamedTuple):
    """Deadlines count on `mono_ms`; record times and persisted expiry on `wall_ms`.

    Keeping both apart means that a jump of the wall clock expires no session and no lease.
    """

    mono_ms: int
    wall_ms: int


class ClockWatch:
    """Says when not to believe the wall clock. Asked before each pass that deletes by age."""

    def __init__(self, now: Instant) -> None:
        self._ahead = now.wall_ms - now.mono_ms
        self._until = 0
        self.jump_ms = 0
        """How far the clock jumped ahead, while that is not believed; 0 otherwise."""
        self.surprised = False
        """Whether the last look was the one that found the jump: time to tell of it."""

    def believes(self, now: Instant) -> bool:
        """Whether age may be told by the wall clock now."""
        jump = now.wall_ms - now.mono_ms - self._ahead
        self.surprised = jump > FAR_MS and not self.jump_ms
        if jump <= FAR_MS:  # back again, or backwards, which only keeps more
            self.jump_ms = 0
            return True
        if not self.jump_ms:
            self._until = now.mono_ms + PAUSE_MS
        elif now.mono_ms >= self._until:
            self._ahead += jump
            self.jump_ms = 0
            return True
        self.jump_ms = jump
        return False
