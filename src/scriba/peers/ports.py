"""What of the world outside a client touches: time, chance, threads for bulk work, the network.

A node's `World` has all of these, so a client runs in the simulator as it runs on a machine.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from scriba.runtime.ports import Clock, Net, Offload, Rng


class Ports(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> Rng: ...

    @property
    def offload(self) -> Offload: ...

    @property
    def net(self) -> Net: ...


@dataclass(frozen=True, slots=True)
class _RealPorts:
    clock: Clock
    rng: Rng
    offload: Offload
    net: Net


_THREADS = 2
"""Enough to compress beside the loop; they start when first needed."""


def real_ports() -> Ports:
    from scriba.runtime.clock import SystemClock
    from scriba.runtime.net import SocketNet
    from scriba.runtime.rng import SystemRng
    from scriba.runtime.work.offload import ThreadOffload

    return _RealPorts(SystemClock(), SystemRng(), ThreadOffload(_THREADS), SocketNet())


class Backoff:
    """Pauses that double from `base_ms` to `max_ms`, each with 20% jitter (KIP-580)."""

    __slots__ = ("_base_ms", "_failures", "_max_ms", "_rng")

    def __init__(self, rng: Rng, base_ms: int, max_ms: int) -> None:
        self._rng = rng
        self._base_ms = base_ms
        self._max_ms = max(base_ms, max_ms)
        self._failures = 0

    def next_ms(self) -> int:
        """How long to wait after one more failure."""
        pause = self.after(self._failures)
        self._failures += 1
        return pause

    def after(self, failures: int) -> int:
        """How long to wait after `failures` earlier ones."""
        pause = min(self._base_ms << min(failures, 20), self._max_ms)
        jittered = pause * (800 + self._rng.below(401)) // 1000
        return min(jittered, self._max_ms)

    def reset(self) -> None:
        self._failures = 0


class Signal:
    """Wakes all who wait at that moment. Whoever waits looks first whether there is a need to."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wait(self) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def wake(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
