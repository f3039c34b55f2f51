"""A process that was told to stand still, and does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from scriba.runtime.loop.hosting import stands_still

BUSY = """
import threading
print("busy", flush=True)
for _ in range(4):
    threading.Thread(target=lambda: all(iter(lambda: True, False)), daemon=True).start()
input()
"""


def runs(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    return any("State:\tT" not in status.read_text() for status in threads)


def test_a_process_stands_still_once_none_of_its_threads_runs() -> None:
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(50):
            assert not stands_still(child.pid)
            os.kill(child.pid, signal.SIGSTOP)
            while not stands_still(child.pid):
                pass
            assert not runs(child.pid)
            os.kill(child.pid, signal.SIGCONT)
        child.kill()
    assert stands_still(child.pid), "it has ended"
