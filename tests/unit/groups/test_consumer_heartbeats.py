"""Stories of members of the consumer protocol: joining, staying, being fenced, leaving."""

from collections.abc import Callable
from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.groups.consumer.member import MemberState
from scriba.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
)
from scriba.wire.messages.stored_groups import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from tests.unit.groups.consumers import Consumer, group_of, picture, settle
from tests.unit.groups.shard import Shard


def names(shard: Shard) -> list[str]:
    return [
        type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key")
        for key, _ in shard.written
    ]


# --- joining ---


def test_the_first_member_gets_everything_at_once(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", "u")
    answer = a.join()
    assert a.share() == {"t": {0, 1, 2, 3}, "u": {0, 1}}
    assert answer.member_epoch == 2, "a group begins at epoch 1"
    assert names(shard) == [
        "MemberMetadata",
        "Metadata",
        "TargetAssignmentMember",
        "TargetAssignmentMetadata",
        "CurrentMemberAssignment",
    ]


def test_a_quiet_heartbeat_stores_nothing_and_repeats_no_assignment(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    answer = a.beat()
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 2, None)
    assert shard.written == []


def test_a_full_request_is_told_its_assignment_again(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    a.assigned = {}
    a.beat(rebalance_timeout_ms=60_000, subscribed_topic_names=["t"])
    assert a.share() == {"t": {0, 1, 2, 3}}


def test_the_coordinator_names_a_member_of_the_first_version(shard: Shard) -> None:
    a = Consumer(shard, "", "t")
    answer = a.join(version=0)
    assert answer.error_code == 0
    assert len(a.member_id) == 22
    assert a.beat().error_code == 0


def test_a_second_member_gets_its_share_when_the_first_has_given_it_up(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(1_000)
    answer = b.join()
    assert (answer.member_epoch, b.share()) == (3, {})
    assert group_of(shard).members["b"].state is MemberState.UNRELEASED_PARTITIONS

    a.lazy = True
    answer = a.beat()
    assert answer.member_epoch == 2, "it stays until it has revoked"
    assert a.share() == {"t": {0, 1}}
    assert b.beat().assignment is None, "not released yet"
    assert a.beat(topic_partitions=None).member_epoch == 2, "silence is no release"

    a.obey()
    assert a.beat().member_epoch == 3
    b.beat()
    assert b.share() == {"t": {2, 3}}
    assert group_of(shard).state_name() == "Stable"


def test_members_that_come_within_the_interval_share_one_target(shard: Shard) -> None:
    a, b, c = (Consumer(shard, name, "t") for name in "abc")
    a.join()
    answer = b.join()
    assert (answer.member_epoch, b.share()) == (2, {}), "at the last target, which has none for it"
    c.join()
    assert "TargetAssignmentMetadata" not in names(shard)
    assert group_of(shard).state_name() == "Assigning"
    shard.pass_time(1_000)
    assert b.beat().member_epoch == 4
    settle(a, b, c)
    assert sorted(sum(map(len, each.share().values())) for each in (a, b, c)) == [1, 1, 2]


def test_a_member_that_waits_is_asked_to_come_again_soon(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(10_000)
    assert a.beat().heartbeat_interval_ms == 5_000
    assert b.join().heartbeat_interval_ms == 500, "it has nothing yet"
    shard.pass_time(4_000)
    assert b.beat().heartbeat_interval_ms == 500
    a.beat()
    a.beat()
    assert b.beat().heartbeat_interval_ms == 5_000


def test_after_a_target_its_holders_come_soon_for_others_may_be_joining(shard: Shard) -> None:
    a, idle = Consumer(shard, "a", "t"), Consumer(shard, "b", "missing", group_id="other")
    assert a.join().heartbeat_interval_ms == 500
    assert idle.join().heartbeat_interval_ms == 5_000, "nobody waits for what it has"
    shard.pass_time(2_999)
    assert a.beat().heartbeat_interval_ms == 500
    shard.pass_time(1)
    assert a.beat().heartbeat_interval_ms == 5_000


def test_a_wall_clock_set_back_does_not_hold_up_the_next_target(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(10, wall_ms=-3_600_000)
    assert b.join().member_epoch == 3


@pytest.mark.parametrize(
    ("changes", "version", "error"),
    [
        ({"member_id": ""}, 1, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, 1, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "member_epoch": 1}, 0, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, 1, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, 1, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, 1, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, 1, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, 1, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, 1, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, 1, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, 1, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, 1, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, 1, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 5}, 1, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, 1, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_leaves_nothing_behind(
    shard: Shard, changes: dict[str, Any], version: int, error: ErrorCode
) -> None:
    facts: dict[str, Any] = {
        "group_id": "g",
        "member_id": "a",
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    answer = shard.do(ConsumerGroupHeartbeatRequest(**(facts | changes)), version)
    assert answer.error_code == error
    assert answer.error_message
    assert shard.log == []


def test_a_full_group_lets_only_its_members_in(make_shard: Callable[..., Shard]) -> None:
    shard = make_shard(consumer_max_size=1)
    shard.topics.create("t", 1)
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    assert b.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert a.join().error_code == 0


# --- epochs ---


def test_an_unknown_member_and_a_wrong_epoch_are_fenced(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    assert a.beat(member_epoch=7).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert a.beat(member_epoch=1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    stranger = Consumer(shard, "x", "t")
    stranger.epoch = 2
    assert stranger.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_previous_epoch_is_taken_from_a_member_whose_answer_was_lost(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(1_000)
    b.join()
    a.beat()
    assert a.miss().member_epoch == 3
    assert a.epoch == 2
    answer = a.beat()
    assert (answer.error_code, answer.member_epoch) == (0, 3)
    assert a.share() == {"t": {0, 1}}

    a.owned = {topic: held | {3} for topic, held in a.owned.items()}
    a.epoch = 2
    assert a.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH, "owns what is not its own"


def test_a_member_that_joins_again_keeps_its_place(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    b.join()
    settle(a, b)
    before = a.share()
    answer = a.join()
    assert answer.member_epoch == a.epoch > 0
    assert a.share() == before


# --- time ---


def test_a_silent_member_is_expired_and_its_share_goes_to_others(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    b.join()
    settle(a, b)
    for _ in range(9):
        shard.pass_time(5_000)
        b.beat()
    settle(b, rounds=2)
    assert b.share() == {"t": {0, 1, 2, 3}}
    assert a.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_is_fenced(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", rebalance_timeout_ms=20_000)
    b = Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(1_000)
    b.join()
    a.lazy = True
    for _ in range(6):
        shard.pass_time(4_000)
        b.beat()
        code = a.beat().error_code
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(b, rounds=2)
    assert b.share() == {"t": {0, 1, 2, 3}}


def test_after_a_crash_everybody_has_a_full_session(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    b.join()
    settle(a, b)
    shard.pass_time(40_000)
    shard.crash()
    shard.pass_time(40_000)
    assert a.beat().error_code == 0
    shard.pass_time(5_000)
    assert set(group_of(shard).members) == {"a"}


def test_a_revocation_under_way_is_still_limited_after_a_crash(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", rebalance_timeout_ms=20_000)
    b = Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(1_000)
    b.join()
    a.lazy = True
    a.beat()
    shard.crash()
    shard.pass_time(19_999)
    assert "a" in group_of(shard).members
    shard.pass_time(1)
    assert "a" not in group_of(shard).members


# --- leaving ---


def test_a_member_that_leaves_is_forgotten_and_the_empty_group_stays(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    answer = a.leave()
    assert (answer.error_code, answer.member_epoch) == (0, -1)
    assert names(shard) == [
        "CurrentMemberAssignment",
        "TargetAssignmentMember",
        "MemberMetadata",
        "Metadata",
    ]
    assert group_of(shard).state_name() == "Empty"
    assert shard.machine.state.timers.next_deadline() != shard.now.mono_ms + 45_000
    assert picture(shard) == picture(shard, shard.reloaded())


def test_static_members_may_go_for_a_while_and_come_back_as_another(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", instance_id="one")
    b = Consumer(shard, "b", "t")
    a.join()
    b.join()
    settle(a, b)
    share, epoch = a.share(), group_of(shard).epoch
    assert a.leave(-2).member_epoch == -2
    assert group_of(shard).epoch == epoch, "nobody else need notice"

    again = Consumer(shard, "a2", "t", instance_id="one")
    assert again.join().error_code == 0
    assert again.share() == share
    assert set(group_of(shard).members) == {"a2", "b"}
    assert a.beat().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_does_not_come_back_in_time_is_gone(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", instance_id="one")
    a.join()
    a.leave(-2)
    shard.pass_time(44_999)
    assert "a" in group_of(shard).members
    shard.pass_time(1)
    assert group_of(shard).empty()


def test_an_instance_that_is_in_use_is_not_given_away(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", instance_id="one")
    a.join()
    other = Consumer(shard, "b", "t", instance_id="one")
    assert other.join().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert other.leave(-2).error_code == ErrorCode.FENCED_INSTANCE_ID
    unknown = Consumer(shard, "c", "t", instance_id="two")
    assert unknown.leave(-2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- subscriptions ---


def test_what_a_member_no_longer_subscribes_to_goes_before_the_next_target(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", "u")
    a.join()
    a.lazy = True
    a.beat(subscribed_topic_names=["u"])
    assert a.share() == {"u": {0, 1}}
    assert group_of(shard).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    a.obey()
    settle(a, rounds=2)
    assert group_of(shard).state_name() == "Stable"


def test_members_choose_the_assignor_by_majority(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", "u", server_assignor="range")
    b = Consumer(shard, "b", "t", "u", server_assignor="range")
    c = Consumer(shard, "c", "t", "u", server_assignor="uniform")
    for each in (a, b, c):
        each.join()
    settle(a, b, c)
    assert [each.share() for each in (a, b, c)] == [
        {"t": {0, 1}, "u": {0}},
        {"t": {2}, "u": {1}},
        {"t": {3}},
    ]


def test_partitions_that_are_added_are_shared_out(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    shard.pass_time(1_000)
    shard.topics.topics["t"] = shard.topics.topics["t"]._replace(partitions=6)
    shard.change_topics("t")
    a.beat()
    assert a.share() == {"t": {0, 1, 2, 3, 4, 5}}
    assert a.epoch == 3


def test_a_topic_that_is_created_or_deleted_is_noticed_by_its_subscribers(shard: Shard) -> None:
    a = Consumer(shard, "a", "t", "later")
    a.join()
    shard.pass_time(1_000)
    shard.topics.create("later", 1)
    shard.change_topics("later")
    a.beat()
    assert a.share() == {"t": {0, 1, 2, 3}, "later": {0}}
    shard.pass_time(1_000)
    del shard.topics.topics["t"]
    shard.change_topics("t")
    settle(a, rounds=2)
    assert a.share() == {"later": {0}}
    shard.pass_time(1_000)
    shard.topics.create("other", 1)
    shard.change_topics("other")
    a.beat()
    assert shard.written == [], "nobody subscribes to it"


def test_a_change_of_racks_makes_a_new_target(shard: Shard) -> None:
    a = Consumer(shard, "a", "u")
    a.join()
    racks = (frozenset({"x"}), frozenset({"y"}))
    shard.topics.topics["u"] = shard.topics.topics["u"]._replace(racks=racks)
    shard.change_topics("u")
    shard.pass_time(1_000)
    assert a.beat().member_epoch == 3


def test_an_expression_matches_topics_now_and_new_ones_later(shard: Shard) -> None:
    a = Consumer(shard, "a", subscribed_topic_regex="t|new.*")
    a.join()
    assert a.share() == {"t": {0, 1, 2, 3}}
    shard.topics.create("new-1", 1)
    shard.change_topics("new-1")
    shard.pass_time(5_000)
    a.beat()
    assert a.share() == {"t": {0, 1, 2, 3}}, "looked up at most every ten seconds"
    shard.pass_time(6_000)
    a.beat()
    assert a.share() == {"t": {0, 1, 2, 3}, "new-1": {0}}
    assert picture(shard) == picture(shard, shard.reloaded())


def test_expressions_are_looked_up_again_after_their_interval(shard: Shard) -> None:
    a = Consumer(shard, "a", subscribed_topic_regex="t|u")
    a.join()
    shard.pass_time(11_000)
    a.beat()
    assert names(shard) == ["RegularExpression"], "there may have been new topics at the start"
    shard.pass_time(20_000)
    a.beat()
    assert shard.written == []
    for _ in range(30):
        shard.pass_time(20_000)
        a.beat()
        if shard.written:
            break
    assert names(shard) == ["RegularExpression"]


def test_an_expression_goes_with_its_last_subscriber(shard: Shard) -> None:
    a = Consumer(shard, "a", subscribed_topic_regex="t")
    b = Consumer(shard, "b", subscribed_topic_regex="t")
    a.join()
    b.join()
    a.beat(subscribed_topic_regex="", subscribed_topic_names=["u"])
    assert set(group_of(shard).regexes) == {"t"}
    b.leave()
    assert "RegularExpression" in names(shard)
    assert group_of(shard).regexes == {}
    assert group_of(shard).topics() == {"u"}


# --- offsets, describing, deleting ---


def test_commits_are_taken_from_members_at_their_epoch(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()

    def commit(version: int = 9, **who: Any) -> int:
        return shard.commit({("t", 0): 5}, version, **who)["t", 0]

    assert commit(member_id="a", generation_id_or_member_epoch=2) == 0
    assert commit(member_id="a", generation_id_or_member_epoch=3) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(member_id="x", generation_id_or_member_epoch=2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit() == ErrorCode.UNKNOWN_MEMBER_ID, "nobody else, while there are members"
    assert (
        commit(8, member_id="a", generation_id_or_member_epoch=2) == ErrorCode.UNSUPPORTED_VERSION
    )
    a.leave()
    assert commit() == 0


def test_a_commit_sent_before_the_epoch_rose_counts_for_what_the_member_kept(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(1_000)
    b.join()
    a.beat()
    a.beat()
    assert group_of(shard).members["a"].epoch == 3

    def commit(partition: int) -> int:
        who = {"member_id": "a", "generation_id_or_member_epoch": 2}
        return shard.commit({("t", partition): 5}, 10, **who)["t", partition]

    assert commit(0) == 0
    assert commit(3) == ErrorCode.STALE_MEMBER_EPOCH, "it went to b"


def test_offsets_are_read_by_members_at_their_epoch_and_by_administrators(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    shard.commit({("t", 0): 5}, member_id="a", generation_id_or_member_epoch=2)
    assert shard.fetch(("t", 0), member_id="a", member_epoch=2)["t", 0] == (5, 0)
    assert shard.fetch(("t", 0))["t", 0] == (5, 0)


def test_a_described_group_tells_what_members_have_and_shall_have(shard: Shard) -> None:
    a, b = Consumer(shard, "a", "t"), Consumer(shard, "b", "t")
    a.join()
    shard.pass_time(1_000)
    b.join()
    a.lazy = True
    a.beat()
    request = ConsumerGroupDescribeRequest(group_ids=["g", "none"])
    found, missing = shard.do(request).groups
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Reconciling", 3, 3)
    assert found.assignor_name == "uniform"
    first, second = found.members
    assert (first.member_id, first.member_epoch, first.member_type) == ("a", 2, 1)
    assert first.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert first.target_assignment.topic_partitions[0].partitions == [0, 1]
    assert second.assignment.topic_partitions == []
    assert second.target_assignment.topic_partitions[0].topic_name == "t"


def test_groups_are_listed_by_type_and_deleted_when_empty(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    listed = shard.list(types=["Consumer"])["g"]
    assert (listed.group_type, listed.group_state, listed.protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    assert shard.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND, "by the other request"
    request = DeleteGroupsRequest(groups_names=["g"])
    assert shard.do(request).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert shard.do(request).results[0].error_code == 0
    assert "g" not in shard.machine.state.store.groups
    assert "g" not in shard.reloaded().state.store.groups


def test_what_older_brokers_stored_of_topics_is_cleared_away(shard: Shard) -> None:
    a = Consumer(shard, "a", "t")
    a.join()
    group = group_of(shard)
    group.apply(
        ConsumerGroupPartitionMetadataKey(group_id="g"), ConsumerGroupPartitionMetadataValue()
    )
    group.metadata_hash = 0
    group.stale = True
    a.beat()
    assert "PartitionMetadata" in names(shard)
    assert not group_of(shard).has_partition_metadata


def test_a_member_whose_expression_takes_long_comes_back_soon_and_is_served_then(
    shard: Any,
) -> None:
    shard.topics.busy = True
    a = Consumer(shard, "a", subscribed_topic_regex="t|u")
    answer = a.join()
    assert answer.error_code == 0
    assert answer.heartbeat_interval_ms < shard.machine.settings.consumer_heartbeat_interval_ms
    assert group_of(shard).regexes == {}
    assert a.share() == {}
    shard.topics.busy = False
    settle(a)
    assert set(a.share()) == {"t", "u"}


def test_topics_that_came_are_not_forgotten_while_matching_takes_long(shard: Any) -> None:
    a = Consumer(shard, "a", subscribed_topic_regex="t|new.*")
    a.join()
    settle(a)
    shard.topics.create("new-1", 2)
    shard.change_topics("new-1")
    shard.topics.busy = True
    shard.pass_time(11_000)
    settle(a)
    assert set(a.share()) == {"t"}
    shard.topics.busy = False
    settle(a)
    assert set(a.share()) == {"t", "new-1"}
