"""Transactions of foreign clients: all or nothing, and nobody reads what never happened."""

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.coordinators.raw_txn import Raw
from tests.integration.coordinators.txn_clients import CLIENTS, Confluent, Reader
from tools.kafka.broker_fixtures import TARGETS, eventually
from tools.kafka.brokers import TESTED, Broker, TraceableBroker, running
from tools.kafka.kafka_jars import tool
from tools.kafka.rawkafka import Connection, create_topic

BOTH = (0, 1)
WRITES = "pwritev,pwritev2,pwrite64"
MOST = 200
"""Transactions that a broker with a fatal write never lives to see."""


def make(cluster: Broker, topic: str, partitions: int = 2) -> None:
    with Connection(cluster.port) as connection:
        create_topic(connection, topic, partitions)


@pytest.mark.parametrize("client", CLIENTS)
def test_committed_transactions_are_read_and_aborted_ones_never(
    cluster: Broker, topic: str, client: str
) -> None:
    make(cluster, topic)
    with CLIENTS[client](cluster, topic) as producer:
        for n in range(10):
            producer.run(topic, [(p, b"%d" % n) for p in BOTH], commit=n % 3 != 1)
    kept = [b"%d" % n for n in range(10) if n % 3 != 1]
    assert Reader(cluster, topic, 2).to_the_end() == {0: kept, 1: kept}
    everything = [b"%d" % n for n in range(10)]
    raw = Reader(cluster, topic, 2, committed=False).to_the_end()
    assert raw == {0: everything, 1: everything}


@pytest.mark.parametrize("client", CLIENTS)
def test_an_open_transaction_hides_itself_and_what_came_after(
    cluster: Broker, topic: str, client: str
) -> None:
    make(cluster, topic)
    with (
        CLIENTS[client](cluster, topic + "-other") as other,
        Confluent(cluster, topic) as producer,
    ):
        other.run(topic, [(0, b"before")], commit=True)
        producer.open(topic, [(0, b"open")])
        other.run(topic, [(0, b"after"), (1, b"elsewhere")], commit=True)
        seen = Reader(cluster, topic, 2).to_the_end()
        assert seen == {0: [b"before"], 1: [b"elsewhere"]}
        producer.producer.commit_transaction(300)
    seen = Reader(cluster, topic, 2).to_the_end()
    assert seen == {0: [b"before", b"open", b"after"], 1: [b"elsewhere"]}


def test_a_producer_that_is_replaced_can_neither_write_nor_commit(
    cluster: Broker, topic: str
) -> None:
    make(cluster, topic)
    with Confluent(cluster, topic) as old:
        old.run(topic, [(0, b"first")], commit=True)
        old.open(topic, [(0, b"lost")])
        with Confluent(cluster, topic) as new:
            new.run(topic, [(0, b"second")], commit=True)
            with pytest.raises(confluent_kafka.KafkaException) as fenced:
                old.producer.commit_transaction(300)
            assert fenced.value.args[0].fatal()
    assert Reader(cluster, topic, 2).to_the_end() == {0: [b"first", b"second"], 1: []}


@pytest.mark.parametrize("target", TARGETS)
def test_a_transaction_that_takes_too_long_is_aborted(
    tmp_path: Path, topic: str, target: str
) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with running(TESTED[target](tmp_path, often)) as broker:
        make(broker, topic)
        with Confluent(broker, topic, timeout_ms=3_000) as slow:
            slow.open(topic, [(0, b"late")])
            with Raw(broker.port, topic) as raw:
                eventually(lambda: raw.describe().transaction_state == "CompleteAbort")
                stable = raw.read(topic)
                assert stable.last_stable_offset == stable.high_watermark == 2
            with pytest.raises(confluent_kafka.KafkaException):
                slow.producer.commit_transaction(300)
        with Confluent(broker, topic) as fresh:
            fresh.run(topic, [(0, b"in time")], commit=True)
        assert Reader(broker, topic, 2).to_the_end() == {0: [b"in time"], 1: []}


