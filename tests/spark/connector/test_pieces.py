"""Options, positions and places: plain values, no Spark and no broker."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.client.errors import RecordError
from scriba.client.model import Isolation, TopicPartition
from scriba.client.producing.partitioner import by_key
from scriba.config import ConfigError
from scriba.spark.options import EARLIEST, LATEST, OptionError, read_options, write_options
from scriba.spark.progress import lag
from scriba.spark.reading.positions import (
    Positions,
    Range,
    TopicOffsets,
    cap,
    find_losses,
    from_json,
    limit_rate,
    pack,
    ranges,
    resume_positions,
    split,
    to_json,
    total,
    unread_partitions,
)
from scriba.spark.sessions import official, session, with_deep_stack
from scriba.spark.writing.exactly_once import check_disjoint
from scriba.spark.writing.on_driver import SmallBatches
from scriba.spark.writing.partitioning import RowPartitioner, by_topic
from scriba.spark.writing.task_writer import TaskRepeated, Written

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}

offsets = st.dictionaries(st.integers(0, 5), st.integers(0, 1000), min_size=1)
positions = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    offsets.map(lambda found: TopicOffsets("id", found)),
    min_size=1,
)


def ahead(start: Positions, steps: list[int]) -> Positions:
    """Further on in every partition."""
    return {
        topic: TopicOffsets(spot.id, {p: o + steps[p] for p, o in spot.offsets.items()})
        for topic, spot in start.items()
    }


steps = st.lists(st.integers(0, 500), min_size=6, max_size=6)


def test_names_are_read_without_case_and_defaults_are_the_connectors() -> None:
    found = read_options({"KAFKA.bootstrap.servers": "h:1", "SUBSCRIBE": "a, b,a"}, streaming=True)
    assert found.subscription.topics == ("a", "b")
    assert (found.start.for_all, found.fail_on_data_loss, found.headers) == (LATEST, True, False)
    assert read_options(BASE, streaming=False).start.for_all == EARLIEST
    committed = read_options({**BASE, "kafka.isolation.level": "read_committed"}, streaming=True)
    assert committed.isolation is Isolation.READ_COMMITTED


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"maxoffsetpertrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"assign": '{"a": [0]}'}, "subscribe and assign"),
        ({"startingOffsets": "newest"}, "is no JSON"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "must be as in"),
        ({"maxOffsetsPerTrigger": "0"}, "from 1 up"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above"),
        ({"maxTriggerDelay": "soon"}, "such as 15m"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"endingOffsets": "latest"}, "only in a batch query"),
        ({"groupidprefix": "x"}, "option groupIdPrefix: .*leave it out"),
        ({"fetchoffset.numretries": "x"}, r"option fetchOffset\.numRetries: .*leave it out"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"groupId": "a", "kafka.group.id": "b"}, "keep one of the two"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_options({**BASE, **given}, streaming=True)


def test_settings_of_the_client_are_checked_by_the_client() -> None:
    with pytest.raises(ConfigError, match=r"fetch\.max\.bytes"):
        read_options({**BASE, "kafka.fetch.max.byte": "1"}, streaming=False)
    with pytest.raises(OptionError, match="needed"):
        read_options({"subscribe": "a"}, streaming=False)


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("500ms", 500), ("2 hours", 7_200_000), ("30s", 30_000)]
)
def test_delays_are_times_with_a_unit(text: str, ms: int) -> None:
    assert read_options({**BASE, "maxTriggerDelay": text}, streaming=True).max_delay_ms == ms


def test_a_sink_needs_a_target() -> None:
    base = {"kafka.bootstrap.servers": "localhost:9092"}
    with pytest.raises(OptionError, match="topic"):
        write_options(base, exactly_once=True)
    found = write_options({**base, "topics": "a,b", "topic": "c"}, exactly_once=True)
    assert found.targets == ("c", "a", "b")
    with pytest.raises(OptionError, match="use sinkId"):
        write_options({**base, "topic": "a", "kafka.transactional.id": "x"}, exactly_once=True)


def test_options_of_the_exactly_once_sink_are_not_taken_by_one_that_is_not() -> None:
    base = {"kafka.bootstrap.servers": "localhost:9092", "topic": "a", "sinkid": "mine"}
    for streaming in (False, True):
        with pytest.raises(OptionError, match=r"option sinkId: .*ExactlyOnceSink"):
            write_options(base, exactly_once=False, streaming=streaming)
    del base["sinkid"]
    kept = {**base, "checkpointlocation": "/c", "queryname": "q"}
    assert write_options(kept, exactly_once=False, streaming=True).targets == ("a",)
    with pytest.raises(OptionError, match="no such option"):
        write_options(kept, exactly_once=False)


def test_java_gets_the_stack_that_spark_needs_to_read_a_failure() -> None:
    java = "spark.driver.extraJavaOptions"
    assert with_deep_stack({})[java] == "-Xss16m"
    assert with_deep_stack({java: "-XX:+UseSerialGC"})[java] == "-XX:+UseSerialGC -Xss16m"
    assert with_deep_stack({java: "-Xss1g"})[java] == "-Xss1g"


def test_lag_is_what_lies_between_the_end_of_a_batch_and_that_of_the_logs() -> None:
    ours = '{{"topics": {{"a": {{"id": "x", "offsets": {{"0": {}, "1": 4}}}}}}}}'
    theirs = '{{"a": {{"0": {}, "1": 4}}}}'
    for places in (ours, theirs):
        assert lag(places.format(3), places.format(10)) == 7
    assert lag(ours.format(3), None) is None
    assert lag("17", "19") is None  # of a source without topics


@given(positions)
def test_positions_survive_the_checkpoint(found: Positions) -> None:
    assert from_json(to_json(found)) == found


@given(positions, steps, st.integers(1, 3000))
def test_admission_takes_all_it_may_and_never_goes_back(
    start: Positions, further: list[int], most: int
) -> None:
    end = ahead(start, further)
    admitted = limit_rate(start, end, most)
    assert total(start, admitted) == min(most, total(start, end))
    for topic, spot in admitted.items():
        for partition, offset in spot.offsets.items():
            assert start[topic].offsets[partition] <= offset <= end[topic].offsets[partition]


@given(positions, steps, st.integers(1, 12), st.integers(1, 400))
def test_cut_ranges_cover_the_same_offsets(
    start: Positions, further: list[int], least: int, most: int
) -> None:
    whole = ranges(start, ahead(start, further))
    pieces = split(whole, least, most)
    assert all(0 < piece.size <= most for piece in pieces)
    assert [o for r in pieces for o in range(r.start, r.end)] == [
        o for r in whole for o in range(r.start, r.end)
    ]


@given(
    positions,
    steps,
    st.none() | st.integers(1, 8),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 400),
)
def test_ranges_share_tasks_and_stay_whole_and_in_order(
    start: Positions, further: list[int], cores: int | None, least: int | None, most: int | None
) -> None:
    pieces = split(ranges(start, ahead(start, further)), least, most)
    packed = pack(pieces, cores, least, most)
    assert sorted(part for task in packed for part in task) == sorted(pieces)
    assert all(task and [*task] == [part for part in pieces if part in task] for task in packed)
    assert len(packed) >= min(least or 0, len(pieces))
    if most is not None:
        assert all(sum(part.size for part in task) <= most for task in packed)


def test_there_are_as_many_tasks_as_cores_and_fewer_for_little() -> None:
    few = [Range("a", "id", partition, 0, 200) for partition in range(100)]
    assert [sum(part.size for part in task) for task in pack(few, 2)] == [10_000] * 2
    assert len(pack(few, 64)) == len(pack(few)) == 10
    assert len(pack(few[:3], 2)) == 1
    assert len(pack(few[:3], 2, least=3)) == 3
    assert len(pack(few, 2, most_records=400)) == 50
    many = [part._replace(end=1_000_000) for part in few]
    assert len(pack(many, 2)) == 100
    uneven = [Range("a", "id", 0, 0, 90_000), *few[1:]]
    assert sorted(len(task) for task in pack(uneven, 2)) == [1, 99]


def test_the_driver_takes_batches_after_small_ones_and_learns_from_what_was_too_large() -> None:
    small, taken = SmallBatches(10), []
    for rows in (5, 5, 50, 50, 5, 5, 50, 5, 5, 5, 50, 5, 5, 5, 5, 5):
        tries = small.expected()
        if tries:
            small.tried()
        fits = tries and rows <= 10
        small.written(rows, by_driver=fits)
        taken.append("tasks" if not tries else "driver" if fits else "both")
    assert taken == [
        *("tasks", "driver", "both", "tasks", "tasks", "driver"),
        *("both", "tasks", "driver", "driver"),
        *("both", "tasks", "driver", "driver", "driver", "driver"),
    ]
    never = SmallBatches(0)
    never.written(0, by_driver=False)
    assert not never.expected()
    unlucky = SmallBatches(10)
    unlucky.written(1, by_driver=False)
    tried = 0
    for _ in range(100):  # rows are few, but larger than they may be
        if unlucky.expected():
            unlucky.tried()
            tried += 1
        unlucky.written(1, by_driver=False)
    assert tried < 10


def test_what_went_missing_is_told_with_what_to_do() -> None:
    known = {
        "a": TopicOffsets("1", {0: 5, 1: 5}),
        "b": TopicOffsets("2", {0: 1}),
        "c": TopicOffsets("3", {0: 9, 1: 0}),
    }
    now = {"a": TopicOffsets("9", {0: 5, 1: 5}), "c": TopicOffsets("3", {0: 8})}
    told = [loss.what for loss in find_losses(known, now)]
    assert [text.split(" ")[1] if text.startswith("topic") else text for text in told] == [
        "a",
        "b",
        "c-0 ends at offset 8, before 9, which was already read",
        "partition c-1 is gone",
    ]


def test_reading_goes_on_where_it_was_and_new_places_begin_at_their_beginning() -> None:
    known = {"a": TopicOffsets("1", {0: 5}), "gone": TopicOffsets("2", {0: 1})}
    now = {"a": TopicOffsets("1", {0: 9, 1: 3}), "new": TopicOffsets("4", {0: 30})}
    assert unread_partitions(known, now) == [("new", 0)]
    begins = {TopicPartition("new", 0): 20}
    assert resume_positions(known, now, begins) == {
        "a": TopicOffsets("1", {0: 5, 1: 0}),
        "new": TopicOffsets("4", {0: 20}),
    }
    assert cap(now, {"a": TopicOffsets("1", {0: 7})}) == {"a": TopicOffsets("1", {0: 7})}


def test_the_same_range_of_a_topic_made_anew_begins_at_zero() -> None:
    start, end = {"a": TopicOffsets("1", {0: 5})}, {"a": TopicOffsets("2", {0: 3})}
    assert ranges(start, end) == [Range("a", "2", 0, 0, 3)]


def test_rows_without_a_key_stay_together_and_unknown_topics_are_refused() -> None:
    partitioner, nobody = RowPartitioner({"a": 3}, 1), pa.nulls(4, pa.binary())
    assert partitioner.partitions("a", 4, nobody, None).to_pylist() == [1] * 4
    assert partitioner.partitions("a", 2, None, None).to_pylist() == [2] * 2
    with pytest.raises(RecordError, match="topics"):
        partitioner.partitions("b", 1, None, None)
    with pytest.raises(RecordError, match="partition 3"):
        partitioner.partitions("a", 2, None, pa.array([0, 3], pa.int32()))


def test_rows_go_to_the_partition_they_name_or_to_that_of_their_key() -> None:
    keys = [b"one", None, b"", b"two"]
    own = pa.array([None, None, 1, None], pa.int32())
    partitioner = RowPartitioner({"a": 5}, 3)
    found = partitioner.partitions("a", 3, pa.array([b"before", *keys], pa.binary())[1:4], own[:3])
    assert found.to_pylist() == [by_key(b"one", 5), 3, 1]
    assert partitioner.partitions("a", 4, None, pa.array([4, 0, 4, 2], pa.int32())).to_pylist() == [
        4,
        0,
        4,
        2,
    ]


def test_rows_of_several_topics_come_apart_and_keep_their_order() -> None:
    topics, values = ["b", "a", "b", "a", "c"], ["1", "2", "3", "4", "5"]
    batch = pa.RecordBatch.from_pydict({"topic": topics, "value": values})
    parts = {topic: part.column("value").to_pylist() for topic, part in by_topic(batch, None)}
    assert parts == {"a": ["2", "4"], "b": ["1", "3"], "c": ["5"]}
    assert [topic for topic, _ in by_topic(batch, "d")] == ["d"]
    with pytest.raises(RecordError, match="no topic"):
        list(by_topic(pa.RecordBatch.from_pydict({"topic": ["a", None]}), None))


WORKER = """
import sys
from scriba.records.batch import Record, encode_batch
from scriba.records.header import read_header
from scriba.spark.writing.partitioning import RowPartitioner, by_topic, in_runs
from scriba.spark.reading.positions import Range
from scriba.spark.reading.fetching import Columns, VisibleBatch
from scriba.spark.reading.source import arrow_schema
import scriba.spark.writing.exactly_once

