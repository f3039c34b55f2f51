"""A bare client: one connection, with no retries, so that what the broker does is what a test sees.

`Wire` sends and receives frames as bytes. `Peer` sends requests by message and version, keeps any
number of them in flight, and matches the answers in order. Both work over any `Stream`, simulated
or real.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Self, TypeVar

from scriba.runtime.ports import EOF, WOULD_BLOCK, Net, Stream
from scriba.wire.frame import decode_response, encode_request
from scriba.wire.schema import Message

M = TypeVar("M", bound=Message)

_LENGTH: Final = Struct(">i")
_CHUNK: Final = 1 << 16


class Wire:
    """Frames in both directions. Who wants to know of them sets `on_frame` and `on_end`."""

    def __init__(self, stream: Stream) -> None:
        self.on_frame: Callable[[bytes], None] = _ignore
        self.on_end: Callable[[OSError], None] = _ignore
        self._stream = stream
        self._unsent = bytearray()
        self._received = bytearray()
        self._view = memoryview(bytearray(_CHUNK))
        self._failure: OSError | None = None
        stream.want(self._on_readable, None)

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> OSError | None:
        return self._failure

    def send(self, frame: bytes) -> None:
        """Queues a frame; one for a connection that has ended is dropped."""
        if self._failure is None:
            self._unsent += _LENGTH.pack(len(frame))
            self._unsent += frame
            self._flush()

    def close(self, why: OSError | None = None) -> None:
        if self._failure is None:
            self._failure = why or ConnectionAbortedError("closed")
            self._stream.close()
            self.on_end(self._failure)

    def _flush(self) -> None:
        try:
            while self._unsent:
                done = self._stream.send([bytes(self._unsent)])
                if done == WOULD_BLOCK:
                    break
                del self._unsent[:done]
        except OSError as failure:
            self.close(failure)
            return
        self._stream.want(self._on_readable, self._flush if self._unsent else None)

    def _on_readable(self) -> None:
        try:
            got = self._stream.recv_into(self._view)
        except OSError as failure:
            self.close(failure)
            return
        if got == EOF:
            self.close(ConnectionResetError("the other side hung up"))
        elif got != WOULD_BLOCK:
            self._received += self._view[:got]
            self._take_frames()

    def _take_frames(self) -> None:
        buffer = self._received
        while len(buffer) >= 4:
            (size,) = _LENGTH.unpack_from(buffer)
            if len(buffer) < 4 + size:
                return
            frame = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            self.on_frame(frame)


def _ignore(_: object) -> None:
    """Nobody wants to know."""


class Peer:
    def __init__(self, stream: Stream, client_id: str) -> None:
        self.wire = Wire(stream)
        self.wire.on_frame = self._take
        self.wire.on_end = self._end
        self._client_id = client_id
        self._sent = 0
        self._waiting: deque[tuple[int, type[Message], int, asyncio.Future[Any]]] = deque()

    @classmethod
    async def connect(cls, net: Net, host: str, port: int, client_id: str = "peer") -> Self:
        return cls(await net.connect(host, port), client_id)

    def send(self, request: Message, version: int, answer: type[M]) -> "asyncio.Future[M]":
        """Queues a request; the future holds its answer, or the OSError that ended the wait."""
        future: asyncio.Future[M] = asyncio.get_running_loop().create_future()
        if self.wire.failure is not None:
            future.set_exception(self.wire.failure)
            return future
        frame = self._frame(request, version)
        self._waiting.append((self._sent, answer, version, future))
        self.wire.send(frame)
        return future

    def send_unanswered(self, request: Message, version: int) -> None:
        """Queues a request that gets no answer, as a Produce with acks=0."""
        self.wire.send(self._frame(request, version))

    async def call(
        self, request: Message, version: int, answer: type[M], timeout_s: float = 30.0
    ) -> M:
        """A request and its answer; a time-out (TimeoutError is an OSError) ends the connection,
        as the answers after it could not be matched any more."""
        try:
            return await asyncio.wait_for(self.send(request, version, answer), timeout_s)
        except TimeoutError as late:
            self.close(late)
            raise

    def close(self, why: OSError | None = None) -> None:
        self.wire.close(why)

    @property
    def closed(self) -> bool:
        return self.wire.closed

    def _frame(self, request: Message, version: int) -> bytes:
        self._sent += 1
        return encode_request(request, version, self._sent, self._client_id)

    def _take(self, frame: bytes) -> None:
        number, answer, version, future = self._waiting.popleft()
        correlation_id, message = decode_response(answer, frame, version)
        assert correlation_id == number, "answers leave in the order of their requests"
        if not future.done():
            future.set_result(message)

    def _end(self, failure: OSError) -> None:
        for _, _, _, future in self._waiting:
            if not future.done():
                future.set_exception(failure)
                future.exception()  # the asker may have gone
        self._waiting.clear()
