"""What carries the synchronous clients: an event loop in a thread, and calls into it.

The caller's thread waits for its result, and meanwhile runs what the loop hands back to it: the
application's own callbacks belong to the thread that called, where they may call the client again.

    class SyncAdmin(Sync[Admin]):
        create_topics = waits(Admin.create_topics)

has the signature of `Admin.create_topics`, without the await, for people and for type checkers.

Any thread may call, and any other may close the client meanwhile. Invariants: every call returns,
with `Closed` at the latest when the loop has ended; the loop ends when the client is closed, once,
however many close it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial, update_wrapper
from inspect import isawaitable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from scriba.peers.errors import ClientError, Closed
from scriba.runtime.loop.loop import run
from scriba.runtime.loop.threads import new_lock, start_daemon


class Client(Protocol):
    """What the synchronous faces have in common."""

    @property
    def close(self) -> Callable[..., Coroutine[Any, Any, None]]: ...


C = TypeVar("C", bound=Client)
D = TypeVar("D")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _WaitingThread:
    """A thread that waits for the loop, and what it is asked to do meanwhile."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.gone = False


_caller: ContextVar[_WaitingThread] = ContextVar("caller")


class Host:
    """An event loop in a thread of its own, and ways to run something on it from outside."""

    def __init__(self) -> None:
        up: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._lock = new_lock()
        self._down = False
        """Whether the loop takes nothing more; changed under the lock."""
        self._callers: set[_WaitingThread] = set()
        start_daemon(partial(self._main, up), "scriba-client")
        self._loop, self._stop = up.get()

    def _main(self, up: "SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]]") -> None:
        async def serve() -> None:
            stop = asyncio.Event()
            up.put((asyncio.get_running_loop(), stop))
            await stop.wait()
            with self._lock:
                self._down = True
            await asyncio.sleep(0)  # what was called before that becomes a task, and is cancelled

        run(serve())
        with self._lock:
            for caller in self._callers:
                caller.calls.put(None)
        self._ended.put(None)

    @property
    def here(self) -> bool:
        """Whether this runs in the loop's own thread, which cannot wait for itself."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which runs on the loop."""
        caller = _WaitingThread()

        async def called() -> T:
            _caller.set(caller)
            return await work

        try:
            if self.here:
                raise ClientError("the client's own thread cannot wait for it", fix="send_nowait()")
            with self._lock:
                if self._down:
                    raise Closed("the client was closed")
                self._callers.add(caller)
                future = asyncio.run_coroutine_threadsafe(called(), self._loop)
        except ClientError:
            work.close()
            raise
        future.add_done_callback(lambda _: caller.calls.put(None))
        try:
            while (call := caller.calls.get()) is not None:
                call()
            if not future.done() or future.cancelled():
                raise Closed("the client was closed meanwhile")
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            caller.gone = True
            with self._lock:
                self._callers.discard(caller)

    async def in_caller(self, function: Callable[[D], T], argument: D) -> T:
        """Runs something in the thread that waits for what runs here."""
        caller = _caller.get()
        context = copy_context()
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
                value = context.run(function, argument)
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
        with self._lock:
            if self._down:
                raise Closed("the client was closed")
            self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Ends the loop, and waits until it has ended."""
        with self._lock:
            if not self._down:
                self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.get()
        self._ended.put(None)  # for whoever closes it, too


class Sync(Generic[C]):
    """A client whose methods wait for their results."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._closed = False
        self._ending: asyncio.Future[None] | None = None
        self._host = Host()

        async def made() -> C:
            return make()

        try:
            self._client: C = self._host.run(made())
        except BaseException:
            self._host.close()
            raise

    def _end(self, *args: Any, **kwargs: Any) -> None:
        """As the client's `close`, and the end of the loop; all who close it wait for the same."""
        if self._closed:
            return
        if self._host.here:
            raise ClientError("the client's own thread cannot close it", fix="close it elsewhere")

        async def end() -> None:
            if self._ending is None:
                self._ending = asyncio.ensure_future(self._finish(*args, **kwargs))
            await asyncio.shield(self._ending)

        try:
            self._host.run(end())
        except Closed:
            pass  # another one was quicker
        finally:
            self._closed = True
            self._host.close()
            self._after_end()

    async def _finish(self, *args: Any, **kwargs: Any) -> None:
        await self._before()
        await self._client.close(*args, **kwargs)

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
        async def work() -> Any:
            await self._before()
            result = method(*args, **kwargs)
            return await result if isawaitable(result) else result

        try:
            return self._run(work())
        finally:
            self._after()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something on the loop as it is."""
        if self._closed:
            work.close()
            raise Closed("the client was closed")
        return self._host.run(work)

    async def _before(self) -> None:
        """Runs on the loop before each call."""

    def _after(self) -> None:
        """Runs in the caller's thread after each call."""

    def _after_end(self) -> None:
        """Runs in the thread that closed it, when the loop has ended."""
        self._after()


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
