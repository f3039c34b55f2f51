"""Programs that others wrote, against three nodes: Kafka's tools, its broker, and clients that go
on while nodes are killed and restarted."""

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.conformance.counting_program import WORDS, Counts, counting, write_lines
from tests.conformance.kafkajs import stream
from tools.kafka import kafka_jars
from tools.kafka.broker_fixtures import SWIFT, eventually
from tools.kafka.brokers import HOST, KAFKA_PROPERTIES, QuickKafka, free_port
from tools.kafka.kafka_jars import Outcome, Tools, command
from tools.kafka.scriba_nodes import PROTOCOLS, ScribaNodes, running_nodes

PARTITIONS = 3
RECORDS = 3000
LINES = 100
SETTINGS = {**SWIFT, "broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScribaNodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), SETTINGS) as made:
        yield made


@pytest.fixture
def whole(nodes: ScribaNodes, tools: Tools) -> ScribaNodes:
    """All nodes run and are in sync."""
    for node in nodes.nodes.values():
        if not node.alive:
            node.start()
    in_sync(nodes, tools)
    return nodes


def run(nodes: ScribaNodes, tools: Tools, name: str, *args: str) -> Outcome:
    return tools.run(name, "--bootstrap-server", nodes.bootstrap, *args)


def in_sync(nodes: ScribaNodes, tools: Tools) -> None:
    behind = ["--describe", "--under-replicated-partitions"]
    eventually(lambda: run(nodes, tools, "topics", *behind).ok().strip() == "")


def create(nodes: ScribaNodes, tools: Tools, topic: str) -> None:
    run(nodes, tools, "topics", "--create", "--topic", topic, "--partitions", str(PARTITIONS)).ok()


def described(nodes: ScribaNodes, tools: Tools, topic: str) -> dict[int, tuple[int, set[int]]]:
    """Leader and in-sync replicas of each partition."""
    told = run(nodes, tools, "topics", "--describe", "--topic", topic).ok()
    found = re.findall(r"Partition: (\d+)\tLeader: (\S+)\tReplicas: \S+\tIsr: (\S*)", told)
    return {
        int(partition): (
            -1 if leader == "none" else int(leader),
            {int(each) for each in isr.split(",") if each},
        )
        for partition, leader, isr in found
    }


# ---- Kafka's tools ----


def test_the_quorum_is_described_and_every_controllers_log_is_decoded(
    whole: ScribaNodes, tools: Tools, topic: str
) -> None:
    create(whole, tools, topic)
    status = run(whole, tools, "metadata-quorum", "describe", "--status").ok()
    assert f"ClusterId:              {whole.cluster_id()}" in status
    voters = json.loads(re.search(r"CurrentVoters:\s+(\[.*\])", status)[1])  # type: ignore[index]
    assert [(v["id"], v["endpoints"]) for v in voters] == [
        (n, [f"CONTROLLER://{HOST}:{node.ports['CONTROLLER']}"]) for n, node in whole.nodes.items()
    ]
    replication = run(whole, tools, "metadata-quorum", "describe", "--replication").ok()
    states = [line.split() for line in replication.splitlines()[1:] if line]
    assert sorted(int(row[0]) for row in states) == [1, 2, 3]
    assert sorted(row[-1] for row in states) == ["Follower", "Follower", "Leader"]
    for node in whole.nodes.values():
        by_controller = tools.run(
            "metadata-quorum",
            "--bootstrap-controller", f"{HOST}:{node.ports['CONTROLLER']}",
            "describe", "--status",
        )  # fmt: skip
        assert f"ClusterId:              {whole.cluster_id()}" in by_controller.ok()
    decoded = {}
    for number, node in whole.nodes.items():
        log = node.data / "__cluster_metadata-0" / f"{0:020}.log"
        told = tools.run("dump-log", "--cluster-metadata-decoder", "--skip-record-metadata",
                         "--files", str(log)).ok()  # fmt: skip
        assert "Could not" not in told, told
        decoded[number] = re.findall(
            r"^\| (?:offset: \d+ .*?)?(?:payload: ?)?(\{.*\})$", told, re.M
        )
        assert any(topic in record for record in decoded[number]), told[:3000]
        kinds = {
            kind for record in decoded[number] for kind in re.findall(r'"type":"(\w+)"', record)
        }
        assert kinds >= {"REGISTER_BROKER_RECORD", "TOPIC_RECORD", "PARTITION_RECORD"}
    shortest = min(len(records) for records in decoded.values())
    assert len({str(records[:shortest]) for records in decoded.values()}) == 1


def test_features_are_those_of_a_new_cluster(whole: ScribaNodes, tools: Tools) -> None:
    told = run(whole, tools, "features", "describe").ok()
    levels = dict(re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", told))
    assert levels["kraft.version"] == "1"
    assert levels["eligible.leader.replicas.version"] == "1"
    refused = run(whole, tools, "features", "downgrade", "--feature", "kraft.version=0")
    assert refused.code == 1


def test_a_killed_node_is_under_replicated_and_leads_again_when_it_is_told_to(
    whole: ScribaNodes, tools: Tools, topic: str
) -> None:
    create(whole, tools, topic)
    before = described(whole, tools, topic)
    assert {leader for leader, _ in before.values()} == {1, 2, 3}
    assert all(isr == {1, 2, 3} for _, isr in before.values())
    whole.nodes[2].kill()
    eventually(lambda: all(isr == {1, 3} for _, isr in described(whole, tools, topic).values()))
    missing = run(whole, tools, "topics", "--describe", "--under-replicated-partitions").ok()
    assert len(re.findall(rf"Topic: {topic}\s", missing)) == PARTITIONS
    assert not run(whole, tools, "topics", "--describe", "--unavailable-partitions").ok().strip()
    assert not run(whole, tools, "topics", "--describe", "--under-min-isr-partitions").ok().strip()
    assert all(leader in (1, 3) for leader, _ in described(whole, tools, topic).values())
    whole.nodes[2].start()
    in_sync(whole, tools)
    elected = run(whole, tools, "leader-election", "--election-type", "preferred",
                  "--all-topic-partitions").ok()  # fmt: skip
    assert topic in elected
    assert described(whole, tools, topic) == before


def test_an_unclean_election_makes_a_replica_lead_that_lacks_records(
    whole: ScribaNodes, tools: Tools, topic: str
) -> None:
    """Node 2 has what node 3 lacks, and is away: only who asks for it loses that."""
    placed = ["--replica-assignment", "2:3", "--config", "min.insync.replicas=1"]
    run(whole, tools, "topics", "--create", "--topic", topic, *placed).ok()
    elect = ["--topic", topic, "--partition", "0", "--election-type"]

    def is_led(leader: int, *in_sync: int) -> bool:
        return described(whole, tools, topic)[0] == (leader, {*in_sync})

    eventually(lambda: is_led(2, 2, 3))
    kept = Producer({"bootstrap.servers": whole.bootstrap})
    kept.produce(topic, b"kept", partition=0)
    assert kept.flush(300) == 0
    whole.nodes[3].kill()
    eventually(lambda: is_led(2, 2))
    kept.produce(topic, b"lost", partition=0)
    assert kept.flush(300) == 0
    whole.nodes[2].kill()
    whole.nodes[3].start()
    eventually(lambda: described(whole, tools, topic)[0][0] == -1)
    clean = run(whole, tools, "leader-election", *elect, "preferred")
    assert clean.code == 1
    assert f"{topic}-0" in clean.out + clean.err
    assert described(whole, tools, topic)[0][0] == -1
    unclean = run(whole, tools, "leader-election", *elect, "unclean").ok()
    assert "Successfully completed leader election (UNCLEAN)" in unclean
    assert f"{topic}-0" in unclean
    eventually(lambda: is_led(3, 3))
    kept.produce(topic, b"after", partition=0)
    assert kept.flush(300) == 0
    whole.nodes[2].start()
    in_sync(whole, tools)
    assert [*everything(whole, topic, partitions=1).values()] == ["kept", "after"]
    logs = [whole.nodes[number].log(topic, 0) for number in (2, 3)]
    assert logs[0] == logs[1], "what only node 2 had is gone there, too"


def test_offsets_are_told_wherever_the_leaders_are(
    whole: ScribaNodes, tools: Tools, topic: str
) -> None:
    create(whole, tools, topic)
    produce(whole, topic, [b"%d" % n for n in range(PARTITIONS * 10)])
    for time, wanted in (("-1", 10), ("-2", 0)):
        told = run(whole, tools, "get-offsets", "--topic", topic, "--time", time).ok()
        assert told.split() == [f"{topic}:{at}:{wanted}" for at in range(PARTITIONS)]
    told = run(whole, tools, "log-dirs", "--describe", "--topic-list", topic).ok()
    sizes = {
        (broker["broker"], part["partition"]): part["size"]
        for broker in json.loads(told.splitlines()[-1])["brokers"]
        for part in broker["logDirs"][0]["partitions"]
    }
    assert len(sizes) == 3 * PARTITIONS
    assert 0 not in sizes.values()


# ---- clients through kills ----


def produce(nodes: ScribaNodes, topic: str, values: list[bytes], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": nodes.bootstrap, **settings})
    for n, value in enumerate(values):
        producer.produce(topic, value, partition=n % PARTITIONS)
    assert producer.flush(300) == 0


def everything(
    nodes: ScribaNodes, topic: str, partitions: int = PARTITIONS
) -> dict[tuple[int, int], str]:
    """Values by partition and offset."""
    settings = {"bootstrap.servers": nodes.bootstrap, "group.id": "none"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    found: dict[tuple[int, int], str] = {}
    ends = 0
    while ends < partitions:
        taken: Any = consumer.poll(300)
        assert taken is not None
        if taken.error() is None:
            found[taken.partition(), taken.offset()] = taken.value().decode()
        else:
            ends += taken.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return found


def each_node_goes(nodes: ScribaNodes, tools: Tools, come: Callable[[], int]) -> None:
    """Each is killed and each is stopped, in turn; `come` says how far a client is, and it goes on
    while a node is gone."""
    eventually(lambda: come() > 100)
    for way in ("kill", "stop"):
        for node in nodes.nodes.values():
            if way == "kill":
                node.kill()
            else:
                assert node.stop() == 0, node.tail()
            so_far = come()
            eventually(lambda: come() > so_far + 50)  # noqa: B023
            node.start()
            in_sync(nodes, tools)


def in_order(found: dict[tuple[int, int], str]) -> None:
    """What numbers a partition has are in the order in which they were sent."""
    for at in range(PARTITIONS):
        numbers = [int(found[where]) for where in sorted(found) if where[0] == at]
        assert numbers == sorted(numbers)


class Told:
    """What a program has said so far, a line of JSON at a time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.events: list[Any] = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def all(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["name"] == name]

    def count(self, kind: str) -> int:
        return sum(event[0] == kind for event in list(self.events))

    def end(self) -> None:
        self.process.wait(300)
        self._reader.join()


@contextlib.contextmanager
def verifiable(name: str, nodes: ScribaNodes, *options: str) -> Iterator[Told]:
    line = command(name, "--bootstrap-server", nodes.bootstrap, *options)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Told(process)
        finally:
            process.kill()


def test_javas_verifiable_programs_go_on_through_a_kill_and_a_rolling_restart(
    whole: ScribaNodes, tools: Tools, topic: str, tmp_path: Path
) -> None:
    create(whole, tools, topic)
    with (
        verifiable(
            "verifiable-producer", whole, "--topic", topic, "--max-messages", str(RECORDS),
            "--throughput", "200", "--acks", "-1",
        ) as producer,
        verifiable(
            "verifiable-consumer", whole, "--topic", topic, "--group-id", topic,
            "--reset-policy", "earliest", "--group-protocol", "consumer",
        ) as consumer,
    ):  # fmt: skip

        def read() -> int:
            return sum(event["count"] for event in consumer.all("records_consumed"))

        eventually(lambda: read() > 10)
        leader = whole.nodes[described(whole, tools, topic)[0][0]]
        leader.kill()
        so_far = read()
        eventually(lambda: read() > so_far)
        leader.start()
        in_sync(whole, tools)
        for node in whole.nodes.values():
            assert node.stop() == 0, node.tail()
            node.start()
            in_sync(whole, tools)
        producer.end()
        # It tries nothing again: what was under way to a leader that goes is told as an error.
        (told,) = producer.all("tool_data")
        eventually(lambda: read() >= told["acked"])
        consumer.process.terminate()
        consumer.end()
    acked = {
        (event["partition"], event["offset"]): event["value"]
        for event in producer.all("producer_send_success")
    }
    stored = everything(whole, topic)
    assert (told["sent"], told["acked"]) == (RECORDS, len(acked))
    assert acked.items() <= stored.items(), "each where it was said to be"
    assert len(acked) > RECORDS // 2
    assert len(set(stored.values())) == len(stored), "and none of them twice"


def test_confluents_client_goes_on_through_a_kill_and_a_rolling_restart(
    whole: ScribaNodes, tools: Tools, topic: str
) -> None:
    create(whole, tools, topic)
    acked: dict[str, tuple[int, int | None]] = {}
    problems: list[Any] = []
    stop, flushed = threading.Event(), threading.Event()
    producer = Producer({"bootstrap.servers": whole.bootstrap, "enable.idempotence": True})

    def told(error: Any, record: Any) -> None:
        if error is not None:
            problems.append(error)
        else:
            acked[record.value().decode()] = (record.partition(), record.offset())

    def write() -> None:
        n = 0
        while not stop.is_set():
            producer.produce(topic, b"%d" % n, partition=n % PARTITIONS, on_delivery=told)
            producer.poll(0.002)
            n += 1

    read: dict[tuple[int, int], str] = {}

    def listen() -> None:
        settings = {"bootstrap.servers": whole.bootstrap, "group.id": topic}
        member = Consumer(
            {**settings, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
        )
        member.subscribe([topic])
        while not (flushed.is_set() and {*acked} <= {*read.values()}):
            taken: Any = member.poll(1)
            if taken is not None and taken.error() is None:
                read[taken.partition(), taken.offset()] = taken.value().decode()
        member.close()

    writer, reader = threading.Thread(target=write), threading.Thread(target=listen, daemon=True)
    writer.start()
    reader.start()
    try:
        each_node_goes(whole, tools, lambda: min(len(acked), len(read)))
    finally:
        stop.set()
        writer.join()
    assert producer.flush(300) == 0
    flushed.set()
    assert not problems
    reader.join(300)
    assert not reader.is_alive(), f"{len({*acked} - {*read.values()})} were not read"
    found = everything(whole, topic)
    assert sorted(found.values()) == sorted(acked), "nothing lost, nothing twice"
    assert read == found, "the group has read all of it"
    # Where an answer was lost and a later batch was taken, librdkafka knows that the first one was
    # written, and not where.
    told_where = {at: value for value, at in acked.items() if at[1] is not None}
    assert told_where.items() <= found.items()
    assert len(told_where) > len(acked) // 2
    in_order(found)


def test_streams_counts_exactly_once_through_a_kill_and_a_rolling_restart(
    whole: ScribaNodes, tools: Tools, topic: str, tmp_path: Path
) -> None:
    lines, counted = f"{topic}-lines", f"{topic}-counts"
    for name, partitions in ((lines, 2), (counted, 1)):
        made = ["--create", "--topic", name, "--partitions", str(partitions)]
        run(whole, tools, "topics", *made).ok()
    counts = Counts(whole, counted)
    written = 0
    with counting(whole, topic, tmp_path / "state") as process:

        def more() -> None:
            """The program goes on with what is written now."""
            nonlocal written
            write_lines(whole, lines, LINES)
            written += LINES
            eventually(lambda: counts.total() > (written - LINES) * len(WORDS))

        more()
        leader = whole.nodes[described(whole, tools, lines)[0][0]]
        leader.kill()
        more()
        leader.start()
        in_sync(whole, tools)
        for node in whole.nodes.values():
            assert node.stop() == 0, node.tail()
            node.start()
            in_sync(whole, tools)
            more()
        eventually(lambda: counts.total() >= written * len(WORDS))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(300) == 0
    assert counts.total() == written * len(WORDS)
    assert counts.by_word == {word: list(range(1, written + 1)) for word in WORDS}


def test_kafkajs_writes_and_reads_through_kills_and_a_rolling_restart(
    whole: ScribaNodes, tools: Tools, topic: str
) -> None:
    create(whole, tools, topic)
    with stream(whole, topic, PARTITIONS) as process:
        try:
            told = Told(process)
            each_node_goes(whole, tools, lambda: min(map(told.count, ("sent", "read"))))
            assert process.stdin is not None
            process.stdin.close()
            told.end()
        finally:
            process.kill()
        assert process.returncode == 0
    sent = [str(n) for kind, *rest in told.events if kind == "sent" for n in rest[0]]
    found = everything(whole, topic)
    assert sorted(found.values()) == sorted(sent), "nothing lost, nothing twice"
    in_order(found)
    read = {(rest[0], rest[1]): rest[2] for kind, *rest in told.events if kind == "read"}
    assert read == found


# ---- Kafka's own broker ----


class KafkaObserver(QuickKafka):
    """A broker of Apache Kafka that follows controllers of ours."""

    def __init__(self, data: Path, nodes: ScribaNodes) -> None:
        super().__init__(data)
        self.nodes = nodes

    def prepare(self) -> None:
        self.port = self.port or free_port()
        controllers = (f"{HOST}:{node.ports['CONTROLLER']}" for node in self.nodes.nodes.values())
        listener = f"PLAINTEXT://{self.bootstrap},INTERNAL://{HOST}:{free_port()}"
        properties = {
            **KAFKA_PROPERTIES,
            "process.roles": "broker",
            "node.id": "9",
            "controller.quorum.bootstrap.servers": ",".join(controllers),
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": PROTOCOLS,
            "listeners": listener,
            "advertised.listeners": listener,
            "log.dirs": str(self.log_dir),
        }
        self._config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
        if not (self.log_dir / "meta.properties").exists():
            where = ["-t", self.nodes.cluster_id(), "-c", str(self._config)]
            kafka_jars.tool("storage", "format", "--no-initial-controllers", *where).ok()


def test_a_broker_of_apache_kafka_follows_our_controllers_and_is_unfenced(
    whole: ScribaNodes, tools: Tools, topic: str, tmp_path: Path
) -> None:
    create(whole, tools, topic)
    observer = KafkaObserver(tmp_path / "kafka", whole)
    try:
        observer.start()

        def unfenced() -> bool:
            told = tools.run(
                "cluster", "list-endpoints", "--bootstrap-server", whole.bootstrap
            ).ok()
            return re.search(r"^9\s.*unfenced", told, re.M) is not None

        eventually(unfenced)
        told = run(whole, tools, "metadata-quorum", "describe", "--replication").ok()
        assert re.search(r"^9\s.*Observer", told, re.M), told
        status = tools.run("topics", "--bootstrap-server", observer.bootstrap, "--list").ok()
        assert topic in status.split(), "it knows what the metadata log says"
        whole.nodes[1].kill()
        create(whole, tools, f"{topic}-after")
        eventually(
            lambda: (
                f"{topic}-after"
                in tools.run("topics", "--bootstrap-server", observer.bootstrap, "--list")
                .ok()
                .split()
            )
        )
        eventually(unfenced)
    finally:
        observer.kill()
        tools.run("cluster", "unregister", "--bootstrap-server", whole.bootstrap, "--id", "9")
