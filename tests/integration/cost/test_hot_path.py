"""What a warm Produce and a warm Fetch cost, counted instead of timed.

A clock on a shared machine tells little; the number of system calls and of Python calls that one
request makes tells at once when somebody has put work on the hot path. The limits are what the
code needs now: lower them when it needs less, and raise them only with a reason.
"""

import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cost.counting import REQUESTS, Counting, Request
from tools.kafka.brokers import ScribaBroker, TraceableBroker, running
from tools.kafka.rawkafka import (
    Connection,
    batch,
    create_topic,
    encode,
    fetch,
    produce,
    produce_wide,
)

PRODUCE_SYSTEM_CALLS, PRODUCE_PYTHON_CALLS, PRODUCE_C_CALLS = 4, 14, 30
"""Wait, receive, write to the log, send. Two of the C calls make sure that nobody keeps the frame:
it is released, and before the buffer is used again its references are counted. The watermarks for
which nobody waits move without a call."""

FETCH_SYSTEM_CALLS, FETCH_PYTHON_CALLS, FETCH_C_CALLS = 6, 32, 34
"""Wait, receive, read the header of a batch and of the one behind it, which tells that its offsets
are right, then the records, send. The way of any number of partitions takes three calls in Python
more than one for a single partition did, and no more time."""

WIDE, WIDE_PYTHON_CALLS, WIDE_C_CALLS = 8, 34, 91
"""Partitions of a Produce over several, and its calls: three in Python for each of them, down to
the file's. What is told of all partitions is gathered in the same loop and packed by one call."""

LARGE_PYTHON_CALLS, LARGE_C_CALLS = 82, 155
"""The same with 16 KB in each batch: it comes into a buffer of its own, in two reads, and each
batch is entered in an index, which is three calls in Python more."""

BACKGROUND = 400
"""System calls in the whole run that belong to timers, and to threads of a busy machine, not to
requests: one more with each request is seen."""


class Client:
    """Sends a prepared frame and takes the answer, so often that the broker is warm."""

    def __init__(self, port: int) -> None:
        self.connection, self.bulk = Connection(port), Connection(port)
        topic = create_topic(self.connection, "hot")
        data = batch([b"x" * 1000] * 16).encode()
        self.frames = {
            "produce": encode(produce(data, topic_id=topic), 13),
            "fetch": encode(fetch(0, topic_id=topic, max_bytes=16 << 10), 17),
        }
        topic = create_topic(self.connection, "wide", WIDE)
        small = batch([b"x" * 10]).encode()
        self.frames["wide produce"] = encode(produce_wide(small, topic, range(WIDE), acks=1), 13)
        self.frames["large produce"] = encode(produce_wide(data, topic, range(WIDE), acks=1), 13)
        for name in self.frames:
            self.run(name, 300)

    def run(self, name: str, count: int = REQUESTS) -> None:
        # Whoever sends much at once is read after others, for a while.
        connection = self.bulk if name == "large produce" else self.connection
        for _ in range(count):
            connection.send(self.frames[name])
            assert len(connection.receive()) > 40

    def close(self) -> None:
        self.connection.close()
        self.bulk.close()


# ---- system calls ----


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScribaBroker]:
    broker = TraceableBroker(tmp_path_factory.mktemp("traced"))
    with running(broker):
        yield broker


@pytest.fixture(scope="module")
def client(process: ScribaBroker) -> Iterator[Client]:
    made = Client(process.port)
    yield made
    made.close()


def system_calls(pid: int, summary: Path, work: Request) -> Counter[str]:
    tracer = subprocess.Popen(
        ["strace", "-f", "-c", "-U", "calls,name", "-o", str(summary), "-p", str(pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    attached = tracer.stderr.readline()
    assert "attached" in attached, f"strace may not watch a process here: {attached}"
    work()
    tracer.send_signal(signal.SIGINT)
    tracer.communicate()
    rows = re.findall(r"^\s*(\d+)\s+(\w+)\s*$", summary.read_text(), re.MULTILINE)
    return Counter({name: int(calls) for calls, name in rows if name != "total"})


@pytest.mark.parametrize(
    ("name", "limit"), [("produce", PRODUCE_SYSTEM_CALLS), ("fetch", FETCH_SYSTEM_CALLS)]
)
def test_a_warm_request_makes_few_system_calls(
    process: ScribaBroker, client: Client, tmp_path: Path, name: str, limit: int
) -> None:
    calls = system_calls(process.pid, tmp_path / "strace", lambda: client.run(name))
    assert calls.total() > REQUESTS, "the trace saw nothing"
    # On a slow machine the watch over the loop's lag sleeps, and the loop beats, more often.
    beats = 4 * calls["clock_nanosleep"]
    assert calls.total() - beats <= limit * REQUESTS + BACKGROUND, calls


# ---- Python calls ----


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    node = Counting(tmp_path_factory.mktemp("counted"))
    yield node
    node.stop()


@pytest.fixture(scope="module")
def counted_client(counting: Counting) -> Iterator[Client]:
    made = Client(counting.port)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "python_limit", "c_limit"),
    [
        ("produce", PRODUCE_PYTHON_CALLS, PRODUCE_C_CALLS),
        ("wide produce", WIDE_PYTHON_CALLS, WIDE_C_CALLS),
        ("large produce", LARGE_PYTHON_CALLS, LARGE_C_CALLS),
        ("fetch", FETCH_PYTHON_CALLS, FETCH_C_CALLS),
    ],
)
def test_a_warm_request_makes_few_calls(
    counting: Counting, counted_client: Client, name: str, python_limit: int, c_limit: int
) -> None:
    calls = counting.count(lambda: counted_client.run(name, 1))
    assert 1 < calls["call"] <= python_limit, calls
    assert 1 < calls["c_call"] <= c_limit, calls
