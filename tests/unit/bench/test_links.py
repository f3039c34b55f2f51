"""The ways between nodes that tests and benchmarks lead through a process of their own."""

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tools.kafka.brokers import HOST, PATIENCE, free_port
from tools.kafka.links import Distance, Links

CALLER, SERVER = 1, 2
FAR, NEAR = "FAR", "NEAR"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as listening:
        listening.settimeout(PATIENCE)
        yield listening


@pytest.fixture
def links(server: socket.socket) -> Iterator[Links]:
    """Two listeners of one node, which is one socket; this process is the node that calls."""
    port = server.getsockname()[1]
    targets = {(SERVER, FAR): port, (SERVER, NEAR): port}
    with Links(targets, lambda: {os.getpid(): CALLER}) as made:
        yield made


def call(links: Links, listener: str) -> socket.socket:
    return socket.create_connection((HOST, links.port(SERVER, listener)), PATIENCE)


def connected(from_port: int, to_port: int) -> socket.socket:
    """From a port of choice, which other connections may have, too."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.settimeout(PATIENCE)
    made.bind((HOST, from_port))
    made.connect((HOST, to_port))
    return made


def everything(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_what_is_said_over_a_long_and_lossy_way_arrives_late_whole_and_in_order(
    links: Links, server: socket.socket
) -> None:
    links.part(CALLER, SERVER, Distance(0.2, loss=0.1))
    said = os.urandom(1 << 20)
    began = time.monotonic()
    with call(links, FAR) as caller:
        answering, _ = server.accept()
        heard: list[bytes] = []
        listener = threading.Thread(target=lambda: heard.append(everything(answering)))
        listener.start()
        caller.sendall(said)
        caller.shutdown(socket.SHUT_WR)
        listener.join(PATIENCE)
    assert heard == [said]
    assert time.monotonic() - began >= 0.2


def test_one_listener_is_cut_and_the_other_is_not(links: Links, server: socket.socket) -> None:
    links.cut(CALLER, SERVER, listener=FAR)
    with call(links, FAR) as cut, call(links, NEAR) as whole:
        cut.sendall(b"unheard")
        whole.sendall(b"heard")
        near, _ = server.accept()
        assert near.recv(16) == b"heard"
        links.heal()
        far, _ = server.accept()
        assert far.recv(16) == b"unheard"
        near.close()
        far.close()


def test_who_calls_is_known_though_other_connections_come_from_the_same_port(
    links: Links, server: socket.socket
) -> None:
    port = free_port()
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            other = opened.enter_context(socket.create_server((HOST, 0)))
            opened.enter_context(connected(port, other.getsockname()[1])).close()
            opened.enter_context(other.accept()[0])  # so that the closed one stays in the table
        caller = opened.enter_context(connected(port, links.port(SERVER, NEAR)))
        caller.sendall(b"heard")
        answering, _ = server.accept()
        assert opened.enter_context(answering).recv(16) == b"heard"


@pytest.mark.parametrize(("loss", "seconds"), [(0.0, 0.1), (1.0, 0.3)])
def test_what_is_lost_comes_a_round_trip_later(loss: float, seconds: float) -> None:
    draw = random.Random(1)
    assert Distance(0.1, loss).late(1, draw) == pytest.approx(seconds)
