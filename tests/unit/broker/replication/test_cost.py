"""What replication of one record costs, counted instead of timed.

A warm acks=all Produce has each follower fetch once. Counted are the calls in Python that the
leader makes for such a fetch, from its frame to its answer, and the follower from an answer to its
next question. The limits are what the code needs now: lower them when it needs less, and raise
them only with a reason.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from types import FrameType
from typing import Any

import pytest

from scriba.broker.fastpath.replicas import ReplicaFetchFastPath, WaitingReplicaFetch
from scriba.broker.partitions.replication.fetchers import Fetcher
from scriba.errors import ErrorCode
from tests.unit.broker.brokers import Brokers, play

LEADER_CALLS = 56
"""A fetch as it comes, which counts what the follower has and finds nothing; the same when it is
woken by the append, with what is packed and sent. Five are the look at the headers of what is sent
in a file without a descriptor, as here; by a descriptor that is none. Without its fast path it was
106."""
FOLLOWER_CALLS = 48
"""Checks, appends and counts a batch; encodes and sends the next question."""
RECORDS = 40


class Calls:
    """Counts calls of the broker's own code while it is in certain functions."""

    def __init__(self) -> None:
        self.count = 0

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and "scriba" in file and "/testing/" not in file:
            self.count += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            with self.counted():
                return function(*arguments)

        return called


async def calls_per_record(brokers: Brokers, calls: Calls) -> float:
    """With one follower: the median of many records, for timers run between them now and then."""
    await brokers.create("t", (2, 3))
    counts = []
    for _ in range(RECORDS):
        before = calls.count
        assert await brokers.produce(2, "t", b"x" * 1000) is ErrorCode.NONE
        counts.append(calls.count - before)
    return median(counts[10:])


def test_a_followers_fetch_costs_its_leader_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()

    async def script(brokers: Brokers) -> None:
        found = await calls_per_record(brokers, calls)
        assert 20 < found <= LEADER_CALLS, found

    take = calls.within(ReplicaFetchFastPath.take)
    again = calls.within(WaitingReplicaFetch._look_again)
    monkeypatch.setattr(ReplicaFetchFastPath, "take", lambda *arguments: take(*arguments))
    monkeypatch.setattr(WaitingReplicaFetch, "_look_again", lambda fetch: again(fetch))
    play(script)


def test_what_a_leader_sends_costs_its_follower_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()

    async def script(brokers: Brokers) -> None:
        found = await calls_per_record(brokers, calls)
        assert 20 < found <= FOLLOWER_CALLS, found

    answered = calls.within(Fetcher._answered)
    monkeypatch.setattr(Fetcher, "_answered", lambda fetcher, future: answered(fetcher, future))
    play(script)
