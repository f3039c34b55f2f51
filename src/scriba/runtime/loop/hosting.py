"""A home for an event loop beside the caller's program: a thread, or a process of its own.

Both carry out calls from any thread. The process is asked over a private socket that nobody else
can reach; when the caller's process ends, however it ends, that socket is closed, and the child
ends too.
"""

import asyncio
import contextlib
import ctypes
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
L = TypeVar("L", bound=asyncio.AbstractEventLoop)

_LENGTH: Final = struct.Struct(">I")
_PAUSE_S: Final = 0.005
_PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG."""


class LoopThread(Generic[L]):
    """An event loop that runs on a thread of its own until `end`."""

    def __init__(self, loop: L, name: str) -> None:
        self.loop = loop
        self._held: threading.Event | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Runs `work` on the loop and waits for it."""
        running = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return running.result(timeout_s)
        except BaseException as failure:
            if not running.done():
                running.cancel()
                if isinstance(failure, TimeoutError):
                    raise TimeoutError(f"no answer within {timeout_s} s") from None
            raise

    def hold(self) -> None:
        """Returns once the loop stands still; it does until `release`."""
        standing, held = threading.Event(), threading.Event()

        def stand() -> None:
            standing.set()
            held.wait()

        self._held = held
        self.loop.call_soon_threadsafe(stand)
        standing.wait()

    def release(self) -> None:
        if self._held is not None:
            self._held.set()
            self._held = None

    def end(self) -> None:
        """Cancels what still runs on the loop, closes it, and waits for the thread."""
        self.release()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class ChildProcess:
    """A Python process that runs the module `main` and carries out what it is asked."""

    def __init__(self, main: str) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", main, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests alone
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, what: Any, timeout_s: float) -> Any:
        """What the child answers; what it raised is raised here."""
        with self._lock:
            self._socket.settimeout(timeout_s)
            data = pickle.dumps(what)
            try:
                self._socket.sendall(_LENGTH.pack(len(data)) + data)
                (size,) = _LENGTH.unpack(self._receive(_LENGTH.size))
                good, value = pickle.loads(self._receive(size))
            except (OSError, EOFError) as failure:
                if isinstance(failure, TimeoutError):
                    raise TimeoutError(f"no answer within {timeout_s} s") from None
                raise ChildProcessError(
                    f"the process ended with status {self._process.wait()}"
                ) from None
        if not good:
            raise value
        return value

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def hold(self) -> None:
        """The process stands still until `release`."""
        os.kill(self.pid, signal.SIGSTOP)
        while not stands_still(self.pid):
            time.sleep(_PAUSE_S)

    def release(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Hangs up, which ends the child, and waits for it."""
        self._socket.close()
        self._process.wait()


def go_on_without_parent() -> None:
    """Has this process go on, if it was stopped, when the thread that started it has ended: one
    that stands still cannot notice by itself that nobody is left who would resume it. On Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGCONT)


def stands_still(pid: int) -> bool:
    """Whether a child that was sent SIGSTOP runs no more, or has ended: sent is not stopped, and
    another thread of it may still answer somebody."""
    if not hasattr(os, "waitid"):  # macOS has it since Python 3.13
        return True
    try:
        flags = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, flags) is not None
    except ChildProcessError:
        return True


async def serve_calls(fd: int, answer: Callable[[Any], Awaitable[Any]]) -> None:
    """The child's side: carries out what it is asked, in order, until the parent hangs up."""
    loop = asyncio.get_running_loop()
    with socket.socket(fileno=fd) as connection:
        connection.setblocking(False)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = _LENGTH.unpack(await _exactly(loop, connection, _LENGTH.size))
                asked = pickle.loads(await _exactly(loop, connection, size))
                reply: tuple[bool, Any]
                try:
                    reply = True, await answer(asked)
                except Exception as failure:
                    reply = False, _portable(failure)
                data = pickle.dumps(reply)
                await loop.sock_sendall(connection, _LENGTH.pack(len(data)) + data)


async def _exactly(loop: asyncio.AbstractEventLoop, connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = await loop.sock_recv(connection, size - len(data))
        if not part:
            raise asyncio.IncompleteReadError(bytes(data), size)
        data += part
    return bytes(data)


def _portable(failure: Exception) -> Exception:
    """The failure if it can be sent, else its words."""
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:
        return RuntimeError(f"{type(failure).__name__}: {failure}")
    return failure


def temporary_directory() -> "tempfile.TemporaryDirectory[str]":
    """A directory that is removed by `cleanup`, and at the latest when the process ends."""
    return tempfile.TemporaryDirectory(prefix="scriba-", ignore_cleanup_errors=True)


def unique() -> str:
    """A short text that no other process or thread gets."""
    return os.urandom(4).hex()


async def in_a_thread(work: Callable[[], T]) -> T:
    """Waits for `work` without holding the caller's loop."""
    with ThreadPoolExecutor(1, "scriba-testing") as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, work)


def until(seconds: float) -> Iterator[None]:
    """A turn every few milliseconds until the time is up, and one more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_PAUSE_S)
    yield
