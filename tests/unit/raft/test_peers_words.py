"""What peers say that cannot be true ends nobody; voters count from the moment they are told."""

import pytest

from scriba.instant import Instant
from scriba.raft.epochs import EpochTable
from scriba.raft.machine import Raft
from scriba.raft.messages import (
    NO_DIRECTORY,
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
from scriba.raft.roles import LAST_EPOCH, Role, Timeouts
from tests.unit.raft.bench import OBSERVER, ONE, THREE, TIMEOUTS, TWO, Bench


def follower(end: int = 0, high_watermark: int = 0) -> Bench:
    """Node 1 follows node 2 in epoch 5, and has fetched from it."""
    bench = Bench(epochs=((5, 0),) if end else (), end=end, hard=HardState(5))
    bench.step(TWO, BeginEpoch(5, 2))
    bench.pass_time(0)
    reply = FetchReply(5, 2, high_watermark, bench.raft.log.end, end)
    bench.step(TWO, reply)
    bench.raft.ready()
    assert bench.role() is Role.FOLLOWER
    assert bench.raft.high_watermark == high_watermark
    return bench


def test_second_leader_of_an_epoch_is_not_believed() -> None:
    bench = Bench(hard=HardState(5, leader=2))
    bench.pass_time(1000)
    assert bench.role() is Role.PROSPECTIVE, "it gave its leader up, and remembers it"
    reply = bench.ask(THREE, BeginEpoch(5, 3))
    assert reply == EpochReply(5, 2)
    assert bench.role() is Role.PROSPECTIVE
    bench.step(THREE, BeginEpoch(5, 3))
    assert any("led by 2, and was told to be led by 3" in f for f in bench.ready().faults)


def test_divergence_below_what_is_committed_truncates_nothing() -> None:
    bench = follower(end=10, high_watermark=8)
    bench.pass_time(0)
    bench.raft.ready()
    bench.step(TWO, FetchReply(5, 2, 8, Position(5, 10), 10, diverging=Position(5, 4)))
    ready = bench.ready()
    assert ready.truncate_to is None
    assert "diverges at 4, below 8 committed" in ready.faults[0]
    assert bench.raft.log.end_offset == 10
    assert bench.role() is Role.FOLLOWER
    bench.pass_time(TIMEOUTS.request_ms)
    assert 2 in bench.sends(), "it is asked again, not in a hurry"


def test_snapshot_behind_what_is_committed_is_not_fetched() -> None:
    bench = follower(end=10, high_watermark=8)
    bench.pass_time(0)
    bench.raft.ready()
    bench.step(TWO, FetchReply(5, 2, 8, Position(5, 10), 10, snapshot=Position(5, 8)))
    ready = bench.ready()
    assert ready.fetch_snapshot is None
    assert "a snapshot" in ready.faults[0]


def test_records_that_do_not_follow_are_not_appended() -> None:
    for runs in (
        (Run(5, 10),),
        (Run(4, 12),),
        (Run(6, 12),),
        (Run(5, 12), Run(5, 11)),
    ):
        bench = follower(end=10)
        bench.pass_time(0)
        bench.raft.ready()
        bench.step(TWO, FetchReply(5, 2, 0, Position(5, 10), 12, runs=runs, payload=b""))
        ready = bench.ready()
        assert ready.append is None, runs
        assert ready.faults, runs
        assert bench.raft.log.end_offset == 10


@pytest.mark.parametrize("voters", [(ONE, TWO, THREE), (ONE,)])
def test_after_the_last_epoch_nobody_stands_and_nobody_ends(voters: tuple[Voter, ...]) -> None:
    bench = Bench(voters=voters, hard=HardState(LAST_EPOCH))
    bench.raft.ready()
    bench.pass_time(1000)
    bench.step(TWO, VoteReply(LAST_EPOCH, None, True, pre_vote=True))
    assert "nobody can be elected" in bench.ready().faults[0]
    for _ in range(5):
        bench.pass_time(1000)
    assert bench.raft.epoch == LAST_EPOCH
    assert bench.role() in (Role.UNATTACHED, Role.PROSPECTIVE)


def test_candidate_whose_log_is_ahead_of_its_epoch_gets_no_vote() -> None:
    bench = Bench(hard=HardState(3))
    assert bench.ask(TWO, VoteRequest(4, TWO, Position(4, 9), pre_vote=False)).granted is False
    assert bench.ask(TWO, VoteRequest(4, TWO, Position(5, 9), pre_vote=True)).granted is False
    assert bench.ask(TWO, VoteRequest(4, TWO, Position(3, 9), pre_vote=False)).granted is True


def test_observer_that_knows_no_voters_asks_its_bootstrap_servers_in_turn() -> None:
    now = Instant(0, 0)
    table = EpochTable(Position(0, 0), (), 0)
    raft = Raft(OBSERVER, (), HardState(0), table, 0, lambda n: 0, now, TIMEOUTS, (-2, -3))
    asked: list[int] = []
    for at in range(0, 1000, 10):
        raft.tick(Instant(at, at))
        ready = raft.ready()
        asked += [peer for peer, _ in ready.sends] if ready else []
        for peer in asked[-1:]:
            request = FetchRequest(0, OBSERVER, 0, 0, 0, 25)
            raft.failed(peer, request, Instant(at, at), refused=True)
    assert asked[:4] == [-2, -3, -2, -3]
    raft.step(2, FetchReply(7, 2, refused=True), Instant(1000, 1000))
    assert (raft.role, raft.leader) == (Role.FOLLOWER, 2)


def test_observer_without_anybody_to_ask_waits() -> None:
    table = EpochTable(Position(0, 0), (), 0)
    raft = Raft(OBSERVER, (), HardState(0), table, 0, lambda n: 0, Instant(0, 0), TIMEOUTS)
    raft.tick(Instant(0, 0))
    ready = raft.ready()
    assert ready is None or not ready.sends
    assert raft.next_deadline() == TIMEOUTS.request_ms


def test_refused_address_proves_the_leaders_death_and_pre_votes_follow_at_once() -> None:
    bench = follower()
    bench.pass_time(0)
    (request,) = [r for _, r in bench.ready().sends]
    bench.raft.failed(2, request, bench.now, refused=False)
    assert bench.role() is Role.FOLLOWER, "a broken connection proves nothing"
    assert bench.ask(THREE, VoteRequest(5, THREE, Position(0, 0), pre_vote=True)).granted is False
    bench.raft.failed(2, request, bench.now, refused=True)
    asked = bench.ask(THREE, VoteRequest(5, THREE, Position(0, 0), pre_vote=True))
    assert asked.granted is True, "others may stand, too"
    bench.pass_time(0)
    assert bench.role() is Role.PROSPECTIVE
    assert isinstance(bench.sends()[3], VoteRequest)


def test_of_those_who_see_the_leader_die_the_first_gets_a_start() -> None:
    bench = Bench(own=THREE, hard=HardState(5))
    bench.step(TWO, BeginEpoch(5, 2))
    bench.pass_time(0)
    (request,) = [r for _, r in bench.ready().sends if isinstance(r, FetchRequest)]
    bench.raft.failed(2, request, bench.now, refused=True)
    bench.pass_time(0)
    assert bench.role() is Role.FOLLOWER
    bench.pass_time(TIMEOUTS.election_ms // 10)
    assert bench.role() is Role.PROSPECTIVE


def test_observer_whose_leader_died_looks_for_the_next_one_at_once() -> None:
    bench = Bench(own=OBSERVER, hard=HardState(5, leader=2))
    bench.pass_time(0)
    (request,) = [r for _, r in bench.ready().sends]
    bench.raft.failed(2, request, bench.now, refused=True)
    bench.pass_time(TIMEOUTS.backoff_ms)
    assert bench.role() is Role.UNATTACHED
    assert bench.sends()


def test_voter_that_starts_asks_at_once_who_leads() -> None:
    for hard in (HardState(5), HardState(5, leader=1)):
        bench = Bench(hard=hard)
        bench.pass_time(0)
        (sent,) = bench.sends().values()
        assert isinstance(sent, FetchRequest)
        bench.step(TWO, FetchReply(6, 3, refused=True))
        assert (bench.role(), bench.raft.leader) == (Role.FOLLOWER, 3)


def test_nobody_asks_for_records_while_others_are_on_their_way_to_the_disk() -> None:
    """The leader takes what is asked for next as proof that all before it is on the disk."""
    bench = follower(end=10)
    bench.pass_time(0)
    bench.raft.ready()
    bench.step(TWO, FetchReply(5, 2, 0, Position(5, 10), 12, runs=(Run(5, 12),), payload=b""))
    assert bench.ready().append is not None
    bench.step(THREE, VoteRequest(6, THREE, Position(5, 10), pre_vote=False))
    bench.pass_time(0)
    assert bench.role() is Role.UNATTACHED
    assert not bench.sends()
    bench.raft.persisted(12, bench.now)
    bench.pass_time(0)
    assert isinstance(next(iter(bench.sends().values())), FetchRequest)


def test_resigned_leader_is_no_leader_to_its_own_node() -> None:
    bench = Bench().elect()
    bench.raft.resign(bench.now)
    assert bench.ready().leadership == Leadership(bench.raft.epoch, None)


def test_full_disk_gives_back_what_it_did_not_take() -> None:
    bench = follower(end=10)
    bench.pass_time(0)
    bench.raft.ready()
    bench.step(TWO, FetchReply(5, 2, 12, Position(5, 10), 12, runs=(Run(5, 12),), payload=b""))
    bench.raft.append_refused(11, bench.now)
    assert bench.raft.log.end == Position(5, 11)
    bench.pass_time(TIMEOUTS.request_ms)
    assert bench.sends()[2].offset == 11


# ---- voters ----


def test_new_voters_count_from_the_moment_they_are_told() -> None:
    bench = Bench(voters=(ONE, TWO)).elect()
    bench.raft.append(1)
    bench.raft.persisted(1, bench.now)
    bench.step(TWO, FetchRequest(bench.raft.epoch, TWO, 1, bench.raft.epoch, 0, 0))
    assert bench.raft.high_watermark == 1
    four = Voter(4, b"4" * 16)
    bench.raft.set_voters((ONE, TWO, THREE, four), bench.now)
    bench.raft.append(1)
    bench.raft.persisted(2, bench.now)
    bench.step(TWO, FetchRequest(bench.raft.epoch, TWO, 2, bench.raft.epoch, 1, 0))
    assert bench.raft.high_watermark == 1, "two of four are no majority"
    bench.step(THREE, FetchRequest(bench.raft.epoch, THREE, 2, bench.raft.epoch, 1, 0))
    assert bench.raft.high_watermark == 2


def test_voter_that_is_one_no_longer_stops_standing() -> None:
    bench = Bench()
    bench.pass_time(1000)
    assert bench.role() is Role.PROSPECTIVE
    bench.raft.set_voters((TWO, THREE), bench.now)
    assert bench.role() is Role.UNATTACHED
    bench.pass_time(10_000)
    assert bench.role() is Role.UNATTACHED, "an observer never stands"


def test_voter_of_the_settings_has_any_directory() -> None:
    named = tuple(Voter(i, NO_DIRECTORY) for i in (1, 2, 3))
    bench = Bench(voters=named)
    assert bench.raft.is_voter
    bench.elect()
    bench.raft.append(1)
    bench.raft.persisted(1, bench.now)
    bench.step(TWO, FetchRequest(bench.raft.epoch, TWO, 1, bench.raft.epoch, 0, 0))
    assert bench.raft.high_watermark == 1


def forgetful() -> Raft:
    named = tuple(Voter(i, NO_DIRECTORY) for i in (1, 2, 3))
    table = EpochTable(Position(0, 0), (), 0)
    return Raft(
        ONE,
        named,
        HardState(0),
        table,
        0,
        lambda n: 0,
        Instant(0, 0),
        Timeouts(),
        forgetful=True,
    )


def test_forgetful_voter_votes_only_after_the_epoch_of_a_leader_it_has_caught_up_with() -> None:
    raft, now = forgetful(), Instant(1, 1)

    def vote(epoch: int, keyed: bool = False) -> bool:
        request = VoteRequest(epoch, THREE, Position(epoch - 1, 99), False, keyed)
        raft.step(3, request, now, "asked")
        ready = raft.ready()
        assert ready is not None
        reply = dict(ready.replies)["asked"]
        assert isinstance(reply, VoteReply)
        return reply.granted

    assert vote(5) is False, "it may have voted in this epoch before"
    raft.step(2, BeginEpoch(6, 2), now)
    raft.tick(now)
    raft.ready()
    raft.step(2, FetchReply(6, 2, 1, Position(0, 0), 1, runs=(Run(6, 1),), payload=b""), now)
    raft.persisted(1, now)
    assert raft.high_watermark == 1
    assert raft.epoch == 6
    assert vote(7) is True


def test_candidate_that_names_the_new_disk_gets_the_vote_of_a_forgetful_voter() -> None:
    raft = forgetful()
    request = VoteRequest(1, TWO, Position(0, 0), False, keyed=True)
    raft.step(2, request, Instant(1, 1), "asked")
    ready = raft.ready()
    assert ready is not None
    reply = dict(ready.replies)["asked"]
    assert isinstance(reply, VoteReply)
    assert reply.granted is True


def test_farewell_of_one_who_does_not_lead_moves_nobody() -> None:
    bench = follower()
    bench.step(THREE, EndEpoch(5, 3, (1,)))
    assert bench.raft.leader == 2
    bench.pass_time(0)
    assert bench.role() is Role.FOLLOWER
