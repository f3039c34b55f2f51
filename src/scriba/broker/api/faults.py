"""Faults that tests arm: errors, delays and lost answers, by API, on the real wire.

A node that is given `Faults` has its handlers wrapped in the table that dispatch reads; one that is
given none has the bare handlers, and pays nothing. What answers requests without asking a handler
(fast paths, cached Metadata) is not used while anything is armed (`node.fast_paths`), so every
request meets its fault.

An error is answered as the API answers it: for each partition, topic or group that was asked for,
or once at the top, as the request's version has it. A request that has no place for it (a Metadata
request without topics in an old version) is served as always and does not count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from scriba.broker.net.answers import CloseConnection
from scriba.broker.net.api_entry import refusal
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.schema import Message, Struct

if TYPE_CHECKING:
    from scriba.broker.net.api_entry import ApiEntry, Handler


@dataclass(slots=True)
class Fault:
    """What happens to the next `times` requests of one API, all of them or those of one client."""

    api: int
    times: int
    client_id: str | None = None
    error: ErrorCode | None = None
    """Answered instead of what the handler would have said; nothing is carried out."""
    delay_ms: int = 0
    """How long the answer is held back; the request is carried out at once."""
    drop: bool = False
    """The connection is closed instead of an answer."""
    carried_out: bool = True
    """Whether a request whose answer is dropped has its effect."""


class FaultHost(Protocol):
    def ask_handlers(self, always: bool) -> None:
        """Has every request pass its handler, so that it meets its fault."""


class Faults:
    def __init__(self) -> None:
        self._node: FaultHost | None = None
        self._armed: dict[int, deque[Fault]] = {}

    def install(self, node: FaultHost, table: dict[int, ApiEntry]) -> dict[int, ApiEntry]:
        """Wraps every handler of a node's table; called before any request is served."""
        self._node = node
        for api in table.values():
            api.handler = partial(self._handle, api, api.handler)
        return table

    def arm(self, fault: Fault) -> None:
        self._armed.setdefault(fault.api, deque()).append(fault)
        self._told()

    def clear(self) -> None:
        self._armed.clear()
        self._told()

    def armed(self) -> Iterator[Fault]:
        """What has not been used up, oldest first for each API."""
        for faults in self._armed.values():
            yield from faults

    def _told(self) -> None:
        if self._node is not None:
            self._node.ask_handlers(bool(self._armed))

    def _handle(
        self, api: ApiEntry, handler: Handler, node: Any, ctx: Context, request: Message
    ) -> Any:
        fault = self._find(api.key, ctx)
        if fault is None:
            return handler(node, ctx, request)
        if fault.error is not None:
            answer = _error(api, ctx, request, fault.error)
            if answer is None:
                return handler(node, ctx, request)
            self._use(fault)
            api.errors += 1
            return answer
        self._use(fault)
        if fault.drop and not fault.carried_out:
            raise CloseConnection(f"a test drops {api.name}", "fault")
        return _altered(fault, api, partial(handler, node, ctx, request))

    def _find(self, api: int, ctx: Context) -> Fault | None:
        for fault in self._armed.get(api, ()):
            if fault.client_id in (None, ctx.client_id):
                return fault
        return None

    def _use(self, fault: Fault) -> None:
        fault.times -= 1
        if not fault.times:
            self._armed[fault.api].remove(fault)
            if not self._armed[fault.api]:
                del self._armed[fault.api]
            self._told()


def _altered(fault: Fault, api: ApiEntry, handle: partial[Any]) -> Any:
    """Has a request carried out; its answer comes late, or never."""
    answer: Any
    failure: KafkaError | None = None
    try:
        answer = handle()
    except KafkaError as error:
        answer, failure = None, error

    async def finish() -> Any:
        found = answer
        while isinstance(found, Deferred):
            found = await found.awaitable
        if fault.delay_ms:
            await asyncio.sleep(fault.delay_ms / 1000)
        if fault.drop:
            raise CloseConnection(f"a test drops the answer to {api.name}", "fault")
        if failure is not None:
            raise failure
        return found

    if isinstance(answer, Deferred):
        return Deferred(finish(), answer.pipelined, answer.keeps_frame)
    return Deferred(finish())


def _error(api: ApiEntry, ctx: Context, request: Message, code: ErrorCode) -> Message | None:
    """The API's refusal of the whole request; None where that says nothing of the error."""
    answer = refusal(api, request, code, code.text, ctx.version)
    if answer is None:
        return None
    # What a version has no field for is not sent: only what can be read back was said.
    sent = type(answer).decode(answer.encode(ctx.version), ctx.version)
    return answer if code in _codes(sent) else None


def _codes(part: object) -> Iterator[int]:
    """Every error code in a response, however deep."""
    if isinstance(part, list):
        for item in part:
            yield from _codes(item)
    elif isinstance(part, Struct):
        for field in part.FIELDS:
            value = getattr(part, field.name)
            if field.name.endswith("error_code"):
                yield value
            else:
                yield from _codes(value)
