"""The leader's side of a partition: the high watermark and the in-sync replicas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.replication.leader import FORGIVEN_MS, Cause, Heard, LeaderState, Member

LAG_MS = 30_000
OWN_EPOCH = 100


def at(ms: int) -> Instant:
    return Instant(ms, 1_700_000_000_000 + ms)


def new_leader(
    isr: tuple[int, ...] = (1, 2, 3), end: int = 10, hw: int = 10, min_insync: int = 1
) -> LeaderState:
    return LeaderState(
        node_id=1,
        replicas=(1, 2, 3),
        isr=isr,
        leader_epoch=5,
        partition_epoch=7,
        epoch_start_offset=end,
        high_watermark=hw,
        own_end=end,
        lag_ms=LAG_MS,
        min_insync=min_insync,
        active={1: OWN_EPOCH, 2: 1, 3: 1},
    )


def leading(
    isr: tuple[int, ...] = (1, 2, 3), end: int = 10, hw: int = 10, min_insync: int = 1
) -> LeaderState:
    state = new_leader(isr, end, hw, min_insync)
    for replica in isr:
        if replica != 1:
            state.on_fetch(replica, end, 1, at(0))
    return state


def test_a_leader_alone_commits_what_it_appends() -> None:
    alone = LeaderState(1, (1,), (1,), 0, 0, 0, 0, 0)
    assert alone.on_append(3) == 3
    assert alone.high_watermark == 3


def test_the_worked_example_of_the_docs() -> None:
    """Ends 10, 9 and 8: 8 is the high watermark; without the third it is 9; then it returns."""
    state = leading(end=8, hw=8)
    state.on_append(9)
    state.on_fetch(2, 9, 1, at(LAG_MS))
    state.on_append(10)
    assert state.on_fetch(3, 8, 1, at(LAG_MS)) == 8  # offsets 0 to 7 may be read

    shrink = state.propose(at(LAG_MS + 200), OWN_EPOCH)
    assert shrink is not None
    assert shrink.isr == (1, 2)
    assert state.high_watermark == 8, "until the controller has agreed, the third counts"
    state.installed((1, 2), 8)
    assert state.high_watermark == 9

    state.on_fetch(3, 8, 1, at(LAG_MS + 300))
    assert not state.wants(3), "it is below the high watermark"
    state.on_fetch(3, 10, 1, at(LAG_MS + 400))
    expand = state.propose(at(LAG_MS + 400), OWN_EPOCH)
    assert expand is not None
    assert expand.isr == (1, 2, 3)
    state.installed((1, 2, 3), 9)
    assert state.on_fetch(2, 10, 1, at(LAG_MS + 500)) == 10


def test_the_high_watermark_is_the_smallest_end_in_the_isr() -> None:
    state = leading()
    assert state.on_append(20) == 10
    assert state.on_fetch(2, 20, 1, at(1)) == 10
    assert state.on_fetch(3, 15, 1, at(2)) == 15


def test_a_replica_outside_the_isr_does_not_hold_the_watermark_back() -> None:
    state = leading(isr=(1, 2))
    state.on_append(20)
    state.on_fetch(3, 4, 1, at(1))
    assert state.on_fetch(2, 20, 1, at(2)) == 20


def test_a_stranger_moves_nothing() -> None:
    state = leading()
    state.on_append(20)
    assert state.on_fetch(9, 20, 1, at(1)) is None
    assert state.high_watermark == 10


def test_an_older_incarnation_of_a_follower_moves_nothing() -> None:
    state = leading()
    state.on_append(20)
    state.on_fetch(2, 12, 8, at(1))
    state.on_fetch(2, 20, 7, at(2))
    assert state.followers[2].end_offset == 12


def test_a_new_leader_gives_its_followers_time_before_it_takes_them_for_laggards() -> None:
    state = LeaderState(
        1, (1, 2, 3), (1, 2, 3), 5, 7, 10, 10, 10, started_ms=500_000, lag_ms=LAG_MS
    )
    assert state.propose(at(500_001)) is None
    assert state.propose(at(500_000 + LAG_MS)) is None
    silent = state.propose(at(500_001 + LAG_MS))
    assert silent is not None
    assert [each.cause for each in silent.dropped] == [Cause.SILENT, Cause.SILENT]


def test_a_new_leader_does_not_let_a_replica_outside_the_isr_hold_the_watermark() -> None:
    state = new_leader(isr=(1, 2))
    state.on_append(20)
    assert state.on_fetch(2, 20, 1, at(1)) == 20


def test_a_follower_that_lags_is_dropped_then_rejoins_at_the_high_watermark() -> None:
    state = leading()
    state.on_append(20)
    state.on_fetch(2, 20, 1, at(LAG_MS))
    proposal = state.propose(at(LAG_MS + 1), OWN_EPOCH)
    assert proposal is not None
    assert proposal.members == (Member(1, OWN_EPOCH), Member(2, 1))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 7)
    # Until the controller has agreed, the laggard still counts.
    assert state.high_watermark == 10
    state.installed((1, 2), 8)
    assert state.high_watermark == 20

    assert state.propose(at(LAG_MS + 2), OWN_EPOCH) is None
    state.on_fetch(3, 20, 1, at(LAG_MS + 3))
    rejoin = state.propose(at(LAG_MS + 4), OWN_EPOCH)
    assert rejoin is not None
    assert (rejoin.isr, rejoin.partition_epoch) == ((1, 2, 3), 8)
    # A replica about to join counts already, or it could miss what is committed meanwhile.
    state.on_append(30)
    state.on_fetch(2, 30, 1, at(LAG_MS + 5))
    assert state.high_watermark == 20


def test_a_caught_up_replica_counts_before_it_is_proposed() -> None:
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    state.on_append(20)
    assert state.on_fetch(2, 20, 1, at(2)) == 10


def test_a_fenced_replica_that_had_caught_up_holds_nothing_back() -> None:
    active = {1: OWN_EPOCH, 2: 1, 3: 1}
    state = leading(isr=(1, 2))
    state.active = active
    state.on_fetch(3, 10, 1, at(1))
    state.on_append(20)
    del active[3]
    assert state.on_fetch(2, 20, 1, at(2)) == 20


def test_a_follower_that_keeps_pace_with_a_running_leader_stays() -> None:
    state = leading()
    for step in range(1, 40):
        behind = state.own_end
        state.on_append(state.own_end + 100)
        state.on_fetch(2, behind, 1, at(step * 1000))
        state.on_fetch(3, behind, 1, at(step * 1000))
    assert state.propose(at(40_000)) is None


def test_a_follower_with_nothing_to_fetch_is_caught_up_as_long_as_it_is_heard_of() -> None:
    """A session names only partitions whose offset moved: the others are heard of all the same."""
    state = new_leader(isr=(1, 2))
    heard = Heard()
    state.on_fetch(2, 10, 1, at(0), heard=heard)
    heard.ms = 10 * LAG_MS
    assert state.propose(at(10 * LAG_MS + 1)) is None
    # What comes then is not held against it before it had time to fetch it.
    state.on_append(20)
    assert state.propose(at(11 * LAG_MS)) is None
    heard.ms = 11 * LAG_MS
    slow = state.propose(at(11 * LAG_MS + 1))
    assert slow is not None
    (dropped,) = slow.dropped
    assert (dropped.replica, dropped.lag, dropped.cause) == (2, 10, Cause.SLOW)


def test_a_fenced_broker_never_joins() -> None:
    state = leading(isr=(1, 2))
    state.active = {1: OWN_EPOCH, 2: 1}
    state.on_fetch(3, 10, 1, at(1))
    assert state.propose(at(2)) is None


def test_a_replica_joins_only_as_the_incarnation_that_caught_up() -> None:
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    state.active = {1: OWN_EPOCH, 2: 1, 3: 2}  # it has restarted since, and may have lost its tail
    assert not state.wants(3)
    assert state.propose(at(2)) is None
    state.on_fetch(3, 10, 2, at(3))
    proposal = state.propose(at(3))
    assert proposal is not None
    assert proposal.members[-1] == Member(3, 2)


def test_a_replica_joins_only_past_the_start_of_the_epoch() -> None:
    """The high watermark of a new leader may be behind what its predecessor committed."""
    state = new_leader(isr=(1, 2), end=10, hw=4)
    state.on_fetch(3, 7, 1, at(1))
    assert not state.wants(3)
    state.on_fetch(3, 10, 1, at(2))
    assert state.wants(3)


def test_one_proposal_at_a_time_and_a_refused_one_leaves_the_isr() -> None:
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    assert state.propose(at(2)) is not None
    assert state.propose(at(3)) is None
    assert not state.refused(ErrorCode.INELIGIBLE_REPLICA)
    assert state.isr == (1, 2)
    assert state.propose(at(4)) is not None


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_an_undecided_proposal_counts_until_the_metadata_tells(code: ErrorCode) -> None:
    """An earlier try may have been carried out: the replica may be in the ISR already."""
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    state.propose(at(2))
    assert not state.refused(code)
    state.on_append(20)
    assert state.on_fetch(2, 20, 1, at(LAG_MS * 5)) == 10
    state.installed((1, 2), 9)
    assert state.high_watermark == 20


def test_a_proposal_that_got_no_answer_is_sent_again_as_it_is() -> None:
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    proposal = state.propose(at(2))
    assert state.refused(ErrorCode.NOT_CONTROLLER)
    assert state.pending is proposal


def test_an_accepted_proposal_counts_when_the_metadata_brings_it() -> None:
    """What was decided before it, a raised min.insync.replicas say, comes before it."""
    state = leading()
    state.on_append(20)
    state.on_fetch(2, 20, 1, at(LAG_MS))
    assert state.propose(at(LAG_MS + 1)) is not None
    state.accepted(8)
    assert (state.isr, state.high_watermark) == ((1, 2, 3), 10)
    state.min_insync = 3
    state.installed((1, 2), 8)
    assert (state.isr, state.high_watermark) == ((1, 2), 10)


def test_a_proposal_of_what_is_already_so_is_over_with_its_answer() -> None:
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    state.propose(at(2))
    state.accepted(7)
    assert state.pending is None


def test_an_older_decision_of_the_controller_is_ignored() -> None:
    state = leading()
    state.installed((1, 2), 9)
    state.installed((1, 2, 3), 8)
    assert state.isr == (1, 2)


def test_replicas_added_in_the_same_epoch_are_no_strangers() -> None:
    state = leading()
    state.installed((1, 2, 3), 8, replicas=(1, 2, 3, 4))
    state.on_append(20)
    assert state.on_fetch(4, 10, 1, at(1)) is not None
    # And one that was taken away holds nothing back.
    state.installed((1, 2), 9, replicas=(1, 2, 4))
    assert state.on_fetch(3, 20, 1, at(2)) is None
    assert state.on_fetch(2, 20, 1, at(3)) == 20


def test_a_replica_that_the_controller_removed_is_told_as_fenced() -> None:
    state = leading()
    changed = state.installed((1, 2), 8)
    assert [(each.replica, each.cause) for each in changed.left] == [(3, Cause.FENCED)]
    assert state.installed((1, 2, 3), 9).joined == (3,)


def test_min_insync_replicas_is_capped_by_the_replica_count() -> None:
    alone = LeaderState(1, (1,), (1,), 0, 0, 0, 0, 0)
    assert alone.in_sync(2)
    assert not leading(isr=(1,)).in_sync(2)


def test_the_high_watermark_stands_still_below_min_insync_replicas() -> None:
    state = leading(isr=(1,), min_insync=2)
    assert state.on_append(20) == 10
    assert state.on_fetch(2, 20, 1, at(1)) == 10, "caught up, but not in the ISR yet"
    state.propose(at(2))
    assert state.high_watermark == 10
    state.installed((1, 2), 8)
    assert state.high_watermark == 20


def test_the_low_watermark_is_the_smallest_start_of_active_followers() -> None:
    state = leading()
    state.on_fetch(2, 10, 1, at(1), start_offset=4)
    assert state.low_watermark == -1
    state.on_fetch(3, 10, 1, at(1), start_offset=6)
    assert state.low_watermark == 4
    state.active = {1: OWN_EPOCH, 3: 1}
    assert state.low_watermark == 6


@given(
    st.integers(1, 3),
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 50)),
            st.tuples(st.just("fetch2"), st.integers(0, 50)),
            st.tuples(st.just("fetch3"), st.integers(0, 50)),
            st.tuples(st.just("heard"), st.integers(0, 60_000)),
            st.tuples(st.just("restart"), st.integers(2, 3)),
            st.tuples(st.just("fence"), st.integers(2, 3)),
            st.tuples(st.just("propose"), st.integers(0, 60_000)),
            st.tuples(st.just("install"), st.integers(0, 3)),
        )
    ),
)
def test_the_watermark_never_goes_back_and_never_passes_an_isr_member(
    min_insync: int, steps: list[tuple[str, int]]
) -> None:
    state = leading(min_insync=min_insync)
    active = {1: OWN_EPOCH, 2: 1, 3: 1}
    state.active = active
    epochs = {2: 1, 3: 1}
    heard = {2: Heard(), 3: Heard()}
    now = 0
    seen = state.high_watermark
    for kind, n in steps:
        now += 100
        committed = state.isr
        if kind == "append":
            state.on_append(state.own_end + n)
        elif kind in ("fetch2", "fetch3"):
            replica = int(kind[-1])
            known = max(state.followers[replica].end_offset, 0)
            offset = min(known + n, state.own_end)
            active[replica] = epochs[replica]
            state.on_fetch(replica, offset, epochs[replica], at(now), heard=heard[replica])
        elif kind == "heard":
            now += n
            heard[2].ms = heard[3].ms = now
        elif kind == "restart":
            epochs[n] += 1
            active[n] = epochs[n]
        elif kind == "fence":
            active.pop(n, None)
        elif kind == "propose":
            now += n
            state.propose(at(now), OWN_EPOCH)
        elif state.pending is not None:
            proposed = state.pending
            if n == 0:
                state.refused(ErrorCode.INELIGIBLE_REPLICA)
            elif n == 1:
                state.refused(ErrorCode.REQUEST_TIMED_OUT)
            else:
                state.installed(proposed.isr, state.partition_epoch + 1)
        assert state.high_watermark >= seen
        if state.high_watermark > seen:
            least = min(min_insync, 3)
            assert len(state.isr) >= least or len(committed) >= least
        seen = state.high_watermark
        assert seen <= state.own_end
        assert 1 in state.isr
        for replica in state.maximal_isr:
            if replica != 1:
                assert state.followers[replica].end_offset >= seen


def test_consumers_are_sent_to_followers_that_are_in_sync_and_have_the_offset() -> None:
    state = leading(end=10)
    state.on_append(12)
    state.on_fetch(2, 12, 1, at(50), 3)
    holders = [replica for replica, _, _ in state.holders(11, 50, 0)]
    assert holders == [2], "the third ends at 10"
    assert [replica for replica, _, _ in state.holders(2, 50, 0)] == [3], "the second begins at 3"
    assert list(state.holders(10, 50, 0)) == [(2, 12, 50), (3, 10, 0)]
    state.installed((1, 3), 8)
    assert [replica for replica, _, _ in state.holders(10, 50, 0)] == [3]


STALL_MS = 2_500


def stalling(min_insync: int = 2) -> LeaderState:
    """All three in sync; then the leader goes on, and the second with it."""
    state = leading(min_insync=min_insync)
    state.stall_ms = STALL_MS
    state.on_append(12)
    state.on_fetch(2, 12, 1, at(100))
    return state


def test_a_follower_that_holds_acknowledgements_back_leaves_early() -> None:
    state = stalling()
    assert not state.holds_back(3, at(STALL_MS))
    assert state.propose(at(STALL_MS), OWN_EPOCH) is None
    assert state.holds_back(3, at(STALL_MS + 1))
    proposal = state.propose(at(STALL_MS + 1), OWN_EPOCH)
    assert proposal is not None
    assert proposal.isr == (1, 2)
    assert [each.cause for each in proposal.dropped] == [Cause.STALLED]
    assert state.high_watermark == 10, "until the controller has agreed, it counts"
    state.installed((1, 2), 8)
    assert state.high_watermark == 12
    assert not state.wants(3)


def test_it_stays_where_too_few_would_be_left_or_another_one_stalls_as_well() -> None:
    assert stalling(min_insync=3).propose(at(STALL_MS + 1), OWN_EPOCH) is None
    both = leading(min_insync=2)
    both.stall_ms = STALL_MS
    both.on_append(12)
    assert both.propose(at(STALL_MS + 1), OWN_EPOCH) is None, "one that stays would hold on"
    both.min_insync = 1
    proposal = both.propose(at(STALL_MS + 1), OWN_EPOCH)
    assert proposal is not None
    assert proposal.isr == (1,)


def test_without_a_limit_or_anything_to_wait_for_nobody_stalls() -> None:
    state = stalling()
    state.stall_ms = 0
    assert state.propose(at(LAG_MS - 1), OWN_EPOCH) is None
    idle = leading()
    idle.stall_ms = STALL_MS
    assert idle.propose(at(LAG_MS - 1), OWN_EPOCH) is None, "it has everything, and may be silent"


def test_a_new_leader_gives_its_followers_the_same_time_to_be_heard() -> None:
    fresh = new_leader(end=12, hw=10)
    fresh.stall_ms = STALL_MS
    assert fresh.unheard() == [2, 3]
    assert fresh.propose(at(STALL_MS), OWN_EPOCH) is None
    fresh.on_fetch(2, 12, 1, at(STALL_MS))
    assert fresh.unheard() == [3]
    proposal = fresh.propose(at(STALL_MS + 1), OWN_EPOCH)
    assert proposal is not None
    assert proposal.isr == (1, 2)
    nothing = new_leader(end=10, hw=10)
    nothing.stall_ms = STALL_MS
    assert nothing.propose(at(LAG_MS - 1), OWN_EPOCH) is None, "nobody waits for anything"


def test_it_returns_after_a_time_caught_up_that_doubles_with_each_relapse() -> None:
    state = stalling()
    now, epoch = STALL_MS + 1, 8
    for probation in (STALL_MS, 2 * STALL_MS, 4 * STALL_MS):
        assert state.propose(at(now), OWN_EPOCH) is not None
        state.installed((1, 2), epoch)
        now += 10_000
        state.on_fetch(3, 10, 1, at(now))  # it is back, and far behind
        state.on_fetch(2, state.own_end, 1, at(now))
        back = now
        while now < back + probation:
            state.on_fetch(3, state.own_end, 1, at(now))
            assert not state.wants(3)
            now += 500
        state.on_fetch(3, state.own_end, 1, at(back + probation))
        assert state.wants(3)
        now = back + probation
        assert state.propose(at(now), OWN_EPOCH) is not None
        state.installed((1, 2, 3), epoch + 1)
        epoch += 2
        state.on_append(state.own_end + 1)
        now += STALL_MS + 1
        state.on_fetch(2, state.own_end, 1, at(now))


def test_a_relapse_while_it_waits_begins_the_time_anew_and_old_ones_are_forgiven() -> None:
    state = stalling()
    state.propose(at(STALL_MS + 1), OWN_EPOCH)
    state.installed((1, 2), 8)
    begun = 10_000
    state.on_fetch(3, 12, 1, at(begun))
    state.on_append(13)
    state.on_fetch(2, 13, 1, at(begun + 10))
    late = begun + STALL_MS + 500
    state.on_fetch(3, 12, 1, at(late))  # again nothing for as long as a stall takes
    state.on_fetch(3, 13, 1, at(late + 10))
    assert not state.wants(3)
    back = late + 10 + STALL_MS
    state.on_fetch(3, 13, 1, at(back))
    assert state.wants(3)
    state.propose(at(back), OWN_EPOCH)
    state.installed((1, 2, 3), 9)
    follower = state.followers[3]
    follower.stalled(back + FORGIVEN_MS + 1, STALL_MS)
    assert follower.probation_ms == STALL_MS


# ---- observers ----


def observed(isr: tuple[int, ...] = (1, 2), min_insync: int = 1) -> LeaderState:
    """1 leads, 2 votes, 3 observes."""
    state = leading(isr=isr, min_insync=min_insync)
    state.observers = frozenset({3})
    state.voters = 2
    return state


def test_an_observer_that_has_caught_up_is_not_waited_for_and_not_proposed() -> None:
    state = observed()
    state.on_fetch(3, 10, 1, at(10))
    assert not state.wants(3)
    assert state.propose(at(20), OWN_EPOCH) is None
    state.on_append(15)
    assert state.on_fetch(2, 15, 1, at(30)) == 15, "it has 10, and is about to join nothing"
    assert not state.under_replicated


def test_an_observer_is_nobody_whom_min_insync_replicas_counts() -> None:
    state = observed(isr=(1,), min_insync=2)
    state.on_fetch(3, 10, 1, at(10))
    state.on_append(12)
    state.on_fetch(3, 12, 1, at(20))
    assert not state.in_sync(2)
    assert state.high_watermark == 10
    assert state.in_sync(1)


def test_no_more_are_needed_in_sync_than_there_are_voters() -> None:
    state = observed(min_insync=3)
    assert state.in_sync(3)
    assert state.at_min_isr


def test_delete_records_does_not_wait_for_an_observer() -> None:
    state = observed()
    state.on_fetch(2, 10, 1, at(10), 4)
    state.on_fetch(3, 10, 1, at(10), 0)
    assert state.low_watermark == 4


def test_consumers_are_sent_to_an_observer_within_its_bound() -> None:
    state = observed()
    state.on_fetch(3, 10, 1, at(100), 0)
    assert 3 in [replica for replica, _, _ in state.holders(5, 1_100, 1_000)]
    assert 3 not in [replica for replica, _, _ in state.holders(5, 1_101, 1_000)]
    state.on_append(20)
    assert [(each.replica, each.lag, each.behind_ms) for each in state.observed(at(600))] == [
        (3, 10, 500)
    ]


def test_an_observer_that_is_added_is_told_of_when_it_has_caught_up() -> None:
    state = observed()
    state.adding, state.reassigning = (3,), True
    state.on_fetch(3, 5, 1, at(10))
    assert not state.wants(3)
    state.on_fetch(3, 10, 1, at(20))
    assert state.wants(3)
    proposal = state.propose(at(20), OWN_EPOCH)
    assert proposal is not None
    assert proposal.isr == (1, 2), "the in-sync set that is there"
    assert state.maximal_isr == (1, 2)
    state.installed((1, 2), 8, (1, 2, 3))
    state.adding = ()
    assert state.propose(at(30), OWN_EPOCH) is None
