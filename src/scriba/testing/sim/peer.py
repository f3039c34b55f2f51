"""A bare client: one connection, requests by message and version, answers matched in order.

It works over any `Stream`, simulated or real, keeps any number of requests in flight, and adds no
retries: what the broker does is what the test sees.
"""

import asyncio
from collections import deque
from struct import Struct
from typing import Any, Final, TypeVar

from scriba.runtime.ports import EOF, WOULD_BLOCK, Net, Stream
from scriba.wire.frame import decode_response, encode_request
from scriba.wire.schema import Message

M = TypeVar("M", bound=Message)

_LENGTH: Final = Struct(">i")
_CHUNK: Final = 1 << 16


class Peer:
    def __init__(self, stream: Stream, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._sent = 0
        self._unsent = bytearray()
        self._received = bytearray()
        self._view = memoryview(bytearray(_CHUNK))
        self._waiting: deque[tuple[int, type[Message], int, asyncio.Future[Any]]] = deque()
        self._failure: OSError | None = None
        stream.want(self._on_readable, None)

    @classmethod
    async def connect(cls, net: Net, host: str, port: int, client_id: str = "peer") -> "Peer":
        return cls(await net.connect(host, port), client_id)

    def send(self, request: Message, version: int, answer: type[M]) -> "asyncio.Future[M]":
        """Queues a request; the future holds its answer, or the OSError that ended the wait."""
        future: asyncio.Future[M] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        self._sent += 1
        frame = encode_request(request, version, self._sent, self._client_id)
        self._waiting.append((self._sent, answer, version, future))
        self._unsent += _LENGTH.pack(len(frame))
        self._unsent += frame
        self._flush()
        return future

    def send_unanswered(self, request: Message, version: int) -> None:
        """Queues a request that gets no answer, as a Produce with acks=0."""
        if self._failure is None:
            self._sent += 1
            frame = encode_request(request, version, self._sent, self._client_id)
            self._unsent += _LENGTH.pack(len(frame))
            self._unsent += frame
            self._flush()

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
        if self._failure is not None:
            return
        self._failure = why or ConnectionAbortedError("closed")
        self._stream.close()
        for _, _, _, future in self._waiting:
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # the asker may have gone
        self._waiting.clear()

    @property
    def closed(self) -> bool:
        return self._failure is not None

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
            self._take_answers()

    def _take_answers(self) -> None:
        buffer = self._received
        while len(buffer) >= 4:
            (size,) = _LENGTH.unpack_from(buffer)
            if len(buffer) < 4 + size:
                return
            frame = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            number, answer, version, future = self._waiting.popleft()
            correlation_id, message = decode_response(answer, frame, version)
            assert correlation_id == number, "answers leave in the order of their requests"
            if not future.done():
                future.set_result(message)
