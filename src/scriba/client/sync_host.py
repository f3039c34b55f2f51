"""What carries the synchronous clients: an event loop in a thread, and calls into it.

The caller's thread waits for its result, and meanwhile runs what the loop hands back to it: the
application's own callbacks belong to the thread that called, where they may call the client again.

    class SyncAdmin(Sync[Admin]):
        create_topics = waits(Admin.create_topics)

has the signature of `Admin.create_topics`, without the await, for people and for type checkers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial, update_wrapper
from inspect import isawaitable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from scriba.client.errors import Closed
from scriba.runtime.loop import run
from scriba.runtime.threads import start_daemon


class Client(Protocol):
    """What the synchronous faces have in common."""

    @property
    def close(self) -> Callable[..., Coroutine[Any, Any, None]]: ...


C = TypeVar("C", bound=Client)
D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Caller:
    """A thread that waits for the loop, and what it is asked to do meanwhile."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.gone = False


_caller: ContextVar[_Caller] = ContextVar("caller")


class Host:
    """An event loop in a thread of its own, and ways to run something on it from outside."""

    def __init__(self) -> None:
        up: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        start_daemon(partial(self._main, up), "scriba-client")
        self._loop, self._stop = up.get()

    def _main(self, up: "SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]]") -> None:
        async def serve() -> None:
            stop = asyncio.Event()
            up.put((asyncio.get_running_loop(), stop))
            await stop.wait()

        run(serve())
        self._ended.put(None)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which runs on the loop."""
        caller = _Caller()

        async def called() -> T:
            _caller.set(caller)
            return await work

        future = asyncio.run_coroutine_threadsafe(called(), self._loop)
        future.add_done_callback(lambda _: caller.calls.put(None))
        try:
            while (call := caller.calls.get()) is not None:
                call()
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        finally:
            caller.gone = True

    async def in_caller(self, function: Callable[[D], T], argument: D) -> T:
        """Runs something in the thread that waits for what runs here."""
        caller = _caller.get()
        result: asyncio.Future[T] = self._loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            if not result.done():
                if error is None:
                    result.set_result(value)  # type: ignore[arg-type]
                else:
                    result.set_exception(error)

        def call() -> None:
            value: T | None = None
            failure: BaseException | None = None
            try:
                value = function(argument)
            except Exception as raised:
                failure = raised
            except BaseException:
                failure = Closed("the call was interrupted")
                raise
            finally:
                self._loop.call_soon_threadsafe(settle, value, failure)

        caller.calls.put(call)
        if caller.gone:
            settle(None, Closed("nobody waits for this any more"))
        return await result

    def poke(self, call: Callable[[], object]) -> None:
        """Has the loop call something soon."""
        self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.get()


class Sync(Generic[C]):
    """A client whose methods wait for their results."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._closed = False
        self._host = Host()

        async def made() -> C:
            return make()

        try:
            self._client: C = self._host.run(made())
        except BaseException:
            self._host.close()
            raise

    def _end(self, *args: Any, **kwargs: Any) -> None:
        """As the client's `close`; the loop ends with it."""
        if not self._closed:
            try:
                self._call(self._client.close, *args, **kwargs)
            finally:
                self._closed = True
                self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """The end of a `with` block."""
        self._end()

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise Closed("the client was closed")

        async def work() -> Any:
            await self._before()
            result = method(*args, **kwargs)
            return await result if isawaitable(result) else result

        try:
            return self._host.run(work())
        finally:
            self._after()

    async def _before(self) -> None:
        """Runs on the loop before each call."""

    def _after(self) -> None:
        """Runs in the caller's thread after each call."""


class _Method(Generic[P, R]):
    """A method of a client, as one of its synchronous face."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, face: Sync[Any], owner: type[Sync[Any]]) -> Callable[P, R]:
        if face is None:  # looked up on the class, by tools that show its documentation
            return self._method
        return partial(face._call, self._method, face._client)


def waits(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> _Method[P, R]:
    """A coroutine method, of which the caller waits for the end."""
    return _Method(method)


def calls(method: Callable[Concatenate[Any, P], R]) -> _Method[P, R]:
    """A plain method, which has to run on the loop."""
    return _Method(method)
