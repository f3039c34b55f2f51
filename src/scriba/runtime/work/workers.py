"""Long work in a process of its own, on demand.

A thread would share the interpreter with the loop and take half of its time. The child is started
by the first task and kept for the next ones; its owner ends it when there is nothing to do. It runs
a little ahead of who takes its items, and no further.

It stays in the session of its parent: Linux weighs sessions against each other (autogroups), and
priorities count only within one. But it leaves the process group, since a Ctrl-C at the terminal is
for the node alone. Its priority is set from here, so that it holds while the child imports, too.
"""

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from scriba.runtime.work.worker_process import END, ERROR, GO, LENGTH

AHEAD: Final = 2
"""Items that a task may make before the last one was taken."""

NICENESS: Final = 5
"""Added to the parent's, for a child that may take time from others."""

CHILD: Final = (
    "import os; os.setpgid(0, 0); from scriba.runtime.work.worker_process import main; main()"
)


class ChildWorker:
    def __init__(self, idle: bool = False) -> None:
        self.idle = idle
        self._process: Process | None = None

    async def run(self, task: str, *values: Any) -> AsyncGenerator[Any, None]:
        process = await self._started()
        ended = False
        try:
            _send(process, pickle.dumps((task, values)))
            for _ in range(AHEAD):
                _send(process, GO)
            while True:
                kind, value = await _receive(process)
                ended = kind in (END, ERROR)
                if kind == ERROR:
                    raise value
                if kind == END:
                    return
                yield value
                _send(process, GO)
        finally:
            if not ended:  # whoever took the items has lost interest
                await self.close()

    async def _started(self) -> Process:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                CHILD,
                stdin=PIPE,
                stdout=PIPE,
            )
            with suppress(OSError):  # it has ended already, or may not be lowered
                _lower(process.pid, self.idle)
        return process

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            # To its end, also for a caller that is cancelled: the loop may be closed next.
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                await ended
                raise


class ChildWorkers:
    def start(self, idle: bool = False) -> ChildWorker:
        return ChildWorker(idle)


def _lower(pid: int, idle: bool) -> None:
    if idle and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    else:
        niceness = os.getpriority(os.PRIO_PROCESS, pid) + NICENESS
        os.setpriority(os.PRIO_PROCESS, pid, niceness)


def _send(process: Process, data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(LENGTH.pack(len(data)) + data)


async def _receive(process: Process) -> tuple[int, Any]:
    assert process.stdout is not None
    try:
        (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        found: tuple[int, Any] = pickle.loads(await process.stdout.readexactly(size))
    except asyncio.IncompleteReadError:
        raise ChildProcessError(f"a worker ended with status {await process.wait()}") from None
    return found
