"""What members of a classic group do once they have joined: sync, heartbeat, leave, vanish."""

from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.groups.classic.group import Phase
from scriba.wire.messages import groups as wire


def two_joined(shard: Any, **common: Any) -> tuple[Any, Any]:
    tokens = [shard.join(**common), shard.join(**common)]
    shard.pass_time(6_000)
    leader, follower = (shard.answer(token) for token in tokens)
    return leader, follower


# --- SyncGroup ---


def test_a_follower_waits_for_the_leaders_assignment(shard: Any) -> None:
    leader, follower = two_joined(shard)
    waiting = shard.sync(follower)
    assert waiting in shard.waiting
    token = shard.sync(leader, {leader.member_id: b"L", follower.member_id: b"F"})
    assert shard.answer(token).assignment == b"L"
    answer = shard.answer(waiting)
    assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (
        b"F",
        "consumer",
        "range",
    )
    assert shard.group().phase is Phase.STABLE


def test_the_assignment_is_stored_with_all_that_a_restart_needs(shard: Any) -> None:
    leader, follower = two_joined(shard, client="app")
    shard.sync(leader, {follower.member_id: b"F"})
    ((_, value),) = shard.written
    assert (value.generation, value.protocol, value.leader) == (1, "range", leader.member_id)
    members = {member.member_id: member for member in value.members}
    assert members[leader.member_id].assignment == b""
    stored = members[follower.member_id]
    assert (stored.assignment, stored.client_id, stored.client_host) == (b"F", "app", "/10.0.0.1")
    assert (stored.session_timeout, stored.rebalance_timeout) == (10_000, 60_000)

    shard.crash()
    assert shard.beat(follower) == 0
    assert shard.answer(shard.sync(follower)).assignment == b"F"
    described = shard.describe()
    assert (described.group_state, described.protocol_data) == ("Stable", "range")


def test_a_crash_before_the_assignment_brings_back_the_generation_before(shard: Any) -> None:
    leader, _ = shard.stable({}, {})
    token = shard.join(leader.member_id)
    assert token in shard.waiting
    shard.crash()
    assert shard.beat(leader) == 0
    assert shard.group().generation == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_that_fits_nothing_is_refused(shard: Any, changes: Any, error: ErrorCode) -> None:
    leader, _ = two_joined(shard)
    assert shard.answer(shard.sync(leader, **changes)).error_code == error


