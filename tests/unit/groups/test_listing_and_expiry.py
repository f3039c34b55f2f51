"""Groups seen from outside, groups deleted, offsets that expire."""

from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.wire.messages import groups as wire

T0 = ("t", 0)
U0 = ("u", 0)
DAY = 24 * 3_600_000


def test_a_stable_group_is_described_with_what_its_members_have(shard: Any) -> None:
    one, _two = shard.stable({"client": "app"}, {"group_instance_id": "i"})
    described = shard.describe()
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    members = {member.member_id: member for member in described.members}
    member = members[one.member_id]
    assert (member.client_id, member.client_host) == ("app", "/10.0.0.1")
    assert member.member_assignment == one.member_id.encode()
    assert member.member_metadata
    assert {m.group_instance_id for m in described.members} == {None, "i"}


def test_a_group_that_rebalances_has_no_protocol_yet(shard: Any) -> None:
    leader, _ = shard.stable({}, {})
    shard.join(leader.member_id)
    described = shard.describe()
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert {m.member_metadata for m in described.members} == {b""}


def test_a_group_that_does_not_exist_is_dead_and_from_version_6_an_error(shard: Any) -> None:
    for version in range(7):
        described = shard.describe("none", version)
        expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0
        assert (described.group_state, described.error_code) == ("Dead", expected)


def test_groups_are_listed_by_state_and_type(shard: Any) -> None:
    shard.join(group_id="busy")
    shard.commit({T0: 1}, group_id="simple")
    assert {g: each.group_state for g, each in shard.list().items()} == {
        "busy": "PreparingRebalance",
        "simple": "Empty",
    }
    assert list(shard.list(states=[" empty "])) == ["simple"]
    assert list(shard.list(states=["Empty", "PREPARINGREBALANCE"])) == ["busy", "simple"]
    assert list(shard.list(states=["no such state"])) == []
    assert list(shard.list(types=["Classic"])) == ["busy", "simple"]
    assert list(shard.list(types=["consumer"])) == []
    assert list(shard.list(types=["no such type"])) == []
    for version in range(6):
        answer = shard.do(wire.ListGroupsRequest(), version)
        assert {g.group_id for g in answer.groups} == {"busy", "simple"}


def delete(shard: Any, *group_ids: str) -> list[int]:
    answer = shard.do(wire.DeleteGroupsRequest(groups_names=[*group_ids]))
    return [result.error_code for result in answer.results]


def test_a_group_without_members_can_be_deleted_with_its_offsets(shard: Any) -> None:
    (member,) = shard.stable({})
    shard.commit({T0: 1, U0: 2}, member_id=member.member_id, generation_id_or_member_epoch=1)
    assert delete(shard, "g", "none") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    shard.leave({"member_id": member.member_id})
    assert delete(shard, "g") == [0]
    assert shard.fetch() == {}
    assert shard.describe().group_state == "Dead"
    shard.crash()
    assert shard.list() == {}


def test_a_group_named_twice_is_deleted_once(shard: Any) -> None:
    shard.commit({T0: 1})
    assert delete(shard, "g", "g") == [0]
    assert len(shard.written) == 2


# --- expiry ---


def test_offsets_of_a_group_that_became_empty_are_kept_for_the_retention(shard: Any) -> None:
    (member,) = shard.stable({})
    shard.commit({T0: 1}, member_id=member.member_id, generation_id_or_member_epoch=1)
    shard.leave({"member_id": member.member_id})
    shard.pass_time(7 * DAY - 1)
    assert shard.fetch() == {T0: (1, 0)}
    shard.pass_time(600_001)
    assert shard.fetch() == {}
    assert shard.group() is None
    shard.crash()
    assert shard.list() == {}


def test_retention_counts_from_when_the_group_became_empty_not_from_the_commit(shard: Any) -> None:
    (member,) = shard.stable({}, session_timeout_ms=1_800_000)
    shard.commit({T0: 1}, member_id=member.member_id, generation_id_or_member_epoch=1)
    for _ in range(8 * 48 + 1):
        shard.pass_time(1_799_000)
        assert shard.beat(member) == 0
    assert shard.fetch() == {T0: (1, 0)}
    shard.leave({"member_id": member.member_id})
    shard.pass_time(6 * DAY)
    shard.crash()
    shard.pass_time(DAY - 600_000)
    assert shard.fetch() == {T0: (1, 0)}
    shard.pass_time(1_200_000)
    assert shard.fetch() == {}


def test_a_living_group_loses_offsets_of_topics_it_left_long_ago(shard: Any) -> None:
    shard.commit({T0: 1, U0: 2})
    (member,) = shard.stable({"topics": ["t"]}, session_timeout_ms=1_800_000)
    for _ in range(7 * 49):
        shard.pass_time(1_799_000)
        assert shard.beat(member) == 0
    assert shard.fetch() == {T0: (1, 0)}
    assert shard.group().phase.value == "Stable"


