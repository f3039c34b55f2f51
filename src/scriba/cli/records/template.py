r"""Format strings for records, with the tokens of kcat.

    %t topic    %p partition    %o offset    %T timestamp in ms    %h headers (a=1,b=2)
    %k key      %K its length   %s value     %S its length         %R its length, 4 bytes
    %% a percent sign, and \n \r \t \\ \xHH

Lengths of what is null are -1; a null key or value is written as nothing, or as the null marker.

For a terminal, what it would obey in the data is written out: a record must not be able to rename
the window, hide lines or answer in the reader's name. The template's own text is left as it is.
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


Data = Callable[[bytes | None], bytes]
"""How a key, a value or a header's value is written."""


def writer(null: bytes, escape: bool) -> Data:
    def write(data: bytes | None) -> bytes:
        if data is None:
            return null
        return escaped(data) if escape else data

    return write


def escaped(data: bytes) -> bytes:
    """Text without control characters and bytes that are not UTF-8; those are written \\xHH."""
    from scriba.cli.output import printable

    return printable(data.decode(errors="backslashreplace")).encode()


def key_and_value(separator: str | None, null: bytes, escape: bool) -> Render:
    """A line for each record: its value, with a separator its key and its value."""
    write = writer(null, escape)
    if separator is None:
        return lambda record: write(record.value) + b"\n"
    between = separator.encode()
    return lambda record: write(record.key) + between + write(record.value) + b"\n"


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: "AnyRecord", escape: bool) -> bytes:
    write = writer(b"NULL", escape)
    return b",".join(
        write(name.encode()) + b"=" + write(content) for name, content in record.headers
    )


_TOKENS: Final[dict[str, Render]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "K": lambda record: b"%d" % _length(record.key),
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
}


def compile_template(text: str, null: bytes = b"", escape: bool = False) -> Render:
    """A function that writes one record; ValueError names a token that there is not."""
    write = writer(null, escape)
    tokens = _TOKENS | {
        "h": lambda record: _headers(record, escape),
        "k": lambda record: write(record.key),
        "s": lambda record: write(record.value),
    }
    pieces: list[bytes | Render] = []
    at = 0
    for found in _PIECE.finditer(text):
        pieces += [text[at : found.start()].encode(), _piece(found, tokens)]
        at = found.end()
    pieces.append(text[at:].encode())

    def render(record: "AnyRecord") -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(record) for piece in pieces])

    return render


def _piece(found: "re.Match[str]", tokens: dict[str, Render]) -> bytes | Render:
    if (digits := found["hex"]) is not None:
        return bytes([int(digits, 16)])
    if (escaped := found["escaped"]) is not None:
        return _ESCAPES.get(escaped) or str(escaped).encode()
    token: str = found["token"]
    if token == "%":
        return b"%"
    if token not in tokens:
        raise ValueError(f"%{token} is no token; there are %{' %'.join(tokens)} %%")
    return tokens[token]
