"""The face of a service: point look-ups, commands, health, metrics, over HTTP.

Needs the extra `console` (starlette, uvicorn). Nothing is shown unless the service is caught up:
until then, and when it lost touch, the answer is 503. Every answer about stock states the offset of
the event that it shows, and up to which offset the topic was read.
"""

import asyncio
import json
import logging
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from scriba.client import ClientError
from scriba.pipelines.inventory.decide import Accepted
from scriba.pipelines.inventory.http.asking import FORWARDED, NoAnswer
from scriba.pipelines.inventory.http.openapi import document
from scriba.pipelines.inventory.metrics import render
from scriba.pipelines.inventory.model import Command, Kind, Malformed, read_command
from scriba.pipelines.inventory.service import NotCaughtUp, Service, outcome_of, told
from scriba.pipelines.inventory.store import Told
from scriba.pipelines.inventory.writer import Unavailable, Unsettled
from scriba.prometheus import CONTENT_TYPE

log = logging.getLogger(__name__)

MAX_BODY: Final = 1 << 20
FAREWELL_SECONDS: Final = 5
"""How long requests under way may take when the service ends."""
MOST: Final = 1000
"""Most that one page lists."""

Endpoint = Callable[[Request], Awaitable[Response]]


class Web:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.requests: Counter[tuple[str, int]] = Counter()
        routes = [
            ("/stock", self.stocks),
            ("/stock/{item:path}", self.stock),
            ("/history/{item:path}", self.history),
            ("/commands/{id:path}", self.command),
            ("/health", self.health),
            ("/metrics", self.metrics),
            ("/openapi.json", self.openapi),
        ]
        self.app = Starlette(
            routes=[
                *(Route(path, self._guarded(path, point)) for path, point in routes),
                *(
                    Route(
                        f"/{kind}", self._guarded(f"/{kind}", self._taker(kind)), methods=["POST"]
                    )
                    for kind in Kind
                ),
            ],
            exception_handlers={HTTPException: _not_served},
        )

    def _guarded(self, path: str, point: Endpoint) -> Endpoint:
        """Turns what is expected to go wrong into its answer, and counts."""

        async def answer(request: Request) -> Response:
            try:
                response = await point(request)
            except Malformed as wrong:
                response = _error(400, str(wrong))
            except NotCaughtUp as behind:
                response = _error(503, str(behind))
            except (Unavailable, ClientError) as failure:
                response = _error(503, str(failure), outcome="none")
            except (Unsettled, NoAnswer) as failure:
                fix = "ask again with the same id, which tells what became of it"
                response = _error(503, f"{failure}; {fix}", outcome="unknown")
            self.requests[path, response.status_code] += 1
            return response

        return answer

    # -- look-ups --------------------------------------------------------------------------------

    async def _ready(self, request: Request) -> None:
        if request.query_params.get("fresh") in ("1", "true"):
            await self.service.refresh()
        self.service.check()

    async def stock(self, request: Request) -> Response:
        await self._ready(request)
        item = request.path_params["item"]
        found = self.service.store.stock(item)
        as_of = self._as_of(self.service.names.events, item)
        if found is None:
            return _error(404, f"there is no item {item}", as_of=as_of)
        return JSONResponse({**self._shown(found), "as_of": as_of})

    async def stocks(self, request: Request) -> Response:
        await self._ready(request)
        after = request.query_params.get("after", "")
        limit = _number(request, "limit", 100, 1, MOST)
        found = self.service.store.stocks(after, limit)
        shown = [self._shown(one) for one in found]
        following = found[-1].event.item if len(found) == limit else None
        as_of = self._positions(self.service.names.events)
        return JSONResponse({"items": shown, "next": following, "as_of": as_of})

    async def history(self, request: Request) -> Response:
        await self._ready(request)
        item = request.path_params["item"]
        after = _number(request, "after", 0, 0, 2**53)
        limit = _number(request, "limit", 100, 1, MOST)
        store, audit = self.service.store, self.service.names.audit
        found = store.history(item, after, limit)
        as_of = self._as_of(audit, item)
        if not found and not store.history(item, 0, 1):
            return _error(404, f"there is no item {item}", as_of=as_of)
        events = [{**told(one.event), "offset": _place(audit, one)} for one in found]
        following = found[-1].event.version if len(found) == limit else None
        return JSONResponse({"item": item, "events": events, "next": following, "as_of": as_of})

    async def command(self, request: Request) -> Response:
        await self._ready(request)
        name = request.path_params["id"]
        found = self.service.store.command(name)
        if not found:
            return _error(404, f"no command {name} was accepted")
        audit = self.service.names.audit
        events = [{**told(one.event), "offset": _place(audit, one)} for one in found]
        return JSONResponse({"command": name, "outcome": "accepted", "events": events})

    def _shown(self, found: Told) -> dict[str, Any]:
        event = found.event
        return {
            "item": event.item,
            "stock": event.stock,
            "version": event.version,
            "event": told(event),
            "offset": _place(self.service.names.events, found),
        }

    def _as_of(self, topic: str, item: str) -> dict[str, Any]:
        where = self.service.place(topic, item)
        return {
            "topic": topic,
            "partition": where.partition,
            "end_offset": self.service.follower.positions[where],
            "verified_seconds_ago": round(self.service.follower.verified_ago() or 0.0, 3),
        }

    def _positions(self, topic: str) -> list[dict[str, Any]]:
        return [
            {"topic": where.topic, "partition": where.partition, "end_offset": offset}
            for where, offset in self.service.follower.positions.items()
            if where.topic == topic
        ]

    # -- commands --------------------------------------------------------------------------------

    def _taker(self, kind: Kind) -> Endpoint:
        async def take(request: Request) -> Response:
            said = await _body(request)
            command = read_command(kind, said)
            if self.service.writer is None and FORWARDED not in request.headers:
                status, answer = await self.service.forward(kind, said)
                self._count(command, str(answer.get("outcome", "none")))
                return JSONResponse(answer, status)
            decision = await self.service.decide(command)
            answer = outcome_of(command, decision)
            self._count(command, answer["outcome"])
            return JSONResponse(answer, 200 if isinstance(decision, Accepted) else 409)

        return take

    def _count(self, command: Command, outcome: str) -> None:
        self.service.outcomes[command.kind, outcome] += 1

    # -- about itself ----------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        service = self.service
        try:
            service.check()
            status = "ok"
        except NotCaughtUp as behind:
            status = str(behind)
        answer = {
            "status": status,
            "writer": service.settings.url if service.writer else service.directory.url,
            "writing": service.writer is not None,
            "lag": service.follower.lag(),
            "positions": [
                {"topic": where.topic, "partition": where.partition, "end_offset": offset}
                for where, offset in service.follower.positions.items()
            ],
        }
        return JSONResponse(answer, 200 if status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        text = render(self.service, self.requests)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(document())


def _place(topic: str, found: Told) -> dict[str, Any]:
    return {"topic": topic, "partition": found.partition, "offset": found.offset}


def _error(status: int, text: str, **more: Any) -> Response:
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error": text, **more}, status, headers)


async def _not_served(request: Request, failure: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(failure, HTTPException)
    told = f"{request.method} {request.url.path}: {failure.detail}; see /openapi.json"
    return _error(failure.status_code, told)


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text[:20]) <= most:
        raise Malformed(f"{name}: must be a whole number from {least} to {most}")
    return int(text)


async def _body(request: Request) -> Any:
    """The JSON document of a request, of a bounded size."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise Malformed(f"a command has at most {MAX_BODY} bytes")
    try:
        return json.loads(data)
    except ValueError as wrong:
        raise Malformed(f"the command is not JSON: {wrong}") from None


# -- a process -----------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the whole service, not only this part of it."""
        yield


async def serve(service: Service, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Runs the service and its face until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        Web(service).app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=FAREWELL_SECONDS,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    main = asyncio.create_task(service.run())
    main.add_done_callback(lambda done: setattr(server, "should_exit", True))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    ready()
    try:
        await server.serve(sockets=[listener])
    finally:
        main.cancel()
        ended = (await asyncio.gather(main, return_exceptions=True))[0]
    if isinstance(ended, Exception):
        raise ended
