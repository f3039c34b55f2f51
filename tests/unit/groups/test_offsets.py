"""Committing, reading and deleting offsets."""

from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.outcome import Origin
from scriba.wire.messages import groups as wire
from scriba.wire.messages.stored_groups import LegacyOffsetCommitKey, LegacyOffsetCommitValue

T0 = ("t", 0)
T1 = ("t", 1)
U0 = ("u", 0)


def by_member(joined: Any) -> dict[str, Any]:
    return {
        "member_id": joined.member_id,
        "generation_id_or_member_epoch": joined.generation_id,
    }


# --- who may commit ---


def test_a_simple_consumer_commits_without_being_a_member(shard: Any) -> None:
    assert shard.commit({T0: 5, U0: 7}) == {T0: 0, U0: 0}
    assert shard.fetch(T0, T1, U0) == {T0: (5, 0), T1: (-1, 0), U0: (7, 0)}
    assert shard.describe().group_state == "Empty"
    assert shard.list()["g"].protocol_type == ""
    shard.crash()
    assert shard.fetch() == {T0: (5, 0), U0: (7, 0)}


def test_a_member_commits_at_its_generation(shard: Any) -> None:
    (member,) = shard.stable({})
    assert shard.commit({T0: 5}, **by_member(member)) == {T0: 0}
    assert shard.fetch(T0) == {T0: (5, 0)}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation_id_or_member_epoch": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation_id_or_member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_others_may_not_commit_while_the_group_has_members(
    shard: Any, changes: Any, error: ErrorCode
) -> None:
    (member,) = shard.stable({})
    assert shard.commit({T0: 5}, **(by_member(member) | changes)) == {T0: error}
    assert shard.fetch(T0) == {T0: (-1, 0)}


def test_a_generation_that_nobody_has_is_refused_in_the_words_of_the_version(shard: Any) -> None:
    stray = {"member_id": "m", "generation_id_or_member_epoch": 3}
    assert shard.commit({T0: 5}, version=8, **stray) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert shard.commit({T0: 5}, version=9, **stray) == {T0: ErrorCode.GROUP_ID_NOT_FOUND}
    assert shard.group() is None


def test_commits_wait_while_the_leader_assigns(shard: Any) -> None:
    token = shard.join()
    shard.pass_time(3_000)
    member = shard.answer(token)
    error = ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.commit({T0: 5}, **by_member(member)) == {T0: error}


def test_members_may_commit_once_more_before_they_rejoin(shard: Any) -> None:
    leader, follower = shard.stable({}, {})
    shard.join(leader.member_id)
    assert shard.commit({T0: 5}, **by_member(follower)) == {T0: 0}


def test_a_commit_keeps_the_session(shard: Any) -> None:
    (member,) = shard.stable({})
    for offset in range(5):
        shard.pass_time(9_000)
        assert shard.commit({T0: offset}, **by_member(member)) == {T0: 0}
    assert shard.beat(member) == 0


def test_when_all_have_left_anybody_may_commit_again(shard: Any) -> None:
    (member,) = shard.stable({})
    shard.leave({"member_id": member.member_id})
    assert shard.commit({T0: 5}) == {T0: 0}


# --- what is kept ---


