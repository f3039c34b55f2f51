"""One machine at a time: elections, votes, fetches and what must be on disk before them."""

import pytest

from scriba.instant import Instant
from scriba.raft.epochs import EpochTable
from scriba.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    FetchReply,
    FetchRequest,
    HardState,
    Leadership,
    Position,
    Run,
    Voter,
    VoteReply,
    VoteRequest,
)
from scriba.raft.roles import VALID, Role
from tests.unit.raft.bench import OBSERVER, ONE, THREE, TWO, Bench


def test_single_voter_leads_the_next_epoch_at_once() -> None:
    bench = Bench(voters=(ONE,), hard=HardState(4, 1), epochs=((4, 0),), end=9)
    ready = bench.ready()
    assert ready.hard_state == HardState(5, 1), "on disk before it acts"
    assert ready.leadership == Leadership(5, 1)
    assert not ready.sends
    assert bench.raft.next_deadline() is None
    assert bench.raft.append(2) == 9
    assert bench.raft.ready() is None, "written is not flushed"
    bench.raft.persisted(11, bench.now)
    assert bench.ready().high_watermark == 11


def test_single_voter_without_state_never_reuses_an_epoch_of_its_log() -> None:
    bench = Bench(voters=(ONE,), epochs=((1, 0), (7, 4)), end=9)
    assert bench.ready().hard_state == HardState(8, 1)


def test_election_asks_first_then_votes_then_leads() -> None:
    bench = Bench(epochs=((1, 0),), end=5, hard=HardState(3))
    bench.raft.ready()
    bench.pass_time(250)
    ready = bench.ready()
    assert bench.role() is Role.PROSPECTIVE
    assert ready.hard_state is None, "asking costs no epoch"
    asked = VoteRequest(3, ONE, Position(1, 5), pre_vote=True)
    assert dict(ready.sends) == {2: asked, 3: asked}
    bench.step(THREE, VoteReply(3, None, True, pre_vote=True))
    ready = bench.ready()
    assert ready.hard_state == HardState(4, None, ONE), "the own vote, before it is asked for"
    assert dict(ready.sends)[2] == VoteRequest(4, ONE, Position(1, 5), pre_vote=False)
    bench.step(THREE, VoteReply(4, None, False, pre_vote=False))
    assert bench.role() is Role.CANDIDATE
    bench.step(TWO, VoteReply(4, None, True, pre_vote=False))
    ready = bench.ready()
    assert ready.leadership == Leadership(4, 1)
    assert dict(ready.sends) == {2: BeginEpoch(4, 1), 3: BeginEpoch(4, 1)}


def test_answer_to_the_trial_is_not_a_vote() -> None:
    bench = Bench()
    bench.pass_time(250)
    bench.step(TWO, VoteReply(0, None, True, pre_vote=True))
    assert bench.role() is Role.CANDIDATE
    bench.step(TWO, VoteReply(1, None, True, pre_vote=True))
    assert bench.role() is Role.CANDIDATE


def test_one_vote_per_epoch_kept_across_a_restart() -> None:
    bench = Bench(hard=HardState(2))
    first = VoteRequest(5, TWO, Position(0, 0), pre_vote=False)
    other = VoteRequest(5, THREE, Position(0, 0), pre_vote=False)
    bench.step(TWO, first)
    ready = bench.ready()
    assert ready.hard_state == HardState(5, None, TWO)
    assert ready.replies == [("token", VoteReply(5, None, True, False))]
    assert bench.ask(THREE, other) == VoteReply(5, None, False, False)
    again = Bench(hard=HardState(5, None, TWO))
    assert again.ask(THREE, other) == VoteReply(5, None, False, False)
    assert again.ask(TWO, first) == VoteReply(5, None, True, False)
    twin = VoteRequest(5, Voter(2, b"another disk 2.."), Position(0, 0), pre_vote=False)
    assert again.ask(TWO, twin) == VoteReply(5, None, False, False)


