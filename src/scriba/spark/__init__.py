"""Spark speaks to Scriba, and to any other broker of Kafka's protocol, without a jar.

    spark = scriba.spark.session("shop")
    orders = (spark.readStream.format("scriba")
        .option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", "orders").load())
    sink = scriba.spark.ExactlyOnceSink({
        "kafka.bootstrap.servers": "localhost:9092", "topic": "copies"})
    orders.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

Needs the extra `spark`. Everything is loaded when it is first asked for: pyspark takes a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scriba.spark.ending import end
    from scriba.spark.options import OptionError
    from scriba.spark.progress import Figures, Outcome, figures
    from scriba.spark.reading.source import ScribaDataSource
    from scriba.spark.sessions import register, session
    from scriba.spark.writing.exactly_once import ExactlyOnceSink

__all__ = [
    "ExactlyOnceSink",
    "Figures",
    "OptionError",
    "Outcome",
    "ScribaDataSource",
    "end",
    "figures",
    "register",
    "session",
]

_HOMES = {
    "ExactlyOnceSink": "writing.exactly_once",
    "Figures": "progress",
    "OptionError": "options",
    "Outcome": "progress",
    "ScribaDataSource": "reading.source",
    "end": "ending",
    "figures": "progress",
    "register": "sessions",
    "session": "sessions",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
