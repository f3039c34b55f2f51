"""What goes wrong with the nodes of a simulated cluster and between them; each ends by itself.

Of one node at a time: killed (now and then again on its way up), paused, stopped in good order, out
of power, with a full or a failing disk, or with one of two that fails. Between nodes: cuts of one
pair, of one direction, of one node from all others, of two halves, healed pair by pair; ways that
are slow or lossy; connections that break. Clocks jump, and run too fast or too slow.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from scriba.config import StartError
from scriba.runtime.rng import SeededRng
from scriba.testing.sim.checks.losses import Losses
from scriba.testing.sim.cluster import MORE, SimCluster
from scriba.testing.sim.node import SimNode, storage_lost
from scriba.testing.sim.world.net import Path

NODES: Final = (
    *(
        "kill",
        "kill",
        "kill",
        "hold",
        "hold",
        "stop",
        "power",
        "power",
        "full",
        "sick",
        "directory",
    ),
)
NETWORK: Final = ("pair", "pair", "one way", "one way", "alone", "split", "slow", "lossy", "reset")
POWER: Final = ("power", "sick", "directory")
CLOCKS: Final = ("clock", "rate")


class Mishaps:
    def __init__(
        self,
        cluster: SimCluster,
        draw: SeededRng,
        losses: Losses,
        tell: Callable[..., None],
        reckless: bool = False,
        only: Sequence[int] = (),
    ) -> None:
        """A reckless one cuts the power whether or not the budget allows it; where `only` names
        nodes, nothing happens to others."""
        self._cluster = cluster
        self._draw = draw
        self._losses = losses
        self._tell = tell
        self._reckless = reckless
        self._only = tuple(only)
        self.busy: dict[int, str] = {}
        """Nodes to which something is being done, and what."""
        self._under_way = 0
        self._calm_since = 0.0

    @property
    def calm_for(self) -> float:
        """Seconds since the last of them ended."""
        return 0.0 if self._under_way else self._cluster.sim.loop.true_time() - self._calm_since

    async def happen(self, kind: str) -> None:
        self._under_way += 1
        try:
            if kind == "blackout":
                await self._blackout()
            elif kind in NODES:
                await self._strike(kind)
            elif kind in NETWORK:
                await self._disturb(kind)
            else:
                self._wrong_clock(kind)
        finally:
            self._under_way -= 1
            self._calm_since = self._cluster.sim.loop.true_time()

    @property
    def _ids(self) -> tuple[int, ...]:
        return self._only or self._cluster.ids

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._cluster.name(at) for at in self._ids)

    def _pick(self) -> int:
        return self._ids[self._draw.below(len(self._ids))]

    def _pause(self, low: float, high: float) -> Awaitable[None]:
        return asyncio.sleep(self._draw.between(low, high))

    # ---- nodes ----

    async def _strike(self, kind: str) -> None:
        at = self._pick()
        if at in self.busy:
            return
        doomed = [other for other, what in self.busy.items() if what in POWER]
        if kind in POWER and not (self._reckless or self._losses.allow(at, doomed)):
            kind = "kill"
        if kind == "directory" and MORE not in self._cluster.directories:
            kind = "sick"
        self.busy[at] = kind
        self._tell(kind, self._cluster.name(at))
        try:
            await getattr(self, f"_{kind}")(at)
        finally:
            del self.busy[at]
        self._tell("end of", kind, self._cluster.name(at))

    async def _kill(self, at: int) -> None:
        self._cluster.nodes[at].note_failure()
        self._cluster.nodes[at].process.kill()
        await self._come_back(at)

    async def _power(self, at: int) -> None:
        self._cluster.nodes[at].note_failure()
        self._cut_power(at)
        await self._come_back(at)

    def _cut_power(self, at: int) -> None:
        self._losses.note(at)
        self._cluster.hosts[at].power_cut()

    async def _come_back(self, at: int, again: float = 0.25) -> None:
        node = self._cluster.nodes[at]
        await self._pause(0, 3)
        while self._draw.chance(again):
            node.boot()
            await self._pause(0, 0.3)
            node.note_failure()
            node.process.kill()
        node.boot()
        await self._pause(0, 1)

    async def _blackout(self) -> None:
        """All nodes that nothing else happens to lose their power at one moment."""
        struck = [at for at in self._ids if at not in self.busy]
        self._tell("blackout", *(self._cluster.name(at) for at in struck))
        for at in struck:
            self.busy[at] = "blackout"
            self._cluster.nodes[at].note_failure()
            self._cut_power(at)
        for at in struck:
            await self._pause(0, 1)
            self._cluster.nodes[at].boot()
            del self.busy[at]

    async def _hold(self, at: int) -> None:
        process = self._cluster.nodes[at].process
        process.pause()
        await self._pause(0.2, 5)
        process.resume()

    async def _stop(self, at: int) -> None:
        node = self._cluster.nodes[at]
        if not node.is_up:
            return
        await node.stop()
        await self._come_back(at, again=0.0)

    async def _full(self, at: int) -> None:
        host = self._cluster.hosts[at]
        faults, node = host.disk_faults, self._cluster.nodes[at]
        before, faults.capacity = faults.capacity, host.volume.used + self._draw.below(5_000)
        await asyncio.wait([node.process.task], timeout=self._draw.between(0.1, 2))
        faults.capacity = before
        node.note_failure()

    async def _sick(self, at: int) -> None:
        """Syncs fail for a while; what the page cache still shows may never have arrived, so the
        host is started anew."""
        faults, node = self._cluster.hosts[at].disk_faults, self._cluster.nodes[at]
        new = _is_new(node)
        faults.fail_sync = self._draw.between(0.1, 1)
        await asyncio.wait([node.process.task], timeout=self._draw.between(0.1, 2))
        faults.fail_sync = 0.0
        node.note_failure(
            excused=lambda failure: storage_lost(failure) or _ended_start(failure, new)
        )
        self._cut_power(at)
        await self._come_back(at)

    async def _directory(self, at: int) -> None:
        """One of two devices fails; the node serves on with the other, until it is started anew."""
        faults, node = self._cluster.hosts[at].disk_faults, self._cluster.nodes[at]
        new = _is_new(node)
        faults.fail_sync, faults.fail_in = 1.0, MORE
        await asyncio.wait([node.process.task], timeout=self._draw.between(0.5, 5))
        node.note_failure(excused=lambda failure: _ended_start(failure, new))
        faults.fail_sync, faults.fail_in = 0.0, ""
        self._cut_power(at)
        await self._come_back(at)

    # ---- between them ----

    async def _disturb(self, kind: str) -> None:
        names, draw, network = self._names, self._draw, self._cluster.sim.network
        one = names[draw.below(len(names))]
        if kind == "reset":
            self._tell(kind, one)
            network.reset_some(one, 0.7)
            return
        others = [name for name in names if name != one]
        if not others:
            return
        if kind in ("pair", "one way", "slow", "lossy"):
            other = others[draw.below(len(others))]
            ways = [(one, other)]
        elif kind == "alone":
            ways = [(one, other) for other in others]
        else:
            side = [name for name in names if draw.chance(0.5)]
            ways = [(a, b) for a in side for b in names if b not in side]
        self._tell(kind, *(f"{a}-{b}" for a, b in ways))
        for a, b in ways:
            self._harm(kind, a, b)
        await self._pause(0.2, 5)
        for a, b in ways:
            network.heal(a, b)
            await self._pause(0, 0.5)
        self._tell("end of", kind, *(f"{a}-{b}" for a, b in ways))

    def _harm(self, kind: str, a: str, b: str) -> None:
        draw, network = self._draw, self._cluster.sim.network
        if kind in ("slow", "lossy"):
            path = (
                Path(delay_ms=(10, draw.between(20, 300)))
                if kind == "slow"
                else Path(loss=draw.between(0.05, 0.4))
            )
            network.worsen(a, b, path)
            if draw.chance(0.5):
                network.worsen(b, a, path)
        else:
            network.cut(a, b, one_way=kind == "one way")

    def _wrong_clock(self, kind: str) -> None:
        at, draw = self._pick(), self._draw
        self._tell(kind, self._cluster.name(at))
        clock = self._cluster.hosts[at].clock
        if kind == "clock":
            clock.jump(int(draw.between(-7_200_000, 7_200_000)))
        else:
            clock.run_at(draw.between(0.9, 1.1))


def _is_new(node: SimNode) -> bool:
    """Whether its log directories may not have been used before."""
    return node.lives == 1 and not node.is_up


def _ended_start(failure: BaseException, new: bool) -> bool:
    """Whether a new node has told that a directory cannot be used, and not begun."""
    return new and isinstance(failure, StartError)
