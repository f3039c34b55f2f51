"""The words of the commands that move replicas."""

import argparse

from scriba.cli.parsing.options import INT64, Commands, asks, at_least, command

AT_ONCE = 8


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
        "move partitions to brokers, or log directories, that are named",
        "Moves partitions to the brokers named, the preferred leader first, or replicas of a "
        "broker to another of its log directories; shows the plan and how far it is. The same "
        "command again goes on where an earlier one ended.",
    )
    reassign.add_argument("partitions", nargs="*", metavar="TOPIC[:N,...]", help="what moves")
    reassign.add_argument("--to", type=_brokers, metavar="ID,...", help="the brokers to hold it")
    reassign.add_argument(
        "--dir",
        type=_directory,
        metavar="ID:PATH",
        help="the log directory of a broker that is to hold that broker's replicas",
    )
    reassign.add_argument(
        "--file", metavar="PLAN", help="a plan in JSON, as kafka-reassign-partitions takes it"
    )
    reassign.add_argument("--list", action="store_true", help="only show what is under way")
    reassign.add_argument(
        "--cancel",
        action="store_true",
        help="take back what is under way, of the partitions named or of all, and its throttle",
    )
    _carried_out(reassign)


def _plans(commands: Commands) -> None:
    drain = command(
        commands,
        "drain",
        "scriba.cli.cluster.reassign:drain",
        "move everything away from a broker",
        "Moves all replicas of brokers to the others, over racks and machines.",
    )
    drain.add_argument(
        "brokers", nargs="+", type=at_least(int, 0), metavar="ID", help="who is to be empty"
    )
    _carried_out(drain)
    add = command(
        commands,
        "add",
        "scriba.cli.cluster.reassign:add",
        "give brokers that have joined their share",
        "Moves replicas to brokers that have joined, until each holds as many and leads as many "
        "partitions as the others; nothing moves between the others.",
    )
    add.add_argument(
        "brokers", nargs="+", type=at_least(int, 0), metavar="ID", help="who has joined"
    )
    _carried_out(add)
    balance = command(
        commands,
        "balance",
        "scriba.cli.cluster.reassign:balance",
        "have all brokers hold and lead as much",
        "Evens out how many replicas brokers hold and how many partitions they lead, by the fewest "
        "moves, over racks and machines.",
    )
    _carried_out(balance)


def _unregister(commands: Commands) -> None:
    unregister = command(
        commands,
        "unregister",
        "scriba.cli.cluster.unregister:run",
        "take a broker that is gone for good out of the list",
        "Takes a broker that is stopped and holds nothing out of the cluster's list of brokers.",
    )
    unregister.add_argument("broker", type=at_least(int, 0), metavar="ID", help="the broker")
    asks(unregister)


def _promote(commands: Commands) -> None:
    promote = command(
        commands,
        "promote",
        "scriba.cli.cluster.promote:run",
        "have the observers of a rack vote",
        "Has the observers of a rack vote (scriba.replica.placement), of all topics or of those "
        "named, and tells what is missing where no voter is left to lead.",
    )
    promote.add_argument("rack", metavar="RACK", help="where the observers are")
    promote.add_argument(
        "--topic",
        action="append",
        default=[],
        dest="topics",
        metavar="TOPIC",
        help="only this one; may be repeated",
    )
    promote.add_argument(
        "--unclean",
        action="store_true",
        help="have an observer lead where no voter is left: records that it does not have are lost",
    )
    promote.add_argument("--dry-run", action="store_true", help="only show what would be")
    asks(promote)


def _may_restart(commands: Commands) -> None:
    restart = command(
        commands,
        "may-restart",
        "scriba.cli.cluster.may_restart:run",
        "say whether a node may go for a moment",
        "Says whether a node may be restarted now, and else what it would hurt. The exit code is 1 "
        "when it should not.",
    )
    restart.add_argument("node", type=at_least(int, 0), metavar="ID", help="the node")
    asks(restart)


def _carried_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show the plan")
    parser.add_argument(
        "--throttle",
        type=at_least(int, 1, INT64),
        metavar="BYTES",
        help="bytes a second that a broker copies at most, fixed, and taken back at the end "
        "(default: as much as clients leave)",
    )
    parser.add_argument(
        "--at-once",
        type=at_least(int, 1),
        default=AT_ONCE,
        metavar="N",
        help=f"partitions that move at a time (default: {AT_ONCE})",
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
