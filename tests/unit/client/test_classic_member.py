"""The machine of membership by the classic protocol, told what brokers tell."""

from typing import Any

import pytest
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scriba.client.group.assignors import ASSIGNORS
from scriba.client.group.membership.classic import VALID, Classic, Phase
from scriba.client.group.membership.model import Change, Identity, Subscribed
from scriba.client.group.membership.payload import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

T = [TopicPartition("t", n) for n in range(4)]
WISH = Subscribed(frozenset(["t"]))


def machine(*names: str, **identity: Any) -> Classic:
    chosen = tuple(ASSIGNORS[name] for name in names or ("range", "cooperative-sticky"))
    return Classic(Identity("g", assignors=chosen, **identity))


def join(member: Classic, now: int = 0, generation: int = 1, **answer: Any) -> Any:
    """Answers the JoinGroup that the member sends now."""
    request = member.next(now)
    assert isinstance(request, JoinGroupRequest)
    said: dict[str, Any] = {
        "generation_id": generation,
        "protocol_name": request.protocols[0].name,
        "leader": "other",
        "member_id": "me",
        **answer,
    }
    member.answered(request, JoinGroupResponse(**said), now)
    return request


def sync(member: Classic, partitions: list[TopicPartition], now: int = 0) -> Any:
    request = member.next(now)
    assert isinstance(request, SyncGroupRequest)
    answer = SyncGroupResponse(assignment=encode_assignment(partitions))
    member.answered(request, answer, now)
    return request


def settle(member: Classic) -> list[Change]:
    """What the application does in its polls, until nothing is left to do."""
    done = []
    while (change := member.change()) is not None:
        done.append(change)
        member.begin(change)
        member.changed(change)
    return done


def stable(*names: str, owned: list[TopicPartition] = T, **identity: Any) -> Classic:
    member = machine(*names, **identity)
    member.polled(0)
    member.want(WISH)
    join(member)
    sync(member, owned)
    settle(member)
    assert member.phase is Phase.STABLE
    return member


def beat(member: Classic, code: ErrorCode, now: int = 10_000) -> HeartbeatRequest:
    member.polled(now)
    request = member.next(now)
    assert isinstance(request, HeartbeatRequest)
    member.answered(request, HeartbeatResponse(error_code=code), now)
    return request


def test_a_member_joins_twice_to_get_its_id_then_syncs_then_beats() -> None:
    member = machine(session_timeout_ms=6000)
    assert member.next(0) is None
    member.want(WISH)
    first = join(member, error_code=ErrorCode.MEMBER_ID_REQUIRED)
    assert (first.member_id, first.session_timeout_ms) == ("", 6000)
    assert [p.name for p in first.protocols] == ["range", "cooperative-sticky"]
    assert join(member).member_id == "me"
    assert sync(member, T[:2]).assignments == [], "the leader shares out, not we"
    assert settle(member) == [Change(assign=(T[0], T[1]))]
    assert member.next(2_999) is None
    assert member.wake_at() == 3_000
    request = member.next(3_000)
    assert isinstance(request, HeartbeatRequest)
    assert (request.generation_id, request.member_id) == (1, "me")


def test_the_leader_waits_for_the_topics_of_all_and_shares_out() -> None:
    member = machine("roundrobin")
    member.want(WISH)
    others = {"me": ["t"], "you": ["t", "u"], "odd": None}
    join(
        member,
        leader="me",
        members=[
            JoinGroupResponseMember(
                member_id=name,
                metadata=b"?" if t is None else encode_subscription(t, None, [], -1, None),
            )
            for name, t in others.items()
        ],
    )
    assert member.needed_topics == {"t", "u"}
    assert member.next(0) is None
    member.plan({"t": 2})
    request = sync(member, T[:1])
    given = {a.member_id: list(decode_assignment(a.assignment)) for a in request.assignments}
    assert given == {"me": [T[0]], "you": [T[1]], "odd": []}
    settle(member)
    member.look({"t": 2})
    assert member.change() is None
    member.look({"t": 2, "u": 1})
    assert settle(member) == [Change(release=(T[0],))]
    assert member.phase is Phase.JOINING, "a topic has appeared"


