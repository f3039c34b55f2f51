"""One client's connection: frames in, answers out, in order and with bounds.

Theory of operation. An idle connection owns no memory: bytes are received into one scratch buffer
that all connections of a server share, and a request that arrived whole is handled right there.
What is left of a frame moves into a buffer of its own, lent by the pool, and the rest of it is
received straight to its place; a connection that sends large frames reads only the start of the
next one through the scratch, so a megabyte is never copied.

Requests start in order and answers leave in order. A handler answers at once, or parks:
- a *pipelined* request (a Produce that waits for the high watermark) lets the next requests of the
  connection start, within `MAX_PARKED`;
- any other one that waits stops reading until its answer is there.
Answers wait in `_slots` until all before them have left. While more than `MAX_UNSENT` bytes wait
for the peer, or a request that is not pipelined waits, nothing is read: the peer's own window
pushes back. A peer that hangs up is noticed meanwhile, and whatever waits for it ends.

A request that ends its connection lets the answers to those before it leave first.

A view of request bytes is valid until the handler returns, never beyond: what it returns to be
awaited (`Deferred`) begins to run after that. Frames are released then, and read no more
(`buffers`).
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final, Protocol

from scriba.broker.net.answers import (
    CloseConnection,
    KeptFrame,
    Parked,
    Part,
    Parts,
    Region,
    Slot,
)
from scriba.broker.net.buffers import ALONE, FrameBuffer, ReceiveBuffer
from scriba.broker.observe.counters import CloseReason
from scriba.events import EventKind
from scriba.runtime.loop.pace import call_in_turn
from scriba.runtime.loop.tasks import cancel_begun
from scriba.runtime.ports import EOF, WOULD_BLOCK, Buffer, Stream

if TYPE_CHECKING:
    from scriba.broker.net.buffers import BufferPool, Spoil
    from scriba.broker.net.request_memory import RequestMemory
    from scriba.broker.observe.counters import NetworkCounters
    from scriba.broker.observe.events import Note
    from scriba.runtime.ports import Clock

MAX_PARKED: Final = 64
MAX_UNSENT: Final = 1 << 20
TURN_MS: Final = 2
FRAMES_PER_TURN: Final = 32
"""Whoever pipelines requests has so many of them handled, and for so long, before others have
their turn: requests are not alike, and thirty-two that describe settings are half a second."""

READ_WINDOW: Final = 1 << 19
"""Most bytes one readiness event may take, so that a bulk sender cannot hold up the others."""

SHARED_READ_WINDOW: Final = 1 << 17
"""The same while others send as well: they are looked for between two windows."""

SHARED_MS: Final = 100
"""How long it counts that others have sent something, or that somebody has sent much. Small windows
take more of the processor, so a sender that is alone has large ones."""

READ_AHEAD: Final = 1 << 14
"""Bytes of further requests that are taken while one waits that is not pipelined."""

LARGE_FRAME: Final = 1 << 16
BULK_READ: Final = 1 << 15
"""Whoever has so many bytes ready at once is read after others, be it one request or many."""
FIRST_READ_OF_LARGE: Final = 1 << 12
SEND_WINDOW: Final = 1 << 20
SENT_PER_TURN: Final = 1 << 23
"""Most bytes that are sent before others have their turn: a peer on the same machine may take them
as fast as they are copied."""

OFF_LOOP_WINDOWS: Final = 16
"""How many windows after one that was not in the page cache are read off the loop, whether they are
there or not: a send that comes to the end of what the kernel has read ahead would have the loop
order the next part."""

VIEWS_PER_SEND: Final = 64
_LENGTH: Final = struct.Struct(">i")
_NO_VIEW: Final = memoryview(b"")


def _nothing() -> None:
    pass


class Unreadable(Protocol):
    def __call__(self, path: str, error: OSError) -> None:
        """A device does not give what a file has, of which an answer was being sent."""


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    scratch: ReceiveBuffer

    @property
    def clock(self) -> Clock: ...

    @property
    def counters(self) -> NetworkCounters: ...

    @property
    def max_request_bytes(self) -> int: ...

    @property
    def memory(self) -> RequestMemory: ...

    @property
    def note(self) -> Note: ...

    @property
    def pool(self) -> BufferPool: ...

    @property
    def unreadable(self) -> Unreadable: ...

    @property
    def spoil(self) -> Spoil | None: ...

    def handle(self, connection: Connection, frame: memoryview) -> Parts | Parked | None: ...

    def renew_scratch(self) -> None: ...

    def hung_up(self, connection: Connection, why: CloseConnection) -> None: ...

    def forget(self, connection: Connection) -> None: ...


class FastPath(Protocol):
    """What answers the usual requests of an API without their handler (see `broker.fastpath`)."""

    def take(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """The answer; None where the request has to go to its handler: nothing has changed."""


class Promise(Parked):
    """A parked answer that callbacks give: a coroutine would cost more than the work itself.

    There is nothing to await: it ends in `Connection.keep`, or in `abandon` when the connection
    ends first. Not an ABC: `isinstance` of one is a call in Python, for each answer that waits.
    """

    __slots__ = ("connection", "slot")

    connection: Connection
    slot: Slot

    def __init__(self, pipelined: bool = False) -> None:
        self.pipelined = pipelined

    def begin(self) -> None:
        """Its place among the answers is taken: waits from now on."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Nobody wants the answer any more."""
        raise NotImplementedError


