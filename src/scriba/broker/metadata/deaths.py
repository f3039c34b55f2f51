"""Proof of death: a broker whose process is gone is fenced at once, not after its session.

The active controller knows a broker by the connection that carries its heartbeats. When that ends,
the process may have died, or only the connection. So the broker's own address is tried: where the
machine refuses the connection, nobody listens there any more, and the broker is lost. Whoever
takes it is alive, and comes back with its next heartbeat. Silence proves nothing (a stopped
process, a cut network, a machine without power): then the session decides, as ever.

A controller that has just won looks at all brokers in this way, for the one that led before it
may have died together with its broker. A wrong guess costs an election, never data: a broker that
lives is unfenced by its next heartbeat.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import (
    BackgroundTasks,
    Configuration,
    EventLog,
    MetadataView,
    WorldAccess,
)
from scriba.errors import KafkaError
from scriba.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scriba.broker.channels import Address
    from scriba.broker.request import Origin
    from scriba.controller.machine import Controller
    from scriba.controller.plans import Step
    from scriba.instant import Instant

CONNECT_TIMEOUT_MS: Final = 1_000
PAUSES_MS: Final = (0, 20, 100)
"""Between attempts: a dying process may close its connections before its listeners."""


class ActiveSteps(Protocol):
    """The active controller, for what no request asks of it."""

    @property
    def machine(self) -> Controller: ...

    async def step(self, decide: Callable[[Controller, Instant], Iterable[Step]]) -> None:
        """Carries out what the machine decides; KafkaError when the epoch is lost."""


class ActiveSource(Protocol):
    @property
    def active(self) -> ActiveSteps | None: ...


class DeathWatchHost(BackgroundTasks, Configuration, EventLog, MetadataView, WorldAccess, Protocol):
    @property
    def id(self) -> int: ...

    @property
    def metadata(self) -> ActiveSource: ...


class DeathWatch:
    def __init__(self, node: DeathWatchHost) -> None:
        self._node = node
        self._connections: dict[int, tuple[Origin, int]] = {}
        """By broker: what carried its last heartbeat, and its epoch."""
        self._probing: set[int] = set()
        self._closed = False

    def heard(self, connection: Origin, broker_id: int, broker_epoch: int) -> None:
        """A heartbeat came by `connection`, and was accepted."""
        known = (connection, broker_epoch)
        if self._connections.get(broker_id) == known:
            return
        self._connections[broker_id] = known
        connection.on_close = partial(self._ended, connection, broker_id, broker_epoch)
        if connection.closed:
            self._ended(connection, broker_id, broker_epoch)

    def look(self) -> None:
        """Tries every broker that this controller has reason to doubt; to be called often."""
        active = self._node.metadata.active
        if active is None or self._closed:
            return
        for broker_id, broker_epoch in active.machine.suspects():
            self._probe_soon(broker_id, broker_epoch)

    def close(self) -> None:
        """The node stops: connections that end from now on say nothing about their brokers."""
        self._closed = True

    def _ended(self, connection: Origin, broker_id: int, broker_epoch: int) -> None:
        if self._connections.get(broker_id) != (connection, broker_epoch):
            return
        del self._connections[broker_id]
        active = self._node.metadata.active
        if active is None or self._closed:
            return
        active.machine.broker_disconnected(broker_id, broker_epoch)
        self._probe_soon(broker_id, broker_epoch)

    def _connected(self, broker_id: int, broker_epoch: int) -> bool:
        known = self._connections.get(broker_id)
        return known is not None and known[1] == broker_epoch

    def _probe_soon(self, broker_id: int, broker_epoch: int) -> None:
        if (
            broker_id == self._node.id
            or broker_id in self._probing
            or self._connected(broker_id, broker_epoch)
        ):
            return
        address = self._address(broker_id)
        if address is not None:
            self._probing.add(broker_id)
            work = self._probe(broker_id, broker_epoch, address)
            self._node.tasks.spawn(work, name=f"probe of broker {broker_id}")

    def _address(self, broker_id: int) -> Address | None:
        broker = self._node.image.brokers.get(broker_id)
        name = self._node.settings.inter_broker_listener
        if broker is not None and not broker.fenced:
            for listener in broker.listeners:
                if listener.name == name:
                    return listener.host, listener.port
        return None

    async def _probe(self, broker_id: int, broker_epoch: int, address: Address) -> None:
        try:
            for pause_ms in PAUSES_MS:
                await asyncio.sleep(pause_ms / 1000)
                if self._closed or self._connected(broker_id, broker_epoch):
                    return
                since = self._node.world.clock.now()
                refused = await self._refuses(address)
                if refused is None:
                    return
                if refused and not self._connected(broker_id, broker_epoch):
                    await self._lost(broker_id, broker_epoch, since, address)
                    return
        finally:
            self._probing.discard(broker_id)

    async def _refuses(self, address: Address) -> bool | None:
        """Whether nobody listens there; None where there was no word at all."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                stream = await self._node.world.net.connect(*address)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return None
        stream.close()
        return False

    async def _lost(
        self, broker_id: int, broker_epoch: int, since: Instant, address: Address
    ) -> None:
        active = self._node.metadata.active
        if active is None:
            return
        host, port = address
        text = f"its heartbeats have ended, and {host}:{port} refuses connections: fenced"
        self._node.note(EventKind.BROKER_LOST, f"broker {broker_id}", text)
        try:
            await active.step(
                lambda machine, now: machine.broker_lost(broker_id, broker_epoch, since, now)
            )
        except KafkaError as error:
            text = f"was not fenced at once: {error}"
            self._node.note(EventKind.BROKER_LOST, f"broker {broker_id}", text)
