"""The real world: the machine this process runs on."""

from collections.abc import Callable

from scriba.prometheus import Durations
from scriba.runtime.clock import SystemClock
from scriba.runtime.files.disk import PosixDisk
from scriba.runtime.files.unsynced import UnsyncedDisk
from scriba.runtime.loop.lag import LagMonitor
from scriba.runtime.memory import available_bytes
from scriba.runtime.net import SocketNet
from scriba.runtime.ports import Clock, Disk, Net, Offload, Rng, Workers
from scriba.runtime.rng import SystemRng
from scriba.runtime.work.offload import DEFAULT_THREADS, ThreadOffload
from scriba.runtime.work.workers import ChildWorkers


class RealWorld:
    """Everything a node may touch. Entered, it also watches the running loop's lag."""

    def __init__(self, threads: int = DEFAULT_THREADS, *, synced: bool = True) -> None:
        """Where not `synced`, a power cut may take what was written; a killed process does not."""
        self._threads = ThreadOffload(threads)
        self.clock: Clock = SystemClock()
        self.rng: Rng = SystemRng()
        self.offload: Offload = self._threads
        self.disk: Disk = PosixDisk(self.offload) if synced else UnsyncedDisk(self.offload)
        self.net: Net = SocketNet()
        self.lag = Durations()
        self.workers: Workers = ChildWorkers()
        self.memory_bytes = available_bytes()
        self.spoil: Callable[[memoryview], None] | None = None
        self._monitor = LagMonitor(self.lag)

    async def __aenter__(self) -> "RealWorld":
        self._monitor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._monitor.stop()
        self._threads.close()
