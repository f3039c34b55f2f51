"""Static members (KIP-345): an instance that restarts takes its own place again."""

from typing import Any

from scriba.errors import ErrorCode
from scriba.groups.classic.group import Phase


def test_an_instance_that_returns_gets_its_assignment_without_a_rebalance(shard: Any) -> None:
    leader, static = shard.stable({}, {"group_instance_id": "i"})
    back = shard.answer(shard.join(group_instance_id="i"))
    assert (back.error_code, back.generation_id, back.leader) == (0, 1, leader.member_id)
    assert back.member_id != static.member_id
    assert back.member_id.startswith("i-")
    assert not back.skip_assignment
    assert shard.group().phase is Phase.STABLE
    sync = shard.answer(shard.sync(back, group_instance_id="i"))
    assert sync.assignment == static.member_id.encode()
    assert shard.beat(leader) == 0


def test_the_new_id_survives_a_restart(shard: Any) -> None:
    shard.stable({}, {"group_instance_id": "i"})
    back = shard.answer(shard.join(group_instance_id="i"))
    assert len(shard.written) == 1
    shard.crash()
    assert shard.beat(back, group_instance_id="i") == 0


def test_the_member_that_was_replaced_is_fenced(shard: Any) -> None:
    _, static = shard.stable({}, {"group_instance_id": "i"})
    shard.join(group_instance_id="i")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert shard.beat(static, group_instance_id="i") == fenced
    assert shard.beat(static) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.answer(shard.sync(static, group_instance_id="i")).error_code == fenced
    rejoin = shard.do(shard.join_request(static.member_id, group_instance_id="i"))
    assert (rejoin.error_code, rejoin.protocol_name) == (fenced, None)
    commit = shard.commit(
        {("t", 0): 5},
        member_id=static.member_id,
        group_instance_id="i",
        generation_id_or_member_epoch=1,
    )
    assert commit == {("t", 0): fenced}


def test_a_leader_that_returns_need_not_assign_again(shard: Any) -> None:
    leader, follower = shard.stable({"group_instance_id": "i"}, {})
    back = shard.answer(shard.join(group_instance_id="i"))
    assert back.leader == back.member_id
    assert back.skip_assignment
    assert {m.member_id for m in back.members} == {back.member_id, follower.member_id}
    assert leader.member_id != back.member_id


def test_a_leader_that_returns_in_an_older_version_is_told_of_its_old_self(shard: Any) -> None:
    leader, _ = shard.stable({"group_instance_id": "i"}, {})
    back = shard.answer(shard.join(group_instance_id="i", version=8))
    assert (back.leader, back.members) == (leader.member_id, [])
    assert shard.group().leader == back.member_id


def test_an_instance_that_returns_with_another_choice_of_protocol_causes_a_rebalance(
    shard: Any,
) -> None:
    shard.stable({"group_instance_id": "i", "names": ["range", "sticky"]})
    token = shard.join(group_instance_id="i", names=["sticky", "range"])
    assert shard.answer(token).generation_id == 2
    assert shard.answer(token).protocol_name == "sticky"


def test_an_instance_that_returns_while_the_leader_assigns_causes_a_rebalance(shard: Any) -> None:
    tokens = [shard.join(), shard.join(group_instance_id="i")]
    shard.pass_time(6_000)
    leader, static = (shard.answer(token) for token in tokens)
    waiting = shard.sync(static, group_instance_id="i")
    token = shard.join(group_instance_id="i")
    assert shard.answer(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert token in shard.waiting
    late = shard.sync(leader, {leader.member_id: b"x"})
    assert shard.answer(late).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    shard.join(leader.member_id)
    assert shard.answer(token).generation_id == 2


def test_an_instance_started_twice_fences_the_one_that_waits(shard: Any) -> None:
    first = shard.join(group_instance_id="i", version=6)
    second = shard.join(group_instance_id="i")
    fenced = shard.answer(first)
    assert (fenced.error_code, fenced.protocol_name) == (ErrorCode.FENCED_INSTANCE_ID, "")
    shard.pass_time(3_000)
    assert shard.answer(second).error_code == 0
    assert len(shard.group().members) == 1


def test_a_static_member_that_does_not_rejoin_keeps_its_place_for_a_session(shard: Any) -> None:
    dynamic, static = shard.stable({}, {"group_instance_id": "i", "session_timeout_ms": 100_000})
    token = shard.join(dynamic.member_id)
    shard.pass_time(60_000)
    joined = shard.answer(token)
    assert {m.member_id for m in joined.members} == {dynamic.member_id, static.member_id}
    assert [m.group_instance_id for m in joined.members] == [None, "i"]


def test_when_only_silent_static_members_are_left_the_group_waits_for_their_sessions(
    shard: Any,
) -> None:
    dynamic, static = shard.stable({}, {"group_instance_id": "i", "session_timeout_ms": 200_000})
    shard.leave({"member_id": dynamic.member_id})
    shard.pass_time(150_000)
    assert shard.group().phase is Phase.PREPARING
    assert list(shard.group().members) == [static.member_id]
    shard.pass_time(50_000)
    assert shard.describe().group_state == "Empty"


def test_an_instance_nobody_knows_is_an_unknown_member(shard: Any) -> None:
    (member,) = shard.stable({})
    answer = shard.do(shard.join_request(member.member_id, group_instance_id="i"))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
