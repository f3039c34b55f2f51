"""Steps over thousands of members, groups or offsets are taken in slices; each step here counts how
many. Nobody asks the machine in between, or what is told was copied before."""

import sys
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode
from scriba.groups.classic.group import ClassicGroup, Member, Phase
from scriba.groups.consumer import describe as consumer_describe
from scriba.groups.consumer.group import ConsumerGroup
from scriba.groups.consumer.member import ConsumerMember
from scriba.groups.consumer.topic_hash import AT_ONCE as HASHED_AT_ONCE
from scriba.groups.listing import AT_ONCE
from scriba.groups.offsets.commit import begin_simple_group
from scriba.groups.offsets.expiry import PLACES_PER_TICK
from scriba.groups.offsets.fetch import PAGE
from scriba.groups.store import OFFSETS_AT_ONCE, Committed, Store
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, at_once
from scriba.wire.messages import groups as wire
from scriba.wire.messages.stored_groups import (
    ConsumerGroupMetadataValue as EpochValue,
)
from scriba.wire.messages.stored_groups import (
    ConsumerGroupRegularExpressionValue as RegexValue,
)
from scriba.wire.schema import Message
from tests.unit.groups.shard import Shard

MANY = 3_000
T = TypeVar("T")


def asked(shard: Shard, request: Message, version: int) -> Outcome:
    return shard.machine.handle(request, 1, Caller(version, "", "", bytes(16)), shard.now)


def stepped(work: Generator[None, None, T] | None) -> tuple[int, T]:
    """How many steps it took, and what it came to."""
    assert work is not None, "all of it was done in one go"
    steps = 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            return steps, done.value
        steps += 1


def offset(n: int) -> Committed:
    return Committed(n, -1, "", 0, position=n)


def with_offsets(shard: Shard, committed: int, pending: int = 0) -> Store:
    store = shard.machine.state.store
    begin_simple_group(store, "g", 0)
    for n in range(committed):
        store.put_offset("g", ("t", n), offset(n))
    for n in range(committed, committed + pending):
        store.put_pending(9, "g", ("t", n), offset(n))
    return store


def members(count: int) -> list[Member]:
    return [Member(f"m{n}", None, "", "", 1, 1, (("range", b"x"),)) for n in range(count)]


def test_a_group_of_many_members_is_described_in_slices(shard: Shard) -> None:
    group = ClassicGroup("g", 0)
    for member in members(MANY):
        group.add(member, "consumer")
    group.phase, group.protocol = Phase.STABLE, "range"
    shard.machine.state.store.groups["g"] = group
    out = asked(shard, wire.DescribeGroupsRequest(groups=["g", "none"]), 5)
    steps, done = stepped(out.work)
    assert steps >= MANY // AT_ONCE
    ((_, answer),) = done.replies
    assert isinstance(answer, wire.DescribeGroupsResponse)
    assert [m.member_id for m in answer.groups[0].members] == [f"m{n}" for n in range(MANY)]
    assert answer.groups[1].group_state == "Dead"


