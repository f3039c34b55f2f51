"""A world that follows from one seed: time, disks, network, randomness and their faults.

    sim = SimWorld(seed=7)
    host = sim.host("broker")

    async def main() -> None:
        process = host.start(lambda world: serve(world))
        ...
        host.power_cut()
        process = host.start(lambda world: serve(world))

    sim.run(main())
    sim.trace.digest()

Hosts keep their disk and clock, each its own, with faults of its own; a process gets a `World` of
its own and loses it when it ends. It can be paused as by SIGSTOP: its connections stay, and nobody
answers them.
Everything that happens to disks and network is written to the trace; the same seed gives the same
trace, on every machine and whatever PYTHONHASHSEED says.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, ParamSpec, TypeVar

from scriba.instant import Instant
from scriba.prometheus import Durations
from scriba.runtime.ports import Clock, Disk, Net, Offload, Rng, Workers
from scriba.runtime.rng import SeededRng
from scriba.runtime.work.budget import Budget
from scriba.runtime.work.worker_process import find_task
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.loop import Life, Pace, SimLoop
from scriba.testing.sim.world.net import NetFaults, Network, SimNet
from scriba.testing.sim.world.volume import DiskFaults, Volume

P = ParamSpec("P")
T = TypeVar("T")

EPOCH_MS: Final = 1_750_000_000_000
"""What the wall clocks say when a simulation begins."""


class Trace:
    """What happened, in order: a running hash of all of it and the text of the last events."""

    def __init__(self, loop: SimLoop, keep: int = 2000) -> None:
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=16)
        self.last: deque[str] = deque(maxlen=keep)

    def add(self, *event: object) -> None:
        line = f"{self._loop.true_time():.9f} {' '.join(map(str, event))}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.last.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()


class SimClock:
    """A host's clock: the wall can be moved, and all of it can run too fast or too slow."""

    def __init__(
        self, loop: SimLoop, uptime_s: float = 0.0, note: Callable[..., None] | None = None
    ) -> None:
        self._loop = loop
        self._note = note
        self._wall_ms = EPOCH_MS - int(uptime_s * 1000)
        self.pace = Pace(uptime_s)

    def mono_ms(self) -> int:
        return int(self.pace.local(self._loop.true_time()) * 1000 + 1e-6)

    def wall_ms(self) -> int:
        return self._wall_ms + self.mono_ms()

    def now(self) -> Instant:
        return Instant(self.mono_ms(), self.wall_ms())

    def jump(self, ms: int) -> None:
        """Moves the wall."""
        self._tell("clock jumps", ms)
        self._wall_ms += ms

    def run_at(self, rate: float) -> None:
        """From now on a true second is `rate` seconds here; timers that are set keep their time."""
        self._tell("clock runs at", rate)
        self.pace.change(rate, self._loop.true_time())

    def _tell(self, *event: object) -> None:
        if self._note is not None:
            self._note(*event)


class SimOffload:
    """Work away from the loop: it takes time, and happens early or late in it."""

    def __init__(self, rng: SeededRng, busy_ms: tuple[float, float] = (0.02, 2.0)) -> None:
        self.memory = Budget()
        self._rng = rng
        self._busy_ms = busy_ms

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        early = self._rng.chance(0.5)
        pause = self._rng.between(*self._busy_ms) / 1000
        if not early:
            await asyncio.sleep(pause)
        try:
            return fn(*args, **kwargs)
        finally:
            if early:
                await asyncio.sleep(pause)


class SimWorkers:
    """Tasks of other processes: they take turns with the loop, item by item."""

    idle = False

    def __init__(self, disk: SimDisk, rng: SeededRng) -> None:
        self._disk = disk
        self._rng = rng

    def start(self, idle: bool = False) -> "SimWorkers":
        return self

    async def run(self, task: str, *values: Any) -> AsyncGenerator[Any, None]:
        for item in find_task(task)(self._disk, *values):
            if item is not None:
                await asyncio.sleep(self._rng.between(0.02, 2.0) / 1000)
                yield item

    async def close(self) -> None:
        """Nothing of it is left between two tasks."""


_MEMORY_BYTES: Final = 4 << 30

_RUBBISH: Final = bytes(range(255, 0, -1)) * 1028


def spoil(view: memoryview) -> None:
    """Fills a request's bytes with rubbish: whoever reads them late is found out."""
    for start in range(0, len(view), len(_RUBBISH)):
        part = view[start : start + len(_RUBBISH)]
        part[:] = _RUBBISH[: len(part)]


