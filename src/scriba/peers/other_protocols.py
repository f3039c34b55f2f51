"""Recognises what answers where a broker was expected, by the first bytes that it sends."""

from typing import Final

_STARTS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"HTTP/", "it speaks HTTP"),
    (b"<!DOCTYPE", "it speaks HTTP, by an old server without headers"),
    (b"<html", "it speaks HTTP, by an old server without headers"),
    (b"\x15\x03", "it speaks TLS"),
    (b"\x16\x03", "it speaks TLS"),
    (b"SSH-", "it speaks SSH"),
    (b"AMQP", "it speaks AMQP"),
    (b"-ERR", "it speaks Redis's protocol"),
    (b"-DENIED", "it speaks Redis's protocol"),
    (b"220", "it speaks SMTP or FTP"),
    (b"+OK", "it speaks POP3"),
    (b"* OK", "it speaks IMAP"),
    (b"RFB ", "it speaks VNC"),
    (b"E\x00\x00\x00", "it speaks PostgreSQL's protocol"),
)

_SHOWN: Final = 24
_HTTP2_SETTINGS: Final = 4
_FRAME_HEAD: Final = 9


def protocol_of(data: bytes) -> str | None:
    """What these bytes, the first of a connection, say of the peer; None when they say nothing."""
    start = data[:16].lower()
    for begins, told in _STARTS:
        if start.startswith(begins.lower()):
            return told
    if _is_mysql(data):
        return "it speaks MySQL's protocol"
    if len(data) >= _FRAME_HEAD and data[:1] == b"\x00" and data[3] == _HTTP2_SETTINGS:
        return "it speaks HTTP/2"
    text = data[:_SHOWN]
    if text and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in text):
        return f"it sends text, {text.decode().splitlines()[0]!r}"
    return None


def _is_mysql(data: bytes) -> bool:
    """A greeting: the length, least byte first, number 0, then version 10 of the protocol."""
    return len(data) > 5 and data[3] == 0 and data[4] == 10 and data[2] == 0 and data[0] > 0
