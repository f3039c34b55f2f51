"""`scriba cluster reassign`, `drain`, `add`, `balance`, `unregister` and `may-restart` as a person
types them."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scriba.cli.cluster import directories
from scriba.cli.cluster.cordons import CORDONS
from scriba.cli.cluster.throttles import RATES
from scriba.cli.main import main
from scriba.client import (
    BrokerError,
    ConfigOp,
    ConfigResource,
    NewTopic,
    SyncAdmin,
    SyncProducer,
)
from scriba.config import Source
from tests.integration.commands import Done, begin
from tools.kafka.broker_fixtures import SWIFT, eventually
from tools.kafka.scriba_nodes import ScribaNodes, running_nodes

SETTINGS = {**SWIFT, "broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScribaNodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), SETTINGS) as made:
        yield made


def replicas(nodes: ScribaNodes, topic: str) -> list[tuple[int, ...]]:
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        return [each.replicas for each in admin.describe_topics([topic])[topic].partitions]


def at(nodes: ScribaNodes) -> list[str]:
    return ["--bootstrap", nodes.bootstrap]


def cordoned(nodes: ScribaNodes, broker: int) -> list[bool]:
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        return [each.cordoned for each in admin.describe_log_dirs([broker])[broker]]


def takes_topics(nodes: ScribaNodes, broker: int) -> bool:
    """Whether a topic with a replica for every broker could be made."""
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        try:
            admin.create_topics([NewTopic("trial", 1, 3)], validate_only=True)
        except BrokerError:
            return False
        return True


def test_replicas_move_as_it_is_typed(
    nodes: ScribaNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main(["cluster", *words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    topic = NewTopic("moved", assignments={0: [1], 1: [1], 2: [1]})
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([topic])
    with SyncProducer(bootstrap_servers=nodes.bootstrap) as producer:
        for n in range(30):
            producer.send("moved", b"x" * 1000, partition=n % 3)
    hurt = typed("may-restart", "1")
    assert hurt.code == 1
    assert "moved-0 would be offline: no other replica is in sync" in hurt.out
    planned = typed("balance", "--dry-run", "--json").json
    assert {b["id"]: b["replicas"] for b in planned["brokers"]} == {1: [3, 1], 2: [0, 1], 3: [0, 1]}
    assert replicas(nodes, "moved") == [(1,)] * 3
    balanced = typed("balance", "--throttle", "50000000", "--at-once", "1")
    assert balanced.code == 0
    assert "2 partitions moved" in balanced.err
    assert sorted(replicas(nodes, "moved")) == [(1,), (2,), (3,)]
    grown = typed("reassign", "moved", "--to", "1,2,3")
    assert grown.code == 0
    assert replicas(nodes, "moved") == [(1, 2, 3)] * 3
    assert typed("may-restart", "2").out == "node 2 may restart\n"
    assert "needs 3 brokers, and 2 would stay" in typed("drain", "3").line
    plan = tmp_path / "plan.json"
    moves = [{"topic": "moved", "partition": n, "replicas": [3, 1]} for n in range(3)]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    assert typed("reassign", "--file", str(plan)).code == 0
    drained = typed("drain", "3")
    assert drained.code == 0
    assert "broker 3 is cordoned and gets no new replicas; scriba config set" in drained.err
    assert all(3 not in each for each in replicas(nodes, "moved"))
    again = typed("drain", "3")
    assert "every replica is where it should be" in again.out
    assert again.err == ""
    assert typed("balance", "--dry-run", "--json").json["partitions"] == []
    refused = typed("reassign", "moved", "--to", "1,3").line
    assert "names broker 3, whose log directories are all cordoned" in refused
    assert "choose from 1, 2" in refused
    assert "lift the cordon: scriba config set --broker 3" in typed("add", "3").line
    eventually(lambda: not takes_topics(nodes, 3))
    assert main(["config", "set", "--broker", "3", "--delete", CORDONS, *at(nodes)]) == 0
    capsys.readouterr()
    eventually(lambda: cordoned(nodes, 3) == [False])
    assert typed("reassign", "--list", "--json").json == []
    assert typed("reassign", "--cancel").out == "nothing was under way\n"


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_goes_on_after_it_was_ended(
    nodes: ScribaNodes, topic: str, signal_: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is under way goes on, the rest follows, and the throttle is taken back."""

    def typed(*words: str) -> Done:
        code = main(["cluster", *words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    def under_way() -> list[Any]:
        found: list[Any] = typed("reassign", "--list", "--json").json
        return [each for each in found if each["topic"] == topic]

    def throttles() -> set[str | None]:
        resources = [*(ConfigResource.broker(n) for n in (1, 2, 3)), ConfigResource.topic(topic)]
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
            found = admin.describe_configs(resources)
        return {
            entry.name
            for entries in found.values()
            for entry in entries.values()
            if "throttled" in entry.name and entry.source != Source.DEFAULT_CONFIG
        }

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={n: [1] for n in range(4)})])
    with SyncProducer(bootstrap_servers=nodes.bootstrap, linger_ms=0) as producer:
        for n in range(120):
            producer.send(topic, b"x" * 1000, partition=n % 4)
    words = ("reassign", topic, "--to", "2", "--at-once", "2", "--throttle", "1")
    running = begin(nodes.bootstrap, "cluster", *words)
    eventually(lambda: len(under_way()) == 2)
    running.send_signal(signal_)
    running.communicate(timeout=300)
    assert len(under_way()) == 2, "slow as it is, and without whoever began it"
    assert replicas(nodes, topic)[2:] == [(1,), (1,)], "the rest has not begun"
    assert len(throttles()) == 4
    faster = {
        ConfigResource.broker(n): [
            (f"{side}.replication.throttled.rate", ConfigOp.SET, "100000000")
            for side in ("leader", "follower")
        ]
        for n in (1, 2, 3)
    }
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.incremental_alter_configs(faster)
    again = typed(*words[:-1], "100000000")
    assert again.code == 0, again.err
    assert replicas(nodes, topic) == [(2,)] * 4
    assert throttles() == set()


