"""`scriba cluster promote`: which placement comes of it, and what is told to be missing."""

import pytest

from scriba.cli.cluster.promote import Promotion, judged, promoted
from scriba.client import TopicPartition
from scriba.client.admin.model import PartitionDescription, ReplicaOffsets
from scriba.settings.placement import parse

WHERE = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("before", "alive", "after"),
    [
        ("voters=2@a;observers=1@c", {"c"}, "voters=1@c;observers=2@a"),
        ("voters=2@a;observers=1@c", {"a", "c"}, "voters=2@a,1@c"),
        ("voters=1@a,1@b;observers=1@c", {"b", "c"}, "voters=1@b,1@c;observers=1@a"),
        ("voters=1@a;observers=1@b,1@c", {"b", "c"}, "voters=1@c;observers=1@b,1@a"),
    ],
    ids=["region lost", "nothing lost", "one of two lost", "other observers stay"],
)
def test_voters_of_racks_that_are_gone_observe_when_they_return(
    before: str, alive: set[str], after: str
) -> None:
    assert promoted(parse(before), "c", alive).text() == after


def partition(leader: int | None) -> PartitionDescription:
    return PartitionDescription(
        partition=0,
        leader=leader,
        leader_epoch=3,
        replicas=(1, 2, 5, 6),
        isr=(1,),
        offline_replicas=(),
    )


def held(end: int, committed: int) -> dict[TopicPartition, ReplicaOffsets]:
    return {WHERE: ReplicaOffsets(start_offset=0, end_offset=end, high_watermark=committed)}


def test_the_observer_that_has_most_is_judged_by_what_any_replica_was_told() -> None:
    found = judged(WHERE, partition(None), {5, 6}, {5: held(90, 90), 6: held(95, 120)})
    assert (found.chosen, found.end_offset, found.committed) == (6, 95, 120)
    assert found.loses() == ("offsets 95 to 119, and whatever was written from offset 120 on")
    assert found.document() == {
        "topic": "t",
        "partition": 0,
        "leader": None,
        "observer": 6,
        "end_offset": 95,
        "missing_from": 95,
        "missing_to": 120,
        "unknown_from": 120,
    }


def test_nothing_is_lost_where_a_voter_leads() -> None:
    found = judged(WHERE, partition(1), {5, 6}, {1: held(200, 200), 5: held(90, 200)})
    assert found.loses() == "nothing"
    assert found.document()["unknown_from"] is None


def test_where_no_observer_answers_nothing_is_promised() -> None:
    found = judged(WHERE, partition(None), {5, 6}, {})
    assert found == Promotion(WHERE, None, None, None, None)
    assert "no observer answers" in found.loses()
