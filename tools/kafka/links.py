"""The ways between nodes on one machine, led through this process, where each can be cut.

Every listener that nodes use among themselves has a port here, and nodes know each other by these
ports alone. A connection is passed on byte by byte. Who has made it is found by its process, so
that each direction between two nodes can be cut by itself: what is said that way is kept, as the
network of a sender keeps and repeats what nobody confirms, and arrives when the way is whole again.
New connections over a cut way are accepted and stay silent.

A way can be long and lossy as well: what is said arrives later, and what was lost on the way a
round trip after that, with all that was said behind it, as TCP has it, whose window is as large as
it need be.

A node whose process has ended closes the connections to it; unlike an address where nobody listens,
the port here accepts first. Whoever waits to be refused waits for a time-out instead.
"""

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tools.kafka.brokers import HOST, PATIENCE, free_port

CHUNK: Final = 1 << 16
SEGMENT: Final = 1448
"""Bytes that a network carries at a time, and loses."""

UNDER_WAY: Final = 256
"""Chunks that a long way holds at most."""

T = TypeVar("T")


@dataclass(frozen=True)
class Distance:
    """How long a way is, and how often a segment is lost on it."""

    seconds: float
    loss: float = 0.0

    def late(self, size: int, draw: random.Random) -> float:
        """Seconds until so many bytes have arrived."""
        segments = -(-size // SEGMENT)
        lost = draw.random() > (1 - self.loss) ** segments
        return self.seconds * 3 if lost else self.seconds


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
        self._open: dict[tuple[int, int, str], asyncio.Event] = {}
        """By direction and listener: whether what is said gets through."""
        self._distances: dict[tuple[int, int], Distance] = {}
        self._draw = random.Random(7)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def port(self, node: int, listener: str) -> int:
        return self._ports[node, listener]

    # ---- cutting ----

    def cut(
        self, sender: int, receiver: int, *, one_way: bool = False, listener: str | None = None
    ) -> None:
        """From now on nothing that the one says reaches the other; with a `listener` nothing on
        connections that one of them has made to that listener of the other."""
        listeners = {name for _, name in self._targets} if listener is None else {listener}
        for name in listeners:
            self._run(self._set(sender, receiver, name, False))
            if not one_way:
                self._run(self._set(receiver, sender, name, False))

    def heal(self) -> None:
        for way in list(self._open):
            self._run(self._set(*way, True))

    async def _set(self, sender: int, receiver: int, listener: str, through: bool) -> None:
        way = self._way(sender, receiver, listener)
        if through:
            way.set()
        else:
            way.clear()

    def _way(self, sender: int, receiver: int, listener: str) -> asyncio.Event:
        way = self._open.get((sender, receiver, listener))
        if way is None:
            way = self._open[sender, receiver, listener] = asyncio.Event()
            way.set()
        return way

    def part(self, one: int, other: int, distance: Distance) -> None:
        """Connections between the two that are made from now on are so long, each way."""
        self._distances[one, other] = self._distances[other, one] = distance

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
            peer = self._owner(
                writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
            )
            if peer is None:
                return
            await self._way(
                peer, node, listener
            ).wait()  # what asks for a connection is held up, too
            from_target, target = await asyncio.open_connection(HOST, self._targets[node, listener])
            ways = [
                asyncio.ensure_future(self._pass(reader, target, (peer, node), listener)),
                asyncio.ensure_future(self._pass(from_target, writer, (node, peer), listener)),
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
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: tuple[int, int],
        listener: str,
    ) -> None:
        """Ends with the connection; over a cut way not even its end gets through."""
        way, distance = self._way(*direction, listener), self._distances.get(direction)
        said = _near(reader) if distance is None else self._far(reader, distance)
        with contextlib.suppress(OSError):
            async with contextlib.aclosing(said):
                async for data in said:
                    await way.wait()
                    writer.write(data)
                    await writer.drain()
        await way.wait()

    async def _far(
        self, reader: asyncio.StreamReader, distance: Distance
    ) -> AsyncGenerator[bytes, None]:
        """What is said, in its order, as it arrives; no end before what was said earlier."""
        under_way = asyncio.Queue[tuple[float, bytes]](UNDER_WAY)

        async def leave() -> None:
            due, data = 0.0, b"first"
            while data:
                try:
                    data = await reader.read(CHUNK)
                except OSError:
                    data = b""
                late = distance.late(len(data), self._draw)
                due = max(due, self._loop.time() + late)
                await under_way.put((due, data))

        leaving = asyncio.ensure_future(leave())
        try:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - self._loop.time())
                if not data:
                    return
                yield data
        finally:
            leaving.cancel()

    def _owner(self, port: int, to_port: int) -> int | None:
        """The node that made the connection between these ports."""
        inode = _inode(port, to_port)
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


async def _near(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    while data := await reader.read(CHUNK):
        yield data


def _inode(port: int, to_port: int) -> str | None:
    """Of the socket that is connected between two local ports.

    Both count: connections to other addresses may come from the same port.
    """
    wanted = [f"0100007F:{port:04X}", f"0100007F:{to_port:04X}"]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return fields[9]
    return None
