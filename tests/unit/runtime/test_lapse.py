"""Time that passes at once: in order, to its end, and no further."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scriba.runtime.loop.lapse import MOST_STEPS, LapseLoop, LapseWorld

HOUR_MS = 3_600_000


def run(play: Callable[[LapseLoop], Coroutine[Any, Any, None]], ahead_ns: int = 0) -> None:
    loop = LapseLoop(ahead_ns)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(play(loop))


def test_timers_fire_in_their_order_each_at_its_time() -> None:
    async def play(loop: LapseLoop) -> None:
        began = loop.time()
        fired: list[tuple[str, int]] = []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            fired.append((name, round(loop.time() - began)))

        waits = [wait("last", 300), wait("second", 1), wait("minute", 60)]
        tasks = [asyncio.ensure_future(each) for each in waits]
        await asyncio.sleep(0)
        await loop.advance(301_000)
        assert fired == [("second", 1), ("minute", 60), ("last", 300)]
        await asyncio.gather(*tasks)

    run(play)


def test_what_a_timer_starts_is_done_before_the_time_is_over() -> None:
    async def play(loop: LapseLoop) -> None:
        times: list[int] = []
        began = loop.time()

        async def heartbeats() -> None:
            while True:
                await asyncio.sleep(3)
                times.append(round(loop.time() - began))

        beating = asyncio.ensure_future(heartbeats())
        await asyncio.sleep(0)
        await loop.advance(30_500)
        assert times == list(range(3, 31, 3))
        beating.cancel()

    run(play)


def test_a_timeout_that_was_set_before_ends() -> None:
    async def play(loop: LapseLoop) -> None:
        async def wait() -> None:
            async with asyncio.timeout(600):
                await asyncio.Event().wait()

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        await loop.advance(599_000)
        assert not waiting.done()
        await loop.advance(2_000)
        with pytest.raises(TimeoutError):
            await waiting

    run(play)


def test_clock_and_loop_move_by_the_same_time_and_no_more() -> None:
    async def play(loop: LapseLoop) -> None:
        mono, wall = loop.clock.now()
        before, real = loop.time(), time.monotonic()
        await loop.advance(HOUR_MS)
        spent = time.monotonic() - real
        now = loop.clock.now()
        for passed in (now.mono_ms - mono, now.wall_ms - wall, (loop.time() - before) * 1000):
            assert HOUR_MS <= passed <= HOUR_MS + spent * 1000 + 100

    run(play)


def test_a_clock_that_was_ahead_starts_ahead() -> None:
    async def play(loop: LapseLoop) -> None:
        assert loop.clock.wall_ms() - time.time() * 1000 > HOUR_MS - 1000
        assert loop.time() - time.monotonic() > HOUR_MS / 1000 - 1

    run(play, ahead_ns=HOUR_MS * 1_000_000)


def test_time_waits_for_work_that_left_the_loop() -> None:
    async def play(loop: LapseLoop) -> None:
        world = LapseWorld(loop)
        go_on = threading.Event()
        done: list[float] = []

        async def job() -> None:
            await asyncio.sleep(1)
            began = loop.time()
            await world.offload.run(go_on.wait)
            done.append(loop.time() - began)

        working = asyncio.ensure_future(job())
        await asyncio.sleep(0)
        advancing = asyncio.ensure_future(loop.advance(HOUR_MS))
        while not loop.absent.count:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not advancing.done()
        go_on.set()
        await advancing
        assert working.done()
        assert done[0] < 3000, "the hour passed while a thread was at work"
        world.close()

    run(play)


def test_a_year_passes_in_a_bounded_number_of_steps() -> None:
    async def play(loop: LapseLoop) -> None:
        passes = 0

        async def each_second() -> None:
            nonlocal passes
            while True:
                await asyncio.sleep(1)
                passes += 1

        ticking = asyncio.ensure_future(each_second())
        await asyncio.sleep(0)
        await loop.advance(365 * 24 * HOUR_MS)
        assert 0 < passes <= MOST_STEPS + 1
        ticking.cancel()

    run(play)


def test_two_who_let_time_pass_get_both() -> None:
    async def play(loop: LapseLoop) -> None:
        before = loop.time()
        await asyncio.gather(loop.advance(HOUR_MS), loop.advance(HOUR_MS))
        assert loop.time() - before >= 2 * HOUR_MS / 1000

    run(play)


def test_time_does_not_go_back() -> None:
    async def play(loop: LapseLoop) -> None:
        with pytest.raises(ValueError, match="does not go back"):
            await loop.advance(-1)

    run(play)


def test_sockets_are_served_while_time_passes() -> None:
    async def play(loop: LapseLoop) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.sendall(b"x")
            reading = asyncio.ensure_future(loop.sock_recv(ours, 1))
            await loop.advance(HOUR_MS)
            assert await reading == b"x"

    run(play)


def test_a_world_that_is_closed_has_no_file_open(tmp_path: Any) -> None:
    async def play(loop: LapseLoop) -> None:
        world = LapseWorld(loop)
        file = world.disk.open(str(tmp_path / "log"), create=True)
        file.pwrite(b"kept", 0)
        await file.datasync()
        await world.disk.write_atomic(str(tmp_path / "checkpoint"), b"0")
        await world.disk.sync_dir(str(tmp_path))
        world.close()
        assert world.disk.open_files == 0
        with pytest.raises(OSError, match="Bad file descriptor"):
            await file.datasync()

    run(play)
    assert (tmp_path / "log").read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "log"]
