"""What tests do with a broker and with Spark, in few words."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from scriba.client import NewTopic, SyncAdmin, SyncProducer
from tools.kafka.brokers import Broker

ROOT = Path(__file__).resolve().parents[2]
KEPT = {"retention_ms": "-1"}
"""For topics with records of long ago, which a running node would delete."""

JARS = ROOT / ".cache" / "spark" / "lib"
CLASSES = ROOT / ".cache" / "spark" / "classes.jsa"

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
JAVA += f" -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else ""
"""For sessions that live for minutes: quick to start, not to run for long."""


class Topics:
    """What tests do with a broker, in few words."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def kafka(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.bootstrap}

    def admin(self) -> SyncAdmin:
        return SyncAdmin(bootstrap_servers=self.broker.bootstrap)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        with self.admin() as admin:
            admin.create_topics([NewTopic(topic, partitions, 1, named)])

    def fill(self, topic: str, values: Mapping[int, list[str]]) -> None:
        """Values by partition."""
        with SyncProducer(bootstrap_servers=self.broker.bootstrap) as producer:
            for partition, texts in values.items():
                for text in texts:
                    producer.send_nowait(topic, text.encode(), partition=partition)
            producer.flush()


class Desk(Topics):
    """The same with Spark."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        super().__init__(broker)
        self.spark = spark
        self.folder = folder
        self._checkpoints = itertools.count(1)

    def read(self, topic: str, **options: str) -> DataFrame:
        return self.load(self.spark.read.format("scriba"), {"subscribe": topic, **options})

    def stream(self, topic: str, **options: str) -> DataFrame:
        options = {"subscribe": topic, "startingOffsets": "earliest", **options}
        return self.load(self.spark.readStream.format("scriba"), options)

    def load(self, reader: object, options: Mapping[str, str]) -> DataFrame:
        for name, value in {**self.kafka, **options}.items():
            reader = reader.option(name, value)  # type: ignore[attr-defined]
        return reader.load()  # type: ignore[attr-defined, no-any-return]

    def values(self, rows: DataFrame) -> list[str]:
        return sorted(row.value.decode() for row in rows.select("value").collect())

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(self._checkpoints)}")


class Batches:
    """Collects the values of every micro-batch of a query, by `foreachBatch`."""

    def __init__(self) -> None:
        self.seen: dict[int, list[str]] = {}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.seen[batch] = sorted(_text(row) for row in rows.select("value").collect())

    @property
    def all(self) -> list[str]:
        return sorted(value for values in self.seen.values() for value in values)

    @property
    def sizes(self) -> list[int]:
        return [len(values) for _, values in sorted(self.seen.items())]


def _text(row: Row) -> str:
    value: bytes = row.value
    return value.decode()


BUSY = "Python worker failed to connect back"
"""Spark gives a new Python process ten seconds, whatever else the machine does."""


ATTEMPTS = 5


def to_the_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Runs a query over what there is now; raises what it ended with."""
    for attempt in range(1, ATTEMPTS + 1):
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as failure:
            if BUSY not in str(failure) or attempt == ATTEMPTS:
                raise
        else:
            break
    return query


def available_now(
    rows: DataFrame, checkpoint: str, sink: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    return to_the_end(lambda: writer.trigger(availableNow=True).start())
