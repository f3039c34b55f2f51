"""A partition directory written by Apache Kafka is served as it is.

The directory comes from `make_kafka_wrote.py`: every codec, idempotent and transactional records,
committed and aborted, in several segments. The marker of a clean shutdown says whether the files
are taken at their word or recovered: indexes and producer state must come out the same.
"""

import json
import re
import shutil

import pytest

from tests.conformance.files.make_kafka_wrote import SEGMENT_MS, SETTINGS, T0, TARGET, TOPIC, seen
from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import (
    EARLIEST,
    LATEST,
    Connection,
    batch,
    create_topic,
    list_offset,
    produce,
    produced,
)

ABORTED = [("107", "113"), ("121", "127")]


@pytest.fixture(params=["after a clean shutdown", "after a crash", "without indexes"])
def serving(request: pytest.FixtureRequest, own_cluster: Broker) -> Broker:
    """A broker whose partition's files have been replaced by those that Kafka wrote."""
    with Connection(own_cluster.port) as connection:
        create_topic(connection, TOPIC, 1, **SETTINGS)
    own_cluster.stop()
    home = own_cluster.log_dir / f"{TOPIC}-0"
    identity = (home / "partition.metadata").read_bytes()
    shutil.rmtree(home)
    shutil.copytree(TARGET / f"{TOPIC}-0", home)
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


def test_it_is_served_indexed_and_carried_on(serving: Broker, tools: Tools) -> None:
    expected = json.loads((TARGET / "expected.json").read_text())
    for isolation in ("read_uncommitted", "read_committed"):
        assert seen(serving, isolation) == expected[isolation]

    with Connection(serving.port) as connection:
        assert list_offset(connection, TOPIC, 0, EARLIEST).offset == 0
        end = list_offset(connection, TOPIC, 0, LATEST).offset
        assert end == 128
        for hour in range(5):
            found = list_offset(connection, TOPIC, 0, T0 + hour * (SEGMENT_MS + 1) + 11)
            assert (found.offset, found.timestamp) == (
                hour * 20 + 11,
                T0 + hour * (SEGMENT_MS + 1) + 11,
            )

        added = produced(connection.call(produce(batch([b"next"]).encode(), TOPIC), 9))
        assert (added.error_code, added.base_offset) == (0, end)

    serving.stop()
    indexes = sorted((serving.log_dir / f"{TOPIC}-0").glob("*[0-9].*index"))
    named = ["--files", ",".join(map(str, indexes))]
    check = tools.run("dump-log", "--index-sanity-check", *named).ok()
    for index in indexes:
        if index.suffix != ".txnindex":
            assert re.search(rf"{index} (passed sanity check|is empty)\.", check)
    assert re.findall(r"firstOffset: (\d+) lastOffset: (\d+)", check) == ABORTED