def test_a_static_leader_that_is_told_so_makes_no_new_plan() -> None:
    member = machine(instance_id="i")
    member.want(WISH)
    mine = JoinGroupResponseMember(
        member_id="me", metadata=encode_subscription(["t"], None, [], -1, None)
    )
    join(member, leader="me", skip_assignment=True, members=[mine])
    member.plan({"t": 4})
    assert sync(member, T).assignments == []
    settle(member)
    member.look({"t": 5})
    settle(member)
    assert member.phase is Phase.JOINING, "it still watches over the topics"


def test_an_eager_member_gives_everything_up_before_it_joins_again() -> None:
    member = stable()
    beat(member, ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.change() == Change(release=tuple(T))
    assert isinstance(member.next(13_000), HeartbeatRequest), "the application may take its time"
    settle(member)
    request = join(member, generation=2)
    subscription = decode_subscription(request.protocols[0].metadata)
    assert subscription is not None
    assert subscription.owned_partitions == []
    sync(member, T[:1])
    assert settle(member) == [Change(assign=(T[0],))]


def test_a_cooperative_member_keeps_all_gives_up_what_was_taken_and_joins_once_more() -> None:
    member = stable("cooperative-sticky")
    beat(member, ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.change() is None, "nothing to do for the application yet"
    request = join(member, generation=2)
    subscription = decode_subscription(request.protocols[0].metadata)
    assert subscription is not None
    assert subscription.owned_partitions[0].partitions == [0, 1, 2, 3]
    assert subscription.generation_id == 1
    sync(member, T[:2])
    assert settle(member) == [Change(release=(T[2], T[3]), assign=(T[0], T[1]))]
    join(member, generation=3)
    sync(member, T[:2])
    assert settle(member) == [Change(assign=(T[0], T[1]))]
    assert member.phase is Phase.STABLE


def test_a_sticky_member_remembers_what_it_had() -> None:
    member = stable("sticky", owned=T[:2])
    beat(member, ErrorCode.REBALANCE_IN_PROGRESS)
    settle(member)
    request = join(member, generation=2)
    subscription = decode_subscription(request.protocols[0].metadata)
    assert subscription is not None
    held = ASSIGNORS["sticky"].held(subscription)
    assert (held.partitions, held.generation) == ((T[0], T[1]), 1)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_that_is_no_longer_known_has_lost_everything(code: ErrorCode) -> None:
    member = stable("cooperative-sticky")
    beat(member, code)
    assert member.lost
    assert member.next(99_000) is None, "first the application is told"
    assert settle(member) == [Change(release=tuple(T), lost=True)]
    request = join(member)
    known = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else "me"
    assert request.member_id == known
    subscription = decode_subscription(request.protocols[0].metadata)
    assert subscription is not None
    assert (subscription.owned_partitions, subscription.generation_id) == ([], -1)


def test_a_fenced_static_member_tells_the_application_and_never_steals_back() -> None:
    member = stable(instance_id="i")
    beat(member, ErrorCode.FENCED_INSTANCE_ID)
    error = member.take_error()
    assert error is not None
    assert "FENCED_INSTANCE_ID" in str(error)
    assert settle(member) == [Change(release=tuple(T), lost=True)]
    assert join(member).member_id == "me", "whoever took over has another id"


def test_an_answer_of_an_older_generation_changes_nothing() -> None:
    member = stable("cooperative-sticky")
    request = HeartbeatRequest(group_id="g", generation_id=0, member_id="me")
    member.answered(request, HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION), 0)
    assert member.phase is Phase.STABLE


def test_another_rebalance_while_syncing_means_joining_again() -> None:
    member = machine()
    member.want(WISH)
    join(member)
    request = member.next(0)
    assert request is not None
    member.answered(request, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert join(member, generation=2).member_id == "me"


def test_a_rebalance_that_begins_while_the_application_takes_over_is_joined_afterwards() -> None:
    member = machine("cooperative-sticky")
    member.want(WISH)
    join(member)
    sync(member, T)
    beat(member, ErrorCode.REBALANCE_IN_PROGRESS)
    assert settle(member) == [Change(assign=tuple(T))]
    assert member.phase is Phase.JOINING


def test_what_is_lost_while_the_application_takes_over_is_given_up_right_after() -> None:
    member = machine()
    member.want(WISH)
    join(member)
    sync(member, T)
    taking = member.change()
    assert taking is not None
    member.begin(taking)
    beat(member, ErrorCode.UNKNOWN_MEMBER_ID)
    assert member.next(20_000) is None
    member.changed(taking)
    assert settle(member) == [Change(release=tuple(T), lost=True)]
    assert member.phase is Phase.JOINING


def test_an_application_that_does_not_poll_leaves_until_it_does() -> None:
    member = stable(max_poll_interval_ms=5_000)
    assert member.wake_at() == 3_000
    assert isinstance(member.next(3_000), HeartbeatRequest)
    farewell = member.next(5_000)
    assert isinstance(farewell, LeaveGroupRequest)
    assert farewell.members[0].member_id == "me"
    assert (member.phase, member.lost, member.wake_at()) == (Phase.AWAY, True, None)
    assert member.next(100_000) is None
    member.polled(100_000)
    assert settle(member) == [Change(release=tuple(T), lost=True)]
    assert join(member, now=100_000).member_id == ""


def test_a_static_member_that_does_not_poll_says_nothing() -> None:
    member = stable(instance_id="i", max_poll_interval_ms=5_000)
    assert member.next(5_000) is None
    assert member.phase is Phase.AWAY
    assert stable(instance_id="i").leave("closed") is None


def test_a_changed_subscription_means_a_rebalance_that_gives_up_what_is_not_wanted() -> None:
    member = stable("cooperative-sticky")
    member.want(Subscribed(frozenset(["u"])))
    assert settle(member) == [Change(release=tuple(T))]
    request = join(member)
    subscription = decode_subscription(request.protocols[0].metadata)
    assert subscription is not None
    assert subscription.topics == ["u"]


def test_a_subscription_that_changes_while_joining_is_told_afterwards() -> None:
    member = machine()
    member.want(WISH)
    request = member.next(0)
    assert isinstance(request, JoinGroupRequest)
    member.want(Subscribed(frozenset(["t", "u"])))
    answer = JoinGroupResponse(
        generation_id=1, protocol_name="range", leader="other", member_id="me"
    )
    member.answered(request, answer, 0)
    sync(member, [])
    settle(member)
    assert member.phase is Phase.JOINING


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INVALID_SESSION_TIMEOUT,
    ],
)
def test_what_only_the_application_can_decide_is_told_once_and_tried_again(
    code: ErrorCode,
) -> None:
    member = machine()
    member.want(WISH)
    join(member, error_code=code)
    assert member.next(0) is None
    assert code.name in str(member.take_error())
    assert member.take_error() is None
    assert isinstance(member.next(0), JoinGroupRequest)


