"""Consumers of others that say in which rack they are: every record comes from a replica there."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from scriba.client import SyncConsumer
from scriba.settings.keys.node import RACK_AWARE_SELECTOR
from tools.kafka.broker_fixtures import SWIFT, eventually
from tools.kafka.brokers import HOST
from tools.kafka.kafka_jars import Tools, command
from tools.kafka.scriba_nodes import ScribaNodes, running_nodes

RECORDS = 200
OUT = "kafka_server_brokertopicmetrics_bytesout_total "
SETTINGS = {
    **SWIFT,
    "broker.rack": "rack-{node}",
    "replica.selector.class": RACK_AWARE_SELECTOR,
    "scriba.metrics.listener": f"http://{HOST}:{{metrics}}",
}

Reader = Callable[[ScribaNodes, str, str], int]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScribaNodes]:
    with running_nodes(tmp_path_factory.mktemp("racks"), SETTINGS) as made:
        yield made


def sent(nodes: ScribaNodes) -> dict[int, float]:
    """Bytes of records that each node has sent to consumers."""
    told = {}
    for number, node in nodes.nodes.items():
        address = f"http://{HOST}:{node.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        told[number] = sum(float(line.split()[-1]) for line in lines if line.startswith(OUT))
    return told


def by_confluent(nodes: ScribaNodes, topic: str, rack: str) -> int:
    consumer = Consumer(
        {"bootstrap.servers": nodes.bootstrap, "client.rack": rack, "group.id": topic}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    count = 0

    def all_read() -> bool:
        nonlocal count
        found = consumer.consume(RECORDS, 1)
        assert all(record.error() is None for record in found)
        count += len(found)
        return count >= RECORDS

    eventually(all_read)
    consumer.close()
    return count


def by_java(nodes: ScribaNodes, topic: str, rack: str) -> int:
    words = command(
        "console-consumer", "--bootstrap-server", nodes.bootstrap, "--topic", topic,
        "--partition", "0", "--offset", "earliest", "--max-messages", str(RECORDS),
        "--command-property", f"client.rack={rack}",
    )  # fmt: skip
    told = subprocess.run(words, capture_output=True, timeout=300, check=True)
    return len(told.stdout.splitlines())


def by_scriba(nodes: ScribaNodes, topic: str, rack: str) -> int:
    with SyncConsumer(
        bootstrap_servers=nodes.bootstrap, client_rack=rack, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([(topic, 0)])
        count = 0

        def all_read() -> bool:
            nonlocal count
            count += len(consumer.poll(timeout_ms=1000))
            return count >= RECORDS

        eventually(all_read)
    return count


@pytest.mark.parametrize("reader", [by_confluent, by_java, by_scriba])
def test_every_record_comes_from_the_rack_of_the_consumer(
    nodes: ScribaNodes, tools: Tools, topic: str, reader: Reader
) -> None:
    words = ["--create", "--topic", topic, "--replica-assignment", "1:2:3"]
    tools.run("topics", "--bootstrap-server", nodes.bootstrap, *words).ok()
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(300) == 0
    for rack, near in (("rack-3", 3), ("rack-2", 2), ("rack-1", 1), ("elsewhere", 1)):
        before = sent(nodes)
        assert reader(nodes, topic, rack) == RECORDS
        after = sent(nodes)
        grown = {node: after[node] - before[node] for node in after if after[node] > before[node]}
        assert list(grown) == [near], (rack, grown)