def test_metadata_and_leader_epoch_are_kept(shard: Any) -> None:
    shard.commit({T0: 5}, metadata="checkpoint", leader_epoch=3)
    shard.crash()
    group = wire.OffsetFetchRequestGroup(
        group_id="g", topics=[wire.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    answer = shard.do(wire.OffsetFetchRequest(groups=[group]), 9)
    (found,) = answer.groups[0].topics[0].partitions
    assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (
        5,
        3,
        "checkpoint",
    )


def test_metadata_has_a_limit_that_one_partition_alone_feels(make_shard: Any) -> None:
    shard = make_shard(offset_metadata_max_bytes=4)
    shard.topics.create("t", 4)
    assert shard.commit({T0: 5}, metadata="four") == {T0: 0}
    assert shard.commit({T0: 6}, metadata="fives") == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    # Counted as Java counts: é is one unit, an emoji two.
    assert shard.commit({T0: 7}, metadata="éééé") == {T0: 0}
    assert shard.commit({T0: 8}, metadata="é😀😀") == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert shard.fetch(T0) == {T0: (7, 0)}


def test_a_commit_without_metadata_is_read_as_empty_text(shard: Any) -> None:
    assert shard.commit({T0: 5}, metadata=None) == {T0: 0}
    assert shard.machine.state.store.offsets["g"][T0].metadata == ""


def test_every_version_commits(shard: Any) -> None:
    for version in range(2, 11):
        assert shard.commit({T0: version}, version=version) == {T0: 0}
        assert shard.fetch(T0) == {T0: (version, 0)}


def test_records_name_the_topic_by_its_id_too(shard: Any) -> None:
    shard.commit({T0: 5})
    ((key, value),) = shard.written
    assert (key.topic, value.topic_id) == ("t", shard.topics.get("t").id)


# --- topics that do not exist ---


def test_unknown_topics_and_partitions_are_refused_one_by_one(shard: Any) -> None:
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = shard.commit({T0: 5, ("t", 4): 5, ("none", 0): 5})
    assert answer == {T0: 0, ("t", 4): missing, ("none", 0): missing}
    assert list(shard.fetch()) == [T0]


def test_a_commit_to_unknown_topics_alone_makes_no_group(shard: Any) -> None:
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shard.commit({("none", 0): 5}) == {("none", 0): missing}
    assert shard.group() is None


def test_an_unknown_topic_id_has_an_error_of_its_own(shard: Any) -> None:
    partition = wire.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    topic = wire.OffsetCommitRequestTopic(topic_id=b"x" * 16, partitions=[partition])
    answer = shard.do(wire.OffsetCommitRequest(group_id="g", topics=[topic]), 10)
    assert answer.topics[0].topic_id == b"x" * 16
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    group = wire.OffsetFetchRequestGroup(
        group_id="g",
        topics=[wire.OffsetFetchRequestTopics(topic_id=b"x" * 16, partition_indexes=[0])],
    )
    answer = shard.do(wire.OffsetFetchRequest(groups=[group]), 10).groups[0]
    (found,) = answer.topics[0].partitions
    assert (found.error_code, found.committed_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


def test_offsets_are_read_by_topic_id(shard: Any) -> None:
    shard.commit({T0: 5, U0: 6}, version=10)
    assert shard.fetch(T0, U0, version=10) == {T0: (5, 0), U0: (6, 0)}
    assert shard.fetch(version=10) == {T0: (5, 0), U0: (6, 0)}
    del shard.topics.topics["u"]
    assert shard.fetch(version=10) == {T0: (5, 0)}
    assert shard.fetch(U0) == {U0: (6, 0)}


def test_the_offset_of_a_namesake_that_was_deleted_is_none(shard: Any) -> None:
    shard.commit({T0: 5}, version=10)
    shard.topics.create("t", 4)
    assert shard.fetch(T0, version=10) == {T0: (-1, 0)}
    assert shard.fetch(T0, version=9) == {T0: (5, 0)}


# --- fetch ---


def test_old_versions_ask_for_one_group(shard: Any) -> None:
    shard.commit({T0: 5})
    for version in range(1, 8):
        topics = [wire.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        answer = shard.do(wire.OffsetFetchRequest(group_id="g", topics=topics), version)
        assert answer.error_code == 0
        assert [p.committed_offset for p in answer.topics[0].partitions] == [5, -1]
        if version >= 2:
            answer = shard.do(wire.OffsetFetchRequest(group_id="g", topics=None), version)
            assert [p.committed_offset for p in answer.topics[0].partitions] == [5]


def test_several_groups_are_asked_for_at_once(shard: Any) -> None:
    shard.commit({T0: 5})
    shard.commit({T0: 6}, group_id="h")
    groups = [wire.OffsetFetchRequestGroup(group_id=g, topics=None) for g in ("g", "h", "none")]
    answer = shard.do(wire.OffsetFetchRequest(groups=groups))
    offsets = {
        group.group_id: [p.committed_offset for topic in group.topics for p in topic.partitions]
        for group in answer.groups
    }
    assert offsets == {"g": [5], "h": [6], "none": []}


# --- OffsetDelete ---


def delete(shard: Any, *places: tuple[str, int], group_id: str = "g") -> Any:
    topics = [
        wire.OffsetDeleteRequestTopic(
            name=name, partitions=[wire.OffsetDeleteRequestPartition(partition_index=index)]
        )
        for name, index in places
    ]
    answer = shard.do(wire.OffsetDeleteRequest(group_id=group_id, topics=topics))
    errors = [p.error_code for topic in answer.topics for p in topic.partitions]
    return answer.error_code, errors


def test_offsets_can_be_deleted(shard: Any) -> None:
    shard.commit({T0: 5, T1: 6})
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(shard, T0, U0, ("none", 0)) == (0, [0, 0, missing])
    assert len(shard.written) == 1
    assert shard.fetch() == {T1: (6, 0)}
    shard.crash()
    assert shard.fetch() == {T1: (6, 0)}


def test_offsets_of_subscribed_topics_cannot_be_deleted(shard: Any) -> None:
    shard.commit({T0: 5, U0: 6})
    (member,) = shard.stable({"topics": ["t"]})
    assert delete(shard, T0, U0) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0])
    shard.leave({"member_id": member.member_id})
    assert delete(shard, T0) == (0, [0])
    assert shard.fetch() == {}


def test_a_subscription_that_cannot_be_read_may_be_to_any_topic(shard: Any) -> None:
    shard.commit({T0: 5})
    opaque = [wire.JoinGroupRequestProtocol(name="range", metadata=b"\x00\x01\xff")]
    shard.stable({"protocols": opaque})
    assert delete(shard, T0) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])


def test_other_kinds_of_groups_must_be_empty_before_their_offsets_go(shard: Any) -> None:
    (member,) = shard.stable({"protocol_type": "connect"})
    assert delete(shard, T0) == (ErrorCode.NON_EMPTY_GROUP, [])
    shard.leave({"member_id": member.member_id})
    assert delete(shard, T0) == (0, [0])
    assert delete(shard, T0, group_id="none") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert delete(shard, T0, group_id="") == (ErrorCode.INVALID_GROUP_ID, [])


# --- what others wrote ---


def test_offsets_in_the_oldest_format_are_read(shard: Any) -> None:
    key = LegacyOffsetCommitKey(group="g", topic="t", partition=0)
    value = LegacyOffsetCommitValue(offset=5, metadata="m", commit_timestamp=1)
    shard.machine.replay(key, value, Origin(0, 1))
    assert shard.fetch(T0) == {T0: (5, 0)}
    shard.machine.replay(key, None, Origin(1, 2))
    assert shard.fetch(T0) == {T0: (-1, 0)}
