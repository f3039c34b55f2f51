"""How members come into a classic group, and how a generation is formed."""

from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.groups.classic.group import VALID, Phase
from scriba.wire.messages import groups as wire
from scriba.wire.messages.stored_groups import GroupMetadataValue


def test_a_first_member_waits_for_others_then_leads(shard: Any) -> None:
    first = shard.do(shard.join_request(), client="app")
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("app-")
    assert len(first.member_id) == len("app-") + 36

    token = shard.send(shard.join_request(first.member_id), client="app")
    shard.pass_time(2_999)
    assert token in shard.waiting
    shard.pass_time(1)

    joined = shard.answer(token)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, first.member_id)
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [m.member_id for m in joined.members] == [first.member_id]
    assert shard.group().phase is Phase.COMPLETING


def test_the_first_rebalance_is_delayed_again_while_members_keep_coming(shard: Any) -> None:
    tokens = [shard.join()]
    for _ in range(3):
        shard.pass_time(2_000)
        tokens.append(shard.join())
    assert not any(token in shard.answers for token in tokens)
    shard.pass_time(6_000)
    answers = [shard.answer(token) for token in tokens]
    assert {a.generation_id for a in answers} == {1}
    assert sorted(len(a.members) for a in answers) == [0, 0, 0, 4]


def test_the_delay_ends_with_the_rebalance_timeout_even_if_members_keep_coming(shard: Any) -> None:
    first = shard.join(rebalance_timeout_ms=8_000)
    for _ in range(8):
        shard.join(rebalance_timeout_ms=8_000)
        shard.pass_time(1_000)
    assert shard.answer(first).generation_id == 1


def test_old_clients_become_members_at_once(shard: Any) -> None:
    token = shard.send(shard.join_request(rebalance_timeout_ms=-1), version=0)
    shard.pass_time(3_000)
    joined = shard.answer(token)
    assert joined.error_code == 0
    assert joined.member_id in shard.group().members
    assert shard.group().rebalance_timeout_ms() == 10_000


def test_an_id_that_nobody_joins_with_is_forgotten_after_a_session(shard: Any) -> None:
    given = shard.do(shard.join_request())
    shard.pass_time(10_000)
    again = shard.do(shard.join_request(given.member_id))
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert not shard.group().pending


def test_ids_given_out_hold_back_the_generation_until_they_expire(shard: Any) -> None:
    (member,) = shard.stable({})
    given = shard.do(shard.join_request(session_timeout_ms=6_000))
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    token = shard.join(member.member_id)
    assert token in shard.waiting
    shard.pass_time(6_000)
    assert shard.answer(token).generation_id == member.generation_id + 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"names": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_what_no_group_takes_is_refused(shard: Any, changes: Any, error: ErrorCode) -> None:
    answer = shard.do(shard.join_request(**changes))
    assert (answer.error_code, answer.member_id) == (error, changes.get("member_id", ""))


def test_a_new_group_is_stored_before_anybody_is_in_it(shard: Any) -> None:
    shard.do(shard.join_request())
    ((key, value),) = shard.written
    assert key.group == "g"
    assert isinstance(value, GroupMetadataValue)
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == (
        "",
        0,
        None,
        None,
    )
    shard.crash()
    assert shard.describe().group_state == "Empty"


def test_members_must_share_a_protocol_with_everybody(shard: Any) -> None:
    shard.stable({"names": ["range", "sticky"]}, {"names": ["sticky"]})
    other_type = shard.do(shard.join_request(protocol_type="connect", names=["sticky"]))
    assert other_type.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    no_common = shard.do(shard.join_request(names=["range"]))
    assert no_common.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shard.do(shard.join_request(names=["sticky"])).error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_members_vote_for_the_protocol_they_all_know(shard: Any) -> None:
    joined = shard.stable(
        {"names": ["sticky", "range"]},
        {"names": ["range", "sticky", "own"]},
        {"names": ["own", "range", "sticky"]},
    )
    assert {each.protocol_name for each in joined} == {"range"}


