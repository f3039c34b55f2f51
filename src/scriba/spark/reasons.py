"""What to tell of a failure of Spark, whose own account is a hundred lines of Java."""

from typing import Final

_BUSY: Final = ("Python worker failed to connect back", "waiting for the Python worker to connect")
_TRACEBACK: Final = "Traceback (most recent call last)"
MACHINE_IS_BUSY: Final = "the machine is too busy: a Python process was not up within ten seconds"


def busy(failure: BaseException) -> bool:
    """Whether a Python process did not come up in time: nothing is wrong with the query then."""
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
