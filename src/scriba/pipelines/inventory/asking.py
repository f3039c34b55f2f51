"""Asks a service over HTTP: for the command line, and for services that forward to the writer."""

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

FORWARDED: Final = "Inventory-Forwarded"
"""A header of commands that were forwarded once; they are not forwarded again."""


class NoAnswer(Exception):
    """Nobody answered, or not in time; what was asked may have happened all the same."""


def call(
    url: str, path: str, document: Any = None, *, seconds: float, forwarded: bool = False
) -> tuple[int, dict[str, Any]]:
    """Status and document of the answer; with a document it is a POST."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise NoAnswer(f"{url} is no address such as http://127.0.0.1:8090")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=seconds)
    headers = {FORWARDED: "1"} if forwarded else {}
    body = None
    if document is not None:
        body = json.dumps(document, ensure_ascii=False).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as failure:
        raise NoAnswer(f"no answer from {url}: {failure or type(failure).__name__}") from failure
    finally:
        connection.close()
    if not isinstance(said, dict):
        raise NoAnswer(f"{url} is no inventory: it answered {said!r}")
    return answer.status, said
