"""Broken variants of reassignment are found: what finds none of them proves nothing."""

from collections.abc import Callable

import pytest

from scriba.broker.partitions.partition import Partition
from scriba.broker.partitions.replication.throttles import ReplicationThrottles
from scriba.client import BrokerError
from scriba.replication.leader import LeaderState
from scriba.replication.throttle import Throttle
from tests.sim.mutants.cluster import Lied, completes_before_the_isr, counts_a_removed_replica
from tests.sim.reassignment.moving import (
    AFTER,
    Moving,
    Script,
    in_sync_are_exempt,
    play,
)

Patch = pytest.MonkeyPatch


async def moves(stage: Moving) -> None:
    """When the old replicas are gone, all new ones are in sync, and nobody else is."""
    await stage.move(AFTER)
    await stage.until(lambda: not stage.partition().is_reassigning)
    now = stage.partition()
    assert {*now.replicas} == {*AFTER} == {*now.isr}
    assert await stage.read() == stage.acknowledged


def takes_in_sync_replicas_at_the_rate(patch: Patch, lied: Lied) -> None:
    """The follower's side of the exemption."""

    def taking(throttles: ReplicationThrottles, partition: Partition) -> Throttle | None:
        return throttles.follower if partition in throttles.followed else None

    patch.setattr(ReplicationThrottles, "taking", taking)


def gives_in_sync_replicas_at_the_rate(patch: Patch, lied: Lied) -> None:
    """The leader's side of it."""

    def giving(
        throttles: ReplicationThrottles, partition: Partition, leader: LeaderState, replica: int
    ) -> Throttle | None:
        return throttles.leader if partition in throttles.led else None

    patch.setattr(ReplicationThrottles, "giving", giving)


@pytest.mark.parametrize(
    ("break_it", "script"),
    [
        (completes_before_the_isr, moves),
        (counts_a_removed_replica, moves),
        (takes_in_sync_replicas_at_the_rate, in_sync_are_exempt),
        (gives_in_sync_replicas_at_the_rate, in_sync_are_exempt),
    ],
    ids=lambda value: value.__name__.replace("_", " "),
)
def test_a_broken_reassignment_is_caught(
    break_it: Callable[[Patch, Lied], None], script: Script, monkeypatch: Patch
) -> None:
    break_it(monkeypatch, lambda: None)
    with pytest.raises((AssertionError, TimeoutError, BrokerError)):
        play(script)


def test_what_is_not_broken_is_not_caught() -> None:
    play(moves)
    play(in_sync_are_exempt)
