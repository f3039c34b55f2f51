"""What goes wrong between hosts: one-way cuts, ways that are slow, narrow or lossy, processes that
stand still, and disks and clocks of their own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.testing.sim.world.net import NetFaults, Path
from scriba.testing.sim.world.world import EPOCH_MS, ProcessWorld, SimHost, SimWorld
from tests.sim.simulator.streams import echo, readable, receive, scene, send_all, writable


async def talker(world: ProcessWorld) -> None:
    """Says something ten times a second to whoever connects, and hears nothing."""

    async def serve(stream: Stream) -> None:
        try:
            while True:
                await send_all(stream, b"tick")
                await asyncio.sleep(0.1)
        except OSError:
            stream.close()

    tasks: list[asyncio.Task[None]] = []
    world.net.listen("", 9092, lambda s: tasks.append(asyncio.ensure_future(serve(s))))
    await asyncio.get_running_loop().create_future()


async def heard(stream: Stream, seconds: float) -> int:
    """How many bytes come within a time."""
    data = bytearray(1 << 16)
    deadline = asyncio.get_running_loop().time() + seconds
    total = 0
    while (left := deadline - asyncio.get_running_loop().time()) > 0:
        got = stream.recv_into(memoryview(data))
        if got == EOF:
            break
        if got == WOULD_BLOCK:
            try:
                await asyncio.wait_for(readable(stream), left)
            except TimeoutError:
                stream.want(None, None)
        else:
            total += got
    return total


# ---- cuts ----


def test_a_one_way_cut_holds_one_direction_alone() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        network = host.sim.network
        stream = await world.net.connect("s", 9092)
        network.cut("c", "s", one_way=True)
        assert await heard(stream, 5) > 100
        with pytest.raises(TimeoutError):
            await world.net.connect("s", 9092)
        network.heal("c", "s")
        (await world.net.connect("s", 9092)).close()
        await heard(stream, 5)
        network.cut("s", "c", one_way=True)
        assert await heard(stream, 5) < 10
        network.heal("s", "c")
        assert await heard(stream, 1) > 100, "what was held back comes"

    scene(client, talker)


def test_a_sender_whose_acknowledgements_are_lost_fills_its_window_and_stops() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        network = host.sim.network
        stream = await world.net.connect("s", 9092)
        network.cut("c", "s", one_way=True)
        assert await heard(stream, 100) == 1_000, "a window, and no more"
        network.heal("c", "s")
        assert await heard(stream, 1) > 8

    scene(client, talker, faults=NetFaults(window=1_000))


def test_pairs_are_cut_and_healed_one_by_one() -> None:
    sim = SimWorld(1)

    async def ask(world: ProcessWorld, whom: str) -> bool:
        try:
            stream = await asyncio.wait_for(world.net.connect(whom, 9092), 3)
            await send_all(stream, b"?")
            got = await asyncio.wait_for(receive(stream, 1), 1)
            stream.close()
        except TimeoutError:
            return False
        return got == b"?"

    reached: list[tuple[bool, ...]] = []

    async def client(world: ProcessWorld) -> None:
        net = sim.network
        for change, a, b in (
            (net.cut, "c", "a"),
            (net.cut, "b", "c"),
            (net.heal, "c", "a"),
            (net.heal, "c", "b"),
        ):
            change(a, b)
            reached.append((await ask(world, "a"), await ask(world, "b")))

    async def main() -> None:
        for name in ("a", "b"):
            sim.host(name).start(echo)
        await asyncio.sleep(0)
        await sim.host("c").start(client).task

    sim.run(main())
    assert reached == [(False, True), (False, False), (True, False), (True, True)]


def test_the_end_of_a_process_behind_a_cut_is_not_heard_of_until_one_asks() -> None:
    sim = SimWorld(1)

    async def client(world: ProcessWorld) -> None:
        stream = await world.net.connect("s", 9092)
        await asyncio.sleep(2)
        assert not stream.ended(), "nobody could tell"
        await asyncio.sleep(3)
        assert not stream.ended(), "the way is free, and nothing was sent"
        stream.send([b"?"])
        with pytest.raises(ConnectionResetError):
            await receive(stream, 1)

    async def main() -> None:
        server = sim.host("s").start(echo)
        await asyncio.sleep(0)
        calling = sim.host("c").start(client)
        await asyncio.sleep(1)
        sim.network.cut("s", "c", one_way=True)
        server.kill()
        await asyncio.sleep(3)
        sim.network.heal("s", "c")
        await calling.task

    sim.run(main())


# ---- ways ----


async def there_and_back(stream: Stream) -> float:
    began = asyncio.get_running_loop().time()
    await send_all(stream, b"?")
    assert await receive(stream, 1) == b"?"
    return asyncio.get_running_loop().time() - began


def test_a_slow_way_delays_its_pair_and_nobody_else() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        network = host.sim.network
        stream = await world.net.connect("s", 9092)
        network.worsen("s", "c", Path(delay_ms=(300, 400)))
        network.worsen("s", "somebody", Path(delay_ms=(10_000, 10_000)))
        assert 0.3 < await there_and_back(stream) < 0.5
        network.heal("s", "c")
        assert await there_and_back(stream) < 0.1

    scene(client)


def test_a_narrow_way_takes_its_time_for_many_bytes() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        host.sim.network.worsen("c", "s", Path(bytes_per_s=1_000))
        stream = await world.net.connect("s", 9092)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(send_all(stream, bytes(5_000)), receive(stream, 5_000))
        assert 5 <= asyncio.get_running_loop().time() - began < 6

    scene(client)


def test_on_a_lossy_way_all_arrives_in_order_and_some_of_it_late() -> None:
    async def client(world: ProcessWorld, host: SimHost) -> None:
        host.sim.network.worsen("s", "c", Path(loss=0.3))
        stream = await world.net.connect("s", 9092)
        times = sorted([await there_and_back(stream) for _ in range(100)])
        assert times[50] < 0.1 < 0.2 < times[90]

    scene(client)


# ---- processes that stand still ----


def test_a_paused_process_does_nothing_keeps_its_connections_and_goes_on_late() -> None:
    sim = SimWorld(1)
    ticks: list[int] = []

    async def server(world: ProcessWorld) -> None:
        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append(world.clock.mono_ms())

        ticking = asyncio.ensure_future(tick())
        await echo(world)
        ticking.cancel()

    async def client(world: ProcessWorld) -> None:
        stream = await world.net.connect("s", 9092)
        await asyncio.sleep(2.5)
        await send_all(stream, b"?")
        another = await world.net.connect("s", 9092)  # the kernel takes it
        await send_all(another, b"!")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(stream, 1), 5)
        assert await receive(stream, 1) == b"?"
        assert await receive(another, 1) == b"!"
        assert sim.loop.time() > 10

    async def main() -> None:
        process = sim.host("s").start(server)
        await asyncio.sleep(0)
        calling = sim.host("c").start(client)
        await asyncio.sleep(2.2)
        process.pause()
        process.pause()
        assert process.paused
        assert process.alive
        await asyncio.sleep(8)
        process.resume()
        await calling.task
        await asyncio.sleep(1.5)

    sim.run(main())
    assert [tick // 1000 for tick in ticks] == [1, 2, 10, 11], "the timer that was due came late"


def test_a_paused_process_can_be_killed() -> None:
    sim = SimWorld(1)

    async def client(world: ProcessWorld) -> None:
        stream = await world.net.connect("s", 9092)
        with pytest.raises(ConnectionResetError):
            await receive(stream, 1)

    async def main() -> None:
        process = sim.host("s").start(echo)
        await asyncio.sleep(0)
        calling = sim.host("c").start(client)
        await asyncio.sleep(1)
        process.pause()
        await asyncio.sleep(1)
        process.kill()
        assert not process.alive
        await calling.task
        await sim.host("s").start(lambda world: asyncio.sleep(1)).task

    sim.run(main())


def test_a_window_fills_towards_a_process_that_does_not_read() -> None:
    sim = SimWorld(1)

    async def client(world: ProcessWorld) -> None:
        stream = await world.net.connect("s", 9092)
        await asyncio.sleep(1)
        await send_all(stream, bytes(1 << 16))
        assert stream.send([b"x"]) == WOULD_BLOCK
        await writable(stream)
        assert sim.loop.time() > 20

    async def main() -> None:
        process = sim.host("s").start(echo)
        await asyncio.sleep(0)
        calling = sim.host("c").start(client)
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(20)
        process.resume()
        await calling.task

    sim.run(main())


# ---- disks and clocks ----


def test_every_host_has_a_disk_of_its_own() -> None:
    sim = SimWorld(1)
    written: dict[str, bool] = {}

    def writer(name: str) -> Callable[[ProcessWorld], Coroutine[Any, Any, None]]:
        async def process(world: ProcessWorld) -> None:
            file = world.disk.open("/f", create=True)
            try:
                file.pwrite(bytes(100), 0)
                await file.datasync()
            except OSError:
                written[name] = False
            else:
                written[name] = True

        return process

    async def main() -> None:
        sim.host("full").disk_faults.capacity = 10
        sim.host("sick").disk_faults.fail_sync = 1.0
        for name in ("full", "sick", "well"):
            await sim.host(name).start(writer(name)).task

    sim.run(main())
    assert written == {"full": False, "sick": False, "well": True}


def test_a_clock_that_runs_fast_moves_the_timers_of_its_host_alone() -> None:
    sim = SimWorld(1)
    woke: dict[str, tuple[float, int]] = {}

    async def sleeper(world: ProcessWorld) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 50)
        await asyncio.sleep(50)
        assert round(loop.time() - began, 6) == 100, "by its own clock"
        woke[world.sim_net.host] = (round(sim.loop.true_time(), 6), world.clock.mono_ms())

    async def main() -> None:
        fast = sim.host("fast")
        slow = sim.host("slow", uptime_s=5_000)
        fast.clock.run_at(2.0)
        slow.clock.run_at(0.5)
        slow.clock.jump(-60_000)
        hosts = (fast, slow, sim.host("true"))
        await asyncio.gather(*(host.start(sleeper).task for host in hosts))
        assert sim.loop.time() == 200
        fast.clock.run_at(1.0)
        await asyncio.sleep(1)
        assert fast.clock.mono_ms() == 401_000, "it does not go back"
        assert fast.clock.wall_ms() == EPOCH_MS + 401_000
        assert slow.clock.wall_ms() == EPOCH_MS + 100_500 - 60_000

    sim.run(main())
    assert woke == {"fast": (50, 100_000), "slow": (200, 5_100_000), "true": (100, 100_000)}


# ---- the trace ----


def test_all_of_it_is_in_the_trace_and_equal_seeds_give_equal_traces() -> None:
    def play(seed: int) -> SimWorld:
        async def client(world: ProcessWorld, host: SimHost) -> None:
            sim = host.sim
            network, draw = sim.network, sim.rng.fork("play")
            host.clock.run_at(1.01)
            host.clock.jump(5)
            stream = await world.net.connect("s", 9092)
            for _ in range(20):
                network.worsen("s", "c", Path(delay_ms=(1, 50), loss=0.2))
                await there_and_back(stream)
                network.cut("c", "s", one_way=draw.chance(0.5))
                await asyncio.sleep(draw.between(0, 1))
                network.heal("c", "s")
                server = host._processes[-1]
                server.pause()
                await asyncio.sleep(draw.between(0, 1))
                server.resume()

        return scene(client, seed=seed)

    sims = [play(seed) for seed in (1, 1, 2)]
    digests = [sim.trace.digest() for sim in sims]
    assert digests[0] == digests[1] != digests[2]
    told = "\n".join(sims[0].trace.last)
    for event in (
        "s clock runs at 1.01",
        "s clock jumps 5",
        "net worsen s c",
        "net cut one way c s",
        "net cut c s",
        "net heal c s",
        "pause s/1",
        "resume s/1",
    ):
        assert event in told, event
