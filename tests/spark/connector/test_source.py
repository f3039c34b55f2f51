"""Reading topics with `format("scriba")`."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from scriba.client import SyncAdmin, SyncProducer
from scriba.spark.options import read_options
from scriba.spark.reading.source import (
    ScribaDataSource,
    ScribaStreamReader,
    arrow_schema,
    columns,
)
from tests.spark.desk import KEPT, Batches, Desk, available_now


@pytest.mark.parametrize("headers", [False, True])
def test_arrow_batches_have_the_types_that_spark_expects(headers: bool) -> None:
    assert arrow_schema(headers).equals(to_arrow_schema(columns(headers), timezone="UTC"))


def test_a_batch_query_gives_the_columns_of_the_kafka_connector(desk: Desk, topic: str) -> None:
    desk.create(topic, 2, **KEPT)
    with SyncProducer(bootstrap_servers=desk.broker.bootstrap) as producer:
        producer.send(
            topic, b"v", key=b"k", partition=1, timestamp=1_700_000_000_123, headers=[("a", b"1")]
        )
        producer.send(topic, None, key=b"gone", partition=0, timestamp=1_700_000_000_000)
    rows = desk.read(topic, includeHeaders="true").orderBy("partition")
    assert rows.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    gone, row = rows.selectExpr("*", "unix_millis(timestamp) as ms").collect()
    assert (gone.key, gone.value, gone.headers) == (b"gone", None, None)
    assert (row.key, row.value, row.topic, row.partition, row.offset) == (b"k", b"v", topic, 1, 0)
    assert (row.ms, row.timestampType) == (1_700_000_000_123, 0)
    assert [(pair.key, pair.value) for pair in row.headers] == [("a", b"1")]


def test_places_to_start_and_end_are_offsets_or_times(desk: Desk, topic: str) -> None:
    desk.create(topic, 1, **KEPT)
    with SyncProducer(bootstrap_servers=desk.broker.bootstrap) as producer:
        for n in range(6):
            producer.send(topic, b"%d" % n, timestamp=1_700_000_000_000 + n * 1000)
    assert desk.values(
        desk.read(
            topic,
            startingOffsets=f'{{"{topic}": {{"0": 2}}}}',
            endingOffsets=f'{{"{topic}": {{"0": 5}}}}',
        )
    ) == ["2", "3", "4"]
    assert desk.values(
        desk.read(topic, startingTimestamp="1700000004000", endingOffsets="latest")
    ) == ["4", "5"]
    assert desk.values(
        desk.read(
            topic,
            startingOffsetsByTimestamp=f'{{"{topic}": {{"0": 1700000001000}}}}',
            endingTimestamp="1700000003000",
        )
    ) == ["1", "2"]
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy=latest"):
        desk.read(topic, startingTimestamp="1800000000000").count()
    late = desk.read(
        topic,
        startingTimestamp="1800000000000",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert late.count() == 0


def test_topics_are_named_or_match_a_pattern_or_give_single_partitions(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    one, two = new_topic(), new_topic()
    desk.create(one, 2)
    desk.create(two, 2)
    desk.fill(one, {0: ["a"], 1: ["b"]})
    desk.fill(two, {0: ["c"], 1: ["d"]})
    assert desk.values(desk.read(f"{one}, {two}")) == ["a", "b", "c", "d"]
    reader = desk.spark.read.format("scriba")
    pattern = one.rpartition("-")[0] + r"-\d+"
    assert desk.values(desk.load(reader, {"subscribePattern": pattern})) == ["a", "b", "c", "d"]
    reader = desk.spark.read.format("scriba")
    assert desk.values(desk.load(reader, {"assign": f'{{"{two}": [1]}}'})) == ["d"]


def test_a_large_partition_is_read_by_several_tasks(desk: Desk, topic: str) -> None:
    desk.create(topic, 1)
    desk.fill(topic, {0: [f"{n:03}" for n in range(100)]})
    rows = desk.read(topic, minPartitions="4")
    assert rows.rdd.getNumPartitions() == 4
    assert desk.values(rows) == [f"{n:03}" for n in range(100)]
    assert desk.read(topic, maxRecordsPerPartition="30").rdd.getNumPartitions() == 4


def test_many_partitions_are_read_by_as_many_tasks_as_there_are_cores(
    desk: Desk, topic: str
) -> None:
    desk.create(topic, 6)
    values = [f"{n:05}" for n in range(12_000)]
    desk.fill(topic, {partition: values[partition::6] for partition in range(6)})
    rows = desk.read(topic)
    assert rows.rdd.getNumPartitions() == 2
    assert desk.values(rows) == values


def test_a_small_micro_batch_has_all_its_columns_without_a_task_in_python(
    desk: Desk, topic: str
) -> None:
    """Here tasks that would read fail."""

    class Reader(ScribaStreamReader):
        def read(self, partition: InputPartition) -> Iterator[Any]:
            raise AssertionError("a task reads")

    class Unread(ScribaDataSource):
        @classmethod
        def name(cls) -> str:
            return "unread"

        def streamReader(self, schema: StructType) -> ScribaStreamReader:
            return Reader(read_options(self.options, streaming=True))

    desk.spark.dataSource.register(Unread)
    desk.create(topic, 2, **KEPT)
    with SyncProducer(bootstrap_servers=desk.broker.bootstrap) as producer:
        for n in range(20):
            headers = [("a", b"%d" % n), ("b", None)] if n % 3 else []
            key, value = (b"k%d" % n, None) if n % 4 else (None, b"v%d" % n)
            timestamp = 1_700_000_000_123 + n
            producer.send_nowait(topic, value, key=key, timestamp=timestamp, headers=headers)
        producer.flush()

    def stream(**options: str) -> DataFrame:
        reader = desk.spark.readStream.format("unread")
        limits = {"maxOffsetsPerTrigger": "8", "startingOffsets": "earliest", **options}
        return desk.load(reader, {"subscribe": topic, "includeHeaders": "true", **limits})

    found: list[Row] = []

    def collected(rows: DataFrame, batch: int) -> None:
        found.extend(rows.collect())

    available_now(stream(), desk.checkpoint(), collected)
    wanted = desk.read(topic, includeHeaders="true").collect()
    assert sorted(found, key=place) == sorted(wanted, key=place)
    with pytest.raises(StreamingQueryException, match="a task reads"):
        available_now(stream(maxRecordsOnDriver="7"), desk.checkpoint(), collected)


def place(row: Row) -> tuple[int, int]:
    return row.partition, row.offset


def test_what_cannot_be_read_is_refused_with_what_to_do(desk: Desk) -> None:
    with pytest.raises(PySparkException, match="does not exist"):
        desk.read("no-such-topic-anywhere").count()
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        desk.read("t", startingOfsets="earliest").count()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kafka.fetch.min.byts": "1"}, "fetch.min.bytes"),
        ({"maxOffsetsPerTrigger": "5"}, "only in a streaming query"),
    ],
)
def test_options_are_checked_when_a_reader_is_made(options: dict[str, str], told: str) -> None:
    given = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t", **options}
    with pytest.raises(ValueError, match=told):
        ScribaDataSource(given).reader(columns(False))


def test_deleted_records_fail_a_query_unless_it_may_go_on(desk: Desk, topic: str) -> None:
    desk.create(topic, 1)
    desk.fill(topic, {0: ["a", "b", "c"]})
    with desk.admin() as admin:
        admin.delete_records({(topic, 0): 2})
    start = f'{{"{topic}": {{"0": 0}}}}'
    with pytest.raises(PySparkException, match=r"records 0 to 1 .* were deleted"):
        desk.read(topic, startingOffsets=start).count()
    assert desk.values(desk.read(topic, startingOffsets=start, failOnDataLoss="false")) == ["c"]


def test_a_stream_keeps_its_limit_goes_on_from_its_checkpoint_and_tells_its_progress(
    desk: Desk, topic: str
) -> None:
    """Partitions that are added meanwhile are read from their beginning."""
    desk.create(topic, 2)
    desk.fill(topic, {0: [f"a{n}" for n in range(6)], 1: [f"b{n}" for n in range(3)]})
    checkpoint, batches, group = desk.checkpoint(), Batches(), f"group-{topic}"
    stream = desk.stream(topic, maxOffsetsPerTrigger="4", groupId=group)
    available_now(stream, checkpoint, batches)
    assert batches.sizes == [4, 4, 1]
    with desk.admin() as admin:
        assert offsets_of(admin, group) == {(topic, 0): 6, (topic, 1): 3}
        admin.create_partitions({topic: 3})
    desk.fill(topic, {1: ["late"], 2: ["c", "d"]})
    available_now(stream, checkpoint, batches)
    assert batches.seen[3] == ["c", "d", "late"]
    assert len(batches.all) == len(set(batches.all)) == 12
    with desk.admin() as admin:
        assert offsets_of(admin, group) == {(topic, 0): 6, (topic, 1): 4, (topic, 2): 2}


def offsets_of(admin: SyncAdmin, group: str) -> dict[tuple[str, int], int]:
    return {where: place.offset for where, place in admin.list_group_offsets(group).items()}


def test_a_topic_made_anew_is_not_taken_for_the_one_that_was_read(desk: Desk, topic: str) -> None:
    desk.create(topic, 1)
    desk.fill(topic, {0: ["a"]})
    checkpoint, batches = desk.checkpoint(), Batches()
    available_now(desk.stream(topic), checkpoint, batches)
    with desk.admin() as admin:
        admin.delete_topics([topic])
    desk.create(topic, 1)
    desk.fill(topic, {0: ["x", "y"]})
    with pytest.raises(StreamingQueryException, match="deleted and created anew"):
        available_now(desk.stream(topic), checkpoint, batches)
    available_now(desk.stream(topic, failOnDataLoss="false"), checkpoint, batches)
    assert batches.seen == {0: ["a"], 1: ["x", "y"]}
