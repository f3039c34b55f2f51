"""What a node that is given no file keeps beside its data, so that it comes back as it was.

    DIR/node.json     its number and roles, its ports, and whom it asked to be let in

Other nodes know it by these: a voter is found at the address that it had, and a cluster of which
all nodes come back elsewhere could not find itself. What is typed is stronger than what is kept.
"""

import dataclasses
import json
import os
import socket
from collections.abc import Container, Iterator
from typing import Any, Final

from scriba.cli.node.layout import CONTROLLER, FIRST_PORT, HOST, ONE_NODES_DATA, replace_file
from scriba.config import StartError

KEPT_FILE: Final = "node.json"
KEPT_VERSION: Final = 1
OWN_WORDS: Final = (
    "process.roles",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.listener.names",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
)
"""Who sets one of these arranges listeners by himself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    node_id: int | None = None
    """None for one that founded its cluster: it has the number that its settings say."""
    roles: tuple[str, ...] = ("broker", CONTROLLER)
    port: int | None = None
    controller_port: int | None = None
    servers: tuple[str, ...] = ()
    """Controllers of the cluster that it joined; none if it founded one."""
    voter: bool = False
    """Whether it has been made the voter that it was to be."""

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    def settings(self, port: int | None) -> dict[str, str]:
        """What the node is told, with the port that was typed or else the one it had."""
        own = port if port is not None else self.port if self.port is not None else FIRST_PORT
        listeners = [f"PLAINTEXT://{HOST}:{own}"]
        if self.is_controller:
            listeners.append(f"CONTROLLER://{HOST}:{_if_free(self.controller_port)}")
        told = {"listeners": ",".join(listeners)}
        if self.servers:
            told["process.roles"] = ",".join(self.roles)
            told["controller.quorum.bootstrap.servers"] = ",".join(self.servers)
        if self.servers and self.is_controller and not self.voter:
            told["controller.quorum.auto.join.enable"] = "true"
        if self.node_id is not None:
            told["node.id"] = str(self.node_id)
        return told


def arranges_itself(given: Container[str]) -> bool:
    return any(name in given for name in OWN_WORDS)


def load(data: str) -> Kept | None:
    """What a directory's node has kept, None where nothing is."""
    path = os.path.join(data, KEPT_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            return _read(json.load(file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"{path}: cannot be read ({error}); restore it") from error


def _read(document: Any) -> Kept:
    if document.pop("version") != KEPT_VERSION:
        raise ValueError("its version is not known")
    document["roles"] = tuple(map(str, document["roles"]))
    document["servers"] = tuple(map(str, document["servers"]))
    return Kept(**document)


def save(data: str, kept: Kept) -> None:
    os.makedirs(data, exist_ok=True)
    document = {"version": KEPT_VERSION, **dataclasses.asdict(kept)}
    replace_file(os.path.join(data, KEPT_FILE), json.dumps(document, indent=2) + "\n")


def holds_a_node(data: str) -> bool:
    return any(os.path.exists(os.path.join(data, name)) for name in ONE_NODES_DATA)


def free_ports(first: int) -> Iterator[int]:
    """Ports from this one on that nobody listens on now."""
    return (port for port in range(first, 65536) if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
        return True


def _if_free(port: int | None) -> int:
    """Another one if somebody took it: the others are told where the controller is then."""
    return port if port is not None and is_free(port) else 0
