"""The small HTTP server of a node: `/metrics` for Prometheus, `/events` for consoles and scripts,
`/ready` for whoever restarts one node after the other.

A client gets one answer for each connection. It has `PATIENCE_S` to ask, and only so many may ask
at once, so that whoever forgets about a connection costs next to nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs

from scriba.broker.metrics.exposition import render
from scriba.broker.metrics.readiness import ReadinessHost, readiness
from scriba.broker.metrics.scrape import Observed
from scriba.broker.observe.events import Events
from scriba.broker.ports import BackgroundTasks
from scriba.errors import KafkaError
from scriba.prometheus import CONTENT_TYPE
from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.settings.keys.metrics import metrics_endpoint

if TYPE_CHECKING:
    from scriba.runtime.ports import Listener

MAX_CLIENTS: Final = 16
MOST_REQUEST_BYTES: Final = 8192
PATIENCE_S: Final = 10.0
EVENTS_AT_ONCE: Final = 256
_BLANK: Final = b"\r\n\r\n"
_END: Final = re.compile(rb"\n\r?\n")
"""The empty line behind a request. A bare newline ends a line as well (RFC 9112, 2.2)."""
_ALLOW: Final = "Allow: GET, HEAD\r\n"
_PLAIN: Final = "text/plain; charset=utf-8"


class MetricsHost(Observed, ReadinessHost, BackgroundTasks, Protocol):
    """What answering over HTTP takes."""


class MetricsServer:
    def __init__(self, node: MetricsHost) -> None:
        self._node = node
        self._listener: Listener | None = None
        self._clients: dict[_Client, None] = {}

    @property
    def port(self) -> int | None:
        return None if self._listener is None else self._listener.port

    def start(self) -> None:
        """Listens, if an address is set. OSError where it cannot be taken."""
        endpoint = metrics_endpoint(self._node.settings.scriba_metrics_listener)
        if endpoint is not None:
            self._listener = self._node.world.net.listen(endpoint.host, endpoint.port, self._accept)

    def _accept(self, stream: Stream) -> None:
        if len(self._clients) >= MAX_CLIENTS:
            self._node.counters.scrapes_refused += 1
            stream.close()
        else:
            self._clients[_Client(self, stream)] = None

    def answer(self, request: bytes) -> bytes | Coroutine[Any, Any, bytes]:
        """What to send, or the work that finds it out."""
        line = request.splitlines()[0].split() if request.strip() else []
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            return _answer("400 Bad Request", "this is no request of HTTP/1.1\n")
        if line[0] not in (b"GET", b"HEAD"):
            return _answer("405 Method Not Allowed", "only GET is served\n", more=_ALLOW)
        path, _, query = _in_origin_form(line[1].decode("latin-1")).partition("?")
        if path == "/ready":
            return self._ready(query, whole=line[0] == b"GET")
        if path == "/metrics":
            whole = _answer("200 OK", render(self._node), CONTENT_TYPE)
        elif path == "/events":
            whole = _events(self._node.events, query)
        else:
            whole = _answer("404 Not Found", "see /metrics, /events and /ready\n")
        return whole if line[0] == b"GET" else _head(whole)

    async def _ready(self, query: str, whole: bool) -> bytes:
        """Of this node, or of the one that `node` names."""
        asked = parse_qs(query, True)
        named = asked.pop("node", [str(self._node.id)])[-1]
        if asked or not (named.isascii() and named.isdigit()):
            answer = _answer("400 Bad Request", "ask /ready, or /ready?node=ID\n")
        else:
            answer = await self._readiness(int(named))
        return answer if whole else _head(answer)

    async def _readiness(self, node: int) -> bytes:
        try:
            found = await readiness(self._node, node)
        except KafkaError as error:
            return _answer("404 Not Found", f"{error.message}\n")
        told = {"node": found.node, "may_restart": found.may_restart, "hurts": found.hurts}
        status = "200 OK" if found.may_restart else "503 Service Unavailable"
        return _answer(status, json.dumps(told) + "\n", "application/json")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._node.tasks.spawn(work, name="answer over HTTP")

    def forget(self, client: _Client) -> None:
        self._clients.pop(client, None)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for client in tuple(self._clients):
            client.close()


def _in_origin_form(target: str) -> str:
    """Path and query of a target that names scheme and host as well, as proxies ask for it."""
    found = re.match(r"https?://[^/?]*", target, re.IGNORECASE)
    return target if found is None else target[found.end() :]


def _events(events: Events, query: str) -> bytes:
    """`since` is the number of the last event that the reader knows, `limit` how many it takes."""
    try:
        asked = {name: int(values[-1]) for name, values in parse_qs(query, True).items()}
        after = asked.pop("since", 0)
        limit = asked.pop("limit", EVENTS_AT_ONCE)
        if asked or after < 0 or not 0 < limit <= EVENTS_AT_ONCE:
            raise ValueError
    except ValueError:
        text = f"ask /events?since=N&limit=M: N from 0 on, M of 1 to {EVENTS_AT_ONCE}\n"
        return _answer("400 Bad Request", text)
    page = events.page(after, limit)
    told = {
        "events": [event.as_json() for event in page.events],
        "next": page.next,
        "lost": page.lost,
    }
    return _answer("200 OK", json.dumps(told) + "\n", "application/json")


def _answer(status: str, text: str, content_type: str = _PLAIN, more: str = "") -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{more}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _head(whole: bytes) -> bytes:
    return whole[: whole.index(_BLANK) + len(_BLANK)]


class _Client:
    """One connection: a request, an answer, the end."""

    def __init__(self, server: MetricsServer, stream: Stream) -> None:
        self._server = server
        self._stream = stream
        self._asked = bytearray()
        self._left = memoryview(b"")
        self._refused = False
        """Whether it asked too much. What it goes on to send is read: a connection that is closed
        before that is reset, and takes the answer with it."""
        self._closed = False
        self._alarm = asyncio.get_running_loop().call_later(PATIENCE_S, self.close)
        stream.want(self._on_readable, None)

    def _on_readable(self) -> None:
        room = memoryview(bytearray(MOST_REQUEST_BYTES))
        try:
            n = self._stream.recv_into(room)
        except OSError:
            n = EOF
        if n == WOULD_BLOCK:
            return
        if n == EOF:
            self.close()
            return
        if self._refused:
            return
        self._asked += room[:n]
        end = _END.search(self._asked)
        if (len(self._asked) if end is None else end.end()) > MOST_REQUEST_BYTES:
            self._refused = True
            text = f"a request has at most {MOST_REQUEST_BYTES} bytes\n"
            self._left = memoryview(_answer("431 Request Header Fields Too Large", text))
            self._send()
        elif end is not None:
            answer = self._server.answer(bytes(self._asked))
            if isinstance(answer, bytes):
                self._left = memoryview(answer)
                self._send()
            else:
                self._stream.want(None, None)
                self._server.spawn(self._send_later(answer))

    async def _send_later(self, answer: Coroutine[Any, Any, bytes]) -> None:
        self._left = memoryview(await answer)
        if not self._closed:
            self._send()

    def _send(self) -> None:
        try:
            while self._left:
                n = self._stream.send((self._left,))
                if n == WOULD_BLOCK:
                    self._stream.want(self._on_readable if self._refused else None, self._send)
                    return
                self._left = self._left[n:]
            if self._refused:
                self._stream.want(self._on_readable, None)
                return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        self._closed = True
        self._alarm.cancel()
        self._stream.close()
        self._server.forget(self)
