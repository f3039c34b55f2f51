"""A client and a server on two simulated hosts, byte by byte."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.world import ProcessWorld, SimHost, SimWorld


async def readable(stream: Stream) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_readable() -> None:
        stream.want(None, None)
        ready.set_result(None)

    stream.want(on_readable, None)
    await ready


async def writable(stream: Stream) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_writable() -> None:
        stream.want(None, None)
        ready.set_result(None)

    stream.want(None, on_writable)
    await ready


async def receive(stream: Stream, n: int) -> bytes:
    """Reads until `n` bytes or the end."""
    data = bytearray()
    view = memoryview(bytearray(700))
    while len(data) < n:
        got = stream.recv_into(view[: n - len(data)])
        if got == WOULD_BLOCK:
            await readable(stream)
        elif got == EOF:
            break
        else:
            data += view[:got]
    return bytes(data)


async def send_all(stream: Stream, data: bytes) -> None:
    while data:
        done = stream.send([data[:10], data[10:]])
        if done == WOULD_BLOCK:
            await writable(stream)
        else:
            data = data[done:]


async def echo(world: ProcessWorld) -> None:
    async def serve(stream: Stream) -> None:
        try:
            while data := await receive(stream, 1):
                await send_all(stream, data)
        except OSError:
            pass
        stream.close()

    tasks: list[asyncio.Task[None]] = []
    world.net.listen("", 9092, lambda s: tasks.append(asyncio.ensure_future(serve(s))))
    await asyncio.get_running_loop().create_future()


def scene(
    client: Callable[[ProcessWorld, SimHost], Coroutine[Any, Any, None]],
    server: Callable[[ProcessWorld], Coroutine[Any, Any, None]] = echo,
    seed: int = 1,
    faults: NetFaults | None = None,
) -> SimWorld:
    """A client on host c against a server on host s."""
    sim = SimWorld(seed, net_faults=faults)
    host = sim.host("s")

    async def main() -> None:
        host.start(server)
        await asyncio.sleep(0)
        await sim.host("c").start(lambda world: client(world, host)).task

    sim.run(main())
    return sim
