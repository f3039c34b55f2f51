"""Kafka Streams: groups, transactions, offsets and compacted topics in one program."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.counting_program import WORDS, Counts, counting, write_lines
from tools.kafka.broker_fixtures import SWIFT, TARGETS, eventually
from tools.kafka.brokers import TESTED, Broker, running
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import Connection, create_topic

LINES = 400


@pytest.fixture(params=TARGETS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """One that is killed and started again while the program works."""
    with running(TESTED[request.param](tmp_path / request.param, settings=SWIFT)) as started:
        yield started


def test_words_are_counted_exactly_once_whoever_crashes_and_whatever_is_lost(
    broker: Broker, tools: Tools, topic: str, tmp_path: Path
) -> None:
    with Connection(broker.port) as connection:
        create_topic(connection, f"{topic}-lines", 2)
        create_topic(connection, f"{topic}-counts", 1)
    counts = Counts(broker, f"{topic}-counts")
    write_lines(broker, f"{topic}-lines", LINES)
    with counting(broker, topic, tmp_path / "first") as process:
        eventually(lambda: counts.total() > 0)
        broker.kill()
        broker.start()
        eventually(lambda: counts.total() == LINES * len(WORDS))
        write_lines(broker, f"{topic}-lines", LINES)
        eventually(lambda: counts.total() > LINES * len(WORDS))
        process.kill()
    write_lines(broker, f"{topic}-lines", LINES)
    second = tmp_path / "second"
    with counting(broker, topic, second) as process:
        eventually(lambda: counts.total() >= 3 * LINES * len(WORDS))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(300) == 0
    assert counts.total() == 3 * LINES * len(WORDS)
    assert counts.by_word == {word: list(range(1, 3 * LINES + 1)) for word in WORDS}
    restored = [
        int(line.split()[2])
        for line in second.with_suffix(".out").read_text().splitlines()
        if line.startswith("RESTORED")
    ]
    assert sum(restored) > 0, "the store was made from its changelog"
    to = ["--bootstrap-server", broker.bootstrap]
    listed = set(tools.run("topics", *to, "--list").ok().split())
    inner = {f"{topic}-by-word-repartition", f"{topic}-counts-changelog"}
    assert inner <= listed
    changelog = ["--entity-type", "topics", "--entity-name", f"{topic}-counts-changelog"]
    assert "cleanup.policy=compact" in tools.run("configs", *to, "--describe", *changelog).ok()
    groups = ["--describe", "--group", topic]
    described = tools.run("consumer-groups", *to, *groups).ok()
    assert {line.split()[5] for line in described.splitlines() if topic in line} == {"0"}
    reset = ["--application-id", topic, "--input-topics", f"{topic}-lines", "--force"]
    tools.run("streams-application-reset", *to, *reset).ok()
    eventually(lambda: not inner & set(tools.run("topics", *to, "--list").ok().split()))
    again = tools.run("consumer-groups", *to, *groups).ok()
    offsets = {line.split()[3] for line in again.splitlines() if f"{topic}-lines" in line}
    assert offsets == {"0"}
