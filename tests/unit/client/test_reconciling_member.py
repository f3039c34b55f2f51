"""The machine of membership by the consumer protocol, told what brokers tell."""

from typing import Any

import pytest
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scriba.client.group.membership.model import Change, Identity, Subscribed
from scriba.client.group.membership.reconciling import Phase, Reconciling
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

ID, OTHER = b"1" * 16, b"2" * 16
T = [TopicPartition("t", n) for n in range(4)]
U = TopicPartition("u", 0)
WISH = Subscribed(frozenset(["t"]))


def target(**topics: list[int]) -> ConsumerGroupHeartbeatResponseAssignment:
    ids = {"t": ID, "u": OTHER}
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=ids[name], partitions=indexes)
            for name, indexes in topics.items()
        ]
    )


def machine(**identity: Any) -> Reconciling:
    member = Reconciling(Identity("g", **identity), "me")
    member.learn({ID: "t"})
    return member


def beat(member: Reconciling, now: int = 0, **answer: Any) -> ConsumerGroupHeartbeatRequest:
    """Answers the heartbeat that the member sends now."""
    request = member.next(now)
    assert isinstance(request, ConsumerGroupHeartbeatRequest)
    said = {"member_id": "me", "member_epoch": 1, "heartbeat_interval_ms": 5_000, **answer}
    member.answered(request, ConsumerGroupHeartbeatResponse(**said), now)
    return request


def settle(member: Reconciling) -> list[Change]:
    done = []
    while (change := member.change()) is not None:
        done.append(change)
        member.begin(change)
        member.changed(change)
    return done


def stable(**identity: Any) -> Reconciling:
    member = machine(**identity)
    member.polled(0)
    member.want(WISH)
    beat(member, assignment=target(t=[0, 1]))
    settle(member)
    beat(member)
    return member


def test_the_first_heartbeat_says_everything_and_the_next_ones_what_changed() -> None:
    member = machine(instance_id="i", rack="r", remote_assignor="uniform")
    assert member.next(0) is None
    member.want(WISH)
    first = beat(member, assignment=target(t=[0, 1]))
    assert (first.member_id, first.member_epoch, first.instance_id) == ("me", 0, "i")
    assert (first.rack_id, first.server_assignor) == ("r", "uniform")
    assert first.rebalance_timeout_ms == 300_000
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["t"], None)
    assert first.topic_partitions == []
    assert settle(member) == [Change(assign=(T[0], T[1]))]
    ack = beat(member)
    assert ack.member_epoch == 1
    assert ack.subscribed_topic_names is None
    assert ack.rebalance_timeout_ms == -1
    assert ack.topic_partitions is not None
    assert [(p.topic_id, p.partitions) for p in ack.topic_partitions] == [(ID, [0, 1])]
    assert member.next(4_999) is None
    assert member.wake_at() == 5_000
    assert beat(member, now=5_000).topic_partitions is None


def test_a_target_is_reached_by_giving_up_first_and_told_at_once() -> None:
    member = stable()
    beat(member, now=5_000, member_epoch=2, assignment=target(t=[1, 2]))
    assert settle(member) == [Change(release=(T[0],), assign=(T[1], T[2]))]
    ack = beat(member, now=5_001, member_epoch=2)
    assert ack.topic_partitions is not None
    assert [p.partitions for p in ack.topic_partitions] == [[1, 2]]
    beat(member, now=10_001, member_epoch=2, assignment=target(t=[2, 1]))
    assert member.change() is None, "it is there already"


def claims(request: object) -> list[int]:
    assert isinstance(request, ConsumerGroupHeartbeatRequest)
    assert request.topic_partitions is not None
    return [index for topic in request.topic_partitions for index in topic.partitions]


