"""Three nodes as `scriba up --nodes 3` runs them: what clients see when one of them dies."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scriba.client import (
    ClientError,
    NewTopic,
    PartlyListed,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TopicPartition,
)
from tests.integration.cluster.processes import PATIENCE, Cluster, run, scriba, up

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with up(tmp_path_factory.mktemp("cluster"), "--nodes", "3") as running:
        yield running


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if true():
                return
        except ClientError:
            pass
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


def asked(cluster: Cluster, *words: str) -> Any:
    return json.loads(scriba(*words, "-b", cluster.bootstrap, "--json", cwd=cluster.cwd))


def committed(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """So many records that a reader of committed ones finds."""
    found: list[bytes] = []
    with (
        SyncConsumer(
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer,
        SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        partitions = admin.describe_topics([topic])[topic].partitions
        consumer.assign([TopicPartition(topic, p.partition) for p in partitions])
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            found += [r.value for r in consumer.poll(timeout_ms=500) if r.value is not None]
        found += [r.value for r in consumer.poll(timeout_ms=500) if r.value is not None]
    return found


def test_a_topic_has_three_replicas_and_each_node_leads_some(cluster: Cluster) -> None:
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("spread", partitions=6)])
        topic = admin.describe_topics(["spread"])["spread"]
    assert all(sorted(p.replicas) == [1, 2, 3] for p in topic.partitions)
    assert {p.leader for p in topic.partitions} == {1, 2, 3}


def test_what_was_acknowledged_outlives_a_node_and_it_catches_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, partitions=6)])
    with SyncProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for number in range(500):
            producer.send(TOPIC, b"%d" % number)
        producer.flush()
        assert cluster.node("kill", "2").rstrip().endswith("killed")
        for number in range(500, 1000):
            producer.send(TOPIC, b"%d" % number)
        producer.flush()
    found = committed(cluster, TOPIC, 1000)
    assert sorted(map(int, found)) == list(range(1000))
    unwell = asked(cluster, "topic", "describe", TOPIC, "--under-replicated")
    assert [p["missing"] for p in unwell] == [[2]] * 6
    assert asked(cluster, "topic", "describe", TOPIC, "--offline") == []
    (why,) = asked(cluster, "topic", "why", f"{TOPIC}-0")
    assert why["state"] == "under-replicated"
    assert [(each["broker"], each["broker_state"]) for each in why["replicas"]].count(
        (2, "fenced")
    ) == 1
    assert len({each["end_offset"] for each in why["replicas"] if each["broker"] != 2}) == 1
    assert [each["broker"] for each in why["awaited"]] == [2]
    assert why["since_ms"] is not None, "the nodes were asked what they have told"
    assert "isr_shrunk" in [each["kind"] for each in why["events"]]
    assert [each["command"] for each in why["choices"]] == ["scriba node start 2"]
    (elsewhere,) = json.loads(
        scriba("topic", "why", f"{TOPIC}-0", "-b", cluster.bootstrap, "--json", cwd=tmp_path)
    )
    assert [each["command"] for each in elsewhere["choices"]] == [None], "no nodes are run there"
    described = asked(cluster, "cluster", "describe")
    assert [b["fenced"] for b in described["brokers"]] == [False, True, False]

    assert cluster.node("start", "2").rstrip().endswith("up")
    until(lambda: asked(cluster, "topic", "describe", TOPIC, "--under-replicated") == [])
    elected = asked(cluster, "cluster", "elect")
    assert {each["leader"] for each in elected} == {2}
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        topic = admin.describe_topics([TOPIC])[TOPIC]
    assert all(p.leader == p.replicas[0] for p in topic.partitions)


def test_every_broker_tells_of_the_same_quorum(cluster: Cluster) -> None:
    said = [asked(cluster, "cluster", "quorum", "--broker", str(node)) for node in (1, 2, 3)]
    assert len({(each["leader"], each["leader_epoch"]) for each in said}) == 1
    assert sorted(v["id"] for v in said[0]["voters"]) == [1, 2, 3]
    refused = scriba(
        *("cluster", "quorum", "--broker", "9", "-b", cluster.bootstrap), cwd=cluster.cwd, code=1
    )
    assert "there is no broker 9" in refused


@pytest.mark.parametrize(
    ("named", "told"), [("nosuch:0", "there is no topic nosuch"), (f"{TOPIC}:x", "no partition of")]
)
def test_why_of_what_is_not_there_names_it(cluster: Cluster, named: str, told: str) -> None:
    code = 2 if "partition" in told else 1
    refused = scriba(*("topic", "why", named, "-b", cluster.bootstrap), cwd=cluster.cwd, code=code)
    assert told in refused


def test_a_transaction_over_three_brokers_outlives_its_coordinator(cluster: Cluster) -> None:
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        placed = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}
        admin.create_topics([NewTopic("ledger", assignments=placed)])
        with SyncProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id="books"
        ) as producer:
            for number in range(30):
                with producer.transaction():
                    for partition in placed:
                        producer.send("ledger", b"%d" % number, partition=partition)
                if number == 10:
                    (found,) = admin.describe_transactions(["books"]).values()
                    assert cluster.node("kill", str(found.coordinator)).endswith("killed\n")
                if number == 20:
                    assert cluster.node("start", str(found.coordinator)).endswith("up\n")
    records = committed(cluster, "ledger", 90)
    assert sorted(map(int, records)) == sorted(3 * list(range(30)))


def test_a_producer_is_told_why_its_partition_takes_nothing(cluster: Cluster) -> None:
    """By the same page as `scriba topic why`, with the command that helps."""
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("alone", assignments={0: [2]})])
    assert cluster.node("kill", "2").endswith("killed\n")
    errors: list[str] = []

    def explained() -> bool:
        with SyncProducer(
            bootstrap_servers=cluster.bootstrap,
            delivery_timeout_ms=10_000,
            request_timeout_ms=5_000,
        ) as producer:
            try:
                producer.send("alone", b"x")
            except ClientError as error:
                errors.append(str(error))
        return "alone-0 is offline" in errors[-1]

    until(explained)
    assert errors[-1].startswith("alone-0: ")
    page = scriba("topic", "why", "alone-0", "-b", cluster.bootstrap, cwd=cluster.cwd)
    for text in (page, errors[-1]):
        assert "nobody leads it: it can be neither written nor read" in text
        assert "    scriba node start 2\n" in text
    where = " again (if scriba up --nodes runs it, in the folder of that); loses nothing\n"
    assert where in errors[-1]
    assert where not in page, "which is asked for in that folder"
    assert cluster.node("start", "2").endswith("up\n")
    with SyncProducer(bootstrap_servers=cluster.bootstrap) as producer:
        assert producer.send("alone", b"x").offset == 0


def test_a_partition_in_a_directory_that_is_nearly_full_is_told_with_the_ways_out(
    cluster: Cluster,
) -> None:
    """A mark so low that every volume is above it."""
    mark = "scriba.log.dirs.write.watermark"
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("crowded", assignments={0: [2]})])
    scriba("config", "set", "--cluster", f"{mark}=0.0001", "-b", cluster.bootstrap, cwd=cluster.cwd)
    try:
        until(lambda: closed_dirs(cluster) == {1, 2, 3})
        (why,) = asked(cluster, "topic", "why", "crowded-0")
        assert why["state"] == "closed to producers"
        (directory,) = why["log_dirs"]
        assert (directory["broker"], directory["state"]) == (2, "nearly full")
        assert directory["path"] == why["replicas"][0]["log_dir"]
        raised = [
            each["command"].removeprefix("scriba ").split()
            for each in why["choices"]
            if each["choice"].startswith("raise the mark")
        ]
        with (
            SyncProducer(bootstrap_servers=cluster.bootstrap, retries=0) as producer,
            pytest.raises(ClientError) as refused,
        ):
            producer.send("crowded", b"x")
        assert "crowded-0 is closed to producers" in str(refused.value)
        assert f"{mark} is 0.0001" in str(refused.value)
        # A volume that is full to the brim has no higher mark.
        words = raised[0] if raised else ["config", "set", "--cluster", "--delete", mark]
        scriba(*words, "-b", cluster.bootstrap, cwd=cluster.cwd)
        until(lambda: asked(cluster, "topic", "why", "crowded")[0]["state"] == "well")
        with SyncProducer(bootstrap_servers=cluster.bootstrap) as producer:
            assert producer.send("crowded", b"x").offset == 0
    finally:
        words = ["config", "set", "--cluster", "--delete", mark]
        scriba(*words, "-b", cluster.bootstrap, cwd=cluster.cwd)
        until(lambda: not closed_dirs(cluster))


def closed_dirs(cluster: Cluster) -> set[int]:
    """Brokers whose directories take nothing new, as the brokers themselves have it."""
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        told = admin.describe_log_dirs()
    return {broker for broker, dirs in told.items() if any(each.cordoned for each in dirs)}


def test_a_node_that_stands_still_does_not_keep_others_from_answering(cluster: Cluster) -> None:
    """It takes connections, for which a command must not use up its time."""
    servers = cluster.bootstrap.split(",")
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("still", assignments={0: [1, 3]})])
    cluster.node("pause", "3")
    try:
        for _ in range(3):
            where = ("-b", f"{servers[2]},{servers[0]}")
            assert "still" in scriba("topic", "list", "--names", *where, cwd=cluster.cwd)
            (why,) = json.loads(scriba("topic", "why", "still", *where, "--json", cwd=cluster.cwd))
            assert why["replicas"][1]["end_offset"] is None
    finally:
        cluster.node("resume", "3")
    until(lambda: asked(cluster, "topic", "why", "still")[0]["state"] == "well")


def test_all_nodes_that_were_killed_are_started_at_once(cluster: Cluster) -> None:
    """One after the other they would wait in vain for a majority of controllers."""
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("outlives", partitions=3)])
    with SyncProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        producer.send("outlives", b"all")
    cluster.node("kill", "1", "2", "3")
    assert set(cluster.states().values()) == {"killed"}
    told = json.loads(cluster.node("start", "1", "2", "3", "3", "--json"))
    assert [node["node_id"] for node in told] == [1, 2, 3]
    assert set(cluster.states().values()) == {"up"}
    assert committed(cluster, "outlives", 1) == [b"all"]


def test_all_stop_in_good_order_and_come_back(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "3", "--demo") as cluster:
        assert cluster.end(signal.SIGTERM) == 0
    for node in (1, 2, 3):
        assert (tmp_path / "scriba-data" / f"node-{node}" / ".kafka_cleanshutdown").exists()
    told = scriba("up", "--nodes", "2", cwd=tmp_path, code=1)
    assert "has 3 nodes" in told
    with up(tmp_path, "--nodes", "auto") as again:
        assert again.told["cluster_id"] == cluster.told["cluster_id"]
        assert "demo" in asked(again, "topic", "list", "--names")


def test_controllers_may_be_nothing_else(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "2", "--controllers", "3") as cluster:
        assert [n["roles"] for n in cluster.told["nodes"]] == [["broker"]] * 2 + [
            ["controller"]
        ] * 3
        quorum = asked(cluster, "cluster", "quorum")
        assert sorted(v["id"] for v in quorum["voters"]) == [101, 102, 103]
        assert sorted(o["id"] for o in quorum["observers"]) == [1, 2]
        assert cluster.node("kill", str(quorum["leader"]))
        assert "made" in asked(cluster, "topic", "create", "made")["topic"]
        assert cluster.end(signal.SIGTERM) == 0


def test_what_a_dead_coordinator_holds_is_missed_aloud(tmp_path: Path) -> None:
    """Its groups and transactions cannot be listed: the others are, and it is said what is not."""
    settings = []
    for topic in ("offsets.topic", "transaction.state.log"):
        settings += ["--set", f"{topic}.replication.factor=1", "--set", f"{topic}.num.partitions=4"]
    names = [f"name-{n}" for n in range(12)]
    with up(tmp_path, "--nodes", "2", "--controllers", "1", *settings) as cluster:
        asked = ["-b", cluster.bootstrap]
        with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
            for name in names:
                admin.alter_group_offsets(name, {("t", 0): 0})
            admin.fence_producers(names)
            assert [group.group_id for group in admin.list_groups()] == sorted(names)
            assert cluster.node("kill", "2").rstrip().endswith("killed")
            for topic, calls, command in (
                ("__consumer_offsets", admin.list_groups, "group"),
                ("__transaction_state", admin.list_transactions, "txn"),
            ):
                until(partial(offline, admin, topic))
                lost = offline(admin, topic)
                with pytest.raises(PartlyListed, match=f"offline in {topic}") as partly:
                    calls()
                assert partly.value.offline == lost
                assert set(partly.value.errors) == set(map(str, lost))
                told = run(command, "list", *asked, "--json", cwd=tmp_path)
                assert told.returncode == 1
                key = "group" if command == "group" else "id"
                listed = [each[key] for each in json.loads(told.stdout)]
                assert listed == sorted(partly.value.results)
                assert 0 < len(listed) < len(names)
                said = json.loads(told.stderr)
                assert said["offline"] == list(map(str, lost))
                assert f"offline in {topic}" in said["warning"]
                plain = run(command, "list", *asked, cwd=tmp_path)
                assert len(plain.stdout.splitlines()) == len(listed) + 1
                assert plain.stderr.startswith(f"warning: {len(lost)} partition")
            described = run("group", "describe", *asked, "--json", cwd=tmp_path)
            assert described.returncode == 1
            assert len(json.loads(described.stdout)) == len(admin_results(admin))


def offline(admin: SyncAdmin, topic: str) -> list[TopicPartition]:
    return [
        TopicPartition(topic, partition.partition)
        for partition in admin.describe_topics([topic])[topic].partitions
        if partition.leader is None
    ]


def admin_results(admin: SyncAdmin) -> list[str]:
    with pytest.raises(PartlyListed) as partly:
        admin.list_groups()
    return list(partly.value.results)