def test_a_full_group_turns_newcomers_away(make_shard: Any) -> None:
    shard = make_shard(max_size=2)
    one, _two = shard.stable({}, {})
    assert shard.do(shard.join_request()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    token = shard.join(one.member_id)
    assert token in shard.waiting
    third = shard.do(shard.join_request())
    assert third.error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_when_the_limit_is_lowered_the_last_to_rejoin_is_left_out(shard: Any) -> None:
    one, two = shard.stable({}, {})
    shard.configure(max_size=1)
    token = shard.join(one.member_id)
    late = shard.do(shard.join_request(two.member_id))
    assert late.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    shard.pass_time(60_000)
    assert shard.answer(token).error_code == 0
    assert list(shard.group().members) == [one.member_id]


def test_a_group_loaded_with_too_many_members_rebalances(shard: Any) -> None:
    shard.stable({}, {})
    shard.configure(max_size=1)
    shard.crash()
    assert shard.group().phase is Phase.PREPARING


def test_who_missed_the_answer_gets_the_generation_again(shard: Any) -> None:
    tokens = [shard.join(), shard.join()]
    shard.pass_time(6_000)
    leader, follower = (shard.answer(token) for token in tokens)
    assert len(shard.do(shard.join_request(leader.member_id)).members) == 2
    again = shard.do(shard.join_request(follower.member_id))
    assert (again.generation_id, again.members) == (1, [])
    shard.sync(leader, {})
    again = shard.do(shard.join_request(follower.member_id))
    assert (again.generation_id, again.leader) == (1, leader.member_id)
    assert shard.group().phase is Phase.STABLE


def test_a_leader_that_joins_again_makes_the_group_rebalance(shard: Any) -> None:
    leader, follower = shard.stable({}, {})
    token = shard.join(leader.member_id)
    assert token in shard.waiting
    assert shard.beat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
    second = shard.join(follower.member_id)
    assert shard.answer(token).generation_id == shard.answer(second).generation_id == 2


def test_a_follower_with_a_new_subscription_makes_the_group_rebalance(shard: Any) -> None:
    _leader, follower = shard.stable({}, {})
    token = shard.join(follower.member_id, topics=["t", "u"])
    assert token in shard.waiting
    assert shard.group().phase is Phase.PREPARING


def test_members_that_do_not_rejoin_in_time_are_left_behind(shard: Any) -> None:
    leader, follower = shard.stable({}, {}, session_timeout_ms=120_000)
    token = shard.join(follower.member_id, topics=["u"], session_timeout_ms=120_000)
    shard.pass_time(59_999)
    assert token in shard.waiting
    shard.pass_time(1)
    joined = shard.answer(token)
    assert (joined.generation_id, joined.leader) == (2, follower.member_id)
    assert shard.beat(leader) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_of_a_member_counts(shard: Any) -> None:
    leader, _ = shard.stable(
        {"rebalance_timeout_ms": 10_000},
        {"rebalance_timeout_ms": 90_000},
        session_timeout_ms=600_000,
    )
    token = shard.join(leader.member_id, rebalance_timeout_ms=10_000, session_timeout_ms=600_000)
    shard.pass_time(89_999)
    assert token in shard.waiting
    shard.pass_time(1)
    assert token in shard.answers


def test_a_join_that_is_repeated_displaces_the_one_that_waits(shard: Any) -> None:
    leader, _follower = shard.stable({}, {})
    first = shard.join(leader.member_id)
    second = shard.join(leader.member_id)
    assert shard.answer(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second in shard.waiting


def test_a_newcomer_that_vanished_while_joining_does_not_stay_for_ever(shard: Any) -> None:
    (member,) = shard.stable({}, rebalance_timeout_ms=900_000)
    newcomer = shard.join(rebalance_timeout_ms=900_000)
    for _ in range(50):
        shard.pass_time(6_000)
        assert shard.beat(member) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.answer(newcomer).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(shard.group().members) == [member.member_id]


def test_a_pending_member_cannot_turn_static(shard: Any) -> None:
    given = shard.do(shard.join_request())
    answer = shard.do(shard.join_request(given.member_id, group_instance_id="i"))
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_phases_only_change_as_the_table_says(shard: Any) -> None:
    group = shard.group() or (shard.join(), shard.group())[1]
    for target in Phase:
        if target not in VALID[group.phase]:
            with pytest.raises(AssertionError):
                group.become(target, 0)
    assert VALID[Phase.DEAD] == frozenset()


def test_every_version_of_join_is_answered_in_its_own_shape(shard: Any) -> None:
    for version in range(wire.JoinGroupRequest.VERSIONS.high + 1):
        request = shard.join_request(group_id=f"v{version}")
        if version == 0:
            request.rebalance_timeout_ms = -1
        answer = shard.do(request, version)
        if version >= 4:
            request.member_id = answer.member_id
            answer = shard.do(request, version)
        assert not hasattr(answer, "error_code")
    shard.pass_time(3_000)
    assert len(shard.answers) == 6 + 10
    assert [a.generation_id for a in shard.answers.values() if not a.error_code] == [1] * 10
