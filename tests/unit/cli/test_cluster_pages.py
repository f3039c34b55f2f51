"""What `scriba cluster quorum` and `scriba topic describe --offline` make of what brokers say."""

import argparse
import asyncio
from typing import Any

import pytest

from scriba.cli.cluster import quorum
from scriba.cli.problems import CommandError
from scriba.cli.topics.unwell import document, is_offline, row
from scriba.client import BrokerError, TimedOut
from scriba.client.admin.model import PartitionDescription, QuorumDescription, QuorumReplica
from scriba.client.diagnosis.explain import is_under_replicated
from scriba.errors import ErrorCode

NOW_MS = 1_700_000_000_000


def replica(node: int, end: int, fetched_ms: int = -1) -> QuorumReplica:
    return QuorumReplica(node, f"dir-{node}", end, fetched_ms, fetched_ms)


def test_a_voter_is_shown_with_its_lag_and_when_it_was_heard_of() -> None:
    found = quorum.document(
        QuorumDescription(
            2,
            7,
            90,
            (replica(1, 80, NOW_MS - 1_500), replica(2, 100, NOW_MS)),
            (replica(4, 100, NOW_MS - 100),),
        )
    )
    assert [(v["id"], v["lag"]) for v in found["voters"]] == [(1, 20), (2, 0)]
    title, _, *lines = quorum.page(found, NOW_MS)
    assert title == "node 2 leads in epoch 7, high watermark 90"
    assert [line.split() for line in lines[1:]] == [
        ["1", "voter", "80", "20", "1.5", "s", "ago", "1.5", "s", "ago", "dir-1"],
        ["2", "leader", "100", "0", "-", "-", "dir-2"],
        ["4", "observer", "100", "0", "0.1", "s", "ago", "0.1", "s", "ago", "dir-4"],
    ]


def test_a_quorum_without_a_leader_is_led_by_nobody() -> None:
    found = quorum.document(QuorumDescription(-1, 7, 90, (replica(1, 80), replica(2, 100)), ()))
    assert found["leader"] is None
    assert [(v["id"], v["lag"], v["last_fetch_ms"]) for v in found["voters"]] == [
        (1, 20, None),
        (2, 0, None),
    ]
    assert quorum.page(found, NOW_MS)[0].startswith("nobody leads in epoch 7")


def test_a_quorum_that_nobody_leads_is_told_with_whom_to_start() -> None:
    class Leaderless:
        async def describe_quorum(self, *, broker: int | None, timeout_ms: int) -> None:
            assert timeout_ms == 3000, "no longer than needed"
            text = "no active controller has answered within 2000 ms (it is gone); start 1, 2"
            cause = BrokerError(ErrorCode.REQUEST_TIMED_OUT, text, about="the quorum")
            raise TimedOut("the quorum did not come within 3000 ms", cause=cause)

    options: Any = argparse.Namespace(broker=None, timeout=10.0)
    admin: Any = Leaderless()
    with pytest.raises(CommandError) as told:
        asyncio.run(quorum.described(admin, options))
    assert told.value.cause == "no active controller has answered within 2000 ms (it is gone)"
    assert told.value.fix == "start 1, 2"


def partition(
    leader: int | None, isr: tuple[int, ...], elr: tuple[int, ...] = (), last: tuple[int, ...] = ()
) -> PartitionDescription:
    return PartitionDescription(0, leader, 3, (1, 2, 3), isr, (), elr, last)


def test_a_partition_is_unwell_without_a_replica_and_offline_without_a_leader() -> None:
    well, short, gone = partition(1, (1, 2, 3)), partition(1, (1, 3)), partition(None, ())
    assert [is_under_replicated(p) for p in (well, short, gone)] == [False, True, True]
    assert [is_offline(p) for p in (well, short, gone)] == [False, False, True]
    assert document("t", short)["missing"] == [2]
    assert row(document("t", short)) == ("t", 0, 1, "1,2,3", "1,3", "2", None)


def test_an_offline_partition_waits_for_who_may_lead_it() -> None:
    waits = [
        document("t", each)["waits_for"]
        for each in (
            partition(1, (1,)),
            partition(None, (2,)),
            partition(None, (), (3, 1)),
            partition(None, (), (), (2,)),
            partition(None, ()),
        )
    ]
    assert waits == [[], [2], [3, 1], [2], []]
