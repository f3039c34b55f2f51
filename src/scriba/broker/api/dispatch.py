"""From a frame to its handler and back: versions, errors, throttling and counting in one place.

`api/table` names every API this broker serves with the versions it advertises; what is not in it
is answered by closing the connection, as Kafka does. A handler is a plain function
`(node, ctx, request)` that returns its response, `Deferred` for one that must wait, or None for no
answer at all. A KafkaError that escapes it becomes the API's own shape of that error.

Requests and answers of many elements take their time, in slices (`large`): their connection reads
nothing more meanwhile, and all others are served. `LARGE_AT_A_TIME` of about one size are in work
at once, so that whoever asks for hundreds of things never waits for those who ask for a hundred
thousand. Those that are handled in parts have turns of their own: a part may wait for replicas, and
a follower's fetch must not wait for that. None is begun while peers have not taken `LARGE_UNSENT`
bytes of the answers to earlier ones, so that they have a bound in memory, too; those that come
meanwhile wait as the bytes they are. Who takes nothing for long while others wait is hung up on,
and questions of peers that have gone meanwhile are not answered.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from scriba.broker.fastpath.commit import CommitFastPath
from scriba.broker.fastpath.fetch.path import FetchFastPath
from scriba.broker.fastpath.ports import FastPathSwitch
from scriba.broker.fastpath.produce import ProduceFastPath
from scriba.broker.fastpath.replicas import learn
from scriba.broker.fastpath.versions import FastPathVersions
from scriba.broker.handlers.ports import Broker
from scriba.broker.net.answers import CloseConnection, KeptFrame, LargeAnswer, Parked, Parts, Unsent
from scriba.broker.net.api_entry import ApiEntry, finish_plain, refusal, set_length
from scriba.broker.net.connection import Connection, Promise
from scriba.broker.net.large_requests import (
    MUCH_TO_FREE,
    QUESTIONS,
    TOLD_AT_ONCE,
    Cut,
    Part,
    check_answer,
    cut_of,
    letting_go,
    merge,
    parts,
)
from scriba.broker.request import Context, Deferred, Later
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import EventKind
from scriba.runtime.loop.pace import BETWEEN_LOOKS, Pace, in_slices, next_turn
from scriba.wire.frame import RequestHeader, decode_request_header
from scriba.wire.packed import PIECE_BYTES, in_short_steps
from scriba.wire.schema import Hole, Message, TooMany

if TYPE_CHECKING:
    from scriba.broker.net.server import Server

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
API_VERSIONS: Final = 18
ANSWERS_KEPT: Final = 64
LARGEST_KEPT: Final = 1 << 20
"""Bytes of a question or an answer that is kept: a few thousand partitions."""
LARGE_AT_A_TIME: Final = 2
SIZES: Final = 16
"""Kinds of large requests by their bytes: each up to four times as large as the one before."""
LARGE_UNSENT: Final = 1 << 29
"""Bytes of large answers that wait for their peers, before the next large request is begun."""

_START: Final = struct.Struct(">hhi")
_HEAD: Final = struct.Struct(">ii")

Question = tuple[str, int, bytes]


class Merging:
    """The answers to the parts of a large request become one, in their order.

    Where a part waits for replicas the others are begun meanwhile, so that all wait together.
    """

    def __init__(self, cut: Cut, version: int, pace: Pace) -> None:
        self.cut = cut
        self.pace = pace
        self._version = version
        self._whole: Message | None = None
        self._left: deque[tuple[Part, Message | asyncio.Task[Any]]] = deque()

    async def add(self, part: Part, told: Message | Later[Message] | None) -> None:
        if isinstance(told, Later):
            self._left.append((part, asyncio.ensure_future(told.awaitable)))
        elif told is not None and self._left:
            self._left.append((part, told))
        elif told is not None:
            await self._merge(part, told)

    async def whole(self) -> Message | None:
        while self._left:
            part, told = self._left[0]
            if isinstance(told, asyncio.Task):
                told = await told
            if told is not None:
                await self._merge(part, told)
            self._left.popleft()
        return self._whole

    def abandon(self) -> None:
        """Nobody wants the answer any more."""
        for _, told in self._left:
            if isinstance(told, asyncio.Task):
                told.cancel()

    async def _merge(self, part: Part, told: Message) -> None:
        work = merge(self._whole, told, part, self.cut.told, self._version)
        del told
        self._whole = await in_slices(work, self.pace)


class DispatchHost(Broker, FastPathSwitch, Protocol):
    """A node whose requests are dispatched: all that handlers and fast paths ask for, and more."""

    @property
    def server(self) -> Server: ...

    def throttle(self, ctx: Context, response: Any) -> None:
        """Fills `throttle_time_ms` of an answer."""


class Dispatch:
    def __init__(self, node: DispatchHost, table: dict[int, ApiEntry]) -> None:
        self._node = node
        self.table = table
        self._cached: dict[Question, bytes] = {}
        self._cached_at = (-1, -1)
        """Of which shape of the cluster, and of which controller, the answers kept tell."""
        self._turns = {
            in_parts: [asyncio.Semaphore(LARGE_AT_A_TIME) for _ in range(SIZES)]
            for in_parts in (False, True)
        }
        """By whether requests are handled in parts, and by their size."""
        self._unsent = Unsent(LARGE_UNSENT)
        self._fast_paths: dict[int, FastPathVersions | CommitFastPath] = {}
        if PRODUCE in table:
            resume = partial(self._resume, table[FETCH])
            self._fast_paths = {
                PRODUCE: FastPathVersions(partial(ProduceFastPath, node, table[PRODUCE])),
                FETCH: FastPathVersions(partial(FetchFastPath, node, table[FETCH], resume)),
                OFFSET_COMMIT: CommitFastPath(node, table[OFFSET_COMMIT]),
            }

    def forget_partitions(self) -> None:
        """A partition is gone: fast paths keep none that they would not look up again."""
        for path in self._fast_paths.values():
            if isinstance(path, FastPathVersions):
                path.forget()

    def handle(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """Starts one request; raises CloseConnection where only closing the connection is right."""
        try:
            key, version, correlation_id = _START.unpack_from(frame)
        except struct.error:
            raise CloseConnection("a frame too short for a request header") from None
        api = self.table.get(key)
        if api is None:
            raise CloseConnection(f"API key {key} is not served", "unsupported")
        if not api.oldest <= version <= api.high:
            if key != API_VERSIONS:
                raise CloseConnection(
                    f"{api.name} version {version} is not served "
                    f"(advertised are {api.low} to {api.high})",
                    "unsupported",
                )
            return self._refuse_api_versions(api, correlation_id)
        path = self._fast_paths.get(key) if self._node.fast_paths else None
        if path is not None:
            answer = path.enter(connection, frame, version)
            if answer is not None:
                return answer
        limits = api.limits
        size = len(frame)
        if size > limits.bytes:
            raise CloseConnection(
                f"{api.name} of {size} bytes; {limits.bytes} are taken", "too_large"
            )
        try:
            header, start = decode_request_header(frame)
            if size > limits.bytes_at_once:
                raise TooMany
            # Bytes after the request are overlooked, as Kafka does: librdkafka sends some.
            request, _ = api.request.decode_from(frame, start, version, limits.at_once)
        except ParseError as error:
            raise CloseConnection(f"{api.name} version {version} cannot be read: {error}") from None
        except TooMany:
            kept = connection.keep_frame(frame)
            return Parked(self._handle_large(api, connection, kept, start, header))
        api.count += 1
        if type(path) is CommitFastPath:
            path.learn(connection, frame, request)  # type: ignore[arg-type]
        elif path is not None and key == FETCH:
            self._learn_replica(api, connection, header, frame, start, request)
        if key == METADATA and self._node.access.open and self._node.fast_paths:
            return self._answer_from_cache(api, connection, frame[start:], request, header)
        return self._answer(api, connection, request, header)

    def _learn_replica(
        self,
        api: ApiEntry,
        connection: Connection,
        header: RequestHeader,
        frame: memoryview,
        start: int,
        request: Any,
    ) -> None:
        """Has the next fetches of a follower take a fast path, if they are as this one is."""
        if request.replica_state.replica_id >= 0:
            ctx = _context(connection, header)
            path = learn(self, self._node, api, ctx, frame, start, request)
            connection.fast_path = path or connection.fast_path

    def _answer(
        self, api: ApiEntry, connection: Connection, request: Message, header: RequestHeader
    ) -> Parts | Parked | None:
        ctx = _context(connection, header)
        try:
            answer = api.handler(self._node, ctx, request)
        except Exception as error:
            answer = self._failed(api, ctx, request, error)
        if type(answer) is Deferred and answer.keeps_frame:
            connection.leave_frame()
        elif api.revoke is not None:
            api.revoke(request)
        if isinstance(answer, Later):
            return _Promised(self, api, ctx, answer, header.correlation_id)
        if type(answer) is Deferred:
            work = self._finish(api, ctx, request, answer, header.correlation_id)
            return Parked(work, answer.pipelined)
        if answer is None:
            return None
        return self.encode(api, ctx, answer, header.correlation_id)

    def _resume(
        self,
        api: ApiEntry,
        connection: Connection,
        header: RequestHeader,
        request: Message,
        work: Callable[[Context], Awaitable[Message]],
    ) -> Awaitable[Parts | None]:
        """Answers a request that a fast path has begun and its handler goes on with."""
        ctx = _context(connection, header)
        return self._finish(api, ctx, request, Deferred(work(ctx)), header.correlation_id)

    # ---- large requests ----

    async def _handle_large(
        self,
        api: ApiEntry,
        connection: Connection,
        kept: KeptFrame,
        start: int,
        header: RequestHeader,
    ) -> Parts | None:
        """Decodes in slices what is too much for one, and handles it in parts where it can."""
        version = header.api_version
        ctx = _context(connection, header)
        much = len(kept.view) > MUCH_TO_FREE
        turns = self._turns[bool(api.limits.cuts)]
        async with turns[len(kept.view).bit_length() // 2]:
            await self._unsent.room(self._node.server.shed)
            await next_turn()
            _check_peer(api, connection)
            pace = Pace(self._node.world.clock)
            request = await self._decode_large(api, kept, start, version, pace)
            if api.revoke is None:
                kept.give_back()  # it has no views, and may wait for long
            api.count += 1
            api.large += 1
            cut = cut_of(api.limits, request)
            if cut is not None:
                merging = Merging(cut, version, pace)
                try:
                    await self._handle_parts(api, connection, ctx, request, merging)
                except BaseException:
                    merging.abandon()
                    raise
                if much:
                    await in_slices(letting_go(request, cut.asked), pace)
        # Not while others wait for it: a fetch may wait for records, a produce for replicas.
        if cut is None:
            response = await self._handled(api, ctx, request)
        if api.revoke is not None:
            # Not after an exception, whose traceback still has views.
            kept.give_back()
        if cut is not None:
            try:
                response = await merging.whole()
            finally:
                merging.abandon()
        if response is None:
            return None
        self._node.throttle(ctx, response)
        answer = await self._encode_large(api, ctx, response, header.correlation_id)
        if much and cut is not None and len(cut.told) > 1:
            await in_slices(letting_go(response, cut.told), pace)
        return answer

    async def _handled(self, api: ApiEntry, ctx: Context, request: Message) -> Message | None:
        answer = await self._handled_so_far(api, ctx, request)
        if not isinstance(answer, Later):
            return answer
        try:
            return await answer.awaitable  # type: ignore[return-value]
        except Exception as error:
            return self._failed(api, ctx, request, error)

    async def _handled_so_far(
        self, api: ApiEntry, ctx: Context, request: Message
    ) -> Message | Later[Message] | None:
        """As `_handled`, without waiting for what only callbacks complete."""
        answer: Any
        try:
            answer = api.handler(self._node, ctx, request)
            keeps = type(answer) is Deferred and answer.keeps_frame
            if api.revoke is not None and not keeps:
                api.revoke(request)
            while isinstance(answer, Deferred) and not isinstance(answer, Later):
                answer = await answer.awaitable
        except Exception as error:
            answer = self._failed(api, ctx, request, error)
        return answer  # type: ignore[no-any-return]

    async def _decode_large(
        self, api: ApiEntry, kept: KeptFrame, start: int, version: int, pace: Pace
    ) -> Message:
        limit = api.limits.elements
        try:
            work = api.request.decode_in_slices(kept.view, start, version, limit)
            request, _ = await in_slices(work, pace)
        except ParseError as error:
            raise CloseConnection(f"{api.name} version {version} cannot be read: {error}") from None
        except TooMany as error:
            raise CloseConnection(
                f"{api.name} version {version}: {error}, which are {limit}", "too_large"
            ) from None
        return request

    async def _handle_parts(
        self,
        api: ApiEntry,
        connection: Connection,
        ctx: Context,
        request: Message,
        merging: Merging,
    ) -> None:
        pace = merging.pace
        refused: KafkaError | None = None
        if api.limits.check is not None:
            try:
                await in_slices(api.limits.check(self._node.settings, request), pace)
            except KafkaError as error:
                refused = error
        for step, part in enumerate(parts(request, api.limits, merging.cut)):
            if part is None:
                if step % BETWEEN_LOOKS == 0:
                    await pace()
                continue
            await pace()
            _check_peer(api, connection)
            if refused is not None:
                told: Any = self._failed(api, ctx, part.request, refused)
            else:
                told = await self._handled_so_far(api, ctx, part.request)
            await merging.add(part, told)
            del told

    # ---- Metadata from memory ----

    def _answer_from_cache(
        self,
        api: ApiEntry,
        connection: Connection,
        body: memoryview,
        request: Any,
        header: RequestHeader,
    ) -> Parts | Parked | None:
        """Metadata: equal questions have equal answers until the cluster or its controller changes.

        Thousands of clients ask for the same few topics again and again, and an answer that
        lists ten thousand partitions takes longer to build than to send. What has to wait (for the
        creation of a topic, say) is another answer each time, unless all topics are asked for.
        """
        told = (self._node.topology, self._node.active_controller_id)
        if self._cached_at != told:
            self._cached.clear()
            self._cached_at = told
        if len(body) > LARGEST_KEPT:
            return self._answer(api, connection, request, header)
        question = (connection.listener, header.api_version, bytes(body))
        known = self._cached.get(question)
        if known is None:
            answer = self._answer(api, connection, request, header)
            if isinstance(answer, tuple):
                self._keep(question, answer)
            elif isinstance(answer, Parked) and request.topics is None:
                return Parked(self._keep_later(question, answer.awaitable), answer.pipelined)
            return answer
        out = bytearray(_HEAD.pack(len(known) + 4, header.correlation_id))
        out += known
        return (out,)

    def _keep(self, question: Question, answer: Parts) -> None:
        whole: Any = answer[0]
        if len(self._cached) < ANSWERS_KEPT and len(whole) <= LARGEST_KEPT:
            self._cached[question] = bytes(whole[8:])

    async def _keep_later(
        self, question: Question, awaitable: Awaitable[Parts | None]
    ) -> Parts | None:
        asked_at = (self._node.topology, self._node.active_controller_id)
        answer = await awaitable
        now = (self._node.topology, self._node.active_controller_id)
        if answer is not None and asked_at == now == self._cached_at:
            self._keep(question, answer)
        return answer

    # ---- answers ----

    def encode(
        self, api: ApiEntry, ctx: Context, answer: Message, correlation_id: int
    ) -> Parts | Parked:
        self._node.throttle(ctx, answer)
        out = _head(api, ctx.version, correlation_id)
        holes: list[tuple[int, Hole]] = []
        try:
            answer.encode_into(out, ctx.version, holes, TOLD_AT_ONCE)
        except TooMany:
            return Parked(self._encode_large(api, ctx, answer, correlation_id))
        except ValueError as error:
            raise self._cannot_tell(api, ctx, error) from error
        return api.finish(self._node, out, holes)

    async def _encode_large(
        self, api: ApiEntry, ctx: Context, answer: Message, correlation_id: int
    ) -> Parts:
        await next_turn()
        out = LargeAnswer(_head(api, ctx.version, correlation_id))
        holes: list[tuple[int, Hole]] = []
        pieces: list[LargeAnswer] = []
        work = in_short_steps(answer.encode_in_slices(out, ctx.version, holes), out)
        if api.finish is finish_plain:
            work = _in_pieces(work, out, pieces)
        try:
            await in_slices(work, Pace(self._node.world.clock))
        except ValueError as error:
            raise self._cannot_tell(api, ctx, error) from error
        if pieces:
            pieces.append(out)
            for piece in pieces:
                piece.wait_in(self._unsent)
            set_length(pieces[0], sum(map(len, pieces)))
            return pieces
        out.wait_in(self._unsent)
        return api.finish(self._node, out, holes)

    def _cannot_tell(self, api: ApiEntry, ctx: Context, error: ValueError) -> CloseConnection:
        # A bug of the handler; without an answer the client would wait for ever.
        api.errors += 1
        text = f"version {ctx.version}: the answer cannot be encoded: {error}"
        self._node.note(EventKind.REQUEST_FAILED, api.name, text, error)
        return CloseConnection(f"the answer to {api.name} cannot be told", "failed")

    async def _finish(
        self,
        api: ApiEntry,
        ctx: Context,
        request: Message,
        answer: Deferred[Any],
        correlation_id: int,
    ) -> Parts | None:
        result: Any = answer
        try:
            while isinstance(result, Deferred):
                result = await result.awaitable
        except Exception as error:
            result = self._failed(api, ctx, request, error)
        if result is None:
            return None
        return await _settled(self.encode(api, ctx, result, correlation_id))

    def complete(
        self,
        promise: Promise,
        api: ApiEntry,
        ctx: Context,
        response: Message,
        correlation_id: int,
    ) -> None:
        """A promised response is there."""
        try:
            answer = self.encode(api, ctx, response, correlation_id)
        except CloseConnection:
            promise.connection.close("failed")
        else:
            promise.connection.keep(promise, answer)

    def _failed(
        self, api: ApiEntry, ctx: Context, request: Message, error: BaseException
    ) -> Message | None:
        """The API's error response; what nobody expected is logged with its trace."""
        api.errors += 1
        if isinstance(error, CloseConnection):
            try:
                raise error
            finally:
                # A frame in its own exception's trace is a cycle, which keeps the request's bytes.
                del error
        if isinstance(error, KafkaError):
            return refusal(api, request, error.code, error.message, ctx.version)
        self._node.note(EventKind.REQUEST_FAILED, api.name, f"failed: {error!r}", error)
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        return refusal(api, request, code, code.text, ctx.version)

    def _refuse_api_versions(self, api: ApiEntry, correlation_id: int) -> Parts:
        # A client newer than we are asks again with a version from this answer (KIP-511).
        code = ErrorCode.UNSUPPORTED_VERSION
        answer = api.refuse(None, code, code.text)
        assert answer is not None
        out = _head(api, 0, correlation_id)
        answer.encode_into(out, 0)
        return api.finish(self._node, out, [])


