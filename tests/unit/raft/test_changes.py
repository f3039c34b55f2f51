"""Voters that change: which changes a leader may begin, and what becomes of those removed."""

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.raft import changes
from scriba.raft.messages import EndEpoch, FetchRequest, HardState, Voter, VoteReply, VoteRequest
from scriba.raft.roles import Role
from tests.unit.raft.bench import ONE, THREE, TIMEOUTS, TWO, Bench

FOUR = Voter(4, b"4" * 16)


def leader(*voters: Voter) -> Bench:
    """Leads an epoch of which the first record is committed."""
    bench = Bench(voters=voters or (ONE, TWO, THREE)).elect()
    bench.raft.append(1)
    bench.raft.persisted(1, bench.now)
    fetches(bench, TWO, 1)
    assert bench.raft.high_watermark == 1
    return bench


def fetches(bench: Bench, replica: Voter, offset: int) -> None:
    raft = bench.raft
    last = raft.epoch if offset else 0
    bench.step(replica, FetchRequest(raft.epoch, replica, offset, last, raft.high_watermark, 0))


def write(bench: Bench, *voters: Voter, removed: bool = False) -> int:
    """The leader writes other voters, as its shell does."""
    at = bench.raft.append(1)
    bench.raft.set_voters(voters, bench.now, at, at if removed else -1)
    bench.raft.persisted(at + 1, bench.now)
    return at


def test_change_waits_for_the_first_commit_of_the_epoch() -> None:
    bench = Bench().elect()
    bench.raft.append(1)
    bench.raft.persisted(1, bench.now)
    assert "committed nothing in its epoch" in (changes.not_yet(bench.raft) or "")
    fetches(bench, TWO, 1)
    assert changes.not_yet(bench.raft) is None


def test_change_waits_for_the_one_before_to_be_committed() -> None:
    bench = leader()
    write(bench, ONE, TWO, THREE, FOUR)
    assert "at offset 1, is not committed" in (changes.not_yet(bench.raft) or "")
    fetches(bench, TWO, 2)
    assert changes.not_yet(bench.raft), "two of four are no majority"
    fetches(bench, FOUR, 2)
    assert changes.not_yet(bench.raft) is None


def test_new_voter_must_fetch_and_have_the_log() -> None:
    bench = leader()
    assert "does not fetch the metadata" in (changes.lag(bench.raft, FOUR, bench.now) or "")
    other = Voter(4, b"x" * 16)
    fetches(bench, other, 1)
    assert "with another directory" in (changes.lag(bench.raft, FOUR, bench.now) or "")
    fetches(bench, FOUR, 0)
    assert "1 of 1 records to fetch" in (changes.lag(bench.raft, FOUR, bench.now) or "")
    fetches(bench, FOUR, 1)
    assert changes.lag(bench.raft, FOUR, bench.now) is None
    for _ in range(4):
        bench.pass_time(TIMEOUTS.majority_ms // 3)
        fetches(bench, TWO, 1)
    assert "lags behind" in (changes.lag(bench.raft, FOUR, bench.now) or ""), "it is silent now"


@pytest.mark.parametrize(
    ("voter", "code", "text"),
    [
        (Voter(-1, b"4" * 16), ErrorCode.INVALID_REQUEST, "named by its id"),
        (Voter(4, bytes(16)), ErrorCode.INVALID_REQUEST, "id of its directory"),
        (TWO, ErrorCode.DUPLICATE_VOTER, "a voter already"),
        (Voter(2, b"n" * 16), ErrorCode.DUPLICATE_VOTER, "remove that one first"),
    ],
)
def test_voter_that_cannot_be_added(voter: Voter, code: ErrorCode, text: str) -> None:
    with pytest.raises(KafkaError, match=text) as refused:
        changes.check_add(leader().raft, voter)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("voter", "code", "text"),
    [
        (Voter(3, bytes(16)), ErrorCode.INVALID_REQUEST, "id of its directory"),
        (FOUR, ErrorCode.VOTER_NOT_FOUND, "not among the voters 1, 2, 3"),
        (Voter(3, b"n" * 16), ErrorCode.VOTER_NOT_FOUND, "with another directory"),
    ],
)
def test_voter_that_cannot_be_removed(voter: Voter, code: ErrorCode, text: str) -> None:
    with pytest.raises(KafkaError, match=text) as refused:
        changes.check_remove(leader().raft, voter)
    assert refused.value.code is code


def test_last_voter_stays() -> None:
    bench = Bench(voters=(ONE,))
    with pytest.raises(KafkaError, match="the last voter") as refused:
        changes.check_remove(bench.raft, ONE)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_removed_leader_leads_until_that_is_committed_and_names_its_heirs() -> None:
    bench = leader()
    write(bench, TWO, THREE, removed=True)
    assert bench.role() is Role.LEADER
    fetches(bench, TWO, 2)
    assert bench.raft.high_watermark == 1, "its own log does not count any more"
    assert bench.role() is Role.LEADER
    bench.raft.ready()
    fetches(bench, THREE, 2)
    assert bench.raft.high_watermark == 2
    assert bench.role() is Role.RESIGNED
    farewells = {peer: m for peer, m in bench.ready().sends if isinstance(m, EndEpoch)}
    assert set(farewells) == {2, 3}
    bench.pass_time(10 * TIMEOUTS.election_ms)
    assert bench.role() is Role.UNATTACHED, "it follows, and stands no more"


def test_removed_node_stands_while_its_removal_may_not_be_committed() -> None:
    """The other one of two voters has less of the log: nobody else could be elected."""
    bench = Bench(own=ONE, voters=(TWO,), hard=HardState(3, 1), epochs=((3, 0),), end=5)
    bench.raft.set_voters((TWO,), bench.now, 4, 4)
    bench.pass_time(1000)
    assert bench.role() is Role.PROSPECTIVE
    assert isinstance(bench.sends()[2], VoteRequest)
    bench.step(TWO, VoteReply(3, None, True, pre_vote=True))
    assert bench.role() is Role.CANDIDATE, "its own vote counts for nothing"
    bench.step(TWO, VoteReply(4, None, True, pre_vote=False))
    assert bench.role() is Role.LEADER
    bench.raft.append(1)
    bench.raft.persisted(6, bench.now)
    assert bench.role() is Role.LEADER
    bench.step(TWO, FetchRequest(4, TWO, 6, 4, 0, 0))
    assert bench.role() is Role.RESIGNED


def test_voter_that_is_added_while_it_follows_stands_when_its_leader_is_silent() -> None:
    bench = Bench(own=FOUR, voters=(ONE, TWO, THREE))
    bench.step(ONE, VoteRequest(1, ONE, bench.raft.log.end, pre_vote=False))
    bench.raft.set_voters((ONE, TWO, THREE, FOUR), bench.now, 3)
    bench.pass_time(10 * TIMEOUTS.fetch_ms)
    assert bench.role() is Role.PROSPECTIVE
