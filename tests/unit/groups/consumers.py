"""Members of the consumer protocol, as clients behave: each remembers what it was last told."""

from collections.abc import Iterable
from typing import Any

from scriba.groups.consumer.group import ConsumerGroup
from scriba.wire.messages import groups as wire
from tests.unit.groups.shard import Shard

Share = dict[str, set[int]]
"""Topic name -> partitions."""


class Consumer:
    """Takes over what it is assigned at once; `lazy` keeps what it should give up."""

    def __init__(self, shard: Shard, member_id: str, *topics: str, **facts: Any) -> None:
        self.shard = shard
        self.member_id = member_id
        self.group_id = facts.pop("group_id", "g")
        self.epoch = 0
        self.owned: dict[bytes, set[int]] = {}
        self.assigned: dict[bytes, set[int]] = {}
        self.lazy = False
        self.missed = False
        """An answer was lost: the next request says everything, and is told everything."""
        self.full: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [*topics],
            **facts,
        }

    def request(self, **changes: Any) -> wire.ConsumerGroupHeartbeatRequest:
        facts: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.full.get("instance_id"),
        }
        return wire.ConsumerGroupHeartbeatRequest(**(facts | changes))

    def ask(self, version: int = 1, **changes: Any) -> wire.ConsumerGroupHeartbeatResponse:
        answer: wire.ConsumerGroupHeartbeatResponse = self.shard.do(
            self.request(**changes), version, self.member_id
        )
        return answer

    def join(self, version: int = 1, **changes: Any) -> wire.ConsumerGroupHeartbeatResponse:
        self.epoch = 0
        self.owned = {}
        answer = self.ask(version, topic_partitions=[], **(self.full | changes))
        self.take(answer)
        return answer

    def beat(self, **changes: Any) -> wire.ConsumerGroupHeartbeatResponse:
        """Says what it owns whenever it may have changed, as clients do."""
        if self.missed:
            changes = {**self.full, **changes, "topic_partitions": self.owns()}
        answer = self.ask(**({"topic_partitions": self.owns()} | changes))
        self.missed = False
        self.take(answer)
        return answer

    def miss(self) -> wire.ConsumerGroupHeartbeatResponse:
        """A heartbeat whose answer does not arrive."""
        self.missed = True
        return self.ask(topic_partitions=self.owns())

    def leave(self, epoch: int = -1) -> wire.ConsumerGroupHeartbeatResponse:
        return self.ask(member_epoch=epoch)

    def take(self, answer: wire.ConsumerGroupHeartbeatResponse) -> None:
        if answer.error_code:
            return
        self.epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        if answer.assignment is not None:
            self.assigned = {
                topic.topic_id: set(topic.partitions)
                for topic in answer.assignment.topic_partitions
            }
            if not self.lazy:
                self.obey()

    def obey(self) -> None:
        self.owned = {topic: set(held) for topic, held in self.assigned.items()}

    def owns(self) -> list[wire.ConsumerGroupHeartbeatRequestTopicPartitions]:
        return [
            wire.ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=topic, partitions=sorted(held)
            )
            for topic, held in self.owned.items()
            if held
        ]

    def share(self) -> Share:
        """What it was told to own, by name."""
        return named(self.shard, self.assigned.items())


def named(shard: Shard, held: Iterable[tuple[bytes, Iterable[int]]]) -> Share:
    found = {}
    for topic_id, partitions in held:
        facts = shard.topics.by_id(topic_id)
        if facts is not None and partitions:
            found[facts.name] = set(partitions)
    return found


def settle(*consumers: Consumer, rounds: int = 10) -> None:
    """Everybody heartbeats, with time passing, until nothing more changes."""
    for _ in range(rounds):
        consumers[0].shard.pass_time(1_000)
        for consumer in consumers:
            answer = consumer.beat()
            assert answer.error_code == 0, answer


def group_of(shard: Shard, group_id: str = "g") -> ConsumerGroup:
    group = shard.machine.state.store.groups[group_id]
    assert isinstance(group, ConsumerGroup)
    return group


def picture(shard: Shard, machine: Any = None) -> dict[str, Any]:
    """All that is stored of the consumer groups."""
    groups = (machine or shard.machine).state.store.groups
    return {
        group_id: {
            name: value
            for name, value in vars(group).items()
            if name not in ("stale", "topics_came", "_topics")
        }
        for group_id, group in groups.items()
        if isinstance(group, ConsumerGroup)
    }
