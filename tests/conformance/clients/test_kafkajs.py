"""kafkajs, which speaks versions some years old: Produce 7, Metadata 6, CreateTopics 3.

Its consumers know no way around a group: outside of these, what it wrote is read back by kcat.
"""

import subprocess
from typing import Any

import pytest

from tests.conformance.kafkajs import Step, kafkajs, message, send
from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import T0, Connection, create_topic

TOPIC_RESOURCE, SET_ON_TOPIC = 2, 1


def admin(method: str, **argument: Any) -> Step:
    return ["admin", method, argument]


def kcat(cluster: Broker, topic: str, shape: str) -> list[str]:
    """Partition 0 from its first record to its end, each as the shape says."""
    done = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e",
         "-q", "-f", shape + "\n"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def create(cluster: Broker, topic: str) -> None:
    with Connection(cluster.port) as connection:
        create_topic(connection, topic)


def test_topics_from_birth_to_death(cluster: Broker, topic: str) -> None:
    wanted = {
        "topic": topic,
        "numPartitions": 2,
        "replicationFactor": 1,
        "configEntries": [{"name": "retention.ms", "value": "500000"}],
    }
    made, again, listed, described, nodes, _, after, _ = kafkajs(
        cluster,
        admin("createTopics", topics=[wanted], waitForLeaders=True),
        admin("createTopics", topics=[wanted]),
        ["admin", "listTopics"],
        admin("fetchTopicMetadata", topics=[topic]),
        ["admin", "describeCluster"],
        admin("createPartitions", topicPartitions=[{"topic": topic, "count": 4}]),
        admin("fetchTopicMetadata", topics=[topic]),
        admin("deleteTopics", topics=[topic]),
    )
    assert made is True
    assert again is False
    assert topic in listed
    parts = described["topics"][0]["partitions"]
    assert sorted(part["partitionId"] for part in parts) == [0, 1]
    (broker,) = nodes["brokers"]
    assert broker["port"] == cluster.port
    assert {part["leader"] for part in parts} == {broker["nodeId"]}
    assert nodes["controller"] == broker["nodeId"]
    assert len(after["topics"][0]["partitions"]) == 4
    (remaining,) = kafkajs(cluster, ["admin", "listTopics"])
    assert topic not in remaining


def test_settings_are_replaced_as_a_whole(cluster: Broker, topic: str) -> None:
    create(cluster, topic)
    resource = {"type": TOPIC_RESOURCE, "name": topic}

    def set_to(**settings: str) -> Step:
        entries = [{"name": k.replace("_", "."), "value": v} for k, v in settings.items()]
        return admin(
            "alterConfigs", validateOnly=False, resources=[{**resource, "configEntries": entries}]
        )

    described = admin("describeConfigs", includeSynonyms=False, resources=[resource])
    _, first, _, second, refusal = kafkajs(
        cluster,
        set_to(max_message_bytes="70000", retention_ms="123456"),
        described,
        set_to(retention_ms="654321"),
        described,
        ["refused", set_to(retention_ms="-7")],
    )

    def changed(told: dict[str, Any]) -> dict[str, str]:
        return {
            entry["configName"]: entry["configValue"]
            for entry in told["resources"][0]["configEntries"]
            if entry["configSource"] == SET_ON_TOPIC
        }

    assert changed(first) == {"max.message.bytes": "70000", "retention.ms": "123456"}
    assert changed(second) == {"retention.ms": "654321"}
    assert refusal == "INVALID_CONFIG"


def test_offsets_are_listed_and_records_deleted(cluster: Broker, topic: str) -> None:
    create(cluster, topic)
    records = [message(b"%d" % n, timestamp=T0 + n * 1000) for n in range(10)]
    offsets = ["admin", "fetchTopicOffsets", topic]
    _, all_of_them, by_time, _, after = kafkajs(
        cluster,
        send(topic, records),
        offsets,
        ["admin", "fetchTopicOffsetsByTimestamp", topic],
        admin("deleteTopicRecords", topic=topic, partitions=[{"partition": 0, "offset": "6"}]),
        offsets,
    )
    assert all_of_them == [{"partition": 0, "offset": "10", "high": "10", "low": "0"}]
    assert by_time == [{"partition": 0, "offset": "10"}]
    assert after == [{"partition": 0, "offset": "10", "high": "10", "low": "6"}]
    assert kcat(cluster, topic, "%o %s") == [f"{n} {n}" for n in range(6, 10)]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_every_acknowledgement(cluster: Broker, topic: str, codec: str) -> None:
    create(cluster, topic)
    batches = [[message(b"%d %d" % (acks, n)) for n in range(20)] for acks in (0, 1, -1)]
    silent, leader, everyone = kafkajs(
        cluster,
        send(topic, batches[0], 0, codec),
        send(topic, batches[1], 1, codec),
        send(topic, batches[2], -1, codec),
    )
    assert silent in ([], None)
    assert [told["errorCode"] for told in (*leader, *everyone)] == [0, 0]
    assert everyone[0]["baseOffset"] == "40"
    written = [f"{acks} {n}" for acks in (0, 1, -1) for n in range(20)]
    assert kcat(cluster, topic, "%s") == written


