"""Broken variants of the broker, each caught by some seed: a simulator that finds none proves
nothing."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from scriba.broker.partitions.partition import Partition
from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.records.header import BatchHeader
from scriba.runtime.ports import File
from scriba.runtime.watermark import Watermark
from scriba.storage.log import Appended
from scriba.storage.producers.state import Producers
from scriba.storage.recovery import load as recovery
from scriba.storage.segments.scan import scan
from scriba.testing.sim.plays.single_node import TOPIC, run
from scriba.testing.sim.world.disk import SimDisk, SimFile

SEEDS = range(60)


def caught() -> bool:
    """Whether some seed shows a broken promise; a node or a run that just fails does not count."""
    return any(
        not violation.startswith(("the node failed", "the run broke"))
        for seed in SEEDS
        for violation in run(seed).violations
    )


def test_acknowledging_before_appending_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Partition.append
    promised: dict[Partition, int] = {}

    def promise_first(
        self: Partition, view: memoryview, header: BatchHeader, now: Instant
    ) -> Appended:
        base_offset = max(promised.get(self, 0), self.log.end_offset)
        promised[self] = base_offset + header.count
        batch = memoryview(bytearray(view))

        def append_later() -> None:
            with suppress(KafkaError):
                append(self, batch, header, now)

        asyncio.get_running_loop().call_later(0.02, append_later)
        last_offset = base_offset + header.last_offset_delta
        return base_offset, last_offset, self.log.start_offset, None

    monkeypatch.setattr(Partition, "append", promise_first)
    assert caught()


def test_recovery_that_skips_the_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(
        file: File, position: int, end: int, first_offset: int, check_from: int | None
    ) -> Iterator[tuple[int, BatchHeader]]:
        return scan(file, position, end, first_offset, None)

    monkeypatch.setattr(recovery, "scan", trusting)
    assert caught()


def test_acknowledging_before_the_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    datasync = SimFile.datasync

    async def forgetful(self: SimFile) -> None:
        if f"/{TOPIC}-" not in self.path:
            await datasync(self)

    monkeypatch.setattr(SimFile, "datasync", forgetful)
    assert caught()


def test_taking_repeated_batches_for_new_ones_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "check", lambda self, header: None)
    assert caught()


def test_serving_what_is_not_committed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Partition, committed_only: bool) -> Watermark:
        return Watermark(self.log.end_offset)

    monkeypatch.setattr(Partition, "readable", everything)
    assert caught()


def test_names_that_are_never_synced_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_dir = SimDisk.sync_dir

    async def forgetful(self: SimDisk, path: str) -> None:
        if f"/{TOPIC}-" not in path:
            await sync_dir(self, path)

    monkeypatch.setattr(SimDisk, "sync_dir", forgetful)
    assert caught()
