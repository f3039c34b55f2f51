"""The arguments of `scriba topic`."""

from scriba.cli.parsing.options import (
    INT16,
    Commands,
    asks,
    at_least,
    command,
    pair,
    place,
    positive,
)


def _create(commands: Commands) -> None:
    create = command(
        commands,
        "create",
        "scriba.cli.topics.topic:create",
        "create a topic",
        "Creates a topic. Numbers that are not given are left to the broker.",
    )
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument(
        "-p",
        "--partitions",
        type=at_least(int, 1),
        default=-1,
        metavar="N",
        help="number of partitions (default: the broker's num.partitions)",
    )
    create.add_argument(
        "-r",
        "--replication-factor",
        type=at_least(int, 1, INT16),
        default=-1,
        metavar="N",
        help="replicas of each partition (default: the broker's default.replication.factor)",
    )
    create.add_argument(
        "-c",
        "--config",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the topic; may be repeated",
    )
    create.add_argument(
        "--if-not-exists", action="store_true", help="do not fail if the topic exists"
    )
    create.add_argument(
        "--dry-run", action="store_true", help="check the request without carrying it out"
    )
    create.add_argument(
        "--plan",
        type=positive,
        metavar="MBPS",
        help="create nothing; propose a number of partitions for this many MB/s",
    )
    create.add_argument(
        "--per-consumer",
        type=positive,
        metavar="MBPS",
        help="with --plan: what one consumer gets through (default: 10)",
    )
    create.add_argument(
        "--per-partition",
        type=positive,
        metavar="MBPS",
        help="with --plan: what one partition takes in (default: 25)",
    )
    asks(create)


def topics(commands: Commands) -> None:
    _create(commands)
    _list(commands)
    _describe(commands)
    _alter(commands)
    _delete(commands)
    _trim(commands)
    _why(commands)


def _list(commands: Commands) -> None:
    listing = command(
        commands,
        "list",
        "scriba.cli.topics.topic:list_all",
        "list topics",
        "Lists topics with their partitions, records and bytes.",
    )
    listing.add_argument("--internal", action="store_true", help="list the broker's own topics too")
    listing.add_argument(
        "--names", action="store_true", help="names alone, one a line; asks brokers for no more"
    )
    asks(listing)


def _describe(commands: Commands) -> None:
    describe = command(
        commands,
        "describe",
        "scriba.cli.topics.topic:describe",
        "show a topic's partitions and settings",
        "Shows partitions with leader, replicas, offsets and size, and the settings of the topic.",
    )
    describe.add_argument("topics", nargs="*", metavar="TOPIC", help="the topics (default: all)")
    only = describe.add_mutually_exclusive_group()
    only.add_argument(
        "--under-replicated",
        action="store_true",
        help="only partitions of which a replica is not in sync, internal ones too",
    )
    only.add_argument(
        "--offline",
        action="store_true",
        help="only partitions without a leader, and whom they wait for, internal ones too",
    )
    asks(describe)


def _alter(commands: Commands) -> None:
    alter = command(
        commands,
        "alter",
        "scriba.cli.topics.topic:alter",
        "add partitions to a topic",
        "Adds partitions. Records with a key then go to other partitions than before, so a key's "
        "order ends there. There is no way back: a topic cannot have fewer partitions.",
    )
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument(
        "-p",
        "--partitions",
        type=at_least(int, 1),
        required=True,
        metavar="N",
        help="new total number of partitions",
    )
    alter.add_argument(
        "--dry-run", action="store_true", help="check the request without carrying it out"
    )
    asks(alter)


def _delete(commands: Commands) -> None:
    delete = command(
        commands,
        "delete",
        "scriba.cli.topics.topic:delete",
        "delete topics with all their records",
        "Deletes topics with all their records. It does not ask.",
    )
    delete.add_argument("topics", nargs="+", metavar="TOPIC")
    delete.add_argument("--if-exists", action="store_true", help="a missing topic is no error")
    asks(delete)


def _why(commands: Commands) -> None:
    why = command(
        commands,
        "why",
        "scriba.cli.topics.why:run",
        "say why a partition is as it is, and what can be done",
        "Asks every broker what it has of a partition and what it told its operator, and says: its "
        "state, who holds what up to where, who is awaited and why, and the choices with what each "
        "of them would lose. Events are read where brokers have a scriba.metrics.listener.",
    )
    why.add_argument(
        "topic", metavar="TOPIC[-P]", help="one partition, or all of a topic that are not well"
    )
    asks(why)


def _trim(commands: Commands) -> None:
    trim = command(
        commands,
        "trim",
        "scriba.cli.topics.trim:run",
        "delete a topic's oldest records",
        "Shows which records before a place would be deleted; with --apply they are. There is no "
        "way back. Consumers that stand before the place go on where auto.offset.reset says.",
    )
    trim.add_argument("topic", metavar="TOPIC[:N,...]", help="all partitions, or those named")
    trim.add_argument(
        "--before",
        type=place,
        required=True,
        metavar="POSITION",
        help="end, an offset, -10 (keep the last ten of each partition), '2h ago', PT2H, "
        "2026-01-31T12:00 or @milliseconds",
    )
    trim.add_argument("--apply", action="store_true", help="do it, instead of showing it")
    asks(trim)