def test_a_sync_during_a_rebalance_is_told_to_join(shard: Any) -> None:
    leader, follower = shard.stable({}, {})
    shard.join(leader.member_id)
    assert shard.answer(shard.sync(follower)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_who_waits_for_an_assignment_hears_of_the_next_rebalance(shard: Any) -> None:
    leader, follower = two_joined(shard)
    waiting = shard.sync(follower)
    shard.leave({"member_id": leader.member_id})
    assert shard.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_that_is_repeated_displaces_the_one_that_waits(shard: Any) -> None:
    _leader, follower = two_joined(shard)
    first = shard.sync(follower)
    second = shard.sync(follower)
    assert shard.answer(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second in shard.waiting


def test_who_never_asks_for_its_assignment_is_dropped(shard: Any) -> None:
    leader, follower = two_joined(shard, session_timeout_ms=600_000)
    shard.sync(leader, {})
    shard.pass_time(60_000)
    assert shard.beat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.beat(follower) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_assigns_is_dropped_and_followers_join_again(shard: Any) -> None:
    leader, follower = two_joined(shard, session_timeout_ms=600_000)
    waiting = shard.sync(follower)
    shard.pass_time(60_000)
    assert shard.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    token = shard.join(follower.member_id, session_timeout_ms=600_000)
    joined = shard.answer(token)
    assert (joined.generation_id, joined.leader) == (2, follower.member_id)
    assert leader.member_id not in shard.group().members


# --- Heartbeat and sessions ---


def test_heartbeats_keep_a_session(shard: Any) -> None:
    (member,) = shard.stable({})
    for _ in range(10):
        shard.pass_time(9_999)
        assert shard.beat(member) == 0
    shard.pass_time(10_000)
    assert shard.beat(member) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.describe().group_state == "Empty"


def test_the_end_of_a_session_is_counted_without_the_wall_clock(shard: Any) -> None:
    (member,) = shard.stable({})
    shard.pass_time(1, wall_ms=10**12)
    assert shard.beat(member) == 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_heartbeat_of_nobody_is_refused(shard: Any, changes: Any, error: ErrorCode) -> None:
    (member,) = shard.stable({})
    assert shard.beat(member, **changes) == error


def test_a_member_that_vanishes_makes_the_others_rebalance(shard: Any) -> None:
    leader, follower = shard.stable({}, {"session_timeout_ms": 30_000})
    shard.pass_time(10_000)
    assert shard.beat(leader) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.beat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = shard.answer(shard.join(follower.member_id, session_timeout_ms=30_000))
    assert joined.leader == follower.member_id
    assert [m.member_id for m in joined.members] == [follower.member_id]


def test_waiting_to_join_counts_as_a_heartbeat(shard: Any) -> None:
    one, two = shard.stable({}, {"session_timeout_ms": 600_000})
    token = shard.join(one.member_id)
    shard.pass_time(50_000)
    assert token in shard.waiting
    assert shard.beat(two) == ErrorCode.REBALANCE_IN_PROGRESS
    shard.pass_time(10_000)
    assert shard.answer(token).generation_id == 2


def test_everybody_gets_a_full_session_after_a_restart(shard: Any) -> None:
    (member,) = shard.stable({})
    shard.pass_time(9_999)
    shard.crash()
    shard.pass_time(9_999)
    assert shard.beat(member) == 0
    shard.crash()
    shard.pass_time(10_000)
    assert shard.beat(member) == ErrorCode.UNKNOWN_MEMBER_ID


# --- LeaveGroup ---


def test_the_last_member_to_leave_empties_the_group(shard: Any) -> None:
    (member,) = shard.stable({})
    answer = shard.leave({"member_id": member.member_id})
    assert [m.error_code for m in answer.members] == [0]
    ((_, value),) = shard.written
    assert (value.generation, value.members, value.protocol) == (2, [], None)
    assert value.protocol_type == "consumer"
    described = shard.describe()
    assert (described.group_state, described.protocol_type) == ("Empty", "consumer")


def test_members_leave_together_and_each_gets_its_own_answer(shard: Any) -> None:
    one, two, three = shard.stable({}, {}, {"group_instance_id": "i"})
    answer = shard.leave(
        {"member_id": one.member_id},
        {"member_id": "stranger"},
        {"member_id": "", "group_instance_id": "i"},
        {"member_id": "", "group_instance_id": "unknown"},
        {"member_id": two.member_id, "group_instance_id": "unknown"},
    )
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [m.error_code for m in answer.members] == [0, unknown, 0, unknown, unknown]
    assert list(shard.group().members) == [two.member_id]
    assert three.member_id not in shard.group().members
    assert shard.beat(two) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_replaced_by_another_cannot_leave_in_its_place(shard: Any) -> None:
    (member,) = shard.stable({"group_instance_id": "i"})
    fenced = shard.leave({"member_id": "older", "group_instance_id": "i"})
    assert fenced.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    left = shard.leave({"member_id": member.member_id, "group_instance_id": "i"})
    assert left.members[0].error_code == 0


def test_old_clients_leave_one_by_one(shard: Any) -> None:
    (member,) = shard.stable({})
    request = wire.LeaveGroupRequest(group_id="g", member_id="stranger")
    assert shard.do(request, 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    request = wire.LeaveGroupRequest(group_id="g", member_id=member.member_id)
    assert shard.do(request, 0).error_code == 0
    assert shard.group().empty()


def test_leaving_a_group_that_does_not_exist(shard: Any) -> None:
    answer = shard.leave({"member_id": "m"}, group_id="none")
    assert (answer.error_code, answer.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    request = wire.LeaveGroupRequest(group_id="none", member_id="m")
    assert shard.do(request, 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.leave({"member_id": "m"}, group_id="").error_code == ErrorCode.INVALID_GROUP_ID


def test_an_id_given_out_can_be_given_back(shard: Any) -> None:
    (member,) = shard.stable({})
    given = shard.do(shard.join_request())
    token = shard.join(member.member_id)
    assert token in shard.waiting
    assert shard.leave({"member_id": given.member_id}).members[0].error_code == 0
    assert shard.answer(token).generation_id == 2


def test_a_member_that_leaves_while_joining_is_told_so(shard: Any) -> None:
    one, _two = shard.stable({}, {})
    token = shard.join(one.member_id)
    shard.leave({"member_id": one.member_id})
    assert shard.answer(token).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_waiting_for_its_assignment_is_told_so(shard: Any) -> None:
    _leader, follower = two_joined(shard)
    token = shard.sync(follower)
    shard.leave({"member_id": follower.member_id})
    assert shard.answer(token).error_code == ErrorCode.UNKNOWN_MEMBER_ID
