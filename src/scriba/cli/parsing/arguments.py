"""The arguments of every command. Nothing but argparse is imported to read or explain them.

A command names the function that carries it out as `module:function`; it gets the options and
returns the exit code.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from scriba.cli.cluster.arguments import moves
from scriba.cli.groups.arguments import groups, transactions
from scriba.cli.logs.arguments import repair, retention
from scriba.cli.node.arguments import nodes, up
from scriba.cli.parsing.meta import Version, meta
from scriba.cli.parsing.options import (
    INT16,
    Commands,
    Help,
    Parser,
    address,
    asks,
    at_least,
    command,
    directory_id,
    group,
    of_what,
    pair,
)
from scriba.cli.profiles.arguments import profiles, settle
from scriba.cli.records.arguments import consume, produce
from scriba.cli.topics.arguments import topics
from scriba.pipelines.inventory.commands.arguments import inventory
from scriba.pipelines.shop.commands.arguments import shop
from scriba.pipelines.shop.commands.dashboard_arguments import demo


class RootParser(Parser):
    """All commands; where the chosen one talks to is settled once its words are read."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        options: argparse.Namespace = super().parse_args(args, namespace)
        if hasattr(options, "profile"):
            settle(options)
        return options


def parser() -> argparse.ArgumentParser:
    top = RootParser(
        prog="scriba",
        description="A distributed commit log that any Kafka client takes for Kafka.",
        formatter_class=Help,
        allow_abbrev=False,
    )
    top.add_argument("--version", action=Version, help="show the version, then exit")
    top.set_defaults(run="scriba.cli.help:run", words=[])
    commands = top.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    up(commands)
    demo(commands)
    topics(group(commands, "topic", "create, look at, change and delete topics"))
    _config(group(commands, "config", "read and change settings while the cluster runs"))
    produce(commands)
    consume(commands)
    groups(group(commands, "group", "look at consumer groups, move and delete their offsets"))
    transactions(group(commands, "txn", "look at transactions, and end those that hang"))
    _cluster(group(commands, "cluster", "look at brokers and the metadata quorum, elect leaders"))
    nodes(group(commands, "node", "kill, pause and start nodes that `scriba up --nodes` runs"))
    _log(group(commands, "log", "look into the files of a log, repair them, resume retention"))
    _spark(group(commands, "spark", "pipelines on Spark: what they need here"))
    inventory(group(commands, "inventory", "stock that is decided once and never lies"))
    shop(group(commands, "shop", "a shop in real time: events, figures, a live page"))
    profiles(group(commands, "profile", "name clusters, and choose the one to talk to"))
    meta(commands)
    return top


# -- commands ------------------------------------------------------------------------------------


def _config(commands: Commands) -> None:
    get = command(
        commands,
        "get",
        "scriba.cli.config:get",
        "show settings",
        "Shows the settings in force that are not the default, or all, or those named.",
    )
    of_what(get)
    get.add_argument("keys", nargs="*", metavar="KEY", help="settings to show")
    get.add_argument("-a", "--all", action="store_true", help="those with their default too")
    asks(get)

    change = command(
        commands,
        "set",
        "scriba.cli.config:change",
        "change settings",
        "Changes settings at once, for good, and leaves all others as they are.",
    )
    of_what(change)
    change.add_argument("pairs", nargs="*", type=pair, metavar="KEY=VALUE")
    change.add_argument(
        "-d",
        "--delete",
        action="append",
        default=[],
        metavar="KEY",
        help="go back to the default; may be repeated",
    )
    change.add_argument(
        "--dry-run", action="store_true", help="check the request without carrying it out"
    )
    asks(change)


def _cluster(commands: Commands) -> None:
    asks(
        command(
            commands,
            "describe",
            "scriba.cli.cluster.describe:run",
            "show brokers, quorum and features",
            "Shows the brokers and their replicas, the metadata quorum and the finalized features.",
        )
    )
    _quorum(commands)
    _replicas(commands)
    _voters(group(commands, "voters", "change who votes in the metadata quorum"))
    _elect(commands)
    moves(commands)


