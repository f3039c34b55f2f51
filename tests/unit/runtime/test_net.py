"""The real network: readiness, back-pressure, files, addresses."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scriba.runtime.net import SocketNet, SocketStream
from scriba.runtime.ports import EOF, WOULD_BLOCK, Listener, Stream
from scriba.runtime.world import RealWorld


@dataclass
class Pair:
    near: SocketStream
    far: Stream
    listener: Listener


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    accepted: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
    net = SocketNet()
    listener = net.listen("127.0.0.1", 0, accepted.set_result)
    near = await net.connect("127.0.0.1", listener.port)
    far = await accepted
    yield Pair(near, far, listener)
    near.close()
    far.close()
    listener.close()


async def readable(stream: Stream) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_readable() -> None:
        stream.want(None, None)
        ready.set_result(None)

    stream.want(on_readable, None)
    await ready


async def receive(stream: Stream, n: int) -> bytes:
    buffer = bytearray(n)
    view = memoryview(buffer)
    done = 0
    while done < n:
        got = stream.recv_into(view[done:])
        if got == WOULD_BLOCK:
            await readable(stream)
            continue
        assert got != EOF
        done += got
    return bytes(buffer)


async def test_bytes_arrive_in_order_and_the_end_is_seen(pair: Pair) -> None:
    buffer = memoryview(bytearray(10))
    assert pair.far.recv_into(buffer) == WOULD_BLOCK
    assert pair.near.send([b"one ", bytearray(b"two "), memoryview(b"three")]) == 13
    assert pair.near.send([b"!"]) == 1
    assert await receive(pair.far, 14) == b"one two three!"
    assert pair.far.peer == "127.0.0.1"
    pair.near.close()
    pair.near.close()
    await readable(pair.far)
    assert pair.far.recv_into(buffer) == EOF


async def test_a_full_pipe_blocks_and_wakes_the_writer_when_it_drains(pair: Pair) -> None:
    chunk = [bytes(1 << 16)] * 1500
    sent = 0
    while (done := pair.near.send(chunk)) != WOULD_BLOCK:
        sent += done
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_writable() -> None:
        pair.near.want(None, None)
        woken.set_result(None)

    pair.near.want(None, on_writable)
    await asyncio.sleep(0)
    assert not woken.done()
    await receive(pair.far, sent)
    await woken
    assert pair.near.send(chunk) > 0


async def test_a_part_of_a_file_is_sent_and_a_file_cut_short_breaks_the_connection(
    pair: Pair, tmp_path: Path
) -> None:
    file = RealWorld().disk.open(str(tmp_path / "data"), create=True)
    content = os.urandom(100_000)
    file.pwritev([content], 0)
    offset = 500
    reader = asyncio.ensure_future(receive(pair.far, 90_000))
    while offset < 90_500:
        done = pair.near.send_file(file, offset, 90_500 - offset)
        if done == WOULD_BLOCK:
            await asyncio.sleep(0)
        else:
            offset += done
    assert await reader == content[500:90_500]
    with pytest.raises(ConnectionAbortedError):
        pair.near.send_file(file, 100_000, 10)
    file.close()


async def test_unchanged_interest_is_not_registered_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    registered: list[int] = []
    add_reader = loop.add_reader

    def counting(fd: int, callback: object) -> None:
        registered.append(fd)
        add_reader(fd, callback)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "add_reader", counting)

    class Owner:
        def on_readable(self) -> None: ...

    owner = Owner()
    for _ in range(3):
        pair.near.want(owner.on_readable, None)
    assert len(registered) == 1
    pair.near.want(Owner().on_readable, None)
    assert len(registered) == 2


async def test_nothing_is_called_after_close(pair: Pair) -> None:
    called: list[str] = []
    pair.far.send([b"x"])
    await readable(pair.near)
    pair.near.want(lambda: called.append("read"), lambda: called.append("written"))
    pair.near.close()
    pair.near.want(lambda: called.append("again"), None)
    await readable(pair.far)
    assert called == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        pair.near.recv_into(memoryview(bytearray(1)))


async def test_a_taken_port_is_refused(pair: Pair) -> None:
    with pytest.raises(OSError, match="in use"):
        SocketNet().listen("127.0.0.1", pair.listener.port, lambda stream: None)


async def test_connecting_to_nobody_is_an_error(pair: Pair) -> None:
    pair.listener.close()
    with pytest.raises(ConnectionRefusedError):
        await SocketNet().connect("127.0.0.1", pair.listener.port)


@pytest.mark.parametrize("host", ["localhost", "", "0.0.0.0"])
async def test_names_and_wildcards_listen_on_one_port_of_every_family(host: str) -> None:
    net = SocketNet()
    streams: asyncio.Queue[Stream] = asyncio.Queue()
    listener = net.listen(host, 0, streams.put_nowait, backlog=10, receive_buffer=1 << 16)
    near = await net.connect("localhost", listener.port)
    far = await streams.get()
    assert far.peer in ("127.0.0.1", "::1")
    near.close()
    far.close()
    listener.close()


async def test_a_burst_of_connections_is_accepted_over_several_passes() -> None:
    net = SocketNet()
    streams: asyncio.Queue[Stream] = asyncio.Queue()
    listener = net.listen("127.0.0.1", 0, streams.put_nowait, backlog=100)
    clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(40)]
    for client in clients:
        (await streams.get()).close()
        client.close()
    listener.close()
    listener.close()
