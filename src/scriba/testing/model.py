"""What a test is told about a broker: plain values to compare."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it lies in the log."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group as its coordinator sees it."""

    id: str
    state: str
    """In Kafka's words: Stable, Empty, PreparingRebalance, ..."""
    protocol: str
    """`classic` or `consumer`."""
    members: tuple[str, ...]
    """Member ids, sorted."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as its coordinator sees it."""

    id: str
    state: str
    """In Kafka's words: Ongoing, CompleteCommit, CompleteAbort, ..."""
    producer_id: int
