"""The follower's side: what it asks for, how it truncates, what it does with each answer."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode
from scriba.replication.follower import (
    SESSION_ERRORS,
    VALID,
    Append,
    Ask,
    AskBounds,
    Bounds,
    EpochEnd,
    FetcherPlan,
    FollowerState,
    Key,
    Question,
    StartAnew,
    State,
    Told,
    Truncate,
    Wait,
    truncation_point,
)

FINE = ErrorCode.NONE
A = Key(bytes(15) + b"a", 0)
B = Key(bytes(15) + b"b", 0)


def following(end: int = 10, hw: int = 8, epoch: int = 3, start: int = 0) -> FollowerState:
    return FollowerState(
        leader_epoch=5, start_offset=start, end_offset=end, last_epoch=epoch, high_watermark=hw
    )


def ask(plan: FetcherPlan, now_ms: int, session: int = 77) -> Question | None:
    """Asks, and has the leader answer."""
    question = plan.question(now_ms)
    if question is not None:
        plan.answered(question, session)
    return question


# ---- one partition ----


def test_a_follower_is_caught_up_when_it_has_what_is_committed() -> None:
    state = following(end=0, hw=0, epoch=-1)
    assert isinstance(state.on_told(Told(FINE, 20, 0), None), Append)
    state.appended(15, 5)
    assert (state.state, state.high_watermark, state.lag) == (State.CATCHING_UP, 15, 5)
    state.on_told(Told(FINE, 20, 0), None)
    state.appended(25, 5)
    assert (state.state, state.high_watermark, state.lag) == (State.FETCHING, 20, 0)
    state.on_told(Told(FINE, 40, 0), None)
    state.appended(30, 5)
    assert state.state is State.CATCHING_UP, "the others have gone on without it"


def test_a_follower_truncates_to_where_the_logs_part_not_to_its_high_watermark() -> None:
    state = following(end=10, hw=8)
    step = state.on_told(Told(FINE, -1, -1, EpochEnd(3, 9)), EpochEnd(3, 10))
    assert step == Truncate(9, 0)
    assert state.state is State.TRUNCATING
    assert not state.fetches
    state.truncated(0, 9, 3)
    assert (state.end_offset, state.high_watermark, state.state) == (9, 8, State.CATCHING_UP)


def test_a_truncation_below_the_high_watermark_is_told_as_a_loss() -> None:
    state = following(end=10, hw=8)
    assert state.on_told(Told(FINE, -1, -1, EpochEnd(3, 5)), EpochEnd(3, 10)) == Truncate(5, 3)
    state.truncated(0, 5, 3)
    assert state.high_watermark == 5


@pytest.mark.parametrize(
    ("theirs", "ours", "point"),
    [
        (EpochEnd(3, 9), EpochEnd(3, 10), 9),  # both know the epoch: the shorter one
        (EpochEnd(3, 12), EpochEnd(3, 10), 10),
        (EpochEnd(4, 9), EpochEnd(2, 6), 6),  # the follower has only an older one: ask from there
        (EpochEnd(4, 9), EpochEnd(-1, -1), 9),  # it knows of none
        (EpochEnd(4, 90), EpochEnd(-1, -1), 10),
    ],
)
def test_where_the_logs_part(theirs: EpochEnd, ours: EpochEnd, point: int) -> None:
    assert truncation_point(theirs, ours, 10) == point


def test_an_end_behind_the_leaders_log_starts_anew_where_that_begins() -> None:
    state = following(end=10)
    assert isinstance(state.on_told(Told(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1), None), AskBounds)
    assert state.state is State.TRUNCATING
    assert state.on_bounds(Bounds(50, 90)) == StartAnew(50, 0)
    state.truncated(50, 50, -1)
    assert (state.start_offset, state.end_offset, state.state) == (50, 50, State.CATCHING_UP)


def test_a_log_that_begins_within_a_batch_begins_anew_with_it_and_asks_on_from_there() -> None:
    state = following(end=50, start=50, hw=0, epoch=-1)
    plan = FetcherPlan()
    plan.follow(A, state)
    assert state.on_earlier(40, 49) is None, "nothing of that is wanted"
    assert state.on_earlier(50, 59) is None, "that follows"
    assert state.on_earlier(40, 59) == StartAnew(40, 0)
    assert state.on_earlier(40, 59) is None, "that is under way"
    state.truncated(40, 40, -1)
    question = ask(plan, 0)
    assert question is not None
    assert question.asks == {A: Ask(50, -1, 40, 5)}, "below, the leader has nothing to give"
    state.on_told(Told(FINE, 60, 50), None)
    state.appended(60, 3)
    plan.changed(A)
    question = ask(plan, 0)
    assert question is not None
    assert question.asks[A].offset == 60


def test_where_a_log_begins_within_a_batch_is_forgotten_when_the_leaders_begins_elsewhere() -> None:
    state = following(end=50, start=50, hw=0, epoch=-1)
    plan = FetcherPlan()
    plan.follow(A, state)
    state.on_earlier(40, 59)
    state.truncated(40, 40, -1)
    state.on_told(Told(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1), None)
    assert isinstance(state.on_bounds(Bounds(30, 45)), Wait)
    question = ask(plan, 0)
    assert question is not None
    assert question.asks[A].offset == 40


def test_a_log_with_records_does_not_begin_anew_for_a_batch_that_does_not_follow() -> None:
    assert following(end=50, start=49).on_earlier(40, 59) is None


def test_an_end_past_the_leaders_log_is_truncated_to_its_end() -> None:
    state = following(end=10, hw=8)
    state.on_told(Told(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1), None)
    assert state.on_bounds(Bounds(0, 4)) == Truncate(4, 4)


def test_an_end_that_the_leader_has_after_all_is_fetched_from() -> None:
    state = following(end=10)
    state.on_told(Told(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1), None)
    assert isinstance(state.on_bounds(Bounds(0, 40)), Wait)
    assert state.fetches


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_refused_partition_is_left_out_and_asked_for_again_later(error: ErrorCode) -> None:
    plan = FetcherPlan(longest_pause_ms=1000)
    plan.follow(A, following())
    plan.follow(B, following())
    first = ask(plan, 0)
    assert first is not None
    state = plan.told(A, first)
    assert state is not None
    assert isinstance(state.on_told(Told(error, -1, -1), None), Wait)
    plan.pause(A, state, 100)
    asked = ask(plan, 100)
    assert asked is not None
    assert (asked.forgotten, asked.asks) == ([A], {})
    assert plan.next_end_of_pause() == 120
    again = ask(plan, 120)
    assert again is not None
    assert list(again.asks) == [A]


def test_pauses_double_up_to_the_setting() -> None:
    plan, state = FetcherPlan(longest_pause_ms=100), following()
    plan.follow(A, state)
    pauses = []
    for _ in range(5):
        state.on_told(Told(ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1), None)
        pauses.append(plan.pause(A, state, 0))
    assert pauses == [20, 40, 80, 100, 100]
    state.on_told(Told(FINE, 0, 0), None)
    state.corrupt()
    assert plan.pause(A, state, 0) == 100, "what is answered may be refused by the own log"
    state.on_told(Told(FINE, 0, 0), None)
    state.well()
    state.on_told(Told(ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1), None)
    assert plan.pause(A, state, 0) == 20


def test_a_failed_replica_asks_for_nothing() -> None:
    plan, state = FetcherPlan(), following()
    plan.follow(A, state)
    state.failed()
    assert plan.question(0) is None
    assert isinstance(state.on_told(Told(FINE, 9, 0), None), Wait)


def test_the_log_start_follows_the_leader_up_to_what_is_committed() -> None:
    state = following(end=10, hw=8)
    state.on_told(Told(FINE, 8, 6), None)
    assert state.start_after(Told(FINE, 8, 6)) == 6
    assert state.start_after(Told(FINE, 8, 9)) == 8
    assert state.start_after(Told(FINE, 8, -1)) == 0


# ---- all of one leader ----


def test_a_session_names_only_what_has_changed() -> None:
    plan = FetcherPlan()
    a, b = following(), following()
    plan.follow(A, a)
    plan.follow(B, b)
    first = ask(plan, 0)
    assert first is not None
    assert (first.session_id, first.session_epoch, len(first.asks)) == (0, 0, 2)
    quiet = ask(plan, 1)
    assert quiet == (2, 77, 1, {}, [])
    a.appended(12, 5)
    plan.changed(A)
    third = ask(plan, 2)
    assert third == (3, 77, 2, {A: Ask(12, 5, 0, 5)}, [])
    plan.drop(B)
    assert ask(plan, 3) == (4, 77, 3, {}, [B])


def test_a_leader_without_room_for_sessions_is_asked_for_everything_each_time() -> None:
    plan = FetcherPlan()
    plan.follow(A, following())
    for _ in range(3):
        asked = ask(plan, 0, session=0)
        assert asked is not None
        assert (asked.session_epoch, list(asked.asks)) == (0, [A])


@pytest.mark.parametrize("error", sorted(SESSION_ERRORS))
def test_a_refused_session_begins_anew(error: ErrorCode) -> None:
    plan = FetcherPlan()
    plan.follow(A, following())
    ask(plan, 0)
    plan.refused(error)
    again = ask(plan, 1)
    assert again is not None
    assert (again.session_epoch, list(again.asks)) == (0, [A])
    gone = error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert again.session_id == (0 if gone else 77), "the leader may let go of the old one"


def test_an_answer_to_a_question_of_another_epoch_changes_nothing() -> None:
    plan = FetcherPlan()
    plan.follow(A, following())
    first = ask(plan, 0)
    assert first is not None
    newer = following()
    newer.leader_epoch = 6
    plan.follow(A, newer)
    assert plan.told(A, first) is None
    second = ask(plan, 1)
    assert second is not None
    assert plan.told(A, second) is newer
    newer.truncated(0, 4, 3)
    assert plan.told(A, second) is None, "it was asked from another offset"


def test_an_answer_does_not_belong_to_a_later_question() -> None:
    """Two may be under way: what the first brings, the second may bring again."""
    plan, state = FetcherPlan(), following()
    plan.follow(A, state)
    ask(plan, 0)
    first = plan.question(1)
    plan.follow(B, following())
    second = plan.question(1)
    assert first is not None
    assert second is not None
    assert plan.told(A, first) is state
    state.appended(20, 5)
    plan.changed(A)
    third = plan.question(2)
    assert third is not None
    assert plan.told(A, second) is None, "the leader was asked from 10 on when it answered this"
    assert plan.told(A, third) is state


def test_a_partition_that_truncates_leaves_the_session_until_it_is_done() -> None:
    plan, state = FetcherPlan(), following()
    plan.follow(A, state)
    plan.follow(B, following())
    ask(plan, 0)
    state.on_told(Told(FINE, -1, -1, EpochEnd(3, 9)), EpochEnd(3, 10))
    plan.changed(A)
    without = ask(plan, 1)
    assert without is not None
    assert without.forgotten == [A]
    state.truncated(0, 9, 3)
    plan.changed(A)
    with_it = ask(plan, 2)
    assert with_it is not None
    assert with_it.asks == {A: Ask(9, 3, 0, 5)}


# ---- two logs ----


@dataclass
class ToyLog:
    """Epochs of the records, one after the other; an offset is a place in the list."""

    records: list[int] = field(default_factory=list)
    floor: int = 0
    """The epoch that its leader has begun, perhaps without a record of it."""

    def end_of(self, epoch: int) -> EpochEnd:
        if epoch < 0 or epoch > max([self.floor, *self.records]):
            return EpochEnd(-1, -1)
        known = [e for e in self.records if e <= epoch]
        at = next((i for i, e in enumerate(self.records) if e > epoch), len(self.records))
        return EpochEnd(max(known, default=epoch), at)


@given(
    st.lists(st.integers(0, 6), max_size=12).map(sorted),
    st.lists(st.integers(0, 6), max_size=12).map(sorted),
    st.integers(0, 12),
)
def test_a_follower_ends_as_a_prefix_of_any_leader(
    theirs: list[int], ours: list[int], shared: int
) -> None:
    """Whatever two histories share, the fetches end with identical logs.

    Records are their epochs: two logs with the same epoch at an offset have the same record there
    only if they have the same records before, as one leader wrote them.
    """
    common = theirs[:shared]
    tail = [e for e in ours if e >= max(common, default=0)]
    leader = ToyLog(theirs, floor=7)
    mine = [*common, *tail]
    # Of an epoch that both have, one leader wrote all: its records are the same in both.
    for offset, epoch in enumerate(mine[shared:], shared):
        if epoch in theirs[shared:]:
            mine = mine[:offset]
            break
    follower = ToyLog(mine)
    state = FollowerState(7, 0, len(mine), mine[-1] if mine else -1, 0)
    for _ in range(50):
        diverging = None
        if state.last_epoch >= 0:
            found = leader.end_of(state.last_epoch)
            if found.epoch < state.last_epoch or found.end_offset < state.end_offset:
                diverging = found
        if diverging is None and state.end_offset > len(theirs):
            step = state.on_told(Told(ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1), None)
            assert isinstance(step, AskBounds)
            step = state.on_bounds(Bounds(0, len(theirs)))
        else:
            told = Told(FINE, len(theirs), 0, diverging)
            ours_end = follower.end_of(diverging.epoch) if diverging is not None else None
            step = state.on_told(told, ours_end)
        if isinstance(step, Truncate):
            assert step.offset >= min(shared, len(theirs)), "what is shared stays"
            del follower.records[step.offset :]
            last = follower.records[-1] if follower.records else -1
            state.truncated(0, step.offset, last)
        elif isinstance(step, Append):
            follower.records += theirs[state.end_offset : state.end_offset + 3]
            last = follower.records[-1] if follower.records else -1
            state.appended(len(follower.records), last)
            if state.end_offset == len(theirs):
                break
    assert follower.records == theirs
    assert state.state is State.FETCHING


def test_the_diagram_of_the_docs_is_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "replication.md").read_text()
    drawn = set(re.findall(r"^    ([A-Z_]+) --> ([A-Z_]+):", page, re.MULTILINE))
    assert drawn == {(old.name, new.name) for old, after in VALID.items() for new in after}


def test_a_follower_knows_as_of_when_it_has_everything() -> None:
    state = FollowerState(3, 0, 0, -1, 0)

    def answer(high_watermark: int, end_offset: int, now_ms: int) -> None:
        state.on_told(Told(ErrorCode.NONE, high_watermark, 0), None)
        state.appended(end_offset, 3)
        state.heard(now_ms)

    assert state.caught_up_ms is None
    answer(100, 40, 1_000)
    assert state.caught_up_ms is None
    assert not state.is_caught_up
    answer(150, 90, 2_000)
    answer(200, 120, 3_000)
    assert state.caught_up_ms == 1_000, "it has what was committed then"
    answer(250, 180, 4_000)
    assert state.caught_up_ms == 1_000
    answer(300, 210, 5_000)
    assert state.caught_up_ms == 3_000
    answer(310, 320, 6_000)
    assert state.caught_up_ms == 6_000
    assert state.is_caught_up
