"""The direction of imports, and what a room may know of the world outside the process.

Every import in `src/scriba` is read from the syntax tree, those under TYPE_CHECKING and inside
functions included, and held against the two tables below.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "scriba"

BASE = {"errors", "config", "settings", "instant"}
MACHINES = {"raft", "controller", "replication", "groups", "txn"}
IDEAS = {"wire", "records", "native", "outcome", *BASE}

ALLOWED: dict[str, set[str]] = {
    "instant": set(),
    "events": set(),
    "prometheus": set(),
    "text": set(),
    "errors": set(),
    "config": {"errors"},
    "settings": {"errors", "config"},
    "wire": {"errors", "native"},
    "placement": {"settings", "text"},
    "outcome": {"instant", "wire", "events"},
    "records": BASE | {"native"},
    "native": {"errors", "records"},
    **dict.fromkeys(MACHINES, IDEAS | {"events"}),
    "controller": IDEAS | {"events", "placement", "text"},
    "runtime": {"instant", "prometheus"},
    "storage": IDEAS | {"runtime"},
    "broker": IDEAS
    | MACHINES
    | {"placement", "runtime", "storage", "peers", "events", "prometheus"},
    "peers": IDEAS | {"runtime"},
    "client": IDEAS | {"runtime", "peers", "text"},
    "testing": IDEAS
    | {"raft", "controller", "runtime", "storage", "broker", "client", "peers", "prometheus"},
    "cli": BASE | {"text", "client", "placement", "runtime", "broker", "spark", "pipelines"},
    "console": BASE | {"client"},
    "spark": BASE | {"client"},
    "pipelines": BASE | {"client", "spark", "prometheus"},
    "__init__": {"client", *BASE},
    "__main__": {"cli"},
}
"""Room -> rooms of the house it may import, besides itself.

