"""`scriba up --nodes N`: one process that starts, watches and stops the nodes of a cluster.

Each node is a process of its own, `scriba up --config DIR/node-N.properties`. It is held by its
standard input: when this process ends, however that was, the nodes stop in good order by
themselves. A node that ends is not started again by itself; `scriba node start` does it.
"""

import argparse
import asyncio
import contextlib
import enum
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scriba import __version__
from scriba.cli.node.arguments import DATA
from scriba.cli.node.control import Answer, held, listening, wait_for_former
from scriba.cli.node.layout import (
    METRICS,
    Layout,
    NodeSpec,
    check_ports,
    check_shared,
    data_directory,
    lay_out,
    metrics_of,
    properties_file,
    save,
    settings_of,
    without_metrics,
)
from scriba.cli.output import counted
from scriba.cli.problems import CommandError
from scriba.config import StartError
from scriba.settings.sources import ENVIRONMENT_PREFIX, Given

STOP_S: Final = 60.0
"""A node that has not stopped by then is ended."""
STILL_S: Final = 0.005
"""How often it is looked whether a node that is paused still runs."""
SLOW_START_S: Final = 15.0
KEPT_LINES: Final = 20
LONGEST_LINE: Final = 1 << 20


class State(enum.Enum):
    STARTING = "starting"
    UP = "up"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    FAILED = "failed"


ALIVE: Final = frozenset({State.STARTING, State.UP, State.PAUSED, State.STOPPING})


class Child:
    """A node, and the process that it has or had."""

    def __init__(self, place: NodeSpec) -> None:
        self.place = place
        self.state = State.STOPPED
        self.process: asyncio.subprocess.Process | None = None
        self.ended: asyncio.Task[None] | None = None
        self.cluster_id = ""
        self.last_words: deque[str] = deque(maxlen=KEPT_LINES)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def document(self) -> dict[str, Any]:
        return {
            "node_id": self.place.id,
            "roles": list(self.place.roles),
            "address": self.place.address,
            "pid": self.pid if self.is_alive else None,
            "state": self.state.value,
        }

    def line(self) -> str:
        pid = f"pid {self.pid}" if self.is_alive else "no process"
        roles = " and ".join(self.place.roles)
        return f"node {self.place.id}  {roles}  {self.place.address}  {pid}  {self.state.value}"


