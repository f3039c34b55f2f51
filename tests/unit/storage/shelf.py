"""A log on the real disk, with faults on demand."""

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from scriba.instant import Instant
from scriba.records.batch import Record, decode_records, encode_batch, read_header, walk
from scriba.records.header import BatchHeader
from scriba.runtime.files.disk import PosixDisk, PosixFile
from scriba.runtime.ports import WOULD_BLOCK, Buffer
from scriba.runtime.work.offload import ThreadOffload
from scriba.settings import TopicSettings
from scriba.storage.log import EMPTY, Empty, Log, NotResident, Slice
from scriba.storage.producers.state import Repeat

NOW_MS = 1_700_000_000_000


class BatchPosition(NamedTuple):
    """Where a batch went, as an append tells it."""

    base_offset: int
    last_offset: int
    start_offset: int
    repeat: Repeat | None


class FaultyFile:
    """A file that can be made to fail, and that counts what is done to it."""

    fd = -1  # nobody reads past the counting

    def __init__(self, disk: "FaultyDisk", file: PosixFile) -> None:
        self._disk = disk
        self.uncounted = file
        self.path = file.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.uncounted, name)

    def _note(self, what: str) -> None:
        self._disk.calls[what] += 1
        self._disk.touched.append((what, os.path.basename(self.path)))

    def pread_into(self, view: memoryview, offset: int) -> int:
        self._note("read")
        return self.uncounted.pread_into(view, offset)

    def try_pread_into(self, view: memoryview, offset: int) -> int:
        if self._disk.cold and (self.path, offset) not in self._disk.warm:
            return WOULD_BLOCK
        self._note("read")
        return self.uncounted.try_pread_into(view, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        self._note("write")
        if self._disk.full and self.path.endswith(self._disk.full):
            half = bytes(data)[: len(data) // 2]
            self.uncounted.pwrite(half, offset)
            raise OSError(errno.ENOSPC, "no space left")
        return self.uncounted.pwrite(data, offset)

    def truncate(self, size: int) -> None:
        self._note("truncate")
        if self._disk.read_only:
            raise OSError(errno.EROFS, "read-only")
        self.uncounted.truncate(size)

    async def load(self, offset: int, n: int) -> None:
        self._note("load")
        self._disk.warm.add((self.path, offset))
        await self.uncounted.load(offset, n)

    async def datasync(self) -> None:
        self._note("sync")
        if self._disk.gate is not None:
            await self._disk.gate.wait()
        if self._disk.broken and self.path.endswith(self._disk.broken_in):
            raise OSError(self._disk.broken_by, os.strerror(self._disk.broken_by))
        await self.uncounted.datasync()


class FaultyDisk(PosixDisk):
    def __init__(self, offload: ThreadOffload) -> None:
        super().__init__(offload)
        self.full = ""
        """Writes to files whose name ends so find the device full."""
        self.read_only = False
        self.broken = False
        """Whether syncs fail: of files whose name ends so, and how."""
        self.broken_in = ""
        self.broken_by = errno.EIO
        self.broken_dirs = 0
        """How syncs of directories fail, if they do."""
        self.unopened: dict[str, int] = {}
        """How files cannot be opened whose names end so."""
        self.cold = False
        self.warm: set[tuple[str, int]] = set()
        self.gate: asyncio.Event | None = None
        self.calls: Counter[str] = Counter()
        self.touched: list[tuple[str, str]] = []

    def open(self, path: str, create: bool = False) -> FaultyFile:  # type: ignore[override]
        self.calls["open"] += 1
        for suffix, code in self.unopened.items():
            if path.endswith(suffix):
                raise OSError(code, os.strerror(code), path)
        return FaultyFile(self, super().open(path, create))

    def read(self, path: str) -> bytes:
        self.calls["read"] += 1
        self.touched.append(("read", os.path.basename(path)))
        return super().read(path)

    async def sync_dir(self, path: str) -> None:
        self.calls["sync_dir"] += 1
        self.touched.append(("sync_dir", os.path.basename(path)))
        if self.broken_dirs:
            raise OSError(self.broken_dirs, os.strerror(self.broken_dirs), path)
        await super().sync_dir(path)


class Shelf:
    """Opens logs below one directory and does to them what brokers and consumers do."""

    def __init__(self, root: Path, disk: FaultyDisk, offload: ThreadOffload) -> None:
        self.root = root
        self.disk = disk
        self.offload = offload
        self.now = Instant(1_000_000, NOW_MS)
        self.settings = TopicSettings(segment_bytes=4000, index_interval_bytes=300)

    @property
    def directory(self) -> Path:
        return self.root / "t-0"

    def later(self, ms: int) -> Instant:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)
        return self.now

    def open(self, **more: Any) -> Log:
        settings = more.pop("settings", self.settings)
        return Log.open(
            self.disk,
            str(self.directory),
            "t",
            0,
            more.pop("topic_id", None),
            settings,
            self.now,
            offload=self.offload,
            **more,
        )

    def batch(
        self, count: int = 1, *, size: int = 100, at: int | None = None, **more: Any
    ) -> bytearray:
        stamp = self.now.wall_ms if at is None else at
        return encode_batch([Record(timestamp=stamp, value=b"v" * size)] * count, **more)

    def append_until_refused(self, log: Log) -> None:
        for _ in range(1000):
            self.append(log)

    def append(self, log: Log, count: int = 1, *, epoch: int = 0, **more: Any) -> BatchPosition:
        return self.append_batch(log, self.batch(count, **more), epoch)

    def append_batch(self, log: Log, data: bytearray, epoch: int = 0) -> BatchPosition:
        return BatchPosition(*log.append(memoryview(data), read_header(data), epoch, self.now))

    async def read(
        self, log: Log, offset: int, max_bytes: int = 1 << 20, **more: Any
    ) -> Slice | Empty:
        bound = more.pop("bound", log.end_offset)
        while isinstance(found := log.read(offset, max_bytes, bound, **more), NotResident):
            await found.file.load(found.position, found.size)
        return found

    async def fetch(self, log: Log, offset: int, max_bytes: int = 1 << 20, **more: Any) -> bytes:
        found = await self.read(log, offset, max_bytes, **more)
        if found is EMPTY:
            return b""
        assert isinstance(found, Slice)
        view = memoryview(bytearray(found.size))
        assert found.file.pread_into(view, found.position) == found.size
        return bytes(view)

    async def headers(self, log: Log, offset: int, **more: Any) -> list[BatchHeader]:
        return [header for _, header in walk(await self.fetch(log, offset, **more))]

    async def consume(self, log: Log, max_bytes: int = 500) -> list[Record]:
        """Everything from start to end, fetch by fetch."""
        records: list[Record] = []
        offset = log.start_offset
        while offset < log.end_offset:
            data = await self.fetch(log, offset, max_bytes)
            if not data:
                break
            for position, header in walk(data):
                records += [
                    record for record in decode_records(data[position:]) if record.offset >= offset
                ]
                offset = header.next_offset
        return records

    def after_offload(self, turn: int, then: Callable[[], object]) -> list[int]:
        """Has `then` called when work off the loop is done for the `turn`th time; the turns."""
        run = self.offload.run
        turns: list[int] = []

        async def watched(work: Callable[..., Any], *args: Any, **more: Any) -> Any:
            found = await run(work, *args, **more)
            turns.append(len(turns) + 1)
            if len(turns) == turn:
                then()
            return found

        self.offload.run = watched  # type: ignore[assignment, method-assign]
        return turns

    def files(self, suffix: str = "") -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name.endswith(suffix))
