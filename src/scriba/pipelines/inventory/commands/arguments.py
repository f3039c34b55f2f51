"""The arguments of `scriba inventory`."""

import argparse
import os

from scriba.cli.parsing.options import Commands, asks, command, duration_ms, positive
from scriba.pipelines.commands.options import listens, partitioned, uses_spark

URL = "http://127.0.0.1:8090"
URL_VARIABLE = "SCRIBA_INVENTORY"
PORT = 8090


def inventory(commands: Commands) -> None:
    _serve(commands)
    _change(
        commands,
        "receive",
        "stock that has come in",
        "Adds to the stock of items, all in one transaction.",
        "how many came in, such as apple=10",
    )
    _change(
        commands,
        "order",
        "take items out, all or none",
        "Takes items out of the stock, all of them in one transaction, or none when one is short.",
        "how many are wanted, such as apple=2 pear=1",
    )
    adjust = _change(
        commands,
        "adjust",
        "correct the stock",
        "Corrects the stock of items, all in one transaction.",
        "how many more or less there are, such as apple=-2",
    )
    adjust.add_argument(
        "--counted", action="store_true", help="the numbers are what is there, as counted"
    )
    stock = command(
        commands,
        "stock",
        "scriba.pipelines.inventory.commands.inventory:stock",
        "what is there",
        "Shows the stock of an item, or of all.",
    )
    stock.add_argument("item", nargs="?", metavar="ITEM", help="the item (default: all)")
    _asks_service(stock)
    history = command(
        commands,
        "history",
        "scriba.pipelines.inventory.commands.inventory:history",
        "what happened to an item",
        "Shows every event of an item, the oldest first.",
    )
    history.add_argument("item", metavar="ITEM")
    _asks_service(history)
    _spark_jobs(commands)


def _serve(commands: Commands) -> None:
    serve = command(
        commands,
        "serve",
        "scriba.pipelines.inventory.commands.inventory:serve",
        "run a service",
        "Runs a service of the inventory until Ctrl-C. Any number may run: one of them decides, "
        "the others forward to it, and one takes over when it dies.",
    )
    listens(serve, PORT)
    serve.add_argument(
        "--advertise", metavar="URL", help="where the others reach it, when not at host and port"
    )
    serve.add_argument(
        "--allow-insecure-bind",
        action="store_true",
        help="listen beyond this machine, where anybody can write",
    )
    serve.add_argument(
        "--data",
        default="./scriba-inventory",
        metavar="DIR",
        help="what was read, to start quickly; each service has its own (default: "
        "./scriba-inventory)",
    )
    partitioned(serve, 3, "the topics")
    serve.add_argument(
        "--allow-single-node",
        action="store_true",
        help="accept a cluster of fewer than three brokers, which can lose the books with a disk",
    )
    serve.add_argument(
        "--no-writer", action="store_true", help="only read and forward, never decide"
    )
    serve.add_argument(
        "--session-timeout",
        type=duration_ms,
        default=10_000,
        metavar="TIME",
        help="time without news of a writer after which it is replaced (default: 10s)",
    )
    serve.add_argument(
        "--max-staleness",
        type=duration_ms,
        default=10_000,
        metavar="TIME",
        help="longest time that it answers without news of the cluster (default: 10s)",
    )
    _named(serve)
    asks(serve, "write the line about where it listens as JSON")


def _change(
    commands: Commands, name: str, summary: str, description: str, lines: str
) -> argparse.ArgumentParser:
    made = command(
        commands,
        name,
        f"scriba.pipelines.inventory.commands.inventory:{name}",
        summary,
        description,
    )
    made.add_argument("lines", nargs="+", metavar="ITEM=N", help=lines)
    made.add_argument(
        "--id",
        metavar="ID",
        help="id of the command; repeating it does nothing twice (default: a new one)",
    )
    made.add_argument("--reason", default="", metavar="TEXT", help="reason to keep with the events")
    _asks_service(made)
    return made


def _spark_jobs(commands: Commands) -> None:
    view = command(
        commands,
        "view",
        "scriba.pipelines.inventory.commands.inventory:view",
        "the current stock as a table, kept by Spark",
        "Runs a streaming query that keeps the stock of every item and publishes it, exactly once, "
        "to a compacted topic.",
    )
    view.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="where the query keeps its state"
    )
    view.add_argument("--once", action="store_true", help="stop at the present end of the topics")
    view.add_argument(
        "--trigger",
        type=duration_ms,
        default=1000,
        metavar="TIME",
        help="time between micro-batches (default: 1s)",
    )
    view.add_argument(
        "--allow-single-node",
        action="store_true",
        help="accept a cluster of fewer than three brokers, as serve does",
    )
    archive = command(
        commands,
        "archive",
        "scriba.pipelines.inventory.commands.inventory:archive",
        "the audit log as Parquet files",
        "Copies the audit log to files, exactly once, up to the present end.",
    )
    archive.add_argument("--to", required=True, metavar="PATH", help="a folder, s3a:// or hdfs://")
    archive.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="where the query keeps its state"
    )
    reconcile = command(
        commands,
        "reconcile",
        "scriba.pipelines.inventory.commands.inventory:reconcile",
        "recount everything",
        "Recounts the audit log on Spark and compares it with the compacted topic, the view and "
        "the lake. The exit code is 1 when something differs.",
    )
    reconcile.add_argument("--lake", metavar="PATH", help="files of the audit log to compare too")
    reconcile.add_argument(
        "--no-view", action="store_true", help="there is no view to compare with"
    )
    reconcile.add_argument(
        "--settled",
        action="store_true",
        help="nothing is being written: what is behind is a difference too",
    )
    for made in (view, archive, reconcile):
        uses_spark(made)
        _named(made)
        asks(made)


def _named(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name",
        default="inventory",
        metavar="NAME",
        help="name of the inventory, with which its topics begin (default: inventory)",
    )


def _asks_service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON")
    parser.add_argument(
        "-u",
        "--url",
        default=os.environ.get(URL_VARIABLE) or URL,
        metavar="URL",
        help=f"a service (default: {URL_VARIABLE} or {URL})",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=30.0,
        metavar="SECONDS",
        help="how long to try (default: 30)",
    )
