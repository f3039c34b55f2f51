"""What the simulated disk keeps and loses."""

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scriba.runtime.ports import WOULD_BLOCK
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.volume import SECTOR, DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

SEEDS = range(200)


def content(disk: SimDisk, path: str) -> bytes | None:
    return disk.read(path) if disk.exists(path) else None


def after_power_cut(
    seed: int,
    before: Callable[[SimDisk], Coroutine[Any, Any, None]],
    faults: DiskFaults | None = None,
) -> SimDisk:
    """The disk that a process finds when the power went out right after `before`."""
    sim = SimWorld(seed, disk_faults=faults)
    host = sim.host("h")

    async def process(world: ProcessWorld) -> None:
        await before(world.sim_disk)

    async def main() -> None:
        await host.start(process).task
        host.power_cut()

    sim.run(main())
    return SimDisk(host.volume)


def outcomes(
    path: str, before: Callable[[SimDisk], Coroutine[Any, Any, None]]
) -> Counter[bytes | None]:
    return Counter(content(after_power_cut(seed, before), path) for seed in SEEDS)


def test_what_was_synced_with_its_name_is_never_lost() -> None:
    async def before(disk: SimDisk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.mkdir("/d/e")
        disk.mkdir("/d/e", parents=True)
        await disk.sync_dir("/")
        await disk.sync_dir("/d")
        file = disk.open("/d/e/f", create=True)
        file.pwrite(b"onetwo", 0)
        await file.datasync()
        await disk.sync_dir("/d/e")

    assert outcomes("/d/e/f", before) == {b"onetwo": len(SEEDS)}


def test_a_mark_ends_with_the_power_and_not_with_its_process() -> None:
    async def before(disk: SimDisk) -> None:
        disk.mark("/m", b"one")
        await disk.sync_dir("/")
        assert SimDisk(disk.volume).marked("/m") == b"one"
        disk.mark("/m", b"two")
        disk.die()
        assert SimDisk(disk.volume).marked("/m") == b"two"

    for seed in SEEDS:
        assert after_power_cut(seed, before).marked("/m") is None


def test_a_synced_file_without_a_synced_name_may_be_gone_but_is_never_half() -> None:
    async def before(disk: SimDisk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"data", 0)
        await file.datasync()

    found = outcomes("/f", before)
    assert set(found) == {b"data", None}


def test_files_in_a_directory_whose_name_is_lost_are_lost() -> None:
    async def before(disk: SimDisk) -> None:
        disk.mkdir("/d")
        file = disk.open("/d/f", create=True)
        file.pwrite(b"data", 0)
        await file.datasync()
        await disk.sync_dir("/d")

    assert set(outcomes("/d/f", before)) == {b"data", None}


def test_an_unsynced_write_is_kept_lost_or_torn_and_what_was_synced_stays() -> None:
    fresh = b"n" * (3 * SECTOR)

    async def before(disk: SimDisk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"o" * SECTOR, 0)
        await file.datasync()
        await disk.sync_dir("/")
        file.pwrite(fresh, SECTOR)
        buffer = bytearray(10)
        assert file.pread_into(memoryview(buffer), SECTOR) == 10
        assert buffer == b"n" * 10, "visible at once"

    found = outcomes("/f", before)
    assert all(each is not None and each[:SECTOR] == b"o" * SECTOR for each in found)
    assert found[b"o" * SECTOR + fresh] > 10, "kept"
    assert found[b"o" * SECTOR] > 10, "lost"
    torn = [each for each in found if each is not None and SECTOR < len(each) < 4 * SECTOR]
    holes = [each for each in found if each is not None and b"\0" in each]
    assert len(torn) > 10
    assert len(holes) > 3


def test_a_torn_overwrite_shows_old_bytes_where_the_new_did_not_arrive() -> None:
    async def before(disk: SimDisk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"o" * 4 * SECTOR, 0)
        await file.datasync()
        await disk.sync_dir("/")
        file.pwrite(b"n" * 4 * SECTOR, 0)

    found = outcomes("/f", before)
    assert all(each is not None and not each.strip(b"on") for each in found)
    assert any(each is not None and b"on" in each for each in found)


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    async def before(disk: SimDisk) -> None:
        file = disk.open("/f", create=True)
        await disk.sync_dir("/")
        file.pwrite(b"early", 0)
        sync = asyncio.ensure_future(file.datasync())
        await asyncio.sleep(0)
        file.pwrite(b"late", 5)
        await sync

    found = outcomes("/f", before)
    assert all(each is not None and each.startswith(b"early") for each in found)
    assert {b"early", b"earlylate"} < set(found)


def test_renames_survive_as_a_prefix_and_never_in_between() -> None:
    async def before(disk: SimDisk) -> None:
        for name in ("a", "b"):
            file = disk.open(f"/{name}", create=True)
            file.pwrite(name.encode(), 0)
            await file.datasync()
        await disk.sync_dir("/")
        disk.rename("/a", "/b")
        disk.rename("/b", "/c")
        disk.unlink("/c")

    seen = set()
    for seed in SEEDS:
        disk = after_power_cut(seed, before)
        seen.add(tuple((name, disk.read(f"/{name}")) for name in disk.list("/")))
    assert seen == {
        (("a", b"a"), ("b", b"b")),
        (("b", b"a"),),
        (("c", b"a"),),
        (),
    }


def test_an_atomic_write_shows_the_old_or_the_new_file_at_every_moment() -> None:
    def interrupted(seed: int) -> bytes | None:
        sim = SimWorld(seed)
        host = sim.host("h")
        old_is_there = asyncio.Event()

        async def process(world: ProcessWorld) -> None:
            await world.disk.write_atomic("/f", b"old")
            old_is_there.set()
            await world.disk.write_atomic("/f", b"new")

        async def main() -> None:
            host.start(process)
            await old_is_there.wait()
            await asyncio.sleep(sim.rng.between(0, 0.01))
            host.power_cut()

        sim.run(main())
        return content(SimDisk(host.volume), "/f")

    assert {interrupted(seed) for seed in SEEDS} == {b"old", b"new"}


def test_a_failed_sync_is_not_healed_by_a_second_one() -> None:
    async def before(disk: SimDisk) -> None:
        faults = disk.volume.faults
        file = disk.open("/f", create=True)
        await disk.sync_dir("/")
        file.pwrite(b"data", 0)
        faults.fail_sync = 1.0
        with pytest.raises(OSError, match="Input/output error"):
            await file.datasync()
        faults.fail_sync = 0.0
        await file.datasync()
        assert disk.read("/f") == b"data", "still in the cache"

    found = {content(after_power_cut(seed, before), "/f") for seed in SEEDS}
    assert b"" in found
    assert b"data" in found


def test_a_full_disk_takes_what_fits_and_says_so() -> None:
    async def before(disk: SimDisk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(bytes(900), 0)
        with pytest.raises(OSError, match="No space left") as caught:
            file.pwrite(bytes(200), 900)
        assert caught.value.errno == errno.ENOSPC
        assert file.size() == 1000
        file.truncate(900)
        assert disk.space("/") == (1000, 100)
        disk.unlink("/f")
        assert disk.space("/") == (1000, 1000)

    after_power_cut(1, before, DiskFaults(capacity=1000))


def test_cold_files_would_block_until_loaded() -> None:
    async def before(disk: SimDisk) -> None:
        await disk.write_atomic("/f", b"data")

    disk = after_power_cut(1, before)
    file = disk.open("/f")
    view = memoryview(bytearray(10))
    assert file.try_pread_into(view, 0) == WOULD_BLOCK
    assert not file.resident(0, 4)
    sim = SimWorld(2)
    sim.run(file.load(0, 4))
    assert file.resident(0, 4)
    assert file.try_pread_into(view, 1) == 3


def test_a_killed_process_keeps_its_page_cache_but_not_its_lock() -> None:
    sim = SimWorld(1)
    host = sim.host("h")

    async def process(world: ProcessWorld) -> None:
        world.disk.lock("/")
        file = world.disk.open("/f", create=True)
        file.pwrite(b"unsynced", 0)
        with pytest.raises(BlockingIOError):
            world.disk.lock("/")
        await asyncio.sleep(1000)

    async def main() -> None:
        running = host.start(process)
        await asyncio.sleep(1)
        file = running.world.disk.open("/f")
        running.kill()
        with pytest.raises(OSError, match="Input/output error"):
            file.pwrite(b"zombie", 0)
        disk = SimDisk(host.volume)
        assert disk.read("/f") == b"unsynced"
        disk.lock("/").release()

    sim.run(main())


def test_a_flipped_bit_is_in_cache_and_on_device() -> None:
    async def before(disk: SimDisk) -> None:
        await disk.write_atomic("/f", bytes(100))

    disk = after_power_cut(3, before)
    offset = disk.volume.flip_bit("/f", 10, 20)
    assert 10 <= offset < 20
    assert disk.read("/f").count(0) == 99


def test_what_a_power_cut_left_by_luck_was_not_asked_for() -> None:
    async def before(disk: SimDisk) -> None:
        file = disk.open("/f", create=True)
        file.pwrite(b"asked", 0)
        await file.datasync()
        await disk.sync_dir("/")
        file.pwrite(b" luck", 5)
        disk.open("/g", create=True)

    for seed in SEEDS:
        volume = after_power_cut(seed, before).volume
        assert volume.synced() == {"/f": b"asked"}
        assert volume.files()["/f"].startswith(b"asked")
