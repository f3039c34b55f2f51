"""When a query that failed goes on: after a pause that grows, so many times in a row and no more.

Spark gives a new Python process ten seconds to come up, whatever else the machine does. A query
that fails for this has nothing wrong with it, so that it may try more often than others.
"""

from dataclasses import dataclass
from typing import Final

FAILURES: Final = 8
"""In a row, until a query is given up."""
FAILURES_WHEN_BUSY: Final = 30
LONGEST_PAUSE: Final = 30.0

_BUSY: Final = ("Python worker failed to connect back", "waiting for the Python worker to connect")
_TRACEBACK: Final = "Traceback (most recent call last)"
MACHINE_IS_BUSY: Final = "the machine is too busy: a Python process was not up within ten seconds"


def busy(failure: BaseException) -> bool:
    text = str(failure)
    return any(words in text for words in _BUSY)


def reason(failure: BaseException) -> str:
    """The line of a long Java story that says what happened."""
    if busy(failure):
        return MACHINE_IS_BUSY
    lines = [line for line in str(failure).splitlines() if line.strip()]
    ends = _python(lines) or lines[:1] or [repr(failure)]
    return ends[-1].strip()[:500]


def _python(lines: list[str]) -> list[str]:
    """The lines with which tracebacks of Python end: the first that are not set in."""
    found = []
    inside = False
    for line in lines:
        if _TRACEBACK in line:
            inside = True
        elif inside and not line[0].isspace():
            found.append(line)
            inside = False
    return found


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
