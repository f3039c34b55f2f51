"""From a frame to its handler and back: versions, errors, throttling and counting in one place.

`served.py` names every API this broker serves with the versions it advertises; what is not in it
is answered by closing the connection, as Kafka does. A handler is a plain function
`(node, ctx, request)` that returns its response, `Later` for one that must wait, or None for no
answer at all. A KafkaError that escapes it becomes the API's own shape of that error.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scriba.broker.answers import HangUp, Parked, Parts
from scriba.broker.commit_lanes import CommitLanes
from scriba.broker.connection import Connection
from scriba.broker.context import Context, Later
from scriba.broker.fetch_lanes import FetchLanes
from scriba.broker.lanes import ProduceLanes
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.runtime.pace import Pace
from scriba.wire.frame import RequestHeader, decode_request_header
from scriba.wire.schema import Message
from scriba.wire.views import Revoke, revoker

if TYPE_CHECKING:
    from scriba.broker.node import Node

log = logging.getLogger(__name__)

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
API_VERSIONS: Final = 18
ANSWERS_KEPT: Final = 64
_START: Final = struct.Struct(">hhi")
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">ii")

Question = tuple[str, int, bytes]
Handler = Callable[["Node", Context, Any], Any]
Refuse = Callable[[Any, ErrorCode, str], Message | None]
Encode = Callable[["Node", Any, bytearray, int], Parts]


def encode_plain(node: Node, response: Message, out: bytearray, version: int) -> Parts:
    """Writes the response behind its header, then the length before both: one piece to send."""
    response.encode_into(out, version)
    set_length(out, len(out))
    return (out,)


def set_length(out: bytearray, total: int) -> None:
    """Fills in the length of a frame of `total` bytes, which does not count itself."""
    _LENGTH.pack_into(out, 0, total - 4)


def refuse_at_top(response: type[Message]) -> Refuse:
    """For responses with one error code of their own."""

    def refuse(request: Message, code: ErrorCode, text: str) -> Message:
        answer: Any = response()
        answer.error_code = code
        if hasattr(answer, "error_message"):
            answer.error_message = text
        return answer  # type: ignore[no-any-return]

    return refuse


@dataclass(slots=True)
class Served:
    """One API as this broker offers it."""

    key: int
    name: str
    request: type[Message]
    low: int
    high: int
    oldest: int
    """The first version that can be read. Produce 0 to 2 is only advertised (KIP-896)."""
    tagged_from: int
    """The first version whose response header ends in tagged fields."""
    handler: Handler
    refuse: Refuse
    encode: Encode = encode_plain
    count: int = 0
    errors: int = 0
    revoke: Revoke | None = dataclasses.field(init=False)
    """Ends the request's views of its frame as soon as the handler has returned."""

    def __post_init__(self) -> None:
        self.revoke = revoker(self.request)


