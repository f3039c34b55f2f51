"""The page's web server: files, the picture as a document, and as a stream of events.

A stream begins with the whole picture and brings a new one when something changed, four times a
second at most, and each second anyway, so that a page knows whether it is still being told.
"""

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import uvicorn
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from scriba.pipelines.shop.dashboard.follower import Follower
from scriba.pipelines.shop.events.rules import WATERMARK

STATIC: Final = Path(__file__).parent / "static"
GAP_SECONDS: Final = 0.25
PULSE_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 10.0
"""A browser that takes nothing for so long is let go; it comes back by itself."""
FAREWELL_SECONDS: Final = 3
BACKLOG: Final = 128

POLICY: Final = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


@dataclass(frozen=True)
class PageSettings:
    currency: str = "EUR"
    stale_seconds: float = 15.0
    cluster: str = ""


class Board:
    """What the server says, made once for all who listen."""

    def __init__(self, follower: Follower, settings: PageSettings) -> None:
        self._follower = follower
        self._settings = {
            "currency": settings.currency,
            "stale_seconds": settings.stale_seconds,
            "cluster": settings.cluster,
            "watermark_seconds": WATERMARK.total_seconds(),
        }
        self._text = ""
        self._shows = (-1, 0)

    def document(self) -> dict[str, Any]:
        follower = self._follower
        drawn = follower.picture.draw(round(time.time() * 1000), follower.reading)
        return {**drawn, "settings": self._settings}

    def text(self) -> str:
        shows = self._follower.bell.rung, int(time.monotonic() / PULSE_SECONDS)
        if shows != self._shows:
            self._text = json.dumps(self.document(), separators=(",", ":"))
            self._shows = shows
        return self._text

    async def events(self, leaving: anyio.Event) -> AsyncIterator[ServerSentEvent]:
        bell = self._follower.bell
        while not leaving.is_set():
            heard = bell.rung
            yield ServerSentEvent(self.text(), event="picture", retry=1000)
            await asyncio.sleep(GAP_SECONDS)  # what comes meanwhile is told together
            await bell.wait(heard, PULSE_SECONDS)


def make_app(follower: Follower, settings: PageSettings) -> Starlette:
    board = Board(follower, settings)

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def picture(_: Request) -> Response:
        return JSONResponse(board.document())

    async def events(_: Request) -> Response:
        leaving = anyio.Event()
        return EventSourceResponse(
            board.events(leaving),
            send_timeout=SLOW_SECONDS,
            shutdown_event=leaving,
            shutdown_grace_period=2 * PULSE_SECONDS,
        )

    async def health(_: Request) -> Response:
        reading = follower.reading
        state = {"connected": reading.connected, "trouble": reading.trouble}
        told = {**state, "queries_in_trouble": follower.picture.troubles()}
        return JSONResponse(told, 200 if reading.connected else 503)

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(follower.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    routes = [
        Route("/", page),
        Route("/picture", picture),
        Route("/events", events),
        Route("/health", health),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(routes=routes, lifespan=life)
    app.add_middleware(Guarded)
    return app


class Guarded:
    """Every answer forbids what this page never does: to load anything from elsewhere."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    message["headers"].append((b"cache-control", b"no-cache"))
            await send(message)

        await self._app(scope, receive, guarded)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens: whoever is told its address may come; a taken port is told at once.

    Who comes before the server runs waits in the kernel.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


async def serve(app: Starlette, bound: socket.socket) -> None:
    """Until a signal asks it to end."""
    config = uvicorn.Config(
        app,
        log_level=logging.WARNING,
        access_log=False,
        timeout_graceful_shutdown=FAREWELL_SECONDS,
        server_header=False,
    )
    await uvicorn.Server(config).serve(sockets=[bound])
