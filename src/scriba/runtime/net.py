"""TCP by raw non-blocking sockets that the loop watches through `add_reader` and `add_writer`.

Each call is one system call and readiness is level-triggered, so whoever reads decides how much:
a bulk connection gets no more than its share of a pass. Interest is registered only when it
changes, which on the hot path is never.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from scriba.runtime.files.disk import PosixFile
from scriba.runtime.files.limits import connections
from scriba.runtime.ports import WOULD_BLOCK, Buffer, File, Stream

log = logging.getLogger(__name__)

_IOV_MAX: Final = 1024
_ACCEPTS_PER_PASS: Final = 16
_ACCEPT_PAUSE_S: Final = 0.1
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)
_LOCAL_SEND_BUFFER: Final = 1 << 18
"""What a peer on this host gets. There is no distance to fill, and in a buffer that the kernel lets
grow, megabytes wait for the pacing of congestion control (BBR): twice the CPU for each gigabyte."""


def _host(address: object) -> str:
    """The host of a socket address; an IPv4 peer of a dual-stack listener in its own notation."""
    host = address[0] if isinstance(address, tuple) and address else ""
    return str(host).removeprefix("::ffff:")


class SocketStream:
    __slots__ = ("_fd", "_loop", "_on_readable", "_on_writable", "_socket", "peer")

    def __init__(
        self, connected: socket.socket, loop: asyncio.AbstractEventLoop, peer: str
    ) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if peer == "::1" or peer.startswith("127."):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BUFFER)
        self.peer = peer
        self._socket = connected
        self._fd = connected.fileno()
        self._loop = loop
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None

    def recv_into(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            return WOULD_BLOCK

    def send(self, views: Sequence[Buffer], more: bool = False) -> int:
        flags = _MORE if more else 0
        try:
            if len(views) == 1:
                return self._socket.send(views[0], flags)
            some = views if len(views) <= _IOV_MAX else views[:_IOV_MAX]
            return self._socket.sendmsg(some, (), flags)
        except BlockingIOError:
            return WOULD_BLOCK

    def send_file(self, file: File, offset: int, n: int) -> int:
        assert isinstance(file, PosixFile)
        try:
            done = os.sendfile(self._fd, file.fd, offset, n)
        except BlockingIOError:
            return WOULD_BLOCK
        if done == 0 and n > 0:
            # The peer was promised bytes that have been cut off since: the frame is lost.
            raise ConnectionAbortedError(errno.ECONNABORTED, "file is shorter than announced")
        return done

    def want(
        self,
        on_readable: Callable[[], None] | None,
        on_writable: Callable[[], None] | None,
    ) -> None:
        if self._fd < 0:
            return
        if on_readable != self._on_readable:
            self._on_readable = on_readable
            if on_readable is None:
                self._loop.remove_reader(self._fd)
            else:
                self._loop.add_reader(self._fd, on_readable)
        if on_writable != self._on_writable:
            self._on_writable = on_writable
            if on_writable is None:
                self._loop.remove_writer(self._fd)
            else:
                self._loop.add_writer(self._fd, on_writable)

    def ended(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        if self._fd >= 0:
            self.want(None, None)
            self._fd = -1
            self._socket.close()


class SocketListener:
    """One address to clients, though it may be several sockets (localhost: IPv4 and IPv6)."""

    def __init__(
        self,
        host: str,
        bound: list[socket.socket],
        on_connect: Callable[[Stream], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.host = host
        self.port: int = bound[0].getsockname()[1]
        self._sockets = bound
        self._on_connect = on_connect
        self._loop = loop
        self._paused: dict[int, asyncio.TimerHandle] = {}
        for listening in bound:
            loop.add_reader(listening.fileno(), self._accept, listening)

    def close(self) -> None:
        for pause in self._paused.values():
            pause.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets = []

    def _accept(self, listening: socket.socket) -> None:
        """Takes a bounded number of connections, so that a flood of them leaves others a turn."""
        for _ in range(_ACCEPTS_PER_PASS):
            try:
                connected, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as failure:
                if failure.errno in _OUT_OF_RESOURCES:
                    self._pause(listening, failure)
                    return
                continue  # the peer left before it was accepted
            try:
                stream = SocketStream(connected, self._loop, _host(address))
            except OSError:
                connected.close()
                continue
            self._on_connect(stream)
            if not self._sockets:
                return  # closed by the callback

    def _pause(self, listening: socket.socket, failure: OSError) -> None:
        """Out of descriptors the socket stays readable: without a pause the loop would spin."""
        fd = listening.fileno()
        log.error("cannot accept on %s:%d, trying again: %s", self.host, self.port, failure)
        self._loop.remove_reader(fd)
        self._paused[fd] = self._loop.call_later(_ACCEPT_PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        fd = listening.fileno()
        del self._paused[fd]
        self._loop.add_reader(fd, self._accept, listening)


def _bind(
    family: socket.AddressFamily,
    address: tuple[Any, ...],
    backlog: int,
    send_buffer: int,
    receive_buffer: int,
) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Only the wildcard serves both families; "::1" must not shadow 127.0.0.1.
            only_v6 = 0 if address[0] == "::" else 1
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
        # Accepted sockets inherit the sizes; set before listen, they also bound the window scale.
        if send_buffer > 0:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        if receive_buffer > 0:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        listening.bind(address)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening


class SocketNet:
    def __init__(self) -> None:
        self.most_connections = connections()

    def listen(
        self,
        host: str,
        port: int,
        on_connect: Callable[[Stream], None],
        *,
        backlog: int = 50,
        send_buffer: int = -1,
        receive_buffer: int = -1,
    ) -> SocketListener:
        bound: list[socket.socket] = []
        try:
            for family, address in _addresses_to_bind(host, port):
                if bound and port == 0:
                    address = (address[0], bound[0].getsockname()[1], *address[2:])
                try:
                    bound.append(_bind(family, address, backlog, send_buffer, receive_buffer))
                except OSError as failure:
                    # Hosts files name ::1 where the kernel has no IPv6: one address is enough.
                    if failure.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    missing = failure
            if not bound:
                raise missing
        except BaseException:
            for listening in bound:
                listening.close()
            raise
        return SocketListener(host, bound, on_connect, asyncio.get_running_loop())

    async def connect(self, host: str, port: int) -> SocketStream:
        """Tries the host's addresses in turn; the last failure is raised when none answers."""
        loop = asyncio.get_running_loop()
        with _names():
            try:
                found = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
                )
            except socket.gaierror:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure = OSError(errno.EHOSTUNREACH, f"{host} has no address")
        for family, _, _, _, address in found:
            connecting = socket.socket(family, socket.SOCK_STREAM)
            try:
                connecting.setblocking(False)
                await loop.sock_connect(connecting, address)
                return SocketStream(connecting, loop, _host(address))
            except OSError as caught:
                connecting.close()
                failure = caught
            except BaseException:
                connecting.close()
                raise
        raise failure


@contextmanager
def _names() -> Iterator[None]:
    """A name that no host can have (`a..b`) is an unknown one; Python cannot even spell it.

    Such a name may come from a peer, so nobody who connects may have to think of another error.
    """
    try:
        yield
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "no host can have this name") from error


def _addresses_to_bind(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """All addresses of a name; for the empty host the wildcard, of both families if there are."""
    if not host:
        if socket.has_dualstack_ipv6():
            return [(socket.AF_INET6, ("::", port))]
        return [(socket.AF_INET, ("0.0.0.0", port))]
    with _names():
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # IPv4 first, as a JVM broker would choose; a hosts file may name an address twice.
    unique: list[tuple[socket.AddressFamily, tuple[Any, ...]]] = list(
        dict.fromkeys((entry[0], entry[4]) for entry in found)
    )
    return sorted(unique, key=lambda entry: entry[0] != socket.AF_INET)
