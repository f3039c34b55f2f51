"""A controller that lags behind begins with its leader's snapshot, whatever happens meanwhile."""

import asyncio
import errno
import os
from typing import Any

import pytest

from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.batches import BatchBuilder
from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.broker.metadata.quorum.transport import WireTransport
from scriba.controller import levels
from scriba.controller.machine import idle_record
from scriba.raft.machine import Raft
from scriba.raft.messages import Position
from scriba.records.batch import HEADER_SIZE, walk
from scriba.storage.truncation import Truncation
from scriba.testing.sim.world.disk import SimDisk, SimFile, Volume
from scriba.testing.sim.world.volume import Dir, Inode
from tests.sim.quorum.nodes import SMALL, SimQuorum, play, shortened, write, written

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

    async def read(self, disk: Any, directory: str, position: Position, *rest: Any) -> Any:
        if position.epoch < self.since_epoch:
            return await self._read(disk, directory, position, *rest)
        self.begun.append(position)
        self.under_way.append(position)
        self.most = max(self.most, len(self.under_way))
        try:
            await asyncio.sleep(self.seconds)
            return await self._read(disk, directory, position, *rest)
        finally:
            self.under_way.remove(position)


METADATA = "/data/__cluster_metadata-0"


_rename = SimDisk.rename


def without_room(disk: SimDisk, old: str, new: str) -> None:
    """For another name of what was fetched."""
    if ".fetched" in old + new:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), old)
    _rename(disk, old, new)


def _end(quorum: SimQuorum, node_id: int) -> int:
    node = quorum.alive.get(node_id)
    return node.metadata.quorum.log.end_offset if node else 0


async def left_behind(quorum: SimQuorum) -> tuple[int, int]:
    """The active controller, and one that is stopped and lacks what the log no longer has."""
    await quorum.start()
    leader = await quorum.leader()
    await write(quorum.node(leader), 1)
    await quorum.same_image()
    late = next(i for i in quorum.ids if i != leader)
    quorum.kill(late)
    await shortened(quorum, leader)
    return leader, late


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


@pytest.mark.parametrize("earlier_release", [False, True])
def test_controller_that_ends_before_it_cuts_its_log_begins_with_the_fetched_snapshot(
    monkeypatch: pytest.MonkeyPatch, earlier_release: bool
) -> None:
    """Its log holds, across the snapshot's end, what it wrote as a leader that was cut off.

    Earlier releases gave what they fetched the name of any other snapshot at once.
    """

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
        if earlier_release:
            directory = quorum.hosts[old].volume.find(METADATA)
            assert isinstance(directory, Dir)
            name = next(name for name in directory.entries if name.endswith(".fetched"))
            fetched = directory.entries[name]
            directory.change(0, {name: None, name.removesuffix(".fetched"): fetched})
        with monkeypatch.context() as patch:
            patch.setattr(SimDisk, "rename", without_room)
            with pytest.raises(AssertionError, match=r"StartError\(.no room on the device: /data"):
                await quorum.start(old)
        await quorum.start(old)
        await quorum.same_image(30)
        assert written(quorum.node(old)) == written(quorum.node(leader))

    play(story, 1, **QUIET)


@pytest.mark.parametrize("empty", [False, True])
def test_controller_that_ends_while_it_reads_what_its_log_does_not_reach_starts_again(
    monkeypatch: pytest.MonkeyPatch, empty: bool
) -> None:
    """Nothing is damaged: its log was never as long as the snapshot that it has fetched."""

    async def story(quorum: SimQuorum) -> None:
        leader, late = await left_behind(quorum)
        if empty:
            quorum.replace_disk(late)
        reading = SlowReading(monkeypatch, seconds=60)
        starting = asyncio.ensure_future(quorum.start(late))
        await quorum.until(lambda: reading.under_way or None, 30, "no snapshot was fetched")
        quorum.kill(late)
        starting.cancel()
        reading.seconds = 0
        await quorum.start(late)
        await quorum.same_image(30)
        assert written(quorum.node(late)) == written(quorum.node(leader))
        assert reading.downloads == 1, "what is here is not fetched again"

    play(story, 1, **QUIET)


