"""A cluster of processes, as `scriba up --nodes` starts it, and what can be done to its nodes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "SCRIBA_"))}
PATIENCE = 300


def run(*words: str, cwd: Path, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "scriba", *words],
        env=ENVIRONMENT,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def scriba(*words: str, cwd: Path, code: int = 0, stdin: str | None = None) -> str:
    """What a command says: its result, or its one line of error."""
    done = run(*words, cwd=cwd, stdin=stdin)
    assert done.returncode == code, done
    return done.stderr.removeprefix("scriba: ").strip() if code else done.stdout


class Cluster:
    def __init__(self, process: "subprocess.Popen[str]", cwd: Path) -> None:
        assert process.stdout is not None
        self.process = process
        self.cwd = cwd
        line = process.stdout.readline()
        assert line, process.communicate()
        self.told: dict[str, Any] = json.loads(line)
        self.bootstrap: str = self.told["bootstrap_servers"]

    def node(self, *words: str, code: int = 0) -> str:
        return scriba("node", *words, cwd=self.cwd, code=code)

    def states(self) -> dict[int, str]:
        return {each["node_id"]: each["state"] for each in json.loads(self.node("list", "--json"))}

    def pids(self) -> dict[int, int]:
        return {each["node_id"]: each["pid"] for each in json.loads(self.node("list", "--json"))}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


@contextmanager
def up(cwd: Path, *words: str) -> Iterator[Cluster]:
    process = subprocess.Popen(
        [sys.executable, "-m", "scriba", "up", "--port", "0", "--json", *words],
        env=ENVIRONMENT,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Cluster(process, cwd)
    finally:
        process.kill()  # the nodes end by themselves, once nobody holds them
        process.communicate()


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")
