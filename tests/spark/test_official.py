"""Spark's own connector against the same broker: what others run keeps running."""

from collections.abc import Callable

from pyspark.sql import functions as F

from .conftest import Desk


def test_the_official_connector_reads_streams_and_writes(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 2)
    desk.create(target, 2)
    desk.fill(source, {0: ["a", "b"], 1: ["c"]})
    spark = desk.spark

    batch = desk.load(spark.read.format("kafka"), {"subscribe": source})
    assert desk.values(batch) == ["a", "b", "c"]
    assert sorted(batch.collect()) == sorted(desk.read(source).collect())

    stream = desk.load(
        spark.readStream.format("kafka"), {"subscribe": source, "startingOffsets": "earliest"}
    )
    checkpoint = desk.checkpoint()

    def copy() -> None:
        query = (
            stream.select("key", F.upper(F.col("value").cast("string")).alias("value"))
            .writeStream.format("kafka")
            .options(**desk.kafka, topic=target, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    copy()
    desk.fill(source, {1: ["d"]})
    copy()
    assert desk.values(desk.read(target)) == ["A", "B", "C", "D"]

    batch.select("value").write.format("kafka").options(**desk.kafka, topic=target).save()
    assert desk.values(desk.read(target)) == sorted(["A", "B", "C", "D", "a", "b", "c", "d"])