def _quorum(commands: Commands) -> None:
    quorum = command(
        commands,
        "quorum",
        "scriba.cli.cluster.quorum:run",
        "show the voters and observers of the metadata quorum",
        "Shows the voters and observers of the metadata quorum, the end offset of each, and when "
        "each last fetched.",
    )
    quorum.add_argument(
        "--broker", type=at_least(int, 0), metavar="ID", help="ask this broker (default: any)"
    )
    asks(quorum)


def _replicas(commands: Commands) -> None:
    replicas = command(
        commands,
        "replicas",
        "scriba.cli.cluster.replicas:run",
        "set the replication factor of every topic",
        "Sets the replication factor of every topic, internal ones included, and waits until all "
        "replicas have caught up. The cluster continues if the command is interrupted.",
    )
    replicas.add_argument(
        "number", type=at_least(int, 1, INT16), metavar="N", help="the replication factor"
    )
    replicas.add_argument(
        "--off",
        type=at_least(int, 0),
        action="append",
        default=[],
        metavar="ID",
        help="place no replica on this broker; may be repeated",
    )
    asks(replicas)


def _elect(commands: Commands) -> None:
    elect = command(
        commands,
        "elect",
        "scriba.cli.cluster.elect:run",
        "elect preferred leaders",
        "Elects the preferred leader, which is the first replica, of all partitions or of the "
        "given ones.",
    )
    elect.add_argument(
        "partitions", nargs="*", metavar="TOPIC[:N,...]", help="the partitions (default: all)"
    )
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="elect a replica that is not in sync where no other is left: records that only "
        "the others have are lost",
    )
    elect.add_argument(
        "--wait",
        action="store_true",
        help="wait for preferred leaders to be in sync, at most --timeout",
    )
    asks(elect)


def _voters(commands: Commands) -> None:
    add = command(
        commands,
        "add",
        "scriba.cli.cluster.voters:add",
        "make a controller a voter",
        "Makes a controller that follows the metadata a voter of the quorum. It must have caught "
        "up, and answer at its address.",
    )
    add.add_argument("id", type=at_least(int, 0), metavar="ID", help="the node, by its number")
    add.add_argument(
        "--address",
        type=address,
        required=True,
        metavar="HOST:PORT",
        help="where its controller listens, as the others reach it",
    )
    remove = command(
        commands,
        "remove",
        "scriba.cli.cluster.voters:remove",
        "take a voter out",
        "Takes a voter out of the quorum. It follows the metadata on, if it runs.",
    )
    remove.add_argument("id", type=at_least(int, 0), metavar="ID", help="the node, by its number")
    for made in (add, remove):
        made.add_argument(
            "--directory",
            type=directory_id,
            metavar="UUID",
            help="the id of its directory, where more than one was seen",
        )
        asks(made)


def _spark(commands: Commands) -> None:
    doctor = command(
        commands,
        "doctor",
        "scriba.cli.spark:doctor",
        "check what pipelines need, and say what to fix",
        "Checks Python, packages, Java, jars, the Spark master and the brokers. The exit code is 1 "
        "when something has to be fixed.",
    )
    doctor.add_argument(
        "--master", default="local[*]", metavar="URL", help="where Spark runs (default: local[*])"
    )
    doctor.add_argument(
        "--connector", choices=("scriba", "official"), default="scriba", help="which to check"
    )
    doctor.add_argument(
        "--run", action="store_true", dest="run_session", help="start a session too, as a trial"
    )
    asks(doctor)


def _log(commands: Commands) -> None:
    dump = command(
        commands,
        "dump",
        "scriba.cli.logs.dump:run",
        "show and check segment files",
        "Shows the batches of segment files and checks them and their indexes. The exit code is 1 "
        "when something is wrong.",
    )
    dump.add_argument(
        "paths", nargs="+", metavar="PATH", help="a .log file, or a partition's directory"
    )
    dump.add_argument("-r", "--records", action="store_true", help="show the records too")
    dump.add_argument(
        "-q", "--quiet", action="store_true", help="check only: a line for each segment"
    )
    dump.add_argument("--json", action="store_true", help="one JSON object a line")
    repair(commands)
    retention(group(commands, "retention", "see and end a pause of deletion by age"))