def test_nothing_is_taken_while_a_heartbeat_says_that_the_member_does_not_have_it() -> None:
    """What it does not say to have may be somebody else's by the time it is taken."""
    member = stable()
    beat(member, now=5_000, member_epoch=2, assignment=target(t=[0, 1, 2]))
    failed = member.next(10_000)
    assert failed is not None
    member.unanswered(failed, 10_000)
    everything = member.next(10_001)
    assert claims(everything) == [0, 1]
    assert member.change() is None
    assert everything is not None
    said = ConsumerGroupHeartbeatResponse(
        member_id="me", member_epoch=3, heartbeat_interval_ms=5_000, assignment=target(t=[0, 1])
    )
    member.answered(everything, said, 10_002)
    assert member.change() is None
    beat(member, now=15_002, member_epoch=4, assignment=target(t=[0, 1, 3]))
    assert settle(member) == [Change(assign=(T[0], T[1], T[3]))]


def test_what_is_being_taken_is_said_to_be_had() -> None:
    member = stable()
    beat(member, now=5_000, member_epoch=2, assignment=target(t=[1, 2]))
    change = member.change()
    assert change is not None
    member.begin(change)
    failed = member.next(10_000)
    assert failed is not None
    member.unanswered(failed, 10_000)
    assert claims(beat(member, now=10_001, member_epoch=2)) == [0, 1, 2]
    member.changed(change)
    assert claims(beat(member, now=10_002, member_epoch=2)) == [1, 2]


def test_partitions_of_a_topic_without_a_name_are_taken_when_it_has_one() -> None:
    member = stable()
    beat(member, now=5_000, assignment=target(t=[0, 1], u=[0]))
    assert member.unnamed == [OTHER]
    assert member.change() is None
    member.learn({OTHER: "u"})
    assert settle(member) == [Change(assign=(T[0], T[1], U))]
    ack = beat(member, now=5_001)
    assert ack.topic_partitions is not None
    assert [p.topic_id for p in ack.topic_partitions] == [ID, OTHER]


def test_a_topic_that_was_made_anew_is_given_up_and_taken_again() -> None:
    member = stable()
    member.learn({OTHER: "t"})
    answer = target(u=[0, 1])  # the id is another, the name the same
    beat(member, now=5_000, member_epoch=2, assignment=answer)
    both = (T[0], T[1])
    assert settle(member) == [Change(release=both, assign=both)]
    ack = beat(member, now=5_001, member_epoch=2)
    assert ack.topic_partitions is not None
    assert [(p.topic_id, p.partitions) for p in ack.topic_partitions] == [(OTHER, [0, 1])]


def test_a_changed_subscription_is_told_at_once_and_an_expression_is_taken_back() -> None:
    member = stable()
    member.want(Subscribed(regex="a.*"))
    request = beat(member, now=1)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "a.*")
    member.want(WISH)
    request = beat(member, now=2)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["t"], "")
    assert beat(member, now=5_002).subscribed_topic_regex is None


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_has_lost_everything_and_joins_anew(code: ErrorCode) -> None:
    member = stable()
    beat(member, now=5_000, error_code=code)
    assert member.lost
    assert member.next(6_000) is None, "first the application is told"
    assert settle(member) == [Change(release=(T[0], T[1]), lost=True)]
    request = beat(member, now=6_000)
    assert (request.member_epoch, request.topic_partitions) == (0, [])
    assert request.subscribed_topic_names == ["t"]


