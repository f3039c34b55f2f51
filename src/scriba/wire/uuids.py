"""UUIDs are sixteen raw bytes here; their text is Kafka's: URL-safe base64 without padding."""

from base64 import urlsafe_b64encode
from binascii import Error, a2b_base64
from typing import Final

ZERO: Final = bytes(16)


def to_text(uuid: bytes) -> str:
    return urlsafe_b64encode(uuid)[:22].decode()


def from_text(text: str) -> bytes:
    """ValueError unless `text` is the text of one UUID (padding is accepted)."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        uuid = a2b_base64(plain + "==")
    except (Error, ValueError):
        uuid = b""
    if len(plain) != 22 or len(uuid) != 16:
        raise ValueError(f"not a UUID: {text!r} (expected 22 characters of URL-safe base64)")
    return uuid
