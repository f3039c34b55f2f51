"""One cluster of Apache Kafka and Scriba, under the controllers of either.

Each broker leads, follows, coordinates groups and transactions, and writes markers to the other.
Each is killed and stopped while a client writes. What was acknowledged is there, once and in order,
and both replicas end with the same bytes.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka.protocol.metadata import FindCoordinatorRequest

from scriba.client import SyncAdmin, SyncProducer, UpgradeType
from tools.kafka.broker_fixtures import eventually
from tools.kafka.clusters import create, described
from tools.kafka.kafka_jars import Tools
from tools.kafka.mixed import (
    CONTROLLER,
    KAFKA,
    SCRIBA,
    MixedCluster,
    MixedScriba,
    running_mixed,
)

PARTITIONS = 2
OURS, THEIRS = 0, 1
"""Partitions by who leads them at first: each has the other broker as its second replica."""
OLD, NEW = 21, 30
"""Levels of metadata.version: 3.9-IV0 and 4.3-IV0."""
FORMAT = [
    f"--feature=metadata.version={OLD}",
    "--feature=group.version=1",
    "--feature=transaction.version=2",
    "--feature=share.version=0",
    "--feature=streams.version=0",
]
"""Kafka's controller makes a cluster of an older level. What Scriba lacks is off in it."""
BROKERS = (SCRIBA, KAFKA)
GROUP, TRANSACTION = 0, 1


@pytest.fixture(scope="module", params=["scriba", "kafka"])
def mixed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tools: Tools
) -> Iterator[MixedCluster]:
    folder = tmp_path_factory.mktemp(f"mixed-{request.param}")
    with running_mixed(folder, request.param, tools, format=FORMAT) as made:
        yield made


def new_topic(cluster: MixedCluster, topic: str) -> None:
    """One partition led by each broker."""
    with cluster.connect(SCRIBA) as connection:
        eventually(lambda: len(cluster.members(connection)) == 2)
        assert create(connection, topic, [[SCRIBA, KAFKA], [KAFKA, SCRIBA]]) == ""
    whole(cluster, topic)


def leaders(cluster: MixedCluster, topic: str, asked: int = SCRIBA) -> dict[int, int]:
    with cluster.connect(asked) as connection:
        return {at: each.leader_id for at, each in described(connection, topic).items()}


def whole(cluster: MixedCluster, topic: str) -> None:
    """Until both brokers say that both replicas of each partition are in sync."""

    def in_sync() -> bool:
        found = []
        for number in BROKERS:
            with cluster.connect(number) as connection:
                found += [set(each.isr_nodes) for each in described(connection, topic).values()]
        return len(found) == 2 * PARTITIONS and all(isr == {*BROKERS} for isr in found)

    eventually(in_sync)


def elect(cluster: MixedCluster, topic: str) -> None:
    """Asks for the preferred leaders, and waits until both brokers know of them."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = [TopicPartition(topic, at) for at in range(PARTITIONS)]
    done = admin.elect_leaders(ElectionType.PREFERRED, wanted).result(300)
    codes = {e.code() for e in done.values() if e is not None}
    assert codes <= {KafkaError.ELECTION_NOT_NEEDED}, done
    for number in BROKERS:
        eventually(
            lambda: leaders(cluster, topic, number) == {OURS: SCRIBA, THEIRS: KAFKA}  # noqa: B023
        )


def coordinated_by(cluster: MixedCluster, number: int, kind: int, prefix: str) -> str:
    """A group or transactional id whose coordinator is this broker."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.elect_leaders(ElectionType.PREFERRED, None).result(300)  # one may lead all after a kill
    with cluster.connect(SCRIBA) as connection:
        for n in range(1000):
            request = FindCoordinatorRequest(key=f"{prefix}-{n}", key_type=kind)

            def known(request: Any = request) -> bool:
                return bool(connection.call(request, 2).error_code == 0)

            eventually(known)
            if connection.call(request, 2).node_id == number:
                return f"{prefix}-{n}"
    raise AssertionError(f"broker {number} coordinates nothing")