The command line starts the node, so it may name `broker.node` (see ENTRANCES) and no other part.
"""

ENTRANCES = {
    ("cli", "broker"): {"scriba.broker.node"},
    ("cli", "spark"): {"scriba.spark.classes", "scriba.spark.doctor"},
    ("wire", "native"): {"scriba.native.locate"},
    ("native", "records"): {
        f"scriba.records.{name}" for name in ("compression", "crc", "header", "numbers", "record")
    },
}
"""Rooms that may be entered only by the modules named here."""

GUESTS = {
    "scriba.cli.logs.dump": {"records", "storage"},
    "scriba.cli.logs.repair": {"records", "storage"},
    "scriba.cli.version": {"native"},
    "scriba.pipelines.commands": {"cli"},
    "scriba.pipelines.shop.commands": {"cli", "runtime"},
    "scriba.pipelines.inventory.commands": {"cli"},
    "scriba.spark.link": {"runtime", "peers"},
    "scriba.spark.reading.lookup": {"wire"},
    "scriba.spark.doctor": {"native"},
    "scriba.spark.writing.partitioning": {"native"},
    "scriba.spark.reading.fetching": {"native", "records", "wire", "peers"},
    "scriba.spark.writing.task_writer": {"native", "records", "wire", "peers"},
}
"""Modules and packages that may know more than their room: a pipeline's commands are made of the
command line's parts; what reads the files of a stopped node has no
broker to ask, and should not know the format a second time; tasks of Spark read and write batches
below the consumer and the producer, by column and under an identity that they share."""

BROKER_BASE = {"request", "access", "observe", "ports"}

INSIDE_BROKER: dict[str, set[str]] = {
    "request": set(),
    "observe": set(),
    "access": {"request"},
    "ports": {"request", "access", "observe"},
    "channels": BROKER_BASE,
    "envelope": set(),
    "net": BROKER_BASE,
    "partitions": BROKER_BASE | {"channels"},
    "metadata": BROKER_BASE | {"channels", "envelope"},
    "coordinators": BROKER_BASE | {"channels", "partitions"},
    "jobs": BROKER_BASE | {"partitions", "metadata"},
    "handlers": BROKER_BASE | {"envelope", "metadata", "net", "partitions", "coordinators"},
    "fastpath": BROKER_BASE | {"net", "partitions", "coordinators", "handlers"},
    "api": BROKER_BASE | {"net", "handlers", "fastpath"},
    "metrics": BROKER_BASE | {"net", "metadata", "partitions", "coordinators", "jobs", "api"},
}
"""Part of the broker -> parts it may import, besides itself. `node` puts them together, and may
import all; nothing here may import `node`."""

NODE = "scriba.broker.node"

KNOWS_NODE = {
    "scriba.cli.node.up",
    "scriba.testing.inside",
    "scriba.testing.sim.plays.differential",
    "scriba.testing.sim.node",
}
"""Modules that start a node, and therefore name the class. The broker's own parts name what they
need of it (`broker.ports`)."""

OUTSIDE = {"runtime", "cli", "console", "spark", "pipelines"}
"""Rooms that may touch the machine directly; for all others it comes in through the ports."""

WORLD = {"time", "random", "uuid", "secrets", "socket", "threading", "select", "selectors"}
WORLD |= {"signal", "subprocess", "multiprocessing", "tempfile", "shutil", "fcntl"}
WORLD |= {"pathlib", "glob", "concurrent"}
IMPURE = WORLD | {"os", "asyncio", "datetime", "io"}
"""What a machine must not import: it is given values and the time, and returns values."""

PLANS = {("storage", "retention"), ("storage", "choice")}
PLANS |= {("client", name) for name in ("classic", "reconciling", "payload", "shares", "sticky")}
PLANS |= {("client", "machine")}
"""Modules outside the machines' rooms that decide and therefore keep the machines' rules."""

SWITCHES = {"scriba.native.implementation"}
"""Modules that ask the environment, once, which of two implementations to use."""

OPENERS = {"open", "input"}
CLOCKS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}


@dataclass(frozen=True)
class Module:
    name: str
    room: str
    path: Path
    tree: ast.Module

    @property
    def decides(self) -> bool:
        """Whether it is a machine or a plan, bound to the stricter rules."""
        return self.room in {*MACHINES, "placement"} or (self.room, self.path.stem) in PLANS

    def imports(self) -> Iterator[tuple[str, int]]:
        """Full names of all imported modules, with their lines; relative ones resolved."""
        package = self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node.lineno
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = package.split(".")
                    up = ".".join(parts[: len(parts) - node.level + 1])
                    base = f"{up}.{base}".rstrip(".")
                for alias in node.names:
                    yield f"{base}.{alias.name}", node.lineno


def load(path: Path, source: str | None = None) -> Module:
    relative = path.relative_to(SOURCE)
    parts = [*relative.parts[:-1], relative.stem]
    name = ".".join(["scriba", *(part for part in parts if part != "__init__")])
    room = parts[0]
    return Module(name, room, path, ast.parse(source or path.read_text(), str(path)))


MODULES = [load(path) for path in sorted(SOURCE.rglob("*.py"))]


def known_as_guest(name: str) -> set[str]:
    """What a module may know besides, by itself or as part of a package."""
    hosts = (rooms for home, rooms in GUESTS.items() if f"{name}.".startswith(f"{home}."))
    return set().union(*hosts)


def wrong_turns(module: Module) -> Iterator[str]:
    """Imports against the direction of the house."""
    for imported, line in module.imports():
        house, _, inside = imported.partition(".")
        room = inside.partition(".")[0]
        if house != "scriba" or room in (module.room, "__version__"):
            continue
        where = f"{module.name}:{line} imports {imported}"
        if room not in ALLOWED[module.room] | known_as_guest(module.name):
            yield f"{where}: {module.room} may not know {room}"
        doors = ENTRANCES.get((module.room, room))
        if doors and not any(imported == d or imported.startswith(d + ".") for d in doors):
            yield f"{where}: only through {', '.join(sorted(doors))}"


def part_of_broker(name: str) -> str:
    """The part that a module of the broker belongs to: its package, or itself."""
    return name.removeprefix("scriba.broker.").partition(".")[0]


def wrong_turns_in_broker(module: Module) -> Iterator[str]:
    """Imports against the direction within the broker."""
    if module.room != "broker" or module.name in ("scriba.broker", NODE):
        return
    part = part_of_broker(module.name)
    if part not in INSIDE_BROKER:
        yield f"{module.name} is in no part of the broker: add it to the table"
        return
    for imported, line in module.imports():
        if not imported.startswith("scriba.broker."):
            continue
        other = part_of_broker(imported)
        if other != part and other not in INSIDE_BROKER[part]:
            yield f"{module.name}:{line} imports {imported}: {part} may not know {other}"


def circles(modules: list[Module]) -> Iterator[list[str]]:
    """Modules that import each other in a circle, each found from one of them."""
    known = {module.name for module in modules}
    imports: dict[str, set[str]] = {}
    for module in modules:
        reached = {name for imported, _ in module.imports() for name in _prefixes(imported)}
        imports[module.name] = (reached & known) - {module.name}
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        if name in path:
            yield [*path[path.index(name) :], name]
        elif name not in done:
            path.append(name)
            for other in sorted(imports[name]):
                yield from visit(other)
            path.pop()
            done.add(name)

    for name in sorted(known):
        yield from visit(name)


def _prefixes(imported: str) -> Iterator[str]:
    """`a.b.c` is the module a.b with the name c, or the module a.b.c."""
    yield imported
    yield imported.rpartition(".")[0]


def takes_too_much(module: Module) -> Iterator[str]:
    """Handlers that take all that a broker is, where a narrow protocol would do."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for argument in node.args.args:
                if argument.annotation is not None and "Broker" in {
                    name.id for name in ast.walk(argument.annotation) if isinstance(name, ast.Name)
                }:
                    yield f"{module.name}:{node.lineno} {node.name} takes the whole broker"


