"""Kafka's own command-line tools, as an operator would use them.

A JVM costs more than what a tool does, so all of them share one.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataRequest

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import Outcome, Tools
from tools.kafka.rawkafka import Connection, batch, create_topic, produce, produced

Tool = Callable[..., Outcome]


@pytest.fixture
def run(cluster: Broker, tools: Tools) -> Tool:
    """Runs a tool against the broker."""

    def against(name: str, *args: str, stdin: str = "") -> Outcome:
        return tools.run(name, "--bootstrap-server", cluster.bootstrap, *args, stdin=stdin)

    return against


def fill(cluster: Broker, topic: str, count: int, partition: int = 0) -> None:
    with Connection(cluster.port) as connection:
        values = [b"%d" % n for n in range(count)]
        answer = produced(connection.call(produce(batch(values).encode(), topic, partition), 9))
        assert answer.error_code == 0


def create(cluster: Broker, topic: str, partitions: int = 1, **settings: str) -> None:
    with Connection(cluster.port) as connection:
        create_topic(connection, topic, partitions, **settings)


def test_topics_from_birth_to_death(run: Tool, topic: str) -> None:
    made = run("topics", "--create", "--topic", topic, "--partitions", "2",
               "--config", "retention.ms=86400000")  # fmt: skip
    assert f"Created topic {topic}." in made.ok()
    again = run("topics", "--create", "--topic", topic)
    assert again.code == 1
    assert topic in again.out
    assert "already exists" in again.out
    grown = run("topics", "--alter", "--topic", topic, "--partitions", "3")
    grown.ok()
    described = run("topics", "--describe", "--topic", topic).ok()
    assert "PartitionCount: 3" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=86400000" in described
    assert len(re.findall(r"Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3
    run("topics", "--delete", "--topic", topic).ok()
    assert topic not in run("topics", "--list").ok().splitlines()


def test_settings_of_a_topic(cluster: Broker, run: Tool, topic: str) -> None:
    create(cluster, topic, segment_bytes="2097152")
    of_topic = ["--entity-type", "topics", "--entity-name", topic]
    everything = run("configs", "--describe", "--all", *of_topic).ok()
    assert "segment.bytes=2097152 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:" in everything
    assert "synonyms={DEFAULT_CONFIG:log.cleanup.policy=delete}" in everything
    changes = "max.message.bytes=70000,retention.ms=123456789"
    run("configs", "--alter", "--add-config", changes, *of_topic).ok()
    run("configs", "--alter", "--delete-config", "segment.bytes", *of_topic).ok()
    changed = run("configs", "--describe", *of_topic).ok()
    assert "max.message.bytes=70000" in changed
    assert "retention.ms=123456789" in changed
    assert "segment.bytes=" not in changed
    refused = run("configs", "--alter", "--add-config", "retention.ms=-7", *of_topic)
    assert refused.code == 1
    assert "InvalidConfigurationException" in refused.err


def test_settings_of_brokers(cluster: Broker, run: Tool) -> None:
    with Connection(cluster.port) as connection:
        node = node_id(connection)
    one, all_of_them = ["--entity-name", str(node)], ["--entity-default"]
    kind = ["--entity-type", "brokers"]
    run("configs", "--alter", "--add-config", "log.retention.ms=777000000", *kind, *one).ok()
    run("configs", "--alter", "--add-config", "log.roll.ms=99999999", *kind, *all_of_them).ok()
    everything = run("configs", "--describe", "--all", *kind, *one).ok()
    assert (
        "log.retention.ms=777000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:" in everything
    )
    assert re.search(r"log\.roll\.ms=99999999 .*DYNAMIC_DEFAULT_BROKER_CONFIG", everything)
    assert "log.segment.bytes=1073741824" in everything
    assert "log.roll.ms=99999999" in run("configs", "--describe", *kind, *all_of_them).ok()
    refused = run("configs", "--alter", "--add-config", "node.id=5", *kind, *one)
    assert refused.code == 1
    run("configs", "--alter", "--delete-config", "log.retention.ms", *kind, *one).ok()
    run("configs", "--alter", "--delete-config", "log.roll.ms", *kind, *all_of_them).ok()
    assert "777000000" not in run("configs", "--describe", *kind, *one).ok()


def node_id(connection: Connection) -> int:
    found: int = connection.call(MetadataRequest(topics=[]), 9).brokers[0].node_id
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_to_console_consumer(
    cluster: Broker, run: Tool, topic: str, codec: str
) -> None:
    create(cluster, topic)
    lines = [f"{codec} line {n}" for n in range(100)]
    run(
        "console-producer", "--topic", topic, "--compression-codec", codec,
        stdin="".join(line + "\n" for line in lines),
    ).ok()  # fmt: skip
    read = run(
        "console-consumer", "--topic", topic, "--partition", "0", "--offset", "earliest",
        "--max-messages", "100", "--timeout-ms", "20000",
    )  # fmt: skip
    assert read.ok().splitlines() == lines


def test_console_consumer_from_an_offset_with_everything_printed(
    cluster: Broker, run: Tool, topic: str
) -> None:
    create(cluster, topic)
    run(
        "console-producer", "--topic", topic,
        "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        stdin="h:1\tk1\tv1\nh:2\tk2\tv2\nh:3\tk3\tv3\n",
    ).ok()  # fmt: skip
    shown = ["partition", "offset", "key", "headers", "timestamp"]
    options = [part for name in shown for part in ("--formatter-property", f"print.{name}=true")]
    read = run(
        "console-consumer", "--topic", topic, "--partition", "0", "--offset", "1",
        "--max-messages", "2", "--timeout-ms", "20000", *options,
    ).ok()  # fmt: skip
    expected = [rf"CreateTime:\d+\tPartition:0\tOffset:{n - 1}\th:{n}\tk{n}\tv{n}" for n in (2, 3)]
    for line, pattern in zip(read.splitlines(), expected, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize(
    "settings", [["acks=all"], ["acks=1", "enable.idempotence=false", "compression.type=lz4"]]
)
def test_producer_perf_test_sends_its_number(
    cluster: Broker, run: Tool, topic: str, settings: list[str]
) -> None:
    create(cluster, topic, partitions=3)
    report = run(
        "producer-perf-test", "--topic", topic, "--num-records", "20000", "--record-size", "500",
        "--throughput", "-1", "--command-property", *settings,
    ).ok()  # fmt: skip
    assert "20000 records sent" in report
    listed = run("get-offsets", "--topic", topic).ok()
    ends = [int(line.split(":")[2]) for line in listed.splitlines()]
    assert len(ends) == 3
    assert sum(ends) == 20_000


def test_offsets_are_listed_and_records_deleted(
    cluster: Broker, run: Tool, topic: str, tmp_path: Path
) -> None:
    create(cluster, topic, partitions=2)
    fill(cluster, topic, 10, partition=0)
    fill(cluster, topic, 4, partition=1)

    def offsets(when: str) -> list[str]:
        return run("get-offsets", "--topic", topic, "--time", when).ok().split()

    assert offsets("latest") == [f"{topic}:0:10", f"{topic}:1:4"]
    assert offsets("max-timestamp") == [f"{topic}:0:0", f"{topic}:1:0"]
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        f'{{"version": 1, "partitions": [{{"topic": "{topic}", "partition": 0, "offset": 6}},'
        f' {{"topic": "{topic}", "partition": 1, "offset": -1}}]}}'
    )
    done = run("delete-records", "--offset-json-file", str(wanted)).ok()
    assert f"partition: {topic}-0\tlow_watermark: 6" in done
    assert f"partition: {topic}-1\tlow_watermark: 4" in done
    assert offsets("earliest") == [f"{topic}:0:6", f"{topic}:1:4"]


def test_the_cluster_is_described(cluster: Broker, run: Tool, tools: Tools, topic: str) -> None:
    create(cluster, topic)
    fill(cluster, topic, 100)
    status = run("metadata-quorum", "describe", "--status").ok()
    assert re.search(r"LeaderId:\s+\d+", status)
    assert re.search(r"HighWatermark:\s+[1-9]\d*", status)
    assert re.search(r"MaxFollowerLag:\s+0", status)
    replication = run("metadata-quorum", "describe", "--replication").ok()
    assert re.search(r"\d+\s+\S+\s+\d+\s+0\s+-?\d+\s+-?\d+\s+Leader", replication)
    features = run("features", "describe").ok()
    assert re.search(r"Feature: metadata.version\s.*FinalizedVersionLevel: \d\.\d", features)
    folders = run("log-dirs", "--describe", "--topic-list", topic).ok()
    assert f'"partition":"{topic}-0"' in folders
    assert '"error":null' in folders
    versions = run("broker-api-versions").ok()
    assert "UNSUPPORTED" not in versions.split("Produce(0)")[1].splitlines()[0]
    identity = tools.run("cluster", "cluster-id", "--bootstrap-server", cluster.bootstrap).ok()
    assert re.search(r"Cluster ID: \S{22}", identity)


def test_active_producers_are_described(cluster: Broker, run: Tool, topic: str) -> None:
    create(cluster, topic)
    run("console-producer", "--topic", topic, stdin="a\nb\n").ok()
    eventually(lambda: ":2" in run("get-offsets", "--topic", topic).ok())
    described = run("transactions", "describe-producers", "--topic", topic, "--partition", "0").ok()
    row = described.splitlines()[1].split()
    assert row[1] == "0"
    assert row[3] in ("0", "1")


def test_leaders_that_lead_need_no_election(cluster: Broker, run: Tool, topic: str) -> None:
    create(cluster, topic, 2)
    one = run("leader-election", "--election-type", "preferred", "--topic", topic,
              "--partition", "1")  # fmt: skip
    assert "Valid replica already elected for partitions" in one.ok()
    every = run("leader-election", "--election-type", "unclean", "--all-topic-partitions")
    every.ok()
    absent = run("leader-election", "--election-type", "preferred", "--topic", topic,
                 "--partition", "9")  # fmt: skip
    assert absent.code == 1
    assert "UnknownTopicOrPartition" in absent.out


def test_replicas_are_reassigned_to_where_they_are(
    cluster: Broker, run: Tool, topic: str, tmp_path: Path
) -> None:
    create(cluster, topic)
    described = run("topics", "--describe", "--topic", topic).ok()
    found = re.search(r"Replicas: (\d+)", described)
    assert found is not None
    broker = int(found[1])
    assert "No partition reassignments found." in run("reassign-partitions", "--list").ok()

    def plan(replicas: list[int]) -> str:
        place = tmp_path / f"plan-{'-'.join(map(str, replicas))}.json"
        partition = {"topic": topic, "partition": 0, "replicas": replicas}
        place.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        return str(place)

    same = ("--reassignment-json-file", plan([broker]))
    started = run("reassign-partitions", "--execute", *same).ok()
    assert f"Successfully started partition reassignment for {topic}-0" in started
    verified = run("reassign-partitions", "--verify", *same).ok()
    assert f"Reassignment of partition {topic}-0 is completed." in verified
    other = ("--reassignment-json-file", plan([broker + 7]))
    refused = run("reassign-partitions", "--execute", *other)
    assert refused.code == 1


def test_without_an_authorizer_there_are_no_lists(cluster: Broker, run: Tool, topic: str) -> None:
    listed = run("acls", "--list")
    added = run("acls", "--add", "--allow-principal", "User:ann", "--operation", "read",
                "--topic", topic)  # fmt: skip
    removed = run("acls", "--remove", "--force", "--topic", topic)
    for outcome in (listed, added, removed):
        assert "SecurityDisabledException" in outcome.out
