"""Says on standard error what a command waits for: a broker that cannot be reached, a full disk.

A client goes on trying by itself, for as long as its time limits allow. Whoever sits before the
command learns why nothing happens when that has taken a moment, again every now and then, and that
it goes on. What to say is decided by `WaitReporter` from the time and the trouble; `watched` asks a
client for the latter, a few times a second.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final, Protocol

from scriba.cli.output import note
from scriba.client import ClientError, NetworkError

LOOK_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 1.0
"""How long a trouble may last before it is told; most are over by then."""

AGAIN_SECONDS: Final = 30.0


class ReportsTrouble(Protocol):
    """A client that tells what stands in its way."""

    @property
    def trouble(self) -> ClientError | None: ...


class WaitReporter:
    """What there is to say, given what stood in the way at which time."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._since: float | None = None
        self._told_at: float | None = None
        self._told = ""

    def look(self, now: float, trouble: ClientError | None) -> str | None:
        if trouble is None:
            told, since = self._told_at, self._since
            self._since = self._told_at = None
            if told is None or since is None:
                return None
            return f"it goes on, after {now - since:.0f} s"
        if self._since is None:
            self._since = now
        waited = now - self._since
        if waited < self._patience:
            return None
        what = describe(trouble)
        if self._told_at is not None and what == self._told and now - self._told_at < AGAIN_SECONDS:
            return None
        first = self._told_at is None
        self._told_at, self._told = now, what
        return f"waiting: {what}" if first else f"still waiting, for {waited:.0f} s: {what}"


def describe(trouble: ClientError) -> str:
    text = " ".join(str(trouble).split())
    if isinstance(trouble, NetworkError):
        return f"{text}; trying again"
    return f"{text}; trying again until that is over"


@contextlib.asynccontextmanager
async def watched(
    client: ReportsTrouble, patience: float = PATIENCE_SECONDS
) -> AsyncIterator[None]:
    """Within this, what the client waits for is told."""
    watch = WaitReporter(patience)

    async def look() -> None:
        while True:
            told = watch.look(time.monotonic(), client.trouble)
            if told is not None:
                note(told)
            await asyncio.sleep(LOOK_SECONDS)

    looking = asyncio.get_running_loop().create_task(look(), name="scriba-watch")
    try:
        yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
    if client.trouble is None and (told := watch.look(time.monotonic(), None)) is not None:
        note(told)  # what was waited for was the last of it