def test_fetched_snapshot_hides_no_damage_below_one_of_the_own_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        late = next(i for i in quorum.ids if i != leader)
        volume = quorum.hosts[late].volume
        while not any(path.endswith(".checkpoint") for path in volume.files()):
            await write(quorum.node(leader), 1)
            await asyncio.sleep(0.2)
        quorum.kill(late)
        await shortened(quorum, leader)
        reading = SlowReading(monkeypatch, seconds=60)
        starting = asyncio.ensure_future(quorum.start(late))
        await quorum.until(lambda: reading.under_way or None, 30, "no snapshot was fetched")
        quorum.kill(late)
        starting.cancel()
        reading.seconds = 0
        log = volume.find(f"{METADATA}/{0:020d}.log")
        assert isinstance(log, Inode)
        del log.content[len(log.content) // 2 :]
        with pytest.raises(AssertionError, match="the metadata of the cluster is damaged"):
            await quorum.start(late)

    play(story, 1, **QUIET)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("empty", [False, True])
def test_controller_whose_power_fails_while_it_cuts_its_log_starts_again(
    monkeypatch: pytest.MonkeyPatch, empty: bool, seed: int
) -> None:
    async def story(quorum: SimQuorum) -> None:
        leader, late = await left_behind(quorum)
        if empty:
            quorum.replace_disk(late)
        loaded = Raft.snapshot_loaded
        cuts: list[int] = []

        def snapshot_loaded(self: Raft, *given: Any) -> None:
            loaded(self, *given)
            if not cuts:
                cuts.append(self.own.id)
                asyncio.get_running_loop().call_soon(quorum.hosts[late].power_cut)

        monkeypatch.setattr(Raft, "snapshot_loaded", snapshot_loaded)
        starting = asyncio.ensure_future(quorum.start(late))
        await quorum.until(lambda: cuts or None, 30, "no snapshot was fetched")
        await asyncio.sleep(1)
        quorum.nodes[late].node = None
        starting.cancel()
        quorum.sim.network.up(f"n{late}")
        await quorum.start(late)
        await quorum.same_image(30)
        assert cuts == [late]
        assert written(quorum.node(late)) == written(quorum.node(leader))

    play(story, seed, **QUIET)


@pytest.mark.parametrize("seed", range(1, 5))
def test_controller_whose_power_fails_at_the_start_that_cuts_its_log_starts_again(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    async def story(quorum: SimQuorum) -> None:
        leader, late = await left_behind(quorum)
        reading = SlowReading(monkeypatch, seconds=60)
        starting = asyncio.ensure_future(quorum.start(late))
        await quorum.until(lambda: reading.under_way or None, 30, "no snapshot was fetched")
        quorum.kill(late)
        starting.cancel()
        reading.seconds = 0
        truncate_fully = Truncation.truncate_fully
        cuts: list[int] = []

        def cut(self: Truncation, *given: Any) -> None:
            truncate_fully(self, *given)
            if not cuts:
                cuts.append(late)
                asyncio.get_running_loop().call_soon(quorum.hosts[late].power_cut)

        monkeypatch.setattr(Truncation, "truncate_fully", cut)
        starting = asyncio.ensure_future(quorum.start(late))
        await quorum.until(lambda: cuts or None, 30, "the log was not cut")
        await asyncio.sleep(1)
        starting.cancel()
        quorum.nodes[late].node = None
        quorum.sim.network.up(f"n{late}")
        await quorum.start(late)
        await quorum.same_image(30)
        assert written(quorum.node(late)) == written(quorum.node(leader))

    play(story, seed, **QUIET)


def test_records_that_lead_past_a_fetched_snapshot_are_believed_by_their_checksums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next leader still had them: of what the first one's snapshot stands for, this node has
    flushed nothing by fetching it."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await write(quorum.node(leader), 1)
        await quorum.same_image()
        heir, late = (i for i in quorum.ids if i != leader)
        for node_id in (heir, late):
            quorum.kill(node_id)
            quorum.give(node_id, metadata_max_retention_bytes="1000000")
        await quorum.start(heir)
        first = (await shortened(quorum, await quorum.leader())).offset
        reading = SlowReading(monkeypatch, seconds=60)
        starting = asyncio.ensure_future(quorum.start(late))
        await quorum.until(lambda: reading.under_way or None, 30, "no snapshot was fetched")
        quorum.kill(leader)
        await quorum.until(lambda: _end(quorum, late) > first or None, 30, "nothing was fetched")
        quorum.kill(late)
        starting.cancel()
        reading.seconds = 0
        path = f"{METADATA}/{0:020d}.log"
        volumes = [quorum.hosts[i].volume for i in (late, heir)]
        ours, theirs = (volume.files()[path] for volume in volumes)
        assert theirs.startswith(ours), "the records up to the snapshot are the next leader's"
        at = next(at for at, header in walk(memoryview(ours)) if header.base_offset > first // 2)
        volumes[0].flip_bit(path, at + HEADER_SIZE, at + HEADER_SIZE + 1)
        await quorum.start(late)
        await quorum.same_image(30)
        assert quorum.node(late).metadata.quorum.log.start_offset == first, "it began anew"
        assert path not in volumes[0].files(), "what fails its checksum is not believed"

    play(story, 1, **QUIET)


class Refusing:
    """The disk of a node has no file handle left for one kind of call, a few times, once the node
    wants a snapshot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, volume: Volume, call: str) -> None:
        self.left = 3
        self._wanted = False
        want = MetadataQuorum._want_snapshot
        list_, open_ = SimDisk.list, SimDisk.open

        def want_snapshot(quorum: MetadataQuorum, position: Position) -> None:
            self._wanted = True
            want(quorum, position)

        def refuse(disk: SimDisk, path: str, kind: str) -> None:
            if self._wanted and self.left and kind == call and disk.volume is volume:
                self.left -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        def list_names(disk: SimDisk, path: str) -> list[str]:
            refuse(disk, path, "list")
            return list_(disk, path)

        def open_file(disk: SimDisk, path: str, create: bool = False) -> SimFile:
            if ".checkpoint" in path:
                refuse(disk, path, "write" if create else "read")
            elif create and path.endswith(".index"):
                refuse(disk, path, "cut")
            return open_(disk, path, create)

        monkeypatch.setattr(MetadataQuorum, "_want_snapshot", want_snapshot)
        monkeypatch.setattr(SimDisk, "list", list_names)
        monkeypatch.setattr(SimDisk, "open", open_file)


@pytest.mark.parametrize("call", ["list", "write", "read", "cut"])
def test_want_of_file_handles_delays_a_snapshot_of_the_leader(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async def story(quorum: SimQuorum) -> None:
        leader, late = await left_behind(quorum)
        refusing = Refusing(monkeypatch, quorum.hosts[late].volume, call)
        await quorum.start(late)
        await quorum.same_image(60)
        assert not refusing.left
        assert written(quorum.node(late)) == written(quorum.node(leader))

    play(story, 1, **QUIET)
