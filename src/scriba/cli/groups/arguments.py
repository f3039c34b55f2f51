"""The arguments of `scriba group` and `scriba txn`."""

from scriba.cli.parsing.options import INT64, Commands, asks, at_least, command, duration_ms, place


def groups(commands: Commands) -> None:
    listing = command(
        commands,
        "list",
        "scriba.cli.groups.group:list_all",
        "list groups",
        "Lists consumer groups.",
    )
    listing.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="STATE",
        help="only those in this state, such as stable or empty; may be repeated",
    )
    listing.add_argument(
        "--type",
        action="append",
        default=[],
        choices=("classic", "consumer"),
        help="only those whose members speak this protocol; may be repeated",
    )
    listing.add_argument("--names", action="store_true", help="names alone, one a line")
    asks(listing)

    describe = command(
        commands,
        "describe",
        "scriba.cli.groups.group:describe",
        "show a group's members, offsets and lag",
        "Shows the state and the members of groups, and for each partition what is committed, "
        "where it ends, how far behind the group is, and who reads it.",
    )
    describe.add_argument("groups", nargs="*", metavar="GROUP", help="the groups (default: all)")
    asks(describe)

    _reset(commands)

    delete = command(
        commands,
        "delete",
        "scriba.cli.groups.group:delete",
        "delete groups, or their offsets of a topic",
        "Deletes groups that have no members, with all their offsets. It does not ask.",
    )
    delete.add_argument("groups", nargs="+", metavar="GROUP")
    delete.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="only the offsets of this topic, which no member may read; may be repeated",
    )
    asks(delete)


def _reset(commands: Commands) -> None:
    reset = command(
        commands,
        "reset",
        "scriba.cli.groups.group:reset",
        "move the offsets of a group",
        "Shows where a group would go on; with --apply it does from then on. The group must have "
        "no members. An offset that is not in a log becomes the nearest that is.",
    )
    reset.add_argument("group", metavar="GROUP")
    where = reset.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--to",
        type=place,
        metavar="POSITION",
        help="earliest, latest, an offset, -10 (ten before the end), '2h ago', PT2H (that long "
        "ago), 2026-01-31T12:00 or @milliseconds",
    )
    where.add_argument(
        "--shift", type=int, metavar="N", help="move offsets by N records, back if N is negative"
    )
    reset.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:N,...]",
        help="only these partitions; may be repeated (default: all that the group has read)",
    )
    reset.add_argument("--apply", action="store_true", help="do it, instead of showing it")
    asks(reset)


def transactions(commands: Commands) -> None:
    listing = command(
        commands,
        "list",
        "scriba.cli.groups.txn:list_all",
        "list transactional ids",
        "Lists the transactional ids that coordinators know, each with the state of its last "
        "transaction.",
    )
    listing.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="STATE",
        help="only those in this state, such as Ongoing; may be repeated",
    )
    listing.add_argument(
        "--longer-than",
        type=duration_ms,
        metavar="TIME",
        help="only transactions that are open for longer, such as 15m",
    )
    listing.add_argument(
        "--like", metavar="REGEX", help="only ids that this regular expression matches"
    )
    asks(listing)

    describe = command(
        commands,
        "describe",
        "scriba.cli.groups.txn:describe",
        "show a transaction and its partitions",
        "Shows the last transaction of transactional ids: state, producer, age and partitions.",
    )
    describe.add_argument("ids", nargs="+", metavar="ID")
    asks(describe)

    abort = command(
        commands,
        "abort",
        "scriba.cli.groups.txn:abort",
        "abort a transaction",
        "Aborts the open transaction of a transactional id: its producer is fenced, as if a new "
        "one had taken over. One that hangs in a partition though no coordinator knows it is named "
        "by --topic, --partition and --start-offset instead.",
    )
    abort.add_argument("id", nargs="?", metavar="ID")
    abort.add_argument("--topic", metavar="TOPIC", help="topic that the transaction hangs in")
    abort.add_argument(
        "--partition", type=at_least(int, 0), metavar="N", help="partition of that topic"
    )
    abort.add_argument(
        "--start-offset",
        type=at_least(int, 0, INT64),
        metavar="N",
        help="offset of the transaction's first record in it",
    )
    asks(abort)
