"""The coordinators' topics on disk, read by Kafka's own decoders, and its tool for groups."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tools.kafka.broker_fixtures import TARGETS
from tools.kafka.brokers import TESTED, Broker, running
from tools.kafka.kafka_jars import Tools

TOPIC = "read"
SETTINGS = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}


def _consume(broker: Broker, group: str, **settings: Any) -> None:
    extra = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        | extra
    )
    consumer.subscribe([TOPIC])
    for _ in range(10):
        message = consumer.poll(300)
        assert message is not None
        assert message.error() is None
    offsets = [TopicPartition(TOPIC, 0, 7, metadata=f"kept by {group}")]
    consumer.commit(offsets=offsets, asynchronous=False)
    if group == "in-a-transaction":
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
        producer.init_transactions(300)
        producer.begin_transaction()
        producer.produce(TOPIC, b"more")
        moved = [TopicPartition(TOPIC, 0, 9)]
        producer.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(300)
    consumer.close()


@pytest.fixture(scope="module", params=TARGETS)
def used(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker whose groups of both protocols have met, committed and left."""
    place = tmp_path_factory.mktemp(f"{request.param}-coordinators")
    with running(TESTED[request.param](place, settings=SETTINGS)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for n in range(10):
            producer.produce(TOPIC, b"%d" % n)
        producer.flush()
        _consume(broker, "classic")
        _consume(broker, "consumer", group_protocol="consumer")
        _consume(broker, "in-a-transaction")
        yield broker


def _dump(tools: Tools, broker: Broker, topic: str, decoder: str) -> str:
    logs = sorted(path for path in broker.log_dir.glob(f"{topic}-*/*.log") if path.stat().st_size)
    assert logs
    return tools.run("dump-log", decoder, "--files", ",".join(map(str, logs))).ok()


def _records(dumped: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Keys and values as the decoder prints them."""
    found = []
    for line in re.findall(r"^\| offset: \d+ .*? key: (\{.*)$", dumped, re.MULTILINE):
        key, _, value = line.partition(" payload: ")
        found.append((json.loads(key), None if value == "<DELETE>" else json.loads(value)))
    return found


def test_offsets_and_groups_are_read_by_kafkas_decoder(used: Broker, tools: Tools) -> None:
    dumped = _dump(tools, used, "__consumer_offsets", "--offsets-decoder")
    assert "isvalid: false" not in dumped
    records = _records(dumped)
    commits = {
        key["data"]["group"]: (
            int(value["version"]),
            value["data"]["offset"],
            value["data"]["metadata"].rstrip("\0"),  # librdkafka's binding counts it in
        )
        for key, value in records
        if key["type"] == "1" and value is not None and value["data"]["metadata"]
    }
    assert commits == {
        group: (4, 7, f"kept by {group}") for group in ("classic", "consumer", "in-a-transaction")
    }
    kinds = {int(key["type"]) for key, _ in records}
    assert {1, 2, 3, 5, 6, 7, 8} <= kinds
    generations = [
        value["data"]["generation"]
        for key, value in records
        if key["type"] == "2" and value is not None and key["data"]["group"] == "classic"
    ]
    assert generations[-1] == 2, "the last one left"
    assert re.search(r"isTransactional: true isControl: false", dumped)
    assert "endTxnMarker: COMMIT" in dumped


def test_transactions_are_read_by_kafkas_decoder(used: Broker, tools: Tools) -> None:
    dumped = _dump(tools, used, "__transaction_state", "--transaction-log-decoder")
    assert "isvalid: false" not in dumped
    states = [
        (int(value["version"]), value["data"]["transactionStatus"])
        for key, value in _records(dumped)
        if value is not None and key["data"]["transactionalId"] == "tx"
    ]
    assert {version for version, _ in states} == {1}
    statuses = [status for _, status in states]
    assert statuses[0] == 0
    assert statuses[-1] == 4, "CompleteCommit"


def test_kafkas_tool_lists_and_describes_groups(used: Broker, tools: Tools) -> None:
    listed = tools.run("consumer-groups", "--bootstrap-server", used.bootstrap, "--list").ok()
    assert sorted(listed.split()) == ["classic", "consumer", "in-a-transaction"]
    described = tools.run(
        "consumer-groups",
        "--bootstrap-server",
        used.bootstrap,
        "--describe",
        "--group",
        "in-a-transaction",
    ).ok()
    (line,) = re.findall(rf"^in-a-transaction\s+{TOPIC}.*$", described, re.MULTILINE)
    assert line.split()[3:6] == ["9", "12", "3"], "offset, end, lag: a record and its marker"