def test_what_cannot_be_is_refused_in_one_line(
    nodes: ScribaNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main(["cluster", *words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic("stays", assignments={0: [1]})])
    assert "names broker 9, which is not there" in typed("reassign", "stays", "--to", "9").line
    assert "names broker 1 twice" in typed("reassign", "stays", "--to", "1,1").line
    assert "there is no broker 9; there are 1, 2, 3" in typed("drain", "9").line
    assert "broker 2 is named twice; name each once" in typed("drain", "2", "2").line
    assert "there is no broker 9; there are 1, 2, 3" in typed("add", "9").line
    assert "broker 3 is named twice; name each once" in typed("add", "3", "3").line
    assert "there is no broker 9; there are 1, 2, 3" in typed("unregister", "9").line
    assert "there is no node 9; there are 1, 2, 3" in typed("may-restart", "9").line
    assert "where to is not said" in typed("reassign", "stays").err
    assert "one of --file, --list, --cancel" in typed("reassign").err
    with pytest.raises(SystemExit):
        main(["cluster", "balance", "--throttle", "10M"])
    misused = capsys.readouterr().err
    assert "'10M' is not a whole number; write it in digits, without a unit" in misused
    for words in ("--cancel --to 2", "--list --throttle 9", "--file x --to 2"):
        idle = typed("reassign", *words.split())
        assert (idle.code, idle.out) == (2, "")
        assert " says nothing beside --" in idle.err
    plan = tmp_path / "plan.json"
    twice = [{"topic": "stays", "partition": 0, "replicas": [n]} for n in (2, 3)]
    plan.write_text(json.dumps({"version": 1, "partitions": twice}))
    assert "names stays-0 twice" in typed("reassign", "--file", str(plan)).line
    assert "No such file" in typed("reassign", "--file", str(tmp_path / "none")).line
    rate = {ConfigResource.broker(2): [("follower.replication.throttled.rate", ConfigOp.SET, "7")]}
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.incremental_alter_configs(rate)
    refused = typed("reassign", "stays", "--to", "3", "--throttle", "1000")
    assert "follower.replication.throttled.rate=7, set by somebody else" in refused.err
    assert refused.code == 1
    given_up = typed("drain", "1", "--throttle", "1000")
    assert "follower.replication.throttled.rate=7, set by somebody else" in given_up.err
    assert "nothing was moved: broker 1 is no longer cordoned" in given_up.err
    eventually(lambda: cordoned(nodes, 1) == [False])
    left = typed("reassign", "stays", "--to", "3")
    assert "throttled.rate=7: --throttle 7 takes it back" in left.err
    assert replicas(nodes, "stays") == [(3,)]
    assert typed("reassign", "stays", "--to", "1").code == 0
    assert typed("reassign", "--cancel").code == 0
    assert replicas(nodes, "stays") == [(1,)]


def test_a_replica_that_is_in_its_directory_already_is_not_said_to_have_moved(
    nodes: ScribaNodes, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={0: [2]})])
        (directory,) = admin.describe_log_dirs([2])[2]
    plan = tmp_path / "plan.json"
    there = {"topic": topic, "partition": 0, "replicas": [2], "log_dirs": [directory.path]}
    plan.write_text(json.dumps({"version": 1, "partitions": [there]}))
    for words in ([topic, "--dir", f"2:{directory.path}"], ["--file", str(plan)]):
        assert main(["cluster", "reassign", *words, *at(nodes)]) == 0
        assert capsys.readouterr() == ("every replica is where it should be\n", "")


