"""The arguments of `scriba shop`."""

import argparse

from scriba.cli.parsing.options import Commands, at_least, command, connects, duration_ms, positive
from scriba.pipelines.commands.options import listens, partitioned, prefixed, uses_spark
from scriba.pipelines.shop.commands.dashboard_arguments import dashboard

HOME = "scriba-shop"
COLLECT_PORT = 8081


def shop(commands: Commands) -> None:
    _generate(commands)
    _collect(commands)
    _run(commands)
    dashboard(commands)
    _archive(commands)
    _query(commands)


def _generate(commands: Commands) -> None:
    made = command(
        commands,
        "generate",
        "scriba.pipelines.shop.commands.shop:generate",
        "send believable events",
        "Sends events as a shop's clients would: people who browse and buy, bots, late, repeated "
        "and broken events. One seed always gives the same stream. Runs until Ctrl-C, or for "
        "--duration.",
    )
    made.add_argument(
        "--rate", type=positive, default=100.0, metavar="N", help="events a second (default: 100)"
    )
    made.add_argument(
        "--duration",
        type=duration_ms,
        metavar="TIME",
        help="stop after this time, such as 90s, 15m or 2h",
    )
    made.add_argument(
        "--backfill",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="begin so long ago, and send what has happened since at once",
    )
    made.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the random events (default: 1)"
    )
    made.add_argument(
        "--products",
        type=at_least(int, 1),
        default=500,
        metavar="N",
        help="number of products (default: 500)",
    )
    made.add_argument(
        "--users",
        type=at_least(int, 1),
        default=5000,
        metavar="N",
        help="number of users (default: 5000)",
    )
    made.add_argument(
        "--truth",
        metavar="FILE",
        help="write what all figures must be, as JSON; keeps every event in memory",
    )
    _topics(made)
    made.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    connects(made)


def _collect(commands: Commands) -> None:
    made = command(
        commands,
        "collect",
        "scriba.pipelines.shop.commands.shop:collect",
        "take events from web and mobile clients",
        "Serves an HTTP endpoint that takes events as JSON, checks them and writes them to their "
        "topics. Runs until Ctrl-C.",
        epilog='POST /events takes an object such as {"event": "product_viewed", "event_id": ..., '
        '"event_time": ..., "user_id": ..., "session_id": ..., "product_id": ...}, or a list.',
    )
    listens(made, COLLECT_PORT)
    made.add_argument(
        "--acks",
        choices=("0", "1", "all"),
        default="1",
        help="who must have an event before it is acknowledged: nobody, the leader of its "
        "partition, or all replicas in sync (default: 1)",
    )
    made.add_argument(
        "--partition-by",
        choices=("user_id", "random"),
        default="user_id",
        help="user_id keeps each user's events in order; random spreads them evenly "
        "(default: user_id)",
    )
    _topics(made)
    connects(made)


def _run(commands: Commands) -> None:
    made = command(
        commands,
        "run",
        "scriba.pipelines.shop.commands.shop:run",
        "compute the figures, live",
        "Runs the streaming queries on Spark that turn events into figures: sales, views, funnel, "
        "sessions, purchases with the views before. Runs until Ctrl-C.",
    )
    _checkpoints(made, "queries keep their place and state")
    made.add_argument(
        "--trigger",
        type=positive,
        default=1.0,
        metavar="SECONDS",
        help="how often figures are brought up to date (default: 1)",
    )
    made.add_argument(
        "--max-offsets",
        type=at_least(int, 1),
        default=200_000,
        metavar="N",
        help="records in a micro-batch at most (default: 200000)",
    )
    made.add_argument(
        "--to-the-end", action="store_true", help="stop when all that is there now was read"
    )
    made.add_argument(
        "--only",
        action="append",
        choices=("figures", "intake", "sessions", "joined"),
        help="run only this query; may be repeated",
    )
    _topics(made)
    _spark(made)
    connects(made)


def _archive(commands: Commands) -> None:
    made = command(
        commands,
        "archive",
        "scriba.pipelines.shop.commands.shop:archive",
        "keep all events in a data lake",
        "Writes every event as it came to files by topic, day and hour, each exactly once. Runs "
        "until Ctrl-C; with --compact it makes few files of many instead.",
    )
    _lake(made)
    _checkpoints(made, "the archive keeps its place")
    made.add_argument(
        "--every",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="how often files are written (default: 60)",
    )
    made.add_argument(
        "--to-the-end", action="store_true", help="stop when all that is there now was written"
    )
    made.add_argument(
        "--compact", action="store_true", help="only make large files of small ones, and end"
    )
    made.add_argument(
        "--keep",
        type=duration_ms,
        metavar="TIME",
        help="with --compact --format delta: how long files stay that only older versions of the "
        "table need, in whole hours (default: 7d)",
    )
    _topics(made)
    _spark(made)
    connects(made)


def _query(commands: Commands) -> None:
    made = command(
        commands,
        "query",
        "scriba.pipelines.shop.commands.shop:query",
        "ask the data lake",
        "Answers a question over everything that was archived: the ten most viewed products of "
        "each day, how many sessions ended with a purchase, revenue by the hour.",
        epilog="--sql sees two tables: events, each once, with day, topic, event_time, user_id, "
        "session_id, product_id, items, total_cents; and records, as they were archived.",
    )
    made.add_argument("question", nargs="?", choices=("top-products", "conversion", "revenue"))
    made.add_argument("--sql", metavar="SELECT", help="a question of your own instead")
    _lake(made)
    made.add_argument("--since", metavar="DATE", help="only what arrived since, as 2026-01-31")
    made.add_argument("--until", metavar="DATE", help="only what arrived until then")
    made.add_argument("--json", action="store_true", help="write JSON")
    uses_spark(made)
    made.add_argument("-v", "--verbose", action="store_true", help="log what Spark does")


def _checkpoints(made: argparse.ArgumentParser, what: str) -> None:
    made.add_argument(
        "--checkpoints",
        default=f"{HOME}/checkpoints",
        metavar="PATH",
        help=f"where {what} (default: {HOME}/checkpoints)",
    )


def _lake(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--lake",
        default=f"{HOME}/lake",
        metavar="PATH",
        help=f"a folder here, s3a://... or hdfs://... (default: {HOME}/lake)",
    )
    made.add_argument(
        "--format",
        choices=("parquet", "delta"),
        default="parquet",
        help="format of the files (default: parquet)",
    )


def _topics(made: argparse.ArgumentParser) -> None:
    prefixed(made)
    partitioned(made, 2, "the topics for events")


def _spark(made: argparse.ArgumentParser) -> None:
    uses_spark(made)
    made.add_argument(
        "--connector",
        choices=("scriba", "official"),
        default="scriba",
        help="how Spark reads and writes topics (default: scriba)",
    )
