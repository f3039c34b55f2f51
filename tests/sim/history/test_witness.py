"""What the witness of a cluster makes of topics that come, go, and come again under their names."""

from types import SimpleNamespace
from typing import Any

import pytest

from scriba.controller.image import ClusterImage, Delta
from scriba.testing.history.replication import Committed
from scriba.testing.sim.checks.losses import Losses
from scriba.testing.sim.checks.witness import Witness
from scriba.testing.sim.cluster import SimCluster
from scriba.testing.sim.world.world import SimWorld
from scriba.wire.messages.stored import PartitionRecord, TopicRecord

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


def test_what_nodes_know_after_a_blackout_is_not_taken_for_all_that_is_committed(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin with their snapshots: a topic that is missing there has not been deleted."""
    began, known = ClusterImage(), ClusterImage()
    records = [
        TopicRecord(name="t", topic_id=FIRST),
        PartitionRecord(partition_id=0, topic_id=FIRST, replicas=[1, 2], isr=[1], leader=1),
    ]
    known.replay(records, 10, 3, Delta())
    newest = known
    monkeypatch.setattr(Witness, "newest_image", lambda self: newest)
    monkeypatch.setattr(Witness, "quorum_leader", lambda self: (1, 3))
    losses = Losses(witness, min_isr=2, synced=False)
    assert losses.allow(1)
    losses.note(1)
    newest = began
    assert not losses.allow(2)
    newest = known
    assert not losses.allow(2), "what was lost is remembered"
    assert losses.allow(1)
