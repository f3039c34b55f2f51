"""The arguments of `scriba produce` and `scriba consume`."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from scriba.cli.parsing.options import (
    INT64,
    Commands,
    asks,
    at_least,
    command,
    pair,
    pattern,
    place,
    template,
)
from scriba.cli.problems import Misuse


def by_name(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError("records are written to topics by name, never by a pattern")


def refuse_commas(topics: Sequence[str]) -> None:
    """No topic has a comma in its name; who writes one means several, as with Kafka's tools."""
    for topic in topics:
        if "," in topic:
            raise Misuse(f"{topic} is not the name of a topic", "put spaces between topics")


def produce(commands: Commands) -> None:
    made = command(
        commands,
        "produce",
        "scriba.cli.records.produce:run",
        "write records, one for each line",
        "Writes one record for each line of a file or of standard input, to each topic named.",
        epilog="FILE is the last word, - or one with a slash in it: a topic's name has none. "
        'Lines of --json are objects such as {"key": "k", "value": "v", "headers": '
        '[["name", "v"]], "partition": 0, "timestamp": 1767225600000}; only value is needed. '
        "Without a TOPIC each of them goes to the topic that it names. "
        'null is Kafka\'s null, {"base64": "..."} stands for bytes that are not UTF-8.',
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="TOPIC",
        help="topics to write to; then FILE, or - (default: stdin)",
    )
    made.add_argument("--pattern", type=by_name, help=argparse.SUPPRESS)
    made.add_argument(
        "-K", "--key-separator", metavar="TEXT", help="what stands between key and value in a line"
    )
    made.add_argument("-k", "--key", metavar="TEXT", help="a key for every record")
    made.add_argument(
        "--null-marker",
        metavar="TEXT",
        help="a key or value that is just this is null; '' makes empty ones null",
    )
    made.add_argument(
        "--tombstone",
        action="store_true",
        help="each line is a key; its record has no value, so compaction removes the key",
    )
    made.add_argument(
        "-p", "--partition", type=at_least(int, 0), metavar="N", help="write to this partition only"
    )
    made.add_argument(
        "--repartition",
        action="store_true",
        help="with --json: by key or spread, whatever partition a line names",
    )
    made.add_argument(
        "-H",
        "--header",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header for every record; may be repeated",
    )
    made.add_argument(
        "-z",
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        default="none",
        help="codec of the batches that are sent (default: none)",
    )
    made.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    asks(made, json="lines are JSON, as consume --json writes them")


def consume(commands: Commands) -> None:
    made = command(
        commands,
        "consume",
        "scriba.cli.records.consume:run",
        "read records",
        "Reads records from the beginning, or where --from says, and goes on until Ctrl-C.",
        epilog="Tokens of --format, as in kcat: %t topic, %p partition, %o offset, %T time in "
        "ms, %h headers, %k key, %K its length, %s value, %S its length, %R the same in "
        "4 bytes, %%; and \\n \\r \\t \\xHH.",
    )
    made.add_argument("topics", nargs="*", metavar="TOPIC", help="topics to read")
    made.add_argument(
        "--pattern",
        type=pattern,
        metavar="REGEX",
        help="all topics whose whole name it matches, those created later too",
    )
    made.add_argument(
        "-p",
        "--partition",
        type=at_least(int, 0),
        action="append",
        metavar="N",
        help="read only this partition; may be repeated",
    )
    made.add_argument(
        "-g",
        "--group",
        metavar="GROUP",
        help="read as a member of this group, and go on where it has committed",
    )
    made.add_argument(
        "-o",
        "--from",
        type=place,
        dest="start",
        metavar="POSITION",
        help="beginning, end, an offset, -10 (the last ten of each partition), '2h ago', "
        "2026-01-31T12:00 or @milliseconds (default: beginning)",
    )
    made.add_argument(
        "--from-beginning",
        action="store_const",
        const=None,
        dest="start",
        help="same as --from beginning, the default",
    )
    made.add_argument(
        "-c", "--count", type=at_least(int, 1, INT64), metavar="N", help="stop after N records"
    )
    made.add_argument(
        "-e", "--exit", action="store_true", help="stop at what was the end when it began"
    )
    made.add_argument(
        "-f", "--format", type=template, metavar="TEXT", help="format of each record, see below"
    )
    made.add_argument(
        "-K", "--key-separator", metavar="TEXT", help="write key and value with this between them"
    )
    made.add_argument(
        "--null-marker", metavar="TEXT", help="write this for null (default: nothing)"
    )
    made.add_argument(
        "--raw", action="store_true", help="on a terminal too: control characters as they are"
    )
    asks(made, json="one JSON object a line, which produce --json reads back")
