"""`scriba shop`: events, figures and a lake of a shop."""

import argparse
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scriba.cli.problems import CommandError
from scriba.cli.session import client_settings, open_admin, run_session
from scriba.pipelines.shop.topics import Names, create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scriba.pipelines.shop.feed import Sent

EXTRA = "pip install 'scriba[spark]'"
REACH_SECONDS = 10.0


def generate(options: argparse.Namespace) -> int:
    from scriba.client import Producer
    from scriba.pipelines.shop.feed import Feed
    from scriba.pipelines.shop.generator import Generator, Shape
    from scriba.pipelines.shop.truth import Truth

    names = prepare(options)
    now = time.time_ns() // 1_000_000
    until = None if options.duration is None else now + options.duration
    shape = Shape(
        seed=options.seed, rate=options.rate, products=options.products, users=options.users
    )
    deliveries = Generator(shape, now - options.backfill, until).deliveries()
    known = Truth() if options.truth else None
    quiet = options.quiet or not sys.stderr.isatty()

    async def work() -> int:
        async with Producer({"linger.ms": 20} | client_settings(options)) as producer:
            feed = Feed(producer, names, deliveries, until, known)
            try:
                sent = await feed.run((lambda sent: None) if quiet else _show)
            finally:
                if known is not None:
                    write_truth(options.truth, known.tables(), known.summary())
        print(f"{sent.events} events sent" + (f", {sent.failed} failed" if sent.failed else ""))
        return 1 if sent.failed else 0

    return run_session(options, work())


def _show(sent: "Sent") -> None:
    print(f"\r{sent.events} events", end="", file=sys.stderr, flush=True)


def write_truth(path: str, tables: dict[str, Any], summary: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps({"summary": summary, "tables": tables}, indent=1) + "\n")


def run(options: argparse.Namespace) -> int:
    names = prepare(options)
    spark = start_spark(options, "scriba-shop")
    from scriba.pipelines.shop.queries import NAMES, Settings
    from scriba.pipelines.shop.runner import GivenUp, Runner

    settings = Settings(
        options.bootstrap,
        location(options.checkpoints),
        names=names,
        connector=options.connector,
        trigger_seconds=options.trigger,
        max_offsets=options.max_offsets,
        to_the_end=options.to_the_end,
    )
    queries = options.only or NAMES
    runner = Runner(spark, settings, queries, lambda line: print(line, flush=True))
    print(f"{', '.join(queries)} on {spark.sparkContext.master}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: runner.stop.set())
    try:
        runner.run()
    except GivenUp as failure:
        raise CommandError(str(failure), "look at the log with --verbose") from failure
    except KeyboardInterrupt:
        runner.stop.set()
    finally:
        spark.stop()
    return 0


# -- what commands share ---------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> Names:
    """Makes sure that a broker answers and the topics are there."""
    names = Names(options.prefix)
    options.timeout = REACH_SECONDS

    async def reach() -> int:
        async with open_admin(options, beside_another=True) as admin:
            await admin.describe_cluster()
        return 0

    run_session(options, reach())
    create(options.bootstrap, names, partitions=options.partitions)
    return names


def start_spark(options: argparse.Namespace, name: str) -> "SparkSession":
    """A session; what is missing for one is told in a line."""
    try:
        from scriba.pipelines.shop.sparks import start
        from scriba.spark.doctor import check_java
    except ModuleNotFoundError as missing:
        raise CommandError(f"Spark needs {missing.name}", f"bring it with {EXTRA}") from missing
    for finding in check_java():
        if not finding.well and not finding.optional:
            raise CommandError(f"{finding.subject}: {finding.found}", finding.fix)
    connector = getattr(options, "connector", "scriba")
    spark = start(name, options.master, connector, dict(options.spark))
    level = "INFO" if options.verbose else "OFF"
    spark.sparkContext.setLogLevel(level)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    return spark


def location(path: str) -> str:
    """A path for Spark: with a scheme as it is, without one on this machine."""
    return path if "://" in path else str(Path(path).absolute())
