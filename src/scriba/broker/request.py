"""Who asks, from where, in which version: carried by every request from its first byte on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from scriba.runtime.loop.pace import Pace, in_slices

if TYPE_CHECKING:
    from scriba.runtime.ports import Clock

T = TypeVar("T")

ANONYMOUS: Final = "User:ANONYMOUS"


class Origin(Protocol):
    """The connection that a request came by."""

    closed: bool
    on_close: Callable[[], object] | None
    """Called once, when it has ended, whichever side ended it."""


class Context:
    """The circumstances of one request; handlers read it, nobody writes to it.

    `received` is the monotonic time in milliseconds at which its last byte arrived. `connection` is
    None for what came by none: forwarded, or asked by the broker itself.
    """

    __slots__ = (
        "api",
        "client_id",
        "connection",
        "host",
        "listener",
        "principal",
        "received",
        "version",
    )

    def __init__(
        self,
        principal: str,
        listener: str,
        client_id: str | None,
        host: str,
        api: int,
        version: int,
        received: int,
        connection: Origin | None = None,
    ) -> None:
        self.connection = connection
        self.principal = principal
        self.listener = listener
        self.client_id = client_id
        self.host = host
        self.api = api
        self.version = version
        self.received = received


def broker_context(api: int, version: int, received: int) -> Context:
    """The context of what the broker asks its own coordinators, on nobody's behalf."""
    return Context(ANONYMOUS, "", None, "", api, version, received)


class Deferred(Generic[T]):
    """What a handler returns when its response must wait.

    `pipelined` lets the connection's next request start meanwhile: right for a Produce whose append
    is done, wrong for everything that later requests may depend on. The awaitable may end in
    another `Deferred`.

    With `keeps_frame` the request keeps its bytes: the views stay good, and their buffer is not
    used again. That is for requests too large for the buffer that all connections share, and spares
    them the copy.
    """

    __slots__ = ("awaitable", "keeps_frame", "pipelined")

    def __init__(
        self,
        awaitable: Awaitable[T | Deferred[T] | None],
        pipelined: bool = False,
        keeps_frame: bool = False,
    ) -> None:
        self.awaitable = awaitable
        self.pipelined = pipelined
        self.keeps_frame = keeps_frame


def at_once_or_deferred(work: Generator[None, None, T], clock: Clock) -> T | Deferred[T]:
    """What work comes to; where it gives way, the rest of it is done in slices."""
    try:
        next(work)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    return Deferred(in_slices(work, Pace(clock)))


class Later(Deferred[T], ABC):
    """A response that callbacks complete: whoever sends it needs no task to wait for it."""

    __slots__ = ()

    def __init__(self, pipelined: bool = False) -> None:
        self.pipelined = pipelined
        self.keeps_frame = False

    @abstractmethod
    def begin(self, done: Callable[[T], None]) -> None:
        """Waits from now on; calls `done` once, in a turn of the loop of its own."""

    @abstractmethod
    def abandon(self) -> None:
        """Nobody wants the response any more."""

    @property
    def awaitable(self) -> Awaitable[T | Deferred[T] | None]:  # type: ignore[override]
        """For whoever has a task anyway."""
        return self._wait()

    async def _wait(self) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.begin(lambda response: None if done.done() else done.set_result(response))
        try:
            return await done
        finally:
            if not done.done() or done.cancelled():
                self.abandon()
