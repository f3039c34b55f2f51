"""The words of `scriba shop`."""

import argparse

from scriba.cli.dashboard_arguments import dashboard
from scriba.cli.words import Commands, at_least, command, connects, duration_ms, pair, positive

HOME = "scriba-shop"


def shop(commands: Commands) -> None:
    _generate(commands)
    _run(commands)
    dashboard(commands)


def _generate(commands: Commands) -> None:
    made = command(
        commands,
        "generate",
        "scriba.cli.shop:generate",
        "send believable events",
        "Sends events as a shop's clients would: people who browse and buy, bots, late, repeated "
        "and broken events. One seed always gives the same stream. Runs until Ctrl-C, or for "
        "--duration.",
    )
    made.add_argument(
        "--rate", type=positive, default=100.0, metavar="N", help="events a second (default: 100)"
    )
    made.add_argument("--duration", type=duration_ms, metavar="TIME", help="such as 90s, 15m or 2h")
    made.add_argument(
        "--backfill",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="begin so long ago, and send what has happened since at once",
    )
    made.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    made.add_argument(
        "--products", type=at_least(int, 1), default=500, metavar="N", help="(default: 500)"
    )
    made.add_argument(
        "--users", type=at_least(int, 1), default=5000, metavar="N", help="(default: 5000)"
    )
    made.add_argument(
        "--truth",
        metavar="FILE",
        help="write what all figures must be, as JSON; keeps every event in memory",
    )
    _topics(made)
    made.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    connects(made)


def _run(commands: Commands) -> None:
    made = command(
        commands,
        "run",
        "scriba.cli.shop:run",
        "compute the figures, live",
        "Runs the streaming queries on Spark that turn events into figures: sales, views, funnel, "
        "sessions, purchases with the views before. Runs until Ctrl-C.",
    )
    made.add_argument(
        "--checkpoints",
        default=f"{HOME}/checkpoints",
        metavar="PATH",
        help=f"where queries keep their place and state (default: {HOME}/checkpoints)",
    )
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
        choices=("intake", "figures", "sessions", "joined"),
        help="run only this query; may be repeated",
    )
    _topics(made)
    _spark(made)
    connects(made)


def _topics(made: argparse.ArgumentParser) -> None:
    _prefix(made)
    made.add_argument(
        "--partitions",
        type=at_least(int, 1),
        default=2,
        metavar="N",
        help="of the topics for events, if they have to be created (default: 2)",
    )


def _prefix(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--prefix", default="", metavar="TEXT", help="what the names of the topics begin with"
    )


def _spark(made: argparse.ArgumentParser) -> None:
    made.add_argument("--master", metavar="URL", help="where Spark runs (default: local[*])")
    made.add_argument(
        "--connector",
        choices=("scriba", "official"),
        default="scriba",
        help="how Spark reads and writes topics (default: scriba)",
    )
    made.add_argument(
        "--spark",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
