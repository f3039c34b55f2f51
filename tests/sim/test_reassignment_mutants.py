"""Broken variants of reassignment are found: what finds none of them proves nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.partitions.throttles import ReplicationThrottles
from scriba.client import BrokerError
from scriba.controller import elections
from scriba.controller.parts import PartitionImage
from tests.sim.moving import (
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


def completes_before_the_isr(patch: Patch) -> None:
    """The old replicas go as soon as one of the target is in sync."""
    rightly = elections._completed

    def early(partition: PartitionImage, isr: tuple[int, ...]) -> PartitionImage:
        return rightly(partition, partition.target if {*isr} & {*partition.target} else isr)

    patch.setattr(elections, "_completed", early)


def counts_a_removed_replica(patch: Patch) -> None:
    """The in-sync set keeps those who are no replicas any more."""
    rightly = elections._elect

    def generous(partition: PartitionImage, *rest: Any) -> Any:
        found = rightly(partition, *rest)
        gone = [b for b in partition.isr if b not in partition.replicas]
        return found._replace(isr=(*found.isr, *gone))

    patch.setattr(elections, "_elect", generous)


def throttles_who_is_in_sync(patch: Patch) -> None:
    patch.setattr(ReplicationThrottles, "slows", lambda self, partition: partition in self.followed)


@pytest.mark.parametrize(
    ("break_it", "script"),
    [
        (completes_before_the_isr, moves),
        (counts_a_removed_replica, moves),
        (throttles_who_is_in_sync, in_sync_are_exempt),
    ],
    ids=lambda value: value.__name__.replace("_", " "),
)
def test_a_broken_reassignment_is_caught(
    break_it: Callable[[Patch], None], script: Script, monkeypatch: Patch
) -> None:
    break_it(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError, BrokerError)):
        play(script)


def test_what_is_not_broken_is_not_caught() -> None:
    play(moves)
    play(in_sync_are_exempt)
