"""`scriba shop`: events, figures and a lake of a shop."""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scriba.cli.output import print_json, print_table
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import client_settings, open_admin, run_session
from scriba.pipelines.commands.sessions import running_spark
from scriba.pipelines.shop.topics import Names, create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scriba.pipelines.shop.lake.lake import Lake
    from scriba.pipelines.shop.simulation.feed import Sent
    from scriba.pipelines.shop.streaming.queries import Settings, Start

REACH_SECONDS = 10.0


def generate(options: argparse.Namespace) -> int:
    from scriba.client import Producer
    from scriba.pipelines.shop.simulation.feed import Feed, publish_catalogue
    from scriba.pipelines.shop.simulation.generator import Generator, Shape
    from scriba.pipelines.shop.simulation.truth import Truth

    names = prepare(options)
    _make_up_arrivals(options, names)
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
            await publish_catalogue(producer, names, options.products)
            feed = Feed(producer, names, deliveries, until, known)
            _at_a_signal(feed.stop)
            try:
                sent = await feed.run((lambda sent: None) if quiet else _show)
            finally:
                if known is not None:
                    write_truth(options.truth, known.tables(), known.summary())
        failed = f", {sent.failed} failed: {sent.why}" if sent.failed else ""
        print(f"{sent.events} events sent{failed}")
        return 1 if sent.failed else 0

    return run_session(options, work())


def _make_up_arrivals(options: argparse.Namespace, names: Names) -> None:
    from scriba.pipelines.shop.events.clocks import NoMadeUpPast, make_up_arrivals

    try:
        make_up_arrivals(options.bootstrap, names)
    except NoMadeUpPast as real:
        needs = "--backfill" if options.backfill else "--truth" if options.truth else None
        if needs is not None:
            fix = "leave it out, or name other topics with --prefix"
            raise CommandError(f"{needs} makes times up, but {real}", fix) from real


def _at_a_signal(stop: Callable[[], None]) -> None:
    """Ctrl-C and SIGTERM stop it once; the next one ends the command."""
    loop = asyncio.get_running_loop()
    # A shell has what runs beside it ignore Ctrl-C: that stays so.
    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]

    def tell() -> None:
        for number in heard:
            loop.remove_signal_handler(number)
        stop()

    for number in heard:
        loop.add_signal_handler(number, tell)


def _show(sent: "Sent") -> None:
    print(f"\r{sent.events} events", end="", file=sys.stderr, flush=True)


def write_truth(path: str, tables: dict[str, Any], summary: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps({"summary": summary, "tables": tables}, indent=1) + "\n")


def collect(options: argparse.Namespace) -> int:
    try:
        from scriba.pipelines.shop.collector import Collector
        from scriba.pipelines.shop.dashboard.server import listen, serve
    except ModuleNotFoundError as missing:
        fix = "bring it with pip install 'scriba[console]'"
        raise CommandError(f"the endpoint needs {missing.name}", fix) from missing
    from scriba.client import Producer

    names = prepare(options)
    try:
        bound = listen(options.host, options.port)
    except OSError as taken:
        told = f"{options.host}:{options.port}: {taken.strerror}"
        raise CommandError(told, "name another address with --host and --port") from taken
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    async def work() -> int:
        settings = {"acks": options.acks} | client_settings(options)
        async with Producer(settings) as producer:
            bound.listen()
            signal.signal(signal.SIGTERM, lambda *_: None)  # the server ends, and raises it again
            print(f"events to http://{shown}:{port}/events", flush=True)
            await serve(Collector(producer, names, options.partition_by).app(), bound)
        return 0

    return run_session(options, work())


