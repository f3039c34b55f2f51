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
    "errors": set(),
    "config": {"errors"},
    "settings": {"errors", "config"},
    "wire": {"errors"},
    "outcome": {"instant", "wire", "events"},
    "records": BASE | {"native"},
    "native": {"errors", "records"},
    **dict.fromkeys(MACHINES, IDEAS | {"events"}),
    "runtime": {"instant", "prometheus"},
    "storage": IDEAS | {"runtime"},
    "broker": IDEAS | MACHINES | {"runtime", "storage", "peers", "events", "prometheus"},
    "peers": IDEAS | {"runtime"},
    "client": IDEAS | {"runtime", "peers"},
    "testing": IDEAS | {"runtime", "storage", "broker", "client", "peers", "prometheus"},
    "cli": BASE | {"client", "runtime", "broker", "spark", "pipelines"},
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
    "scriba.spark.writing.partitioning": {"native"},
    "scriba.spark.reading.fetching": {"native", "records", "wire", "peers"},
    "scriba.spark.writing.task_writer": {"native", "records", "wire", "peers"},
}
"""Modules and packages that may know more than their room: a pipeline's commands are made of the
command line's parts; what reads the files of a stopped node has no
broker to ask, and should not know the format a second time; tasks of Spark read and write batches
below the consumer and the producer, by column and under an identity that they share."""

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
        return self.room in MACHINES or (self.room, self.path.stem) in PLANS

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
