"""What a node says of an address that it cannot listen on."""

import errno
import os
from typing import cast

import pytest

from scriba.broker.net.listeners import bind
from scriba.broker.net.server import Server
from scriba.config import StartError
from scriba.settings.listeners import Endpoint


class Refused:
    """A server whose system refuses each port."""

    def __init__(self, number: int) -> None:
        self._number = number

    def listen(self, name: str, host: str, port: int) -> None:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("number", "port", "cure"),
    [
        (
            errno.EACCES,
            80,
            "cannot listen on 127.0.0.1:80: Permission denied; ports below 1024 need the right to "
            "bind them (root, or CAP_NET_BIND_SERVICE); choose a higher one with --port",
        ),
        (
            errno.EADDRINUSE,
            9092,
            "cannot listen on 127.0.0.1:9092: Address already in use; stop whoever holds the port, "
            "or choose another with --port",
        ),
        (
            errno.EADDRNOTAVAIL,
            9092,
            "cannot listen on 127.0.0.1:9092: Cannot assign requested address; this machine has no "
            "such address; name one it has in listeners",
        ),
        (
            errno.EAFNOSUPPORT,
            9092,
            "cannot listen on 127.0.0.1:9092: Address family not supported by protocol; name "
            "another address in listeners",
        ),
    ],
)
def test_a_port_that_cannot_be_had_is_told_with_its_cure(number: int, port: int, cure: str) -> None:
    server = cast(Server, Refused(number))
    with pytest.raises(StartError) as refused:
        bind(server, Endpoint("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT"))
    assert str(refused.value) == cure