def test_a_partition_that_is_deleted_does_not_hold_its_transaction_up(
    cluster: Broker, topic: str
) -> None:
    make(cluster, topic)
    make(cluster, topic + "-gone", 1)
    with Confluent(cluster, topic) as producer:
        producer.open(topic, [(0, b"stays")])
        producer.producer.produce(topic + "-gone", b"goes", partition=0)
        assert producer.producer.flush(300) == 0
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics([topic + "-gone"])[topic + "-gone"].result(300)
        producer.producer.commit_transaction(300)
        with Raw(cluster.port, topic) as raw:
            raw.complete()
        producer.run(topic, [(0, b"next")], commit=True)
    assert Reader(cluster, topic, 2).to_the_end()[0] == [b"stays", b"next"]


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_sent_with_a_transaction_count_only_if_it_commits(
    cluster: Broker, topic: str, commit: bool
) -> None:
    make(cluster, topic)
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "enable.auto.commit": False}
    )
    place = confluent_kafka.TopicPartition(topic, 0)
    with Confluent(cluster, topic) as producer:
        producer.open(topic, [(1, b"made of it")])
        offsets = [confluent_kafka.TopicPartition(topic, 0, 5)]
        group = member.consumer_group_metadata()
        producer.producer.send_offsets_to_transaction(offsets, group, 300)
        if commit:
            producer.producer.commit_transaction(300)
        else:
            producer.producer.abort_transaction(300)
    (told,) = member.committed([place], 300)
    assert told.offset == (5 if commit else confluent_kafka.OFFSET_INVALID)
    member.close()


# ---- crashes ----