def test_an_idempotent_producer_with_headers_and_nulls(cluster: Broker, topic: str) -> None:
    create(cluster, topic)
    records = [
        message(b"value", b"key", [("a", b"1"), ("a", b"2"), ("empty", b"")], timestamp=T0),
        message(None, b"gone", timestamp=T0 + 1),
        message(b"", timestamp=T0 + 2),
    ]
    once = {"idempotent": True, "maxInFlightRequests": 1}
    kafkajs(cluster, send(topic, records, codec="gzip", settings=once))
    assert kcat(cluster, topic, "%T %K %k %S %s [%h]") == [
        f"{T0} 3 key 5 value [a=1,a=2,empty=]",
        f"{T0 + 1} 4 gone -1  []",
        f"{T0 + 2} -1  0  []",
    ]


def test_refusals_carry_their_names(cluster: Broker, topic: str) -> None:
    create(cluster, topic)
    too_long = message(b"x" * 1_100_000)
    bad_name = {"topic": "no/slash", "numPartitions": 1, "replicationFactor": 1}
    too_many = {"topic": f"{topic}-copies", "numPartitions": 1, "replicationFactor": 5}
    assert kafkajs(
        cluster,
        ["refused", send(topic, [too_long])],
        ["refused", admin("createTopics", topics=[bad_name])],
        ["refused", admin("createTopics", topics=[too_many])],
    ) == ["MESSAGE_TOO_LARGE", "INVALID_TOPIC_EXCEPTION", "INVALID_REPLICATION_FACTOR"]


def test_members_share_a_topic_commit_and_go_on(swift: Broker, topic: str) -> None:
    with Connection(swift.port) as connection:
        create_topic(connection, topic, 4)
    records = [message(b"%d" % n, partition=n % 4) for n in range(40)]
    places = [{"partition": p, "offset": str(p + 1), "metadata": f"remark {p}"} for p in range(4)]
    _, first, offsets, second, groups, _, remaining = kafkajs(
        swift,
        send(topic, records),
        ["consume", {"groupId": topic},
         {"topic": topic, "partitions": 4, "members": 2, "count": 40, "commit": places}],
        admin("fetchOffsets", groupId=topic, topics=[topic]),
        ["consume", {"groupId": topic},
         {"topic": topic, "partitions": 4, "members": 1, "count": 30}],
        ["admin", "listGroups"],
        ["admin", "deleteGroups", [topic]],
        ["admin", "listGroups"],
    )  # fmt: skip
    assert {(part, offset) for part, offset, _ in first["read"]} == {
        (p, n) for p in range(4) for n in range(10)
    }
    assert sorted(len(parts) for parts in first["held"]) == [2, 2]
    assert sorted(first["held"][0] + first["held"][1]) == [0, 1, 2, 3]
    (found,) = offsets
    assert sorted(found["partitions"], key=lambda part: part["partition"]) == places
    assert {(part, offset) for part, offset, _ in second["read"]} == {
        (p, n) for p in range(4) for n in range(p + 1, 10)
    }
    assert {"groupId": topic, "protocolType": "consumer"} in groups["groups"]
    assert topic not in {one["groupId"] for one in remaining["groups"]}


def test_transactions_commit_abort_carry_offsets_and_fence(swift: Broker, topic: str) -> None:
    create(swift, topic)

    def transaction(values: list[str], ending: str, offset: int) -> dict[str, Any]:
        parts = [{"partition": 0, "offset": str(offset)}]
        offsets = {"consumerGroupId": topic, "topics": [{"topic": topic, "partitions": parts}]}
        return {"topic": topic, "values": values, "offsets": offsets, "ending": ending}

    both = [transaction(["a", "b"], "commit", 1), transaction(["c"], "abort", 2)]
    _, fenced, offsets, read = kafkajs(
        swift,
        ["transact", topic, both],
        ["twins", topic, topic],
        admin("fetchOffsets", groupId=topic, topics=[topic]),
        ["consume", {"groupId": f"{topic}-reader"},
         {"topic": topic, "partitions": 1, "members": 1, "count": 2}],
    )  # fmt: skip
    assert fenced in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    assert offsets[0]["partitions"][0]["offset"] == "1"
    assert [value for _, _, value in read["read"]] == ["a", "b"]
    assert kcat(swift, topic, "%s") == ["a", "b"]
