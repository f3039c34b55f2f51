"""A function of pandas over groups, with `applyInPandas`: readings that lie far from the others.

    python outliers.py localhost:9092

Reads readings such as `kitchen` = `21.5` (key and value). Each micro-batch is grouped by sensor, a
function looks at all readings of one as a data frame of pandas, and what it finds is written
exactly once: inside `foreachBatch` the sink takes any rows that were made from the batch.
"""

import sys

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import scriba.spark
from scriba.client import NewTopic, SyncAdmin, SyncProducer


def far_off(readings: pd.DataFrame) -> pd.DataFrame:
    """Those more than three times as far from the median as the middle one."""
    distance = (readings.degrees - readings.degrees.median()).abs()
    found = readings[distance > 3 * distance.median()]
    return pd.DataFrame({"key": found.sensor, "value": found.degrees.astype(str)})


def outliers(records: DataFrame) -> DataFrame:
    readings = records.select(
        F.col("key").cast("string").alias("sensor"),
        F.expr("try_cast(cast(value as string) as double)").alias("degrees"),
    ).where("degrees is not null")
    return readings.groupBy("sensor").applyInPandas(far_off, "key string, value string")


def start(records: DataFrame, broker: dict[str, str], topic: str, place: str) -> StreamingQuery:
    """Everything that is there now."""
    sink = scriba.spark.ExactlyOnceSink({**broker, "topic": topic})

    def write(rows: DataFrame, batch: int) -> None:
        sink(outliers(rows), batch)

    writer = records.writeStream.foreachBatch(write).option("checkpointLocation", place)
    return writer.trigger(availableNow=True).start()


def main(bootstrap: str) -> None:
    broker, source, target = {"kafka.bootstrap.servers": bootstrap}, "readings", "outliers"
    with SyncAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(source, 1, 1), NewTopic(target, 1, 1)])
    with SyncProducer(bootstrap_servers=bootstrap) as producer:
        for degrees in (21.5, 21.7, 21.4, 85.0, 21.6):
            producer.send(source, str(degrees).encode(), key=b"kitchen")
    spark = scriba.spark.session("outliers")
    reader = spark.readStream.format("scriba").option("startingOffsets", "earliest")
    records = reader.options(**broker, subscribe=source).load()
    start(records, broker, target, "checkpoints/outliers").awaitTermination()
    written = spark.read.format("scriba").options(**broker, subscribe=target).load()
    written.selectExpr("cast(key as string)", "cast(value as string)").show()
    scriba.spark.end(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
