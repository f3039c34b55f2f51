"""Offsets that belong to a transaction: pending until it ends."""

from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.wire.messages import groups as wire

T0 = ("t", 0)
T1 = ("t", 1)
UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


def test_offsets_count_from_the_commit_of_the_transaction(shard: Any) -> None:
    shard.commit({T0: 1})
    assert shard.commit_in_txn(9, {T0: 5, T1: 6}) == {T0: 0, T1: 0}
    assert shard.fetch(T0, T1) == {T0: (1, 0), T1: (-1, 0)}
    assert shard.fetch(T0, T1, ("t", 2), stable=True) == {
        T0: UNSTABLE,
        T1: UNSTABLE,
        ("t", 2): (-1, 0),
    }
    assert shard.fetch(stable=True) == {T0: UNSTABLE}
    shard.end_txn(9, commit=True)
    assert shard.fetch(T0, T1, stable=True) == {T0: (5, 0), T1: (6, 0)}


def test_offsets_of_an_aborted_transaction_vanish(shard: Any) -> None:
    shard.commit({T0: 1})
    shard.commit_in_txn(9, {T0: 5})
    shard.end_txn(9, commit=False)
    assert shard.fetch(T0, stable=True) == {T0: (1, 0)}


def test_pending_offsets_survive_a_restart(shard: Any) -> None:
    shard.commit_in_txn(9, {T0: 5})
    shard.crash()
    assert shard.fetch(T0, stable=True) == {T0: UNSTABLE}
    shard.end_txn(9, commit=True)
    assert shard.fetch(T0) == {T0: (5, 0)}
    shard.crash()
    assert shard.fetch(T0) == {T0: (5, 0)}


def test_a_transaction_that_ends_late_does_not_undo_a_newer_commit(shard: Any) -> None:
    shard.commit_in_txn(9, {T0: 5})
    shard.commit({T0: 8})
    shard.end_txn(9, commit=True)
    assert shard.fetch(T0) == {T0: (8, 0)}
    shard.commit_in_txn(9, {T0: 9})
    shard.end_txn(9, commit=True)
    assert shard.fetch(T0) == {T0: (9, 0)}


def test_transactions_of_two_producers_do_not_mix(shard: Any) -> None:
    shard.commit_in_txn(8, {T0: 5})
    shard.commit_in_txn(9, {T0: 6, T1: 7})
    shard.end_txn(9, commit=False)
    assert shard.fetch(T0, T1, stable=True) == {T0: UNSTABLE, T1: (-1, 0)}
    shard.end_txn(8, commit=True)
    assert shard.fetch(T0, stable=True) == {T0: (5, 0)}


def test_records_carry_the_producer(shard: Any) -> None:
    shard.commit_in_txn(9, {T0: 5})
    origin = shard.log[-1][3]
    assert (origin.producer_id, origin.producer_epoch) == (9, 0)


def test_old_producers_commit_without_telling_their_membership(shard: Any) -> None:
    shard.stable({})
    assert shard.commit_in_txn(9, {T0: 5}) == {T0: 0}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "none"}, ErrorCode.ILLEGAL_GENERATION),
        ({}, ErrorCode.NONE),
    ],
)
def test_a_zombie_of_an_earlier_generation_is_fenced(
    shard: Any, changes: Any, error: ErrorCode
) -> None:
    (member,) = shard.stable({})
    own = {"member_id": member.member_id, "generation_id": member.generation_id}
    assert shard.commit_in_txn(9, {T0: 5}, **(own | changes)) == {T0: error}


def test_a_static_member_that_was_replaced_is_fenced_in_transactions_too(shard: Any) -> None:
    (member,) = shard.stable({"group_instance_id": "i"})
    shard.join(group_instance_id="i")
    own = {"member_id": member.member_id, "generation_id": 1, "group_instance_id": "i"}
    assert shard.commit_in_txn(9, {T0: 5}, **own) == {T0: ErrorCode.FENCED_INSTANCE_ID}


def test_a_transaction_may_commit_while_the_leader_assigns(shard: Any) -> None:
    token = shard.join()
    shard.pass_time(3_000)
    member = shard.answer(token)
    own = {"member_id": member.member_id, "generation_id": 1}
    assert shard.commit_in_txn(9, {T0: 5}, **own) == {T0: 0}


def test_unknown_topics_are_refused(shard: Any) -> None:
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = shard.commit_in_txn(9, {("none", 0): 5, ("t", 9): 1, T0: 2})
    assert answer == {("none", 0): missing, ("t", 9): missing, T0: 0}


def test_a_deleted_offset_does_not_come_back_with_the_transaction(shard: Any) -> None:
    shard.commit_in_txn(9, {T0: 5, T1: 6})
    topic = wire.OffsetDeleteRequestTopic(
        name="t", partitions=[wire.OffsetDeleteRequestPartition(partition_index=0)]
    )
    shard.do(wire.OffsetDeleteRequest(group_id="g", topics=[topic]))
    assert len(shard.written) == 1
    shard.end_txn(9, commit=True)
    assert shard.fetch() == {T1: (6, 0)}


def test_a_deleted_group_does_not_come_back_with_the_transaction(shard: Any) -> None:
    shard.commit_in_txn(9, {T0: 5})
    shard.do(wire.DeleteGroupsRequest(groups_names=["g"]))
    shard.end_txn(9, commit=True)
    assert shard.fetch() == {}
    assert shard.group() is None
    shard.crash()
    assert shard.group() is None


def test_markers_of_others_change_nothing(shard: Any) -> None:
    shard.commit({T0: 1})
    shard.end_txn(77, commit=True)
    assert shard.fetch() == {T0: (1, 0)}


def test_without_a_producer_a_commit_is_like_any_other_but_not_without_its_epoch(
    shard: Any,
) -> None:
    """What Kafka 4.3 answers where `transaction.partition.verification.enable` is off."""
    assert shard.commit_in_txn(-1, {T0: 5}, producer_epoch=-1) == {T0: 0}
    assert shard.fetch(T0, stable=True) == {T0: (5, 0)}
    refused = shard.commit_in_txn(5, {T0: 6}, producer_epoch=-1)
    assert refused == {T0: ErrorCode.UNKNOWN_SERVER_ERROR}
    assert shard.fetch(T0, stable=True) == {T0: (5, 0)}
