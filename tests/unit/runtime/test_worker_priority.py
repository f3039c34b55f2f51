"""A worker's place among the processes: behind its parent, in the same session."""

import os

import pytest

from scriba.runtime.work.workers import NICENESS, ChildWorker, ChildWorkers

TASKS = "scriba.testing.sim.world.tasks"


async def process_of(worker: ChildWorker) -> int:
    [pid] = [item async for item in worker.run(f"{TASKS}:process")]
    assert isinstance(pid, int)
    return pid


async def test_priorities_count_since_it_stays_in_the_session_but_not_in_the_process_group() -> (
    None
):
    worker = ChildWorkers().start()
    pid = await process_of(worker)
    assert os.getsid(pid) == os.getsid(0)
    assert os.getpgid(pid) == pid
    await worker.close()


@pytest.mark.parametrize("idle", [True, False])
async def test_it_has_the_time_that_it_was_started_for(idle: bool) -> None:
    worker = ChildWorkers().start(idle=idle)
    pid = await process_of(worker)
    policy = os.SCHED_IDLE if idle else os.SCHED_OTHER
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.sched_getscheduler(pid) == policy
    assert os.getpriority(os.PRIO_PROCESS, pid) == (own if idle else min(own + NICENESS, 19))
    await worker.close()


async def test_what_a_task_does_not_tell_is_no_item() -> None:
    worker = ChildWorkers().start(idle=True)
    items = [item async for item in worker.run(f"{TASKS}:hesitant", 3)]
    assert items == [0, 1, 2]
    await worker.close()