def test_what_is_lost_while_the_application_takes_over_is_given_up_right_after() -> None:
    member = machine()
    member.want(WISH)
    beat(member, assignment=target(t=[0]))
    taking = member.change()
    assert taking is not None
    member.begin(taking)
    beat(member, now=5_000, error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    assert member.next(9_000) is None
    member.changed(taking)
    assert settle(member) == [Change(release=(T[0],), lost=True)]
    assert beat(member, now=9_000).member_epoch == 0


def test_after_an_answer_that_did_not_come_everything_is_said_again() -> None:
    member = stable()
    request = member.next(5_000)
    assert request is not None
    member.unanswered(request, 5_000)
    again = beat(member, now=5_000)
    assert (again.member_epoch, again.subscribed_topic_names) == (1, ["t"])
    assert again.topic_partitions is not None
    assert [p.partitions for p in again.topic_partitions] == [[0, 1]]


def test_what_only_the_application_can_decide_is_told_once_and_tried_again() -> None:
    member = machine()
    member.want(Subscribed(regex="("))
    code = ErrorCode.INVALID_REGULAR_EXPRESSION
    beat(member, error_code=code, error_message="missing )")
    assert member.next(9_000) is None
    assert "missing )" in str(member.take_error())
    assert beat(member, now=9_000).subscribed_topic_regex == "("


def test_an_application_that_does_not_poll_leaves_until_it_does() -> None:
    member = stable(max_poll_interval_ms=6_000)
    beat(member, now=5_000)
    farewell = member.next(6_000)
    assert isinstance(farewell, ConsumerGroupHeartbeatRequest)
    assert farewell.member_epoch == -1
    member.answered(farewell, ConsumerGroupHeartbeatResponse(member_epoch=-1), 6_000)
    assert (member.phase, member.lost, member.next(99_000)) == (Phase.AWAY, True, None)
    member.polled(99_000)
    assert settle(member) == [Change(release=(T[0], T[1]), lost=True)]
    assert beat(member, now=99_000).member_epoch == 0


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_leaving_is_a_last_heartbeat(instance: str | None, epoch: int) -> None:
    member = stable(instance_id=instance)
    farewell = member.leave("closed")
    assert farewell is not None
    assert (farewell.member_epoch, farewell.instance_id) == (epoch, instance)
    assert (member.phase, member.owned) == (Phase.OUT, ())
    assert machine().leave("closed") is None
    joining = machine(instance_id=instance)
    joining.want(WISH)
    assert joining.next(0) is not None
    last = joining.leave("closed")
    assert last is not None, "the first heartbeat may have arrived"
    assert last.member_epoch == epoch


def test_a_commit_with_an_old_epoch_brings_the_next_heartbeat_forward() -> None:
    member = stable()
    assert member.next(1) is None
    member.commit_refused(ErrorCode.STALE_MEMBER_EPOCH)
    assert member.next(1) is not None


class Life(RuleBasedStateMachine):
    """A broker that moves partitions about, fences, and loses answers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.epoch = 0
        self.member = machine(max_poll_interval_ms=20_000)
        self.member.polled(0)
        self.member.want(WISH)
        self.held: set[TopicPartition] = set()
        self.change: Change | None = None
        self.known: list[tuple[bytes, list[int]]] | None = None
        """What the broker was last told that the member owns."""

    @rule(share=st.none() | st.sets(st.integers(0, 3)), fence=st.integers(0, 5))
    def exchange(self, share: set[int] | None, fence: int) -> None:
        request = self.member.next(self.now)
        if not isinstance(request, ConsumerGroupHeartbeatRequest) or request.member_epoch < 0:
            return
        if request.member_epoch == 0:
            assert request.topic_partitions == []
            assert not self.held
        if request.topic_partitions is not None:
            self.known = [(p.topic_id, p.partitions) for p in request.topic_partitions]
        assert self.known == ([(ID, sorted(p for _, p in self.held))] if self.held else [])
        self.epoch += 1
        answer = ConsumerGroupHeartbeatResponse(
            member_id="me", member_epoch=self.epoch, heartbeat_interval_ms=1000
        )
        if fence == 0:
            answer = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
            self.known = None
        elif share is not None:
            answer.assignment = target(t=sorted(share)) if share else target()
        self.member.answered(request, answer, self.now)

    @rule()
    def lose_an_answer(self) -> None:
        request = self.member.next(self.now)
        if request is not None:
            self.known = None
            self.member.unanswered(request, self.now)

    @rule()
    def begin_a_turn(self) -> None:
        self.member.polled(self.now)
        change = self.member.change()
        if change is not None and self.change is None:
            self.change = change
            self.member.begin(change)

    @precondition(lambda self: self.change is not None)
    @rule()
    def finish_a_turn(self) -> None:
        change, self.change = self.change, None
        assert change is not None
        assert set(change.release) <= self.held
        self.held -= set(change.release)
        if change.assign is not None:
            self.held = set(change.assign)
        self.member.changed(change)

    @rule(passed=st.integers(0, 25_000))
    def wait(self, passed: int) -> None:
        self.now += passed

    @invariant()
    def what_the_application_has_is_what_the_machine_knows(self) -> None:
        assert set(self.member.owned) == self.held


Life.TestCase.settings = limits(max_examples=60, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
