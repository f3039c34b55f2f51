"""What a request comes to: bytes and stretches of files, or a promise of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from scriba.broker.observe.counters import CloseReason
from scriba.runtime.ports import Buffer, File

COPIED_BELOW: Final = 1 << 16
"""A region smaller than this is read and sent with its header in one call."""


class Region:
    """Bytes of a file on their way to the peer."""

    __slots__ = ("file", "known", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.known = position
        """Up to where it was found in the page cache: asked once for each window."""

    def __len__(self) -> int:
        return self.size


Part = Buffer | Region
Parts = Sequence[Part]


class Parked:
    """An answer that is not there yet; `pipelined` lets the connection's next request start."""

    __slots__ = ("awaitable", "pipelined")

    def __init__(self, awaitable: Awaitable[Parts | None], pipelined: bool = False) -> None:
        self.awaitable = awaitable
        self.pipelined = pipelined


def _nothing() -> None:
    pass


class KeptFrame:
    """A frame that stays readable after its handler has returned, until it is given back."""

    __slots__ = ("_give", "view")

    def __init__(self, view: memoryview, give: Callable[[], None]) -> None:
        self.view = view
        self._give = give

    def give_back(self) -> None:
        self.view.release()
        give, self._give = self._give, _nothing
        give()


PATIENCE_S: Final = 10
"""How long large requests wait for peers that do not take the answers to theirs."""


class Unsent:
    """Bytes of large answers that their peers have not taken yet, of all connections together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._room: asyncio.Future[None] | None = None

    async def room(self, shed: Callable[[int], None]) -> None:
        """Waits until there are not too many; has the slowest peers `shed` if that takes long."""
        while self.bytes > self.limit:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.shield(self._room)
            except TimeoutError:
                shed(self.bytes - self.limit)

    def took(self, size: int) -> None:
        self.bytes -= size
        if self._room is not None and self.bytes <= self.limit:
            self._room.set_result(None)
            self._room = None


class LargeAnswer(bytearray):
    """An answer that counts as unsent until nobody has it any more: sent, or its peer gone."""

    _unsent: Unsent | None = None
    _counted = 0

    def wait_in(self, unsent: Unsent) -> None:
        self._unsent, self._counted = unsent, len(self)
        unsent.bytes += self._counted

    def __del__(self) -> None:
        if self._unsent is not None:
            self._unsent.took(self._counted)


class CloseConnection(Exception):
    """The peer broke the protocol, or asked for something that is answered by closing."""

    def __init__(self, text: str, reason: CloseReason = "malformed") -> None:
        super().__init__(text)
        self.reason: CloseReason = reason


class Slot:
    """The place of one answer in the order of a connection's answers."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: Parts | None = None
