"""Where replicas go: what may be asked for, and what is chosen where nobody asks.

New partitions are striped over the brokers, those away or leaving last.

Leaders go round the active brokers, followers are the next brokers in the ring; after each round
the ring is shuffled, so that the same brokers do not always stand behind the same leader.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from scriba.controller.image import BrokerImage
from scriba.controller.state import State, fail
from scriba.errors import ErrorCode


def check_replicas(state: State, brokers: Sequence[int], about: str) -> None:
    """KafkaError, which begins with `about`, where these cannot be a partition's replicas."""
    if not brokers:
        refuse_replicas(about, "has no replicas; name at least one broker")
    seen: set[int] = set()
    for broker in sorted(brokers):
        if broker not in state.image.brokers:
            refuse_replicas(about, f"names broker {broker}, which the cluster does not have")
        if broker in seen:
            refuse_replicas(about, f"names broker {broker} twice")
        seen.add(broker)


def refuse_replicas(about: str, why: str) -> NoReturn:
    fail(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{about} {why}")


def place(
    brokers: Iterable[BrokerImage],
    replication_factor: int,
    below: Callable[[int], int],
) -> Iterator[tuple[int, ...]]:
    """Replica lists without end, one per new partition, the preferred leader first.

    INVALID_REPLICATION_FACTOR at once when there are too few brokers. A broker that is fenced or
    shuts down takes new replicas only where there are not enough others: it is expected back, and a
    topic that is made in the middle of a restart needs all its replicas, too.
    """
    ready: list[int] = []
    away: list[int] = []
    for broker in sorted(brokers):
        (ready if broker.active else away).append(broker.id)
    if not ready:
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"no broker is active (fenced: {len(away)}); start one, or wait for it to catch up",
        )
    if replication_factor > len(ready) + len(away):
        fail(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"each replica takes a broker of its own (at hand: {len(ready) + len(away)}); start "
            "more, or ask for fewer replicas",
        )
    return _stripes(ready, away, replication_factor, below)


def _stripes(
    ready: list[int], away: list[int], replication_factor: int, below: Callable[[int], int]
) -> Iterator[tuple[int, ...]]:
    start = below(len(ready))
    while True:
        for leader in range(start, start + len(ready)):
            ring = _rotated(ready, leader)
            if replication_factor > len(ring):
                ring += _rotated(away, leader)
            yield tuple(ring[:replication_factor])
        _shuffle(ready, below)
        _shuffle(away, below)


def _rotated(brokers: list[int], by: int) -> list[int]:
    cut = by % len(brokers)
    return brokers[cut:] + brokers[:cut]


def _shuffle(items: list[int], below: Callable[[int], int]) -> None:
    for i in range(len(items) - 1, 0, -1):
        j = below(i + 1)
        items[i], items[j] = items[j], items[i]
