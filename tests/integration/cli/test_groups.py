"""`scriba group` and `scriba txn` as a person types them, and `scriba consume --group`."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scriba.cli.main import main
from scriba.client import BrokerError, SyncAdmin, SyncProducer
from tests.integration.commands import PATIENCE, Scriba, piped, start
from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker


@pytest.fixture
def filled(cluster: Broker, scriba: Scriba, topic: str) -> str:
    """A topic of two partitions: 0 to 9 in the first, 10 to 14 in the second."""
    assert scriba("topic", "create", topic, "-p", "2").code == 0
    with SyncProducer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
        for n in range(15):
            stamp = 1_700_000_000_000 + 1000 * n
            producer.send(topic, b"%d" % n, partition=int(n >= 10), timestamp=stamp)
    return topic


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@contextmanager
def member(cluster: Broker, topic: str, group: str) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer of the group in a process of its own; gone, and missed, at the end."""
    words = ["consume", topic, "-g", group, "-b", cluster.bootstrap]
    with subprocess.Popen(
        [sys.executable, "-m", "scriba", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130


# -- groups --------------------------------------------------------------------------------------


def test_a_reset_is_shown_first_and_done_when_told(scriba: Scriba, filled: str, topic: str) -> None:
    group = f"{topic}-group"
    assert scriba("group", "reset", group, "--to", "latest").line == (
        f"group {group} has committed nothing; name what it reads with --topic"
    )
    shown = scriba("group", "reset", group, "--to", "4", "--topic", topic).text
    assert table(shown) == [
        ["TOPIC", "PARTITION", "COMMITTED", "NEW", "DIFFERENCE", "LAG"],
        [topic, "0", "-", "4", "new", "6"],
        [topic, "1", "-", "4", "new", "1"],
        ["nothing", "was", "changed;", "add", "--apply", "to", "do", "it"],
    ]
    assert group not in scriba("group", "list").out
    done = scriba("group", "reset", group, "--to", "4", "--topic", topic, "--apply").text
    assert done.endswith(f"{group} goes on there\n")
    assert table(done)[1:3] == table(shown)[1:3]
    shifted = scriba("group", "reset", group, "--shift", "-2", "--apply", "--json").json
    assert shifted["applied"] is True
    assert [(p["committed"], p["new"]) for p in shifted["partitions"]] == [(4, 2), (4, 2)]
    assert table(scriba("group", "reset", group, "--shift", "1").text)[1][4] == "+1"


@pytest.mark.parametrize(
    ("place", "offsets"),
    [
        ("earliest", [0, 0]),
        ("latest", [10, 5]),
        ("3", [3, 3]),
        ("-2", [8, 3]),
        ("@1700000004000", [4, 0]),
        ("2023-11-14T22:13:32Z", [10, 2]),
        ("PT1H", [10, 5]),
        ("30m ago", [10, 5]),
    ],
)
def test_a_group_is_reset_to_any_place(
    scriba: Scriba, filled: str, topic: str, place: str, offsets: list[int]
) -> None:
    words = ["--topic", topic, f"--to={place}", "--json"]
    plan = scriba("group", "reset", "anybody", *words).json
    assert [p["new"] for p in plan["partitions"]] == offsets
    assert plan["applied"] is False


def test_single_partitions_are_reset(scriba: Scriba, filled: str, topic: str) -> None:
    group = f"{topic}-group"
    scriba("group", "reset", group, "--to", "5", "--topic", f"{topic}:1", "--apply")
    plan = scriba("group", "reset", group, "--to", "earliest", "--json").json
    assert [(p["partition"], p["committed"], p["new"]) for p in plan["partitions"]] == [(1, 5, 0)]
    words = ["--to", "earliest", "--topic", f"{topic}:7"]
    assert (
        scriba("group", "reset", group, *words).line
        == f"{topic} has no partition 7; choose one below 2"
    )
    assert scriba("group", "reset", group, "--to", "earliest", "--topic", f"{topic}:x").code == 2


def test_the_lag_of_a_group_is_told_by_partition_and_in_total(
    scriba: Scriba, filled: str, topic: str
) -> None:
    group = f"{topic}-group"
    scriba("group", "reset", group, "--to", "4", "--topic", topic, "--apply")
    page = scriba("group", "describe", group).text.splitlines()
    assert page[0] == f"{group}  Empty, classic, coordinator 1, lag 7, 0 members"
    assert table("\n".join(page[1:])) == [
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"],
        [topic, "0", "4", "10", "6", "-"],
        [topic, "1", "4", "5", "1", "-"],
    ]
    (document,) = scriba("group", "describe", group, "--json").json
    assert document["lag"] == 7
    assert [p["lag"] for p in document["partitions"]] == [6, 1]
    assert "GROUP_ID_NOT_FOUND" in scriba("group", "describe", f"{topic}-none").line


def test_groups_are_listed_deleted_and_their_offsets_too(
    scriba: Scriba, filled: str, topic: str
) -> None:
    group = f"{topic}-group"
    scriba("group", "reset", group, "--to", "4", "--topic", topic, "--apply")
    listed = scriba("group", "list", "--json").json
    assert [g["state"] for g in listed if g["group"] == group] == ["Empty"]
    assert group in scriba("group", "list", "--state", "empty", "--type", "classic").text
    assert group not in scriba("group", "list", "--state", "stable").out
    wrong = scriba("group", "list", "--state", "stabel")
    assert (wrong.code, wrong.out) == (2, "")
    assert "'stabel' is no state of groups; there are PreparingRebalance" in wrong.err
    told = scriba("group", "delete", group, "--topic", topic).text
    assert told == f"{group}: deleted the offsets of {topic}-0, {topic}-1\n"
    scriba("group", "reset", group, "--to", "4", "--topic", topic, "--apply")
    assert scriba("group", "delete", group).text == f"deleted {group}\n"
    assert "GROUP_ID_NOT_FOUND" in scriba("group", "delete", group).line


def test_members_are_shown_and_stand_in_the_way_of_a_reset(
    cluster: Broker, scriba: Scriba, filled: str, topic: str
) -> None:
    group = f"{topic}-group"
    with member(cluster, topic, group) as process:
        assert process.stdout is not None
        got = sorted(int(process.stdout.readline()) for _ in range(15))
        assert got == list(range(15))
        (document,) = scriba("group", "describe", group, "--json").json
        assert document["state"] == "Stable"
        (only,) = document["members"]
        assert only["partitions"] == [f"{topic}-0", f"{topic}-1"]
        assert only["client"] == "scriba-cli"
        page = scriba("group", "describe", group).text
        assert only["member"] in page
        told = scriba("group", "reset", group, "--to", "0", "--topic", topic, "--apply").line
        assert "its members would write over new offsets; stop them" in told
        shown = scriba("group", "reset", group, "--to", "0", "--topic", topic)
        assert "nothing was changed" in shown.out
        assert "stop its members" in shown.err
        assert "NON_EMPTY_GROUP" in scriba("group", "delete", group).line
    (after,) = scriba("group", "describe", group, "--json").json
    assert (after["state"], after["lag"], after["members"]) == ("Empty", 0, [])


def test_consume_goes_on_where_the_group_has_committed(
    scriba: Scriba, filled: str, topic: str
) -> None:
    group = f"{topic}-group"
    words = ["consume", topic, "--group", group, "--exit"]
    first = scriba(*words, "--count", "6").text.split()
    rest = scriba(*words).text.split()
    assert len(first) == 6
    assert sorted(map(int, first + rest)) == list(range(15))
    assert scriba(*words).text == ""
    newer = scriba(*words, "-X", "group.protocol=consumer")
    assert (newer.code, newer.out) == (0, "")


# -- transactions --------------------------------------------------------------------------------


def test_an_open_transaction_is_listed_described_and_aborted(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    name = f"{topic}-id"
    assert scriba("topic", "create", topic).code == 0
    with SyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open")
        listed = scriba("txn", "list", "--state", "Ongoing", "--like", f"{topic}.*", "--json").json
        assert [(t["id"], t["state"]) for t in listed] == [(name, "Ongoing")]
        assert name in scriba("txn", "list").text
        assert "no such transactions" in scriba("txn", "list", "--longer-than", "1h").err
        (document,) = scriba("txn", "describe", name, "--json").json
        assert (document["state"], document["partitions"]) == ("Ongoing", [f"{topic}-0"])
        page = scriba("txn", "describe", name).text
        assert f" in {topic}-0" in page
        assert scriba("txn", "abort", name).text == (
            f"aborted {name} in {topic}-0; its producer is fenced\n"
        )
    eventually(lambda: "Empty" in scriba("txn", "describe", name).out)
    assert "has no open transaction" in scriba("txn", "abort", name).line
    assert "TRANSACTIONAL_ID_NOT_FOUND" in scriba("txn", "describe", f"{name}-none").line
    assert "no such state: Nowhere" in scriba("txn", "list", "--state", "Nowhere").line
    read = scriba("consume", topic, "-e", "-X", "isolation.level=read_committed").text
    assert read == ""


def test_a_transaction_is_aborted_in_one_partition(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    assert scriba("topic", "create", topic).code == 0
    at = ["--topic", topic, "--partition", "0"]
    with SyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open")
        assert scriba("txn", "abort", *at, "--start-offset", "9").line == (
            f"{topic}-0 has no transaction that begins at 9; those that are open begin at 0"
        )
        assert "aborted what producer" in scriba("txn", "abort", *at, "--start-offset", "0").text
        told = scriba("txn", "abort", *at, "--start-offset", "0").line
        assert told.endswith("none is open there")
    assert main(["txn", "abort"]) == main(["txn", "abort", "x", *at]) == 2


def test_a_group_that_has_committed_nothing_has_no_lag(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    """Where it begins is its members' affair, of which brokers know nothing; 0 would be a lie."""
    scriba("topic", "create", topic, "-p", "2")
    piped(cluster, b"1\n2\n3\n", "produce", topic, "-p", "0")
    words = ["consume", topic, "--group", topic, "-X", "enable.auto.commit=false"]
    with start(cluster, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        (group,) = scriba("group", "describe", topic, "--json").json
        assert (group["lag"], group["partitions_without_commit"]) == (None, 2)
        assert [(p["committed"], p["end"], p["lag"]) for p in group["partitions"]] == [
            (None, 3, None),
            (None, 0, None),
        ]
        page = scriba("group", "describe", topic).text
        assert "lag unknown: nothing is committed" in page
        assert [line.split()[2:5] for line in page.splitlines() if f" {topic} " in line] == [
            ["-", "3", "-"],
            ["-", "0", "-"],
        ]
        process.terminate()
        assert process.wait(PATIENCE) == 143
    moved = scriba("group", "reset", topic, "--topic", f"{topic}:0", "--to", "1", "--apply")
    assert moved.code == 0
    (group,) = scriba("group", "describe", topic, "--json").json
    assert (group["lag"], group["partitions_without_commit"]) == (2, 0)


def test_offsets_of_a_group_with_members_are_refused_with_the_right_cure(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic)
    piped(cluster, b"1\n", "produce", topic)
    with start(cluster, "consume", topic, "--group", topic) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        with (
            SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin,
            pytest.raises(BrokerError) as refused,
        ):
            admin.alter_group_offsets(topic, {(topic, 0): 0})
        process.terminate()
        assert process.wait(PATIENCE) == 143
    assert f"(fix: stop the members of {topic} first)" in str(refused.value)