@pytest.mark.parametrize("end", [Position(1, 9), Position(2, 4)])
def test_vote_goes_only_to_a_log_as_complete_as_ones_own(end: Position) -> None:
    bench = Bench(hard=HardState(2), epochs=((1, 0), (2, 3)), end=5)
    assert bench.ask(TWO, VoteRequest(3, TWO, end, False)) == VoteReply(3, None, False, False)
    good = VoteRequest(3, THREE, Position(2, 5), False)
    assert bench.ask(THREE, good) == VoteReply(3, None, True, False)


def test_request_of_an_older_epoch_learns_the_present_one() -> None:
    bench = Bench(hard=HardState(7, 3))
    old = VoteRequest(6, TWO, Position(0, 0), pre_vote=False)
    assert bench.ask(TWO, old) == VoteReply(7, 3, False, False)


def test_follower_that_hears_its_leader_does_not_help_to_replace_it() -> None:
    bench = Bench(own=TWO)
    bench.step(ONE, BeginEpoch(1, 1))
    trial = VoteRequest(1, THREE, Position(0, 0), pre_vote=True)
    assert bench.ask(THREE, trial) == VoteReply(1, 1, True, True), "not heard from it yet"
    bench.step(ONE, FetchReply(1, 1, 0, Position(0, 0), 0))
    assert bench.ask(THREE, trial) == VoteReply(1, 1, False, True)


def test_follower_whose_leader_is_silent_stands_itself() -> None:
    bench = Bench(own=TWO)
    bench.step(ONE, BeginEpoch(1, 1))
    assert bench.role() is Role.FOLLOWER
    bench.pass_time(150)
    assert bench.role() is Role.FOLLOWER
    bench.pass_time(60)
    assert bench.role() is Role.PROSPECTIVE
    bench.step(THREE, VoteReply(1, 1, False, True))
    assert bench.role() is Role.PROSPECTIVE, "hearsay about a silent leader does not count"
    bench.step(ONE, BeginEpoch(1, 1))
    assert bench.role() is Role.FOLLOWER, "its own word does"


def test_leader_that_restarts_does_not_lead_its_old_epoch() -> None:
    bench = Bench(hard=HardState(3, 1), epochs=((3, 0),), end=4)
    assert bench.role() is Role.RESIGNED
    fetch = FetchRequest(3, TWO, 4, 3, 0, 0)
    answer = bench.ask(TWO, fetch)
    assert (answer.refused, answer.epoch) == (True, 3)


def test_leader_that_hears_no_majority_resigns() -> None:
    bench = Bench().elect()
    bench.pass_time(200)
    assert bench.role() is Role.LEADER
    bench.ask(TWO, FetchRequest(1, TWO, 0, 0, 0, 0))
    bench.pass_time(250)
    assert bench.role() is Role.LEADER
    bench.pass_time(200)
    assert bench.role() is Role.RESIGNED
    assert bench.sends()[3] == EndEpoch(1, 1, (2, 3))


def test_farewell_names_successors_and_the_first_stands_at_once() -> None:
    leader = Bench(epochs=((0, 0),), end=4).elect()
    leader.raft.append(3)
    leader.ask(THREE, FetchRequest(1, THREE, 4, 0, 0, 0))
    leader.ask(TWO, FetchRequest(1, TWO, 7, 1, 0, 0))
    leader.raft.resign(leader.now)
    farewell = leader.sends()[2]
    assert farewell == EndEpoch(1, 1, (2, 3))
    first, second = Bench(own=TWO), Bench(own=THREE)
    for bench in (first, second):
        bench.step(ONE, BeginEpoch(1, 1))
        bench.step(ONE, farewell)
        bench.pass_time(1)
    assert first.role() is Role.PROSPECTIVE
    assert second.role() is Role.FOLLOWER


def test_entries_of_older_epochs_are_committed_only_with_one_of_the_leaders_own() -> None:
    bench = Bench(hard=HardState(2), epochs=((2, 0),), end=4).elect()
    assert bench.raft.epoch == 3
    bench.ask(TWO, FetchRequest(3, TWO, 4, 2, 0, 0))
    bench.ask(THREE, FetchRequest(3, THREE, 4, 2, 0, 0))
    assert bench.raft.high_watermark == 0, "all have them, and yet"
    bench.raft.append(1)
    bench.raft.persisted(5, bench.now)
    assert bench.raft.high_watermark == 0
    bench.ask(TWO, FetchRequest(3, TWO, 5, 3, 0, 0))
    assert bench.raft.high_watermark == 5


