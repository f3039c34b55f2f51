"""The real network: readiness, back-pressure, files, addresses."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from scriba.runtime.loop import loop as loop_module
from scriba.runtime.net import SocketNet, SocketStream
from scriba.runtime.ports import EOF, WOULD_BLOCK, Listener, Stream
from scriba.runtime.world import RealWorld


@dataclass
class Pair:
    near: SocketStream
    far: Stream
    listener: Listener


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    accepted: asyncio.Queue[Stream] = asyncio.Queue()
    net = SocketNet()
    listener = net.listen("127.0.0.1", 0, accepted.put_nowait)
    near = await net.connect("127.0.0.1", listener.port)
    far = await accepted.get()
    yield Pair(near, far, listener)
    near.close()
    far.close()
    listener.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with connected() as pair:
        yield pair


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


async def test_a_head_held_back_for_the_file_behind_it_arrives_before_it(
    pair: Pair, tmp_path: Path
) -> None:
    (tmp_path / "records").write_bytes(b"all the records")
    async with RealWorld() as world:
        file = world.disk.open(str(tmp_path / "records"))
        assert pair.near.send([b"head of one: "], more=True) == 13
        assert pair.near.send_file(file, 4, 11) == 11
        assert pair.near.send([b"; ", b"head of the last"], more=True) == 18
        assert pair.near.send([b"."]) == 1
        file.close()
    expected = b"head of one: the records; head of the last."
    assert await receive(pair.far, len(expected)) == expected


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
    file.pwrite(content, 0)
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


class CountingLoop:
    """Counts registrations; nothing is ever ready."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def add_reader(self, fd: int, callback: object) -> None:
        self.calls.append("add reader")

    def remove_reader(self, fd: int) -> None:
        self.calls.append("remove reader")

    def add_writer(self, fd: int, callback: object) -> None:
        self.calls.append("add writer")

    def remove_writer(self, fd: int) -> None:
        self.calls.append("remove writer")


async def test_unchanged_interest_is_not_registered_again(pair: Pair) -> None:
    class Owner:
        def on_readable(self) -> None: ...

        def on_writable(self) -> None: ...

    loop = CountingLoop()
    raw = socket.create_connection(("127.0.0.1", pair.listener.port))
    stream = SocketStream(raw, loop, "here")  # type: ignore[arg-type]
    owner = Owner()
    for _ in range(3):
        stream.want(owner.on_readable, None)
    assert loop.calls == ["add reader"]
    stream.want(owner.on_readable, owner.on_writable)
    stream.want(Owner().on_readable, None)
    assert loop.calls[1:] == ["add writer", "add reader", "remove writer"]
    stream.close()
    assert loop.calls[4:] == ["remove reader"]


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


IMPOSSIBLE = ["a..b", "x" * 64, "\ufffd", "..."]
"""Python cannot encode these, and a peer may name any of them."""


@pytest.mark.parametrize("host", IMPOSSIBLE)
async def test_a_name_that_no_host_can_have_is_an_unknown_host(host: str) -> None:
    with pytest.raises(OSError, match="name"):
        await SocketNet().connect(host, 9092)
    with pytest.raises(OSError, match="name"):
        SocketNet().listen(host, 0, lambda stream: None)


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


def test_it_is_the_same_on_the_loop_that_nodes_run_on(tmp_path: Path) -> None:
    async def main() -> None:
        for story in (
            test_bytes_arrive_in_order_and_the_end_is_seen,
            test_a_full_pipe_blocks_and_wakes_the_writer_when_it_drains,
            test_nothing_is_called_after_close,
            test_a_taken_port_is_refused,
            test_connecting_to_nobody_is_an_error,
        ):
            async with connected() as pair:
                await story(pair)
        async with connected() as pair:
            await test_a_part_of_a_file_is_sent_and_a_file_cut_short_breaks_the_connection(
                pair, tmp_path
            )
        await test_a_burst_of_connections_is_accepted_over_several_passes()

    loop_module.run(main())
