"""The ways between nodes on one machine, led through this process, where each can be cut.

Every listener that nodes use among themselves has a port here, and nodes know each other by these
ports alone. A connection is passed on byte by byte. Who has made it is found by its process, so
that each direction between two nodes can be cut by itself: what is said that way is kept, as the
network of a sender keeps and repeats what nobody confirms, and arrives when the way is whole again.
New connections over a cut way are accepted and stay silent.

A node whose process has ended closes the connections to it; unlike an address where nobody listens,
the port here accepts first. Whoever waits to be refused waits for a time-out instead.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tools.kafka.brokers import HOST, PATIENCE, free_port

CHUNK: Final = 1 << 16

T = TypeVar("T")


class Links:
    def __init__(
        self, targets: Mapping[tuple[int, str], int], processes: Callable[[], Mapping[int, int]]
    ) -> None:
        """`targets` are real ports by node and listener, `processes` nodes by process id."""
        self._targets = dict(targets)
        self._ports = {target: free_port() for target in targets}
        self._processes = processes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: dict[tuple[int, int], asyncio.Event] = {}
        """By direction: whether what is said gets through."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def port(self, node: int, listener: str) -> int:
        return self._ports[node, listener]

    # ---- cutting ----

    def cut(self, sender: int, receiver: int, *, one_way: bool = False) -> None:
        """From now on nothing that the one says reaches the other."""
        self._run(self._set(sender, receiver, False))
        if not one_way:
            self._run(self._set(receiver, sender, False))

    def heal(self) -> None:
        for sender, receiver in list(self._open):
            self._run(self._set(sender, receiver, True))

    async def _set(self, sender: int, receiver: int, through: bool) -> None:
        way = self._way(sender, receiver)
        if through:
            way.set()
        else:
            way.clear()

    def _way(self, sender: int, receiver: int) -> asyncio.Event:
        way = self._open.get((sender, receiver))
        if way is None:
            way = self._open[sender, receiver] = asyncio.Event()
            way.set()
        return way

    # ---- passing on ----

    async def _serve(self) -> None:
        for (node, listener), port in self._ports.items():

            def taken(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                to: tuple[int, str] = (node, listener),
            ) -> None:
                task = asyncio.ensure_future(self._connection(reader, writer, *to))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            self._servers.append(await asyncio.start_server(taken, HOST, port))

    async def _connection(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        node: int,
        listener: str,
    ) -> None:
        target: asyncio.StreamWriter | None = None
        try:
            peer = self._owner(writer.get_extra_info("peername")[1])
            if peer is None:
                return
            await self._way(peer, node).wait()  # what asks for a connection is held up, too
            from_target, target = await asyncio.open_connection(HOST, self._targets[node, listener])
            ways = [
                asyncio.ensure_future(self._pass(reader, target, peer, node)),
                asyncio.ensure_future(self._pass(from_target, writer, node, peer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, target):
                if end is not None:
                    end.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: int, receiver: int
    ) -> None:
        """Ends with the connection; over a cut way not even its end gets through."""
        way = self._way(sender, receiver)
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await way.wait()
                writer.write(data)
                await writer.drain()
        await way.wait()

    def _owner(self, port: int) -> int | None:
        """The node that made the connection from this port."""
        inode = _inode(port)
        for pid, node in self._processes().items():
            with contextlib.suppress(OSError):
                for handle in os.scandir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(handle.path) == f"socket:[{inode}]":
                            return node
        return None

    # ---- the thread ----

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._serve())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _inode(port: int) -> str | None:
    """Of the socket that is connected from a local port."""
    wanted = f"0100007F:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == wanted:
            return fields[9]
    return None
