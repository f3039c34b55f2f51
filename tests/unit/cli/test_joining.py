"""What a node keeps beside its data, and what one that joins a cluster is told."""

import argparse
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scriba.cli.cluster.replicas import plan
from scriba.cli.cluster.voters import is_voter, observer, voter
from scriba.cli.node import joining, kept
from scriba.cli.node.joining import Found, free_id, prepare
from scriba.cli.node.kept import Kept
from scriba.cli.node.up import read_settings
from scriba.cli.parsing.arguments import parser
from scriba.cli.problems import CommandError, Misuse
from scriba.client import Endpoint, QuorumDescription, QuorumReplica, TopicPartition
from scriba.config import StartError
from scriba.placement.planning import Facts
from scriba.placement.spreading import BrokerLocation

CLUSTER = Found("the cluster", frozenset({1, 2, 4}), ("127.0.0.1:9001", "127.0.0.1:9002"))


def words(*given: str) -> argparse.Namespace:
    options = parser().parse_args(["up", *given])
    options.kept = None
    return options


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    async def look(address: str) -> Found:
        return CLUSTER

    monkeypatch.setattr(joining, "look", look)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(options: argparse.Namespace) -> dict[str, Any]:
    settings = read_settings(options, {})
    return {
        "id": settings.node_id,
        "roles": settings.process_roles,
        "listeners": [(end.name, end.port) for end in settings.endpoints],
        "servers": settings.controller_quorum_bootstrap_servers,
        "joins": settings.controller_quorum_auto_join_enable,
    }


