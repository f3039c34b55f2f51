"""One API as the broker serves it: its versions, its handler, how it refuses, what it counts."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from scriba.broker.net.answers import Parts
from scriba.broker.net.large_requests import DEFAULT, RequestLimits
from scriba.broker.request import Context
from scriba.errors import ErrorCode
from scriba.groups.refusals import refused, refuses
from scriba.wire.schema import Hole, Message
from scriba.wire.views import Revoke, revoker

_LENGTH: Final = struct.Struct(">i")

Handler = Callable[[Any, Context, Any], Any]
"""`(node, ctx, request)`. What a handler needs of the node is a protocol; `api/table` holds all
handlers against what the node is."""
Refuse = Callable[[Any, ErrorCode, str], Message | None]
Finish = Callable[[Any, bytearray, list[tuple[int, Hole]]], Parts]


def finish_plain(node: object, out: bytearray, holes: list[tuple[int, Hole]]) -> Parts:
    """Fills in the length before a response that was encoded behind its header: one piece."""
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
class ApiEntry:
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
    finish: Finish = finish_plain
    """Makes of an encoded response, and of what it left holes for, what is sent."""
    limits: RequestLimits = DEFAULT
    count: int = 0
    errors: int = 0
    large: int = 0
    """Requests that were too large to be handled at once."""
    revoke: Revoke | None = dataclasses.field(init=False)
    """Ends the request's views of its frame as soon as the handler has returned."""

    def __post_init__(self) -> None:
        self.revoke = revoker(self.request)


def refusal(
    api: ApiEntry, request: Message, code: ErrorCode, text: str, version: int
) -> Message | None:
    """The API's error response, in what the version has of it.

    ElectLeaders has an error of its own from version 1 on, JoinGroup a null from version 7 on.
    """
    if refuses(request):
        return refused(request, code, version)
    answer = api.refuse(request, code, text)
    if answer is not None:
        for field in answer.FIELDS:
            if version not in field.within and not field.ignorable:
                setattr(answer, field.name, field.default())
    return answer
