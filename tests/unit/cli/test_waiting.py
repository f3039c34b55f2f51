"""When a command says what it waits for."""

from scriba.cli.records.waiting import AGAIN_SECONDS, WaitReporter
from scriba.client import BrokerError, NetworkError
from scriba.errors import ErrorCode

REFUSED = NetworkError("cannot connect to 127.0.0.1:9092: Connection refused")


def test_a_trouble_that_passes_is_not_worth_a_word() -> None:
    watch = WaitReporter(patience=1.0)
    assert watch.look(0.0, REFUSED) is None
    assert watch.look(0.9, REFUSED) is None
    assert watch.look(0.95, None) is None
    assert watch.look(1.5, REFUSED) is None, "it is another one"


def test_a_trouble_that_lasts_is_told_once_then_now_and_then_and_at_its_end() -> None:
    watch = WaitReporter(patience=1.0)
    told = [watch.look(n / 10, REFUSED) for n in range(700)]
    said = [(n / 10, line) for n, line in enumerate(told) if line]
    assert [at for at, _ in said] == [1.0, 1.0 + AGAIN_SECONDS, 1.0 + 2 * AGAIN_SECONDS]
    assert said[0][1].startswith("waiting: cannot connect to 127.0.0.1:9092: Connection refused")
    assert said[1][1].startswith("still waiting, for 31 s: ")
    assert watch.look(75.0, None) == "it goes on, after 75 s"
    assert watch.look(75.1, None) is None


def test_another_trouble_is_told_at_once() -> None:
    watch = WaitReporter(patience=0)
    assert watch.look(0.0, REFUSED) is not None
    full = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the device is full", about="t-0")
    told = watch.look(0.1, full)
    assert told is not None
    assert "t-0: KAFKA_STORAGE_ERROR: the device is full" in told
