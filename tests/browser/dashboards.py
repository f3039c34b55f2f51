"""The dashboard as a process of its own."""

import re
import signal
import subprocess
import sys


class Dashboard:
    """`scriba shop dashboard` as a person starts it."""

    def __init__(self, bootstrap: str, *arguments: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "scriba", "shop", "dashboard", "-b", bootstrap]
        self.process = subprocess.Popen(
            [*command, "--port", str(port), *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:(\d+))", self.process.stdout.readline())
        assert found, "the dashboard did not start"
        self.address = found[1]
        self.port = int(found[2])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(300)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