def test_an_assignor_that_nobody_asked_for_is_an_error() -> None:
    member = machine("range")
    member.want(WISH)
    join(member, protocol_name="secret")
    assert "secret" in str(member.take_error())


def test_a_refused_commit_tells_of_the_member_only_what_is_about_it() -> None:
    member = stable()
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.OFFSET_METADATA_TOO_LARGE):
        member.commit_refused(code)
        assert (member.take_error(), member.change()) == (None, None)
    member.commit_refused(ErrorCode.ILLEGAL_GENERATION)
    assert member.change() == Change(release=tuple(T), lost=True)


def test_an_assignment_that_makes_no_sense_is_told_and_asked_for_again() -> None:
    member = machine()
    member.want(WISH)
    join(member)
    request = member.next(0)
    assert request is not None
    member.answered(request, SyncGroupResponse(assignment=b"?"), 0)
    assert "makes no sense" in str(member.take_error())
    sync(member, T)
    assert settle(member) == [Change(assign=tuple(T))]


def test_an_assignment_of_no_bytes_is_empty_and_newer_versions_can_be_read() -> None:
    assert decode_assignment(b"") == ()
    newer = b"\x00\x63" + encode_assignment(T)[2:] + b"more"
    assert decode_assignment(newer) == tuple(T)
    assert decode_subscription(b"\x00") is None


