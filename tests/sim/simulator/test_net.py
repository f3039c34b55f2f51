"""The simulated network: order, delay, back-pressure, and how connections end."""

import asyncio

import pytest

from scriba.runtime.ports import WOULD_BLOCK, Stream
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.world import ProcessWorld, SimHost, SimWorld
from tests.sim.simulator.streams import echo, readable, receive, scene, send_all, writable


def test_bytes_arrive_in_order_whatever_the_pieces() -> None:
    data = bytes(range(256)) * 20

    async def server(world: ProcessWorld) -> None:
        arrived: asyncio.Queue[Stream] = asyncio.Queue()
        world.net.listen("", 9092, arrived.put_nowait)
        stream = await arrived.get()
        await send_all(stream, (await receive(stream, len(data)))[::-1])
        stream.close()

    async def client(world: ProcessWorld, host: SimHost) -> None:
        stream = await world.net.connect("s", 9092)
        assert stream.peer == "s"
        await send_all(stream, data)
        assert await receive(stream, len(data) + 1) == data[::-1]
        stream.close()

    faults = NetFaults(short=0.5, spike=0.01, window=1000)
    traces = [scene(client, server, seed, faults).trace.digest() for seed in (7, 7, 8)]
    assert traces[0] == traces[1] != traces[2]


def test_a_sender_waits_while_the_receiver_does_not_read() -> None:
    async def deaf(world: ProcessWorld) -> None:
        held: list[Stream] = []
        world.net.listen("", 9092, held.append)
        await asyncio.sleep(10)
        assert len(await receive(held[0], 65_536)) == 65_536
        await asyncio.sleep(10)

    async def client(world: ProcessWorld, host: SimHost) -> None:
        stream = await world.net.connect("s", 9092)
        assert stream.send([bytes(100_000)]) == 65_536
        assert stream.send([b"x"]) == WOULD_BLOCK
        await writable(stream)
        assert host.clock.mono_ms() >= 10_000
        assert stream.send([b"x"]) == 1

    scene(client, deaf)


def test_a_part_of_a_file_is_sent() -> None:
    async def server(world: ProcessWorld) -> None:
        file = SimDisk(world.sim_disk.volume).open("/f", create=True)
        file.pwrite(b"0123456789", 0)

        def on_connect(stream: Stream) -> None:
            assert stream.send_file(file, 3, 4) == 4
            with pytest.raises(ConnectionAbortedError):
                stream.send_file(file, 10, 1)
            stream.close()

        world.net.listen("s", 9092, on_connect)
        await asyncio.get_running_loop().create_future()

    async def client(world: ProcessWorld, host: SimHost) -> None:
        stream = await world.net.connect("s", 9092)
        assert await receive(stream, 100) == b"3456"
        stream.close()

    scene(client, server)


def test_nobody_listens_or_the_port_is_taken_or_the_address_is_not_ours() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.net.connect("s", 1)
        listener = world.net.listen("localhost", 0, lambda stream: None)
        with pytest.raises(OSError, match="in use"):
            world.net.listen("0.0.0.0", listener.port, lambda stream: None)
        with pytest.raises(OSError, match="assign"):
            world.net.listen("s", 5, lambda stream: None)
        near = await world.net.connect("127.0.0.1", listener.port)
        near.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await world.net.connect("c", listener.port)

    scene(client)


def test_a_reset_breaks_both_ends_and_loses_what_was_in_flight() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        stream = await world.net.connect("s", 9092)
        stream.send([b"hello"])
        host.sim.network.reset_some("s")
        with pytest.raises(ConnectionResetError):
            await receive(stream, 5)
        with pytest.raises(ConnectionResetError):
            stream.send([b"again"])
        stream.close()

    scene(client)


def test_closing_with_bytes_unread_resets_the_peer() -> None:
    async def rude(world: ProcessWorld) -> None:
        async def serve(stream: Stream) -> None:
            await readable(stream)
            stream.close()

        tasks: list[asyncio.Task[None]] = []
        world.net.listen("", 9092, lambda s: tasks.append(asyncio.ensure_future(serve(s))))
        await asyncio.get_running_loop().create_future()

    async def client(world: ProcessWorld, host: SimHost) -> None:
        stream = await world.net.connect("s", 9092)
        stream.send([b"hello"])
        with pytest.raises(ConnectionResetError):
            await receive(stream, 1)

    scene(client, rude)


def test_a_cut_holds_everything_back_and_healing_lets_it_through() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        network = host.sim.network
        stream = await world.net.connect("s", 9092)
        stream.send([b"hello"])
        network.cut("s", "c")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(stream, 5), 5)
        connecting = asyncio.ensure_future(world.net.connect("s", 9092))
        await asyncio.sleep(20)
        assert not connecting.done()
        network.heal()
        assert await receive(stream, 5) == b"hello"
        (await connecting).close()
        network.cut("c", "s")
        with pytest.raises(TimeoutError):
            await world.net.connect("s", 9092)

    scene(client)


def test_a_killed_server_resets_its_clients() -> None:
    sim = SimWorld(1)

    async def client(world: ProcessWorld) -> None:
        stream = await world.net.connect("s", 9092)
        with pytest.raises(ConnectionResetError):
            await receive(stream, 1)
        with pytest.raises(ConnectionRefusedError):
            await world.net.connect("s", 9092)

    async def main() -> None:
        server = sim.host("s").start(echo)
        await asyncio.sleep(0)
        calling = sim.host("c").start(client)
        await asyncio.sleep(1)
        server.kill()
        await calling.task

    sim.run(main())


def test_a_host_without_power_is_silent_and_when_back_knows_no_connection() -> None:
    sim = SimWorld(1)

    async def client(world: ProcessWorld) -> None:
        stream = await world.net.connect("s", 9092)
        await asyncio.sleep(1)
        stream.send([b"hello?"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(stream, 1), 5)
        with pytest.raises(ConnectionResetError):
            await receive(stream, 1)
        assert sim.loop.time() > 10
        again = await world.net.connect("s", 9092)
        await send_all(again, b"hello!")
        assert await receive(again, 6) == b"hello!"

    async def main() -> None:
        host = sim.host("s")
        host.start(echo)
        await asyncio.sleep(0)
        calling = sim.host("c").start(client)
        await asyncio.sleep(0.5)
        host.power_cut()
        await asyncio.sleep(9.5)
        host.start(echo)
        await calling.task

    sim.run(main())
