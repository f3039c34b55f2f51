"""The virtual-time loop and the lives on it."""

import asyncio
import gc
import warnings

import pytest

from scriba.testing.sim.world.loop import SimStuck
from scriba.testing.sim.world.world import EPOCH_MS, ProcessWorld, SimWorld


def test_years_pass_at_once_and_in_order() -> None:
    sim = SimWorld(1)
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, sim.loop.time()))

    async def main() -> None:
        year = 365 * 86400.0
        await asyncio.gather(sleeper("b", year), sleeper("a", 1.5), sleeper("c", year))
        clock = sim.host("h").clock
        assert clock.wall_ms() == EPOCH_MS + int(year * 1000)
        clock.jump(-5000)
        assert clock.now().wall_ms == EPOCH_MS + int(year * 1000) - 5000
        assert clock.mono_ms() == int(year * 1000)

    sim.run(main())
    assert seen == [("a", 1.5), ("b", 365 * 86400.0), ("c", 365 * 86400.0)]


def test_time_outs_work_and_their_cancelled_timers_do_not_pile_up() -> None:
    sim = SimWorld(1)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), 30)
        assert sim.loop.time() == 30
        for _ in range(5000):
            await asyncio.wait_for(asyncio.sleep(0), 3600)
        assert len(sim.loop._scheduled) < 2100

    sim.run(main())


def test_a_wait_for_nothing_is_reported_instead_of_hanging() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def spins() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await loop.create_future()

    for main in (forever, spins):
        with pytest.raises(SimStuck):
            SimWorld(1).run(main())


def test_an_error_in_a_callback_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as caught:
        SimWorld(1).run(main())
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


def test_a_killed_process_does_nothing_more_and_leaves_no_warning() -> None:
    sim = SimWorld(1)
    host = sim.host("h")
    done: list[str] = []

    async def child(world: ProcessWorld) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                done.append("tick")
        finally:
            await world.disk.write_atomic("/last-words", b"never")

    async def process(world: ProcessWorld) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5, done.append, "late callback")
        shielded = asyncio.ensure_future(asyncio.shield(child(world)))
        async with asyncio.TaskGroup() as group:
            group.create_task(child(world))
            await shielded

    async def main() -> None:
        running = host.start(process)
        await asyncio.sleep(2.5)
        assert running.alive
        running.kill()
        running.kill()
        assert not running.alive
        seen = len(done)
        await asyncio.sleep(100)
        assert len(done) == seen == 4

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim.run(main())
        gc.collect()
    assert host.volume.files() == {}


def test_offloaded_work_takes_time_and_gives_its_value_or_error() -> None:
    sim = SimWorld(1)

    async def process(world: ProcessWorld) -> None:
        assert await world.offload.run(int, "ff", base=16) == 255
        assert sim.loop.time() > 0
        with pytest.raises(ValueError, match="invalid literal"):
            await world.offload.run(int, "x")

    async def main() -> None:
        await sim.host("h").start(process).task

    sim.run(main())


def test_randomness_differs_by_seed_host_and_process_but_not_by_run() -> None:
    def draw(seed: int) -> list[bytes]:
        sim = SimWorld(seed)
        drawn: list[bytes] = []

        async def process(world: ProcessWorld) -> None:
            drawn.append(world.rng.uuid())

        async def main() -> None:
            for host in ("a", "a", "b"):
                await sim.host(host).start(process).task

        sim.run(main())
        return drawn

    assert draw(1) == draw(1)
    assert len({*draw(1), *draw(2)}) == 6
