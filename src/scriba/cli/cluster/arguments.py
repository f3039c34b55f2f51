"""Arguments of the commands that move replicas."""

import argparse

from scriba.cli.parsing.options import INT64, Commands, asks, at_least, command

AT_ONCE = 8
"""Partitions that move at a time, however large they are."""


def moves(commands: Commands) -> None:
    _reassign(commands)
    _plans(commands)
    _unregister(commands)
    _promote(commands)
    _may_restart(commands)


def _reassign(commands: Commands) -> None:
    reassign = command(
        commands,
        "reassign",
        "scriba.cli.cluster.reassign:reassign",
        "move partitions to given brokers or log directories",
        "Moves partitions to the given brokers, the preferred leader first, or replicas of a "
        "broker to another of its log directories. Shows the plan and the progress. An "
        "interrupted command continues when it is run again.",
    )
    reassign.add_argument(
        "partitions", nargs="*", metavar="TOPIC[:N,...]", help="the partitions to move"
    )
    reassign.add_argument(
        "--to", type=_brokers, metavar="ID,...", help="the brokers that will hold the replicas"
    )
    reassign.add_argument(
        "--dir",
        type=_directory,
        metavar="ID:PATH",
        help="the broker, and the log directory on it that will hold its replicas",
    )
    reassign.add_argument(
        "--file", metavar="PLAN", help="a plan in JSON, as kafka-reassign-partitions takes it"
    )
    reassign.add_argument("--list", action="store_true", help="only list reassignments in progress")
    reassign.add_argument(
        "--cancel",
        action="store_true",
        help="cancel reassignments in progress, of the given partitions or of all, and "
        "remove their throttle",
    )
    _carried_out(reassign)


def _plans(commands: Commands) -> None:
    drain = command(
        commands,
        "drain",
        "scriba.cli.cluster.reassign:drain",
        "move everything away from a broker",
        "Moves all replicas of the given brokers to other brokers, spread over racks and machines. "
        "Cordons the brokers first (cordoned.log.dirs), so that they get no new ones.",
    )
    drain.add_argument(
        "brokers", nargs="+", type=at_least(int, 0), metavar="ID", help="the brokers to empty"
    )
    _carried_out(drain)
    add = command(
        commands,
        "add",
        "scriba.cli.cluster.reassign:add",
        "move a share of the replicas to brokers that have joined",
        "Moves replicas to brokers that have joined, until each holds and leads as many "
        "partitions as the others. No replica moves between the others.",
    )
    add.add_argument(
        "brokers",
        nargs="+",
        type=at_least(int, 0),
        metavar="ID",
        help="the brokers that have joined",
    )
    _carried_out(add)
    balance = command(
        commands,
        "balance",
        "scriba.cli.cluster.reassign:balance",
        "spread replicas and leaders evenly over all brokers",
        "Spreads replicas and leaders evenly over all brokers, racks and machines, with as few "
        "moves as possible.",
    )
    _carried_out(balance)


def _unregister(commands: Commands) -> None:
    unregister = command(
        commands,
        "unregister",
        "scriba.cli.cluster.unregister:run",
        "remove a broker that will not return",
        "Removes the registration of a broker that is stopped and holds no replicas.",
    )
    unregister.add_argument("broker", type=at_least(int, 0), metavar="ID", help="the broker")
    asks(unregister)


def _promote(commands: Commands) -> None:
    promote = command(
        commands,
        "promote",
        "scriba.cli.cluster.promote:run",
        "promote the observers of a rack to voters",
        "Promotes the observers of a rack to voters (scriba.replica.placement), of all topics or "
        "of the given ones. Shows which records are lost where no voter is left to lead.",
    )
    promote.add_argument("rack", metavar="RACK", help="the rack of the observers")
    promote.add_argument(
        "--topic",
        action="append",
        default=[],
        dest="topics",
        metavar="TOPIC",
        help="promote only this topic; may be repeated",
    )
    promote.add_argument(
        "--unclean",
        action="store_true",
        help="elect an observer where no voter is left: records that it lacks are lost",
    )
    promote.add_argument("--dry-run", action="store_true", help="only show the changes")
    asks(promote)


def _may_restart(commands: Commands) -> None:
    restart = command(
        commands,
        "may-restart",
        "scriba.cli.cluster.may_restart:run",
        "check whether a node may be restarted now",
        "Checks whether a node may be restarted now, and if not, shows what the restart would "
        "harm. The exit code is 1 when it may not.",
    )
    restart.add_argument("node", type=at_least(int, 0), metavar="ID", help="the node")
    asks(restart)


def _carried_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show the plan")
    parser.add_argument(
        "--throttle",
        type=at_least(int, 1, INT64),
        metavar="BYTES",
        help="limit of bytes a second that a broker copies, removed at the end "
        "(default: what clients leave unused)",
    )
    parser.add_argument(
        "--at-once",
        type=at_least(int, 1),
        metavar="N",
        help=f"number of partitions that move at a time (default: {AT_ONCE}, and more while "
        "they are small)",
    )
    asks(parser)


def _directory(text: str) -> tuple[int, str]:
    broker, colon, path = text.partition(":")
    if not (broker.isdecimal() and colon and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1:/path")
    return int(broker), path.rstrip("/") or "/"


def _brokers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1,2,3") from None
