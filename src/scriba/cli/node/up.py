"""`scriba up`: one node, from the words it was started with to its clean end; several are run by
`supervisor`."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from scriba import __version__
from scriba.cli.node import joining, kept
from scriba.cli.node.arguments import DATA
from scriba.cli.output import note
from scriba.cli.parsing.options import BOOTSTRAP
from scriba.cli.problems import Misuse
from scriba.config import ConfigError, StartError
from scriba.errors import ErrorCode
from scriba.settings import NodeSettings
from scriba.settings.listeners import WILDCARDS
from scriba.settings.sources import (
    Given,
    parse_arguments,
    parse_environment,
    parse_properties,
)

if TYPE_CHECKING:
    from scriba.broker.node import Node
    from scriba.runtime.world import RealWorld

DEMO_TOPIC: Final = "demo"
DEMO_PARTITIONS: Final = 3
LOOK_S: Final = 0.1
PATIENCE_S: Final = 15
"""Before somebody is told what a node waits for that would be a voter."""
QUICK_START: Final = {"group.initial.rebalance.delay.ms": "0"}
"""What a node starts with that is given no file, as Kafka's container images do: the members of a
group that is tried out by hand come one by one, and nobody waits for the next."""


def run(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> int:
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    options.parent = os.getppid()
    options.kept = None
    joining.check_words(options)
    with contextlib.ExitStack() as left_behind:
        if options.ephemeral:
            from scriba.cli.node.ephemeral import data_directory

            if options.data is not None:
                raise StartError("--ephemeral: its data is removed at the end; drop --data")
            options.data = left_behind.enter_context(data_directory())
        if options.nodes is not None:
            return start_several(options, environment)
        if options.controllers is not None:
            raise Misuse("--controllers says nothing without --nodes", "add --nodes")
        if options.join is not None:
            options.kept = joining.prepare(options)
        return start(options, read_settings(options, environment))


def start_several(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from scriba.cli.node import supervisor
    from scriba.cli.node.layout import holds_several

    given, strangers = gather(options, environment)
    options.data = options.data or DATA
    if options.ephemeral and options.port is None:
        options.port = 0
    if not options.nodes:
        options.nodes = None if holds_several(options.data) else cores()
    shared = supervisor.prepare(given)
    tell_of(parse_settings(given), strangers)
    return supervisor.run(options, shared)


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start(options: argparse.Namespace, settings: NodeSettings) -> int:
    # After the settings, so that a wrong word is told at once.
    from scriba.runtime.loop.collector import hold_collector
    from scriba.runtime.loop.loop import raise_file_limit
    from scriba.runtime.loop.loop import run as run_loop

    hold_collector()  # before the imports, which make most of what a start keeps
    from scriba.broker.node import Node
    from scriba.cli.node.layout import holds_several
    from scriba.runtime.world import RealWorld

    for directory in settings.data_dirs:
        if holds_several(directory):
            raise StartError(
                f"{directory} holds several nodes of a cluster; start them with --nodes auto"
            )
    raise_file_limit()
    world = RealWorld(synced=not (options.ephemeral or options.unsynced))
    return run_loop(serve(Node(settings, world), world, options))


def read_settings(options: argparse.Namespace, environment: Mapping[str, str]) -> NodeSettings:
    """All sources put together; what was left aside is said on standard error. The directory of a
    node that joins keeps what it is, now that there is nothing wrong with it."""
    given, strangers = gather(options, environment)
    if options.port is not None and "listeners" in given:
        raise Misuse(f"--port: listeners is set too ({given['listeners'].origin})", "drop one")
    remember(options, given)
    if options.kept is not None:
        told = options.kept.settings(options.port)
        given = {n: Given(text, kept.KEPT_FILE) for n, text in told.items()} | given
    elif options.port is not None:
        given["listeners"] = Given(f"PLAINTEXT://127.0.0.1:{options.port}", "--port")
    elif options.ephemeral and "listeners" not in given:
        given["listeners"] = Given("PLAINTEXT://127.0.0.1:0", "--ephemeral")
    if options.data is not None:
        for name in ("log.dirs", "log.dir", "metadata.log.dir"):
            if options.ephemeral and name in given:
                raise StartError(f"--ephemeral: {name} is set ({given[name].origin}); drop one")
        given["log.dirs"] = Given(options.data, "--data")
    settings = parse_settings(given)
    if options.join is not None:
        kept.save(options.data, options.kept)
    tell_of(settings, strangers)
    return settings


def remember(options: argparse.Namespace, given: Mapping[str, Given]) -> None:
    """Finds what the directory's node has kept. One that is new, and is given no file and no
    listeners, keeps the port of its controller, where others can join it."""
    if options.kept is not None or options.config or options.ephemeral or options.child:
        return
    named = options.data or next(
        (given[name].text for name in ("log.dirs", "log.dir") if name in given), DATA
    )
    known = kept.load(named.split(",")[0].strip())
    if known is not None and known.servers:
        options.kept = known
    elif not kept.arranges_itself(given):
        options.kept = known or kept.Kept()


def gather(
    options: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[dict[str, Given], list[str]]:
    """Settings by name from all sources, and the variables that are none."""
    if options.config:
        given = read_file(options.config)
    else:
        given = {name: Given(text, "no --config") for name, text in QUICK_START.items()}
    if options.ephemeral:
        from scriba.cli.node.ephemeral import FEW_FILES

        given |= {name: Given(text, "--ephemeral") for name, text in FEW_FILES.items()}
    variables, strangers = parse_environment(environment)
    given |= variables
    given |= parse_arguments(options.settings)
    return given, strangers


def parse_settings(given: Mapping[str, Given]) -> NodeSettings:
    """StartError, with where it was given, for what no node takes."""
    try:
        texts = {name: value.text for name, value in given.items()}
        return NodeSettings.parse(texts, machine=socket.gethostname())
    except ConfigError as error:
        origin = given.get(error.name)
        if origin is None:
            raise StartError(str(error)) from error
        typed = origin.origin.startswith("--")
        raise (Misuse if typed else StartError)(f"{error} ({origin.origin})") from error


def tell_of(settings: NodeSettings, strangers: list[str]) -> None:
    note_names("without a meaning here, ignored", settings.screened.ignored)
    note_names("for features not served yet, without effect", settings.screened.waiting)
    note_names("no setting by that name, ignored", strangers)


def read_file(path: str) -> dict[str, Given]:
    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read(), path)
    except ConfigError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"--config {path}: {error.strerror}; name a readable file") from error
    except UnicodeDecodeError as error:
        raise StartError(f"--config {path}: is not UTF-8 text; save it as such") from error


def note_names(what: str, names: "tuple[str, ...] | list[str]") -> None:
    if names:
        print(f"note: {what}: {', '.join(names)}", file=sys.stderr)


async def serve(node: "Node", world: "RealWorld", options: argparse.Namespace) -> int:
    """Runs a node until a signal or a failure ends it, or whoever it is for has gone."""
    life = asyncio.ensure_future(live(node, world, options))
    listen_to_signals(life)
    held = options.ephemeral or options.child
    if options.child:
        from scriba.runtime.loop.hosting import go_on_without_parent

        go_on_without_parent()
    leash = asyncio.ensure_future(end_with(options.parent, life)) if held else None
    with contextlib.suppress(asyncio.CancelledError):
        await life
    if leash is not None:
        leash.cancel()
    return 0


async def end_with(parent: int, life: "asyncio.Future[None]") -> None:
    from scriba.cli.node.ephemeral import abandoned

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, life.cancel)
    await abandoned(parent)
    life.cancel()


async def live(node: "Node", world: "RealWorld", options: argparse.Namespace) -> None:
    from scriba.runtime.loop.collector import collect_as_it_grows, freeze
    from scriba.runtime.supervisor import READY, STOPPING, tell

    await node.start()
    freeze()
    node.tasks.spawn(collect_as_it_grows(world.memory_bytes), name="collecting garbage")
    async with world:  # watches the loop from here on, since a start may hold it
        try:
            if options.demo:
                await create_demo_topic(",".join(addresses(node)))
            if options.kept is not None:
                await settle(node, options.kept)
            print(as_json(node) if options.json else banner(node), flush=True)
            tell(READY)
            growing = None
            if options.replicas is not None:
                growing = asyncio.ensure_future(grow(",".join(addresses(node)), options))
            try:
                await node.wait_stopped()
            finally:
                if growing is not None:
                    growing.cancel()
        finally:
            if not options.json:
                print("stopping", flush=True)
            tell(STOPPING)
            await node.stop()


async def settle(node: "Node", known: "kept.Kept") -> None:
    """A controller that joins is ready when it is a voter; then its ports are written down."""
    waited = 0.0
    while known.servers and known.is_controller and not known.voter and not node.is_voter:
        await asyncio.sleep(LOOK_S)
        waited += LOOK_S
        if waited >= PATIENCE_S:
            waited = 0.0
            why = node.metadata.not_joined or "no leader has answered"
            print(f"note: waits to be made a voter: {why}", file=sys.stderr, flush=True)
    joining.keep(
        known,
        node.data_dirs[0],
        next((bound.port for bound in node.listeners), None),
        next((bound.port for bound in node.controller_listeners), None),
    )


async def grow(bootstrap: str, options: argparse.Namespace) -> None:
    """Gives the cluster's topics more replicas, beside the node that serves; what cannot be done is
    told, and ends nothing."""
    from scriba.cli.cluster.replicas import spread
    from scriba.cli.problems import CommandError
    from scriba.client import Admin, ClientError

    try:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            done = await spread(admin, options.replicas)
    except (ClientError, CommandError) as error:
        again = f"scriba cluster replicas {options.replicas} -b {bootstrap}"
        note(f"--replicas {options.replicas} is not done: {error}; try again with `{again}`")
        return
    note(f"all {done.partitions} partitions have {options.replicas} replicas")


def listen_to_signals(
    life: "asyncio.Future[None]", at_once: Callable[[], None] | None = None
) -> None:
    """The first SIGINT or SIGTERM asks the node to stop; a SIGINT after that does not ask, and
    does `at_once` what there is to do before the end."""
    asked = False

    def stop(number: signal.Signals) -> None:
        nonlocal asked
        if not asked:
            asked = True
            life.cancel()
        elif number is signal.SIGINT:
            if at_once is not None:
                at_once()
            print("stopped at once; the next start recovers the log", file=sys.stderr, flush=True)
            os._exit(128 + number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)


async def create_demo_topic(bootstrap: str) -> None:
    from scriba.client import Admin, BrokerError, NewTopic

    async with Admin(bootstrap_servers=bootstrap) as admin:
        try:
            await admin.create_topics([NewTopic(DEMO_TOPIC, partitions=DEMO_PARTITIONS)])
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def as_json(node: "Node") -> str:
    """One line for a program that waits for the node."""
    return json.dumps(
        {
            "bootstrap_servers": ",".join(addresses(node)),
            "cluster_id": node.cluster_id,
            "node_id": node.id,
            "pid": os.getpid(),
            "data": [os.path.abspath(each) for each in node.data_dirs],
            "version": __version__,
        }
    )


def banner(node: "Node") -> str:
    from scriba.cli.version import without_extension

    directories = ", ".join(os.path.abspath(each) for each in node.data_dirs)
    return "\n".join(
        [
            f"Scriba {__version__}: node {node.settings.node_id} of cluster {node.cluster_id}",
            *(f"  listening on {each}" for each in bound(node)),
            f"  data in {directories}",
            *(f"  {line}" for line in without_extension()),
            "",
            *hints(addresses(node)),
            "  stop:     Ctrl-C",
        ]
    )


def hints(clients: list[str]) -> list[str]:
    """What to type next; nothing at a controller that serves no clients."""
    if not clients:
        return []
    broker = "" if clients[0] == BOOTSTRAP else f" -b {clients[0]}"
    return [
        f"  produce:  echo hello | scriba produce {DEMO_TOPIC}{broker}",
        f"  consume:  scriba consume {DEMO_TOPIC}{broker} --exit",
    ]


def bound(node: "Node") -> list[str]:
    """What the node really listens on, which may be more than this machine can reach."""
    told = []
    for each in node.listeners or node.controller_listeners:
        host = each.host or "0.0.0.0"
        everywhere = ", every address of this machine" if each.host in WILDCARDS else ""
        told.append(f"{f'[{host}]' if ':' in host else host}:{each.port}{everywhere}")
    return told


def addresses(node: "Node") -> list[str]:
    """Where clients on this machine reach the node; a listener that was named for brokers is not
    for them, unless there is no other."""
    brokers = node.settings.inter_broker_listener_name
    own = brokers.upper() if brokers is not None else None
    found = [each for each in node.listeners if each.name != own] or node.listeners
    return [f"{reachable(each.host)}:{each.port}" for each in found]


def reachable(host: str) -> str:
    """A host to connect to from here, for one that may stand for every address."""
    if host in WILDCARDS:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