def reaching_outside(module: Module) -> Iterator[str]:
    """Uses of the machine that should have come through a port."""
    if module.room in OUTSIDE:
        return
    banned = IMPURE if module.decides else WORLD
    for imported, line in module.imports():
        root, _, rest = imported.partition(".")
        if root in banned or (root == "os" and rest and not rest.startswith("path")):
            yield f"{module.name}:{line} imports {imported}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield from _reaching_call(module, node)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pure = PURE_OS | {"environ"} if module.name in SWITCHES else PURE_OS
            if node.value.id == "os" and node.attr not in pure:
                yield f"{module.name}:{node.lineno} uses os.{node.attr}"
            elif (node.value.id, node.attr) in CLOCKS:
                yield f"{module.name}:{node.lineno} asks {node.value.id}.{node.attr}"


PURE_OS = {"path", "fspath", "PathLike", "strerror"}
TOUCHING_PATHS = {"exists", "isfile", "isdir", "getsize", "getmtime", "realpath", "abspath"}


def _reaching_call(module: Module, call: ast.Call) -> Iterator[str]:
    function = call.func
    if isinstance(function, ast.Name) and function.id in OPENERS:
        yield f"{module.name}:{call.lineno} calls {function.id}()"
    elif isinstance(function, ast.Attribute) and function.attr in TOUCHING_PATHS:
        owner = ast.unparse(function.value)
        if owner == "os.path":
            yield f"{module.name}:{call.lineno} asks the disk by os.path.{function.attr}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_imports_run_from_the_world_to_the_idea(module: Module) -> None:
    assert module.room in ALLOWED, f"{module.room} is no room of the house: add it to the table"
    assert list(wrong_turns(module)) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_the_outside_comes_in_through_the_ports(module: Module) -> None:
    assert list(reaching_outside(module)) == []


BROKER_MODULES = [
    module for module in MODULES if module.room == "broker" and module.path.stem != "__init__"
]


@pytest.mark.parametrize("module", BROKER_MODULES, ids=lambda module: module.name)
def test_the_parts_of_the_broker_import_in_one_direction(module: Module) -> None:
    assert list(wrong_turns_in_broker(module)) == []


def test_the_table_of_the_broker_has_one_direction() -> None:
    above: set[str] = set()
    for part, below in INSIDE_BROKER.items():
        assert below <= above, f"{part} may know {sorted(below - above)}, which stand above it"
        above.add(part)


def test_no_modules_of_the_broker_import_each_other_not_even_for_types() -> None:
    assert list(circles(BROKER_MODULES)) == []


