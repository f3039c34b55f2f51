"""The moment a decision is made at, handed to every machine as a value."""

from typing import NamedTuple


class Instant(NamedTuple):
    """Deadlines count on `mono_ms`; record times and persisted expiry on `wall_ms`.

    Keeping both apart means that a jump of the wall clock expires no session and no lease.
    """

    mono_ms: int
    wall_ms: int
