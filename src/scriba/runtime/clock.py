"""The real clock, and one that may be set ahead of it."""

import time

from scriba.instant import Instant

_new = tuple.__new__


class SystemClock:
    """Monotonic time for deadlines, wall time for what is written down."""

    def mono_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now(self) -> Instant:
        # Asked for each request; made without the call of Python that `Instant()` would be.
        return _new(Instant, (time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000))


class AdjustableClock(SystemClock):
    """The real clock and a lead over it: monotonic and wall time move ahead together.

    So nothing looks like a jump of the wall clock: it is as if the time had passed.
    """

    def __init__(self, ahead_ns: int = 0) -> None:
        self.ahead_ns = ahead_ns
        """How far it is ahead of the machine's; it only grows."""

    def mono_ms(self) -> int:
        return (time.monotonic_ns() + self.ahead_ns) // 1_000_000

    def wall_ms(self) -> int:
        return (time.time_ns() + self.ahead_ns) // 1_000_000

    def now(self) -> Instant:
        return Instant(self.mono_ms(), self.wall_ms())
