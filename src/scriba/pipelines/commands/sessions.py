"""Sessions of Spark for commands."""

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scriba.cli.problems import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTRA = "pip install 'scriba[spark]', then `scriba spark doctor`"


@contextmanager
def running_spark(options: argparse.Namespace, name: str) -> "Iterator[SparkSession]":
    """A session; what is missing for one is told in a line."""
    try:
        from scriba.pipelines.sparks import start, stop
        from scriba.spark.doctor import check_java
    except ModuleNotFoundError as missing:
        raise CommandError(f"Spark needs {missing.name}", f"bring it with {EXTRA}") from missing
    for finding in check_java():
        if not finding.well and not finding.optional:
            raise CommandError(f"{finding.subject}: {finding.found}", finding.fix)
    connector = getattr(options, "connector", "scriba")
    spark = start(name, options.master, connector, dict(options.spark))
    spark.sparkContext.setLogLevel("INFO" if options.verbose else "OFF")
    # The runner says in a line why a batch failed.
    logging.getLogger("py4j").setLevel(logging.ERROR if options.verbose else logging.CRITICAL)
    try:
        yield spark
    finally:
        stop(spark)
