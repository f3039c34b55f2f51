"""Whoever takes part in a move of replicas is killed at each of its steps, with processes.

A move is brought to a point and held there, somebody is killed with -9 and started again, and the
move is let go. Afterwards the replicas are where they were asked to be, every acknowledged record
is there once, nothing is left where it was before, and no throttle stays behind. Somebody writes
all the while.

`make test` plays a few, and `tests/faults/test_cluster_processes.py` kills in a move just begun;
`make chaos` plays each point with each part.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scriba.cli.main import main
from scriba.client import (
    ClientError,
    ConfigOp,
    ConfigResource,
    NewTopic,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from scriba.config import Source
from tests.integration.commands import Done, begin
from tools.kafka.broker_fixtures import SWIFT
from tools.kafka.brokers import PATIENCE
from tools.kafka.scriba_nodes import ScribaNode, ScribaNodes, running_nodes

SOURCE, TARGET, OTHER = 1, 2, 3
BEFORE = 40
"""Records that there are when a move begins; each is a batch of its own, and goes whole."""
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
BETWEEN = "replica.alter.log.dirs.io.max.bytes.per.second"
SLOW, FAST = "1", "100000000"
_numbers = itertools.count()
CHAOS = "SCRIBA_CHAOS" in os.environ


def until(true: Callable[[], bool]) -> None:
    """Until it is so; whoever is asked may be dead just now."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if true():
                return
        except ClientError:
            pass
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


