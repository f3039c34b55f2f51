"""Commands about all topics, while one of these is deleted between two of their questions."""

from collections.abc import Callable
from typing import Any

import pytest

from scriba.cli import session
from scriba.client import Admin
from tests.integration.commands import Scriba
from tools.kafka.brokers import Broker

NEVER_THERE = "never-there"


def deleting(topic: str, after: str) -> type[Admin]:
    """An `Admin` whose cluster loses the topic as soon as a call of this name was answered."""

    class Deleting(Admin):
        async def _then_gone(self, answer: Any) -> Any:
            if topic in {each.name for each in await super().list_topics()}:
                await self.delete_topics([topic])
            return answer

        async def list_topics(self, *args: Any, **named: Any) -> Any:
            answer = await super().list_topics(*args, **named)
            return await self._then_gone(answer) if after == "list" else answer

        async def describe_topics(self, *args: Any, **named: Any) -> Any:
            answer = await super().describe_topics(*args, **named)
            return await self._then_gone(answer) if after == "describe" else answer

    return Deleting


@pytest.fixture
def lose(
    cluster: Broker, scriba: Scriba, topic: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    def begin(after: str) -> None:
        for name in (topic, f"{topic}-stays"):
            scriba("topic", "create", name)
        monkeypatch.setattr(session, "Admin", deleting(topic, after))

    return begin


@pytest.mark.parametrize("after", ["list", "describe"])
@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "describe"),
        ("topic", "describe", "--under-replicated"),
        ("topic", "describe", "--offline"),
        ("cluster", "may-restart", "1"),
        ("cluster", "balance", "--dry-run"),
        ("cluster", "replicas", "1"),
        ("cluster", "reassign", "--list"),
        ("cluster", "reassign", "--cancel"),
    ],
    ids=" ".join,
)
def test_a_topic_that_goes_meanwhile_is_left_out(
    scriba: Scriba, topic: str, lose: Callable[[str], None], words: tuple[str, ...], after: str
) -> None:
    lose(after)
    done = scriba(*words)
    # A cluster of one may not restart; and it says so.
    assert done.code == (1 if "may-restart" in words else 0), done
    assert "UNKNOWN_TOPIC_OR_PARTITION" not in done.out + done.err
    if words in (("topic", "list"), ("topic", "describe")) and after == "list":
        told = done.out.split()
        assert f"{topic}-stays" in told
        assert topic not in told


def test_a_pattern_reads_the_topics_that_are_left(
    scriba: Scriba, topic: str, lose: Callable[[str], None]
) -> None:
    lose("list")
    assert scriba("consume", "--pattern", f"{topic}.*", "--exit").code == 0


def test_who_names_a_topic_is_told_that_it_is_not_there_once(scriba: Scriba, topic: str) -> None:
    scriba("topic", "create", topic)
    for words in (("describe",), ("describe", "--under-replicated")):
        told = scriba("topic", *words, topic, NEVER_THERE).line
        assert told.startswith(f"1 of 2 failed: topic {NEVER_THERE}: UNKNOWN_TOPIC_OR_PARTITION")
