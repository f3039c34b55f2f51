"""Long work in a process of its own, on demand.

A thread would share the interpreter with the loop and take half of its time. The child is started
by the first task and kept for the next ones; its owner ends it when there is nothing to do. It runs
a little ahead of who takes its items, and no further.
"""

import asyncio
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from scriba.runtime.worker_process import END, ERROR, GO, LENGTH

AHEAD: Final = 2
"""Items that a task may make before the last one was taken."""


class ChildWorker:
    def __init__(self) -> None:
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
                "-m",
                "scriba.runtime.worker_process",
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,  # a Ctrl-C at the terminal is for the node alone
            )
        return process

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class ChildWorkers:
    def start(self) -> ChildWorker:
        return ChildWorker()


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
