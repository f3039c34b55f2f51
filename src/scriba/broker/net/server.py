"""Accepts connections on every listener, within the limits, and hands their frames to dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from scriba.broker.net.answers import CloseConnection, Parked, Parts
from scriba.broker.net.buffers import BufferPool, ReceiveBuffer, Spoil
from scriba.broker.net.connection import MAX_UNSENT, Connection, Unreadable
from scriba.broker.net.request_memory import Receiver, RequestMemory
from scriba.broker.observe.counters import CloseReason, NetworkCounters, RefusalReason
from scriba.broker.observe.events import Note
from scriba.broker.request import ANONYMOUS
from scriba.events import EventKind
from scriba.runtime.ports import Clock, Listener, Net, Stream

SCRATCH_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_request_bytes: int
    request_memory_bytes: int
    """Of all requests together that are received in part, or worked on."""
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: dict[str, int]
    idle_ms: int


class Handle(Protocol):
    def __call__(self, connection: Connection, frame: memoryview) -> Parts | Parked | None: ...


class Server:
    """All listeners and connections of one node."""

    def __init__(
        self,
        net: Net,
        clock: Clock,
        limits: ConnectionLimits,
        handle: Handle,
        note: Note,
        unreadable: Unreadable,
        spoil: Spoil | None = None,
    ) -> None:
        self.clock = clock
        self.limits = limits
        self.handle = handle
        self.max_request_bytes = limits.max_request_bytes
        self.spoil = spoil
        self.note = note
        self.unreadable = unreadable
        self.pool = BufferPool(spoil, self._lost_buffer)
        self.scratch = ReceiveBuffer(bytearray(SCRATCH_BYTES))
        self.counters = NetworkCounters()
        self._net = net
        self._listeners: list[Listener] = []
        self._connections: dict[Connection, None] = {}
        self.memory = RequestMemory(limits.request_memory_bytes, clock.mono_ms, self._shed_request)
        self._per_host: dict[str, int] = {}
        self._early: list[tuple[Stream, str]] = []
        self._open: set[str] = set()
        self._listening: set[str] = set()

    def listen(self, name: str, host: str, port: int) -> Listener:
        """Takes the port. Clients may connect from now on, and are served after `open`."""
        listener = self._net.listen(host, port, self._acceptor(name))
        self._listening.add(name)
        self._listeners.append(listener)
        return listener

    def open(self, names: Iterable[str] | None = None) -> None:
        """Serves clients of the listeners `names` from now on; of all without it."""
        self._open |= self._listening if names is None else set(names)
        early, self._early = self._early, []
        for stream, name in early:
            self._acceptor(name)(stream)

    def _acceptor(self, name: str) -> Callable[[Stream], None]:
        def accept(stream: Stream) -> None:
            if name in self._open:
                self._admit(stream, name)
            else:
                self._early.append((stream, name))

        return accept

    def _admit(self, stream: Stream, name: str) -> None:
        limits = self.limits
        host = stream.peer
        held = self._per_host.get(host, 0)
        per_host = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        if len(self._connections) >= self._most() and not self._make_room():
            if self._most() < limits.max_connections:
                self._refuse(stream, "open_files", self._crowded())
            else:
                text = f"max.connections={limits.max_connections} is reached"
                self._refuse(stream, "max_connections", text)
            return
        if held >= per_host:
            text = f"max.connections.per.ip allows {per_host} from {host}"
            self._refuse(stream, "max_connections_per_ip", text)
            return
        self.counters.accepted += 1
        self._per_host[host] = held + 1
        self._connections[Connection(self, stream, name, ANONYMOUS)] = None

    def _most(self) -> int:
        """How many connections there may be: never so many that logs could not open their files."""
        return min(self.limits.max_connections, self._net.most_connections)

    def _crowded(self) -> str:
        return f"the limit of open files leaves room for {self._net.most_connections} connections"

    def _make_room(self) -> bool:
        """Closes the connection that has been idle longest, as Kafka does at its limit."""
        if self._most() < self.limits.max_connections:
            self.note(EventKind.OPEN_FILES_REACHED, "connections", self._crowded())
        idle = [c for c in self._connections if not c.busy]
        if not idle:
            return False
        min(idle, key=lambda c: c.last_active).close("displaced")
        return True

    def _refuse(self, stream: Stream, reason: RefusalReason, why: str) -> None:
        self.counters.refused[reason] += 1
        self.note(EventKind.CONNECTION_REFUSED, stream.peer, why)
        stream.close()

    def renew_scratch(self) -> None:
        """Leaves the scratch buffer to whoever still has a view of it."""
        self.pool.lose()
        self.scratch = ReceiveBuffer(bytearray(SCRATCH_BYTES))

    def _lost_buffer(self) -> None:
        text = "a view of a request's bytes outlived its handler: its buffer is not used again"
        self.note(EventKind.VIEW_OUTLIVED_REQUEST, "receive buffers", text)

    def hung_up(self, connection: Connection, why: CloseConnection) -> None:
        shed = why.reason in ("slow", "request_memory")
        kind = EventKind.SLOW_PEER_SHED if shed else EventKind.CONNECTION_CLOSED
        self.note(kind, connection.peer, str(why))

    def forget(self, connection: Connection) -> None:
        if self._connections.pop(connection, 0) is None:
            left = self._per_host.get(connection.peer, 1) - 1
            if left:
                self._per_host[connection.peer] = left
            else:
                self._per_host.pop(connection.peer, None)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def close_idle(self) -> int:
        """Hangs up on peers that neither sent, nor took, nor waited for a byte for too long.

        Also on those idle longest while there are too many: the limit may have been lowered.
        """
        while len(self._connections) > self._most() and self._make_room():
            pass
        if self.limits.idle_ms < 0:
            return 0
        before = self.clock.mono_ms() - self.limits.idle_ms
        idle = [
            c
            for c in self._connections
            if c.last_active < before and (not c.busy or c.stream.ended())
        ]
        for connection in idle:
            connection.close("idle")
        return len(idle)

    def shed(self, excess: int) -> None:
        """Hangs up on those who take their answers slowest, until so many bytes are free."""
        slow = [c for c in self._connections if c.unsent_in_memory > MAX_UNSENT]
        for connection in sorted(slow, key=lambda c: c.last_active):
            if excess <= 0:
                return
            excess -= connection.unsent_in_memory
            why = "it does not take its answers, and others wait for the memory"
            self.hung_up(connection, CloseConnection(why, "slow"))
            connection.close("slow")

    def _shed_request(self, receiver: Receiver, why: str) -> None:
        """Hangs up on a peer whose request takes too long to come."""
        assert isinstance(receiver, Connection)
        receiver.end(CloseConnection(why, "request_memory"))

    def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for stream, _ in self._early:
            stream.close()
        self._early.clear()

    def close(self) -> None:
        self.stop_listening()
        self.close_connections()

    def close_connections(self, reason: CloseReason = "shutdown") -> int:
        """Hangs up on everybody; how many that were."""
        connections = tuple(self._connections)
        for connection in connections:
            connection.close(reason)
        return len(connections)
