"""A Connect worker: a group of another protocol type, three compacted topics, a file in and out.

The worker keeps settings, offsets and states of its connectors in topics of the broker; the source
writes in transactions, the sink's tasks are consumers of a group.
"""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import PATIENCE, Broker, free_port
from tools.kafka.kafka_jars import STREAMS, TOOL_JVM, Tools, classpath, logging_option

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
FILE = "org.apache.kafka.connect.file.FileStream"


class Connect:
    """A worker by its web interface."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def call(self, path: str, method: str = "GET", body: Any = None) -> Any:
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or "null")

    def done(self, path: str, method: str = "GET", body: Any = None) -> bool:
        """Whether it was done: a worker refuses while its group shares out its work."""
        try:
            self.call(path, method, body)
        except OSError:
            return False
        return True

    def ready(self) -> bool:
        try:
            return bool(self.call("/health")["status"] == "healthy")
        except OSError:
            return False

    def put(self, name: str, **settings: str) -> None:
        body = {key.replace("_", "."): value for key, value in settings.items()}
        path = f"/connectors/{name}/config"
        eventually(lambda: self.done(path, "PUT", {**body, "tasks.max": "1"}))

    def delete_all(self) -> bool:
        """Asks for the end of each connector that there is; whether there was none."""
        names = self.call("/connectors")
        for name in names:
            self.done(f"/connectors/{name}", "DELETE")
        return not names

    def offset(self, name: str) -> int:
        """How far a sink has come in its only partition."""
        try:
            told = self.call(f"/connectors/{name}/offsets")["offsets"]
        except HTTPError:
            return 0
        return sum(each["offset"]["kafka_offset"] for each in told)

    def running(self, name: str) -> bool:
        try:
            tasks = self.call(f"/connectors/{name}/status")["tasks"]
        except HTTPError:
            return False
        assert "FAILED" not in {task["state"] for task in tasks}, tasks
        return [task["state"] for task in tasks] == ["RUNNING"]


@contextmanager
def worker(cluster: Broker, name: str, folder: Path) -> Iterator[Connect]:
    port = free_port()
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": name,
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "exactly.once.source.support": "enabled",
        "offset.flush.interval.ms": "500",
        "scheduled.rebalance.max.delay.ms": "0",
        "plugin.discovery": "service_load",
        "metadata.max.age.ms": "1000",
        **{f"{who}session.timeout.ms": "10000" for who in ("", "consumer.")},
        **{f"{who}heartbeat.interval.ms": "200" for who in ("", "consumer.")},
        **{f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")},
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
        "offset.storage.partitions": "2",
        "status.storage.partitions": "2",
    }
    properties = folder / "worker.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    logging = logging_option("tools-log4j2.properties")
    process = subprocess.Popen(
        ["java", *TOOL_JVM, logging, "-cp", classpath(STREAMS), WORKER, str(properties)],
        stdout=(folder / "worker.out").open("a"),
        stderr=subprocess.STDOUT,
    )
    try:
        connect = Connect(port)
        eventually(lambda: process.poll() is not None or connect.ready())
        assert process.poll() is None, (folder / "worker.out").read_text()[-5000:]
        yield connect
    finally:
        process.kill()
        process.wait()


def committed(cluster: Broker, topic: str) -> list[str]:
    """Partition 0 as one sees it who reads only what was committed."""
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none", **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[str] = []
    while True:
        message = consumer.poll(300)
        assert message is not None
        if message.error() is not None:
            consumer.close()
            return found
        value: Any = message.value()
        found.append(value.decode())


def test_a_file_is_carried_through_a_topic_into_another_and_goes_on_after_a_crash(
    swift: Broker, tools: Tools, topic: str, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {n}" for n in range(300)]
    source.write_text("".join(line + "\n" for line in lines[:200]))

    def carried() -> list[str]:
        """The lines that have arrived, in their order; the sink may repeat some."""
        return list(dict.fromkeys(sink.read_text().split("\n")[:-1])) if sink.exists() else []

    with worker(swift, topic, tmp_path) as connect:
        connect.put(
            "in", connector_class=f"{FILE}SourceConnector", file=str(source), topic=f"{topic}-data"
        )
        connect.put(
            "out", connector_class=f"{FILE}SinkConnector", file=str(sink), topics=f"{topic}-data"
        )
        eventually(lambda: len(carried()) >= 200)
        eventually(lambda: connect.running("in") and connect.running("out"))
        assert carried() == lines[:200]
        eventually(lambda: connect.offset("out") >= 200)
        assert sorted(connect.call("/connectors")) == ["in", "out"]

        to = ["--bootstrap-server", swift.bootstrap]
        described = ["--describe", "--group", "connect-out", "--members"]
        members = tools.run("consumer-groups", *to, *described).ok()
        assert "connector-consumer-out-0" in members
    with source.open("a") as file:
        file.write("".join(line + "\n" for line in lines[200:]))
    with worker(swift, topic, tmp_path) as connect:
        eventually(lambda: len(carried()) >= 300)
        assert carried() == lines
        eventually(connect.delete_all)
    assert committed(swift, f"{topic}-data") == lines, "the source repeats nothing"