def test_leader_counts_itself_only_when_flushed() -> None:
    bench = Bench().elect()
    bench.raft.append(1)
    bench.ask(TWO, FetchRequest(1, TWO, 1, 1, 0, 0))
    assert bench.raft.high_watermark == 0
    bench.raft.persisted(1, bench.now)
    assert bench.raft.high_watermark == 1


def test_fetch_with_nothing_to_bring_waits_for_records_or_its_time() -> None:
    bench = Bench().elect()
    bench.step(TWO, FetchRequest(1, TWO, 0, 0, 0, 25), "late")
    assert bench.raft.ready() is None
    bench.pass_time(30)
    assert bench.ready().replies[0][0] == "late"
    bench.step(TWO, FetchRequest(1, TWO, 0, 0, 0, 25), "soon")
    bench.raft.append(2)
    token, reply = bench.ready().replies[0]
    assert token == "soon"
    assert isinstance(reply, FetchReply)
    assert (reply.position.offset, reply.end_offset) == (0, 2)


def test_replica_that_diverges_is_told_where_and_cuts_back() -> None:
    leader = Bench(hard=HardState(4), epochs=((1, 0), (4, 6)), end=9).elect()
    answer = leader.ask(TWO, FetchRequest(5, TWO, 8, 2, 0, 0))
    assert answer.diverging == Position(1, 6)
    follower = Bench(own=TWO, hard=HardState(5, 1), epochs=((1, 0), (2, 7)), end=8)
    follower.raft.tick(follower.now)
    assert follower.sends()[1] == FetchRequest(5, TWO, 8, 2, 0, 25)
    follower.step(ONE, answer)
    assert follower.ready().truncate_to == 6
    follower.raft.tick(follower.now)
    assert follower.sends()[1] == FetchRequest(5, TWO, 6, 1, 0, 25)
    assert leader.ask(TWO, FetchRequest(5, TWO, 6, 1, 0, 0)).diverging is None


def test_follower_asks_for_more_only_when_it_has_flushed() -> None:
    bench = Bench(own=TWO)
    bench.step(ONE, BeginEpoch(1, 1))
    bench.raft.tick(bench.now)
    assert bench.sends()[1].offset == 0
    got = FetchReply(1, 1, 2, Position(0, 0), 3, runs=(Run(1, 3),), payload="bytes")
    bench.step(ONE, got)
    assert bench.ready().append is got
    bench.raft.tick(bench.now)
    assert not bench.sends()
    assert bench.raft.high_watermark == 0
    bench.raft.persisted(3, bench.now)
    assert bench.raft.high_watermark == 2
    bench.raft.tick(bench.now)
    assert bench.sends()[1].offset == 3


def test_replica_that_lags_behind_the_log_is_sent_to_the_snapshot() -> None:
    leader = Bench(hard=HardState(3), epochs=((2, 0),), end=50).elect()
    leader.raft.append(1)
    leader.raft.persisted(51, leader.now)
    leader.ask(TWO, FetchRequest(4, TWO, 51, 4, 0, 0))
    leader.raft.snapshot_taken(Position(2, 40))
    for offset, epoch in ((0, 0), (10, 2), (40, 1)):
        answer = leader.ask(THREE, FetchRequest(4, THREE, offset, epoch, 0, 0))
        assert answer.snapshot == Position(2, 40)
    answer = leader.ask(THREE, FetchRequest(4, THREE, 40, 2, 0, 0))
    assert (answer.snapshot, answer.end_offset) == (None, 51)
    follower = Bench(own=THREE, hard=HardState(4, 1))
    follower.raft.tick(follower.now)
    follower.sends()
    reply = FetchReply(4, 1, 51, Position(0, 0), 0, snapshot=Position(2, 40))
    follower.step(ONE, reply)
    assert follower.ready().fetch_snapshot == Position(2, 40)
    follower.raft.snapshot_loaded(Position(2, 40), follower.now)
    assert follower.raft.high_watermark == 40
    follower.raft.tick(follower.now)
    assert follower.sends()[1] == FetchRequest(4, THREE, 40, 2, 40, 25)


