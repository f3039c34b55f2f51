"""The ports: everything outside the process that a node may touch, as small protocols.

A node is given one `World`. The real one lives beside this file, the simulated one in
`scriba.testing`; nothing above this room knows which it has. Paths are plain `str`.
"""

import builtins
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from scriba.instant import Instant
from scriba.prometheus import Durations
from scriba.runtime.work.budget import Budget

P = ParamSpec("P")
T = TypeVar("T")

WOULD_BLOCK: Final = -1
"""What a non-blocking call returns when nothing could be done without waiting."""

EOF: Final = 0
"""What `Stream.recv_into` returns when the peer has closed its side."""

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    def mono_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def now(self) -> Instant: ...


class Rng(Protocol):
    def bytes(self, n: int) -> builtins.bytes: ...

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        ...

    def uuid(self) -> builtins.bytes:
        """Sixteen random bytes shaped as a version 4 UUID, never one that Kafka reserves."""
        ...


class Offload(Protocol):
    """Work that must not hold the loop: it is given values and gives values back."""

    memory: Budget
    """What work that takes much memory shares (see `run_within`)."""

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


class Worker(Protocol):
    """Runs long tasks one after the other, outside the loop's process."""

    idle: bool
    """Whether it gets only time that nobody else wants."""

    def run(self, task: str, *values: Any) -> AsyncGenerator[Any, None]:
        """What the generator function `module:function` yields, given a disk and `values`.

        It goes on only as its items are taken; closing the iterator early ends the task. None is
        no item: there the task may be made to wait.
        """
        ...

    async def close(self) -> None: ...


class Workers(Protocol):
    def start(self, idle: bool = False) -> Worker: ...


class File(Protocol):
    path: str

    @property
    def fd(self) -> int:
        """The descriptor; negative where the file has none, or is closed."""
        ...

    def pread_into(self, view: memoryview, offset: int) -> int:
        """Fills `view` as far as the file goes; may wait for the device (start-up, offload)."""
        ...

    def try_pread_into(self, view: memoryview, offset: int) -> int:
        """As `pread_into`, but WOULD_BLOCK when the first byte is not in the page cache.

        A short count means the file or the cached part ended there.
        """
        ...

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes all of `data` at `offset`; returns its size. A short write is completed inside."""
        ...

    def resident(self, offset: int, n: int) -> bool:
        """Whether the window can be sent without waiting for the device."""
        ...

    async def load(self, offset: int, n: int) -> None:
        """Brings the window into the page cache, off the loop."""
        ...

    async def populate(self, offset: int, n: int) -> None:
        """Has memory ready for a write of the window, off the loop, as far as the file reaches.

        No byte of the file changes.
        """
        ...

    async def datasync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None:
        """At once. A file that is dropped instead closes when the last who uses it is done."""
        ...


class Disk(Protocol):
    @property
    def open_files(self) -> int: ...

    most_files: int
    """How many of them are enough."""

    def when_crowded(self, tell: Callable[[], object]) -> None:
        """Has `tell` called, from any thread, each time a file is opened beyond `most_files`."""
        ...

    def open(self, path: str, create: bool = False) -> File:
        """Opens for reading and writing. FileNotFoundError unless `create`."""
        ...

    def read(self, path: str) -> bytes:
        """A small file, whole."""
        ...

    async def write_atomic(self, path: str, data: bytes) -> None:
        """Replaces a small file: temporary name, fsync, rename, fsync of the directory."""
        ...

    async def allocate(self, path: str, size: int) -> None:
        """Has a file be at least that long, and its room on the device be its own: whoever cuts it
        gives room back. OSError, and no more room is taken, where there is too little or nobody
        could promise it."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def mkdir(self, path: str, parents: bool = False) -> None:
        """No error if it is there; FileNotFoundError if the one above it is not."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        ...

    def size(self, path: str) -> int: ...

    async def sync_dir(self, path: str) -> None: ...

    def lock(self, path: str) -> "DirLock":
        """Takes the directory's `.lock` file; BlockingIOError when another process has it."""
        ...

    def mark(self, path: str, data: bytes) -> "Mark":
        """Replaces a small file by one that counts for as long as nothing can have been lost of
        what is written beside it. Nothing is synced. OSError where nobody could tell, or it cannot
        be written: then there is no such file."""
        ...

    def marked(self, path: str) -> bytes | None:
        """What a marked file says. None once the machine was started anew, its file system mounted
        anew, the file copied, or the mark revoked; and wherever that is not known."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume."""
        ...


class DirLock(Protocol):
    def release(self) -> None: ...


class Mark(Protocol):
    """A marked file that is in use."""

    def revoke(self) -> None:
        """It counts no more, also on a device that takes no writes."""

    def close(self) -> None:
        """It stays as it is, for the next process."""


class Stream(Protocol):
    """A connected byte stream, non-blocking and readiness-based.

    `recv_into`, `send` and `send_file` return bytes done, WOULD_BLOCK, or (recv) EOF; a broken
    connection raises OSError. `more` says that the next send follows at once, so that a small head
    need not travel alone. `want` replaces the interest: `on_readable` runs each time bytes
    may be read, `on_writable` each time they may be written, None for no interest.
    """

    peer: str
    """Host of the other side, for logs and limits."""

    def recv_into(self, view: memoryview) -> int: ...

    def send(self, views: Sequence[Buffer], more: bool = False) -> int: ...

    def send_file(self, file: File, offset: int, n: int) -> int: ...

    def want(
        self,
        on_readable: Callable[[], None] | None,
        on_writable: Callable[[], None] | None,
    ) -> None: ...

    def ended(self) -> bool:
        """Whether the peer has hung up and all that it had sent is read; takes nothing."""

    def close(self) -> None: ...


class Listener(Protocol):
    host: str
    port: int

    def close(self) -> None: ...


class Net(Protocol):
    most_connections: int
    """How many a server may have at once: the process has a limit of open files, and logs have
    their share of them."""

    def listen(
        self,
        host: str,
        port: int,
        on_connect: Callable[[Stream], None],
        *,
        backlog: int = 50,
        send_buffer: int = -1,
        receive_buffer: int = -1,
    ) -> Listener:
        """OSError (EADDRINUSE and so on) when it cannot; port 0 picks a free one.

        An empty host means every address. Buffer sizes of -1 leave the kernel's own.
        """
        ...

    async def connect(self, host: str, port: int) -> Stream: ...


class World(Protocol):
    clock: Clock
    rng: Rng
    offload: Offload
    disk: Disk
    net: Net
    lag: Durations
    workers: Workers
    memory_bytes: int
    """How much memory the process may have."""
    spoil: Callable[[memoryview], None] | None
    """What becomes of received bytes whose request has been handled; None leaves them."""