def test_a_consumer_group_with_much_assigned_is_described_in_slices(shard: Shard) -> None:
    group = ConsumerGroup("g")
    topic = shard.topics.topics["t"].id
    for n in range(10):
        group.members[f"m{n}"] = ConsumerMember(f"m{n}", assigned={topic: {n: 1}})
        group.target[f"m{n}"] = {topic: frozenset(range(n, 1_000, 10))}
    shard.machine.state.store.groups["g"] = group
    out = asked(shard, wire.ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
    steps, done = stepped(out.work)
    assert steps >= 10, "one for each member"
    ((_, answer),) = done.replies
    assert isinstance(answer, wire.ConsumerGroupDescribeResponse)
    assert [m.member_id for m in answer.groups[0].members] == [f"m{n}" for n in range(10)]
    assert sum(map(consumer_describe._weight, [group])) == 1_010


def test_many_groups_are_listed_in_slices(shard: Shard) -> None:
    for n in range(MANY):
        begin_simple_group(shard.machine.state.store, f"g{n}", 0)
    steps, done = stepped(asked(shard, wire.ListGroupsRequest(), 5).work)
    assert steps >= MANY // AT_ONCE
    ((_, answer),) = done.replies
    assert isinstance(answer, wire.ListGroupsResponse)
    assert len(answer.groups) == MANY


def test_a_group_with_many_offsets_is_deleted_in_slices(shard: Shard) -> None:
    with_offsets(shard, MANY, pending=MANY)
    out = asked(shard, wire.DeleteGroupsRequest(groups_names=["g", "none"]), 2)
    assert out.records == [], "no tombstone is made before the slices begin"
    steps, done = stepped(out.work)
    assert steps >= 2 * MANY // AT_ONCE
    assert len({repr(change.key) for change in done.records}) == 2 * MANY + 1
    assert done.splittable


@pytest.mark.parametrize("version", [7, 9, 10])
def test_all_offsets_of_a_group_are_told_in_slices_as_of_one_moment(
    shard: Shard, version: int
) -> None:
    store = with_offsets(shard, MANY)
    store.put_pending(9, "g", ("t", 1), offset(7))
    group = wire.OffsetFetchRequestGroup(group_id="g", topics=None)
    request = (
        wire.OffsetFetchRequest(groups=[group], require_stable=True)
        if version >= 8
        else wire.OffsetFetchRequest(group_id="g", topics=None, require_stable=True)
    )
    out = asked(shard, request, version)
    assert out.replies == []
    assert out.work is None, "whoever asks next need not wait for it"
    ((_, telling),) = out.told
    next(telling)
    # The machine goes on: commits, a transaction that ends, offsets that go.
    for n in range(MANY):
        store.put_offset("g", ("t", n), offset(1_000_000))
    at_once(store.end_txn(9, True))
    store.drop_offset("g", ("t", 5))
    steps, answer = stepped(telling)
    assert steps >= MANY // PAGE
    assert isinstance(answer, wire.OffsetFetchResponse)
    (topic,) = answer.groups[0].topics if version >= 8 else answer.topics
    told = [(each.partition_index, each.committed_offset) for each in topic.partitions]
    assert told == [(n, -1 if n == 1 else n) for n in range(MANY)]
    assert [each.partition_index for each in topic.partitions if each.error_code] == [1]


def test_topics_that_the_caller_may_not_know_of_are_left_out(shard: Shard) -> None:
    store = with_offsets(shard, MANY)
    store.put_offset("g", ("secret", 0), offset(1))
    group = wire.OffsetFetchRequestGroup(group_id="g", topics=None)
    caller = Caller(9, "", "", b"", lambda name: name != "secret")
    request = wire.OffsetFetchRequest(groups=[group])
    out = shard.machine.handle(request, 1, caller, shard.now)
    ((_, telling),) = out.told
    answer: Any = at_once(telling)
    assert [topic.name for topic in answer.groups[0].topics] == ["t"]


def test_an_offset_of_a_deleted_namesake_is_not_told_under_the_new_id(shard: Shard) -> None:
    store = shard.machine.state.store
    begin_simple_group(store, "g", 0)
    store.put_offset("g", ("t", 0), offset(1)._replace(topic_id=b"x" * 16))
    store.put_offset("g", ("t", 1), offset(2)._replace(topic_id=shard.topics.topics["t"].id))
    group = wire.OffsetFetchRequestGroup(group_id="g", topics=None)
    ((_, answer),) = asked(shard, wire.OffsetFetchRequest(groups=[group]), 10).replies
    assert isinstance(answer, wire.OffsetFetchResponse)
    (topic,) = answer.groups[0].topics
    assert [each.partition_index for each in topic.partitions] == [1]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_with_many_offsets_ends_in_slices(shard: Shard, commit: bool) -> None:
    store = with_offsets(shard, 10)
    for group in ("g", "h"):
        for n in range(MANY):
            store.put_pending(9, group, ("t", n), offset(MANY + n))
    steps, _ = stepped(store.end_txn(9, commit))
    assert steps >= 2 * MANY // OFFSETS_AT_ONCE
    assert not (store.pending)
    assert not (store.open_txns)
    assert not store.unstable
    assert len(store.offsets["g"]) == (MANY if commit else 10)
    assert len(store.offsets.get("h", ())) == (MANY if commit else 0)
    counts = {"g": MANY, "h": MANY} if commit else {"g": 10}
    assert store.by_topic == {"t": counts}


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_without_a_call_for_each_of_its_offsets(
    shard: Shard, commit: bool
) -> None:
    """Other groups of the partition wait for it meanwhile."""
    store = with_offsets(shard, MANY)
    for n in range(2 * MANY):
        store.put_pending(9, "g", ("t", n), offset(MANY + n))
    ending, calls = store.end_txn(9, commit), 0

    def count(frame: Any, event: str, about: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for _ in ending:
            pass
    finally:
        sys.setprofile(None)
    assert calls < 2 * MANY / 20
    assert not store.unstable
    assert len(store.offsets["g"]) == (2 * MANY if commit else MANY)


def test_the_offsets_of_a_large_group_expire_in_slices(shard: Shard) -> None:
    store = with_offsets(shard, MANY)
    begin_simple_group(store, "small", 0)
    store.put_offset("small", ("t", 0), offset(0))
    wait_ms = shard.settings.offsets_retention_check_interval_ms
    steps, gone = 0, set[str]()
    while gone != {"g", "small"}:
        shard.now = Instant(shard.now.mono_ms + wait_ms, shard.now.wall_ms)
        out = shard.machine.tick(shard.now)
        if out.work is not None:
            steps, out = stepped(out.work)
        gone |= {event.about for event in out.events}
    assert steps >= MANY // PLACES_PER_TICK


# --- generations ---


def join(member_id: str = "", instance: str | None = None) -> wire.JoinGroupRequest:
    return wire.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=300_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[wire.JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


def sync(group: ClassicGroup, member_id: str, **assigned: bytes) -> wire.SyncGroupRequest:
    return wire.SyncGroupRequest(
        group_id="g",
        generation_id=group.generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            wire.SyncGroupRequestAssignment(member_id=name, assignment=share)
            for name, share in assigned.items()
        ],
    )


def stable(shard: Shard, statics: int = 0) -> ClassicGroup:
    group = ClassicGroup("g", 0)
    for count, member in enumerate(members(MANY)):
        if count < statics:
            member.instance_id = f"i{count}"
        group.add(member, "consumer")
    group.phase, group.protocol = Phase.STABLE, "range"
    shard.machine.state.store.groups["g"] = group
    return group


def rejoined(shard: Shard) -> tuple[ClassicGroup, Outcome]:
    """All have joined again; what is left to do for the last of them."""
    group = stable(shard)
    for name in tuple(group.members):
        assert group.phase is not Phase.COMPLETING
        out = asked(shard, join(name), 5)
    return group, out


def completing(shard: Shard) -> ClassicGroup:
    """Its generation is formed, and all but the leader have asked for their share."""
    group, out = rejoined(shard)
    stepped(out.work)
    for name in group.members:
        if name != group.leader:
            asked(shard, sync(group, name), 5)
    return group


def test_a_generation_of_many_members_is_formed_in_slices(shard: Shard) -> None:
    group, out = rejoined(shard)
    assert out.replies == []
    steps, done = stepped(out.work)
    assert steps >= 2 * MANY // AT_ONCE
    assert done.work is None
    answers: dict[str, Any] = {answer.member_id: answer for _, answer in done.replies}  # type: ignore[attr-defined]
    assert list(answers) == list(group.members)
    assert {answer.generation_id for answer in answers.values()} == {group.generation} == {1}
    told = [each.member_id for each in answers[str(group.leader)].members]
    assert told == list(group.members), "the leader hears of all"
    assert group.phase is Phase.COMPLETING
    assert len(group.awaiting_sync) == MANY


def test_many_members_are_given_their_shares_in_slices(shard: Shard) -> None:
    group = completing(shard)
    leader = str(group.leader)
    out = asked(shard, sync(group, leader, **{name: name.encode() for name in group.members}), 5)
    assert out.records == [], "nothing is stored before all of it is known"
    steps, done = stepped(out.work)
    assert steps >= 2 * MANY // AT_ONCE
    assert group.phase is Phase.STABLE
    ((_, value),) = done.records
    shares = {each.member_id: each.assignment for each in value.members}  # type: ignore[union-attr]
    assert shares == {name: name.encode() for name in group.members}
    assert sorted(answer.assignment for _, answer in done.replies) == sorted(shares.values())  # type: ignore[attr-defined]
    assert done.instead is not None


def test_many_members_that_wait_for_a_share_are_sent_back_in_slices(shard: Shard) -> None:
    group = completing(shard)
    group.members["m5"].protocols = (("other", b""), ("range", b"x"))
    steps, done = stepped(asked(shard, join("m5"), 5).work)
    assert steps >= MANY // AT_ONCE
    assert group.phase is Phase.PREPARING
    sent_back = [answer for _, answer in done.replies if isinstance(answer, wire.SyncGroupResponse)]
    assert len(sent_back) == MANY - 1
    assert {answer.error_code for answer in sent_back} == {ErrorCode.REBALANCE_IN_PROGRESS}


def test_many_members_that_ask_for_no_share_are_dropped_in_slices(shard: Shard) -> None:
    group, out = rejoined(shard)
    stepped(out.work)
    late = Instant(shard.now.mono_ms + 60_000, shard.now.wall_ms)
    steps, done = stepped(shard.machine.tick(late).work)
    assert steps >= MANY // AT_ONCE
    assert not group.members
    assert group.phase is Phase.EMPTY
    assert len(done.records) == 1


def test_a_static_member_that_returns_to_many_is_stored_in_slices(shard: Shard) -> None:
    group = stable(shard, statics=1)
    steps, done = stepped(asked(shard, join("", "i0"), 9).work)
    assert steps >= MANY // AT_ONCE
    ((_, value),) = done.records
    ((_, answer),) = done.replies
    stored = {each.member_id for each in value.members}  # type: ignore[union-attr]
    assert answer.member_id in stored  # type: ignore[attr-defined]
    assert len(stored) == MANY == len(group.members)
    assert answer.skip_assignment  # type: ignore[attr-defined]


@pytest.mark.parametrize("others", ["alike", "different"])
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_target_for_many_members_is_computed_in_slices(
    shard: Shard, assignor: str, others: str
) -> None:
    topic = shard.topics.create("wide", 2 * MANY)
    shard.topics.create("second", MANY)
    group = ConsumerGroup("g")
    for n in range(MANY):
        names = {"wide", "second"} if others == "different" and n % 2 else {"wide"}
        group.members[f"m{n}"] = ConsumerMember(
            f"m{n}", names=frozenset(names), assignor=assignor, epoch=1
        )
    shard.machine.state.store.groups["g"] = group
    request = wire.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="new",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        topic_partitions=[],
        subscribed_topic_names=["wide"],
        server_assignor=assignor,
    )
    steps, done = stepped(asked(shard, request, 1).work)
    assert steps >= 3 * MANY // AT_ONCE
    for change in done.records:
        group.apply(*change)
    given = [n for target in group.target.values() for n in target.get(topic.id, ())]
    assert sorted(given) == list(range(2 * MANY)), "each of them to one member"
    assert group.target_epoch == group.epoch == 2
    ((_, answer),) = done.replies
    assert answer.assignment.topic_partitions  # type: ignore[attr-defined]


def test_what_all_members_know_is_counted_as_they_come_change_and_go() -> None:
    group = ClassicGroup("g", 0)
    first, second = members(2)
    group.add(first, "consumer")
    group.add(second, "consumer")
    group.phase = Phase.STABLE
    group.offer(first, (("range", b""), ("sticky", b""), ("range", b"")))
    assert group.supports("consumer", ["range"])
    assert not group.supports("consumer", ["sticky"]), "the other does not know it"
    group.offer(second, (("sticky", b""),))
    assert group.supports("consumer", ["sticky"])
    assert not group.supports("consumer", ["range"])
    assert group.select_protocol() == "sticky"
    group.remove(second.member_id)
    assert group.supports("consumer", ["range"])
    group.remove(first.member_id)
    assert not group._knowing, "nothing is kept of members that have gone"


TopicPartition = tuple[str, int]
PLACES = st.tuples(st.sampled_from("tu"), st.integers(0, 2))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.just(0), st.sampled_from("gh"), PLACES),
        st.tuples(st.just("pend"), st.integers(1, 3), st.sampled_from("gh"), PLACES),
        st.tuples(st.just("drop"), st.just(0), st.sampled_from("gh"), PLACES),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.just(""), PLACES),
    )
)