class Run:
    """Transactions one after the other until the broker is gone, and what became of each."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.next = 0
        self.told: dict[int, bool] = {}

    def until_it_dies(self, broker: Broker) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": self.topic,
                "log_level": 0,
                "transaction.timeout.ms": 300_000,
                "message.timeout.ms": 300_000,
            }
        )
        try:
            if not self._ended(broker, producer.init_transactions):
                return
            for number in range(self.next, self.next + MOST):
                self.next = number + 1
                producer.begin_transaction()
                for partition in BOTH:
                    producer.produce(self.topic, b"%d" % number, partition=partition)
                commit = number % 3 != 1
                end = producer.commit_transaction if commit else producer.abort_transaction
                if not self._ended(broker, end):
                    return
                self.told[number] = commit
        finally:
            producer.purge()
        raise AssertionError("nothing killed it")

    def _ended(self, broker: Broker, end: Callable[[float], object]) -> bool:
        """Whether it came to its end before the broker did, however long that takes."""
        while True:
            try:
                end(1)
            except confluent_kafka.KafkaException as failure:
                if broker.ended():
                    return False
                if not failure.args[0].retriable():
                    eventually(broker.ended)
                    return False
            else:
                return True

    def check(self, broker: Broker) -> None:
        first, second = Reader(broker, self.topic, 2).to_the_end().values()
        assert first == second, "a transaction is in one partition and not in the other"
        numbers = [int(value) for value in first]
        assert numbers == sorted(set(numbers)), "out of order, or twice"
        for number, commit in self.told.items():
            assert (number in numbers) == commit, number


@contextlib.contextmanager
def fatal_write(pid: int, number: int) -> Iterator[None]:
    """The kernel kills the process when it begins its n-th write to a log from now on."""
    inject = f"inject={WRITES}:signal=SIGKILL:when={number}"
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), "-o", "/dev/null", "-e", f"trace={WRITES}", "-e", inject],
        stderr=subprocess.PIPE,
    )
    try:
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline()
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def test_the_broker_dies_at_any_write_and_every_transaction_is_all_or_nothing(
    tmp_path: Path, topic: str
) -> None:
    """The writes of one transaction, in turn: its partitions, records, outcome, markers, end."""
    run = Run(topic)
    with running(TraceableBroker(tmp_path)) as broker:
        make(broker, topic)
        with Confluent(broker, topic):
            pass  # the topics of the coordinators are there
        for write in range(4, 9):
            with fatal_write(broker.pid, write):
                run.until_it_dies(broker)
            broker.kill()
            broker.start()
            with Confluent(broker, topic):  # whatever was open is aborted by its successor
                run.check(broker)


def test_a_broker_that_is_killed_keeps_what_was_decided_and_aborts_what_was_open(
    own_cluster: Broker, topic: str
) -> None:
    broker = own_cluster
    make(broker, topic)
    with Confluent(broker, topic) as producer:
        producer.run(topic, [(0, b"kept"), (1, b"kept")], commit=True)
        producer.run(topic, [(0, b"dropped")], commit=False)
        producer.open(topic, [(0, b"open"), (1, b"open")])
        broker.kill()
        broker.start()
        with Raw(broker.port, topic) as raw:
            eventually(lambda: raw.describe().error_code == 0)
            assert raw.describe().transaction_state == "Ongoing"
            assert raw.read(topic).last_stable_offset == 4
        with Confluent(broker, topic) as successor:
            successor.run(topic, [(1, b"new")], commit=True)
    assert Reader(broker, topic, 2).to_the_end() == {0: [b"kept"], 1: [b"kept", b"new"]}


# ---- Kafka's own tools ----


def test_the_java_producer_has_an_epoch_for_every_transaction(cluster: Broker, topic: str) -> None:
    make(cluster, topic)
    tool(
        "producer-perf-test",
        *("--topic", topic, "--num-records", "4000", "--record-size", "20"),
        *("--throughput", "2000", "--transactional-id", topic, "--transaction-duration-ms", "100"),
        *("--bootstrap-server", cluster.bootstrap),
    ).ok()
    with Raw(cluster.port, topic) as raw:
        raw.complete()
        told = raw.describe()
    assert told.producer_epoch >= 5
    held = Reader(cluster, topic, 2).to_the_end()
    assert sum(map(len, held.values())) == 4000


def test_the_java_producer_keeps_its_epoch_where_the_feature_is_lower(
    own_cluster: Broker, topic: str
) -> None:
    make(own_cluster, topic)
    to = ["--bootstrap-server", own_cluster.bootstrap]
    tool("features", *to, "downgrade", "--feature", "transaction.version=1").ok()
    tool(
        "producer-perf-test",
        *("--topic", topic, "--num-records", "1000", "--record-size", "20"),
        *("--throughput", "2000", "--transactional-id", topic, "--transaction-duration-ms", "100"),
        *to,
    ).ok()
    with Raw(own_cluster.port, topic) as raw:
        raw.complete()
        assert raw.describe().producer_epoch == 0
    held = Reader(own_cluster, topic, 2).to_the_end()
    assert sum(map(len, held.values())) == 1000


def test_kafkas_tools_find_describe_and_end_transactions(cluster: Broker, topic: str) -> None:
    make(cluster, topic, 1)
    to = ["--bootstrap-server", cluster.bootstrap]
    with Raw(cluster.port, topic) as raw:
        pid, epoch = raw.begin()
        assert raw.write(topic, (pid, epoch), 0) == 0
        listed = tool("transactions", *to, "list").ok()
        assert any(topic in line and "Ongoing" in line for line in listed.splitlines())
        matched = tool("transactions", *to, "list", "--transactional-id-pattern", f"{topic}.*").ok()
        assert [line.split()[0] for line in matched.splitlines()[1:]] == [topic]
        described = tool("transactions", *to, "describe", "--transactional-id", topic).ok()
        assert f"{topic}-0" in described
        where = ["--topic", topic, "--partition", "0"]
        producers = tool("transactions", *to, "describe-producers", *where).ok()
        assert str(pid) in producers
        tool("transactions", *to, "abort", *where, "--start-offset", "0").ok()
        part = raw.read(topic)
        assert part.last_stable_offset == part.high_watermark == 2


def test_kafkas_dump_tool_reads_our_transaction_log(own_cluster: Broker, topic: str) -> None:
    broker = own_cluster
    make(broker, topic)
    with Confluent(broker, topic) as producer:
        producer.run(topic, [(0, b"a"), (1, b"b")], commit=True)
    broker.stop()
    logs = sorted(broker.log_dir.glob("__transaction_state-*/*.log"))
    filled = [str(path) for path in logs if path.stat().st_size]
    dumped = tool("dump-log", "--transaction-log-decoder", "--files", ",".join(filled)).ok()
    assert f'"transactionalId":"{topic}"' in dumped
    assert re.findall(r'"transactionStatus":(\d)', dumped) == ["0", "1", "2", "4"]