def test_offsets_of_a_simple_consumer_expire_after_its_last_commit(shard: Any) -> None:
    shard.commit({T0: 1, U0: 2})
    shard.pass_time(4 * DAY)
    shard.commit({T0: 3})
    shard.pass_time(4 * DAY)
    assert shard.fetch() == {T0: (3, 0)}
    shard.pass_time(4 * DAY)
    assert shard.fetch() == {}
    assert shard.group() is None


def test_old_clients_choose_their_own_retention(shard: Any) -> None:
    shard.commit({T0: 1}, version=4, retention_time_ms=3_600_000)
    ((_, value),) = shard.written
    assert value.expire_timestamp == shard.now.wall_ms + 3_600_000
    shard.crash()
    shard.pass_time(3_600_000 - 1)
    assert shard.fetch() == {T0: (1, 0)}
    shard.pass_time(600_000)
    assert shard.fetch() == {}


def test_a_retention_without_end_is_kept_to_the_end_of_time(shard: Any) -> None:
    shard.commit({T0: 1}, version=4, retention_time_ms=(1 << 63) - 1)
    ((_, value),) = shard.written
    assert value.expire_timestamp == (1 << 63) - 1
    shard.crash()
    shard.pass_time(365 * DAY)
    assert shard.fetch() == {T0: (1, 0)}


def test_offsets_under_an_open_transaction_do_not_expire(shard: Any) -> None:
    shard.commit({T0: 1})
    shard.commit_in_txn(9, {T0: 2})
    shard.pass_time(8 * DAY)
    assert shard.fetch() == {T0: (1, 0)}
    shard.end_txn(9, commit=False)
    shard.pass_time(600_000)
    assert shard.fetch() == {}


def test_a_clock_that_jumps_ahead_expires_nothing_until_it_is_believed(shard: Any) -> None:
    shard.commit({T0: 1})
    shard.pass_time(600_000, wall_ms=30 * DAY)
    shard.pass_time(DAY - 600_000)
    assert shard.fetch() == {T0: (1, 0)}
    assert [event.kind for event in shard.events] == [EventKind.CLOCK_IN_DOUBT]
    shard.pass_time(DAY)
    assert shard.fetch() == {}


def test_a_group_that_was_only_asked_about_goes_with_the_next_pass(shard: Any) -> None:
    shard.do(shard.join_request())
    assert shard.list()
    shard.pass_time(600_000)
    assert shard.list() == {}


def test_a_pass_over_many_groups_is_made_in_bites(shard: Any) -> None:
    for number in range(1_200):
        shard.commit({T0: 1}, group_id=f"g{number}")
    shard.configure(offsets_retention_ms=600_000)
    shard.pass_time(599_999)
    bites = []
    while shard.list():
        deadline = shard.machine.next_deadline()
        gone = deadline - shard.now.mono_ms
        shard.now = shard.now._replace(mono_ms=deadline, wall_ms=shard.now.wall_ms + gone)
        shard.carry_out(shard.machine.tick(shard.now))
        bites.append(len(shard.written))
    assert sum(bites) == 2 * 1_200
    assert len(bites) > 3
    assert shard.machine.next_deadline() == shard.now.mono_ms + 600_000


# --- topics go ---


def test_offsets_go_with_their_topic(shard: Any) -> None:
    shard.commit({T0: 1, U0: 2})
    shard.commit({T0: 3}, group_id="h")
    shard.commit_in_txn(9, {("t", 1): 4})
    del shard.topics.topics["t"]
    shard.change_topics("t")
    assert len(shard.written) == 3
    assert shard.fetch() == {U0: (2, 0)}
    assert shard.fetch(group_id="h") == {}
    shard.end_txn(9, commit=True)
    assert shard.fetch() == {U0: (2, 0)}
    shard.crash()
    assert shard.fetch() == {U0: (2, 0)}


def test_a_topic_made_anew_does_not_inherit_offsets(shard: Any) -> None:
    shard.commit({T0: 1, U0: 2})
    shard.topics.create("t", 4)
    shard.change_topics("t")
    assert shard.fetch() == {U0: (2, 0)}


def test_a_topic_that_grew_keeps_its_offsets(shard: Any) -> None:
    shard.commit({T0: 1})
    facts = shard.topics.topics["t"]
    shard.topics.topics["t"] = facts._replace(partitions=8)
    shard.change_topics("t", "u")
    assert shard.written == []
    assert shard.fetch() == {T0: (1, 0)}


@pytest.mark.parametrize("version", range(3))
def test_every_version_of_delete_is_answered(shard: Any, version: int) -> None:
    shard.commit({T0: 1})
    answer = shard.do(wire.DeleteGroupsRequest(groups_names=["g"]), version)
    assert answer.results[0].error_code == 0
