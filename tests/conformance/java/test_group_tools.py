"""Kafka's own tools for groups and transactions, as an operator would use them."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import PATIENCE, Broker
from tools.kafka.kafka_jars import Outcome, Tools
from tools.kafka.rawkafka import T0, Connection, create_topic

Tool = Callable[..., Outcome]
Row = dict[str, str]


@pytest.fixture
def groups(swift: Broker, tools: Tools) -> Tool:
    """Runs kafka-consumer-groups."""

    def run(*args: str) -> Outcome:
        return tools.run("consumer-groups", "--bootstrap-server", swift.bootstrap, *args)

    return run


@pytest.fixture
def transactions(swift: Broker, tools: Tools) -> Tool:
    """Runs kafka-transactions."""

    def run(*args: str) -> Outcome:
        return tools.run("transactions", "--bootstrap-server", swift.bootstrap, *args)

    return run


def table(outcome: Outcome) -> list[Row]:
    """Rows by the names of their columns, in which no value has a blank."""
    lines = [line for line in outcome.ok().splitlines() if line.strip()]
    heads = [re.split(r"\s+", line.strip()) for line in lines[:1]]
    assert heads, outcome
    return [dict(zip(heads[0], re.split(r"\s+", line.strip()), strict=False)) for line in lines[1:]]


def fill(cluster: Broker, topic: str, partitions: int = 2, each: int = 10) -> None:
    """A topic whose records are a second apart."""
    with Connection(cluster.port) as connection:
        create_topic(connection, topic, partitions)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for n in range(each):
        for partition in range(partitions):
            producer.produce(topic, b"%d" % n, partition=partition, timestamp=T0 + n * 1000)
    assert producer.flush(300) == 0


@contextmanager
def member(cluster: Broker, group: str, topic: str, **settings: Any) -> Iterator[Consumer]:
    """One that has partitions, has committed 7 of partition 0, and leaves at the end."""
    extra = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": "reader",
        }
        | extra
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.05)
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    try:
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_at_work_is_listed_and_described(
    swift: Broker, groups: Tool, topic: str, protocol: str
) -> None:
    fill(swift, topic)
    of_group = ["--describe", "--group", topic]
    with member(swift, topic, topic, group_protocol=protocol):
        assert topic in groups("--list").ok().split()
        stable = table(groups("--list", "--state", "stable"))
        assert {"GROUP": topic, "STATE": "Stable"} in stable
        kinds = table(groups("--list", "--type"))
        assert {"GROUP": topic, "TYPE": protocol.capitalize()} in kinds

        first, second = sorted(table(groups(*of_group)), key=lambda row: row["PARTITION"])
        assert first["CURRENT-OFFSET"] == "7"
        assert (first["LOG-END-OFFSET"], first["LAG"]) == ("10", "3")
        assert (second["CURRENT-OFFSET"], second["LAG"]) == ("-", "-")
        assert {first["HOST"], second["HOST"]} == {"/127.0.0.1"}
        assert {first["CLIENT-ID"], second["CLIENT-ID"]} == {"reader"}

        (one,) = table(groups(*of_group, "--members", "--verbose"))
        assert one["#PARTITIONS"] == "2"
        assert one["CURRENT-ASSIGNMENT"] == f"{topic}:0,1"
        (state,) = table(groups(*of_group, "--state", "--verbose"))
        assert state["STATE"] == "Stable"
        assert state["#MEMBERS"] == "1"
        assert state["ASSIGNMENT-STRATEGY"] == {"classic": "range", "consumer": "uniform"}[protocol]
        (offset, _) = sorted(table(groups(*of_group, "--offsets", "--verbose")), key=str)
        assert offset["LEADER-EPOCH"] in ("-", "0")

        refused = groups("--delete", "--group", topic)
        assert "GroupNotEmptyException" in refused.out
        busy = ["--reset-offsets", "--group", topic, "--all-topics", "--to-earliest", "--execute"]
        assert "current state is Stable" in groups(*busy).out
        used = groups("--delete-offsets", "--group", topic, "--topic", topic)
        assert "actively subscribed" in used.out

    def told() -> bool:
        return table(groups("--list", "--state", "empty")).count(
            {"GROUP": topic, "STATE": "Empty"}
        ) == 1  # fmt: skip

    eventually(told)
    assert "has no active members" in groups(*of_group).out + groups(*of_group).err
    assert "successful" in groups("--delete", "--group", topic).ok()
    assert topic not in groups("--list").ok().split()
    assert "does not exist" in groups("--delete", "--group", topic).out


def test_groups_of_all_kinds_are_listed_and_have_settings_of_their_own(
    swift: Broker, tools: Tools, topic: str
) -> None:
    fill(swift, topic)
    to = ["--bootstrap-server", swift.bootstrap]
    of_group = [*to, "--entity-type", "groups", "--entity-name", topic]
    setting = "consumer.session.timeout.ms"
    tools.run("configs", *of_group, "--alter", "--add-config", f"{setting}=5000").ok()
    told = tools.run("configs", *of_group, "--describe").ok()
    assert f"{setting}=5000 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:" in told
    refused = tools.run("configs", *of_group, "--alter", "--add-config", f"{setting}=5")
    assert refused.code == 1
    assert setting in refused.err
    with member(swift, topic, topic, group_protocol="consumer"):
        listed = table(tools.run("groups", *to, "--list"))
        mine = {"GROUP": topic, "TYPE": "Consumer", "PROTOCOL": "consumer"}
        assert mine in listed
        assert mine in table(tools.run("groups", *to, "--list", "--consumer"))
        assert mine not in table(tools.run("groups", *to, "--list", "--group-type", "classic"))
        assert mine not in table(tools.run("groups", *to, "--list", "--share"))
    tools.run("configs", *of_group, "--alter", "--delete-config", setting).ok()
    assert setting not in tools.run("configs", *of_group, "--describe").ok()


RESETS = {
    ("--to-earliest",): (0, 0),
    ("--to-latest",): (10, 10),
    ("--to-offset", "4"): (4, 4),
    ("--to-offset", "99"): (10, 10),
    ("--shift-by", "-5"): (2, 0),
    ("--shift-by", "2"): (9, 6),
    ("--to-datetime", datetime.fromtimestamp(T0 / 1000 + 5.5, UTC).isoformat()[:23]): (6, 6),
    ("--to-current",): (7, 4),
}
"""What each way gives, in partitions of ten records of which 7 and 4 were committed."""


def test_offsets_are_reset_in_every_way(
    swift: Broker, groups: Tool, topic: str, tmp_path: Path
) -> None:
    fill(swift, topic)
    of_group = ["--reset-offsets", "--group", topic]

    def commit() -> None:
        plan = tmp_path / "plan.csv"
        plan.write_text(f"{topic},0,7\n{topic},1,4\n")
        groups(*of_group, "--from-file", str(plan), "--execute").ok()
        assert committed() == (7, 4)

    def committed() -> tuple[int, ...]:
        rows = sorted(table(groups("--describe", "--group", topic)), key=lambda r: r["PARTITION"])
        return tuple(int(row["CURRENT-OFFSET"]) for row in rows)

    commit()
    for way, expected in RESETS.items():
        shown = table(groups(*of_group, *way, "--topic", topic, "--dry-run"))
        planned = {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in shown}
        assert (planned[0], planned[1]) == expected, way
    assert committed() == (7, 4), "shown, not done"
    groups(*of_group, "--by-duration", "PT1S", "--topic", topic, "--execute").ok()
    assert committed() == (10, 10), "nothing is as young as that"
    groups(*of_group, "--to-earliest", "--topic", f"{topic}:1", "--execute").ok()
    assert committed() == (10, 0)
    groups(*of_group, "--shift-by", "-2", "--all-topics", "--execute").ok()
    assert committed() == (8, 0)
    exported = groups(*of_group, "--to-latest", "--all-topics", "--dry-run", "--export").ok()
    assert sorted(exported.split()) == [f'"{topic}",0,10', f'"{topic}",1,10']

    assert "Successful" in groups(
        "--delete-offsets", "--group", topic, "--topic", f"{topic}:0"
    ).ok()  # fmt: skip
    assert committed() == (0,)
    missing = groups("--delete-offsets", "--group", "nobody", "--topic", topic)
    assert "GroupIdNotFoundException" in missing.out


@contextmanager
def hanging(cluster: Broker, topic: str) -> Iterator[Producer]:
    """A producer with an open transaction of three records in partition 0."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": topic,
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(300)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b"open", partition=0)
    assert producer.flush(300) == 0
    yield producer


