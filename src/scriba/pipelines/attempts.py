"""When a query that failed goes on: after a pause that grows, so many times in a row and no more.

Spark gives a new Python process ten seconds to come up, whatever else the machine does. A query
that fails for this has nothing wrong with it, so that it may try more often than others.
"""

from dataclasses import dataclass
from typing import Final

from scriba.spark.reasons import MACHINE_IS_BUSY, busy, reason

__all__ = ["MACHINE_IS_BUSY", "Attempts", "busy", "reason"]

FAILURES: Final = 8
"""In a row, until a query is given up."""
FAILURES_WHEN_BUSY: Final = 30
LONGEST_PAUSE: Final = 30.0


@dataclass
class Attempts:
    restarts: int = 0
    """In all."""
    failures: int = 0
    """Since the query last had a batch."""
    again_at: float = 0.0
    """Not before this time."""

    def failed(self, failure: BaseException, now: float) -> float | None:
        """Seconds until it goes on; None when it is given up."""
        self.failures += 1
        if self.failures >= (FAILURES_WHEN_BUSY if busy(failure) else FAILURES):
            return None
        self.restarts += 1
        pause = min(LONGEST_PAUSE, 2.0 ** (self.failures - 1))
        self.again_at = now + pause
        return pause

    def well(self) -> None:
        self.failures = 0
