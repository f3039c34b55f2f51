r"""Format strings for records, with the tokens of kcat.

    %t topic    %p partition    %o offset    %T timestamp in ms    %h headers (a=1,b=2)
    %k key      %K its length   %s value     %S its length         %R its length, 4 bytes
    %% a percent sign, and \n \r \t \\ \xHH

Lengths of what is null are -1, and a null key or value is written as nothing.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scriba.client import ConsumerRecord

    AnyRecord = ConsumerRecord[Any, Any]

Render = Callable[["AnyRecord"], bytes]

_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t"}
_PIECE: Final = re.compile(r"%(?P<token>.?)|\\x(?P<hex>[0-9a-fA-F]{1,2})|\\(?P<escaped>.)", re.S)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: "AnyRecord") -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if content is None else content)
        for name, content in record.headers
    )


_TOKENS: Final[dict[str, Render]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "h": _headers,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _length(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
}


def compile_template(text: str) -> Render:
    """A function that writes one record; ValueError names a token that there is not."""
    pieces: list[bytes | Render] = []
    at = 0
    for found in _PIECE.finditer(text):
        pieces += [text[at : found.start()].encode(), _piece(found)]
        at = found.end()
    pieces.append(text[at:].encode())

    def render(record: "AnyRecord") -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(record) for piece in pieces])

    return render


def _piece(found: "re.Match[str]") -> bytes | Render:
    if (digits := found["hex"]) is not None:
        return bytes([int(digits, 16)])
    if (escaped := found["escaped"]) is not None:
        return _ESCAPES.get(escaped) or str(escaped).encode()
    token: str = found["token"]
    if token == "%":
        return b"%"
    if token not in _TOKENS:
        raise ValueError(f"%{token} is no token; there are %{' %'.join(_TOKENS)} %%")
    return _TOKENS[token]
