"""Answers of the coordinator beside those that Apache Kafka 4.3 gave to the same requests."""

from typing import Any

from scriba.wire.schema import Message
from tests.unit.groups.shard import Shard
from tests.unit.groups.transcript import INITIAL_DELAY_MS, RECORDED, TOPICS, tell


class Pure:
    """Implements `transcript.World` on a shard without a broker."""

    def __init__(self) -> None:
        self.shard = Shard(initial_rebalance_delay_ms=INITIAL_DELAY_MS)
        for name, partitions in TOPICS.items():
            self.shard.topics.create(name, partitions)

    def send(self, request: Message, version: int, client: str) -> int:
        return self.shard.send(request, version, client)

    def answer(self, token: int, *, soon: bool) -> Any:
        return self.shard.answer(token)

    def wait(self, ms: int) -> None:
        self.shard.pass_time(ms)


def test_every_answer_is_the_one_that_kafka_gives() -> None:
    recorded = RECORDED.read_text().splitlines()
    assert len(recorded) > 150
    assert tell(Pure()) == recorded
