"""The checker of replicas and quorum finds what it should, and nothing else."""

import pytest

from scriba.testing.history.replication import (
    Batch,
    Leading,
    Log,
    Position,
    Quorum,
    Replication,
)

WHERE = ("t", 0)


def batch(offset: int, epoch: int = 1, crc: int = 0, count: int = 1) -> Batch:
    return Batch(offset, offset + count - 1, epoch, crc)


def leading(**more: object) -> Leading:
    seen = Leading(WHERE, 1, 1, 0, 0, (1, 2, 3), 2)
    return seen._replace(**more)  # type: ignore[arg-type]


LOG = Log(0, [batch(0), batch(1), batch(2, count=5), batch(7)])


def test_a_healthy_partition_is_not_complained_of() -> None:
    book = Replication()
    for high_watermark in (0, 1, 7, 8):
        seen = leading(high_watermark=high_watermark)
        book.leads(seen)
        book.leader_log(seen, LOG)
        book.in_sync(seen, LOG, 2, LOG)
    longer = Log(0, [*LOG.batches, batch(8, epoch=1), batch(9, epoch=3)])
    seen = leading(broker=2, epoch=3, high_watermark=2)
    book.leads(seen)
    book.leader_log(seen, longer)
    book.in_sync(seen, longer, 3, Log(0, [*LOG.batches, batch(8, epoch=2)]))
    assert not book.violations


@pytest.mark.parametrize(
    ("after", "complaint"),
    [
        (leading(broker=2), "both 1 and 2 lead it in epoch 1"),
        (leading(high_watermark=4), "went from 5 back to 4"),
        (leading(high_watermark=6, isr=(1,)), "with in-sync replicas (1,)"),
    ],
)
def test_a_leader_that_breaks_a_rule_is_found(after: Leading, complaint: str) -> None:
    book = Replication()
    book.leads(leading(high_watermark=5, isr=after.isr))
    book.leads(after)
    assert [complaint in text for text in book.violations] == [True]


def test_a_replica_that_joins_without_what_its_leader_began_with_is_found() -> None:
    book = Replication()
    seen = leading(isr=(1, 2), epoch_start=7)
    assert not book.leads(seen), "whoever was in sync when an epoch began may lack some"
    grown = seen._replace(isr=(1, 2, 3), partition_epoch=1)
    assert book.leads(grown) == (3,)
    assert not book.leads(grown)
    book.joined(grown, 3, 7)
    assert not book.violations
    book.joined(grown, 3, 6)
    assert "3 ends at 6 and joined the in-sync replicas" in book.violations[0]


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        (Log(0, LOG.batches[:3]), "ends at 7, committed are all up to 8"),
        (Log(0, [batch(0), batch(1, epoch=2), *LOG.batches[2:]]), "committed was offsets 1-1"),
        (Log(0, [batch(0), batch(1, crc=9), *LOG.batches[2:]]), "committed was offsets 1-1"),
        (Log(0, [*LOG.batches[:2], batch(2), batch(3, count=5)]), "committed was offsets 2-6"),
    ],
)
def test_a_later_leader_without_something_committed_is_found(log: Log, complaint: str) -> None:
    for flagged in (False, True):
        book = Replication()
        book.leader_log(leading(high_watermark=8), LOG)
        if flagged:
            book.flagged(WHERE)
        book.leader_log(leading(broker=2, epoch=2, high_watermark=0), log)
        assert [complaint in text for text in book.violations] == [True] * (not flagged)


def test_a_leader_that_does_not_know_of_its_successor_is_not_complained_of() -> None:
    book = Replication()
    later = leading(broker=2, epoch=2, high_watermark=8)
    book.leads(later)
    book.leader_log(later, LOG)
    book.leads(leading(high_watermark=2))
    book.leader_log(leading(high_watermark=2), Log(0, LOG.batches[:2]))
    assert not book.violations


def test_an_in_sync_replica_that_differs_is_found_and_one_compacted_otherwise_is_not() -> None:
    other = Log(0, [batch(0), batch(1, crc=9), *LOG.batches[2:]])
    for log, found in (
        (LOG, 0),
        (other, 1),
        (Log(0, LOG.batches[:2]), 1),
        (other._replace(compacted=True), 0),
        (Log(2, LOG.batches[2:]), 0),
    ):
        book = Replication()
        book.in_sync(leading(high_watermark=3), LOG, 2, log)
        assert len(book.violations) == found


def test_a_healthy_quorum_is_not_complained_of() -> None:
    book = Quorum()
    book.at(Position(1, 1, 1, 5, leads=True))
    book.at(Position(2, 1, 1, 3, leads=False))
    book.at(Position(2, 2, 2, 0, leads=True))
    logs = {1: LOG, 2: Log(0, [*LOG.batches[:3], batch(7, epoch=2)]), 3: Log(2, LOG.batches[2:])}
    book.logs(logs, {1: 2, 2: 7, 3: 7})
    book.logs({1: logs[2], 2: logs[2]}, {1: 8})
    book.snapshot(1, 8, 2)
    book.snapshot(1, 7, 1)
    book.finish()
    assert not book.violations


def test_a_quorum_that_breaks_a_rule_is_found() -> None:
    for seen, complaint in (
        (Position(2, 1, 1, 5, leads=True), "both 1 and 2"),
        (Position(1, 1, 0, 5, leads=False), "from epoch 1 back to 0"),
        (Position(1, 1, 1, 4, leads=True), "from 5 back to 4"),
        (Position(1, 1, 1, 7, leads=True, epoch_start=7), "begins at 7"),
    ):
        book = Quorum()
        book.at(Position(1, 1, 1, 5, leads=True))
        book.at(seen)
        assert [complaint in text for text in book.violations] == [True]
    book = Quorum()
    book.logs({1: LOG, 2: Log(0, [batch(0), batch(1, crc=9), batch(2, count=5)])}, {})
    assert "both have offset 2 of epoch 1" in book.violations[0]
    book = Quorum()
    book.logs({1: LOG}, {1: 8})
    book.logs({1: Log(0, [*LOG.batches[:3], batch(7, epoch=2)])}, {1: 8})
    assert "has committed offsets 7-7 of epoch 2" in book.violations[0]
    for snapshot in ((9, 2), (7, 2)):
        book = Quorum()
        book.logs({1: LOG}, {1: 8})
        book.snapshot(1, *snapshot)
        assert not book.violations, "more may be committed than was seen"
        book.finish()
        assert f"a snapshot up to offset {snapshot[0]}" in book.violations[-1]


def test_a_snapshot_of_what_no_node_knows_to_be_committed_is_found_at_once() -> None:
    book = Quorum()
    book.at(Position(1, 1, 1, 5, leads=True))
    book.at(Position(2, 1, 1, 7, leads=False))
    book.at(Position(2, 2, 1, 0, leads=False))
    book.snapshot_now(1, 7)
    assert not book.violations
    book.snapshot_now(1, 8)
    assert "the largest high watermark is 7" in book.violations[0]
