"""Asks a service over HTTP: for the command line, and for services that forward to the writer."""

import asyncio
import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

FORWARDED: Final = "Inventory-Forwarded"
"""A header of commands that were forwarded once; they are not forwarded again."""


class NoAnswer(Exception):
    """Nobody answered, or not in time; what was asked may have happened all the same."""


def call(
    url: str, path: str, document: Any = None, *, seconds: float
) -> tuple[int, dict[str, Any]]:
    """Status and document of the answer; with a document it is a POST."""
    host, port = _address(url)
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    headers, body = {}, None
    if document is not None:
        body = json.dumps(document, ensure_ascii=False).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, _document(url, answer.read())
    except (OSError, http.client.HTTPException) as failure:
        raise NoAnswer(f"no answer from {url}: {failure or type(failure).__name__}") from failure
    finally:
        connection.close()


async def forward(url: str, path: str, document: Any) -> tuple[int, dict[str, Any]]:
    """The same for a command that another service was asked; may be cancelled at any time."""
    host, port = _address(url)
    body = json.dumps(document, ensure_ascii=False).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{FORWARDED}: 1\r\nConnection: close\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(head.encode() + body)
            answer = await reader.read(-1)
        finally:
            writer.close()
        said, _, rest = answer.partition(b"\r\n\r\n")
        return int(said.split(maxsplit=2)[1]), _document(url, rest)
    except (OSError, ValueError, IndexError) as failure:
        raise NoAnswer(f"no answer from {url}: {failure}") from failure


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise NoAnswer(f"{url} is no address such as http://127.0.0.1:8090")
    return parts.hostname, parts.port or 80


def _document(url: str, data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except ValueError:
        said = data[:80]
    if not isinstance(said, dict):
        raise NoAnswer(f"{url} is no inventory: it answered {said!r}")
    return said
