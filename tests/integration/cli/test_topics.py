"""Figures of topics, and their oldest records deleted."""

from pathlib import Path

from tests.integration.commands import Scriba, piped
from tools.kafka.brokers import Broker


def test_topics_are_listed_with_records_and_sizes(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic, "-p", "3")
    piped(cluster, b"abc\n" * 50, "produce", topic)
    (listed,) = [t for t in scriba("topic", "list", "--json").json if t["topic"] == topic]
    (described,) = scriba("topic", "describe", topic, "--json").json
    assert listed["records"] == 50
    assert listed["bytes"] == sum(p["bytes"] for p in described["partitions"]) > 0
    lines = scriba("topic", "list").text.splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "ID"]
    (line,) = [line.split() for line in lines if line.startswith(f"{topic} ")]
    assert line[1:3] == ["3", "50"]
    assert topic in scriba("topic", "list", "--names").text.splitlines()


def test_the_oldest_records_are_shown_first_and_deleted_when_told(
    cluster: Broker, scriba: Scriba, topic: str, tmp_path: Path
) -> None:
    scriba("topic", "create", topic, "-p", "2")
    for partition in ("0", "1"):
        piped(cluster, b"1\n2\n3\n4\n5\n", "produce", topic, "-p", partition)
    shown = scriba("topic", "trim", f"{topic}:0", "--before", "-2").text.splitlines()
    assert shown[1].split() == [topic, "0", "0", "3", "5", "3", "2"]
    assert shown[-1] == "nothing was changed; add --apply to delete 3 records"
    assert len(scriba("consume", topic, "--exit").text.split()) == 10

    done = scriba("topic", "trim", f"{topic}:0", "--before", "3", "--apply").text
    assert done.endswith("deleted 3 records\n")
    assert scriba("consume", topic, "--exit", "-p", "0").text == "4\n5\n"
    assert scriba("consume", topic, "--exit", "-p", "1").text == "1\n2\n3\n4\n5\n"

    document = scriba("topic", "trim", topic, "--before", "end", "--apply", "--json").json
    assert [p["records"] for p in document["partitions"]] == [2, 5]
    again = scriba("topic", "trim", topic, "--before", "1h ago", "--apply").text
    assert again.endswith("nothing lies before that place\n")
    assert scriba("topic", "trim", f"{topic}:7", "--before", "end").line.endswith("one below 2")
    assert scriba("topic", "trim", topic, "--before", "beginning").code == 2


def test_a_compacted_topic_is_not_trimmed_and_the_cure_is_told(scriba: Scriba, topic: str) -> None:
    scriba("topic", "create", topic, "-c", "cleanup.policy=compact")
    told = scriba("topic", "trim", topic, "--before", "end").line
    assert f"`scriba produce {topic} --tombstone` removes keys" in told
