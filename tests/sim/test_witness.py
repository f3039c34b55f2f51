"""What the witness of a cluster makes of topics that come, go, and come again under their names."""

from types import SimpleNamespace
from typing import Any

import pytest

from scriba.testing.history.replication import Committed
from scriba.testing.sim.checks.witness import Witness
from scriba.testing.sim.cluster import SimCluster
from scriba.testing.sim.world.world import SimWorld

FIRST, SECOND = b"1" * 16, b"2" * 16


@pytest.fixture
def witness() -> Witness:
    return Witness(SimCluster(SimWorld(1), 1, 0, {}, print), excused=True)


def led(topic_id: bytes) -> Any:
    """A partition t-0 that a broker leads in epoch 0."""
    leader = SimpleNamespace(
        leader_epoch=0, partition_epoch=0, isr=(1, 2), replicas=(1, 2), epoch_start_offset=0
    )
    return SimpleNamespace(
        topic="t",
        topic_id=topic_id,
        index=0,
        leader=leader,
        placement=None,
        settings=SimpleNamespace(min_insync_replicas=1),
        high_watermark=SimpleNamespace(value=0),
    )


def look(witness: Witness, broker: int, topic_id: bytes) -> None:
    node: Any = SimpleNamespace(replicas=[led(topic_id)])
    for seen, _ in witness.leadings(broker, node):
        witness.replication.leads(seen)


def test_a_topic_made_anew_under_its_name_may_have_another_leader_of_the_same_epoch(
    witness: Witness,
) -> None:
    """As when a request that was held up on its way makes a topic that was deleted meanwhile."""
    look(witness, 1, FIRST)
    look(witness, 2, SECOND)
    assert not witness.violations
    look(witness, 2, FIRST)
    assert witness.violations == ["t-0: both 1 and 2 lead it in epoch 0"]
    look(witness, 3, SECOND)
    assert witness.violations[1:] == ["t~2-0: both 2 and 3 lead it in epoch 0"]


def test_a_loss_that_was_told_is_told_of_every_topic_of_that_name(witness: Witness) -> None:
    look(witness, 1, FIRST)
    look(witness, 2, SECOND)
    committed = witness.replication.committed
    for name in ("t", "t~2", "u"):
        committed[name, 0] = Committed(end_offset=5)
    witness._flag("t-0")
    assert set(committed) == {("u", 0)}
    assert set(witness.replication.flags) == {("t", 0), ("t~2", 0)}
