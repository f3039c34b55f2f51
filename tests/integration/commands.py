"""Commands as a person types them, run in this process, and what became of them."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from brokers import Broker

from scriba.cli.main import main


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


Scriba = Callable[..., Done]


@pytest.fixture
def scriba(cluster: Broker, capfd: pytest.CaptureFixture[str]) -> Scriba:
    """Runs a command in this process."""

    def run(*words: str) -> Done:
        code = main([*words, "-b", cluster.bootstrap])
        return Done(code, *capfd.readouterr())

    return run
