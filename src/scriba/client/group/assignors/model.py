"""What an assignor is given and what it gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scriba.client.model import TopicPartition
from scriba.wire.messages.groups import ConsumerProtocolSubscription

Partitions = Mapping[str, int]
"""How many partitions each topic has; a topic that there is not is not in it."""

Plan = dict[str, list[TopicPartition]]
"""The partitions of each member."""


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    """What a member had when it joined, and since which generation (-1 if it does not say)."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1


@dataclass(frozen=True, slots=True)
class Member:
    """A member as its JoinGroup shows it to the leader."""

    id: str
    topics: frozenset[str]
    instance_id: str | None = None
    held: OwnedPartitions = OwnedPartitions()

    @property
    def place(self) -> tuple[bool, str]:
        """Static members come first, by the name that stays when their ids change (KIP-345)."""
        return (self.instance_id is None, self.instance_id or self.id)


@dataclass(frozen=True, slots=True)
class Assignor:
    name: str
    plan: Callable[[Partitions, Sequence[Member]], Plan]
    cooperative: bool = False
    """Whether members may keep partitions through a rebalance (KIP-429)."""
    remember: Callable[[OwnedPartitions], bytes | None] = lambda held: None
    """What a member tells the leader besides its subscription."""
    held: Callable[[ConsumerProtocolSubscription], OwnedPartitions] = lambda subscription: (
        OwnedPartitions()
    )
    """What a member told."""


def in_order(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda member: member.place)


def partitions_of(partitions: Partitions, topics: frozenset[str]) -> list[TopicPartition]:
    """All partitions of those topics that there are, in their order."""
    return [
        TopicPartition(topic, index)
        for topic in sorted(topics)
        for index in range(partitions.get(topic, 0))
    ]
