"""Groups that change their protocol while they live, and members of both in one group."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from scriba.errors import ErrorCode
from scriba.groups.classic.embedded import read_assignment
from scriba.groups.classic.group import ClassicGroup
from scriba.groups.classic.group import Phase as ClassicPhase
from scriba.groups.consumer.group import ConsumerGroup, Phase
from scriba.wire.messages import groups as wire
from tests.unit.groups.consumers import Consumer, Share, group_of, picture
from tests.unit.groups.shard import PENDING, Shard


class Old:
    """A client of the classic protocol. An eager one gives up all before it joins again; a
    cooperative one says what it owns, and gives up what is not in its next share."""

    def __init__(self, shard: Shard, *topics: str, eager: bool = True, **facts: Any) -> None:
        self.shard = shard
        self.topics = topics
        self.eager = eager
        self.facts = facts
        self.member_id = ""
        self.generation = -1
        self.owned: Share = {}
        self.token = 0

    @property
    def protocol(self) -> str:
        return "range" if self.eager else "cooperative-sticky"

    def offer(self) -> wire.JoinGroupRequestProtocol:
        return wire.JoinGroupRequestProtocol(name=self.protocol, metadata=self.subscription())

    def subscription(self) -> bytes:
        owned = [
            wire.ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=sorted(held))
            for topic, held in self.owned.items()
        ]
        message = wire.ConsumerProtocolSubscription(
            topics=[*self.topics], owned_partitions=owned, generation_id=self.generation
        )
        return b"\0\3" + message.encode(3)

    def join(self) -> int:
        """The error; the generation is formed and synced if there is one already."""
        if self.eager:
            self.owned = {}
        request = self.shard.join_request(
            self.member_id,
            protocols=[self.offer()],
            **self.facts,
        )
        self.token = self.shard.send(request, 9)
        answer = self.shard.answer(self.token)
        if answer is not PENDING and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return self.join()
        return 0 if answer is PENDING else self.joined()

    def joined(self) -> int:
        answer = self.shard.answer(self.token)
        if answer.error_code:
            return int(answer.error_code)
        self.member_id = answer.member_id
        self.generation = answer.generation_id
        if answer.members:
            return 0
        return self.sync()

    def sync(self, shares: dict[str, bytes] | None = None) -> int:
        token = self.shard.sync(
            wire.JoinGroupResponse(
                member_id=self.member_id,
                generation_id=self.generation,
                protocol_type="consumer",
                protocol_name=self.protocol,
            ),
            shares,
            group_instance_id=self.facts.get("group_instance_id"),
        )
        answer = self.shard.answer(token)
        if answer is PENDING or answer.error_code:
            return 0 if answer is PENDING else int(answer.error_code)
        share = read_assignment(answer.assignment)
        self.owned = {each.topic: set(each.partitions) for each in share.assigned_partitions}
        return 0

    def beat(self) -> int:
        request = wire.HeartbeatRequest(
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.facts.get("group_instance_id"),
        )
        return int(self.shard.do(request, 4).error_code)

    def live(self) -> int:
        """One heartbeat, and what a client does after it."""
        error = self.beat()
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            return self.join()
        if error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            self.owned = {}
            if error == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            return self.join()
        return error


def classic_group(shard: Shard, *members: Old) -> None:
    """A stable classic group in which the first member assigned by ranges of t."""
    for member in members:
        assert member.join() == 0
    shard.pass_time(10_000)
    leader = next(m for m in members if shard.answer(m.token).members)
    shares = {}
    per_member = 4 // len(members)
    for place, member in enumerate(members):
        member.joined()
        first = place * per_member
        share = wire.ConsumerProtocolAssignment(
            assigned_partitions=[
                wire.ConsumerProtocolAssignmentTopicPartition(
                    topic="t", partitions=[*range(first, first + per_member)]
                )
            ]
        )
        shares[member.member_id] = b"\0\3" + share.encode(3)
    leader.sync(shares)
    for member in members:
        assert member.sync() == 0


def settled(*members: Old | Consumer, rounds: int = 12) -> None:
    for _ in range(rounds):
        members[0].shard.pass_time(1_500)
        for member in members:
            if isinstance(member, Old):
                member.live()
            else:
                assert member.beat().error_code == 0


def share(member: Old | Consumer) -> set[int]:
    held = member.owned if isinstance(member, Old) else member.share()
    return held.get("t", set())


@pytest.mark.parametrize("eager", [True, False])
def test_the_first_new_member_turns_the_group_over_and_all_get_their_share(
    shard: Shard, eager: bool
) -> None:
    a, b = Old(shard, "t", eager=eager), Old(shard, "t", eager=eager)
    classic_group(shard, a, b)
    generation = a.generation
    c = Consumer(shard, "c", "t")
    answer = c.join()
    assert answer.error_code == 0
    group = group_of(shard)
    assert (group.epoch, group.target_epoch) == (generation + 1, generation + 1)
    assert len(group.classic_members()) == 2
    assert share(c) == set(), "nobody has given up anything yet"
    assert picture(shard) == picture(shard, shard.reloaded())

    settled(a, b, c)
    assert group_of(shard).phase() is Phase.STABLE
    assert sorted(len(share(each)) for each in (a, b, c)) == [1, 1, 2]
    assert share(a) | share(b) | share(c) == {0, 1, 2, 3}


def test_a_cooperative_member_keeps_reading_what_it_keeps(shard: Shard) -> None:
    a = Old(shard, "t", eager=False)
    classic_group(shard, a)
    c = Consumer(shard, "c", "t")
    c.join()
    assert a.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert a.join() == 0
    assert share(a) == {0, 1}, "told to give up two, it keeps two"
    assert a.generation == 1, "until it has"
    c.beat()
    assert share(c) == set()
    assert a.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert a.join() == 0
    assert a.generation == 2
    c.beat()
    assert (share(a), share(c)) == ({0, 1}, {2, 3})
    assert a.beat() == 0


def test_a_classic_client_joins_a_group_of_the_new_protocol(shard: Shard) -> None:
    c = Consumer(shard, "c", "t")
    c.join()
    shard.pass_time(1_000)
    a = Old(shard, "t", eager=False)
    assert a.join() == 0
    settled(a, c)
    assert sorted([share(a), share(c)], key=min) in ([{0, 1}, {2, 3}],)
    described = shard.do(wire.ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0]
    assert sorted(member.member_type for member in described.members) == [0, 1]


def test_waiting_joins_and_syncs_are_sent_back_when_the_group_turns_over(shard: Shard) -> None:
    a = Old(shard, "t")
    classic_group(shard, a)
    b = Old(shard, "t")
    b.join()
    assert shard.answer(b.token) is PENDING
    c = Consumer(shard, "c", "t")
    assert c.join().error_code == 0
    assert shard.answer(b.token).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    settled(a, b, c)
    assert sorted(len(share(each)) for each in (a, b, c)) == [1, 1, 2]


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [("bidirectional", True), ("upgrade", True), ("downgrade", False), ("disabled", False)],
)
def test_the_policy_decides_whether_a_group_with_members_turns_over(
    make_shard: Callable[..., Shard], policy: str, allowed: bool
) -> None:
    shard = make_shard(consumer_migration_policy=policy)
    shard.topics.create("t", 4)
    a = Old(shard, "t")
    classic_group(shard, a)
    answer = Consumer(shard, "c", "t").join()
    assert answer.error_code == (0 if allowed else ErrorCode.GROUP_ID_NOT_FOUND)
    assert isinstance(shard.group(), ConsumerGroup if allowed else ClassicGroup)
    if not allowed:
        assert a.beat() == 0, "nothing happened to it"


def test_a_group_that_is_not_made_of_consumers_stays_what_it_is(shard: Shard) -> None:
    shard.stable({}, protocol_type="connect")
    assert Consumer(shard, "c", "t").join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(shard.group(), ClassicGroup)


def test_an_empty_group_takes_the_protocol_of_whoever_comes(shard: Shard) -> None:
    a = Old(shard, "t")
    classic_group(shard, a)
    shard.commit({("t", 0): 7}, member_id=a.member_id, generation_id_or_member_epoch=1)
    shard.leave({"member_id": a.member_id})
    shard.pass_time(100_000)
    shard.configure(consumer_migration_policy="disabled")
    c = Consumer(shard, "c", "t")
    assert c.join().error_code == 0
    assert shard.fetch(("t", 0))["t", 0] == (7, 0), "offsets stay"
    c.leave()
    b = Old(shard, "t")
    classic_group(shard, b)
    assert isinstance(shard.group(), ClassicGroup)
    assert isinstance(shard.reloaded().state.store.groups["g"], ClassicGroup)
    assert shard.fetch(("t", 0))["t", 0] == (7, 0)


def test_the_last_new_member_to_leave_turns_the_group_back_and_it_rebalances(shard: Shard) -> None:
    a, b = Old(shard, "t"), Old(shard, "t")
    classic_group(shard, a, b)
    c = Consumer(shard, "c", "t")
    c.join()
    settled(a, b, c)
    epoch = group_of(shard).epoch
    c.leave()
    group = shard.group()
    assert isinstance(group, ClassicGroup)
    assert (group.generation, group.phase) == (epoch, ClassicPhase.PREPARING)
    assert isinstance(shard.reloaded().state.store.groups["g"], ClassicGroup)
    assert picture(shard, shard.reloaded()) == {}

    for member in (a, b):
        assert member.beat() in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
        member.join()
    shard.pass_time(1)
    answers = [shard.answer(member.token) for member in (a, b)]
    assert [answer.error_code for answer in answers] == [0, 0]
    assert answers[0].generation_id == epoch + 1


def test_a_group_that_may_not_turn_back_goes_on_with_classic_members_only(
    make_shard: Callable[..., Shard],
) -> None:
    shard = make_shard(consumer_migration_policy="upgrade")
    shard.topics.create("t", 4)
    a, b = Old(shard, "t", eager=False), Old(shard, "t", eager=False)
    classic_group(shard, a, b)
    c = Consumer(shard, "c", "t")
    c.join()
    settled(a, b, c)
    c.leave()
    settled(a, b)
    assert isinstance(shard.group(), ConsumerGroup)
    assert share(a) | share(b) == {0, 1, 2, 3}
    shard.topics.topics["t"] = shard.topics.topics["t"]._replace(partitions=6)
    shard.change_topics("t")
    settled(a, b)
    assert (len(share(a)), len(share(b))) == (3, 3), "their own heartbeats notice the topic grew"


def test_a_static_member_comes_back_as_a_classic_one_and_nobody_rebalances(shard: Shard) -> None:
    a = Old(shard, "t")
    classic_group(shard, a)
    c = Consumer(shard, "c", "t", instance_id="one")
    c.join()
    settled(a, c)
    before = share(a)
    old = Old(shard, "t", group_instance_id="one")
    assert old.join() == 0
    group = shard.group()
    assert isinstance(group, ClassicGroup)
    assert group.phase is ClassicPhase.STABLE
    assert a.beat() == 0
    assert share(old) | before == {0, 1, 2, 3}
    assert picture(shard, shard.reloaded()) == {}


def test_a_classic_static_member_comes_back_with_the_new_protocol(shard: Shard) -> None:
    a, b = Old(shard, "t", group_instance_id="one"), Old(shard, "t")
    classic_group(shard, a, b)
    c = Consumer(shard, "c", "t", instance_id="one")
    answer = c.join()
    assert answer.error_code == 0
    assert share(c) == {0, 1}, "it takes over what the instance had"
    assert a.beat() == ErrorCode.FENCED_INSTANCE_ID
    settled(b, c)
    assert share(b) == {2, 3}


def test_a_classic_member_that_stays_away_is_expired(shard: Shard) -> None:
    a = Old(shard, "t")
    classic_group(shard, a)
    c = Consumer(shard, "c", "t")
    c.join()
    for _ in range(4):
        shard.pass_time(3_000)
        c.beat()
    assert set(group_of(shard).members) == {"c"}, "its own session timeout, ten seconds, counts"
    assert a.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_only_heartbeats_is_dropped_after_its_rebalance_timeout(
    shard: Shard,
) -> None:
    a = Old(shard, "t", rebalance_timeout_ms=12_000)
    classic_group(shard, a)
    c = Consumer(shard, "c", "t")
    c.join()
    errors = []
    for _ in range(5):
        errors.append(a.beat())
        shard.pass_time(3_000)
        c.beat()
    assert errors == [ErrorCode.REBALANCE_IN_PROGRESS] * 4 + [ErrorCode.UNKNOWN_MEMBER_ID]
    assert share(c) == {0, 1, 2, 3}


def test_requests_of_the_wrong_member_or_generation_are_refused(shard: Shard) -> None:
    a = Old(shard, "t")
    classic_group(shard, a)
    c = Consumer(shard, "c", "t")
    c.join()
    a.live()
    a.generation += 7
    assert a.beat() == ErrorCode.ILLEGAL_GENERATION
    assert a.sync() == ErrorCode.ILLEGAL_GENERATION
    a.member_id = "c"
    assert a.beat() == ErrorCode.UNKNOWN_MEMBER_ID, "it does not speak this protocol"
    odd = shard.join_request(names=["other"], protocol_type="consumer")
    assert shard.do(odd).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    odd = shard.join_request(session_timeout_ms=1)
    assert shard.do(odd).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    odd = shard.join_request(protocol_type="connect")
    assert shard.do(odd).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_of_version_five_must_name_the_protocol_in_either_kind_of_group(
    shard: Shard,
) -> None:
    a = Old(shard, "t")
    classic_group(shard, a)

    def nameless(version: int) -> int:
        request = wire.SyncGroupRequest(
            group_id="g", member_id=a.member_id, generation_id=a.generation
        )
        return int(shard.do(request, version).error_code)

    assert nameless(5) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert nameless(4) == 0
    Consumer(shard, "c", "t").join()
    assert a.join() == 0
    assert nameless(5) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert nameless(4) == 0


def test_a_refused_join_names_no_protocol(shard: Shard) -> None:
    for _ in range(2):
        request = shard.join_request("stranger", protocol_type="connect")
        assert shard.do(request, 9).protocol_name is None
        assert shard.do(request, 6).protocol_name == ""
        Consumer(shard, "c", "t").join()


def test_an_administrator_removes_members_of_both_kinds(shard: Shard) -> None:
    a = Old(shard, "t", group_instance_id="one")
    classic_group(shard, a)
    c = Consumer(shard, "c", "t")
    c.join()
    answer = shard.leave(
        {"member_id": "", "group_instance_id": "one"},
        {"member_id": "c"},
        {"member_id": "nobody"},
    )
    assert [member.error_code for member in answer.members] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert group_of(shard).empty()


class Mixed(RuleBasedStateMachine):
    """Clients of both protocols come and go in one group; it turns over whenever it may."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard(initial_rebalance_delay_ms=0)
        self.shard.topics.create("t", 5)
        self.members: dict[str, Old | Consumer] = {}
        self.count = 0

    @initialize(first=st.lists(st.booleans(), min_size=1, max_size=3))
    def begin(self, first: list[bool]) -> None:
        for eager in first:
            self.old(eager)

    @rule(eager=st.booleans())
    def old(self, eager: bool) -> None:
        if len(self.members) < 5:
            self.count += 1
            member = Old(self.shard, "t", eager=eager)
            # One protocol for all: an eager group and a cooperative one do not mix.
            member.eager = next(
                (m.eager for m in self.members.values() if isinstance(m, Old)), eager
            )
            if member.join() == 0:
                self.members[f"old-{self.count}"] = member

    @rule()
    def new(self) -> None:
        if len(self.members) < 5:
            self.count += 1
            name = f"new-{self.count}"
            member = Consumer(self.shard, name, "t")
            if member.join().error_code == 0:
                self.members[name] = member

    @rule(ms=st.sampled_from([0, 1_000, 4_000]))
    def all_live(self, ms: int) -> None:
        self.shard.pass_time(ms)
        for name in sorted(self.members):
            self.live(name)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def one_lives(self, data: st.DataObject) -> None:
        self.live(data.draw(st.sampled_from(sorted(self.members))))

    def live(self, name: str) -> None:
        member = self.members[name]
        if isinstance(member, Consumer):
            if member.beat().error_code:
                member.owned = {}
                if member.join().error_code:
                    del self.members[name]
            return
        answer = self.shard.answer(member.token)
        if answer is PENDING and member.token in self.shard.waiting:
            return
        if answer is not PENDING and answer.generation_id > member.generation:
            if not answer.error_code and answer.members:
                self.lead(member, answer)
            member.joined()
            return
        member.live()

    def lead(self, member: Old, answer: wire.JoinGroupResponse) -> None:
        shares = {}
        for place, each in enumerate(answer.members):
            mine = [p for p in range(5) if p % len(answer.members) == place]
            topic = wire.ConsumerProtocolAssignmentTopicPartition(topic="t", partitions=mine)
            message = wire.ConsumerProtocolAssignment(assigned_partitions=[topic])
            shares[each.member_id] = b"\0\3" + message.encode(3)
        member.member_id, member.generation = answer.member_id, answer.generation_id
        member.sync(shares)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        if isinstance(member, Consumer):
            member.leave()
        else:
            self.shard.leave({"member_id": member.member_id})

    @rule()
    def crash(self) -> None:
        self.shard.crash()

    @invariant()
    def one_owner_each(self) -> None:
        group = self.shard.group()
        if isinstance(group, ConsumerGroup):
            places = [place for m in group.members.values() for place in m.places()]
            assert len(places) == len(set(places))
            assert set(group.owners) == set(places)

    @invariant()
    def the_log_gives_what_is_stored(self) -> None:
        reloaded = self.shard.reloaded()
        assert picture(self.shard) == picture(self.shard, reloaded)
        assert self.shard.stored() == self.shard.stored(reloaded)

    def teardown(self) -> None:
        for _ in range(40):
            self.all_live(2_000)
        group = self.shard.group()
        if isinstance(group, ConsumerGroup) and self.members:
            assert {m.member_id for m in self.members.values()} == set(group.members)
            assert group.phase() is Phase.STABLE
            assert sorted(p for _, p in group.owners) == [0, 1, 2, 3, 4]
            held = sorted(p for member in self.members.values() for p in share(member))
            assert held == [0, 1, 2, 3, 4]


Mixed.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestMixedGroups = Mixed.TestCase
