"""One client's connection: frames in, answers out, in order and with bounds.

Theory of operation. An idle connection owns no memory: bytes are received into one scratch buffer
that all connections of a server share, and a request that arrived whole is handled right there.
What is left of a frame moves into a buffer of its own, lent by the pool, and the rest of it is
received straight to its place; a connection that sends large frames reads only the start of the
next one through the scratch, so a megabyte is never copied.

Requests start in order and answers leave in order. A handler answers at once, or parks:
- *open* parking (a Produce that waits for the high watermark) lets the next requests of the
  connection start, within `MAX_PARKED`;
- *closed* parking (everything else) stops reading until the answer is there.
Answers wait in `_slots` until all before them have left. While more than `MAX_UNSENT` bytes wait
for the peer, or a closed parking is on, nothing is read: the peer's own window pushes back.

A view of request bytes is valid until the handler returns, never beyond: what it returns to be
awaited (`Later`) begins to run after that.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final

from scriba.runtime.ports import EOF, WOULD_BLOCK, Buffer, File, Stream

if TYPE_CHECKING:
    from scriba.broker.commit_lanes import Commits
    from scriba.broker.server import Server

log = logging.getLogger(__name__)

MAX_PARKED: Final = 64
MAX_UNSENT: Final = 1 << 20
FRAMES_PER_PASS: Final = 32
READ_WINDOW: Final = 1 << 19
"""Most bytes one readiness event may take, so that a bulk sender cannot hold up the others."""

LARGE_FRAME: Final = 1 << 16
FIRST_READ_OF_LARGE: Final = 1 << 12
COPIED_BELOW: Final = 1 << 16
"""A file region smaller than this is read and sent with its header in one call."""

SEND_WINDOW: Final = 1 << 20
COLD_WINDOWS: Final = 16
"""How many windows after a cold one are read off the loop, whether they are there or not: a send
that comes to the end of what the kernel has read ahead would have the loop order the next part."""

VIEWS_PER_SEND: Final = 64
_LENGTH: Final = struct.Struct(">i")


class Region:
    """Bytes of a file on their way to the peer."""

    __slots__ = ("file", "known", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.known = position
        """Up to where it was found in the page cache: asked once for each window."""


Part = Buffer | Region
Parts = Sequence[Part]


class Parked:
    """An answer that is not there yet; `open` lets the connection's next request start."""

    __slots__ = ("awaitable", "open")

    def __init__(self, awaitable: Awaitable[Parts | None], open: bool = False) -> None:
        self.awaitable = awaitable
        self.open = open


class HangUp(Exception):
    """The peer broke the protocol, or asked for something that is answered by closing."""


class _Slot:
    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: Parts | None = None