@given(changes=CHANGES)
def test_what_is_counted_beside_the_offsets_is_what_there_is(
    changes: list[tuple[str, int, str, TopicPartition]],
) -> None:
    store = Store()
    for position, (what, producer, group, place) in enumerate(changes):
        committed = offset(position)
        if what == "put":
            store.put_offset(group, place, committed)
        elif what == "pend":
            store.put_pending(producer, group, place, committed)
        elif what == "drop":
            store.drop_offset(group, place)
        else:
            at_once(store.end_txn(producer, what == "commit"))
        unstable: dict[str, dict[TopicPartition, int]] = {}
        by_topic: dict[str, dict[str, int]] = {}
        held = [*store.offsets.items()]
        for groups in store.pending.values():
            held += groups.items()
            for name, places in groups.items():
                for each in places:
                    counts = unstable.setdefault(name, {})
                    counts[each] = counts.get(each, 0) + 1
        for name, places in held:
            for topic, _ in places:
                topics = by_topic.setdefault(topic, {})
                topics[name] = topics.get(name, 0) + 1
        assert (store.unstable, store.by_topic) == (unstable, by_topic)


# --- consumer groups of many topics ---


def hears(member_id: str, epoch: int, **facts: Any) -> wire.ConsumerGroupHeartbeatRequest:
    said: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
    return wire.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, **(said | facts)
    )


