"""A transaction that hangs in a partition though no coordinator knows it: found, then ended.

Such a thing is left behind by brokers and clients from before writes were verified (KIP-890), so
this broker does not verify them.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.kafka.broker_fixtures import SWIFT, TARGETS
from tools.kafka.brokers import TESTED, Broker, running
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import Connection, batch, create_topic, fetch, produce, produced

TRANSACTIONAL = 0x10
GHOST = 4242
VERSION = 9


@pytest.fixture(params=TARGETS)
def trusting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    settings = SWIFT | {"transaction.partition.verification.enable": "false"}
    with running(TESTED[request.param](tmp_path / request.param, settings=settings)) as broker:
        yield broker


def write_and_vanish(connection: Connection, topic: str) -> None:
    """Three records of a transaction that its producer never told a coordinator of."""
    open_batch = batch(
        [b"never"] * 3,
        attributes=TRANSACTIONAL,
        producer_id=GHOST,
        producer_epoch=0,
        base_sequence=0,
    )
    request = produce(open_batch.encode(), topic)
    request.transactional_id = "ghost"
    assert produced(connection.call(request, VERSION)).error_code == 0


def stable_offset(connection: Connection, topic: str) -> int:
    answer = connection.call(fetch(0, topic, isolation=1), 11)
    offset: int = answer.responses[0].partitions[0].last_stable_offset
    return offset


def test_a_hanging_transaction_is_found_by_kafkas_tool_and_ended_by_ours(
    trusting: Broker, tools: Tools, topic: str
) -> None:
    def transactions(*words: str) -> str:
        return tools.run("transactions", "--bootstrap-server", trusting.bootstrap, *words).ok()

    with Connection(trusting.port, timeout=300) as connection:
        create_topic(connection, topic)
        transactions("list")  # has the topic of their coordinators made
        write_and_vanish(connection, topic)
        assert stable_offset(connection, topic) == 0

        hangs = ("find-hanging", "--topic", topic, "--partition", "0")
        (found,) = [line.split() for line in transactions(*hangs).splitlines() if topic in line]
        assert found[:4] == [topic, "0", str(GHOST), "0"]
        start = found[5]
        assert start == "0"

        command = [sys.executable, "-m", "scriba", "txn", "abort", "--json", "--topic", topic]
        command += ["--partition", "0", "--start-offset", start, "-b", trusting.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["producer_id"], told["aborted"]) == (GHOST, True)

        assert stable_offset(connection, topic) == 4
        assert topic not in transactions(*hangs)
