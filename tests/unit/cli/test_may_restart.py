"""Whether a node may go for a moment, and what it would hurt."""

from scriba.cli.cluster.may_restart import (
    harm_to_moves,
    harm_to_partitions,
    harm_to_quorum,
    page,
)
from scriba.client import Reassignment, TopicPartition
from scriba.client.admin.model import PartitionDescription, QuorumDescription, QuorumReplica

NOW_MS = 1_700_000_000_000
T0 = TopicPartition("t", 0)


def quorum(*heard_ms: int) -> QuorumDescription:
    """Voters 1, 2, ..., of which 1 leads, each heard of so long ago."""
    voters = tuple(
        QuorumReplica(n, "", 10, NOW_MS - ms, NOW_MS - ms) for n, ms in enumerate(heard_ms, 1)
    )
    return QuorumDescription(1, 3, 10, voters, ())


def partition(isr: tuple[int, ...]) -> dict[TopicPartition, PartitionDescription]:
    return {T0: PartitionDescription(0, isr[0], 1, (1, 2, 3), isr, ())}


def test_a_voter_may_go_while_a_majority_stays() -> None:
    assert [*harm_to_quorum(2, quorum(0, 0, 100), NOW_MS)] == []
    (told,) = harm_to_quorum(2, quorum(0, 0, 60_000), NOW_MS)
    assert told == "the quorum would have 1 of 3 voters, and needs 2"
    assert [*harm_to_quorum(9, quorum(0, 0, 60_000), NOW_MS)] == []
    (alone,) = harm_to_quorum(1, quorum(0), NOW_MS)
    assert "only voter" in alone


def test_a_partition_is_hurt_that_would_be_offline_or_below_its_minimum() -> None:
    least = {"t": 2}
    assert [*harm_to_partitions(3, partition((1, 2, 3)), least)] == []
    assert [*harm_to_partitions(3, partition((1, 2)), least)] == []
    (short,) = harm_to_partitions(2, partition((1, 2)), least)
    assert short == "t-0 would take no acks=all: 1 in sync, and min.insync.replicas is 2"
    (offline,) = harm_to_partitions(1, partition((1,)), least)
    assert offline == "t-0 would be offline: no other replica is in sync"


def test_a_broker_that_is_being_filled_is_told() -> None:
    moves = {T0: Reassignment((4, 1), (4,), (1,))}
    assert [*harm_to_moves(1, moves)] == []
    (told,) = harm_to_moves(4, moves)
    assert told == "it is being given replicas: t-0 would take longer"


def test_the_page_says_yes_or_why_not() -> None:
    assert page(2, []) == ["node 2 may restart"]
    assert page(2, ["a"] * 25)[-1] == "  and 5 more"
