"""How the nodes of one cluster lie side by side under one directory, and what each is told.

    DIR/cluster.json         who there is, and on which ports
    DIR/node-1.properties    the settings of node 1, written anew at every start
    DIR/node-1/              its data

Controllers keep their ports for good: each finds the others by them before it knows anything else.
Listeners for metrics are there for `scriba topic why`, which asks each node what it has told.
"""

import dataclasses
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from scriba.cli.output import counted
from scriba.cli.problems import Misuse
from scriba.config import StartError

LAYOUT_FILE: Final = "cluster.json"
LAYOUT_VERSION: Final = 1
HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 9092
FIRST_CONTROLLER: Final = 101
"""Dedicated controllers are numbered from here on, which leaves the small numbers to brokers."""
MOST_NODES: Final = 100
USUAL_VOTERS: Final = 3
BROKER: Final = "broker"
CONTROLLER: Final = "controller"

ONE_NODES_DATA: Final = ("meta.properties", "__cluster_metadata-0")
PER_NODE: Final = (
    "node.id",
    "broker.id",
    "process.roles",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "controller.listener.names",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "log.dirs",
    "log.dir",
    "metadata.log.dir",
)
"""Settings that differ from node to node, so that nobody can give one for all."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of the cluster."""

    id: int
    roles: tuple[str, ...]
    port: int | None = None
    """Where clients and brokers reach it; a controller alone has none."""
    controller_port: int | None = None
    metrics_port: int | None = None
    """Where it tells metrics and events, unless a setting says where."""

    @property
    def ports(self) -> Iterator[int]:
        every = (self.port, self.controller_port, self.metrics_port)
        return (port for port in every if port is not None)

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port if self.is_broker else self.controller_port}"


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    nodes: tuple[NodeSpec, ...]

    @property
    def brokers(self) -> tuple[NodeSpec, ...]:
        return tuple(place for place in self.nodes if place.is_broker)

    @property
    def voters(self) -> tuple[NodeSpec, ...]:
        return tuple(place for place in self.nodes if place.is_controller)

    @property
    def dedicated(self) -> int:
        """Controllers that are nothing else."""
        return sum(not place.is_broker for place in self.nodes)

    @property
    def bootstrap(self) -> str:
        return ",".join(place.address for place in self.brokers)

    def place(self, node_id: int) -> NodeSpec | None:
        return next((place for place in self.nodes if place.id == node_id), None)


# -- what is wanted ------------------------------------------------------------------------------


def plan(brokers: int, controllers: int, ports: Iterator[int]) -> Layout:
    """Brokers from 1 on; without dedicated controllers the first three are that, too.

    Two voters would be worse than one: neither could do without the other.
    """
    voters = 0 if controllers else USUAL_VOTERS if brokers >= USUAL_VOTERS else 1
    taken = [next(ports) for _ in range(brokers)]
    places = [
        NodeSpec(number, (BROKER, CONTROLLER), port, next(ports))
        if number <= voters
        else NodeSpec(number, (BROKER,), port)
        for number, port in enumerate(taken, 1)
    ]
    places += (
        NodeSpec(FIRST_CONTROLLER + number, (CONTROLLER,), None, next(ports))
        for number in range(controllers)
    )
    return Layout(tuple(dataclasses.replace(each, metrics_port=next(ports)) for each in places))


def counted_up(first: int) -> Iterator[int]:
    """Ports from this one on; 0: any that are free."""
    if first:
        yield from range(first, 65536)
        raise Misuse(f"--port {first}: there are not so many ports above it", "choose a lower one")
    with ExitStack() as held:  # so that none comes twice
        while True:
            free = held.enter_context(socket.socket())
            free.bind((HOST, 0))
            yield free.getsockname()[1]


def lay_out(data: str, brokers: int | None, controllers: int | None, port: int | None) -> Layout:
    """The nodes to start over a directory, new or used; StartError where they do not fit it.

    Without a number of brokers or controllers it is as many as the directory has.
    """
    known = load(data)
    if known is None:
        first = FIRST_PORT if port is None else port
        return plan(brokers or 1, controllers or 0, counted_up(first))
    check_numbers(data, known, brokers, controllers)
    if port is None:
        return known
    ports = counted_up(port)
    replace = dataclasses.replace
    moved = tuple(replace(p, port=next(ports)) if p.is_broker else p for p in known.nodes)
    moved = tuple(replace(p, metrics_port=next(ports)) if p.metrics_port else p for p in moved)
    _check_distinct(moved)
    return Layout(moved)


def check_numbers(data: str, known: Layout, brokers: int | None, controllers: int | None) -> None:
    there, dedicated = len(known.brokers), known.dedicated
    told = f"{data} has {counted(there, 'node')}"
    if brokers is not None and brokers < there:
        raise StartError(
            f"--nodes {brokers}: {told}, and what only the others have would be missing; start "
            f"with --nodes {there}, and to do with fewer move their replicas away first"
        )
    if brokers is not None and brokers > there:
        raise StartError(
            f"--nodes {brokers}: {told}; start with --nodes {there}, then add each new one with "
            f"`scriba up --join {known.brokers[0].address}`"
        )
    if controllers is not None and controllers != dedicated:
        have = counted(dedicated, "dedicated controller")
        fix = f"start with --controllers {dedicated}" if dedicated else "drop --controllers"
        raise StartError(f"--controllers {controllers}: {data} has {have}; {fix}")


