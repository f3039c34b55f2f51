"""Options that the commands of the pipelines share."""

import argparse

from scriba.cli.parsing.options import at_least, pair, port


def listens(made: argparse.ArgumentParser, number: int) -> None:
    """Where a server is reached."""
    made.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1)",
    )
    made.add_argument(
        "--port",
        type=port,
        default=number,
        metavar="N",
        help=f"port to listen on (default: {number}; 0: any free one)",
    )


def partitioned(made: argparse.ArgumentParser, number: int, what: str) -> None:
    made.add_argument(
        "--partitions",
        type=at_least(int, 1),
        default=number,
        metavar="N",
        help=f"partitions of {what}, if they have to be created (default: {number})",
    )


def prefixed(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--prefix", default="", metavar="TEXT", help="what the names of the topics begin with"
    )


def uses_spark(made: argparse.ArgumentParser) -> None:
    made.add_argument("--master", metavar="URL", help="where Spark runs (default: local[*])")
    made.add_argument(
        "--spark",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark; may be repeated",
    )
