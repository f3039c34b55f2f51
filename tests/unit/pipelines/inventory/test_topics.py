"""What is demanded of the topics, and how a service says that it does not get it."""

import pytest

from scriba.client.admin.model import PartitionDescription, TopicDescription
from scriba.pipelines.inventory.topics import (
    Names,
    WeakSettings,
    complaints,
    demands,
    durability,
)

EVENTS, AUDIT, WRITER = demands(Names("shop"), 3, 3, 2)


def described(replicas: int, partitions: int = 3) -> TopicDescription:
    brokers = tuple(range(replicas))
    return TopicDescription(
        "t",
        "id",
        False,
        tuple(PartitionDescription(n, 0, 0, brokers, brokers, ()) for n in range(partitions)),
    )


def test_a_cluster_gives_three_replicas_and_two_in_sync_with_or_without_the_switch() -> None:
    assert durability(3, False) == durability(5, True) == (3, 2)


@pytest.mark.parametrize(("brokers", "possible"), [(1, (1, 1)), (2, (2, 2))])
def test_fewer_brokers_are_taken_only_when_that_was_said(
    brokers: int, possible: tuple[int, int]
) -> None:
    with pytest.raises(WeakSettings, match="--allow-single-node"):
        durability(brokers, False)
    assert durability(brokers, True) == possible


def test_topics_as_they_are_created_are_not_complained_of() -> None:
    for demand in (EVENTS, AUDIT):
        assert list(complaints(demand, described(3), demand.settings())) == []
    assert list(complaints(WRITER, described(3, 1), WRITER.settings())) == []


@pytest.mark.parametrize(
    ("changed", "fix"),
    [
        (
            {"min.insync.replicas": "1"},
            "shop-events has min.insync.replicas=1; run `scriba config set --topic shop-events "
            "min.insync.replicas=2`",
        ),
        (
            {"unclean.leader.election.enable": "true"},
            "shop-events has unclean.leader.election.enable=true; run `scriba config set --topic "
            "shop-events unclean.leader.election.enable=false`",
        ),
        (
            {"cleanup.policy": "compact,delete"},
            "shop-events has cleanup.policy=compact,delete; run `scriba config set --topic "
            "shop-events cleanup.policy=compact`",
        ),
    ],
)
def test_a_weaker_setting_is_named_with_the_command_that_mends_it(
    changed: dict[str, str | None], fix: str
) -> None:
    assert list(complaints(EVENTS, described(3), EVENTS.settings() | changed)) == [fix]


def test_an_audit_log_that_forgets_is_refused() -> None:
    (told,) = complaints(AUDIT, described(3), AUDIT.settings() | {"retention.ms": "604800000"})
    assert "retention.ms=-1" in told


def test_one_partition_with_too_few_replicas_is_enough_to_refuse() -> None:
    partitions = (*described(3).partitions, *described(1, 1).partitions)
    (told,) = complaints(EVENTS, TopicDescription("t", "id", False, partitions), EVENTS.settings())
    assert told.startswith("shop-events has 1 replica instead of 3")


def test_two_partitions_would_make_two_writers() -> None:
    (told,) = complaints(WRITER, described(3, 2), WRITER.settings())
    assert told.startswith("shop-writer has 2 partitions instead of 1")
