"""The arguments of `scriba up` and `scriba node`."""

import argparse
from typing import Final

from scriba.cli.parsing.options import INT16, Commands, addresses, at_least, command, port

DATA: Final = "scriba-data"
AUTO: Final = 0
"""`--nodes auto`: one for each core."""


def up(commands: Commands) -> None:
    made = command(
        commands,
        "up",
        "scriba.cli.node.up:run",
        "start a node, or a cluster of several",
        "Starts one node, broker and controller at once, and runs it until Ctrl-C. With --nodes it "
        "starts several, each a process of its own, as one cluster.",
        epilog="Settings are Kafka's. The stronger source wins, key by key: --set, then KAFKA_... "
        "variables (KAFKA_LOG_RETENTION_MS is log.retention.ms), then --config, then the default.",
    )
    made.add_argument("--data", metavar="DIR", help=f"where the data is (default: ./{DATA})")
    made.add_argument(
        "--port",
        type=port,
        metavar="N",
        help="port on 127.0.0.1, of several nodes the first one's (default: 9092; 0: any free one)",
    )
    made.add_argument(
        "--nodes",
        type=_nodes,
        metavar="N",
        help="run so many nodes; auto: one for each core",
    )
    made.add_argument(
        "--controllers",
        type=_several,
        metavar="N",
        help="with --nodes: so many controllers of their own, instead of the first three nodes",
    )
    _joining(made)
    made.add_argument("--config", metavar="FILE", help="a server.properties to read")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="one setting; may be repeated",
    )
    made.add_argument("--demo", action="store_true", help="create a topic to play with")
    made.add_argument(
        "--ephemeral",
        action="store_true",
        help="a node for tests: any free port, data in a temporary directory that is removed, and "
        "an end when the parent ends or closes the pipe on standard input",
    )
    made.add_argument(
        "--json", action="store_true", help="one line of JSON when it is ready, instead of words"
    )
    made.add_argument("--verbose", "-v", action="store_true", help="log what the node does")
    # How the process that runs several nodes starts each of them.
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--unsynced", action="store_true", help=argparse.SUPPRESS)


def _joining(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--join",
        type=addresses,
        metavar="HOST:PORT",
        help="make a new node of the cluster that this broker belongs to",
    )
    made.add_argument(
        "--controller",
        action="store_true",
        help="with --join: a controller as well, which votes in the metadata quorum",
    )
    made.add_argument(
        "--id",
        type=at_least(int, 1),
        metavar="N",
        help="with --join: its number (default: the first that is free)",
    )
    made.add_argument(
        "--replicas",
        type=at_least(int, 1, INT16),
        metavar="N",
        help="with --join: when it serves, give every topic of the cluster so many replicas",
    )


def _nodes(text: str) -> int:
    return AUTO if text == "auto" else _several(text, ", or auto")


def _several(text: str, other: str = "") -> int:
    from scriba.cli.node.layout import MOST_NODES

    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number; write it in digits{other}"
        ) from None
    return at_least(int, 1, MOST_NODES)(str(number))


def nodes(commands: Commands) -> None:
    for name, summary, description in (
        ("kill", "end a node at once", "Ends a node as a crash does: SIGKILL, nothing is flushed."),
        ("pause", "stop a node's process", "Stops a node as a machine that hangs: SIGSTOP."),
        ("resume", "let a paused node go on", "Lets a paused node go on: SIGCONT."),
        ("stop", "stop a node in good order", "Stops a node in good order, as for a restart."),
        ("start", "start a node again", "Starts a node that was killed or stopped, or failed."),
    ):
        made = command(commands, name, "scriba.cli.node.command:carry_out", summary, description)
        made.set_defaults(order=name)
        made.add_argument(
            "ids", type=int, nargs="+", metavar="ID", help="the node, by its number, or several"
        )
        _where(made)
    listing = command(
        commands,
        "list",
        "scriba.cli.node.command:list_all",
        "show the nodes and their processes",
        "Shows the nodes that `scriba up --nodes` runs, with their processes and states.",
    )
    _where(listing)


def _where(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--data", default=DATA, metavar="DIR", help=f"where their data is (default: ./{DATA})"
    )
    made.add_argument("--json", action="store_true", help="write JSON")
