"""Work in a process of its own: started on demand, in step with its owner, gone with it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from scriba.runtime.work.workers import AHEAD, ChildWorker, ChildWorkers

TASKS = "scriba.testing.sim.world.tasks"
PATIENCE_S = 300


async def taken(worker: ChildWorker, task: str, *values: object) -> list[object]:
    return [item async for item in worker.run(f"{TASKS}:{task}", *values)]


def size_of(path: Path) -> int:
    return path.stat().st_size


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


async def test_one_child_serves_task_after_task_and_ends_when_told() -> None:
    worker = ChildWorkers().start()
    assert await taken(worker, "count", 3) == [0, 1, 2]
    [pid] = await taken(worker, "process")
    assert pid != os.getpid()
    assert await taken(worker, "process") == [pid]
    await worker.close()
    assert not runs(pid)  # type: ignore[arg-type]
    assert await taken(worker, "count", 1) == [0]
    await worker.close()


async def test_what_a_task_raises_comes_out_and_the_child_goes_on() -> None:
    worker = ChildWorker()
    [pid] = await taken(worker, "process")
    with pytest.raises(ValueError, match="no more"):
        await taken(worker, "fail", "no more")
    assert await taken(worker, "process") == [pid]
    await worker.close()


async def test_a_task_runs_a_little_ahead_and_stops_when_nobody_cares(tmp_path: Path) -> None:
    worker = ChildWorker()
    trace: Path = tmp_path / "steps"
    async with aclosing(worker.run(f"{TASKS}:steps", str(trace), 100)) as steps:
        assert [await anext(steps) for _ in range(3)] == [0, 1, 2]
    size = size_of(trace)
    assert 3 <= size <= 3 + AHEAD + 1
    assert await taken(worker, "count", 1) == [0]
    assert size_of(trace) == size
    await worker.close()


async def test_a_child_that_dies_is_an_error_and_the_next_task_gets_another() -> None:
    worker = ChildWorker()
    [pid] = await taken(worker, "process")
    items = worker.run(f"{TASKS}:count", 10)
    await anext(items)
    os.kill(pid, signal.SIGKILL)  # type: ignore[arg-type]
    with pytest.raises(ChildProcessError, match="ended with status -9"):
        [item async for item in items]
    assert await taken(worker, "process") != [pid]
    await worker.close()


def test_no_child_outlives_its_parent() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import asyncio\n"
            "from scriba.runtime.work.workers import ChildWorker\n"
            "async def main():\n"
            f"    async for item in ChildWorker().run('{TASKS}:for_ever'):\n"
            "        print(item, flush=True)\n"
            "asyncio.run(main())\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_close_that_is_cancelled_waits_for_the_end_of_the_child() -> None:
    worker = ChildWorkers().start()
    (pid,) = await taken(worker, "process")
    assert isinstance(pid, int)
    closing = asyncio.ensure_future(worker.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
