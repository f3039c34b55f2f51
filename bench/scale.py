"""The rows about many partitions, and about the start of a command: nodes of their own.

One run goes through the life of a node: a thousand topics one by one, some ten thousand partitions
in one request, a metadata answer that lists them all, idle time, a clean stop and a restart.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
)

from bench.rows import Bench, Figures, Metric, Row, acknowledge_one
from tools.kafka import kafka_jars
from tools.kafka.brokers import Broker, KafkaBroker
from tools.kafka.rawkafka import Closed, Connection, encode

TOPICS = 1000
WIDE_TOPICS, WIDE = 10, 999
"""A request may make at most ten thousand metadata records, in Kafka and here."""

CONNECTIONS = 5000
IDLE_SECONDS = 15.0
WAIT_SECONDS = 300.0


def create(connection: Connection, topics: dict[str, int], replicas: int = 1) -> None:
    """Topics with their numbers of partitions, in one request."""
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=replicas
            )
            for name, partitions in topics.items()
        ],
        timeout_ms=int(WAIT_SECONDS * 1000),
    )
    for topic in connection.call(request, 7).topics:
        if topic.error_code:
            raise ValueError(f"{topic.name}: error {topic.error_code} {topic.error_message}")


def led(connection: Connection) -> int:
    """How many partitions have a leader, by an answer that lists them all."""
    answer = connection.call(MetadataRequest(topics=None), 9)
    return sum(p.leader_id >= 0 and not p.error_code for t in answer.topics for p in t.partitions)


def await_led(node: Broker, wanted: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            with Connection(node.port, timeout=60) as connection:
                while led(connection) < wanted:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{node.name}: not every partition has a leader")
                    time.sleep(0.05)
                return
        except (OSError, Closed):
            if node.ended() or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def fresh(bench: Bench) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        node = type(bench.broker)(Path(folder))
        try:
            node.start()
            yield node
        finally:
            node.kill()


def open_files(node: Broker) -> int:
    return sum(1 for _ in Path(f"/proc/{node.pid}/fd").iterdir())


def many_partitions(bench: Bench) -> Figures:
    topics, wide = bench.amount(TOPICS), bench.amount(WIDE)
    figures: dict[str, float] = {}
    with fresh(bench) as node:
        with Connection(node.port, timeout=WAIT_SECONDS) as connection:
            before = node.cpu_seconds()
            began = time.monotonic()
            for n in range(topics):
                create(connection, {f"one-{n}": 1})
            figures["one"] = (time.monotonic() - began) / topics * 1000
            figures["one_cpu"] = (node.cpu_seconds() - before) / topics * 1000
            began = time.monotonic()
            create(connection, {f"wide-{n}": wide for n in range(WIDE_TOPICS)})
            await_led(node, topics + WIDE_TOPICS * wide)
            figures["wide"] = time.monotonic() - began
            began = time.monotonic()
            connection.send(encode(MetadataRequest(topics=None), 9))
            connection.receive()
            figures["metadata"] = (time.monotonic() - began) * 1000
        time.sleep(3)
        before = node.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        figures["idle"] = (node.cpu_seconds() - before) / IDLE_SECONDS * 100
        figures["memory"] = node.resident_bytes() / 1e6
        figures["files"] = open_files(node)
        began = time.monotonic()
        node.stop(WAIT_SECONDS)
        figures["stop"] = time.monotonic() - began
        began = time.monotonic()
        node.launch()
        await_led(node, topics + WIDE_TOPICS * wide)
        acknowledge_one(node, "wide-0")
        figures["restart"] = time.monotonic() - began
        node.stop(WAIT_SECONDS)
    return figures


def idle_connections(bench: Bench) -> Figures:
    """Clients that asked once for the versions of the APIs and then say nothing."""
    count = bench.amount(CONNECTIONS)
    asked = encode(ApiVersionsRequest(), 0)
    with fresh(bench) as node, contextlib.ExitStack() as opened:
        acknowledge_one(node, "first")
        memory, before = node.resident_bytes(), node.cpu_seconds()
        for _ in range(count):
            connection = opened.enter_context(Connection(node.port, timeout=60))
            connection.send(asked)
            connection.receive()
        cpu = node.cpu_seconds() - before
        time.sleep(1)
        grown = node.resident_bytes() - memory
        before = node.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        idle = node.cpu_seconds() - before
    return {
        "open": cpu / count * 1e6,
        "memory": grown / count / 1000,
        "idle": idle / IDLE_SECONDS * 100,
    }


def command_start(bench: Bench) -> Figures:
    """The list of topics, from the start of the command to its end."""
    with fresh(bench) as node:
        acknowledge_one(node, "first")
        if isinstance(node, KafkaBroker):
            command = kafka_jars.command("topics", "--bootstrap-server", node.bootstrap, "--list")
        else:
            command = [sys.executable, "-m", "scriba", "topic", "list"]
            command += ["--bootstrap", node.bootstrap]
        times = []
        for _ in range(5):
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times.append(time.monotonic() - began)
            assert "first" in done.stdout, done.stdout
        node.stop()
    return {"seconds": sorted(times)[len(times) // 2]}


SCALE = (
    Row(
        "partitions",
        "1,000 topics one by one, 9,990 partitions in one request",
        (
            Metric("one", "ms/topic"),
            Metric("one_cpu", "CPU ms/topic"),
            Metric("wide", "s until all have leaders", 1.5),
            Metric("metadata", "ms for an answer with all"),
            Metric("idle", "% CPU idle"),
            Metric("memory", "MB idle"),
            Metric("files", "open files"),
            Metric("stop", "s to stop"),
            Metric("restart", "s to restart"),
        ),
        many_partitions,
        warms=False,
        once=True,
    ),
    Row(
        "connections",
        "5,000 connections that say nothing",
        (
            Metric("open", "CPU us to open one"),
            Metric("memory", "KB each"),
            Metric("idle", "% CPU for all"),
        ),
        idle_connections,
        warms=False,
        once=True,
    ),
    Row("command", "a command that lists topics", (Metric("seconds", "s"),), command_start, False),
)
