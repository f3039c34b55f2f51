"""Every batch counts as a large one: memory is found before its append, while all else goes on."""

from collections import Counter

import pytest

from scriba.records.validate import Heavy, Prepared, TopicRules, prepare
from scriba.testing.sim.plays import cluster, coordinated, single_node
from scriba.testing.sim.run import describe
from scriba.testing.sim.world.disk import SimFile

populated: Counter[str] = Counter()


def off_the_loop(
    view: memoryview, rules: TopicRules, now_ms: int, on_loop: bool = False
) -> Prepared:
    if on_loop:
        raise Heavy
    return prepare(view, rules, now_ms)


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scriba.broker.handlers.records.produce.is_light", lambda _: False)
    monkeypatch.setattr("scriba.broker.handlers.records.produce.prepare", off_the_loop)
    monkeypatch.setattr("scriba.broker.fastpath.produce.MOST_BYTES", 0)
    monkeypatch.setattr("scriba.storage.log.LARGE_APPEND", 1)
    monkeypatch.setattr("scriba.broker.partitions.replication.fetchers.LARGE_APPEND", 1)
    populated.clear()
    real = SimFile.populate

    async def counted(file: SimFile, offset: int, n: int) -> None:
        populated["files"] += 1
        await real(file, offset, n)

    monkeypatch.setattr(SimFile, "populate", counted)


@pytest.mark.parametrize("seed", range(10))
def test_a_node_keeps_its_promises(seed: int) -> None:
    report = single_node.run(seed)
    assert not report.violations, describe(report)
    assert report.acked > 0
    assert populated["files"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_groups_and_transactions_keep_their_promises(seed: int) -> None:
    report = coordinated.run(seed)
    assert not report.violations, describe(report)
    assert populated["files"] > 0


@pytest.mark.parametrize("seed", range(5))
def test_replicas_are_the_same_and_lose_nothing(seed: int) -> None:
    report = cluster.run(seed, plain=True)
    assert not report.violations, describe(report)
    assert report.counts["acknowledged"] > 0
    assert populated["files"] > 0
