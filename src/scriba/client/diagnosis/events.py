"""Reads the events of a node, from the address at which it also tells its metrics."""

import asyncio
import json
from typing import Final

from scriba.client.diagnosis.facts import EventFacts
from scriba.runtime.ports import EOF, WOULD_BLOCK, Buffer, Net, Stream

MOST_BYTES: Final = 16 << 20
"""Of one answer; a node keeps fewer events than that."""
_PIECE: Final = 1 << 16
_BLANK: Final = b"\r\n\r\n"


async def read_events(net: Net, host: str, port: int, node: int) -> list[EventFacts]:
    """All that are kept, page by page. OSError, ValueError or KeyError where there is no such
    answer; whoever asks sets a limit to the time."""
    found: list[EventFacts] = []
    since = 0
    while True:
        told = json.loads(await _get(net, host, port, f"/events?since={since}"))
        found += (
            EventFacts(node, each["time_ms"], each["kind"], each["about"], each["text"])
            for each in told["events"]
        )
        if not told["events"] or told["next"] <= since:
            return found
        since = told["next"]


async def _get(net: Net, host: str, port: int, path: str) -> bytes:
    """The body of an answer with the status 200."""
    stream = await net.connect(host, port)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
        whole = await _Exchange(stream, request.encode()).answer
    finally:
        stream.close()
    head, blank, body = whole.partition(_BLANK)
    if not blank or head.split(None, 2)[1:2] != [b"200"]:
        raise ValueError(f"{host}:{port} does not tell events")
    return bytes(body)


class _Exchange:
    """One request, and all that comes until the other side ends the connection."""

    def __init__(self, stream: Stream, request: bytes) -> None:
        self._stream = stream
        self._left = memoryview(request)
        self._got = bytearray()
        self.answer: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        stream.want(self._read, self._write)

    def _write(self) -> None:
        try:
            views: list[Buffer] = [self._left]
            sent = self._stream.send(views)
        except OSError as error:
            self._end(error)
            return
        if sent != WOULD_BLOCK:
            self._left = self._left[sent:]
        if not len(self._left):
            self._stream.want(self._read, None)

    def _read(self) -> None:
        piece = memoryview(bytearray(_PIECE))
        try:
            count = self._stream.recv_into(piece)
        except OSError as error:
            self._end(error)
            return
        if count == WOULD_BLOCK:
            return
        self._got += piece[: max(count, 0)]
        if count == EOF:
            self._end(None)
        elif len(self._got) > MOST_BYTES:
            self._end(ValueError(f"an answer of more than {MOST_BYTES} bytes"))

    def _end(self, error: Exception | None) -> None:
        self._stream.want(None, None)
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(self._got)
        else:
            self.answer.set_exception(error)