def test_first_node_has_a_controller_that_others_can_join_and_keeps_its_port(
    cluster: Path,
) -> None:
    options = words("--data", "one")
    assert told(options)["listeners"] == [("PLAINTEXT", 9092), ("CONTROLLER", 0)]
    assert options.kept == Kept()
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    kept.save("one", Kept(controller_port=port))
    assert told(words("--data", "one"))["listeners"][1] == ("CONTROLLER", port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert told(words("--data", "one"))["listeners"][1] == ("CONTROLLER", 0)


@pytest.mark.parametrize(
    "own",
    [
        ("--set", "listeners=PLAINTEXT://127.0.0.1:1234"),
        ("--set", "controller.quorum.voters=1@127.0.0.1:9093"),
        ("--ephemeral",),
    ],
)
def test_who_arranges_listeners_by_himself_gets_no_other(
    cluster: Path, own: tuple[str, ...]
) -> None:
    options = words(*own)
    if "--ephemeral" in own:
        options.data = "somewhere"
    assert all(name == "PLAINTEXT" for name, _ in told(options)["listeners"])
    assert options.kept is None


def test_broker_that_joins_takes_a_free_number_and_comes_back_without_a_word(
    cluster: Path,
) -> None:
    options = words("--join", "127.0.0.1:9092", "--port", "7000")
    options.kept = prepare(options)
    assert options.data == "scriba-data-3"
    first = told(options)
    assert first == {
        "id": 3,
        "roles": ("broker",),
        "listeners": [("PLAINTEXT", 7000)],
        "servers": CLUSTER.servers,
        "joins": False,
    }
    assert told(words("--data", "scriba-data-3")) == first
    again = words("--join", "127.0.0.1:9092", "--data", "scriba-data-3")
    again.kept = prepare(again)
    assert told(again) == first, "the same words do the same"


def test_controller_that_joins_asks_to_be_a_voter_until_it_is_one(cluster: Path) -> None:
    options = words("--join", "127.0.0.1:9092", "--controller", "--id", "9", "--data", "nine")
    options.kept = prepare(options)
    found = told(options)
    assert (found["id"], found["roles"], found["joins"]) == (9, ("broker", "controller"), True)
    assert [name for name, _ in found["listeners"]] == ["PLAINTEXT", "CONTROLLER"]
    made = kept.load("nine")
    assert made is not None
    kept.save("nine", Kept(made.node_id, made.roles, made.port, None, made.servers, voter=True))
    assert told(words("--data", "nine"))["joins"] is False, "who is taken out stays out"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--controller",), "--controller is for a node that joins"),
        (("--id", "4"), "--id is for a node that joins"),
        (("--join", "h:1", "--nodes", "3"), "--join adds one node"),
        (("--join", "h:1", "--ephemeral"), "keeps replicas"),
    ],
)
def test_words_that_do_not_go_together(given: tuple[str, ...], text: str) -> None:
    with pytest.raises(Misuse, match=text):
        joining.check_words(words(*given))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("up", "--nodes", "three"), "write it in digits, or auto"),
        (("up", "--nodes", "3", "--controllers", "three"), "'three' is not a whole number"),
        (("up", "--join", "nowhere"), "not of the form HOST:PORT"),
        (("up", "--join", "h:1,h:0"), "not of the form HOST:PORT"),
        (("up", "--join", "h:1", "--id", "0"), "must be at least 1"),
        (("up", "--join", "h:1", "--id", str(1 << 31)), "must be at most 2147483647"),
        (("up", "--join", "h:1", "--replicas", "0"), "must be at least 1"),
        (("topic", "create", "t", "-p", str(1 << 31)), "must be at most 2147483647"),
        (("topic", "create", "t", "-r", str(1 << 15)), "must be at most 32767"),
        (("topic", "alter", "t", "-p", str(1 << 31)), "must be at most 2147483647"),
        (("cluster", "voters", "add", "4"), "--address"),
        (("cluster", "voters", "add", "4", "--address", "h"), "not of the form HOST:PORT"),
        (("cluster", "voters", "remove", "4", "--directory", "d"), "not a UUID"),
        (("cluster", "replicas", "0"), "must be at least 1"),
    ],
)
def test_words_that_make_no_sense(
    given: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parser().parse_args(given)
    assert refused.value.code == 2
    assert text in capsys.readouterr().err


def test_number_that_is_taken_and_a_directory_that_is_used_are_refused(cluster: Path) -> None:
    assert free_id(CLUSTER, None) == 3
    with pytest.raises(StartError, match="the cluster has a node 4"):
        free_id(CLUSTER, 4)
    (cluster / "used").mkdir()
    (cluster / "used" / "meta.properties").touch()
    with pytest.raises(StartError, match="holds the data of a node already"):
        prepare(words("--join", "h:1", "--data", "used"))
    kept.save("third", Kept(3, servers=("h:1",)))
    with pytest.raises(StartError, match="the data of node 3"):
        prepare(words("--join", "h:1", "--data", "third", "--id", "5"))
    kept.save("fourth", Kept(4, roles=("broker",), servers=("h:1",)))
    with pytest.raises(StartError, match="node 4, which is a broker alone"):
        prepare(words("--join", "h:1", "--data", "fourth", "--controller"))


def test_a_wrong_setting_leaves_nothing_behind_that_the_next_try_would_begin_with(
    cluster: Path,
) -> None:
    wrong = words("--join", "h:1", "--data", "new", "--set", "log.retention.ms=soon")
    wrong.kept = prepare(wrong)
    with pytest.raises(Misuse, match="must be a whole number"):
        told(wrong)
    assert kept.load("new") is None
    right = words("--join", "h:1", "--data", "new", "--controller", "--id", "9")
    right.kept = prepare(right)
    assert told(right)["id"] == 9
    assert kept.load("new") == right.kept


def test_damaged_file_is_told_of(cluster: Path) -> None:
    (cluster / "one").mkdir()
    (cluster / "one" / "node.json").write_text("{")
    with pytest.raises(StartError, match=r"node\.json: cannot be read"):
        read_settings(words("--data", "one"), {})


def replica(node_id: int, directory: str) -> QuorumReplica:
    return QuorumReplica(node_id, directory, 1, 1, 1)


def test_directory_of_a_voter_is_found_where_it_is_clear() -> None:
    quorum = QuorumDescription(
        1,
        2,
        3,
        (replica(1, "a"), replica(2, "b")),
        (replica(4, "d"), replica(5, "e"), replica(5, "f")),
        {1: (Endpoint("CONTROLLER", "h", 1),)},
    )
    assert voter(quorum, 2, None) == "b"
    assert observer(quorum, 4, None) == "d"
    assert observer(quorum, 5, "f") == "f"
    with pytest.raises(CommandError, match="is no voter; the voters are 1, 2"):
        voter(quorum, 4, None)
    with pytest.raises(CommandError, match="does not follow the metadata"):
        observer(quorum, 9, None)
    with pytest.raises(CommandError, match="directories e, f"):
        observer(quorum, 5, None)


# ---- replicas ----


def at(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def sized(
    placed: Sequence[tuple[int, ...]],
    brokers: int,
    factor: int,
    off: tuple[int, ...] = (),
    isr: dict[int, tuple[int, ...]] | None = None,
) -> dict[int, tuple[int, ...]]:
    """The replicas of those partitions that get others."""
    found = {at(n): replicas for n, replicas in enumerate(placed)}
    in_sync = {**found, **{at(n): those for n, those in (isr or {}).items()}}
    places = {n: BrokerLocation(n, f"host{n}") for n in range(1, brokers + 1)}
    plan_ = plan(Facts(found, {}, places), factor, off, in_sync)
    return {where.partition: replicas for where, replicas in plan_.items()}


def test_partitions_of_one_node_get_replicas_on_all_and_keep_their_leader() -> None:
    assert sized([(1,)] * 4, 3, 3) == dict.fromkeys(range(4), (1, 2, 3))


def test_new_replicas_go_to_those_who_have_fewest() -> None:
    assert sized([(1,), (1,), (2,)], 3, 2) == {0: (1, 3), 1: (1, 2), 2: (2, 3)}


def test_what_is_as_asked_is_left_alone() -> None:
    assert sized([(2, 1, 3)], 4, 3) == {}


def test_fewer_replicas_leave_those_that_are_in_sync() -> None:
    three = [(1, 2, 3), (2, 1, 3)]
    assert sized(three, 3, 1, (2, 3), {1: (1, 3)}) == {0: (1,), 1: (1,)}
    assert sized(three, 3, 2, (), {1: (1, 3)}) == {0: (1, 2), 1: (1, 3)}


def test_broker_that_is_to_be_off_has_its_replicas_replaced() -> None:
    assert sized([(1, 2)], 3, 2, (2,)) == {0: (1, 3)}


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(CommandError, match="3 replicas need as many brokers, and there are 2"):
        sized([(1,)], 2, 3)
    with pytest.raises(CommandError, match="there are 1 that are up and not --off"):
        sized([(1,)], 2, 2, (2,))


def test_a_voter_that_is_there_as_asked_for_need_not_be_added() -> None:
    at = {1: (Endpoint("CONTROLLER", "h", 1),)}
    quorum = QuorumDescription(1, 2, 3, (replica(1, "a"),), (replica(4, "d"),), at)
    assert is_voter(quorum, 1, None, "h", 1)
    assert is_voter(quorum, 1, "a", "h", 1)
    assert not is_voter(quorum, 1, "b", "h", 1), "another directory"
    assert not is_voter(quorum, 1, "a", "elsewhere", 1)
    assert not is_voter(quorum, 4, "d", "h", 1), "it follows only"