def test_observer_finds_the_leader_and_counts_for_nothing() -> None:
    bench = Bench(own=OBSERVER)
    bench.raft.tick(bench.now)
    asked = next(iter(bench.sends()))
    assert asked in (1, 2, 3)
    bench.step(TWO, FetchReply(3, 1, refused=True))
    assert bench.role() is Role.FOLLOWER
    bench.raft.tick(bench.now)
    assert list(bench.sends()) == [1]
    bench.pass_time(10_000)
    assert bench.role() is Role.UNATTACHED, "it never stands for election"
    leader = Bench().elect()
    leader.raft.append(1)
    leader.raft.persisted(1, leader.now)
    leader.ask(OBSERVER, FetchRequest(1, OBSERVER, 1, 1, 0, 0))
    assert leader.raft.high_watermark == 0
    assert leader.raft.progress is not None
    assert OBSERVER in leader.raft.progress.observers


def test_voter_that_came_back_with_another_disk_is_an_observer() -> None:
    leader = Bench().elect()
    leader.raft.append(1)
    leader.raft.persisted(1, leader.now)
    stranger = Voter(2, b"new disk of two.")
    leader.ask(stranger, FetchRequest(1, stranger, 1, 1, 0, 0))
    assert leader.raft.high_watermark == 0
    assert not Bench(own=stranger).raft.is_voter


def test_leader_knows_who_is_caught_up() -> None:
    leader = Bench().elect()
    leader.raft.append(5)
    leader.ask(TWO, FetchRequest(1, TWO, 0, 0, 0, 0))
    progress = leader.raft.progress
    assert progress is not None
    assert progress.voters[2].last_caught_up_ms == -1
    before = leader.now.wall_ms
    leader.raft.append(1)
    leader.now = Instant(leader.now.mono_ms + 10, leader.now.wall_ms + 10)
    leader.ask(TWO, FetchRequest(1, TWO, 5, 1, 0, 0))
    assert progress.voters[2].last_caught_up_ms == before
    leader.ask(TWO, FetchRequest(1, TWO, 6, 1, 0, 0))
    assert progress.voters[2].last_caught_up_ms == leader.now.wall_ms


def test_fetch_of_another_epoch_is_refused_and_teaches() -> None:
    leader = Bench().elect()
    for epoch in (0, 2):
        answer = leader.ask(TWO, FetchRequest(epoch, TWO, 0, 0, 0, 0))
        assert (answer.refused, answer.epoch, answer.leader) == (True, 1, 1)


def test_news_of_a_later_epoch_ends_a_leadership_and_its_waiting_fetches() -> None:
    leader = Bench().elect()
    leader.step(TWO, FetchRequest(1, TWO, 0, 0, 0, 25), "waiting")
    leader.step(THREE, EpochReply(4, 3))
    ready = leader.ready()
    assert leader.role() is Role.FOLLOWER
    assert ready.hard_state == HardState(4, 3)
    token, reply = ready.replies[0]
    assert token == "waiting"
    assert isinstance(reply, FetchReply)
    assert reply.refused


def test_every_role_can_be_reached_and_left() -> None:
    assert set(VALID) == set(Role)
    assert set().union(*VALID.values()) == set(Role)


def test_epoch_table_finds_where_logs_part() -> None:
    table = EpochTable(Position(0, 0), [(1, 0), (3, 10), (4, 15)], 20)
    assert table.end == Position(4, 20)
    assert table.end_of(0) == Position(0, 0)
    assert table.end_of(1) == table.end_of(2) == Position(1, 10)
    assert table.end_of(9) == Position(4, 20)
    assert table.contains(Position(3, 15))
    assert not table.contains(Position(3, 16))
    assert not table.contains(Position(2, 10))
    table.truncate(12)
    assert table.end == Position(3, 12)
    table.truncate(10)
    assert table.end == Position(1, 10)
    table.append(Run(6, 12))
    table.advance_start(Position(1, 10))
    assert table.contains(Position(1, 10))
    assert not table.contains(Position(1, 9))
    assert table.end_of(6) == Position(6, 12)
    table.reset(Position(6, 30))
    assert table.end == Position(6, 30)