def _check_distinct(places: Sequence[NodeSpec]) -> None:
    seen: dict[int, int] = {}
    for place in places:
        for port in place.ports:
            if port in seen:
                raise StartError(
                    f"port {port} would be that of node {seen[port]} and of node {place.id}: "
                    "controllers keep theirs; choose another --port"
                )
            seen[port] = place.id


def without_metrics(layout: Layout) -> Layout:
    """Where settings say on which ports metrics are told, if at all."""
    return Layout(tuple(dataclasses.replace(each, metrics_port=None) for each in layout.nodes))


def check_ports(layout: Layout) -> None:
    """StartError where a port is taken; nothing has been started by then."""
    for place in layout.nodes:
        for port in place.ports:
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    trial.bind((HOST, port))
                    trial.listen()
                except OSError as error:
                    raise StartError(
                        f"cannot listen on {HOST}:{port} for node {place.id}: {error.strerror}; "
                        f"end what listens there, or choose another --port"
                    ) from None


# -- what there is -------------------------------------------------------------------------------


def load(data: str) -> Layout | None:
    """The layout of a directory, None for a new one; StartError for the data of a single node."""
    path = os.path.join(data, LAYOUT_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            return _read(json.load(file))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(
            f"{path}: cannot be read ({error}); restore it, or name another --data"
        ) from error
    if any(os.path.exists(os.path.join(data, name)) for name in ONE_NODES_DATA):
        raise StartError(
            f"{data} holds the data of a single node; start it without --nodes, then add others "
            "with `scriba up --join HOST:PORT --controller`, or name another --data"
        )
    strays = [name for name in _names(data) if re.fullmatch(r"node-\d+", name)]
    if strays:
        raise StartError(
            f"{data} has {', '.join(strays)} but no {LAYOUT_FILE}; restore it, or name another "
            "--data"
        )
    return None


def holds_several(data: str) -> bool:
    return os.path.exists(os.path.join(data, LAYOUT_FILE))


def _names(data: str) -> list[str]:
    try:
        return sorted(os.listdir(data))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StartError(f"--data {data}: {error.strerror}") from error


def _read(document: Any) -> Layout:
    if document["version"] != LAYOUT_VERSION:
        raise ValueError(f"version {document['version']} is not known")
    places = tuple(
        NodeSpec(
            int(node["id"]),
            tuple(map(str, node["roles"])),
            node.get("port"),
            node.get("controller_port"),
            node.get("metrics_port"),
        )
        for node in document["nodes"]
    )
    if not any(place.is_broker for place in places):
        raise ValueError("no broker is in it")
    return Layout(places)


def save(data: str, layout: Layout, settings: Mapping[int, Mapping[str, str]]) -> None:
    """Writes who there is, and what each node is told."""
    os.makedirs(data, exist_ok=True)
    document = {
        "version": LAYOUT_VERSION,
        "nodes": [
            {name: value for name, value in dataclasses.asdict(place).items() if value is not None}
            for place in layout.nodes
        ],
    }
    for node_id, texts in settings.items():
        lines = [f"{name}={_escaped(text)}" for name, text in sorted(texts.items())]
        replace_file(properties_file(data, node_id), "\n".join(lines) + "\n")
    replace_file(os.path.join(data, LAYOUT_FILE), json.dumps(document, indent=2) + "\n")


def replace_file(path: str, text: str) -> None:
    """Writes a file so that a crash leaves the old one or the new one."""
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def _escaped(text: str) -> str:
    """As a properties file has it: spaces in front, backslashes and line ends are kept."""
    body = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    stripped = body.lstrip(" \t\f")
    return "".join("\\" + char for char in body[: len(body) - len(stripped)]) + stripped


# -- what each node is told ----------------------------------------------------------------------


def data_directory(data: str, node_id: int) -> str:
    return os.path.join(data, f"node-{node_id}")


def properties_file(data: str, node_id: int) -> str:
    return os.path.join(data, f"node-{node_id}.properties")


def settings_of(layout: Layout, place: NodeSpec, data: str) -> dict[str, str]:
    """The settings that tell a node from the others."""
    listeners = []
    if place.is_broker:
        listeners.append(f"PLAINTEXT://{HOST}:{place.port}")
    if place.is_controller:
        listeners.append(f"CONTROLLER://{HOST}:{place.controller_port}")
    voters = (f"{each.id}@{HOST}:{each.controller_port}" for each in layout.voters)
    return {
        "node.id": str(place.id),
        "process.roles": ",".join(place.roles),
        "listeners": ",".join(listeners),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": os.path.abspath(data_directory(data, place.id)),
    }


def check_shared(names: Iterable[tuple[str, str]]) -> None:
    """Misuse for a setting, with where it was given, that cannot be the same on all nodes."""
    for name, origin in names:
        if name in PER_NODE:
            raise Misuse(
                f"{name} is set ({origin}), and --nodes gives each node its own",
                "drop it, or start each node by itself with --config",
            )


METRICS: Final = "scriba.metrics.listener"


def metrics_of(shared: Mapping[str, str], place: NodeSpec, index: int) -> dict[str, str]:
    """Where a node tells its metrics: as asked for, with ports that are counted up, or on the port
    that it has for them."""
    if METRICS not in shared:
        port = place.metrics_port
        return {} if port is None else {METRICS: f"http://{HOST}:{port}"}
    match = re.fullmatch(r"(.*:)(\d+)(/?)", shared[METRICS])
    if match is None or match[2] == "0":
        return {}
    return {METRICS: f"{match[1]}{int(match[2]) + index}{match[3]}"}