class _Promised(Promise):
    """A response that its handler completes without a task."""

    __slots__ = ("_api", "_correlation_id", "_ctx", "_dispatch", "_later")

    def __init__(
        self,
        dispatch: Dispatch,
        api: ApiEntry,
        ctx: Context,
        later: Later[Any],
        correlation_id: int,
    ) -> None:
        super().__init__(later.pipelined)
        self._dispatch = dispatch
        self._api = api
        self._ctx = ctx
        self._later = later
        self._correlation_id = correlation_id

    def begin(self) -> None:
        self._later.begin(self._complete)

    def abandon(self) -> None:
        self._later.abandon()

    def _complete(self, response: Message) -> None:
        self._dispatch.complete(self, self._api, self._ctx, response, self._correlation_id)


def _in_pieces(
    work: Generator[None, None, None], out: bytearray, pieces: list[LargeAnswer]
) -> Generator[None, None, None]:
    """Encodes into pieces of memory: one that grew to tens of megabytes would be copied at times,
    and be given back, in one go."""
    size = 0
    for _ in work:
        if len(out) >= PIECE_BYTES:
            size += len(out)
            check_answer(size)
            pieces.append(LargeAnswer(out))
            out.clear()
        yield


async def _settled(answer: Parts | Parked | None) -> Parts | None:
    return await answer.awaitable if isinstance(answer, Parked) else answer


def _check_peer(api: ApiEntry, connection: Connection) -> None:
    """Ends a question that nobody waits for any more. What changes something is carried out."""
    if api.key in QUESTIONS and connection.stream.ended():
        raise CloseConnection(f"the peer has gone before {api.name} was answered", "peer_closed")


def _context(connection: Connection, header: RequestHeader) -> Context:
    return Context(
        connection.principal,
        connection.listener,
        header.client_id,
        connection.peer,
        header.api_key,
        header.api_version,
        connection.last_active,
        connection,
    )


def _head(api: ApiEntry, version: int, correlation_id: int) -> bytearray:
    """The start of a response: room for its length, and its header."""
    out = bytearray(_HEAD.pack(0, correlation_id))
    if version >= api.tagged_from:
        out.append(0)
    return out