def run(options: argparse.Namespace) -> int:
    names = prepare(options)
    with running_spark(options, "scriba-shop") as spark:
        from scriba.pipelines.shop.events import clocks
        from scriba.pipelines.shop.streaming.queries import Settings, Shop

        settings = Settings(
            options.bootstrap,
            location(options.checkpoints),
            names=names,
            connector=options.connector,
            trigger_seconds=options.trigger,
            max_offsets=options.max_offsets,
            to_the_end=options.to_the_end,
        )
        for line in clocks.warnings(options.bootstrap, names):
            print(f"warning: {line}", flush=True)
        queries = Shop(spark, settings).queries(options.only)
        print(f"{', '.join(queries)} on {spark.sparkContext.master}", flush=True)
        keep_running(spark, settings, queries)
    return 0


def archive(options: argparse.Namespace) -> int:
    if options.keep is not None and not (options.compact and options.format == "delta"):
        raise Misuse(
            "--keep is about old versions of a table: give --compact --format delta with it"
        )
    names = None if options.compact else prepare(options)
    with running_spark(options, "scriba-shop-archive") as spark:
        from scriba.pipelines.shop.lake import ids, lake
        from scriba.pipelines.shop.streaming.queries import Settings

        kept = open_lake(options, spark)
        if names is None:
            keep = lake.KEEP if options.keep is None else timedelta(milliseconds=options.keep)
            done = kept.compact(datetime.now(UTC), keep)
            ids.keep(spark, kept)
            print(f"{done.files_before} files before, {done.files_after} after")
            return 0
        settings = Settings(
            options.bootstrap,
            location(options.checkpoints),
            names=names,
            connector=options.connector,
            to_the_end=options.to_the_end,
        )
        start = partial(lake.stream, spark, settings, kept, options.every)
        print(f"archive in {options.lake} on {spark.sparkContext.master}", flush=True)
        keep_running(spark, settings, {"archive": start})
    return 0


def query(options: argparse.Namespace) -> int:
    if (options.question is None) == (options.sql is None):
        raise Misuse("ask one question, by its name or with --sql")
    with running_spark(options, "scriba-shop-query") as spark:
        from scriba.pipelines.shop.lake.questions import (
            QUESTIONS,
            NoRecords,
            NotAnswered,
            answer,
            ask,
        )

        sql = options.sql or QUESTIONS[options.question]
        lake = open_lake(options, spark)
        try:
            columns, rows = answer(ask(spark, lake, sql, options.since, options.until))
        except NoRecords as empty:
            fix = "name another place with --lake, or fill this one with `scriba shop archive`"
            raise CommandError(f"{options.lake}: {empty}", fix) from empty
        except NotAnswered as wrong:
            fix = "`scriba shop query --help` names the tables and their columns"
            raise CommandError(str(wrong), fix) from wrong
    if options.json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)
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


def keep_running(
    spark: "SparkSession", settings: "Settings", queries: "Mapping[str, Start]"
) -> None:
    """Until Ctrl-C or SIGTERM, or the end of the topics if that was asked for."""
    from scriba.pipelines.shop.streaming.runner import GivenUp, Runner

    runner = Runner(spark, settings, queries, lambda line: print(line, flush=True))
    interrupted = False

    def stop(number: int, frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait
        interrupted = number == signal.SIGINT
        runner.stop.set()

    # Spark's own handler raises KeyboardInterrupt wherever Python is. In a call to Java that may
    # become an error of py4j, which looks like a query that failed, and Ctrl-C would be lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        runner.run()
    except GivenUp as failure:
        raise CommandError(str(failure), "look at the log with --verbose") from failure
    if interrupted:
        raise KeyboardInterrupt


def open_lake(options: argparse.Namespace, spark: "SparkSession") -> "Lake":
    from scriba.pipelines.shop.lake.lake import open_lake

    try:
        return open_lake(spark, location(options.lake), options.format)
    except ModuleNotFoundError as missing:
        fix = "bring it with pip install 'scriba[delta]'"
        raise CommandError(f"--format delta needs {missing.name}", fix) from missing


def location(path: str) -> str:
    """A path for Spark: with a scheme as it is, without one on this machine."""
    return path if "://" in path else str(Path(path).absolute())
