"""How many partitions a topic needs for what is to go through it.

Partitions are what a topic's work is divided by: one is written by one broker and read by at most
one consumer of a group. So there must be enough of them for the consumers, who are usually slower,
and for the brokers. Too many cost little; too few are costly to correct, since adding partitions
moves keys. Therefore the number is rounded up, to a multiple of the brokers, so that each leads as
many as the others.
"""

from dataclasses import dataclass

CONSUMER_MBPS = 10.0
"""What one consumer that does something with its records gets through in a second."""

PARTITION_MBPS = 25.0
"""What one partition takes in comfortably beside others."""


@dataclass(frozen=True, slots=True)
class Proposal:
    mbps: float
    for_consumers: int
    for_writing: int
    brokers: int

    @property
    def partitions(self) -> int:
        needed = max(self.for_consumers, self.for_writing)
        return -(-needed // self.brokers) * self.brokers


def propose(
    mbps: float,
    *,
    brokers: int,
    per_consumer: float = CONSUMER_MBPS,
    per_partition: float = PARTITION_MBPS,
) -> Proposal:
    return Proposal(mbps, _shares(mbps, per_consumer), _shares(mbps, per_partition), brokers)


def _shares(whole: float, share: float) -> int:
    """How many of these make up the whole; never none.

    The tolerance keeps 0.3 / 0.1 from being four.
    """
    return max(1, -int(-(whole / share - 1e-9) // 1))