class Connection:
    __slots__ = (
        "_backlog",
        "_closed_parking",
        "_cold",
        "_expected",
        "_filled",
        "_frame",
        "_large",
        "_loading",
        "_out",
        "_paused",
        "_scheduled",
        "_server",
        "_slots",
        "_tasks",
        "_unsent",
        "_writing",
        "closed",
        "commits",
        "last_active",
        "listener",
        "peer",
        "principal",
        "repeats",
        "stream",
    )

    def __init__(self, server: Server, stream: Stream, listener: str, principal: str) -> None:
        self._server = server
        self.stream = stream
        self.listener = listener
        self.principal = principal
        self.peer = stream.peer
        self.closed = False
        self.repeats = 0
        """How far the last Produce repeated the one before it (see `lanes`)."""
        self.commits: Commits | None = None
        """What its next OffsetCommit may repeat (see `commit_lanes`)."""
        self.last_active = server.clock.mono_ms()
        self._backlog = bytearray()
        self._frame: memoryview | None = None
        self._expected = 0
        self._filled = 0
        self._large = False
        self._slots: deque[_Slot] = deque()
        self._closed_parking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._out: deque[Part] = deque()
        self._unsent = 0
        self._writing = False
        self._paused = False
        self._loading = False
        self._cold = 0
        """Windows yet to come that are not sent before a thread has read them."""
        self._scheduled = False
        stream.want(self._on_readable, None)

    # ---- reading ----

    def _on_readable(self) -> None:
        server = self._server
        try:
            frame = self._frame
            if frame is None:
                view = server.scratch
                n = self.stream.recv_into(view[:FIRST_READ_OF_LARGE] if self._large else view)
            else:
                end = min(self._expected, self._filled + READ_WINDOW)
                n = self.stream.recv_into(frame[self._filled : end])
            if n == WOULD_BLOCK:
                return
            if n == EOF:
                self.close()
                return
            self.last_active = server.clock.mono_ms()
            server.counters.bytes_in += n
            if frame is None:
                if self._backlog:
                    self._backlog += view[:n]
                    self._run_backlog()
                elif n >= 4 and _LENGTH.unpack_from(view)[0] + 4 == n and not self._large:
                    self._run_one(view[4:n])
                    return
                else:
                    self._run(view[:n])
            else:
                self._filled += n
                if self._filled == self._expected:
                    self._run_frame(frame)
            if self._out and not self._writing:
                self._flush()
        except HangUp as reason:
            server.hung_up(self, str(reason))
            self._flush_then_close()
        except OSError:
            self.close()

    def _run_one(self, frame: memoryview) -> None:
        """Handles a frame that came alone; the usual answer leaves with one call, queued nowhere.

        A peer that sends one request at a time waits for exactly this answer.
        """
        self._check_length(len(frame))
        if self._slots or self._out:
            self._handle(frame)
        else:
            answer = self._server.handle(self, frame)
            if type(answer) is tuple and len(answer) == 1:
                whole = answer[0]
                if type(whole) is bytearray:
                    sent = max(self.stream.send((whole,)), 0)
                    self._server.counters.bytes_out += sent
                    if sent == len(whole):
                        return
                    answer = (memoryview(whole)[sent:],)
            self._take(answer)
        if self._out and not self._writing:
            self._flush()

    def _run(self, data: memoryview) -> None:
        """Handles the frames that arrived whole and sets the rest aside."""
        start = 0
        end = len(data)
        frames = 0
        while end - start >= 4:
            if self._paused or frames >= FRAMES_PER_PASS:
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
            if frames >= FRAMES_PER_PASS:
                self._schedule_backlog()

    def _run_backlog(self) -> None:
        data = self._backlog
        self._backlog = bytearray()
        self._run(memoryview(data))

    def _check_length(self, length: int) -> None:
        if not 0 < length <= self._server.max_request_bytes:
            raise HangUp(
                f"a frame of {length} bytes was announced; allowed are 1 to "
                f"{self._server.max_request_bytes} (socket.request.max.bytes)"
            )

    def _expect(self, length: int, received: memoryview) -> None:
        """Lends a buffer for the whole frame and reads on at once: more is probably there."""
        frame = self._server.pool.take(length)
        frame[: len(received)] = received
        self._frame, self._expected, self._filled = frame, length, len(received)
        self._on_readable()

    def _run_frame(self, frame: memoryview) -> None:
        self._frame = None
        try:
            self._handle(frame[: self._expected])
        finally:
            self._server.pool.give(frame)

    def _handle(self, frame: memoryview) -> None:
        self._take(self._server.handle(self, frame))

    def _take(self, answer: Parts | Parked | None) -> None:
        if isinstance(answer, Parked):
            self._park(answer)
        elif answer is not None:
            if self._slots:
                slot = _Slot()
                slot.parts = answer
                self._slots.append(slot)
            else:
                self._queue(answer)
                if self._unsent > MAX_UNSENT:
                    # Not one more request before the peer has taken its share.
                    if self._writing:
                        self._update_pause()
                    else:
                        self._flush()

    # ---- answers that come later ----

    def _park(self, parked: Parked) -> None:
        slot = _Slot()
        self._slots.append(slot)
        if not parked.open:
            self._closed_parking = True
        self._update_pause()
        task = asyncio.get_running_loop().create_task(self._finish(slot, parked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, slot: _Slot, parked: Parked) -> None:
        try:
            slot.parts = await parked.awaitable or ()
            if self.closed:
                return
            if not parked.open:
                self._closed_parking = False
            slots = self._slots
            while slots and slots[0].parts is not None:
                self._queue(slots.popleft().parts or ())
            self.last_active = self._server.clock.mono_ms()
            if not self._writing:
                self._flush()
            self._update_pause()
        except HangUp as reason:
            self._server.hung_up(self, str(reason))
            self._flush_then_close()
        except OSError:
            self.close()
        except Exception:
            log.exception("a parked request of %s failed; closing its connection", self.peer)
            self.close()

    def _update_pause(self) -> None:
        """Recomputes whether requests may start, and resumes with what was set aside."""
        if self.closed:
            return
        pause = self._closed_parking or len(self._slots) >= MAX_PARKED or self._unsent > MAX_UNSENT
        if pause == self._paused:
            return
        self._paused = pause
        self._set_interest()
        if not pause and self._backlog:
            self._schedule_backlog()

    def _schedule_backlog(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._set_interest()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._scheduled = False
        if self.closed or self._paused:
            return
        try:
            self._run_backlog()
            if self._out and not self._writing:
                self._flush()
            self._set_interest()
        except HangUp as reason:
            self._server.hung_up(self, str(reason))
            self._flush_then_close()
        except OSError:
            self.close()

    def _set_interest(self) -> None:
        if self.closed:
            return
        reading = not self._paused and not self._scheduled
        self.stream.want(
            self._on_readable if reading else None, self._flush_ready if self._writing else None
        )

    # ---- writing ----

    def _queue(self, parts: Parts) -> None:
        out = self._out
        for part in parts:
            if type(part) is Region:
                self._unsent += part.size
            else:
                self._unsent += len(part)  # type: ignore[arg-type]
            out.append(part)

    def _flush_ready(self) -> None:
        try:
            self._flush()
        except OSError:
            self.close()

    def _flush(self) -> None:
        """Sends what the peer takes; asks to be called again for the rest."""
        out = self._out
        if self._loading:
            return
        while out:
            head = out[0]
            if isinstance(head, Region):
                if head.known <= head.position:
                    n = min(head.size, SEND_WINDOW)
                    if not head.file.resident(head.position, n):
                        self._cold = COLD_WINDOWS + 1
                    if self._cold:
                        self._cold -= 1
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
            self._advance(sent)
        writing = bool(out)
        if writing != self._writing:
            self._writing = writing
            self._set_interest()
        self._update_pause()

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
        self._server.counters.cold_windows += 1
        if self._writing:
            # The peer would take more, but there is nothing to give: asking would only spin.
            self._writing = False
            self._set_interest()
        task = asyncio.get_running_loop().create_task(self._load_then_flush(region, n))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_then_flush(self, region: Region, n: int) -> None:
        try:
            await region.file.load(region.position, n)
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

    def _flush_then_close(self) -> None:
        """Lets answers to earlier requests leave, then hangs up."""
        try:
            if not self.closed and not self._writing:
                self._flush()
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.stream.close()
        for task in tuple(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._out.clear()
        self._slots.clear()
        self._backlog = bytearray()
        if self._frame is not None:
            self._server.pool.give(self._frame)
            self._frame = None
        self._server.forget(self)

    @property
    def busy(self) -> bool:
        """Whether a request of this connection is being worked on or answered."""
        return bool(self._slots)
