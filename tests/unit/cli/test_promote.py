"""`scriba cluster promote`: which placement comes of it, and what is told to be missing."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scriba.cli.cluster.promote import Promotion, elected, judged, look, promoted
from scriba.client import Admin, BrokerError, ErrorCode, TopicPartition
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


def held(end: int, committed: int, epoch: int = -1) -> dict[TopicPartition, ReplicaOffsets]:
    return {WHERE: ReplicaOffsets(0, end, high_watermark=committed, epoch=epoch)}


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


def test_a_longer_log_of_an_older_epoch_has_less() -> None:
    found = judged(WHERE, partition(None), {5, 6}, {5: held(120, 80, 1), 6: held(95, 95, 2)})
    assert (found.chosen, found.end_offset) == (6, 95)
    both = {5: held(120, 80, 2), 6: held(95, 95, 2)}
    assert judged(WHERE, partition(None), {5, 6}, both).chosen == 5


def test_the_epoch_that_a_replica_follows_says_nothing_about_its_log() -> None:
    """Replicas of Apache Kafka tell that one: no leader has written in it."""
    found = judged(WHERE, partition(None), {5, 6}, {5: held(120, 80, 1), 6: held(95, 95, 3)})
    assert (found.chosen, found.end_offset) == (5, 120)


def test_what_is_lost_is_told_of_the_replica_that_was_elected() -> None:
    ends = {5: held(90, 90, 2), 6: held(95, 120, 2)}
    found = judged(WHERE, partition(None), {5, 6}, ends)
    other = elected(found, 5, ends)
    assert (other.chosen, other.end_offset) == (5, 90)
    assert other.loses() == "offsets 90 to 119, and whatever was written from offset 120 on"
    assert elected(found, 1, ends).loses().startswith("nothing if broker 1 was in sync")


def test_nothing_is_lost_where_a_voter_leads() -> None:
    found = judged(WHERE, partition(1), {5, 6}, {1: held(200, 200), 5: held(90, 200)})
    assert found.loses() == "nothing"
    assert found.document()["unknown_from"] is None


def test_where_no_observer_answers_nothing_is_promised() -> None:
    found = judged(WHERE, partition(None), {5, 6}, {})
    assert found == Promotion(WHERE, None, None, None, None)
    assert "no observer answers" in found.loses()


class OneDeleted:
    """Tells of the placement of a topic, which is deleted then."""

    async def list_topics(self, include_internal: bool) -> list[Any]:
        return [SimpleNamespace(name="orders")]

    async def describe_configs(self, resources: list[Any], names: list[str]) -> dict[Any, Any]:
        placement = SimpleNamespace(value="voters=1@a;observers=1@b")
        return {resource: dict.fromkeys(names, placement) for resource in resources}

    async def describe_cluster(self, include_fenced: bool) -> Any:
        nodes = [SimpleNamespace(id=1, rack="a"), SimpleNamespace(id=2, rack="b")]
        return SimpleNamespace(nodes=nodes, fenced=[])

    async def describe_topics(self, names: list[str]) -> Any:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {names[0]}")

    async def describe_replicas(self, *given: Any, **how: Any) -> dict[Any, Any]:
        return {}


def test_a_topic_that_was_named_and_is_deleted_meanwhile_is_told() -> None:
    with pytest.raises(BrokerError, match="topic orders"):
        asyncio.run(look(cast(Admin, OneDeleted()), "b", ["orders"]))
    assert asyncio.run(look(cast(Admin, OneDeleted()), "b", [])) == ({}, [], {1: {}, 2: {}})
