"""A network of byte queues between simulated hosts.

Bytes travel with a delay drawn from the seed and arrive in order. A send takes what the pipe has
room for, sometimes less; a receive gives what has arrived, sometimes less. While two hosts are cut
off from each other nothing moves between them, in flight or new; when the cut heals it goes on,
as TCP retransmits. A reset loses what is in flight and breaks both ends. When a host loses its
power its peers hear nothing: their connections are half open until they send and, once the host
is back, are told that it knows of no such connection.

A cut may be of one direction alone. Then the other still brings bytes, but what they are answered
with is lost: the sender gets no acknowledgement, and its window fills; nobody can connect; the
word that an end is gone does not arrive. A path between two hosts may be slow, narrow or lossy
(`Path`), one direction by itself; a lost segment comes late and holds back all behind it.
"""

import asyncio
import contextvars
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scriba.runtime.ports import EOF, WOULD_BLOCK, Buffer, File, Stream
from scriba.runtime.rng import SeededRng
from scriba.testing.sim.world.loop import SimLoop

_EPHEMERAL: Final = 32768
_LOCAL: Final = ("", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost")
_RETRANSMIT_MS: Final = 200
"""After which a segment that was lost is sent again; then after twice that, and so on."""
_MOST_RETRANSMITS: Final = 6
_SYN_AGAIN_S: Final = 1.0
"""The same for the first segment of a connection."""


@dataclass(slots=True)
class NetFaults:
    """What this network does to its users; all of it drawn from the seed."""

    delay_ms: tuple[float, float] = (0.05, 0.8)
    spike: float = 0.0
    """Chance that a delay is a hundred times as long."""
    short: float = 0.0
    """Chance that a send or a receive handles only a part."""
    window: int = 1 << 16
    """Bytes a direction holds before its sender has to wait."""
    connect_timeout_ms: int = 30_000
    steady: bool = False
    """Whether a connection keeps the delay it was made with. Then it does not matter into how many
    pieces its bytes are cut, and two nodes that send the same bytes are heard at the same times."""


@dataclass(frozen=True, slots=True)
class Path:
    """How the way from one host to another is, where it is worse than the network around it."""

    delay_ms: tuple[float, float] = (0.05, 0.8)
    loss: float = 0.0
    """Chance that a segment is lost and comes when it is sent again."""
    bytes_per_s: int = 1 << 40


def _fail(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class Pipe:
    """One direction of a connection, from the end that sends to the end that receives."""

    def __init__(self, link: "Link", way: tuple[str, str], window: int) -> None:
        self.link = link
        self.way = way
        """(host that sends, host that receives)"""
        self.window = window
        self.flying: deque[tuple[float, bytes]] = deque()
        """(when it may arrive, bytes); empty bytes stand for the end of the stream."""
        self.arrived = bytearray()
        self.ended = False
        self.held = 0
        self.unheard = 0
        """Bytes of these that were taken, which the sender does not know as the way back is cut."""
        self.reader: SimStream
        self.writer: SimStream

    def room(self) -> int:
        return max(0, self.window - self.held)

    def push(self, data: bytes) -> None:
        net = self.link.net
        earliest = self.flying[-1][0] if self.flying else 0.0
        due = max(earliest, net.loop.true_time() + self.link.delay(self.way))
        due += net.crossing(self.way, len(data))
        self.flying.append((due, data))
        self.held += len(data)
        net.note("send", self.link.number, len(data), zlib.crc32(data))
        net.loop.call_at_true(due, self.arrive, context=net.context)

    def arrive(self) -> None:
        """Takes in what is due, unless the way is cut; healing calls this again."""
        link = self.link
        if link.broken or link.net.is_cut(*self.way):
            return
        now = link.net.loop.true_time()
        while self.flying and self.flying[0][0] <= now:
            if self.flying[0][1] and self.reader.gone:
                if link.net.is_cut(*self.way[::-1]):
                    return  # the refusal would not arrive
                link.reset("sent to an end that is closed")
                return
            data = self.flying.popleft()[1]
            if data:
                self.arrived += data
            else:
                self.ended = True
        self.reader.poll()

    def take(self, n: int) -> bytes:
        data = bytes(self.arrived[:n])
        del self.arrived[:n]
        self.unheard += len(data)
        self.acknowledge()
        return data

    def acknowledge(self) -> None:
        """Tells the sender of the bytes that were taken, if that can be told."""
        if self.unheard and not self.link.net.is_cut(*self.way[::-1]):
            self.held -= self.unheard
            self.unheard = 0
            self.writer.poll()


class Link:
    """A connection: two pipes and two ends."""

    def __init__(self, net: "Network", number: int, hosts: tuple[str, str]) -> None:
        self.net = net
        self.number = number
        self.hosts = hosts
        self.broken = False
        self._steady = net.delay(hosts) if net.faults.steady else None
        window = net.faults.window
        there, back = self.pipes = (Pipe(self, hosts, window), Pipe(self, hosts[::-1], window))
        self.ends = (
            SimStream(self, hosts[1], incoming=back, outgoing=there),
            SimStream(self, hosts[0], incoming=there, outgoing=back),
        )
        """The end that connected, the end that accepted."""

    def delay(self, way: tuple[str, str]) -> float:
        return self.net.delay(way) if self._steady is None else self._steady

    def reset(self, why: str) -> None:
        """Breaks both ends; what is in flight is lost."""
        if not self.broken:
            self.broken = True
            self.net.note("reset", self.number, why)
            self.net.links.pop(self.number, None)
            for end in self.ends:
                end.poll()


class SimStream:
    def __init__(self, link: Link, peer: str, incoming: Pipe, outgoing: Pipe) -> None:
        self.peer = peer
        self.gone = False
        self._link = link
        self._in = incoming
        self._out = outgoing
        incoming.reader = self
        outgoing.writer = self
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._context = link.net.context
        self._polling = False

    def recv_into(self, view: memoryview) -> int:
        self._check()
        if self._in.arrived:
            data = self._in.take(self._link.net.part(view.nbytes))
            view.cast("B")[: len(data)] = data
            return len(data)
        return EOF if self._in.ended else WOULD_BLOCK

    def send(self, views: Sequence[Buffer], more: bool = False) -> int:
        self._check()
        room = self._out.room()
        if not room:
            return WOULD_BLOCK
        data = b"".join(views)
        if not data:
            return 0
        data = data[: self._link.net.part(min(room, len(data)))]
        self._out.push(data)
        return len(data)

    def send_file(self, file: File, offset: int, n: int) -> int:
        self._check()
        room = self._out.room()
        if not room:
            return WOULD_BLOCK
        buffer = bytearray(self._link.net.part(min(room, n)))
        done = file.pread_into(memoryview(buffer), offset)
        if done == 0 and n > 0:
            raise ConnectionAbortedError(errno.ECONNABORTED, "file is shorter than announced")
        self._out.push(bytes(buffer[:done]))
        return done

    def want(
        self,
        on_readable: Callable[[], None] | None,
        on_writable: Callable[[], None] | None,
    ) -> None:
        if not self.gone:
            self._on_readable = on_readable
            self._on_writable = on_writable
            self._context = contextvars.copy_context()
            self.poll()

    def ended(self) -> bool:
        return self._link.broken or (self._in.ended and not self._in.arrived)

    def close(self) -> None:
        if self.gone:
            return
        self.gone = True
        self._on_readable = self._on_writable = None
        link = self._link
        link.net.note("close", link.number, self.peer)
        if link.broken:
            return
        if self._in.arrived:
            self._reset("closed with bytes unread")
            return
        self._out.push(b"")
        if all(end.gone for end in link.ends):
            link.net.links.pop(link.number, None)

    def vanish(self) -> None:
        """The host has lost its power: nothing is sent, nothing is called."""
        self.gone = True
        self._on_readable = self._on_writable = None

    def break_off(self) -> None:
        """The process has died: the kernel resets what it had open."""
        if not self.gone:
            self.vanish()
            self._reset("process died")

    def _reset(self, why: str) -> None:
        """Breaks the connection, if the other host can be told; else it hears of it when it sends
        something and the answer comes through."""
        if not self._link.net.is_cut(*self._out.way):
            self._link.reset(why)

    def poll(self) -> None:
        """Lets the loop call whoever is ready, in its next pass."""
        if not self._polling and (self._may_read() or self._may_write()):
            self._polling = True
            self._link.net.loop.call_soon(self._call, context=self._context)

    def _may_read(self) -> bool:
        pipe = self._in
        some = bool(pipe.arrived) or pipe.ended or self._link.broken
        return self._on_readable is not None and some

    def _may_write(self) -> bool:
        some = self._out.room() > 0 or self._link.broken
        return self._on_writable is not None and some

    def _call(self) -> None:
        """Level-triggered: as long as an interest is ready it is called in every pass."""
        self._polling = False
        try:
            if self._on_readable is not None and self._may_read():
                self._on_readable()
            if self._on_writable is not None and self._may_write():
                self._on_writable()
        finally:
            self.poll()

    def _check(self) -> None:
        if self.gone:
            raise _fail(errno.EBADF)
        if self._link.broken:
            raise _fail(errno.ECONNRESET)


class SimListener:
    def __init__(
        self, net: "SimNet", host: str, port: int, on_connect: Callable[[Stream], None]
    ) -> None:
        self.host = host
        self.port = port
        self.on_connect = on_connect
        self.net = net
        self._context = contextvars.copy_context()

    def accept(self, stream: SimStream) -> None:
        self.net.keep(stream)
        self.net.network.loop.call_soon(self.on_connect, stream, context=self._context)

    def close(self) -> None:
        self.net.network.listeners.pop((self.net.host, self.port), None)


class Network:
    """All hosts' connections."""

    def __init__(
        self,
        loop: SimLoop,
        rng: SeededRng,
        faults: NetFaults,
        note: Callable[..., None],
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.faults = faults
        self.note = note
        self.context = contextvars.copy_context()
        """The network's own: what travels outlives the process that sent it."""
        self.links: dict[int, Link] = {}
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        """Ways that nothing passes: (from, to)."""
        self._paths: dict[tuple[str, str], Path] = {}
        self._down: dict[str, None] = {}
        self._made = 0
        self._next_port = _EPHEMERAL

    def delay(self, way: tuple[str, str]) -> float:
        path = self._paths.get(way)
        ms = self.rng.between(*(self.faults.delay_ms if path is None else path.delay_ms))
        ms *= 100 if self.rng.chance(self.faults.spike) else 1
        if path is not None:
            again = 0
            while again < _MOST_RETRANSMITS and self.rng.chance(path.loss):
                ms += _RETRANSMIT_MS << again
                again += 1
        return ms / 1000

    def crossing(self, way: tuple[str, str], n: int) -> float:
        """The time that so many bytes take one after the other."""
        path = self._paths.get(way)
        return 0.0 if path is None else n / path.bytes_per_s

    def part(self, n: int) -> int:
        """`n`, or by chance less, but at least one byte."""
        return 1 + self.rng.below(n) if n > 1 and self.rng.chance(self.faults.short) else n

    def is_cut(self, a: str, b: str) -> bool:
        """Whether what `a` sends does not reach `b`."""
        return (a, b) in self._cuts or a in self._down or b in self._down

    def cut(self, a: str, b: str, one_way: bool = False) -> None:
        """Nothing moves between two hosts until `heal`; one way: nothing from `a` to `b`."""
        self.note("cut one way" if one_way else "cut", a, b)
        self._cuts[a, b] = None
        if not one_way:
            self._cuts[b, a] = None

    def worsen(self, a: str, b: str, path: Path) -> None:
        """The way from `a` to `b` is like this until `heal`."""
        self.note("worsen", a, b, path)
        self._paths[a, b] = path

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """All ways between two hosts, or all there are, are as they should be."""
        if a is None or b is None:
            self.note("heal")
            self._cuts.clear()
            self._paths.clear()
        else:
            self.note("heal", a, b)
            for way in ((a, b), (b, a)):
                self._cuts.pop(way, None)
                self._paths.pop(way, None)
        self._retransmit()

    def down(self, host: str) -> None:
        """The host has no power: it sends nothing and answers nothing."""
        self._down[host] = None

    def up(self, host: str) -> None:
        if host in self._down:
            del self._down[host]
            self._retransmit()

    def _retransmit(self) -> None:
        for link in list(self.links.values()):
            for pipe in link.pipes:
                due = self.loop.true_time() + self.delay(pipe.way)
                self.loop.call_at_true(due, pipe.arrive, context=self.context)
                self.loop.call_at_true(due, pipe.acknowledge, context=self.context)

    def reset_some(self, host: str, probability: float = 1.0) -> None:
        """Breaks connections of a host."""
        for link in list(self.links.values()):
            if host in link.hosts and self.rng.chance(probability):
                link.reset("cut by the network")

    def link(self, hosts: tuple[str, str]) -> Link:
        self._made += 1
        link = self.links[self._made] = Link(self, self._made, hosts)
        return link

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class SimNet:
    """One process's view of the network."""

    def __init__(self, network: Network, host: str) -> None:
        self.network = network
        self.host = host
        self.most_connections = 1 << 31
        self._alive = True
        self._streams: list[SimStream] = []

    def die(self, silently: bool) -> None:
        """Ends all that this process has open: by reset, or, when the host lost its power,
        without a word."""
        self._alive = False
        for listener in list(self.network.listeners.values()):
            if listener.net is self:
                listener.close()
        for stream in self._streams:
            if silently:
                stream.vanish()
            else:
                stream.break_off()

    def listen(
        self,
        host: str,
        port: int,
        on_connect: Callable[[Stream], None],
        *,
        backlog: int = 50,
        send_buffer: int = -1,
        receive_buffer: int = -1,
    ) -> SimListener:
        self._check()
        if host not in _LOCAL and host != self.host:
            raise _fail(errno.EADDRNOTAVAIL)
        port = port or self.network.free_port()
        if (self.host, port) in self.network.listeners:
            raise _fail(errno.EADDRINUSE)
        listener = SimListener(self, host, port, on_connect)
        self.network.listeners[self.host, port] = listener
        return listener

    async def connect(self, host: str, port: int) -> SimStream:
        self._check()
        network = self.network
        target = self.host if host in _LOCAL else host
        hosts = (self.host, target)
        deadline = network.loop.true_time() + network.faults.connect_timeout_ms / 1000
        again = _SYN_AGAIN_S
        await asyncio.sleep(network.delay(hosts))
        while network.is_cut(*hosts) or network.is_cut(*hosts[::-1]):
            left = deadline - network.loop.true_time()
            if left <= 0:
                raise _fail(errno.ETIMEDOUT)
            await asyncio.sleep(min(again, left))
            again *= 2
        listener = network.listeners.get((target, port))
        if listener is None:
            raise _fail(errno.ECONNREFUSED)
        link = network.link(hosts)
        near, far = link.ends
        network.note("connect", link.number, self.host, target, port)
        self.keep(near)
        listener.accept(far)
        return near

    def keep(self, stream: SimStream) -> None:
        self._streams = [kept for kept in self._streams if not kept.gone]
        self._streams.append(stream)

    def _check(self) -> None:
        if not self._alive:
            raise _fail(errno.ENETDOWN)
