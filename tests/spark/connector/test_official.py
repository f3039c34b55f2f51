"""Spark's own connector against the same broker: what others run keeps running."""

from collections.abc import Callable

from pyspark.sql import functions as F

from scriba.client import SyncConsumer
from tests.spark.desk import Desk


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


def test_in_real_time_a_record_is_copied_before_its_batch_ends(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    """The batch takes an hour; it has one partition, as a slot is held by each."""
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 1)
    options = {"subscribe": source, "startingOffsets": "earliest"}
    rows = desk.load(desk.spark.readStream.format("kafka"), options)
    writer = rows.select("value").writeStream.format("kafka").outputMode("update")
    query = (
        writer.options(**desk.kafka, topic=target, checkpointLocation=desk.checkpoint())
        .trigger(realTime="1 hour")  # type: ignore[call-overload] # not in its declarations
        .start()
    )
    try:
        desk.fill(source, {0: ["a"]})
        with SyncConsumer(
            bootstrap_servers=desk.broker.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(consumer.partitions(target))
            seen: list[bytes | None] = []
            for value in ("b", "c"):
                desk.fill(source, {0: [value]})
                while value.encode() not in seen and query.isActive:
                    seen += [record.value for record in consumer.poll(100)]
        assert query.exception() is None
        assert seen == [b"a", b"b", b"c"]
        assert query.lastProgress is None
    finally:
        query.stop()
