"""The examples run, and the three promises are counted: what a crash loses, what it doubles.

A crash is no accident here: a driver runs the example's own file with a `work` that kills the
process (kill -9) in the middle of a poll's records. Then the example is started again as it is.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from scriba.client import NewTopic, SyncAdmin, SyncConsumer, SyncProducer
from tests.typed import present
from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PATIENCE = 300
RECORDS = 100
CRASH_AT = 35
"""In the middle of the fourth poll, since each gives ten."""

DRIVER = """
import os, runpy, signal, sys
path, crash_at = sys.argv[1], int(sys.argv[2])
sys.argv = [path, *sys.argv[3:]]
example = runpy.run_path(path)
calls = 0
def work(value):
    global calls
    calls += 1
    if calls == crash_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return value.upper()
example["main"].__globals__["work"] = work
import asyncio
asyncio.run(example["main"](*sys.argv[1:]))
"""


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


class Fate(NamedTuple):
    lost: int
    doubled: int


def create(cluster: Broker, *topics: str) -> None:
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1) for topic in topics])


def send(cluster: Broker, topic: str, values: Iterable[bytes]) -> None:
    with SyncProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for value in values:
            producer.send_nowait(topic, value)


def fill(cluster: Broker, source: str, target: str) -> None:
    create(cluster, source, target)
    send(cluster, source, [*(b"value %d" % n for n in range(RECORDS)), b"last"])


def arrived(cluster: Broker, target: str) -> list[bytes]:
    """What a reader of the target sees, up to the last value."""
    values: list[bytes] = []
    with SyncConsumer(
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign([(target, 0)])
        while b"LAST" not in values:
            values += [present(record.value) for record in consumer.poll(1000)]
    return values


def counted(values: list[bytes], records: int = RECORDS) -> Fate:
    counts = Counter(values)
    wanted = [b"VALUE %d" % n for n in range(records)]
    lost = sum(not counts[value] for value in wanted)
    return Fate(lost, sum(counts[value] - 1 for value in wanted if counts[value]))


@pytest.mark.parametrize(
    ("example", "fate"),
    [
        ("at_most_once", Fate(lost=6, doubled=0)),
        ("at_least_once", Fate(lost=0, doubled=4)),
        ("exactly_once", Fate(lost=0, doubled=0)),
    ],
)
def test_what_a_crash_loses_and_doubles(
    cluster: Broker, topic: str, example: str, fate: Fate
) -> None:
    """The crash comes with the fifth record of ten. At most once: that one and the five behind it
    were committed. At least once: the four before it were not."""
    source, target = f"{topic}-{example}-in", f"{topic}-{example}-out"
    fill(cluster, source, target)
    script = str(EXAMPLES / f"{example}.py")
    words = [cluster.bootstrap, source, target]
    with started("-c", DRIVER, script, str(CRASH_AT), *words) as victim:
        assert victim.wait(PATIENCE) == -signal.SIGKILL
    with started(script, *words):
        assert counted(arrived(cluster, target)) == fate


def test_exactly_once_holds_though_broker_and_program_die_in_turn(
    own_cluster: Broker, topic: str
) -> None:
    """Each time it has done some more, one of the two is killed and started again."""
    source, target = f"{topic}-in", f"{topic}-out"
    create(own_cluster, source, target)
    written = 0

    def write_more() -> None:
        nonlocal written
        send(own_cluster, source, (b"value %d" % n for n in range(written, written + 3000)))
        written += 3000

    words = [str(EXAMPLES / "exactly_once.py"), own_cluster.bootstrap, source, target]

    def done() -> int:
        with SyncAdmin(bootstrap_servers=own_cluster.bootstrap) as admin:
            offsets = admin.list_group_offsets("exactly-once")
        return sum(place.offset for place in offsets.values())

    def does_more() -> None:
        """There is always something left to do, however fast it is."""
        before = done()
        write_more()
        eventually(lambda: done() > before)

    for _ in range(2):
        with started(*words) as program:
            does_more()
            own_cluster.kill()
            own_cluster.start()
            does_more()
            assert program.poll() is None, "it goes on, whatever the broker does"
    send(own_cluster, source, [b"last"])
    with started(*words):
        assert counted(arrived(own_cluster, target), written) == Fate(0, 0)


def test_transform_in_ten_lines(cluster: Broker, topic: str) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    fill(cluster, source, target)
    with started(str(EXAMPLES / "transform.py"), cluster.bootstrap, source, target):
        assert counted(arrived(cluster, target)) == Fate(0, 0)
    body = (EXAMPLES / "transform.py").read_text().partition("async def main")[2]
    lines = body.partition("\n\n\n")[0].splitlines()[1:]
    assert len(lines) == 10


def test_orders_reach_two_services_in_order_though_one_process_dies(cluster: Broker) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "orders" / "demo.py"), cluster.bootstrap],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ,
    )
    said = done.stdout.decode().splitlines()
    assert done.returncode == 0, done.stderr.decode()
    assert said[-1].startswith("all seen by both services, in order; idle: ['notify-")
    assert sum("was killed after" in line for line in said) == 1


def test_what_transform_could_not_write_is_not_committed(cluster: Broker, topic: str) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(source, 1), NewTopic(target, 1)])
        with SyncProducer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send(source, None)  # has no upper case
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "transform.py"), cluster.bootstrap, source, target],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert b"AttributeError" in done.stderr
        assert (source, 0) not in admin.list_group_offsets(f"transform-{source}")
