"""How the files that a process may have open are shared out (RLIMIT_NOFILE)."""

import resource
from typing import Final

_MOST_FILES: Final = 1 << 14
_UNLIMITED: Final = 1 << 20
_MOST_SPARE: Final = 256
"""For listeners, scrapers, connections to other brokers, directories that are being synced, pipes
to worker processes."""


def _may_have() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def files_of_logs() -> int:
    """How many files logs keep open; beyond that idle ones are closed."""
    return min(_may_have() // 2, _MOST_FILES)


def connections() -> int:
    """How many connections of clients there is room for, whatever logs and others have open."""
    limit = _may_have()
    return max(limit - files_of_logs() - min(limit // 8, _MOST_SPARE), 1)