def state(transactions: Tool, tid: str) -> str:
    (told,) = table(transactions("describe", "--transactional-id", tid))
    return told["TransactionState"]


def test_transactions_are_listed_described_and_aborted(
    swift: Broker, transactions: Tool, topic: str
) -> None:
    fill(swift, topic)
    where = ["--topic", topic, "--partition", "0"]
    with hanging(swift, topic):
        (mine,) = [row for row in table(transactions("list")) if row["TransactionalId"] == topic]
        assert mine["TransactionState"] == "Ongoing"
        young = table(transactions("list", "--duration-filter", "3600000"))
        assert topic not in {row["TransactionalId"] for row in young}
        matched = table(transactions("list", "--transactional-id-pattern", topic[:-2] + ".+"))
        assert topic in {row["TransactionalId"] for row in matched}

        (told,) = table(transactions("describe", "--transactional-id", topic))
        assert told["ProducerId"] == mine["ProducerId"]
        assert told["TransactionState"] == "Ongoing"
        assert told["TopicPartitions"] == f"{topic}-0"
        (active,) = [
            row
            for row in table(transactions("describe-producers", *where))
            if row["ProducerId"] == mine["ProducerId"]
        ]
        assert active["CurrentTransactionStartOffset"] == "10"

        hangs = ["find-hanging", "--broker-id", mine["Coordinator"]]
        assert topic not in transactions(*hangs, "--max-transaction-timeout", "15").ok()

        transactions("abort", *where, "--start-offset", "10").ok()
        (after,) = table(transactions("describe-producers", *where))
        assert after["CurrentTransactionStartOffset"] == "None"
    with hanging(swift, topic):
        transactions("forceTerminateTransaction", "--transactionalId", topic).ok()
        eventually(lambda: state(transactions, topic) == "Empty")
    unknown = transactions("describe", "--transactional-id", "nobody")
    assert unknown.code == 1
    assert "could not be found" in unknown.err