batch = encode_batch([Record(0, 0, b"key", b"value", ()), Record(1, 0, None, None, ())])
columns = Columns(Range("orders", "id", 3, 0, 2))
columns.add(VisibleBatch(memoryview(batch), read_header(batch), 0, 2))
rows = columns.take(arrow_schema(False))
(name, part), = by_topic(rows, None)
order, runs = in_runs(RowPartitioner({name: 4}, 0).partitions(name, 2, part.column("key"), None))
print(rows.column("topic").to_pylist(), rows.column("partition").to_pylist(), len(order))
print("pandas" in sys.modules)
"""


def test_a_worker_that_reads_and_places_rows_loads_no_pandas() -> None:
    """It would take as long as all else that a worker loads, in each of them."""
    said = subprocess.run(
        [sys.executable, "-c", WORKER], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said == ["['orders', 'orders'] [3, 3] 2", "False"]


def test_two_tasks_in_one_partition_are_noticed() -> None:
    check_disjoint([Written("a", 0, 1, 0), Written("a", 1, 1, 0)])
    with pytest.raises(TaskRepeated):
        check_disjoint([Written("a", 0, 1, 0), Written("a", 0, 2, 0)])


def test_the_official_connector_comes_from_a_folder_or_from_maven(tmp_path: Path) -> None:
    (packages,) = official(None).values()
    assert packages == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    with pytest.raises(FileNotFoundError, match="no spark-sql-kafka jar"):
        official(tmp_path)
    jars = [tmp_path / "kafka-clients-3.9.1.jar", tmp_path / "spark-sql-kafka-0-10_2.13-4.2.0.jar"]
    for jar in jars:
        jar.touch()
    assert official(tmp_path) == {"spark.jars": ",".join(str(jar) for jar in jars)}
    with pytest.raises(ValueError, match="scriba, official"):
        session(connector="kafka")
