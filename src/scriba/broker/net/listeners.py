"""Listeners as they came up, and what to do about an address that cannot be listened on."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.config import StartError

if TYPE_CHECKING:
    from scriba.broker.net.server import Server
    from scriba.settings.listeners import Endpoint

_CURES: Final = {
    errno.EADDRINUSE: "stop whoever holds the port, or choose another with --port",
    errno.EACCES: "ports below 1024 need the right to bind them (root, or CAP_NET_BIND_SERVICE); "
    "choose a higher one with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address; name one it has in listeners",
}


class Bound(NamedTuple):
    """A listener as it came up: with the port it really has."""

    name: str
    host: str
    port: int


def bind(server: Server, endpoint: Endpoint) -> Bound:
    """Takes the port of an endpoint; StartError with the cure where it cannot be had."""
    try:
        listener = server.listen(endpoint.name, endpoint.host, endpoint.port)
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "name another address in listeners")
        raise StartError(
            f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror}; {cure}"
        ) from None
    return Bound(endpoint.name, endpoint.host, listener.port)
