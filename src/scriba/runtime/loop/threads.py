"""A thread for an event loop of its own: what the synchronous clients run on."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def start_daemon(main: Callable[[], None], name: str) -> None:
    """Runs `main` beside the caller; it does not keep the process from ending."""
    threading.Thread(target=main, name=name, daemon=True).start()


def new_lock() -> AbstractContextManager[Any]:
    """One thread at a time, as often as it likes."""
    return threading.RLock()
