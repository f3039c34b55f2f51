"""The real clock."""

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