def test_only_what_starts_a_node_knows_the_class() -> None:
    knows = {
        module.name
        for module in MODULES
        if any(imported.startswith(NODE) for imported, _ in module.imports())
    }
    assert knows == KNOWS_NODE


def test_a_handler_takes_what_it_needs_of_the_broker() -> None:
    handlers = [m for m in BROKER_MODULES if m.name.startswith("scriba.broker.handlers.")]
    assert handlers
    assert [breach for module in handlers for breach in takes_too_much(module)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("broker/handlers/x.py", "from scriba.broker.node import Node"),
        ("broker/handlers/x.py", "from scriba.broker.api.dispatch import Dispatch"),
        ("broker/net/x.py", "def f():\n    from scriba.broker.handlers import topics"),
        ("broker/partitions/x.py", "from scriba.broker.coordinators.runtime import Kind"),
        (
            "broker/coordinators/x.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from scriba.broker.jobs.clock_guard import ClockGuard",
        ),
        ("broker/elsewhere.py", "import asyncio"),
    ],
)
def test_a_breach_within_the_broker_is_noticed(path: str, source: str) -> None:
    assert list(wrong_turns_in_broker(load(SOURCE / path, source)))


def test_a_circle_is_noticed() -> None:
    one = load(SOURCE / "broker/net/one.py", "from scriba.broker.net.two import Two")
    two = load(SOURCE / "broker/net/two.py", "from scriba.broker.net import three")
    three = load(SOURCE / "broker/net/three.py", "import scriba.broker.net.one")
    assert list(circles([one, two])) == []
    (circle,) = circles([one, two, three])
    assert set(circle) == {one.name, two.name, three.name}


def test_a_handler_that_takes_the_whole_broker_is_noticed() -> None:
    source = "async def f(node: Broker | None, ctx: Context) -> None: ..."
    assert list(takes_too_much(load(SOURCE / "broker/handlers/x.py", source)))


def test_machines_do_not_know_each_other() -> None:
    for machine in MACHINES:
        assert not ALLOWED[machine] & (MACHINES | {"runtime", "storage", "broker"})


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("raft/x.py", "import asyncio"),
        ("raft/x.py", "from scriba.controller import image"),
        ("raft/x.py", "from ..controller import image"),
        ("raft/x.py", "def f():\n    import random"),
        ("groups/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import socket"),
        ("txn/x.py", "import scriba.runtime.ports"),
        ("wire/x.py", "from scriba.settings import NodeSettings"),
        ("records/x.py", "from uuid import uuid4"),
        ("storage/x.py", "import os\nos.fsync(3)"),
        ("storage/x.py", "from os import replace"),
        ("storage/x.py", "import os.path\nos.path.exists('a')"),
        ("storage/x.py", "data = open('a').read()"),
        ("storage/retention.py", "import asyncio"),
        ("broker/x.py", "from time import time"),
        ("broker/x.py", "from datetime import datetime\ndatetime.now()"),
        ("client/x.py", "from scriba.broker.node import Node"),
        ("cli/x.py", "from scriba.broker.partitions.partition import Partition"),
        ("cli/x.py", "from scriba.storage.directory.names import LOG"),
        ("console/x.py", "from scriba import broker"),
        ("runtime/x.py", "from scriba.testing.sim import disk"),
    ],
)
def test_a_breach_is_noticed(path: str, source: str) -> None:
    module = load(SOURCE / path, source)
    assert [*wrong_turns(module), *reaching_outside(module)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("raft/x.py", "from scriba.wire.messages.quorum import Vote\nimport heapq, dataclasses"),
        ("storage/x.py", "import os.path\nos.path.join('a', 'b')"),
        ("storage/x.py", "import asyncio\nfrom . import index\nfrom .index import Index"),
        ("runtime/x.py", "import os, time, socket, threading"),
        ("cli/x.py", "from scriba.broker.node import Node"),
        ("cli/logs/dump.py", "from scriba.storage.directory.names import LOG"),
        ("testing/x.py", "from scriba.broker.node import Node"),
    ],
)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    module = load(SOURCE / path, source)
    assert [*wrong_turns(module), *reaching_outside(module)] == []
