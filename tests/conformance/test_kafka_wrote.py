"""A partition directory written by Apache Kafka is served as it is.

The directory comes from `make_kafka_wrote.py`: every codec, idempotent and transactional records,
committed and aborted, in several segments. The marker of a clean shutdown says whether the files
are taken at their word or recovered: indexes and producer state must come out the same.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kafka_jars import tool
from rawkafka import (
    EARLIEST,
    LATEST,
    Connection,
    batch,
    create_topic,
    list_offset,
    produce,
    produced,
)

WROTE = Path(__file__).resolve().parent / "data" / "kafka-wrote"
TOPIC = "wrote"
T0 = 1_700_000_000_000
HOUR = 3_600_001
ABORTED = [("107", "113"), ("121", "127")]


@pytest.fixture(params=["after a clean shutdown", "after a crash", "without indexes"])
def serving(request: pytest.FixtureRequest, own_cluster: Broker) -> Broker:
    """A broker whose partition's files have been replaced by those that Kafka wrote."""
    with Connection(own_cluster.port) as connection:
        create_topic(connection, TOPIC, retention_ms="-1", index_interval_bytes="200")
    own_cluster.stop()
    home = own_cluster.log_dir / f"{TOPIC}-0"
    identity = (home / "partition.metadata").read_bytes()
    shutil.rmtree(home)
    shutil.copytree(WROTE / f"{TOPIC}-0", home)
    (home / "partition.metadata").write_bytes(identity)
    if request.param != "after a clean shutdown":
        (own_cluster.log_dir / ".kafka_cleanshutdown").unlink()
    if request.param == "without indexes":
        for index in home.glob("*index"):
            index.unlink()
        for snapshot in home.glob("*.snapshot"):
            snapshot.unlink()
    own_cluster.start()
    return own_cluster


def read(broker: Broker, isolation: str) -> list[list[Any]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: list[list[Any]] = []
    while True:
        message = consumer.poll(30)
        assert message is not None, "the end was never reached"
        if message.error() is not None:
            consumer.close()
            return found
        key, value, headers = message.key(), message.value(), message.headers()
        found.append(
            [
                message.offset(),
                message.timestamp()[1],
                None if key is None else key.decode(),
                None if value is None else value.decode(),
                [[k, None if v is None else v.decode()] for k, v in headers or []],
            ]
        )


def test_it_is_served_indexed_and_carried_on(serving: Broker) -> None:
    expected = json.loads((WROTE / "expected.json").read_text())
    for isolation in ("read_uncommitted", "read_committed"):
        assert read(serving, isolation) == expected[isolation]

    with Connection(serving.port) as connection:
        assert list_offset(connection, TOPIC, 0, EARLIEST).offset == 0
        end = list_offset(connection, TOPIC, 0, LATEST).offset
        assert end == 128
        for hour in range(5):
            found = list_offset(connection, TOPIC, 0, T0 + hour * HOUR + 11)
            assert (found.offset, found.timestamp) == (hour * 20 + 11, T0 + hour * HOUR + 11)

        added = produced(connection.call(produce(batch([b"next"]).encode(), TOPIC), 9))
        assert (added.error_code, added.base_offset) == (0, end)

    serving.stop()
    indexes = sorted((serving.log_dir / f"{TOPIC}-0").glob("*[0-9].*index"))
    check = tool("dump-log", "--index-sanity-check", "--files", ",".join(map(str, indexes))).ok()
    for index in indexes:
        if index.suffix != ".txnindex":
            assert re.search(rf"{index} (passed sanity check|is empty)\.", check)
    assert re.findall(r"firstOffset: (\d+) lastOffset: (\d+)", check) == ABORTED