def test_a_plan_with_directories_begins_nothing_where_a_throttle_is_another(
    nodes: ScribaNodes, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither that between brokers, nor that between directories."""

    def typed(*words: str) -> Done:
        code = main(["cluster", *words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    def settings() -> set[str]:
        resources = [*(ConfigResource.broker(n) for n in (1, 2, 3)), ConfigResource.topic(topic)]
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
            found = admin.describe_configs(resources)
        rates = ("throttled", "alter.log.dirs.io.max")
        return {
            f"{resource} {entry.name}={entry.value}"
            for resource, entries in found.items()
            for entry in entries.values()
            if any(each in entry.name for each in rates) and entry.source != Source.DEFAULT_CONFIG
        }

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={0: [1]})])
        (directory,) = admin.describe_log_dirs([2])[2]
    plan = tmp_path / "plan.json"
    move = {"topic": topic, "partition": 0, "replicas": [2], "log_dirs": [directory.path]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    for name in ("follower.replication.throttled.rate", directories.RATE):
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
            rate = {ConfigResource.broker(2): [(name, ConfigOp.SET, "7")]}
            admin.incremental_alter_configs(rate)
        refused = typed("reassign", "--file", str(plan), "--throttle", "1000")
        assert f"{name}=7, set by somebody else" in refused.err
        assert refused.code == 1
        assert settings() == {f"broker 2 {name}=7"}
        assert replicas(nodes, topic) == [(1,)]
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
            admin.incremental_alter_configs(
                {ConfigResource.broker(2): [(name, ConfigOp.DELETE, None)]}
            )
    assert typed("reassign", "--file", str(plan), "--throttle", "1000").code == 0
    assert replicas(nodes, topic) == [(2,)]
    assert settings() == set()


def test_a_cancel_from_elsewhere_ends_a_command_that_runs(
    nodes: ScribaNodes, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main(["cluster", *words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={n: [1] for n in range(4)})])
    with SyncProducer(bootstrap_servers=nodes.bootstrap, linger_ms=0) as producer:
        for n in range(120):
            producer.send(topic, b"x" * 1000, partition=n % 4)
    words = ("reassign", topic, "--to", "2", "--at-once", "2", "--throttle", "1")
    running = begin(nodes.bootstrap, "cluster", *words)
    eventually(lambda: len(typed("reassign", "--list", "--json").json) == 2)
    would = typed("reassign", "--cancel", "--dry-run").text
    assert would == "".join(f"{topic}-{n}: would be cancelled\n" for n in (0, 1))
    assert typed("reassign", topic + ":1", "--cancel", "--dry-run", "--json").json == [f"{topic}-1"]
    assert len(typed("reassign", "--list", "--json").json) == 2
    assert typed("reassign", "--cancel").code == 0
    _, err = running.communicate(timeout=300)
    assert running.returncode == 1
    assert f"{topic}-0 was cancelled or changed, as were 1 more; 0 of 4" in err.decode()
    assert replicas(nodes, topic) == [(1,)] * 4
    assert typed("reassign", "--list", "--json").json == []
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        found = admin.describe_configs([ConfigResource.topic(topic)])
    names = {e.name for each in found.values() for e in each.values() if not e.is_default}
    assert not any("throttled" in name for name in names)


def test_a_cancel_tells_of_the_throttle_that_a_broker_keeps_which_is_gone(
    nodes: ScribaNodes, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main(["cluster", *words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    def is_fenced() -> bool:
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
            return 3 in admin.describe_cluster(include_fenced=True).fenced

    def rates() -> list[str]:
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
            (found,) = admin.describe_configs([ConfigResource.broker(3)]).values()
        return [e.name for e in found.values() if e.name in RATES and not e.is_default]

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={0: [1]})])
    with SyncProducer(bootstrap_servers=nodes.bootstrap, linger_ms=0) as producer:
        for _ in range(30):
            producer.send(topic, b"x" * 1000)
    running = begin(nodes.bootstrap, "cluster", "reassign", topic, "--to", "3", "--throttle", "1")
    eventually(lambda: len(typed("reassign", "--list", "--json").json) == 1)
    running.kill()
    running.communicate()
    nodes.nodes[3].kill()
    eventually(is_fenced)
    done = typed("reassign", "--cancel")
    assert (done.code, done.out) == (0, f"{topic}-0: cancelled\n")
    assert "broker 3 is gone and keeps its throttle: when it is back, scriba config set" in done.err
    nodes.nodes[3].start()
    assert rates()
    again = typed("reassign", "--cancel")
    assert (again.code, again.err) == (0, "")
    assert rates() == []


def test_a_broker_that_is_gone_is_emptied_unregistered_and_filled_when_it_returns(
    nodes: ScribaNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main(["cluster", *words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    def is_fenced() -> bool:
        with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
            return 3 in admin.describe_cluster(include_fenced=True).fenced

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic("left", assignments={n: [1 + n, 3] for n in (0, 1)})])
        admin.create_topics([NewTopic("solo", assignments={0: [3]})])
    assert "broker 3 is up; drain it (scriba cluster drain 3)" in typed("unregister", "3").line
    nodes.nodes[3].kill()
    eventually(is_fenced)
    assert "broker 3 is fenced; start it" in typed("add", "3").line
    assert "broker 3, which is not there or fenced" in typed("reassign", "left", "--to", "3").line
    held = typed("unregister", "3").line
    assert "broker 3 still has 3 replicas, left-0 first of all" in held
    assert "scriba cluster drain 3" in held
    waits = typed("replicas", "2")
    assert waits.code == 1
    assert "1 partition waits for broker 3, which is fenced: left as it is" in waits.err
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.delete_topics(["solo"])
    assert typed("drain", "3").code == 0
    assert [sorted(each) for each in replicas(nodes, "left")] == [[1, 2]] * 2
    assert typed("unregister", "3").out == "broker 3 is no longer part of the cluster\n"
    assert "there is no broker 3; there are 1, 2" in typed("unregister", "3").line
    nodes.nodes[3].start()
    filled = typed("add", "3")
    assert filled.code == 0
    assert any(3 in each for topic in ("moved", "left") for each in replicas(nodes, topic))
    assert "every replica is where it should be" in typed("add", "3").out
    assert typed("drain", "3").code == 0
    nodes.nodes[3].kill()
    eventually(is_fenced)
    assert typed("unregister", "3").code == 0
    nodes.nodes[3].start()
    assert cordoned(nodes, 3) == [False], "whoever has that number now is another broker"
