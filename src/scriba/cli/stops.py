"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it has begun is brought to an end first.

The signal cancels the command's work once. The work may catch that to flush, to commit or to leave
its group, and raises it again; a second signal does not wait for any of it. A signal that whoever
started the command has it ignore (`nohup`, a job in the background of a script) stays ignored.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from typing import Any, Final

from scriba.cli.problems import Stopped

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Runs the work to its end; raises Stopped when a signal came first."""
    task = asyncio.current_task()
    assert task is not None
    asked: signal.Signals | None = None

    def stop(number: signal.Signals) -> None:
        nonlocal asked
        if asked is not None:
            os._exit(128 + number)
        asked = number
        task.cancel()

    loop = asyncio.get_running_loop()
    heard = [n for n in STOPPING if signal.getsignal(n) != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        heard = []  # Python tells signals to the main thread alone
    for number in heard:
        loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if asked is None:
            raise
        raise Stopped(asked) from None
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
