"""The leader's side of a partition: the high watermark and the in-sync replicas."""

from hypothesis import given
from hypothesis import strategies as st

from scriba.instant import Instant
from scriba.replication.leader import IsrProposal, LeaderState

LAG_MS = 30_000
EVERYONE = frozenset({1, 2, 3})


def at(ms: int) -> Instant:
    return Instant(ms, 1_700_000_000_000 + ms)


def leading(isr: tuple[int, ...] = (1, 2, 3), end: int = 10, hw: int = 10) -> LeaderState:
    state = LeaderState(
        node_id=1,
        replicas=(1, 2, 3),
        isr=isr,
        leader_epoch=5,
        partition_epoch=7,
        epoch_start_offset=end,
        high_watermark=hw,
        own_end=end,
        lag_ms=LAG_MS,
    )
    for replica in isr:
        if replica != 1:
            state.on_fetch(replica, end, 1, at(0))
    return state


def test_a_leader_alone_commits_what_it_appends() -> None:
    alone = LeaderState(1, (1,), (1,), 0, 0, 0, 0, 0)
    assert alone.on_append(3) == 3
    assert alone.high_watermark == 3


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


def test_a_follower_that_lags_is_dropped_then_rejoins_at_the_high_watermark() -> None:
    state = leading()
    state.on_append(20)
    state.on_fetch(2, 20, 1, at(LAG_MS))
    proposal = state.propose(at(LAG_MS + 1), EVERYONE)
    assert proposal == IsrProposal((1, 2), 5, 7)
    # Until the controller has agreed, the laggard still counts.
    assert state.high_watermark == 10
    assert state.installed((1, 2), 8) == 20

    assert state.propose(at(LAG_MS + 2), EVERYONE) is None
    state.on_fetch(3, 20, 1, at(LAG_MS + 3))
    rejoin = state.propose(at(LAG_MS + 4), EVERYONE)
    assert rejoin == IsrProposal((1, 2, 3), 5, 8)
    # A replica about to join counts already, or it could miss what is committed meanwhile.
    state.on_append(30)
    state.on_fetch(2, 30, 1, at(LAG_MS + 5))
    assert state.high_watermark == 20


def test_a_follower_that_keeps_pace_with_a_running_leader_stays() -> None:
    state = leading()
    for step in range(1, 40):
        behind = state.own_end
        state.on_append(state.own_end + 100)
        state.on_fetch(2, behind, 1, at(step * 1000))
        state.on_fetch(3, behind, 1, at(step * 1000))
    assert state.propose(at(40_000), EVERYONE) is None


def test_a_fenced_broker_never_joins() -> None:
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    assert state.propose(at(2), frozenset({1, 2})) is None


def test_one_proposal_at_a_time_and_a_refused_one_leaves_the_isr() -> None:
    state = leading(isr=(1, 2))
    state.on_fetch(3, 10, 1, at(1))
    assert state.propose(at(2), EVERYONE) is not None
    assert state.propose(at(3), EVERYONE) is None
    state.refused()
    assert state.isr == (1, 2)
    assert state.propose(at(4), EVERYONE) is not None


def test_an_older_decision_of_the_controller_is_ignored() -> None:
    state = leading()
    state.installed((1, 2), 9)
    state.installed((1, 2, 3), 8)
    assert state.isr == (1, 2)


def test_min_insync_replicas_is_capped_by_the_replica_count() -> None:
    alone = LeaderState(1, (1,), (1,), 0, 0, 0, 0, 0)
    assert alone.in_sync(2)
    assert not leading(isr=(1,)).in_sync(2)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 50)),
            st.tuples(st.just("fetch2"), st.integers(0, 50)),
            st.tuples(st.just("fetch3"), st.integers(0, 50)),
            st.tuples(st.just("propose"), st.integers(0, 60_000)),
            st.tuples(st.just("install"), st.booleans()),
        )
    )
)
def test_the_watermark_never_goes_back_and_never_passes_an_isr_member(
    steps: list[tuple[str, int]],
) -> None:
    state = leading()
    now = 0
    seen = state.high_watermark
    for kind, n in steps:
        now += 100
        if kind == "append":
            state.on_append(state.own_end + n)
        elif kind in ("fetch2", "fetch3"):
            replica = int(kind[-1])
            known = max(state.followers[replica].end_offset, 0)
            state.on_fetch(replica, min(known + n, state.own_end), 1, at(now))
        elif kind == "propose":
            now += n
            state.propose(at(now), EVERYONE)
        elif state.pending is not None:
            if n:
                state.installed(state.pending.isr, state.partition_epoch + 1)
            else:
                state.refused()
        assert state.high_watermark >= seen
        seen = state.high_watermark
        assert seen <= state.own_end
        assert 1 in state.isr
        for replica in state.isr:
            if replica != 1:
                assert state.followers[replica].end_offset >= seen
