"""Standard input or a file, read ahead by a thread.

So the event loop can send meanwhile, and a terminal or a pipe that says nothing for a while holds
up neither the sending nor a signal. Whoever stops it gets all that was read, and what already lay
in the pipe: a program that is told to stop writes its last lines there, and they are not lost. A
regular file is left where it was: it is still there tomorrow.
"""

import asyncio
import os
import select
import stat
import threading
from collections.abc import AsyncIterator
from typing import Final

CHUNK: Final = 1 << 16
CHUNKS_AHEAD: Final = 16
MOST_AFTER_STOP: Final = 1 << 20
"""As much as a pipe can be made to hold; someone who writes without end is not read without end."""


class Input:
    """What can be read from a descriptor, piece by piece until its end or until `stop`."""

    def __init__(self, source: int) -> None:
        status = os.fstat(source)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        """Of a regular file."""
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_AHEAD)
        self._stopped = threading.Event()
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._read, name="scriba-input", daemon=True)
        self._thread.start()

    async def pieces(self) -> AsyncIterator[bytes]:
        while piece := await self._pieces.get():
            if isinstance(piece, OSError):
                raise piece
            yield piece
            self._room.release()

    def stop(self) -> None:
        """Ends the reading; `pieces` goes on to what has been read."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._room.release(CHUNKS_AHEAD)
            os.close(self._waker)

    # -- the thread ------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while not self._stopped.is_set():
                self._room.acquire()
                if self._ready(None) and not self._pass_on():
                    return
            budget = 0 if self.size is not None else MOST_AFTER_STOP
            while budget > 0 and self._ready(0):
                if not (taken := self._pass_on()):
                    return
                budget -= taken
            self._tell(b"")
        finally:
            os.close(self._wake)

    def _ready(self, timeout_ms: int | None) -> bool:
        """Whether there is something to read; without a time it waits for that, or for a stop."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        if timeout_ms is None:
            poll.register(self._wake, select.POLLIN)
        return any(number == self._source for number, _ in poll.poll(timeout_ms))

    def _pass_on(self) -> int:
        """Reads a piece and gives it to the loop; its length, none at the end."""
        try:
            piece: bytes | OSError = os.read(self._source, CHUNK)
        except BlockingIOError:  # another program that shares the descriptor was faster
            return 1
        except OSError as error:
            piece = error
        self._tell(piece)
        return len(piece) if isinstance(piece, bytes) else 0

    def _tell(self, piece: bytes | OSError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:
            self._stopped.set()  # the loop is closed: nobody waits for it any more
