"""Commands as a person types them, run in this process, and what became of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from scriba.cli.main import main
from tools.kafka.brokers import Broker


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of a command that failed."""
        assert (self.code, self.out) == (1, "")
        (line,) = self.err.splitlines()
        assert line.startswith("scriba: ")
        return line.removeprefix("scriba: ")

    @property
    def error(self) -> dict[str, Any]:
        """What a command that failed wrote under --json, after its notes."""
        assert self.code != 0
        assert self.out == ""
        *notes, last = [json.loads(line) for line in self.err.splitlines()]
        assert all(list(note) in (["note"], ["warning"], ["done"]) for note in notes)
        found: dict[str, Any] = last["error"]
        assert found["exit_code"] == self.code
        return found

    @property
    def text(self) -> str:
        """What a command wrote that succeeded without remarks."""
        assert (self.code, self.err) == (0, "")
        return self.out

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.text.splitlines()]


PATIENCE = 300


def start(cluster: Broker, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return begin(cluster.bootstrap, *words, stdin=stdin)


def begin(bootstrap: str, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "scriba", *words],
        env=os.environ | {"SCRIBA_BOOTSTRAP": bootstrap},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def piped(cluster: Broker, stdin: bytes, *words: str) -> tuple[int, bytes, bytes]:
    with start(cluster, *words, stdin=subprocess.PIPE) as process:
        out, err = process.communicate(stdin, PATIENCE)
        return process.returncode, out, err


Scriba = Callable[..., Done]


@pytest.fixture
def scriba(cluster: Broker, capfd: pytest.CaptureFixture[str]) -> Scriba:
    """Runs a command in this process."""

    def run(*words: str) -> Done:
        code = main([*words, "-b", cluster.bootstrap])
        return Done(code, *capfd.readouterr())

    return run
