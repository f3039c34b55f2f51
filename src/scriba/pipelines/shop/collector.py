"""The endpoint that clients of the shop send their events to.

    POST /events     one event, or a list of them; 202 when all were written
    GET  /health     200 while a broker can be reached

An answer comes after the broker has acknowledged, so a client that gets none sends again: the event
carries its id, and the copy is dropped by the pipeline. A list is taken as a whole or refused as a
whole. Events get the user agent of the request unless they carry one, which is how a shop's own
servers pass on those of their clients.
"""

import time
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scriba.client import ClientError, Producer
from scriba.pipelines.shop.events.checks import LONGEST_AGENT, Refused, Taken, read, take
from scriba.pipelines.shop.topics import INPUTS, Names

LARGEST_BODY: Final = 1024 * 1024
MOST_EVENTS: Final = 1000
ORIGIN: Final = {
    "access-control-allow-origin": "*",
    "access-control-allow-headers": "content-type",
    "access-control-allow-methods": "POST",
}
"""Pages of any shop may send events; nothing can be read here."""

PARTITION_BY: Final = ("user_id", "random")


class Collector:
    """`partition_by` user_id keeps the events of a user in their order, in one partition; random
    spreads a user who sends very many, and gives the order up."""

    def __init__(self, producer: Producer, names: Names, partition_by: str) -> None:
        self._producer = producer
        self._names = names
        self._keyed = partition_by == "user_id"

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/events", self.events, methods=["POST"]),
                Route("/events", self.preflight, methods=["OPTIONS"]),
                Route("/health", self.health),
            ]
        )

    async def preflight(self, request: Request) -> Response:
        return Response(status_code=204, headers=ORIGIN)

    async def health(self, request: Request) -> Response:
        try:
            await self._producer.partitions(self._names(INPUTS[0]))
        except ClientError as failure:
            return JSONResponse({"error": str(failure)}, 503)
        return JSONResponse({"status": "ok"})

    async def events(self, request: Request) -> Response:
        try:
            documents = await _documents(request)
        except ValueError as wrong:
            return _answer({"error": str(wrong)}, 400)
        agent = request.headers.get("user-agent", "")[:LONGEST_AGENT] or None
        now_ms = time.time_ns() // 1_000_000
        taken, problems = [], []
        for index, document in enumerate(documents):
            if isinstance(document, dict) and document.get("user_agent") is None:
                document["user_agent"] = agent
            try:
                taken.append(take(document, now_ms))
            except Refused as refused:
                problems += [
                    {"index": index, "field": field, "problem": problem}
                    for field, problem in refused.problems
                ]
        if problems:
            return _answer({"error": "no event was taken", "problems": problems}, 422)
        try:
            await self._write(taken, now_ms)
        except ClientError as failure:
            error = f"not all events were written, send them again: {failure}"
            return _answer({"error": error}, 503)
        return _answer({"taken": len(taken)}, 202)

    async def _write(self, taken: list[Taken], now_ms: int) -> None:
        sent = [
            await self._producer.enqueue(
                self._names(topic),
                value,
                user.encode() if self._keyed else None,
                timestamp=now_ms,
            )
            for topic, user, value in taken
        ]
        for delivery in sent:
            await delivery


async def _documents(request: Request) -> list[Any]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise ValueError(f"the body is larger than {LARGEST_BODY} bytes")
    try:
        document = read(bytes(body))
    except ValueError as wrong:
        raise ValueError(f"the body is not one JSON document: {wrong}") from wrong
    documents = document if isinstance(document, list) else [document]
    if not 1 <= len(documents) <= MOST_EVENTS:
        raise ValueError(f"send from 1 to {MOST_EVENTS} events at once")
    return documents


def _answer(document: dict[str, Any], code: int) -> Response:
    return JSONResponse(document, code, headers=ORIGIN)
