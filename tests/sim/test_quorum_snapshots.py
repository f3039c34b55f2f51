"""A controller that lags behind begins with its leader's snapshot, whatever happens meanwhile."""

import asyncio
from typing import Any

import pytest

from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.batches import BatchBuilder
from scriba.broker.metadata.quorum.transport import WireTransport
from scriba.controller import levels
from scriba.controller.machine import idle_record
from scriba.raft.messages import Position
from tests.sim.quorum_nodes import SMALL, SimQuorum, play, shortened, write, written

QUIET = {
    **SMALL,
    "metadata_log_max_record_bytes_between_snapshots": "4000",
    "metadata_max_retention_bytes": "16000",
    "metadata_max_idle_interval_ms": "0",
}


class SlowReading:
    """Reading a snapshot takes so many seconds, and others have their turn all the time."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, seconds: float, since_epoch: int = 0
    ) -> None:
        self.seconds = seconds
        self.since_epoch = since_epoch
        self.under_way: list[Position] = []
        self.begun: list[Position] = []
        self.most = 0
        self.downloads = 0
        self._read, self._slice = snapshots.read, WireTransport.snapshot_slice
        monkeypatch.setattr(snapshots, "read", self.read)
        owner = self

        async def snapshot_slice(self: WireTransport, *asked: Any) -> Any:
            owner.downloads += asked[-1] == 0
            return await owner._slice(self, *asked)

        monkeypatch.setattr(WireTransport, "snapshot_slice", snapshot_slice)

    async def read(self, disk: Any, directory: str, position: Position, pace: Any) -> Any:
        if position.epoch < self.since_epoch:
            return await self._read(disk, directory, position, pace)
        self.begun.append(position)
        self.under_way.append(position)
        self.most = max(self.most, len(self.under_way))
        try:
            await asyncio.sleep(self.seconds)
            return await self._read(disk, directory, position, pace)
        finally:
            self.under_way.remove(position)


def test_snapshot_that_takes_long_to_read_is_fetched_and_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Longer than a follower waits for its leader: it is in contact meanwhile."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        late = next(i for i in quorum.ids if i != leader)
        quorum.kill(late)
        await shortened(quorum, leader)
        epoch = quorum.node(leader).metadata.quorum.epoch
        reading = SlowReading(monkeypatch, seconds=8)
        await quorum.start(late)
        await quorum.same_image(30)
        assert (len(reading.begun), reading.downloads) == (1, 1)
        assert quorum.node(late).metadata.quorum.epoch == epoch

    play(story, 1, **QUIET)


def test_follower_that_loses_its_leader_while_it_reads_a_snapshot_reads_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        late = next(i for i in quorum.ids if i != leader)
        quorum.kill(late)
        await shortened(quorum, leader)
        reading = SlowReading(monkeypatch, seconds=8)
        starting = asyncio.ensure_future(quorum.start(late))
        await quorum.until(lambda: reading.under_way or None, 30, "no snapshot was fetched")
        quorum.kill(leader)
        heir = await quorum.leader(among=lambda i: i not in (leader, late))
        await write(quorum.node(heir), 9999)
        await starting
        await quorum.same_image(60)
        assert reading.most == 1
        assert reading.downloads == len(set(reading.begun)), "what is here is not fetched again"

    play(story, 1, **QUIET)


def test_controller_that_ends_before_it_cuts_its_log_begins_with_the_fetched_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log holds, across the snapshot's end, what it wrote as a leader that was cut off."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        old = await quorum.leader()
        await quorum.same_image(10)
        others = [i for i in quorum.ids if i != old]
        for i in others:
            quorum.sim.network.cut(f"n{old}", f"n{i}")
            quorum.sim.network.cut(f"n{i}", f"n{old}")
        cut_off = quorum.node(old).metadata.quorum
        builder, tail = BatchBuilder(), [idle_record()] * 1500
        for record in tail:
            builder.add(levels.encode(record, levels.NEWEST))
        cut_off.append(builder, tail, cut_off.epoch)
        await asyncio.sleep(0.3)
        end = cut_off.log.end_offset
        quorum.kill(old)
        leader = await quorum.leader(among=lambda i: i != old)
        start = await shortened(quorum, leader)
        while start.epoch == cut_off.epoch:
            await write(quorum.node(leader), start.offset)
            await asyncio.sleep(0.2)
            start = quorum.node(leader).metadata.quorum.raft.log.start
        assert start.offset < end
        for i in others:
            quorum.sim.network.heal(f"n{old}", f"n{i}")
            quorum.sim.network.heal(f"n{i}", f"n{old}")
        reading = SlowReading(monkeypatch, seconds=60, since_epoch=cut_off.epoch + 1)
        starting = asyncio.ensure_future(quorum.start(old))
        await quorum.until(lambda: reading.under_way or None, 30, "no snapshot was fetched")
        quorum.kill(old)
        starting.cancel()
        reading.seconds = 0
        await quorum.start(old)
        await quorum.same_image(30)
        assert written(quorum.node(old)) == written(quorum.node(leader))

    play(story, 1, **QUIET)