class Life(RuleBasedStateMachine):
    """Any order of events: partitions are given up before they are lost sight of."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.generation = 0
        self.member = machine("cooperative-sticky", max_poll_interval_ms=10_000)
        self.member.polled(0)
        self.member.want(WISH)
        self.held: set[TopicPartition] = set()
        self.change: Change | None = None

    @rule(
        code=st.sampled_from(
            [ErrorCode.NONE] * 4
            + [
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.FENCED_INSTANCE_ID,
            ]
        ),
        share=st.sets(st.sampled_from(T)),
        lead=st.booleans(),
    )
    def exchange(self, code: ErrorCode, share: set[TopicPartition], lead: bool) -> None:
        if self.member.phase is Phase.ASSIGNING:
            self.member.plan({"t": 4})
        request = self.member.next(self.now)
        match request:
            case JoinGroupRequest():
                self.generation += 1
                mine = JoinGroupResponseMember(
                    member_id="me", metadata=request.protocols[0].metadata
                )
                answer: Any = JoinGroupResponse(
                    error_code=code,
                    generation_id=self.generation,
                    protocol_name="cooperative-sticky",
                    leader="me" if lead else "you",
                    member_id="me",
                    members=[mine] if lead else [],
                )
            case SyncGroupRequest():
                given = encode_assignment(sorted(share))
                answer = SyncGroupResponse(error_code=code, assignment=given)
            case HeartbeatRequest():
                assert request.generation_id == self.generation
                answer = HeartbeatResponse(error_code=code)
            case _:
                return
        self.member.answered(request, answer, self.now)

    @rule()
    def begin_a_turn(self) -> None:
        self.member.polled(self.now)
        self.member.take_error()
        change = self.member.change()
        if change is not None and self.change is None:
            assert set(change.release) <= self.held
            self.change = change
            self.member.begin(change)

    @precondition(lambda self: self.change is not None)
    @rule()
    def finish_a_turn(self) -> None:
        change, self.change = self.change, None
        assert change is not None
        self.held -= set(change.release)
        if change.assign is not None:
            assert not change.lost
            self.held = set(change.assign)
        self.member.changed(change)

    @rule(passed=st.integers(0, 12_000))
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(count=st.integers(4, 6))
    def look(self, count: int) -> None:
        self.member.look({"t": count})

    @rule(topics=st.frozensets(st.sampled_from(["t", "u"]), min_size=1))
    def want(self, topics: frozenset[str]) -> None:
        self.member.want(Subscribed(topics))

    @precondition(lambda self: self.member.phase is not Phase.OUT)
    @rule()
    def lose_an_answer(self) -> None:
        if self.member.phase is Phase.ASSIGNING:
            return
        request = self.member.next(self.now)
        if request is not None and not isinstance(request, LeaveGroupRequest):
            self.member.unanswered(request, self.now)

    @invariant()
    def what_the_application_has_is_what_the_machine_knows(self) -> None:
        assert set(self.member.owned) == self.held

    @invariant()
    def it_never_beats_without_a_generation(self) -> None:
        assert self.member.phase in VALID
        if self.member.generation < 0 and not self.member.has_error:
            assert self.member.phase in (Phase.JOINING, Phase.PREPARING, Phase.AWAY)

    @invariant()
    def nothing_lost_is_taken_into_a_new_generation(self) -> None:
        if self.member.phase is Phase.JOINING:
            assert not self.member.lost
            assert self.change is None


Life.TestCase.settings = limits(max_examples=60, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