def lines(children: Iterable[Mapping[str, Any]]) -> list[str]:
    """The nodes, one line each, as `Child.document` tells of them."""
    rows = [
        (
            f"node {each['node_id']}",
            " and ".join(each["roles"]),
            each["address"],
            "no process" if each["pid"] is None else f"pid {each['pid']}",
            each["state"],
        )
        for each in children
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


class Nodes:
    """The nodes of one directory while this process runs them."""

    def __init__(self, data: str, layout: Layout, options: argparse.Namespace) -> None:
        self.data = data
        self.layout = layout
        self.children = {place.id: Child(place) for place in layout.nodes}
        self._options = options
        self._stopping = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done, with what there is to say, when no node is left."""

    def document(self) -> Answer:
        return {"nodes": [child.document() for child in self.children.values()]}

    # -- starting ----------------------------------------------------------------------------

    async def start_all(self) -> None:
        """All at once: the controllers of a new cluster wait for each other."""
        starts = [asyncio.ensure_future(self.start(child)) for child in self.children.values()]
        slow = asyncio.ensure_future(self._tell_if_slow())
        try:
            await asyncio.gather(*starts)
        finally:
            slow.cancel()
            for start in starts:
                start.cancel()

    async def _tell_if_slow(self) -> None:
        await asyncio.sleep(SLOW_START_S)
        waiting = [child for child in self.children.values() if child.state is State.STARTING]
        told = ", ".join(f"node {child.place.id} (pid {child.pid})" for child in waiting)
        print(f"note: still starting: {told}", file=sys.stderr, flush=True)

    async def start(self, child: Child) -> None:
        """Returns when the node serves; StartError with what it said when it does not."""
        command = [sys.executable, "-m", "scriba", "up", "--json", "--child"]
        command += ["--config", properties_file(self.data, child.place.id)]
        if self._options.verbose:
            command.append("--verbose")
        if self._options.ephemeral:
            command.append("--unsynced")
        child.last_words.clear()
        child.process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if not _is_for_one_node(k)},
            start_new_session=True,  # Ctrl-C is for this process, which stops them in order
            limit=LONGEST_LINE,
        )
        child.state = State.STARTING
        listener = asyncio.ensure_future(self._listen(child, child.process))
        child.ended = asyncio.ensure_future(self._watch(child, child.process, listener))
        assert child.process.stdout is not None
        line = await child.process.stdout.readline()
        if not line:
            await asyncio.wait([child.ended])
            why = child.last_words[-1] if child.last_words else "it said nothing"
            raise StartError(f"node {child.place.id} did not start: {why}")
        child.cluster_id = json.loads(line)["cluster_id"]
        if child.state is State.STARTING:
            child.state = State.UP

    async def _listen(self, child: Child, process: asyncio.subprocess.Process) -> None:
        """What a node says on standard error is passed on, with its number."""
        assert process.stderr is not None
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            if text.startswith("note: "):
                continue  # about settings, and told once for all of them
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(text)["error"]
                text = "; ".join(filter(None, (told["message"], told["fix"])))
            child.last_words.append(text)
            print(f"node {child.place.id}: {text}", file=sys.stderr, flush=True)

    # -- watching ----------------------------------------------------------------------------

    async def _watch(
        self, child: Child, process: asyncio.subprocess.Process, listener: asyncio.Future[None]
    ) -> None:
        code = await process.wait()
        await listener
        before = child.state
        if before is State.STOPPING and code == 0:
            child.state = State.STOPPED
        elif before is not State.KILLED:
            child.state = State.FAILED
            if before is not State.STARTING:
                how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                print(
                    f"node {child.place.id} (pid {process.pid}) ended by itself: {how}; to start "
                    f"it again: scriba node start {child.place.id}",
                    file=sys.stderr,
                    flush=True,
                )
        left = any(each.is_alive for each in self.children.values())
        failed = child.state is State.FAILED and before is not State.STARTING
        if failed and not left and not self._stopping and not self.over.done():
            self.over.set_result(None)

    # -- orders from a second terminal -------------------------------------------------------

    async def carry_out(self, do: str, node_id: int) -> Answer:
        if do == "list":
            return self.document()
        child = self.children.get(node_id)
        if child is None:
            there = ", ".join(map(str, self.children))
            raise CommandError(f"there is no node {node_id}", f"there are {there}")
        if self._stopping:
            raise CommandError("the nodes are being stopped")
        await self._ORDERS[do](self, child)
        self._say(child)
        return {"node": child.document()}

    def _say(self, child: Child) -> None:
        if not self._options.json:
            print(child.line(), flush=True)

    def _must_be(self, child: Child, *states: State) -> None:
        if child.state in states:
            return
        what = f"node {child.place.id} is {child.state.value}"
        fix = f"scriba node start {child.place.id}" if not child.is_alive else ""
        if child.state is State.PAUSED:
            fix = f"scriba node resume {child.place.id}"
        raise CommandError(what, fix)

    async def _kill(self, child: Child) -> None:
        self._must_be(child, *ALIVE)
        child.state = State.KILLED
        child.signal(signal.SIGKILL)
        await self._ended(child)

    async def _pause(self, child: Child) -> None:
        from scriba.runtime.loop.hosting import stands_still

        self._must_be(child, State.UP)
        child.state = State.PAUSED
        child.signal(signal.SIGSTOP)
        pid = child.pid
        while child.state is State.PAUSED and pid and not stands_still(pid):  # noqa: ASYNC110
            await asyncio.sleep(STILL_S)

    async def _resume(self, child: Child) -> None:
        if child.state is State.UP:
            raise CommandError(f"node {child.place.id} is not paused")
        self._must_be(child, State.PAUSED)
        child.state = State.UP
        child.signal(signal.SIGCONT)

    async def _stop(self, child: Child) -> None:
        self._must_be(child, State.UP)
        child.state = State.STOPPING
        child.signal(signal.SIGTERM)
        await self._ended(child)

    async def _start(self, child: Child) -> None:
        if child.is_alive:
            what = f"node {child.place.id} is {child.state.value}"
            if child.state is State.PAUSED:
                raise CommandError(what, f"scriba node resume {child.place.id}")
            raise CommandError(f"{what} (pid {child.pid})")
        try:
            await self.start(child)
        except StartError as error:
            raise CommandError(str(error), self._together(child)) from error

    def _together(self, child: Child) -> str:
        """What helps a node that waited in vain for a majority of controllers."""
        voters = [each for each in self.children.values() if each.place.is_controller]
        missing = [each for each in voters if not each.is_alive]
        if len(missing) * 2 < len(voters):
            return ""
        ids = sorted({child.place.id, *(each.place.id for each in missing)})
        return (
            f"start as many as are a majority at once: scriba node start {' '.join(map(str, ids))}"
        )

    _ORDERS: Final = {
        "kill": _kill,
        "pause": _pause,
        "resume": _resume,
        "stop": _stop,
        "start": _start,
    }

    async def _ended(self, child: Child) -> None:
        assert child.ended is not None
        await asyncio.wait([child.ended])

    # -- stopping ----------------------------------------------------------------------------

    async def stop_all(self) -> bool:
        """Brokers first, since they hand their partitions over with a controller's help; whether
        all ended well."""
        self._stopping = True
        alive = [child for child in self.children.values() if child.is_alive]
        for child in alive:
            if child.state is State.PAUSED:
                child.signal(signal.SIGCONT)
        brokers = [child for child in alive if not child.place.is_controller]
        controllers = [child for child in alive if child.place.is_controller]
        for stage in (brokers, controllers):
            await self._stop_stage(stage)
        return all(child.state is State.STOPPED for child in alive)

    async def _stop_stage(self, stage: list[Child]) -> None:
        for child in stage:
            child.state = State.STOPPING
            child.signal(signal.SIGTERM)
        ends = [child.ended for child in stage if child.ended is not None]
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=STOP_S)
        if late:
            for child in stage:
                if child.is_alive:
                    print(
                        f"node {child.place.id} did not stop within {STOP_S:.0f} s and was ended",
                        file=sys.stderr,
                        flush=True,
                    )
                    child.signal(signal.SIGKILL)
            await asyncio.wait(late)

    def kill_all(self) -> None:
        for child in self.children.values():
            if child.is_alive:
                child.signal(signal.SIGKILL)


def _is_for_one_node(variable: str) -> bool:
    """Settings are in the node's file already; a supervisor waits for this process alone."""
    return variable.startswith(ENVIRONMENT_PREFIX) or variable == "NOTIFY_SOCKET"


# -- the command -------------------------------------------------------------------------------


def run(options: argparse.Namespace, shared: Mapping[str, str]) -> int:
    """Runs the nodes over `options.data` until a signal, or whoever they are for has gone."""
    from scriba.runtime.loop.loop import run as run_loop

    data: str = options.data
    layout = lay_out(data, options.nodes, options.controllers, options.port)
    used = without_metrics(layout) if METRICS in shared else layout
    if not os.path.isdir(data):
        check_ports(used)  # before anything is made
    with held(data):
        wait_for_former(data_directory(data, place.id) for place in layout.nodes)
        check_ports(used)
        settings = {
            place.id: {**shared, **metrics_of(shared, place, n), **settings_of(layout, place, data)}
            for n, place in enumerate(layout.nodes)
        }
        save(data, layout, settings)
        return run_loop(supervise(options, layout))


async def supervise(options: argparse.Namespace, layout: Layout) -> int:
    from scriba.cli.node.up import listen_to_signals

    nodes = Nodes(options.data, layout, options)
    life = asyncio.ensure_future(live(nodes, options))
    listen_to_signals(life, nodes.kill_all)
    leash: asyncio.Future[None] | None = None
    if options.ephemeral:
        from scriba.cli.node.up import end_with

        leash = asyncio.ensure_future(end_with(options.parent, life))
    failed = False
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await life
    except StartError:
        await nodes.stop_all()
        raise
    failed = not await nodes.stop_all()
    if leash is not None:
        leash.cancel()
    return 1 if failed else 0


async def live(nodes: Nodes, options: argparse.Namespace) -> None:
    from scriba.runtime.supervisor import READY, STOPPING, tell

    await nodes.start_all()
    async with listening(nodes.data, nodes.carry_out):
        if options.demo:
            from scriba.cli.node.up import create_demo_topic

            await create_demo_topic(nodes.layout.bootstrap)
        print(as_json(nodes) if options.json else banner(nodes), flush=True)
        tell(READY)
        try:
            await nodes.over
            raise StartError("no node is left; start again with the same words")
        finally:
            if not options.json:
                print("stopping", flush=True)
            tell(STOPPING)


def _cluster_id(nodes: Nodes) -> str:
    return next(iter(nodes.children.values())).cluster_id


def as_json(nodes: Nodes) -> str:
    """One line for a program that waits for the nodes."""
    return json.dumps(
        {
            "bootstrap_servers": nodes.layout.bootstrap,
            "cluster_id": _cluster_id(nodes),
            "pid": os.getpid(),
            "nodes": [
                child.document()
                | {"data": [os.path.abspath(data_directory(nodes.data, child.place.id))]}
                for child in nodes.children.values()
            ],
            "data": os.path.abspath(nodes.data),
            "version": __version__,
        }
    )


def banner(nodes: Nodes) -> str:
    from scriba.cli.node.up import hints
    from scriba.cli.version import without_extension

    where = "" if nodes.data == DATA else f" --data {nodes.data}"
    count = counted(len(nodes.children), "node")
    return "\n".join(
        [
            f"Scriba {__version__}: cluster {_cluster_id(nodes)} of {count}",
            *(f"  {line}" for line in lines(nodes.document()["nodes"])),
            f"  data in {os.path.abspath(nodes.data)}",
            *(f"  {line}" for line in without_extension()),
            "",
            *hints(nodes.layout.bootstrap.split(",")),
            f"  kill one: scriba node kill {nodes.layout.brokers[-1].id}{where}",
            "  stop:     Ctrl-C",
        ]
    )


def prepare(given: Mapping[str, Given]) -> dict[str, str]:
    """The settings that all nodes share; Misuse for one that cannot be shared."""
    check_shared((name, value.origin) for name, value in given.items())
    return {name: value.text for name, value in given.items()}
