"""Ctrl-C ends queries on Spark, in whatever call to Java it comes."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scriba.pipelines.shop.commands.shop import keep_running
from scriba.pipelines.shop.streaming import runner as running

NOT_USED: Any = None


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Spark's own: it raises
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


class Swallowing:
    """Runs queries by calls to Java, where an exception of a signal becomes another error."""

    def __init__(self, *_: object) -> None:
        self.stop = threading.Event()
        self.number = signal.SIGINT

    def run(self) -> None:
        try:
            os.kill(os.getpid(), self.number)
        except KeyboardInterrupt:
            self.lost = True
        assert self.stop.wait(0), "the signal was lost"


def test_ctrl_c_in_a_call_to_java_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Runner", Swallowing)
    with pytest.raises(KeyboardInterrupt):
        keep_running(NOT_USED, NOT_USED, {})


def test_sigterm_ends_it_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminated(Swallowing):
        def __init__(self, *_: object) -> None:
            super().__init__()
            self.number = signal.SIGTERM

    monkeypatch.setattr(running, "Runner", Terminated)
    keep_running(NOT_USED, NOT_USED, {})


def test_a_second_ctrl_c_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Swallowing):
        def run(self) -> None:
            super().run()
            os.kill(os.getpid(), self.number)
            pytest.fail("it went on")

    monkeypatch.setattr(running, "Runner", Slow)
    with pytest.raises(KeyboardInterrupt):
        keep_running(NOT_USED, NOT_USED, {})
