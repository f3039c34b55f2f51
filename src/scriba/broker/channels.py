"""Connections from this node to other nodes: one for each node and purpose, made when needed.

Requests are pipelined on a connection, and a broker takes the requests of one connection in order.
A request that may wait for long (a follower's Fetch) therefore has a connection of its own, named
by its purpose; all others share one. A connection that breaks takes the requests under way with it:
the caller is told, and decides whether to ask again. The next call makes a new connection, after a
pause that grows with each failure.

`BrokerChannels` knows the brokers' addresses from the metadata. A broker that leaves it, moves,
restarts or is fenced loses its connection at once, so that nobody waits for an answer that a dead
or stopped process will not give.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from scriba.broker.ports import Configuration, MetadataView, WorldAccess
from scriba.peers.connection_pool import ConnectionPool
from scriba.peers.errors import Closed, NetworkError, TimedOut
from scriba.wire.apis import API

if TYPE_CHECKING:
    from scriba.controller.image import BrokerImage, ClusterImage, Delta
    from scriba.peers.connection import Connection
    from scriba.settings import NodeSettings
    from scriba.wire.schema import Message

MAX_IN_FLIGHT: Final = 512
"""Requests without an answer on one connection; whoever has more to ask batches, or comes again."""

RECONNECT_BACKOFF_MS: Final = 50
RECONNECT_BACKOFF_MAX_MS: Final = 1_000
"""Kafka's defaults for clients, and what its brokers use among each other."""

Address = tuple[str, int]


class ChannelHost(Configuration, WorldAccess, Protocol):
    """The node whose connections these are."""

    @property
    def id(self) -> int: ...


class _Limits:
    """The node's settings as connections read them; those of the moment."""

    bootstrap_servers: tuple[str, ...] = ()
    reconnect_backoff_ms: int = RECONNECT_BACKOFF_MS
    reconnect_backoff_max_ms: int = RECONNECT_BACKOFF_MAX_MS

    def __init__(self, node: ChannelHost) -> None:
        self._node = node
        self.client_id = f"node-{node.id}"

    @property
    def _settings(self) -> NodeSettings:
        return self._node.settings

    @property
    def request_timeout_ms(self) -> int:
        return self._settings.request_timeout_ms

    @property
    def connections_max_idle_ms(self) -> int:
        """A little less than the other side's: it must not close under a request."""
        idle_ms = self._settings.connections_max_idle_ms
        return idle_ms if idle_ms < 0 else idle_ms * 9 // 10

    @property
    def socket_connection_setup_timeout_ms(self) -> int:
        return self._settings.socket_connection_setup_timeout_ms

    @property
    def socket_connection_setup_timeout_max_ms(self) -> int:
        return self._settings.socket_connection_setup_timeout_max_ms


class NodeChannels:
    """Connections to nodes whose addresses the caller knows."""

    def __init__(self, node: ChannelHost) -> None:
        self._node = node
        self._pool = ConnectionPool(node.world, _Limits(node))
        self._addresses: dict[int, Address] = {}
        self._closed = False

    async def connection(self, node_id: int, address: Address, purpose: str = "") -> Connection:
        """The living connection, or a new one; NetworkError when there can be none."""
        if self._addresses.setdefault(node_id, address) != address:
            self.drop(node_id)
            self._addresses[node_id] = address
        return await self._pool.connect(node_id, *address, purpose)

    async def call_at(
        self,
        node_id: int,
        address: Address,
        request: Message,
        version: int | None = None,
        *,
        purpose: str = "",
        timeout_ms: int | None = None,
    ) -> Any:
        """The node's answer to one request, in the newest version that both sides speak.

        NetworkError when the node cannot be reached or the connection breaks, TimedOut when it does
        not answer in time: what was asked may have happened all the same. BrokerError
        (UNSUPPORTED_VERSION) when it does not serve the request. `version` fixes the version.
        """
        key = request.KEY
        assert key is not None
        clock = self._node.world.clock
        limit = self._node.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = clock.mono_ms() + limit
        try:
            async with asyncio.timeout(limit / 1000):
                connection = await self.connection(node_id, address, purpose)
        except TimeoutError as late:
            raise TimedOut(
                f"no connection to node {node_id} at {address[0]}:{address[1]} within {limit} ms"
            ) from late
        if connection.in_flight >= MAX_IN_FLIGHT:
            raise NetworkError(
                f"{connection.in_flight} requests to {connection.address} wait for an answer"
            )
        try:
            return await connection.request(
                request,
                API[key].response,
                version=version,
                timeout_ms=max(1, deadline - clock.mono_ms()),
            )
        except Closed as gone:
            if self._closed:
                raise
            raise NetworkError(f"the connection to node {node_id} was given up") from gone

    def drop(self, node_id: int) -> None:
        """Ends all connections to a node; requests under way get NetworkError."""
        self._addresses.pop(node_id, None)
        self._pool.drop(node_id)

    def close(self) -> None:
        """Ends all of them, for good."""
        self._closed = True
        self._addresses.clear()
        self._pool.close()


class BrokerChannelHost(ChannelHost, MetadataView, Protocol):
    """The node, and the metadata by which it finds the others."""


class BrokerChannels:
    """Connections to the cluster's brokers, on the listener that brokers use among each other."""

    def __init__(self, node: BrokerChannelHost) -> None:
        self._node = node
        self._channels = NodeChannels(node)

    def address(self, broker_id: int) -> Address | None:
        """Where other brokers reach a broker; None when the metadata does not know."""
        broker = self._node.image.brokers.get(broker_id)
        return None if broker is None else self._address_of(broker)

    async def call(
        self,
        broker_id: int,
        request: Message,
        version: int | None = None,
        *,
        purpose: str = "",
        timeout_ms: int | None = None,
    ) -> Any:
        """A broker's answer to one request; errors as `NodeChannels.call_at` has them.

        Requests without a purpose share one connection: none of them may be one that the other side
        keeps waiting.
        """
        return await self._channels.call_at(
            broker_id,
            self._known(broker_id),
            request,
            version,
            purpose=purpose,
            timeout_ms=timeout_ms,
        )

    async def connection(self, broker_id: int, purpose: str = "") -> Connection:
        """The connection itself, for whoever posts to it request by request."""
        return await self._channels.connection(broker_id, self._known(broker_id), purpose)

    def on_change(self, delta: Delta, image: ClusterImage) -> None:
        """Lets go of brokers that are no longer what they were."""
        for broker_id, before in delta.brokers.items():
            if before is None:
                continue
            now = image.brokers.get(broker_id)
            if (
                now is None
                or now.epoch != before.epoch
                or (now.fenced and not before.fenced)
                or self._address_of(now) != self._address_of(before)
            ):
                self._channels.drop(broker_id)

    def close(self) -> None:
        self._channels.close()

    def _known(self, broker_id: int) -> Address:
        address = self.address(broker_id)
        if address is None:
            name = self._node.settings.inter_broker_listener
            raise NetworkError(f"broker {broker_id} is not known, or has no listener {name}")
        return address

    def _address_of(self, broker: BrokerImage) -> Address | None:
        name = self._node.settings.inter_broker_listener
        for listener in broker.listeners:
            if listener.name == name:
                return listener.host, listener.port
        return None
