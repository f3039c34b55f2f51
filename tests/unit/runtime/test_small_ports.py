"""Clock, randomness, offload, loop, lag and the world that bundles them."""

import asyncio
import base64
import logging
import threading
import time
import weakref
from types import FrameType

import pytest

from scriba.prometheus import Durations
from scriba.runtime.clock import SystemClock
from scriba.runtime.loop import lag
from scriba.runtime.loop import loop as loop_module
from scriba.runtime.loop.lag import LagMonitor, Spent, judge
from scriba.runtime.ports import World
from scriba.runtime.rng import SystemRng, shape_uuid
from scriba.runtime.work.offload import ThreadOffload
from scriba.runtime.world import RealWorld


def test_the_clock_tells_both_times_in_milliseconds() -> None:
    clock = SystemClock()
    before = time.time() * 1000
    now = clock.now()
    assert before - 1 <= now.wall_ms <= clock.wall_ms()
    assert now.mono_ms <= clock.mono_ms()


def test_a_uuid_has_version_four_and_a_text_that_is_no_option() -> None:
    draws = iter([bytes([0xFB]) + bytes(15), bytes([0xF8]) * 16, bytes(16)])
    assert shape_uuid(lambda n: next(draws)) == bytes(6) + b"\x40\0\x80" + bytes(7)
    rng = SystemRng()
    for _ in range(500):
        drawn = rng.uuid()
        assert drawn[6] >> 4 == 4
        assert drawn[8] >> 6 == 2
        assert not base64.urlsafe_b64encode(drawn).startswith(b"-")
    assert {rng.below(3) for _ in range(200)} == {0, 1, 2}
    assert len(rng.bytes(7)) == 7


async def test_offloaded_work_runs_elsewhere_and_its_error_comes_back() -> None:
    offload = ThreadOffload(2)
    here = threading.get_ident()
    assert await offload.run(threading.get_ident) != here
    assert await offload.run(int, "ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        await offload.run(int, "x")
    offload.close()


def test_the_loop_runs_main_without_debug_and_returns_its_value() -> None:
    async def main() -> tuple[str, bool]:
        loop = asyncio.get_running_loop()
        return type(loop).__module__, loop.get_debug()

    module, debug = loop_module.run(main())
    assert module.split(".")[0] in ("uvloop", "asyncio")
    assert not debug


def test_lag_falls_into_the_bucket_of_its_upper_bound() -> None:
    histogram = Durations()
    for lag_ms in (0.0, 1.0, 1.1, 50.0, 99_999.0):
        histogram.add(lag_ms)
    by_bound = dict(zip((*histogram.BOUNDS_MS, "more"), histogram.counts, strict=True))
    assert (by_bound[1], by_bound[2], by_bound[50], by_bound["more"]) == (2, 1, 1, 1)
    assert histogram.max_ms == 99_999.0


def hold_the_loop(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def test_a_slice_that_holds_the_loop_is_logged_with_the_name_of_who_ran(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag, "TOLD_EVERY_S", 0.0)
    # As on a machine of its own: beside other programs it is, rightly, they who are blamed.
    monkeypatch.setattr(
        lag._Meter, "read", lambda meter: Spent(time.perf_counter(), time.perf_counter(), 0.0)
    )
    with caplog.at_level(logging.INFO, "scriba.runtime.loop.lag"):
        async with RealWorld() as world:
            # Where other programs leave the watching thread no time, it misses one or the other.
            while "hold_the_loop" not in caplog.text:
                await asyncio.sleep(0.05)
                hold_the_loop(0.3)
                await asyncio.sleep(0.05)
    assert world.lag.max_ms > 100


NOTHING = Spent(0.0, 0.0, 0.0)


def test_time_that_the_machine_gave_to_others_is_nobodys_fault() -> None:
    taken = judge(NOTHING, Spent(1.0, 0.05, 0.9), "some.line:7")
    assert "the machine gave the processor to others for 900 ms" in taken
    assert "some.line" not in taken
    paused = judge(NOTHING, Spent(1.0, 0.0, 0.0), "some.line:7", unwatched=0.98)
    assert "paused" in paused
    assert "some.line" not in paused


def test_a_function_that_computes_and_a_call_that_waits_are_told_apart() -> None:
    assert judge(NOTHING, Spent(1.0, 0.9, 0.0), "f:1") == "held by f:1: 900 ms of processor time"
    assert "waiting in a call by f:1" in judge(NOTHING, Spent(1.0, 0.1, 0.0), "f:1")
    assert judge(Spent(0, None, None), Spent(1, None, None), "f:1") == "held by f:1"
    assert "not run, or waiting" in judge(NOTHING, Spent(1.0, 0.1, None), "f:1")


async def test_late_beats_are_told_once_a_minute_and_only_the_long_ones_as_warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(lag, "perf_counter", lambda: now)
    monitor = LagMonitor(Durations())
    monitor._meter = lag._Meter()
    monitor._spent = monitor._meter.read()
    loop = asyncio.get_running_loop()

    def beat(late_s: float) -> None:
        nonlocal now
        monitor._due = now
        now += late_s
        monitor._beat(loop)
        assert monitor._beat_handle is not None
        monitor._beat_handle.cancel()

    with caplog.at_level(logging.INFO, "scriba.runtime.loop.lag"):
        beat(0.2)
        for _ in range(126):
            beat(0.1)
        beat(0.9)
        assert [record.levelname for record in caplog.records] == ["INFO"]
        now += 60
        beat(0.0)
        assert "late by 900 ms (the longest of 127 since" in caplog.records[-1].getMessage()
        assert caplog.records[-1].levelname == "INFO"
        now += 60
        beat(1.5)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]
    monitor._meter.close()


async def test_the_real_world_is_a_world() -> None:
    world: World = RealWorld()
    assert world.clock.now().wall_ms > 0


class Held:
    """Something that a slice of work has in its hands."""


async def test_watch_keeps_nothing_of_what_it_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame has all that its callers had, such as views of a request that are revoked."""
    rests, may_look, has_looked = threading.Event(), threading.Semaphore(0), threading.Event()
    described = lag.describe

    def rest(seconds: float) -> None:
        rests.set()
        may_look.acquire()

    def describe(frame: FrameType | None) -> str:
        has_looked.set()
        return described(frame)

    monkeypatch.setattr(lag, "describe", describe)
    monkeypatch.setattr(lag, "sleep", rest)
    monitor = LagMonitor(Durations())
    monitor.start()

    def slice_of_work() -> "weakref.ref[Held]":
        had = Held()
        assert rests.wait(300)
        rests.clear()
        monitor._due = 0.0
        may_look.release()
        assert has_looked.wait(300)
        return weakref.ref(had)

    try:
        had = slice_of_work()
        assert rests.wait(300)
        assert had() is None
    finally:
        monitor._stopped = True
        may_look.release()
        monitor.stop()