class Connection:
    __slots__ = (
        "_backlog",
        "_bulk",
        "_bulk_until",
        "_closing",
        "_expected",
        "_filled",
        "_frame",
        "_large",
        "_lent",
        "_loading",
        "_off_loop",
        "_out",
        "_paused",
        "_promises",
        "_scheduled",
        "_seen_bytes",
        "_server",
        "_shared_until",
        "_short_of_memory",
        "_slots",
        "_tasks",
        "_unread",
        "_unsent",
        "_waiting",
        "_writing",
        "closed",
        "commits",
        "fast_path",
        "last_active",
        "listener",
        "now",
        "on_close",
        "peer",
        "principal",
        "stream",
    )

    def __init__(
        self, server: ConnectionOwner, stream: Stream, listener: str, principal: str
    ) -> None:
        self._server = server
        self.stream = stream
        self.listener = listener
        self.principal = principal
        self.peer = stream.peer
        self.closed = False
        self.on_close: Callable[[], object] | None = None
        """Called once, when the connection has ended."""
        self.now = server.clock.now()
        """When the frame that is being handled came."""
        self.fast_path: FastPath | None = None
        """What is asked first about the next request: what was asked last."""
        self.commits: Any = None
        """What its next OffsetCommit may repeat: kept here for `fastpath.commit`."""
        self.last_active = self.now.mono_ms
        self._backlog = bytearray()
        self._frame: FrameBuffer | None = None
        self._expected = 0
        self._filled = 0
        self._seen_bytes = 0
        """What all connections together had received when this one last read of a large frame."""
        self._shared_until = 0
        """Until when it counts that others send as well."""
        self._bulk = False
        """Whether it sends much at once: then others who are ready are read first."""
        self._bulk_until = 0
        self._large = False
        """Whether the last frame was large. The start of the next one is read by itself then."""
        self._lent: FrameBuffer | None = None
        """The buffer of the frame that is being handled, if it has one of its own."""
        self._slots: deque[Slot] = deque()
        self._waiting = False
        """Whether a request that is not pipelined waits for its answer."""
        self._closing: CloseReason | None = None
        """Why it is closed, once the answers to earlier requests have left."""
        self._promises: set[Promise] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._out: deque[Part] = deque()
        self._unsent = 0
        self._writing = False
        self._paused = False
        self._unread = False
        """Whether the peer has sent more while nothing is read."""
        self._short_of_memory = False
        """Whether the rest of its frame waits until there is memory for it."""
        self._loading = False
        self._off_loop = 0
        """Windows yet to come that are not sent before a thread has read them."""
        self._scheduled = False
        stream.want(self._on_readable, None)

    # ---- reading ----

    def _on_readable(self) -> None:
        if self._bulk:
            # epoll names a socket that always has more before one that has just become readable.
            # So all others that are ready now are read first.
            asyncio.get_running_loop().call_soon(self._read)
        else:
            self._read()

    def _read(self) -> None:
        if self.closed:
            return
        server = self._server
        try:
            if self._paused:
                self._read_ahead()
                return
            frame = self._frame
            if frame is None:
                if getrefcount(server.scratch.memory) != ALONE:
                    server.renew_scratch()
                view = memoryview(server.scratch.memory)
                if self._large or server.memory.short:
                    n = self.stream.recv_into(view[:FIRST_READ_OF_LARGE])
                elif self._bulk:
                    n = self.stream.recv_into(view[: self._read_window()])
                else:
                    n = self.stream.recv_into(view)
            elif self._short_of_memory:
                return  # asked for before it had to wait
            else:
                view = memoryview(frame.memory)
                end = min(self._expected, self._filled + self._read_window())
                n = self.stream.recv_into(view[self._filled : end])
            if n == WOULD_BLOCK:
                return
            if n == EOF:
                self.close("peer_closed")
                return
            self.now = now = server.clock.now()
            self.last_active = now.mono_ms
            server.counters.bytes_in += n
            if self._bulk or n >= BULK_READ or frame is not None:
                self._look_for_others(n)
            if frame is None:
                if self._backlog:
                    self._backlog += view[:n]
                    self._run_backlog()
                elif n >= 4 and _LENGTH.unpack_from(view)[0] + 4 == n and not self._large:
                    self._run_one(view[4:n])
                else:
                    self._run(view[:n])
                if server.spoil is not None:
                    server.spoil(view[:n])
            else:
                self._filled += n
                if self._filled == self._expected:
                    server.memory.complete(self)
                    view.release()
                    self._run_frame(frame)
            if self._out and not self._writing:
                self._flush()
        except CloseConnection as reason:
            view = _NO_VIEW
            self.end(reason)
        except OSError:
            # Whoever keeps the error keeps this frame, and must not keep the buffer with it.
            view = _NO_VIEW
            self.close()

    def _look_for_others(self, n: int) -> None:
        """Notes whether somebody else has sent since this connection was last read."""
        total = self._server.counters.bytes_in
        if self._bulk and total - n != self._seen_bytes:
            self._shared_until = self.now.mono_ms + SHARED_MS
        self._seen_bytes = total
        if self._large or n >= BULK_READ:
            self._bulk_until = self.now.mono_ms + SHARED_MS
        self._bulk = self.now.mono_ms < self._bulk_until

    def _read_ahead(self) -> None:
        """Something has come while no request may start: a hang-up, or more requests, of which
        some are taken, so that a hang-up behind them is noticed as well."""
        room = READ_AHEAD - len(self._backlog)
        if room <= 0 or self._frame is not None or self._closing is not None:
            self._unread = not self.stream.ended()
            n = WOULD_BLOCK if self._unread else EOF
        else:
            ahead = bytearray(room)
            n = self.stream.recv_into(memoryview(ahead))
        if n == EOF:
            self.close("peer_closed")
        elif n != WOULD_BLOCK:
            self._server.counters.bytes_in += n
            self._backlog += ahead[:n]
        else:
            self._set_interest()

    def _read_window(self) -> int:
        """How much of a bulk sender's bytes to take at once."""
        return SHARED_READ_WINDOW if self.now.mono_ms < self._shared_until else READ_WINDOW

    def _run_one(self, frame: memoryview) -> None:
        """Handles a frame that ends what has come; the usual answer leaves with one call, queued
        nowhere.

        A peer that sends one request at a time waits for exactly this answer.
        """
        if not 0 < len(frame) <= self._server.max_request_bytes:
            self._check_length(len(frame))
        path = self.fast_path
        answer = path.take(self, frame) if path is not None else None
        if answer is None:
            answer = self._server.handle(self, frame)
        frame.release()
        if type(answer) is tuple and len(answer) == 1 and not self._slots and not self._out:
            whole: Any = answer[0]
            if type(whole) is not Region:
                sent = self.stream.send((whole,))
                if sent == len(whole):
                    self._server.counters.bytes_out += sent
                    return
                if sent > 0:
                    self._server.counters.bytes_out += sent
                    answer = (memoryview(whole)[sent:],)
        self._take(answer)
        if self._out and not self._writing:
            self._flush()

    def _run(self, data: memoryview) -> None:
        """Handles the frames that arrived whole and sets the rest aside."""
        start, end, frames = 0, len(data), 0
        server = self._server
        turn_ends = self.now.mono_ms + TURN_MS
        while end - start >= 4:
            if self._paused:
                break
            if frames:
                self.now = server.clock.now()
                if frames == FRAMES_PER_TURN or self.now.mono_ms >= turn_ends:
                    break
            length = int.from_bytes(data[start : start + 4], "big", signed=True)
            self._check_length(length)
            stop = start + 4 + length
            self._large = length >= LARGE_FRAME
            if stop > end:
                if not self._large:
                    break
                self._expect(length, data[start + 4 : end])
                return
            self._handle(data[start + 4 : stop])
            frames += 1
            start = stop
        if start < end:
            self._backlog = bytearray(data[start:end])
            if frames == FRAMES_PER_TURN or self.now.mono_ms >= turn_ends:
                self._schedule_backlog()

    def _run_backlog(self) -> None:
        data = self._backlog
        self._backlog = bytearray()
        self.now = self._server.clock.now()
        self._run(memoryview(data))

    def _check_length(self, length: int) -> None:
        if not 0 < length <= self._server.max_request_bytes:
            raise CloseConnection(
                f"a frame of {length} bytes was announced; allowed are 1 to "
                f"{self._server.max_request_bytes} (socket.request.max.bytes)",
                "too_large" if length > 0 else "malformed",
            )

    def _expect(self, length: int, received: memoryview) -> None:
        """Lends a buffer for the whole frame and reads on at once: more is probably there."""
        frame = self._server.pool.take(length)
        memoryview(frame.memory)[: len(received)] = received
        self._frame, self._expected, self._filled = frame, length, len(received)
        if self._server.memory.grant(self, length):
            frame.memory.grant(self._server.memory, length)
            self._read()
        else:
            self._short_of_memory = True
            self._set_interest()

    def read_on(self) -> None:
        """There is memory for the rest of its frame."""
        assert self._frame is not None, "who has no frame waits for nothing"
        self._frame.memory.grant(self._server.memory, self._expected)
        self.last_active = self._server.clock.mono_ms()
        self._short_of_memory = False
        self._set_interest()

    @property
    def announced(self) -> int:
        return self._expected

    @property
    def received(self) -> int:
        return self._filled

    def _run_frame(self, frame: FrameBuffer) -> None:
        self._frame = None
        self._lent = frame
        self._run_one(memoryview(frame.memory)[: self._expected])
        # Not after an exception, whose traceback still has views; and not if it was kept.
        if self._lent is not None:
            self._lent = None
            self._server.pool.give(frame)

    def keep_frame(self, frame: memoryview) -> KeptFrame:
        """Keeps the frame that is being handled for as long as it takes to read it in slices."""
        lent, self._lent = self._lent, None
        if lent is None:
            return KeptFrame(memoryview(self._server.memory.copy(frame)), _nothing)
        return KeptFrame(frame[:], partial(self._server.pool.give, lent))

    def leave_frame(self) -> None:
        """Leaves the frame and its buffer to the request (`Deferred.keeps_frame`)."""
        self._lent = None

    def _handle(self, frame: memoryview) -> None:
        answer = self._answer(frame)
        frame.release()
        self._take(answer)

    def _answer(self, frame: memoryview) -> Parts | Parked | None:
        path = self.fast_path
        answer = path.take(self, frame) if path is not None else None
        return self._server.handle(self, frame) if answer is None else answer

    def _take(self, answer: Parts | Parked | None) -> None:
        if isinstance(answer, Parked):
            self._park(answer)
        elif answer is not None:
            if self._slots:
                slot = Slot()
                slot.parts = answer
                self._slots.append(slot)
                self._count(answer)
                self._update_pause()
            else:
                self._count(answer)
                self._out.extend(answer)
                if self._unsent > MAX_UNSENT:
                    # Not one more request before the peer has taken its share.
                    if self._writing:
                        self._update_pause()
                    else:
                        self._flush()

    # ---- answers that come later ----

    def _park(self, parked: Parked) -> None:
        slot = Slot()
        self._slots.append(slot)
        if not parked.pipelined:
            self._waiting = True
        self._update_pause()
        if isinstance(parked, Promise):
            self._promises.add(parked)
            parked.connection, parked.slot = self, slot
            parked.begin()
        else:
            self._spawn(self._finish(slot, parked))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, slot: Slot, parked: Parked) -> None:
        try:
            self._deliver(slot, await parked.awaitable or (), parked.pipelined)
        except CloseConnection as reason:
            self._drop_from(slot)
            self.end(reason)
        except OSError:
            self.close()
        except Exception as error:
            text = f"a parked request failed, its connection is closed: {error!r}"
            self._server.note(EventKind.REQUEST_FAILED, self.peer, text, error)
            self.close("failed")

    def keep(self, promise: Promise, answer: Parts | Parked | None) -> None:
        """Takes what a promise came to; the answer may be one more that is not there yet."""
        self._promises.discard(promise)
        if isinstance(answer, Parked):
            self._spawn(self._finish(promise.slot, answer))
            return
        try:
            self._deliver(promise.slot, answer or (), promise.pipelined)
        except OSError:
            self.close()

    def _drop_from(self, slot: Slot) -> None:
        """Nothing is answered from this request on: its answer would be missing before theirs."""
        while self._slots and self._slots.pop() is not slot:
            pass

    def _deliver(self, slot: Slot, parts: Parts, pipelined: bool) -> None:
        if self.closed:
            return
        if not pipelined:
            self._waiting = False
        slots = self._slots
        if len(parts) == 1 and len(slots) == 1 and slots[0] is slot and not self._out:
            parts = self._send_now(parts)
        slot.parts = parts
        if parts:
            self._count(parts)
        while slots and slots[0].parts is not None:
            self._out.extend(slots.popleft().parts or ())
        self.last_active = self._server.clock.mono_ms()
        if not self._writing and (self._out or self._closing is not None):
            self._flush()
        self._update_pause()

    def _send_now(self, parts: Parts) -> Parts:
        """Sends an answer of one piece that nothing is before, queued nowhere; what is left."""
        whole: Any = parts[0]
        if type(whole) is Region or self._closing is not None:
            return parts
        sent = self.stream.send((whole,))
        if sent == WOULD_BLOCK:
            return parts
        self._server.counters.bytes_out += sent
        return () if sent == len(whole) else (memoryview(whole)[sent:],)

    def _update_pause(self) -> None:
        """Recomputes whether requests may start, and resumes with what was set aside.

        A pause leaves the interest as it is: most end before the peer has sent anything.
        """
        if self.closed:
            return
        pause = (
            self._waiting
            or len(self._slots) >= MAX_PARKED
            or self._unsent > MAX_UNSENT
            or self._closing is not None
        )
        if pause == self._paused:
            return
        self._paused = pause
        if not pause:
            self._unread = False
            self._set_interest()
            if self._backlog:
                self._schedule_backlog()

    def _schedule_backlog(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._set_interest()
            call_in_turn(self._resume)

    def _resume(self) -> None:
        self._scheduled = False
        if self.closed or self._paused:
            return
        try:
            self._run_backlog()
            if self._out and not self._writing:
                self._flush()
            self._set_interest()
        except CloseConnection as reason:
            self.end(reason)
        except OSError:
            self.close()

    def _set_interest(self) -> None:
        if self.closed:
            return
        reading = not (self._scheduled or self._unread or self._short_of_memory)
        self.stream.want(
            self._on_readable if reading else None, self._flush_ready if self._writing else None
        )

    # ---- writing ----

    def _count(self, parts: Parts) -> None:
        """Counts an answer as unsent from when it is there, be it that another one comes first."""
        for part in parts:
            self._unsent += len(part)

    def _flush_ready(self) -> None:
        try:
            self._flush()
        except OSError:
            self.close()

    def _flush(self) -> None:
        """Sends what the peer takes; asks to be called again for the rest."""
        out = self._out
        if self._loading or self.closed:
            return
        left = SENT_PER_TURN
        while out and left > 0:
            head = out[0]
            if isinstance(head, Region):
                if head.known <= head.position:
                    n = min(head.size, SEND_WINDOW)
                    if not head.file.resident(head.position, n):
                        self._off_loop = OFF_LOOP_WINDOWS + 1
                    if self._off_loop:
                        self._off_loop -= 1
                        self._load(head, n)
                        return
                    head.known = head.position + n
                n = head.known - head.position
                sent = self.stream.send_file(head.file, head.position, n)
            else:
                views = self._gather()
                sent = self.stream.send(views, len(views) < len(out))
            if sent == WOULD_BLOCK:
                break
            self._server.counters.bytes_out += sent
            self._unsent -= sent
            left -= sent
            self._advance(sent)
        writing = bool(out)
        if writing != self._writing:
            self._writing = writing
            self._set_interest()
        self._update_pause()
        if self._closing is not None and not out and not self._slots:
            self.close(self._closing)

    def _gather(self) -> list[Buffer]:
        views: list[Buffer] = []
        for part in self._out:
            if isinstance(part, Region) or len(views) == VIEWS_PER_SEND:
                break
            views.append(part)
        return views

    def _advance(self, sent: int) -> None:
        out = self._out
        self.last_active = self._server.clock.mono_ms()
        while sent:
            head = out[0]
            if isinstance(head, Region):
                head.position += sent
                head.size -= sent
                if not head.size:
                    out.popleft()
                return
            if sent < len(head):
                out[0] = memoryview(head)[sent:]
                return
            sent -= len(head)
            out.popleft()
        while out and not isinstance(out[0], Region) and not len(out[0]):
            out.popleft()

    def _load(self, region: Region, n: int) -> None:
        """Has the window read into the page cache off the loop, then goes on sending."""
        self._loading = True
        self._server.counters.page_cache_misses += 1
        if self._writing:
            # The peer would take more, but there is nothing to give: asking would only spin.
            self._writing = False
            self._set_interest()
        self._spawn(self._load_then_flush(region, n))

    async def _load_then_flush(self, region: Region, n: int) -> None:
        try:
            await region.file.load(region.position, n)
        except OSError as error:
            # The answer has begun: all that is left is to hang up. Who asks again is told why.
            self._server.unreadable(region.file.path, error)
            self.close()
            return
        try:
            self._loading = False
            if self.closed:
                return
            # Sent without asking again: under memory pressure the page may be gone already, and
            # asking for ever would send nothing.
            region.known = region.position + n
            sent = self.stream.send_file(region.file, region.position, n)
            if sent != WOULD_BLOCK:
                self._server.counters.bytes_out += sent
                self._unsent -= sent
                self._advance(sent)
            self._flush()
        except OSError:
            self.close()

    def end(self, why: CloseConnection) -> None:
        self._server.hung_up(self, why)
        self._flush_then_close(why.reason)

    def _flush_then_close(self, reason: CloseReason) -> None:
        """Reads no more, lets the answers to earlier requests leave, then hangs up."""
        if self.closed:
            return
        self._closing = reason
        self._drop_received()
        try:
            self._update_pause()
            if not self._writing:
                self._flush()
        except OSError:
            self.close(reason)

    def _drop_received(self) -> None:
        """Nothing more of it is handled. Frames do not go back to the pool: whoever was reading
        them when it came to this has views of them."""
        self._backlog = bytearray()
        if self._frame is not None:
            self._server.memory.complete(self)
        self._frame = self._lent = None

    def close(self, reason: CloseReason = "broken") -> None:
        if self.closed:
            return
        self.closed = True
        self._server.counters.closed[reason] += 1
        self.stream.close()
        for task in tuple(self._tasks):
            if task is not asyncio.current_task():
                cancel_begun(task)
        for promise in self._promises:
            promise.abandon()
        self._promises.clear()
        self._out.clear()
        self._slots.clear()
        self._drop_received()
        self.fast_path = None  # one of a follower's session knows this connection
        self._server.forget(self)
        if self.on_close is not None:
            self.on_close()

    @property
    def unsent_in_memory(self) -> int:
        """Bytes of answers that the peer has not taken, without those that are in files."""
        return sum(len(part) for part in self._out if not isinstance(part, Region))

    @property
    def busy(self) -> bool:
        """Whether a request of this connection is being worked on or answered, or may not come."""
        return bool(self._slots) or self._short_of_memory