class ProcessWorld:
    """The world as one simulated process sees it."""

    def __init__(self, host: "SimHost", number: int) -> None:
        rng = host.sim.rng.fork(f"{host.name}/{number}")
        self.sim_disk = SimDisk(host.volume)
        self.sim_net = SimNet(host.sim.network, host.name)
        self.clock: Clock = host.clock
        self.rng: Rng = rng.fork("rng")
        self.offload: Offload = SimOffload(rng.fork("offload"))
        self.disk: Disk = self.sim_disk
        self.net: Net = self.sim_net
        self.lag = Durations()
        self.workers: Workers = SimWorkers(self.sim_disk, rng.fork("workers"))
        self.memory_bytes = _MEMORY_BYTES
        self.spoil: Callable[[memoryview], None] | None = spoil


class SimProcess:
    def __init__(
        self,
        host: "SimHost",
        number: int,
        main: "Callable[[ProcessWorld], Coroutine[Any, Any, None]]",
    ) -> None:
        self.world = ProcessWorld(host, number)
        self._host = host
        self._life = Life(f"{host.name}/{number}", host.clock.pace)
        context = self._life.context()
        self.task = context.run(
            host.sim.loop.create_task, main(self.world), name=self._life.name, context=context
        )

    @property
    def alive(self) -> bool:
        return self._life.alive and not self.task.done()

    @property
    def paused(self) -> bool:
        return self._life.paused

    def pause(self) -> None:
        """As SIGSTOP: it does nothing, and its connections stay as they are."""
        if self.alive and not self.paused:
            self._host.sim.trace.add("pause", self._life.name)
            self._host.sim.loop.pause(self._life)

    def resume(self) -> None:
        """As SIGCONT: all that came due meanwhile is done now."""
        if self.paused:
            self._host.sim.trace.add("resume", self._life.name)
            self._host.sim.loop.resume(self._life)

    def kill(self) -> None:
        """As `kill -9`: the process is gone, what it wrote is still in the host's page cache."""
        self._end(silently=False)

    def _end(self, silently: bool) -> None:
        if self._life.alive:
            self._host.sim.trace.add("kill", self._life.name)
            self.world.sim_disk.die()
            self.world.sim_net.die(silently)
            self._host.sim.loop.kill(self._life)


class SimHost:
    """A machine: a name, a disk, a clock, and the processes on it."""

    def __init__(self, sim: "SimWorld", name: str, uptime_s: float) -> None:
        self.sim = sim
        self.name = name
        note = sim.noting(name)
        self.clock = SimClock(sim.loop, uptime_s, note)
        self.disk_faults = replace(sim.disk_faults)
        self.volume = Volume(sim.rng.fork(f"{name}/disk"), self.disk_faults, note)
        self._processes: list[SimProcess] = []
        self._started = 0

    def start(self, main: Callable[[ProcessWorld], Coroutine[Any, Any, None]]) -> SimProcess:
        self._started += 1
        self.sim.network.up(self.name)
        self.sim.trace.add("start", self.name, self._started)
        process = SimProcess(self, self._started, main)
        self._processes = [kept for kept in self._processes if kept.alive]
        self._processes.append(process)
        return process

    def power_cut(self) -> None:
        """Ends all processes; the disk loses what was not synced; peers hear nothing."""
        self.sim.trace.add("power cut", self.name)
        self.sim.network.down(self.name)
        for process in self._processes:
            process._end(silently=True)
        self.volume.power_cut()


class SimWorld:
    def __init__(
        self,
        seed: int,
        *,
        disk_faults: DiskFaults | None = None,
        net_faults: NetFaults | None = None,
    ) -> None:
        self.seed = seed
        self.rng = SeededRng(seed)
        self.loop = SimLoop()
        self.trace = Trace(self.loop)
        self.disk_faults = disk_faults or DiskFaults()
        """How the disks of new hosts are; each has its own from then on."""
        self.network = Network(
            self.loop, self.rng.fork("net"), net_faults or NetFaults(), self.noting("net")
        )
        self._hosts: dict[str, SimHost] = {}

    def host(self, name: str, uptime_s: float = 0.0) -> SimHost:
        """The host of this name; one that is new has run for so long when time begins."""
        if name not in self._hosts:
            self._hosts[name] = SimHost(self, name, uptime_s)
        return self._hosts[name]

    def noting(self, who: str) -> Callable[..., None]:
        return lambda *event: self.trace.add(who, *event)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs `main` and ends every process; an error in any callback fails the run.

        `main` is the outside: it starts and ends processes and is in none of them.
        """
        loop = self.loop
        outside = Life("outside")
        try:
            task = loop.create_task(main, name=outside.name, context=outside.context())
            return loop.run_until_complete(task)
        finally:
            loop.kill(outside)
            for host in self._hosts.values():
                for process in host._processes:
                    process.kill()
            loop.close()
            if loop.errors:
                raise BaseExceptionGroup("errors nobody caught", loop.errors)
