"""The real disk: files, residency, atomic replacement, locks."""

import asyncio
import errno
import fcntl
import gc
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scriba.runtime.files.disk import PosixDisk, PosixFile
from scriba.runtime.files.residency import Residency
from scriba.runtime.ports import WOULD_BLOCK
from scriba.runtime.work.offload import ThreadOffload

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux page cache")


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    offload = ThreadOffload(1)
    yield PosixDisk(offload)
    offload.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


PAGE = os.sysconf("SC_PAGE_SIZE")


def chill(file: PosixFile, size: int) -> int | None:
    """Drops the file from the page cache and returns the offset of a page that has left it.

    The kernel may hold on to some pages for a while, so the advice is repeated. None on a file
    system that lives in memory, where nothing ever leaves.
    """
    os.fsync(file.fd)
    for _ in range(100):
        os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for offset in range(size // 2, size, PAGE):
            if not file.resident(offset, PAGE):
                return offset
    return None


def test_what_is_written_is_read_back_and_a_read_past_the_end_is_short(
    disk: PosixDisk, path: str
) -> None:
    file = disk.open(path, create=True)
    assert file.pwrite(memoryview(b"hello big world"), 0) == 15
    assert file.pwrite(b"W", 10) == 1
    buffer = memoryview(bytearray(32))
    assert file.pread_into(buffer, 6) == 9
    assert bytes(buffer[:9]) == b"big World"
    assert file.pread_into(buffer, 15) == 0
    assert file.try_pread_into(buffer, 0) == 15
    assert file.size() == disk.size(path) == 15
    file.truncate(5)
    assert disk.read(path) == b"hello"
    file.close()


def test_a_write_of_which_the_kernel_takes_a_part_is_completed(
    disk: PosixDisk, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:7], offset))
    file = disk.open(path, create=True)
    data = os.urandom(100)
    assert file.pwrite(bytearray(data), 3) == len(data)
    assert disk.read(path) == bytes(3) + data
    file.close()


def test_opening_a_missing_file_needs_create(disk: PosixDisk, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    assert not disk.exists(path)


@linux_only
async def test_a_cold_window_is_neither_resident_nor_readable_until_loaded(
    disk: PosixDisk, path: str
) -> None:
    file = disk.open(path, create=True)
    size = 1 << 20
    file.pwrite(os.urandom(size), 0)
    assert file.resident(0, size)
    buffer = memoryview(bytearray(PAGE))
    if (cold := chill(file, size)) is not None:
        assert not file.resident(0, size)
        # The attempt itself starts read-ahead, and a fast device may even answer in time.
        assert file.try_pread_into(buffer, cold) in (WOULD_BLOCK, PAGE)
    await file.load(0, size + 4096)
    assert file.resident(0, size)
    assert file.resident(size - 10, 4096), "what lies past the end never comes"
    assert file.try_pread_into(buffer, size // 2) == PAGE
    file.close()


@linux_only
async def test_a_kernel_without_cachestat_is_asked_by_reading(disk: PosixDisk, path: str) -> None:
    old_kernel = Residency(cachestat=100_000)
    file = disk.open(path, create=True)
    size = 3 << 20
    file.pwrite(bytes(size), 0)
    assert old_kernel.covers(file.fd, 0, size)
    chill(file, size)
    # Asking starts read-ahead: by the time the answer is yes, everything is there.
    assert old_kernel.covers(file.fd, 0, size) in (False, file.resident(0, size))
    await file.load(0, size)
    assert old_kernel.covers(file.fd, 100, size)
    file.close()


async def test_a_file_closed_during_an_fsync_keeps_its_descriptor_until_the_end(
    disk: PosixDisk, path: str
) -> None:
    file = disk.open(path, create=True)
    file.pwrite(b"x", 0)
    sync = asyncio.ensure_future(file.datasync())
    await asyncio.sleep(0)
    fd = file.fd
    file.close()
    os.fstat(fd)
    sync.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sync
    for _ in range(3):  # the pool has one thread: what is queued behind the fsync ends after it
        await disk.sync_dir(os.path.dirname(path))
    with pytest.raises(OSError, match="Bad file descriptor"):
        await file.datasync()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


async def test_replacements_of_one_path_happen_in_order(disk: PosixDisk, path: str) -> None:
    writes = [asyncio.ensure_future(disk.write_atomic(path, b"%d" % n)) for n in range(20)]
    await asyncio.sleep(0)
    writes[-2].cancel()
    await asyncio.gather(*writes, return_exceptions=True)
    assert disk.read(path) == b"19"
    assert disk.list(os.path.dirname(path)) == ["file"]
    assert not disk._replacing


async def test_a_failed_replacement_is_reported_and_leaves_the_old_file(
    disk: PosixDisk, path: str
) -> None:
    await disk.write_atomic(path, b"old")
    os.mkdir(path + ".tmp")
    with pytest.raises(IsADirectoryError):
        await disk.write_atomic(path, b"new")
    assert disk.read(path) == b"old"


async def test_what_fails_after_its_caller_has_gone_is_not_told_on_stderr(
    disk: PosixDisk, path: str
) -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["message"]))
    os.mkdir(path + ".tmp")
    file = disk.open(os.path.dirname(path) + "/other", create=True)
    for work in (disk.write_atomic(path, b"new"), file._lend(lambda fd: os.fsync(-1))):
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    file.close()
    await disk.sync_dir(os.path.dirname(path))  # the pool has one thread
    await asyncio.sleep(0)
    del work, task
    gc.collect()
    assert told == []


