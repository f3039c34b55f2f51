"""The words of every command. Nothing but argparse is imported to read or explain them.

A command names the function that carries it out as `module:function`; it gets the options and
returns the exit code.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from scriba.cli.groups.arguments import groups, transactions
from scriba.cli.logs.arguments import repair, retention
from scriba.cli.parsing.meta import Version, meta
from scriba.cli.parsing.options import (
    Commands,
    Help,
    Parser,
    asks,
    command,
    group,
    of_what,
    pair,
    port,
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
    _up(commands)
    demo(commands)
    topics(group(commands, "topic", "create, look at, change and delete topics"))
    _config(group(commands, "config", "read and change settings while the cluster runs"))
    produce(commands)
    consume(commands)
    groups(group(commands, "group", "look at consumer groups, move and delete their offsets"))
    transactions(group(commands, "txn", "look at transactions, and end those that hang"))
    _cluster(group(commands, "cluster", "look at brokers and the metadata quorum"))
    _log(group(commands, "log", "look into the files of a log, repair them, resume retention"))
    _spark(group(commands, "spark", "pipelines on Spark: what they need here"))
    inventory(group(commands, "inventory", "stock that is decided once and never lies"))
    shop(group(commands, "shop", "a shop in real time: events, figures, a live page"))
    profiles(group(commands, "profile", "name clusters, and choose the one to talk to"))
    meta(commands)
    return top


# -- commands ------------------------------------------------------------------------------------


def _up(commands: Commands) -> None:
    up = command(
        commands,
        "up",
        "scriba.cli.node.up:run",
        "start a node",
        "Starts one node, broker and controller at once, and runs it until Ctrl-C.",
        epilog="Settings are Kafka's. The stronger source wins, key by key: --set, then KAFKA_... "
        "variables (KAFKA_LOG_RETENTION_MS is log.retention.ms), then --config, then the default.",
    )
    up.add_argument("--data", metavar="DIR", help="where the data is (default: ./scriba-data)")
    up.add_argument(
        "--port", type=port, metavar="N", help="port on 127.0.0.1 (default: 9092; 0: any free one)"
    )
    up.add_argument("--config", metavar="FILE", help="a server.properties to read")
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="one setting; may be repeated",
    )
    up.add_argument("--demo", action="store_true", help="create a topic to play with")
    up.add_argument(
        "--ephemeral",
        action="store_true",
        help="for tests: any free port, data in a temporary directory that is removed, and an end "
        "when the parent ends or closes the pipe on standard input",
    )
    up.add_argument(
        "--json", action="store_true", help="one line of JSON when it is ready, instead of words"
    )
    up.add_argument("--verbose", "-v", action="store_true", help="log what the node does")


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
    change.add_argument("--dry-run", action="store_true", help="only check that it could be done")
    asks(change)


def _cluster(commands: Commands) -> None:
    asks(
        command(
            commands,
            "describe",
            "scriba.cli.cluster:describe",
            "show brokers, quorum and features",
            "Shows the brokers with what they hold, the metadata quorum and the features in force.",
        )
    )


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