def everything(cluster: MixedCluster, topic: str, **settings: Any) -> dict[int, list[str]]:
    """Values by partition, in the order of their offsets."""
    told = {"bootstrap.servers": cluster.bootstrap, "group.id": "none", **settings}
    consumer = Consumer({**told, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    found: dict[int, list[str]] = {at: [] for at in range(PARTITIONS)}
    ends: set[int] = set()
    while len(ends) < PARTITIONS:
        taken: Any = consumer.poll(300)
        assert taken is not None
        if taken.error() is None:
            found[taken.partition()].append(taken.value().decode())
        elif taken.error().code() == KafkaError._PARTITION_EOF:
            ends.add(taken.partition())
    consumer.close()
    return found


class Writer:
    """An idempotent producer that goes on until it is told to end, and what it was told."""

    def __init__(self, cluster: MixedCluster, topic: str) -> None:
        self.topic = topic
        self.acked: list[tuple[int, str]] = []
        self.problems: list[Any] = []
        settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
        self._producer = Producer({**settings, "linger.ms": 5})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(300) == 0

    def _told(self, error: Any, record: Any) -> None:
        if error is not None:
            self.problems.append(error)
        else:
            self.acked.append((record.partition(), record.value().decode()))

    def _write(self) -> None:
        for n in itertools.count():
            if self._stop.is_set():
                return
            self._producer.produce(
                self.topic, b"%d" % n, partition=n % PARTITIONS, on_delivery=self._told
            )
            self._producer.poll(0.005)

    def goes_on(self, count: int = 50) -> None:
        """Until so many more were acknowledged, in each partition."""
        so_far = len(self.acked)

        def more() -> bool:
            new = [at for at, _ in self.acked[so_far:]]
            return all(new.count(at) >= count // PARTITIONS for at in range(PARTITIONS))

        eventually(more)


def test_each_leads_and_each_follows_through_kills_and_restarts(
    mixed: MixedCluster, topic: str
) -> None:
    new_topic(mixed, topic)
    assert leaders(mixed, topic) == leaders(mixed, topic, KAFKA) == {OURS: SCRIBA, THEIRS: KAFKA}
    with Writer(mixed, topic) as writer:
        writer.goes_on()
        for way, (number, other) in itertools.product(
            ("kill", "stop"), ((SCRIBA, KAFKA), (KAFKA, SCRIBA))
        ):
            node = mixed.nodes[number]
            if way == "kill":
                node.kill()
            else:
                assert node.stop() in (0, 143), node.tail()
            eventually(lambda: set(leaders(mixed, topic, other).values()) == {other})  # noqa: B023
            writer.goes_on()
            node.start()
            whole(mixed, topic)
            elect(mixed, topic)
            writer.goes_on()
    assert not writer.problems
    stored = everything(mixed, topic)
    for at in range(PARTITIONS):
        assert stored[at] == [value for each, value in writer.acked if each == at]
    eventually(lambda: same_bytes(mixed, topic))


def same_bytes(cluster: MixedCluster, topic: str) -> bool:
    """Whether the replicas of each partition are the same, which a follower needs a moment for."""
    pairs = [
        [log(cluster.nodes[number].log_dir / f"{topic}-{at}") for number in BROKERS]
        for at in range(PARTITIONS)
    ]
    assert all(a or b for a, b in pairs)
    return all(a == b for a, b in pairs)


def log(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("coordinator", BROKERS)
def test_a_group_of_either_coordinator_reads_what_both_lead(
    mixed: MixedCluster, topic: str, coordinator: int, protocol: str
) -> None:
    new_topic(mixed, topic)
    group = coordinated_by(mixed, coordinator, GROUP, topic)
    wanted = produce(mixed, topic, 20)
    settings = {
        "bootstrap.servers": mixed.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found = read(consumer, len(wanted))
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(found) == sorted(wanted)
    more = produce(mixed, topic, 10)
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    assert sorted(read(consumer, len(more))) == sorted(more), "it goes on where it was"
    consumer.close()


def produce(cluster: MixedCluster, topic: str, count: int) -> list[str]:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    values = [f"{n}" for n in range(count)]
    for n, value in enumerate(values):
        producer.produce(topic, value, partition=n % PARTITIONS)
    assert producer.flush(300) == 0
    return values


def read(consumer: Consumer, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        taken: Any = consumer.poll(300)
        assert taken is not None
        assert taken.error() is None, taken.error()
        found.append(taken.value().decode())
    return found


def by_confluent(cluster: MixedCluster, tid: str, topic: str, groups: list[str]) -> None:
    """Transactions of the first generation: the client adds partitions, their leaders ask."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": tid})
    producer.init_transactions(300)
    for n, group in enumerate(groups):
        for name, end in (("kept", producer.commit_transaction), ("not", abort(producer))):
            producer.begin_transaction()
            for at in range(PARTITIONS):
                producer.produce(topic, f"{name}-{n}", partition=at)
            reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
            here = [TopicPartition(topic, at, n + len(name)) for at in range(PARTITIONS)]
            producer.send_offsets_to_transaction(here, reader.consumer_group_metadata(), 300)
            end(300)
            reader.close()


def abort(producer: Producer) -> Callable[[float], None]:
    def end(timeout: float) -> None:
        assert producer.flush(timeout) == 0, "librdkafka cannot abort what it has not added yet"
        producer.abort_transaction(timeout)

    return end


def by_ours(cluster: MixedCluster, tid: str, topic: str, groups: list[str]) -> None:
    """Transactions of the second generation: the partitions' leaders add them (KIP-890)."""
    with SyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id=tid) as producer:
        for n, group in enumerate(groups):
            for name, end in (
                ("kept", producer.commit_transaction),
                ("not", producer.abort_transaction),
            ):
                producer.begin_transaction()
                for at in range(PARTITIONS):
                    producer.send(topic, f"{name}-{n}".encode(), partition=at)
                here = {(topic, at): n + len(name) for at in range(PARTITIONS)}
                producer.send_offsets_to_transaction(here, group)
                end()


@pytest.mark.parametrize("client", [by_confluent, by_ours])
@pytest.mark.parametrize("coordinator", BROKERS)
def test_a_transaction_of_either_coordinator_ends_in_what_both_lead(
    mixed: MixedCluster,
    topic: str,
    coordinator: int,
    client: Callable[[MixedCluster, str, str, list[str]], None],
) -> None:
    new_topic(mixed, topic)
    tid = coordinated_by(mixed, coordinator, TRANSACTION, topic)
    groups = [coordinated_by(mixed, number, GROUP, f"{topic}-g") for number in BROKERS]
    client(mixed, tid, topic, groups)
    last = produce(mixed, topic, PARTITIONS)
    found = everything(mixed, topic, **{"isolation.level": "read_committed"})
    for at in range(PARTITIONS):
        assert found[at] == ["kept-0", "kept-1", last[at]]
    admin = AdminClient({"bootstrap.servers": mixed.bootstrap})
    for n, group in enumerate(groups):

        def offsets(group: str = group) -> set[int]:
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            (answer,) = (each.result(300) for each in asked.values())
            return {each.offset for each in answer.topic_partitions}

        eventually(lambda: offsets() == {n + len("kept")})  # noqa: B023
    whole(mixed, topic)
    eventually(lambda: same_bytes(mixed, topic))


def finalised(cluster: MixedCluster) -> set[int | None]:
    """The levels of the metadata that the brokers tell their clients."""
    found = set()
    for number in BROKERS:
        with SyncAdmin(bootstrap_servers=cluster.nodes[number].bootstrap) as admin:
            found.add(admin.describe_features()["metadata.version"].finalized)
    return found


def test_the_level_of_the_metadata_goes_up_and_down_under_both(
    mixed: MixedCluster, topic: str
) -> None:
    steps: list[tuple[int, dict[str, int]]] = [(NEW, {"metadata.version": NEW})]
    if isinstance(mixed.nodes[CONTROLLER], MixedScriba):
        lower = {"metadata.version": OLD, "eligible.leader.replicas.version": 0}
        steps = [(OLD, lower), *steps]  # Kafka lowers no level that has changed its records
    with SyncAdmin(bootstrap_servers=mixed.bootstrap) as admin:
        for level, wanted in steps:
            down = level == OLD
            kind = UpgradeType.SAFE_DOWNGRADE if down else UpgradeType.UPGRADE
            admin.update_features(wanted, upgrade_type=kind)
            eventually(lambda: finalised(mixed) == {level})  # noqa: B023
            name = f"{topic}-{level}"
            new_topic(mixed, name)
            values = produce(mixed, name, 10)
            mixed.nodes[SCRIBA].kill()
            eventually(lambda: set(leaders(mixed, name, KAFKA).values()) == {KAFKA})  # noqa: B023
            values += produce(mixed, name, 10)
            mixed.nodes[SCRIBA].start()
            whole(mixed, name)
            found = everything(mixed, name)
            assert sorted(found[OURS] + found[THEIRS]) == sorted(values)


def test_a_broker_of_scriba_serves_nobody_while_there_are_acls(
    mixed: MixedCluster, topic: str, tools: Tools
) -> None:
    new_topic(mixed, topic)
    where = ["--bootstrap-controller", mixed.nodes[CONTROLLER].bootstrap]
    rule = ["--allow-principal", "User:alice", "--operation", "Read", "--topic", topic]
    made = tools.run("acls", *where, "--add", *rule)
    if isinstance(mixed.nodes[CONTROLLER], MixedScriba):
        assert made.code == 1, "our controllers make no rules that nobody keeps"
        return
    made.ok()
    with mixed.connect(KAFKA) as connection:
        eventually(lambda: mixed.members(connection) == [KAFKA])
        eventually(lambda: set(leaders(mixed, topic, KAFKA).values()) == {KAFKA})
        tools.run("acls", *where, "--remove", "--force", *rule).ok()
        eventually(lambda: sorted(mixed.members(connection)) == sorted(BROKERS))
    whole(mixed, topic)
    elect(mixed, topic)
    assert len(produce(mixed, topic, 10)) == 10