async def test_directories_are_made_listed_renamed_and_removed(
    disk: PosixDisk, tmp_path: Path
) -> None:
    base = str(tmp_path / "a" / "b")
    with pytest.raises(FileNotFoundError):
        disk.mkdir(base)
    disk.mkdir(base, parents=True)
    disk.mkdir(base)
    for name in ("z", "m", "a"):
        disk.open(f"{base}/{name}", create=True).close()
    assert disk.list(base) == ["a", "m", "z"]
    disk.rename(f"{base}/z", f"{base}/a")
    disk.unlink(f"{base}/m")
    assert disk.list(base) == ["a"]
    await disk.sync_dir(base)
    disk.unlink(f"{base}/a")
    disk.rmdir(base)
    assert not disk.is_dir(base)
    assert disk.is_dir(str(tmp_path / "a"))
    total, usable = disk.space(str(tmp_path))
    assert 0 < usable <= total


def test_a_directory_is_locked_against_a_second_node_in_this_process_and_in_another(
    disk: PosixDisk, tmp_path: Path
) -> None:
    lock = disk.lock(str(tmp_path))
    with pytest.raises(BlockingIOError):
        disk.lock(str(tmp_path))
    elsewhere = (
        "import sys; from scriba.runtime.world import RealWorld\n"
        "try: RealWorld().disk.lock(sys.argv[1])\n"
        "except BlockingIOError: sys.exit(7)\n"
    )
    command = [sys.executable, "-c", elsewhere, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == 7
    lock.release()
    lock.release()
    assert subprocess.run(command, check=False).returncode == 0
    disk.lock(str(tmp_path)).release()


@linux_only
def test_a_record_lock_such_as_a_jvm_takes_excludes_us(disk: PosixDisk, tmp_path: Path) -> None:
    fd = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    whole = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 2**63 - 1, 0)
    fcntl.fcntl(fd, fcntl.F_SETLK, whole)
    with pytest.raises(BlockingIOError):
        disk.lock(str(tmp_path))
    os.close(fd)


@linux_only
async def test_room_that_is_allocated_is_the_files_own(disk: PosixDisk, path: str) -> None:
    await disk.allocate(path, 1 << 20)
    assert disk.size(path) == 1 << 20
    assert os.stat(path).st_blocks * 512 >= 1 << 20
    await disk.allocate(path, 1 << 19)
    assert disk.size(path) == 1 << 20, "at least that long"
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.EFBIG))):
        await disk.allocate(path, 1 << 62)
    assert disk.size(path) == 1 << 20, "as before"
