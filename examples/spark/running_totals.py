"""State of your own with `transformWithState`: a running total for each customer.

    python running_totals.py localhost:9092

Reads orders such as `ada` = `1250` (key and value), and writes the new total of a customer for
every order, exactly once. Needs `protobuf` besides pyspark, as in `pip install 'scriba[connect]'`.
"""

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import scriba.spark
from scriba.client import NewTopic, SyncAdmin, SyncProducer

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
"""Where the state lies; `transformWithState` knows no other place."""


class Totals(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "cents long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        kept = self.total.get()
        total = 0 if kept is None else kept[0]
        for row in rows:
            total += row.cents
            yield Row(key=key[0], value=str(total))
        self.total.update((total,))

    def close(self) -> None:
        pass


def totals(records: DataFrame) -> DataFrame:
    """What a customer has spent, after each order."""
    orders = records.select(
        F.col("key").cast("string").alias("customer"),
        F.expr("try_cast(cast(value as string) as long)").alias("cents"),
    )
    by_customer = orders.where("cents is not null").groupBy("customer")
    return by_customer.transformWithState(
        Totals(),
        outputStructType="key string, value string",
        outputMode="Update",
        timeMode="None",
    )


def start(records: DataFrame, broker: dict[str, str], topic: str, place: str) -> StreamingQuery:
    """Everything that is there now."""
    sink = scriba.spark.ExactlyOnceSink({**broker, "topic": topic})
    writer = totals(records).writeStream.outputMode("update").foreachBatch(sink)
    return writer.option("checkpointLocation", place).trigger(availableNow=True).start()


def main(bootstrap: str) -> None:
    broker, source, target = {"kafka.bootstrap.servers": bootstrap}, "spending", "totals"
    with SyncAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(source, 1, 1), NewTopic(target, 1, 1)])
    with SyncProducer(bootstrap_servers=bootstrap) as producer:
        for customer, cents in (("ada", 1250), ("bob", 300), ("ada", 50)):
            producer.send(source, str(cents).encode(), key=customer.encode())
    spark = scriba.spark.session("totals", config=STATE)
    reader = spark.readStream.format("scriba").option("startingOffsets", "earliest")
    records = reader.options(**broker, subscribe=source).load()
    start(records, broker, target, "checkpoints/totals").awaitTermination()
    written = spark.read.format("scriba").options(**broker, subscribe=target).load()
    written.selectExpr("cast(key as string)", "cast(value as string)").show()
    scriba.spark.end(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
