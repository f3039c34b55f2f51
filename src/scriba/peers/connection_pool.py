"""The connections of one client, by broker and purpose, with the pause after each failure."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from scriba.peers.addresses import parse_address
from scriba.peers.connection import Connection, Limits
from scriba.peers.errors import Closed, NetworkError
from scriba.peers.ports import Backoff, Ports

Place = tuple[int, str, int]
"""Id, host and port. Bootstrap servers, whose ids nobody knows yet, count down from -1."""


class LinkSettings(Limits, Protocol):
    """The settings that the connections of one client share."""

    @property
    def bootstrap_servers(self) -> tuple[str, ...]: ...

    @property
    def reconnect_backoff_ms(self) -> int: ...

    @property
    def reconnect_backoff_max_ms(self) -> int: ...

    @property
    def socket_connection_setup_timeout_ms(self) -> int: ...

    @property
    def socket_connection_setup_timeout_max_ms(self) -> int: ...


class _Link:
    """What is known of one connection that exists, is being made, or could not be made."""

    __slots__ = ("backoff", "connection", "failures", "opening", "retry_at")

    def __init__(self, backoff: Backoff) -> None:
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Connection] | None = None
        self.backoff = backoff
        self.failures = 0
        self.retry_at = 0

    @property
    def alive(self) -> Connection | None:
        found = self.connection
        return None if found is None or found.closed is not None else found


class Links:
    def __init__(self, ports: Ports, settings: LinkSettings) -> None:
        self._ports = ports
        self._settings = settings
        self._links: dict[tuple[int, str], _Link] = {}
        self._addresses: list[Place] = []
        for number, text in enumerate(settings.bootstrap_servers):
            address = parse_address(text)
            assert address is not None, "checked with the settings"
            self._addresses.append((-1 - number, *address))
        self._closed = False

    def bootstrap(self) -> list[Place]:
        """The bootstrap servers, so that many clients do not all ask the first one."""
        return self.in_order_of_hope(self._addresses)

    def in_order_of_hope(self, places: Sequence[Place]) -> list[Place]:
        """In an order by chance, but those last that could not be reached lately."""
        below = self._ports.rng.below
        shuffled = sorted(places, key=lambda place: below(1 << 30))
        return sorted(shuffled, key=lambda place: self._retry_at(place[0]))

    def least_busy(self) -> Connection | None:
        """Of the connections without a purpose the one with the fewest requests under way."""
        found = [
            connection
            for (_, purpose), link in self._links.items()
            if not purpose and (connection := link.alive) is not None
        ]
        return min(found, key=lambda c: c.in_flight) if found else None

    def living(self, node_id: int) -> Connection | None:
        link = self._links.get((node_id, ""))
        return None if link is None else link.alive

    async def connect(self, node_id: int, host: str, port: int, purpose: str = "") -> Connection:
        """The living connection, or a new one; whoever asks meanwhile waits for the same one."""
        if self._closed:
            raise Closed("the client was closed")
        link = self._link(node_id, purpose)
        if found := link.alive:
            return found
        if link.opening is None:
            work = self._open(link, host, port)
            link.opening = asyncio.get_running_loop().create_task(work, name="scriba-connect")
            link.opening.add_done_callback(lambda task: _opened(link, task))
        opening = link.opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if opening.cancelled() and me is not None and not me.cancelling():
                raise NetworkError(f"the connection to {host}:{port} was given up") from None
            raise

    def adopt(self, node_id: int, host: str, port: int) -> None:
        """Lets a bootstrap server's connection serve the broker it turned out to be."""
        mine = self._link(node_id, "")
        if mine.alive or mine.opening is not None:
            return
        for number, known_host, known_port in self._addresses:
            link = self._links.get((number, ""))
            if link is not None and link.alive and (known_host, known_port) == (host, port):
                mine.connection, link.connection = link.connection, None
                return

    def drop(self, node_id: int) -> None:
        """The broker is gone, or has moved to another address."""
        for key in [key for key in self._links if key[0] == node_id]:
            self._end(self._links.pop(key))

    def drop_all(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            self._end(link)

    def close(self) -> None:
        self._closed = True
        self.drop_all()

    def _end(self, link: _Link) -> None:
        if link.opening is not None:
            link.opening.cancel()
        if link.connection is not None:
            link.connection.close()

    def _link(self, node_id: int, purpose: str) -> _Link:
        link = self._links.get((node_id, purpose))
        if link is None:
            settings = self._settings
            backoff = Backoff(
                self._ports.rng, settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms
            )
            link = self._links[node_id, purpose] = _Link(backoff)
        return link

    def _retry_at(self, node_id: int) -> int:
        link = self._links.get((node_id, ""))
        return 0 if link is None else link.retry_at

    async def _open(self, link: _Link, host: str, port: int) -> Connection:
        clock, settings = self._ports.clock, self._settings
        pause = link.retry_at - clock.mono_ms()
        if pause > 0:
            await asyncio.sleep(pause / 1000)
        patience = min(
            settings.socket_connection_setup_timeout_ms << min(link.failures, 10),
            settings.socket_connection_setup_timeout_max_ms,
        )
        patience = max(patience, settings.socket_connection_setup_timeout_ms)
        try:
            link.connection = await Connection.open(self._ports, host, port, settings, patience)
        except BaseException:
            link.failures += 1
            link.retry_at = clock.mono_ms() + link.backoff.next_ms()
            raise
        link.failures = 0
        link.retry_at = 0
        link.backoff.reset()
        return link.connection


def _opened(link: _Link, task: "asyncio.Task[Connection]") -> None:
    link.opening = None
    if not task.cancelled():
        task.exception()  # each who waited gets it; nobody may be waiting any more