class Stage:
    """Three nodes with two log directories each, and a topic that moves."""

    def __init__(self, nodes: ScribaNodes, folder: Path, topic: str) -> None:
        self.nodes = nodes.nodes
        self.bootstrap = nodes.bootstrap
        self.topic = topic
        self._folder = folder
        self.acknowledged = 0

    # ---- what is done to it ----

    def make(self, *replicas: list[int]) -> None:
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, assignments=dict(enumerate(replicas)))])
        self.write(BEFORE)
        with SyncProducer(bootstrap_servers=self.bootstrap, linger_ms=0) as producer:
            for partition in range(1, len(replicas)):
                for _ in range(10):
                    producer.send(self.topic, b"x" * 1000, partition=partition)

    def write(self, count: int) -> None:
        with SyncProducer(bootstrap_servers=self.bootstrap, acks="all", linger_ms=0) as producer:
            for _ in range(count):
                self._send(producer)

    def _send(self, producer: SyncProducer) -> None:
        value = b"%06d " % self.acknowledged + b"x" * 1000
        producer.send(self.topic, value, partition=0)
        self.acknowledged += 1

    @contextmanager
    def written_to(self) -> Iterator[None]:
        """Somebody writes, one record after the other."""
        stopping = threading.Event()
        errors: list[BaseException] = []

        def live() -> None:
            try:
                with SyncProducer(bootstrap_servers=self.bootstrap, acks="all") as producer:
                    while not stopping.wait(0.05):
                        self._send(producer)
            except BaseException as error:
                errors.append(error)

        writer = threading.Thread(target=live)
        writer.start()
        try:
            yield
        finally:
            stopping.set()
            writer.join(PATIENCE)
        assert errors == []
        assert not writer.is_alive()

    def ask(self, *replicas: int) -> None:
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            admin.alter_partition_reassignments({(self.topic, 0): replicas})

    def hold(self, *followers: int) -> None:
        """New replicas on these brokers get nothing more than a batch, until `let_go`."""
        named = ",".join(f"0:{broker}" for broker in followers)
        rate = (RATES[1], ConfigOp.SET, SLOW)
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            admin.incremental_alter_configs(
                {
                    **{ConfigResource.broker(broker): [rate] for broker in followers},
                    ConfigResource.topic(self.topic): [(REPLICAS[1], ConfigOp.SET, named)],
                }
            )

    def pace(self, rate: str, names: tuple[str, ...] = RATES) -> None:
        """Another rate for all brokers."""
        ops = [(name, ConfigOp.SET, rate) for name in names]
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            admin.incremental_alter_configs(
                {ConfigResource.broker(broker): ops for broker in self.nodes}
            )

    def let_go(self) -> None:
        nothing = [(name, ConfigOp.DELETE, None) for name in (*RATES, BETWEEN)]
        unnamed = [(name, ConfigOp.DELETE, None) for name in REPLICAS]
        live = [broker for broker, node in self.nodes.items() if node.alive]
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            admin.incremental_alter_configs(
                {
                    **{ConfigResource.broker(broker): nothing for broker in live},
                    ConfigResource.topic(self.topic): unnamed,
                }
            )

    def kill(self, node: ScribaNode) -> None:
        node.kill()
        node.start()

    # ---- what is so ----

    def replicas(self, partition: int = 0) -> tuple[list[int], set[int]]:
        """All of them, and those in sync."""
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            found = admin.describe_topics([self.topic])[self.topic].partitions[partition]
        return list(found.replicas), {*found.isr}

    def under_way(self) -> int:
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            return len([at for at in admin.list_partition_reassignments() if at[0] == self.topic])

    def controller(self) -> ScribaNode:
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            return self.nodes[admin.describe_quorum().leader]

    def dirs(self, broker: int) -> list[Path]:
        return [self._folder / f"data-{broker}" / name for name in ("one", "two")]

    def entries(self, broker: int, kind: str = "") -> list[Path]:
        """Directories of the partition 0: the current one, or one that is `-future`."""
        pattern = f"{self.topic}-0.*{kind}" if kind else f"{self.topic}-0"
        return [each for home in self.dirs(broker) for each in home.glob(pattern)]

    def log(self, broker: int, kind: str = "") -> bytes:
        return b"".join(
            part.read_bytes()
            for entry in self.entries(broker, kind)
            for part in sorted(entry.glob("*.log"))
        )

    def throttles(self) -> set[str]:
        resources = [*map(ConfigResource.broker, self.nodes), ConfigResource.topic(self.topic)]
        with SyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            found = admin.describe_configs(resources, names=[*RATES, *REPLICAS, BETWEEN])
        return {
            f"{resource} {entry.name}"
            for resource, entries in found.items()
            for entry in entries.values()
            if entry.source != Source.DEFAULT_CONFIG
        }

    def is_whole(self, *replicas: int) -> None:
        """They are the replicas, alike, with every record once; nobody else has any of it."""
        until(lambda: self.replicas() == ([*replicas], {*replicas}) and self.under_way() == 0)
        gone = {*self.nodes} - {*replicas}
        until(lambda: not any(self.entries(broker) for broker in gone))
        until(lambda: not any(self.entries(broker, "-future") for broker in self.nodes))
        assert self.throttles() == set()
        found: list[int] = []
        with SyncConsumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([(self.topic, 0)])

            def read() -> bool:
                found.extend(int((r.value or b"-1")[:6]) for r in consumer.poll(timeout_ms=500))
                return len(found) >= self.acknowledged

            until(read)
        assert found == list(range(self.acknowledged))
        until(lambda: len({self.log(broker) for broker in replicas}) == 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("moves")


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[ScribaNodes]:
    settings = {
        **SWIFT,
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "log.dirs": ",".join(f"{folder}/data-{{node}}/{name}" for name in ("one", "two")),
    }
    with running_nodes(folder, settings) as made:
        yield made


@pytest.fixture
def stage(nodes: ScribaNodes, folder: Path) -> Iterator[Stage]:
    topic = f"moved-{next(_numbers)}"
    made = Stage(nodes, folder, topic)
    yield made
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.delete_topics([topic])


# ---- between brokers ----


def added(stage: Stage) -> list[int]:
    """The new replica is one of the partition, and has next to nothing."""
    stage.hold(TARGET)
    stage.ask(TARGET)
    until(lambda: set(stage.replicas()[0]) == {SOURCE, TARGET})
    return [TARGET]


def catching_up(stage: Stage) -> list[int]:
    """It has some of the records, and lacks others."""
    stage.hold(TARGET)
    stage.ask(TARGET)
    until(lambda: 0 < len(stage.log(TARGET)) < len(stage.log(SOURCE)))
    return [TARGET]


def joined(stage: Stage) -> list[int]:
    """One new replica is in sync, and another one is not: nobody may go yet."""
    stage.hold(OTHER)
    stage.ask(TARGET, OTHER)
    until(lambda: stage.replicas()[1] == {SOURCE, TARGET})
    return [TARGET, OTHER]


def removing(stage: Stage) -> list[int]:
    """The move is done for the controller; the old replica's files go, or are there still."""
    stage.ask(TARGET)
    until(lambda: stage.replicas()[0] == [TARGET])
    return [TARGET]


POINTS = {each.__name__: each for each in (added, catching_up, joined, removing)}
PARTS = ("source", "target", "controller")
KILLED = [(point, part) for point in POINTS for part in PARTS]
FEW = [("joined", "source"), ("removing", "source")]


@pytest.mark.parametrize(("point", "part"), KILLED if CHAOS else FEW)
def test_whoever_dies_in_a_move_delays_it(stage: Stage, point: str, part: str) -> None:
    stage.make([SOURCE])
    with stage.written_to():
        wanted = POINTS[point](stage)
        dies = {"source": stage.nodes[SOURCE], "target": stage.nodes[TARGET]}.get(part)
        dies = dies or stage.controller()
        dies.kill()
        if point == "joined" and part == "source":
            # Another leads; the move ends without the one that is to go.
            stage.let_go()
            until(lambda: stage.under_way() == 0)
        dies.start()
        stage.let_go()
        until(lambda: stage.under_way() == 0)
    stage.is_whole(*wanted)


# ---- between directories ----


def elsewhere(stage: Stage, broker: int) -> str:
    """The directory in which the replica is not."""
    [here] = stage.entries(broker)
    return next(str(home) for home in stage.dirs(broker) if home != here.parent)


def move_dir(stage: Stage, to: str) -> None:
    """Asked of the broker itself, which needs no controller for it."""
    with SyncAdmin(bootstrap_servers=stage.nodes[SOURCE].address) as admin:
        admin.alter_replica_log_dirs(SOURCE, {(stage.topic, 0): to})


def copying(stage: Stage, to: str) -> None:
    stage.pace(SLOW, (BETWEEN,))
    move_dir(stage, to)
    until(lambda: 0 < len(stage.log(SOURCE, "-future")) < len(stage.log(SOURCE)))


def copied(stage: Stage, to: str) -> None:
    """All is there, and the controllers, of which no majority answers, have not been told."""
    for other in (TARGET, OTHER):
        stage.nodes[other].pause()
    move_dir(stage, to)
    until(lambda: len(stage.log(SOURCE, "-future")) == len(stage.log(SOURCE)))


def switched(stage: Stage, to: str) -> None:
    """The new one serves; the old one's files are there still."""
    move_dir(stage, to)
    until(lambda: [each.parent for each in stage.entries(SOURCE)] == [Path(to)])


DIR_POINTS = {each.__name__: each for each in (copying, copied, switched)}
DIRS_KILLED = [(point, part) for point in DIR_POINTS for part in ("broker", "controller")]


@pytest.mark.parametrize(("point", "part"), DIRS_KILLED if CHAOS else [("copied", "broker")])
def test_whoever_dies_in_a_move_between_directories_delays_it(
    stage: Stage, point: str, part: str
) -> None:
    stage.make([SOURCE])
    to = elsewhere(stage, SOURCE)
    dies = stage.nodes[SOURCE] if part == "broker" else stage.controller()
    DIR_POINTS[point](stage, to)
    dies.kill()
    for node in stage.nodes.values():
        if node.paused:
            node.resume()
    dies.start()
    stage.let_go()
    stage.write(10)
    until(lambda: [each.parent for each in stage.entries(SOURCE)] == [Path(to)])
    stage.is_whole(SOURCE)


# ---- commands ----


def drain(stage: Stage) -> tuple[str, ...]:
    stage.make(*4 * [[SOURCE]])
    return "drain", str(SOURCE)


def balance(stage: Stage) -> tuple[str, ...]:
    stage.make(*6 * [[SOURCE]])
    return ("balance",)


COMMANDS = {each.__name__: each for each in (drain, balance)}


@pytest.mark.parametrize("command", COMMANDS if CHAOS else ["drain"])
def test_a_command_that_dies_with_the_controller_is_given_again(
    stage: Stage, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("cluster", *COMMANDS[command](stage), "--at-once", "2", "--throttle")
    running = begin(stage.bootstrap, *words, SLOW)
    until(lambda: stage.under_way() == 2)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=PATIENCE)
    stage.kill(stage.controller())
    until(lambda: stage.under_way() == 2)
    stage.pace(FAST)
    code = main([*words, FAST, "--bootstrap", stage.bootstrap, "--timeout", str(PATIENCE)])
    done = Done(code, *capsys.readouterr())
    assert done.code == 0, done
    held = [stage.replicas(at)[0] for at in range(4 if command == "drain" else 6)]
    if command == "drain":
        assert all(SOURCE not in each for each in held)
    else:
        assert sorted(itertools.chain(*held)) == [1, 1, 2, 2, 3, 3]
    stage.is_whole(*held[0])


def test_a_throttle_that_a_dead_command_left_is_taken_back_by_the_next(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """All has moved when it dies; only the throttles are left to be done."""
    stage.make([SOURCE])
    words = ("cluster", "reassign", stage.topic, "--to", str(TARGET), "--throttle")
    running = begin(stage.bootstrap, *words, SLOW)
    until(lambda: stage.under_way() == 1)
    os.kill(running.pid, signal.SIGSTOP)
    stage.pace(FAST)
    until(lambda: stage.under_way() == 0)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=PATIENCE)
    assert stage.throttles()
    code = main([*words, FAST, "--bootstrap", stage.bootstrap, "--timeout", str(PATIENCE)])
    done = Done(code, *capsys.readouterr())
    assert done.code == 0, done
    stage.is_whole(TARGET)