class Dispatch:
    def __init__(self, node: Node, table: dict[int, Served]) -> None:
        self._node = node
        self.table = table
        self._cached: dict[Question, bytes] = {}
        self._cached_at = -1
        self._lanes: dict[int, ProduceLanes | FetchLanes | CommitLanes] = {}
        if PRODUCE in table:
            self._lanes[PRODUCE] = ProduceLanes(node, table[PRODUCE])
            ordinary = partial(self._answer, table[FETCH])
            self._lanes[FETCH] = FetchLanes(node, table[FETCH], ordinary)
            self._lanes[OFFSET_COMMIT] = CommitLanes(node, table[OFFSET_COMMIT])

    def handle(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """Starts one request; raises HangUp where only closing the connection is right."""
        try:
            key, version, correlation_id = _START.unpack_from(frame)
        except struct.error:
            raise HangUp("a frame too short for a request header") from None
        served = self.table.get(key)
        if served is None:
            raise HangUp(f"API key {key} is not served")
        if not served.oldest <= version <= served.high:
            if key != API_VERSIONS:
                raise HangUp(
                    f"{served.name} version {version} is not served "
                    f"(advertised are {served.low} to {served.high})"
                )
            return self._refuse_api_versions(served, correlation_id)
        lanes = self._lanes.get(key)
        if lanes is not None:
            answer = lanes.enter(connection, frame, version)
            if answer is not None:
                return answer
        try:
            header, start = decode_request_header(frame)
            # Bytes after the request are overlooked, as Kafka does: librdkafka sends some.
            request, _ = served.request.decode_from(frame, start, version)
        except ParseError as error:
            raise HangUp(f"{served.name} version {version} cannot be read: {error}") from None
        served.count += 1
        if lanes is not None:
            lanes.learn(connection, frame, request)  # type: ignore[arg-type]
        if key == METADATA and self._node.access.open and not self._node.no_lanes:
            return self._answer_from_cache(served, connection, frame[start:], request, header)
        return self._answer(served, connection, request, header)

    def _answer(
        self, served: Served, connection: Connection, request: Message, header: RequestHeader
    ) -> Parts | Parked | None:
        ctx = Context(
            connection.principal,
            connection.listener,
            header.client_id,
            connection.peer,
            header.api_key,
            header.api_version,
            connection.last_active,
        )
        try:
            answer = served.handler(self._node, ctx, request)
        except Exception as error:
            answer = self._failed(served, request, error)
        if served.revoke is not None:
            served.revoke(request)
        if type(answer) is Later:
            work = self._finish(served, ctx, request, answer, header.correlation_id)
            return Parked(work, answer.open)
        if answer is None:
            return None
        return self._encode(served, ctx, answer, header.correlation_id)

    def _answer_from_cache(
        self,
        served: Served,
        connection: Connection,
        body: memoryview,
        request: Any,
        header: RequestHeader,
    ) -> Parts | Parked | None:
        """Metadata: equal questions have equal answers until the cluster's shape changes.

        Thousands of clients ask for the same few topics again and again, and an answer that
        lists ten thousand partitions takes longer to build than to send. What has to wait (for the
        creation of a topic, say) is another answer each time, unless all topics are asked for.
        """
        if self._cached_at != self._node.topology:
            self._cached.clear()
            self._cached_at = self._node.topology
        question = (connection.listener, header.api_version, bytes(body))
        known = self._cached.get(question)
        if known is None:
            answer = self._answer(served, connection, request, header)
            if isinstance(answer, tuple):
                self._keep(question, answer)
            elif isinstance(answer, Parked) and request.topics is None:
                return Parked(self._keep_later(question, answer.awaitable), answer.open)
            return answer
        out = bytearray(_HEAD.pack(len(known) + 4, header.correlation_id))
        out += known
        return (out,)

    def _keep(self, question: Question, answer: Parts) -> None:
        if len(self._cached) < ANSWERS_KEPT:
            whole: Any = answer[0]
            self._cached[question] = bytes(whole[8:])

    async def _keep_later(
        self, question: Question, awaitable: Awaitable[Parts | None]
    ) -> Parts | None:
        asked_at = self._node.topology
        answer = await awaitable
        if answer is not None and asked_at == self._node.topology == self._cached_at:
            self._keep(question, answer)
        return answer

    def _encode(self, served: Served, ctx: Context, answer: Message, correlation_id: int) -> Parts:
        self._node.throttle(ctx, answer)
        try:
            return served.encode(
                self._node, answer, _head(served, ctx.version, correlation_id), ctx.version
            )
        except ValueError as error:
            # A bug of the handler; without an answer the client would wait for ever.
            served.errors += 1
            log.error("%s %d: no such answer: %s", served.name, ctx.version, error)
            raise HangUp(f"the answer to {served.name} cannot be told") from error

    async def _finish(
        self,
        served: Served,
        ctx: Context,
        request: Message,
        answer: Later[Any],
        correlation_id: int,
    ) -> Parts | None:
        result: Any = answer
        long = answer.long
        try:
            while isinstance(result, Later):
                result = await result.awaitable
        except Exception as error:
            result = self._failed(served, request, error)
        if result is None:
            return None
        if not long:
            return self._encode(served, ctx, result, correlation_id)
        self._node.throttle(ctx, result)
        out = _head(served, ctx.version, correlation_id)
        pace = Pace(self._node.world.clock)
        for _ in result.encode_in_slices(out, ctx.version):
            await pace()
        set_length(out, len(out))
        return (out,)

    def _failed(self, served: Served, request: Message, error: BaseException) -> Message | None:
        """The API's error response; what nobody expected is logged with its trace."""
        served.errors += 1
        if isinstance(error, HangUp):
            raise error
        if isinstance(error, KafkaError):
            return served.refuse(request, error.code, error.message)
        log.error("%s failed", served.name, exc_info=error)
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        return served.refuse(request, code, code.text)

    def _refuse_api_versions(self, served: Served, correlation_id: int) -> Parts:
        # A client newer than we are asks again with a version from this answer (KIP-511).
        code = ErrorCode.UNSUPPORTED_VERSION
        answer = served.refuse(None, code, code.text)
        assert answer is not None
        return served.encode(self._node, answer, _head(served, 0, correlation_id), 0)


def _head(served: Served, version: int, correlation_id: int) -> bytearray:
    """The start of a response: room for its length, and its header."""
    out = bytearray(_HEAD.pack(0, correlation_id))
    if version >= served.tagged_from:
        out.append(0)
    return out
