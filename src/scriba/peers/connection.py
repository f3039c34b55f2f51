"""One connection to a broker: requests out, answers in, in the same order.

Requests are written as they are posted, without waiting for earlier answers; a broker answers a
connection's requests in order, so the answers are matched first in, first out, and a wrong
correlation id means that the two sides no longer understand each other. Any failure (a broken
socket, bytes that make no sense, an answer that does not come in time) ends the connection and
every request under way with it: what became of those is unknown, and the caller decides.

Records are not copied on the way. Those to send are put between the encoded parts of a request as
they are; those received stay views into the frame, which therefore belongs to its answer alone.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct as Layout
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from scriba.errors import ErrorCode, ParseError
from scriba.peers.addresses import format_address
from scriba.peers.errors import BrokerError, ClientError, Closed, NetworkError, NotKafka, TimedOut
from scriba.peers.other_protocols import protocol_of
from scriba.peers.ports import Ports
from scriba.runtime.ports import EOF, WOULD_BLOCK, Buffer, Clock, Stream
from scriba.wire.apis import API, ApiKey
from scriba.wire.frame import decode_response
from scriba.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from scriba.wire.schema import Hole, Message

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)

SOFTWARE: Final = ("scriba", "0.1.0")
"""What brokers are told of this client (KIP-511)."""

MAX_FRAME: Final = 1 << 30
"""More than any answer of a broker."""

_READ_BYTES: Final = 1 << 16
_MAX_FIRST_FRAME: Final = _READ_BYTES - 4
"""The answer to ApiVersions takes a few kilobytes. A longer one is another protocol's text, read as
a length."""
_KEPT_FRAMES: Final = 3
"""One that is filled while records are read in two others."""
_KEPT_BYTES: Final = 2 << 20
_MAX_VIEWS: Final = 512
_HEAD: Final = Layout(">ihhih")
_LENGTH: Final = Layout(">i")


class Payload:
    """Records that are sent from where they are."""

    __slots__ = ("data", "size")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.size = len(data)


class Packed:
    """A request whose body is encoded already, in the version in which it is sent."""

    __slots__ = ("body", "key")

    def __init__(self, key: int, body: bytes) -> None:
        self.key = key
        self.body = body


class Awaiting(Protocol):
    """Who awaits an answer: a future, or what is told in its place, as soon as the answer has come
    and while others may lie behind it."""

    def done(self) -> bool:
        """Whether it waits no longer."""

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, failure: BaseException, /) -> None: ...


class _Pending:
    """A request whose answer is awaited."""

    __slots__ = ("answer", "correlation_id", "deadline", "future", "version")

    def __init__(
        self,
        answer: type[Message],
        version: int,
        correlation_id: int,
        deadline: int,
        future: Awaiting,
    ) -> None:
        self.answer = answer
        self.version = version
        self.correlation_id = correlation_id
        self.deadline = deadline
        self.future = future


class _Unanswered(NamedTuple):
    """A request without an answer, which the socket has not taken in full yet."""

    left: int
    """Where it ends, in bytes that were still to be taken when `_taken` was last zero."""
    deadline: int
    sent: "asyncio.Future[None]"


class Limits(Protocol):
    """The settings a connection looks at."""

    @property
    def client_id(self) -> str: ...

    @property
    def request_timeout_ms(self) -> int: ...

    @property
    def connections_max_idle_ms(self) -> int: ...


def encode_frame(
    message: Message, version: int, correlation_id: int, client_id: str
) -> list[Buffer]:
    """A request with its length, in pieces: payloads keep their own memory."""
    key = message.KEY
    assert key is not None
    name = client_id.encode()
    out = bytearray(_HEAD.pack(0, key, version, correlation_id, len(name)))
    out += name
    if version in message.FLEXIBLE:
        out.append(0)
    holes: list[tuple[int, Hole]] = []
    message.encode_into(out, version, holes)
    size = len(out) - _LENGTH.size
    for _, hole in holes:
        size += hole.size
    _LENGTH.pack_into(out, 0, size)
    if not holes:
        return [out]
    view = memoryview(out)
    views: list[Buffer] = []
    start = 0
    for end, hole in holes:
        assert isinstance(hole, Payload)
        views += (view[start:end], hole.data)
        start = end
    if start < len(out):
        views.append(view[start:])
    return views


def _packed_frame(message: Packed, version: int, correlation_id: int, client_id: str) -> bytes:
    name = client_id.encode()
    tags = bytes(version >= API[message.key].flexible_from)
    size = _HEAD.size - _LENGTH.size + len(name) + len(tags) + len(message.body)
    head = _HEAD.pack(size, message.key, version, correlation_id, len(name))
    return b"".join((head, name, tags, message.body))


class Connection:
    def __init__(self, stream: Stream, clock: Clock, address: str, limits: Limits) -> None:
        self.address = address
        self.closed: ClientError | None = None
        """Why the connection has ended; None while it lives."""
        self.on_close: Callable[[], None] | None = None
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """Levels in force when the connection was made, of those the broker told."""
        self._stream = stream
        self._clock = clock
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._outgoing: list[Buffer] = []
        self._unanswered: deque[_Unanswered] = deque()
        self._taken = 0
        """Bytes that the socket took since there is something in `_unanswered`."""
        self._full = False
        """Whether the socket took no more, and tells when it does."""
        self._held_until = 0
        self._last_use = clock.mono_ms()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._frame: bytearray | memoryview | None = None
        """A long frame that is still arriving; it grows with what has arrived."""
        self._frame_size = 0
        self._frames: list[bytearray] = []
        """Memory of long frames, to be used again when nobody reads in it any more."""
        stream.want(self._on_readable, None)

    @classmethod
    async def open(
        cls, ports: Ports, host: str, port: int, limits: Limits, setup_timeout_ms: int
    ) -> "Connection":
        """Connects and learns which versions the broker speaks; NetworkError when it cannot."""
        address = format_address(host, port)
        connection: Connection | None = None
        try:
            async with asyncio.timeout(setup_timeout_ms / 1000):
                stream = await ports.net.connect(host, port)
                connection = cls(stream, ports.clock, address, limits)
                try:
                    await connection._negotiate()
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as late:
            if connection is None:
                told = f"{address} did not take the connection within {setup_timeout_ms} ms"
                raise NetworkError(told, cause=late) from late
            if connection._filled:
                raise connection._not_understood(ParseError("half an answer")) from late
            raise NetworkError(
                f"{address} took the connection and said nothing within {setup_timeout_ms} ms",
                fix="check that this is the address of a Kafka listener, and that it is not busy",
                cause=late,
            ) from late
        except OSError as failure:
            raise NetworkError(
                f"cannot connect to {address}: {_said(failure)}",
                fix="check the address, and that the broker is running",
                cause=failure,
            ) from failure
        return connection

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def version(self, request: type[Message], newest: int | None = None) -> int:
        """The newest version that both sides speak, and no newer than `newest`.

        BrokerError (UNSUPPORTED_VERSION) when there is none.
        """
        key = request.KEY
        assert key is not None
        api = API[key]
        top = api.max_version if newest is None else min(newest, api.max_version)
        low, high = self.versions.get(key, (0, -1))
        version = min(top, high)
        if version < max(low, api.min_version):
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} serves versions {low} to {high} of {api.name}, this client "
                f"speaks {api.min_version} to {top}"
                if high >= 0
                else f"{self.address} does not serve {api.name}",
            )
        return version

    def post(
        self,
        message: Message,
        answer: type[R],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[R]":
        """Sends a request; the future gets the answer, or the error that ended the connection."""
        if self.closed is not None:
            raise self.closed.anew()
        if version is None:
            version = self.version(type(message))
        future: asyncio.Future[R] = self._loop.create_future()
        limit = self._limits.request_timeout_ms if timeout_ms is None else timeout_ms
        self.ask(message, answer, future, version, limit)
        return future

    def ask(
        self,
        message: Message | Packed,
        answer: type[Message],
        whom: Awaiting,
        version: int,
        timeout_ms: int,
    ) -> None:
        """As `post`, with somebody else than a future that is told the answer."""
        if self.closed is not None:
            raise self.closed.anew()
        now = self._clock.mono_ms()
        deadline = max(now, self._held_until) + timeout_ms
        views = self._encode(message, version)
        self._pending.append(_Pending(answer, version, self._correlation_id, deadline, whom))
        if self._timer is None or self._timer_at > deadline:
            self._arm(deadline)
        self._send(views, now)

    def post_unanswered(
        self, message: Message, *, version: int | None = None
    ) -> "asyncio.Future[None] | None":
        """Sends a request that has no answer (Produce with acks=0).

        None once the socket has taken it; else a future that is done then, or gets the error that
        ended the connection before.
        """
        if self.closed is not None:
            raise self.closed.anew()
        version = self.version(type(message)) if version is None else version
        now = self._clock.mono_ms()
        self._send(self._encode(message, version), now)
        if self.closed is not None:
            raise self.closed.anew()
        if not self._outgoing:
            return None
        if not self._unanswered:
            self._taken = 0
        left = self._taken + sum(len(view) for view in self._outgoing)
        deadline = max(now, self._held_until) + self._limits.request_timeout_ms
        sent: asyncio.Future[None] = self._loop.create_future()
        self._unanswered.append(_Unanswered(left, deadline, sent))
        self._arm(deadline)
        return sent

    async def request(
        self,
        message: Message,
        answer: type[R],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> R:
        return await self.post(message, answer, version=version, timeout_ms=timeout_ms)

    def close(self, why: ClientError | None = None) -> None:
        if self.closed is not None:
            return
        self.closed = why or Closed(f"the connection to {self.address} was closed")
        self._stream.close()
        if self._timer is not None:
            self._timer.cancel()
        self._outgoing.clear()
        pending, self._pending = self._pending, deque()
        for waiting in pending:
            if not waiting.future.done():
                waiting.future.set_exception(self.closed)
                if isinstance(waiting.future, asyncio.Future):
                    # Whoever stopped waiting must not be told again by the collector.
                    waiting.future.exception()
        for unsent in self._unanswered:
            if not unsent.sent.done():
                unsent.sent.set_exception(self.closed)
                unsent.sent.exception()
        self._unanswered.clear()
        if self.on_close is not None:
            self.on_close()

    # -- out -------------------------------------------------------------------------------------

    def _encode(self, message: Message | Packed, version: int) -> list[Buffer]:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if isinstance(message, Packed):
            return [_packed_frame(message, version, self._correlation_id, self._limits.client_id)]
        return encode_frame(message, version, self._correlation_id, self._limits.client_id)

    def _send(self, views: list[Buffer], now: int) -> None:
        self._last_use = now
        waiting = bool(self._outgoing)
        self._outgoing += views
        if not waiting:
            self._write()

    def _write(self) -> None:
        """Sends what the socket takes; the rest goes when it takes more."""
        out = self._outgoing
        if self._held_until and self._held_until > self._clock.mono_ms():
            self._arm(self._held_until)
            return
        try:
            while out:
                done = self._stream.send(out if len(out) <= _MAX_VIEWS else out[:_MAX_VIEWS])
                if done == WOULD_BLOCK:
                    self._full = True
                    self._stream.want(self._on_readable, self._write)
                    return
                if len(out) == 1 and done == len(out[0]):
                    out.clear()
                else:
                    _drop(out, done)
                if self._unanswered:
                    self._tell_sent(done)
            if self._full:
                self._full = False
                self._stream.want(self._on_readable, None)
        except OSError as failure:
            self._lost(failure)

    def _tell_sent(self, done: int) -> None:
        """Tells whose requests are with the kernel now, which sends them even after a close."""
        self._taken += done
        while self._unanswered and self._unanswered[0].left <= self._taken:
            sent = self._unanswered.popleft().sent
            if not sent.done():
                sent.set_result(None)

    # -- in --------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            if self._frame is None:
                got = self._stream.recv_into(self._view[self._filled :])
            else:
                got = self._stream.recv_into(memoryview(self._frame)[self._filled :])
        except OSError as failure:
            self._lost(failure)
            return
        if got == WOULD_BLOCK:
            return
        if got == EOF:
            self._lost(None)
            return
        self._filled += got
        try:
            if self._frame is None:
                self._take_frames()
            elif self._filled == self._frame_size:
                frame, self._frame, self._filled = self._frame, None, 0
                self._deliver(frame)
        except ParseError as garbage:
            self.close(self._not_understood(garbage))

    def _not_understood(self, garbage: ParseError) -> NetworkError:
        if self.versions:
            return NetworkError(f"{self.address} sent what is no answer: {garbage}", cause=garbage)
        said = protocol_of(bytes(self._view[: self._filled]))
        return NotKafka(
            f"{self.address} answers, but not in Kafka's protocol: {said or garbage}",
            fix="give the address of a Kafka listener"
            if said is None or "TLS" not in said
            else "give the address of a listener without TLS, which this client does not speak yet",
            cause=garbage,
        )

    def _take_frames(self) -> None:
        """Delivers the whole frames in the buffer; a long one gets memory of its own."""
        view, end, at = self._view, self._filled, 0
        longest = MAX_FRAME if self.versions else _MAX_FIRST_FRAME
        while end - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(view, at)
            if not _LENGTH.size <= size <= longest:
                raise ParseError(f"a frame of {size} bytes")
            start = at + _LENGTH.size
            at = start + size
            if at > end:
                if at - start + _LENGTH.size > _READ_BYTES:
                    self._frame = frame = self._memory(size)
                    self._frame_size = size
                    self._filled = end - start
                    frame[: end - start] = view[start:end]
                    return
                at = start - _LENGTH.size
                break
            self._deliver(bytes(view[start:at]))
            if self.closed is not None:
                return
        self._buffer[: end - at] = view[at:end]
        self._filled = end - at

    def _memory(self, size: int) -> bytearray | memoryview:
        """Memory for a long frame: fresh pages cost as much as copying the frame into them. A
        very long one gets its pages as it arrives: its length is only a peer's word."""
        if size > _KEPT_BYTES:
            try:
                return memoryview(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS))
            except OSError as refused:
                told = f"a frame of {size} bytes, for which there is no memory"
                raise ParseError(told) from refused
        for frame in self._frames:
            try:
                frame.append(0)
            except BufferError:
                continue  # there is a view of it: records that are still to be read
            if size < len(frame):
                del frame[size:]
            else:
                frame.extend(bytes(size - len(frame)))
            return frame
        frame = bytearray(size)
        if len(self._frames) < _KEPT_FRAMES:
            self._frames.append(frame)
        return frame

    def _deliver(self, frame: Buffer) -> None:
        if not self._pending:
            raise ParseError("an answer that nobody asked for")
        waiting = self._pending[0]
        answer, version = waiting.answer, waiting.version
        if answer is ApiVersionsResponse and version and frame[4:6] == _UNSUPPORTED:
            version = 0  # whoever does not know our version answers in the oldest (KIP-511)
        correlation_id, message = decode_response(answer, frame, version)
        if correlation_id != waiting.correlation_id:
            raise ParseError(f"answer {correlation_id} came before {waiting.correlation_id}")
        self._pending.popleft()
        throttle_ms: int = getattr(message, "throttle_time_ms", 0)
        if throttle_ms > 0:
            # The broker expects the client itself to hold back (KIP-219).
            self._held_until = self._clock.mono_ms() + throttle_ms
        if not waiting.future.done():
            waiting.future.set_result(message)

    # -- time and end ----------------------------------------------------------------------------

    def _arm(self, at: int) -> None:
        """Sees to it that `_on_time` runs at `at` or before."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        delay = max(0, at - self._clock.mono_ms())
        self._timer = self._loop.call_later(delay / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self._clock.mono_ms()
        if self._outgoing and 0 < self._held_until <= now:
            self._held_until = 0
            self._write()
        if self.closed is not None:
            return
        deadlines = [waiting.deadline for waiting in self._pending]
        deadlines += [unsent.deadline for unsent in self._unanswered]
        if deadlines:
            due = min(deadlines)
            if due <= now:
                self._give_up(now)
                return
            if self._outgoing and self._held_until > now:
                due = min(due, self._held_until)
            self._arm(due)
            return
        idle_ms = self._limits.connections_max_idle_ms
        if idle_ms >= 0:
            if now - self._last_use >= idle_ms:
                self.close(NetworkError(f"the connection to {self.address} was not used"))
            else:
                self._arm(self._last_use + idle_ms)

    def _give_up(self, now: int) -> None:
        """The time of a request is over; what has come by now still counts.

        A loop that was held up tells of the time before it tells of what came meanwhile.
        """
        # Whoever got an answer may have asked again.
        before = self._filled, len(self._pending), self._correlation_id
        self._on_readable()
        if self.closed is not None:
            return
        if (self._filled, len(self._pending), self._correlation_id) != before:
            self._arm(now)  # there may be more
            return
        if not self._pending:
            self.close(TimedOut(f"{self.address} took nothing of what was sent in time"))
            return
        name = self._pending[0].answer.__name__.removesuffix("Response")
        self.close(TimedOut(f"{self.address} did not answer {name} in time"))

    def _lost(self, failure: OSError | None) -> None:
        why = "closed it" if failure is None else _said(failure)
        told = f"the connection to {self.address} is lost: {why}"
        fix = ""
        if not self.versions:
            told += " without an answer"
            fix = "check that this is a Kafka listener, without TLS, and that it is not stopping"
        self.close(NetworkError(told, fix=fix, cause=failure))

    async def _negotiate(self) -> None:
        """Learns the broker's versions; an older broker than ours says which it knows."""
        name, release = SOFTWARE
        request = ApiVersionsRequest(client_software_name=name, client_software_version=release)
        version = API[ApiKey.API_VERSIONS].max_version
        answer = await self.request(request, ApiVersionsResponse, version=version)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = {api.api_key: api.max_version for api in answer.api_keys}
            version = min(version - 1, known.get(ApiKey.API_VERSIONS, 0))
            answer = await self.request(request, ApiVersionsResponse, version=version)
        if answer.error_code:
            raise NetworkError(f"{self.address} did not say which versions it speaks")
        self.versions = {a.api_key: (a.min_version, a.max_version) for a in answer.api_keys}
        self.features = {f.name: f.max_version_level for f in answer.finalized_features}


def _said(failure: OSError) -> str:
    """The system's own words: asyncio puts the address in their place."""
    number = failure.errno or 0
    return os.strerror(number) if number > 0 else failure.strerror or str(failure)


_UNSUPPORTED: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


def _drop(views: list[Buffer], done: int) -> None:
    """Takes the first `done` bytes off the front."""
    whole = 0
    for view in views:
        if done < len(view):
            break
        done -= len(view)
        whole += 1
    if done:
        views[whole] = memoryview(views[whole])[done:]
    if whole:
        del views[:whole]
