"""What a consumer subscribes to, and whom it tells when its partitions change."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import isawaitable

from scriba.client.model import TopicPartition, is_topic_name

Told = Callable[[Sequence[TopicPartition]], Awaitable[object] | object]
"""A plain function, or one whose result is awaited."""


@dataclass(frozen=True, slots=True)
class Listener:
    """What the application does when partitions come and go.

    `on_revoked` comes before partitions are given up, when their offsets can still be committed;
    `on_lost` when others may have them already (unset: `on_revoked`); `on_assigned` after
    partitions were added, before their first record.
    """

    on_revoked: Told | None = None
    on_assigned: Told | None = None
    on_lost: Told | None = None

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        await _tell(self.on_revoked, partitions)

    async def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        await _tell(self.on_assigned, partitions)

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        await _tell(self.on_lost or self.on_revoked, partitions)


async def _tell(callback: Told | None, partitions: Iterable[TopicPartition]) -> None:
    if callback is not None:
        result = callback(sorted(partitions))
        if isawaitable(result):
            await result


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    listener: Listener = Listener()

    @classmethod
    def of(
        cls,
        topics: str | Iterable[str],
        pattern: str | re.Pattern[str] | None,
        listener: Listener,
    ) -> "Subscription":
        """ValueError unless it is either names or a pattern."""
        names = frozenset([topics] if isinstance(topics, str) else topics)
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe to topics, or to a pattern")
        if "" in names:
            raise ValueError("the name of a topic is empty")
        for name in names:
            if not is_topic_name(name):
                raise ValueError(f"{ascii(name)[:100]} is no name of a topic")
        return cls(names, None if pattern is None else re.compile(pattern), listener)

    @property
    def regex(self) -> str | None:
        """The expression for a broker, which gets its text alone."""
        if self.pattern is None:
            return None
        if self.pattern.flags & ~re.UNICODE:
            raise ValueError("the broker sees no flags: put them into the pattern, as in (?i)")
        return self.pattern.pattern

    def matches(self, topic: str) -> bool:
        return self.pattern is not None and self.pattern.fullmatch(topic) is not None
