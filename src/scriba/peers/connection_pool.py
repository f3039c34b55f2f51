"""The connections of one client, by broker and purpose, with the pause after each failure."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from scriba.peers.addresses import format_address, parse_address
from scriba.peers.connection import Connection, Limits
from scriba.peers.errors import Closed, NetworkError
from scriba.peers.ports import Backoff, Ports

BrokerAddress = tuple[int, str, int]
"""Id, host and port. Bootstrap servers, whose ids nobody knows yet, count down from -1."""


class PoolSettings(Limits, Protocol):
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


class _PooledConnection:
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


class ConnectionPool:
    def __init__(self, ports: Ports, settings: PoolSettings) -> None:
        self._ports = ports
        self._settings = settings
        self._connections: dict[tuple[int, str], _PooledConnection] = {}
        self._addresses: list[BrokerAddress] = []
        for number, text in enumerate(settings.bootstrap_servers):
            address = parse_address(text)
            assert address is not None, "checked with the settings"
            self._addresses.append((-1 - number, *address))
        self._closed = False

    def bootstrap(self) -> list[BrokerAddress]:
        """The bootstrap servers, so that many clients do not all ask the first one."""
        return self.least_failed_first(self._addresses)

    def least_failed_first(
        self, addresses: Sequence[BrokerAddress], later: Collection[str] = ()
    ) -> list[BrokerAddress]:
        """In an order by chance, but those last that could not be reached lately; of the others
        those with an address in `later` are the last."""
        below = self._ports.rng.below
        shuffled = sorted(addresses, key=lambda address: below(1 << 30))
        shuffled.sort(key=lambda address: format_address(*address[1:]) in later)
        return sorted(shuffled, key=lambda address: self._retry_at(address[0]))

    def least_busy(self, but: Collection[str] = ()) -> Connection | None:
        """Of the connections without a purpose the one with the fewest requests under way, and
        none to one of the addresses in `but`."""
        found = [
            connection
            for (_, purpose), pooled in self._connections.items()
            if not purpose
            and (connection := pooled.alive) is not None
            and connection.address not in but
        ]
        return min(found, key=lambda c: c.in_flight) if found else None

    def living(self, node_id: int) -> Connection | None:
        pooled = self._connections.get((node_id, ""))
        return None if pooled is None else pooled.alive

    async def connect(self, node_id: int, host: str, port: int, purpose: str = "") -> Connection:
        """The living connection, or a new one; whoever asks meanwhile waits for the same one."""
        if self._closed:
            raise Closed("the client was closed")
        pooled = self._pooled(node_id, purpose)
        if found := pooled.alive:
            return found
        if pooled.opening is None:
            work = self._open(pooled, host, port)
            pooled.opening = asyncio.get_running_loop().create_task(work, name="scriba-connect")
            pooled.opening.add_done_callback(lambda task: _opened(pooled, task))
        opening = pooled.opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if opening.cancelled() and me is not None and not me.cancelling():
                raise NetworkError(f"the connection to {host}:{port} was given up") from None
            raise

    def adopt(self, node_id: int, host: str, port: int) -> None:
        """Lets a bootstrap server's connection serve the broker it turned out to be."""
        mine = self._pooled(node_id, "")
        if mine.alive or mine.opening is not None:
            return
        for number, known_host, known_port in self._addresses:
            pooled = self._connections.get((number, ""))
            if pooled is not None and pooled.alive and (known_host, known_port) == (host, port):
                mine.connection, pooled.connection = pooled.connection, None
                return

    def drop(self, node_id: int) -> None:
        """The broker is gone, or has moved to another address: whoever waits for it tries again."""
        gone = f"broker {node_id} is no longer at this address, or not in the cluster"
        for key in [key for key in self._connections if key[0] == node_id]:
            self._end(self._connections.pop(key), NetworkError(gone))

    def drop_all(self) -> None:
        """All that is known of brokers may be wrong: whoever waits for one tries again."""
        self._end_all(NetworkError("the brokers are looked for anew"))

    def close(self) -> None:
        self._closed = True
        self._end_all(None)

    def _end_all(self, why: NetworkError | None) -> None:
        ended, self._connections = self._connections, {}
        for pooled in ended.values():
            self._end(pooled, why)

    def _end(self, pooled: _PooledConnection, why: NetworkError | None) -> None:
        if pooled.opening is not None:
            pooled.opening.cancel()
        if pooled.connection is not None:
            pooled.connection.close(why)

    def _pooled(self, node_id: int, purpose: str) -> _PooledConnection:
        pooled = self._connections.get((node_id, purpose))
        if pooled is None:
            settings = self._settings
            backoff = Backoff(
                self._ports.rng, settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms
            )
            pooled = self._connections[node_id, purpose] = _PooledConnection(backoff)
        return pooled

    def _retry_at(self, node_id: int) -> int:
        pooled = self._connections.get((node_id, ""))
        return 0 if pooled is None else pooled.retry_at

    async def _open(self, pooled: _PooledConnection, host: str, port: int) -> Connection:
        clock, settings = self._ports.clock, self._settings
        pause = pooled.retry_at - clock.mono_ms()
        if pause > 0:
            await asyncio.sleep(pause / 1000)
        patience = min(
            settings.socket_connection_setup_timeout_ms << min(pooled.failures, 10),
            settings.socket_connection_setup_timeout_max_ms,
        )
        patience = max(patience, settings.socket_connection_setup_timeout_ms)
        try:
            pooled.connection = await Connection.open(self._ports, host, port, settings, patience)
        except BaseException:
            pooled.failures += 1
            pooled.retry_at = clock.mono_ms() + pooled.backoff.next_ms()
            raise
        pooled.failures = 0
        pooled.retry_at = 0
        pooled.backoff.reset()
        return pooled.connection


def _opened(pooled: _PooledConnection, task: "asyncio.Task[Connection]") -> None:
    pooled.opening = None
    if not task.cancelled():
        task.exception()  # each who waited gets it; nobody may be waiting any more