def of_many_topics(shard: Shard, *member_ids: str) -> ConsumerGroup:
    """A consumer group whose members have subscribed to many topics that nobody has hashed yet."""
    for n in range(MANY):
        shard.topics.create(f"t{n}", 1)
    for member_id in member_ids:
        shard.do(hears(member_id, 0, subscribed_topic_names=list(shard.topics.topics)), 1)
    group: ConsumerGroup = shard.group()
    return group


def test_topics_of_a_group_are_hashed_in_slices_when_a_member_joins(shard: Shard) -> None:
    of_many_topics(shard, "a")
    out = asked(shard, hears("b", 0, subscribed_topic_names=["t1"]), 1)
    assert not out.records, "nothing is stored before all of it is known"
    steps, done = stepped(out.work)
    assert steps >= MANY // HASHED_AT_ONCE
    ((_, answer),) = done.replies
    assert not answer.error_code  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["leaves", "is removed", "is not heard of"])
def test_topics_of_a_group_are_hashed_in_slices_when_a_member_goes(shard: Shard, how: str) -> None:
    group = of_many_topics(shard, "a", "b")
    epoch = group.epoch
    if how == "leaves":
        out = asked(shard, hears("b", -1), 1)
    elif how == "is removed":
        named = [wire.MemberIdentity(member_id="b")]
        out = asked(shard, wire.LeaveGroupRequest(group_id="g", members=named), 5)
    else:
        late = Instant(shard.now.mono_ms + 45_000, shard.now.wall_ms + 45_000)
        out = shard.machine.tick(late)
    steps, done = stepped(out.work)
    assert steps >= MANY // HASHED_AT_ONCE
    assert [v.epoch for _, v in done.records if isinstance(v, EpochValue)] == [epoch + 1]


def test_topics_of_a_group_are_hashed_in_slices_when_they_changed(shard: Shard) -> None:
    group = of_many_topics(shard, "a")
    group.stale = True
    quiet = hears("a", group.members["a"].epoch, topic_partitions=None)
    steps, done = stepped(asked(shard, quiet, 1).work)
    assert steps >= MANY // HASHED_AT_ONCE
    assert not any(isinstance(v, EpochValue) for _, v in done.records), "they are the same"


def test_expressions_of_a_group_are_matched_one_in_a_slice(shard: Shard) -> None:
    shard.topics.create("t", 1)
    count = 20
    for n in range(count):
        shard.do(hears(f"m{n}", 0, subscribed_topic_regex=f"t|{n}"), 1)
    shard.topics.create("7", 1)
    shard.change_topics("7")
    shard.pass_time(10_001)
    epoch = shard.group().members["m3"].epoch
    steps, done = stepped(asked(shard, hears("m3", epoch, topic_partitions=None), 1).work)
    assert steps >= count
    found = {k.regular_expression: v.topics for k, v in done.records if isinstance(v, RegexValue)}  # type: ignore[attr-defined]
    assert len(found) == count
    assert sorted(found["t|7"]) == ["7", "t"]
