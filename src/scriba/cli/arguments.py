"""The words of every command. Nothing but argparse is imported to read or explain them.

A command names the function that carries it out as `module:function`; it gets the options and
returns the exit code.
"""

import argparse

from scriba import __version__
from scriba.cli.coordinator_arguments import groups, transactions
from scriba.cli.dashboard_arguments import demo
from scriba.cli.inventory_arguments import inventory
from scriba.cli.log_arguments import retention
from scriba.cli.shop_arguments import shop
from scriba.cli.words import (
    Commands,
    Help,
    Parser,
    asks,
    at_least,
    command,
    group,
    of_what,
    pair,
    place,
    port,
    positive,
    template,
)


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="scriba",
        description="A distributed commit log that any Kafka client takes for Kafka.",
        formatter_class=Help,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"scriba {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _up(commands)
    demo(commands)
    _topic(group(commands, "topic", "create, look at, change and delete topics"))
    _config(group(commands, "config", "read and change settings while the cluster runs"))
    _produce(commands)
    _consume(commands)
    groups(group(commands, "group", "look at consumer groups, move and delete their offsets"))
    transactions(group(commands, "txn", "look at transactions, and end those that hang"))
    _cluster(group(commands, "cluster", "look at brokers and the metadata quorum"))
    _log(group(commands, "log", "look into the files of a log, repair them, resume retention"))
    _spark(group(commands, "spark", "pipelines on Spark: what they need here"))
    inventory(group(commands, "inventory", "stock that is decided once and never lies"))
    shop(group(commands, "shop", "a shop in real time: events, figures, a live page"))
    return top


# -- commands ------------------------------------------------------------------------------------


def _up(commands: Commands) -> None:
    up = command(
        commands,
        "up",
        "scriba.cli.up:run",
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


def _topic_create(commands: Commands) -> None:
    create = command(
        commands,
        "create",
        "scriba.cli.topic:create",
        "create a topic",
        "Creates a topic. Numbers that are not given are left to the broker.",
    )
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument("-p", "--partitions", type=at_least(int, 1), default=-1, metavar="N")
    create.add_argument(
        "-r", "--replication-factor", type=at_least(int, 1), default=-1, metavar="N"
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
        "--if-not-exists", action="store_true", help="a topic that is there stays as it is"
    )
    create.add_argument("--dry-run", action="store_true", help="only check that it could be done")
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


def _topic(commands: Commands) -> None:
    _topic_create(commands)

    listing = command(commands, "list", "scriba.cli.topic:list_all", "list topics", "Lists topics.")
    listing.add_argument("--internal", action="store_true", help="those of the broker itself too")
    asks(listing)

    describe = command(
        commands,
        "describe",
        "scriba.cli.topic:describe",
        "show a topic's partitions and settings",
        "Shows partitions with leader, replicas, offsets and size, and the settings of the topic.",
    )
    describe.add_argument("topics", nargs="*", metavar="TOPIC", help="all when none is named")
    asks(describe)

    alter = command(
        commands,
        "alter",
        "scriba.cli.topic:alter",
        "add partitions to a topic",
        "Adds partitions. Records with a key then go to other partitions than before, so a key's "
        "order ends there. There is no way back: a topic cannot have fewer partitions.",
    )
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument(
        "-p", "--partitions", type=at_least(int, 1), required=True, metavar="N", help="in total"
    )
    alter.add_argument("--dry-run", action="store_true", help="only check that it could be done")
    asks(alter)

    delete = command(
        commands,
        "delete",
        "scriba.cli.topic:delete",
        "delete topics with all their records",
        "Deletes topics with all their records. It does not ask.",
    )
    delete.add_argument("topics", nargs="+", metavar="TOPIC")
    delete.add_argument("--if-exists", action="store_true", help="a missing topic is no error")
    asks(delete)


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


def _produce(commands: Commands) -> None:
    produce = command(
        commands,
        "produce",
        "scriba.cli.produce:run",
        "write records, one for each line",
        "Writes one record for each line of a file or of standard input.",
        epilog='Lines of --json are objects such as {"key": "k", "value": "v", "headers": '
        '[["name", "v"]], "partition": 0, "timestamp": 1767225600000}; only value is needed. '
        'null is Kafka\'s null, {"base64": "..."} stands for bytes that are not UTF-8.',
    )
    produce.add_argument("topic", metavar="TOPIC")
    produce.add_argument("file", nargs="?", metavar="FILE", help="read this (default: stdin)")
    produce.add_argument(
        "-K", "--key-separator", metavar="TEXT", help="what stands between key and value in a line"
    )
    produce.add_argument("-p", "--partition", type=at_least(int, 0), metavar="N")
    produce.add_argument(
        "--repartition",
        action="store_true",
        help="with --json: by key or spread, whatever partition a line names",
    )
    produce.add_argument(
        "-H",
        "--header",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header for every record; may be repeated",
    )
    produce.add_argument(
        "-z", "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none"
    )
    produce.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    asks(produce, json="lines are JSON, as consume --json writes them")


def _consume(commands: Commands) -> None:
    consume = command(
        commands,
        "consume",
        "scriba.cli.consume:run",
        "read records",
        "Reads records from the beginning, or where --from says, and goes on until Ctrl-C.",
        epilog="Tokens of --format, as in kcat: %t topic, %p partition, %o offset, %T time in "
        "ms, %h headers, %k key, %K its length, %s value, %S its length, %R the same in "
        "4 bytes, %%; and \\n \\r \\t \\xHH.",
    )
    consume.add_argument("topic", metavar="TOPIC")
    consume.add_argument(
        "-p",
        "--partition",
        type=at_least(int, 0),
        action="append",
        metavar="N",
        help="read only this one; may be repeated",
    )
    consume.add_argument(
        "-g",
        "--group",
        metavar="GROUP",
        help="read as a member of this group, and go on where it has committed",
    )
    consume.add_argument(
        "-o",
        "--from",
        type=place,
        dest="start",
        metavar="PLACE",
        help="beginning, end, an offset, -10 (the last ten of each partition), '2h ago', "
        "2026-01-31T12:00 or @milliseconds (default: beginning)",
    )
    consume.add_argument(
        "--from-beginning", action="store_const", const=None, dest="start", help="the default"
    )
    consume.add_argument("-c", "--count", type=at_least(int, 1), metavar="N", help="stop after N")
    consume.add_argument(
        "-e", "--exit", action="store_true", help="stop at what was the end when it began"
    )
    consume.add_argument(
        "-f", "--format", type=template, metavar="TEXT", help="how to write a record"
    )
    asks(consume, json="one JSON object a line, which produce --json reads back")


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
        "scriba.cli.log_dump:run",
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
    retention(group(commands, "retention", "see and end a pause of deletion by age"))
