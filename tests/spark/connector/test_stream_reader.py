"""What Spark asks of a stream reader, asked directly: a broker, and no Spark."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from scriba.client import SyncProducer
from scriba.spark.options import OptionError, read_options
from scriba.spark.reading.fetching import DataLoss, RangeReader
from scriba.spark.reading.positions import Range
from scriba.spark.reading.source import (
    RangesPartition,
    ScribaDataSource,
    ScribaStreamReader,
    columns,
)
from tests.spark.desk import KEPT, Topics
from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import ScribaBroker, running

ALL = ReadAllAvailable()


Offsets = dict[str, Any]


def reader_of(topics: Topics, topic: str, **options: str) -> ScribaStreamReader:
    given = {**topics.kafka, "subscribe": topic, "startingOffsets": "earliest", **options}
    return ScribaStreamReader(read_options(given, streaming=True))


def places(document: Offsets, topic: str) -> dict[str, int]:
    found: dict[str, int] = document["topics"][topic]["offsets"]
    return found


def ranges(parts: Sequence[InputPartition]) -> list[Range]:
    """What tasks read, all together."""
    found: list[Range] = []
    for part in parts:
        assert isinstance(part, RangesPartition)
        found += part.ranges
    return found


def values(reader: ScribaStreamReader, start: Offsets, end: Offsets) -> list[bytes]:
    return [
        value
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


def test_the_first_batch_is_repeated_from_where_it_began(topics: Topics, topic: str) -> None:
    """After a crash Spark asks anew where to start, and the end has moved by then."""
    topics.create(topic)
    topics.fill(topic, {0: ["before"]})
    reader = reader_of(topics, topic, startingOffsets="latest")
    start = reader.initialOffset()
    assert places(start, topic) == {"0": 1}
    topics.fill(topic, {0: ["one", "two"]})
    assert reader.initialOffset() == start
    end = reader.latestOffset(start, ALL)

    restarted = reader_of(topics, topic, startingOffsets="latest")
    moved = restarted.initialOffset()
    assert places(moved, topic) == {"0": 3}
    assert values(restarted, moved, end) == [b"one", b"two"]
    topics.fill(topic, {0: ["three"]})
    following = restarted.latestOffset(end, ALL)
    assert values(restarted, end, following) == [b"three"]


def test_without_news_the_answer_is_the_question(topics: Topics, topic: str) -> None:
    topics.create(topic)
    topics.fill(topic, {0: ["a"]})
    reader = reader_of(topics, topic)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) is end
    assert reader.partitions(end, end) == []
    assert places(reader.reportLatestOffset() or {}, topic) == {"0": 1}


def test_limits_hold_back_what_is_too_much_and_too_little(topics: Topics, topic: str) -> None:
    topics.create(topic, 2)
    topics.fill(topic, {0: ["a"] * 6, 1: ["b"] * 2})
    most = reader_of(topics, topic, maxOffsetsPerTrigger="4")
    limit = most.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    start = most.initialOffset()
    assert places(most.latestOffset(start, limit), topic) == {"0": 3, "1": 1}
    assert places(most.latestOffset(start, ALL), topic) == {"0": 6, "1": 2}

    least = reader_of(topics, topic, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    limit = least.getDefaultReadLimit()
    assert limit == ReadMinRows(3)
    end = least.latestOffset(least.initialOffset(), limit)
    topics.fill(topic, {0: ["a"] * 2})
    assert least.latestOffset(end, limit) is end
    topics.fill(topic, {1: ["b"]})
    assert places(least.latestOffset(end, limit), topic) == {"0": 8, "1": 3}
    small = reader_of(topics, topic, minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    first = small.latestOffset(small.initialOffset(), limit)
    assert places(first, topic) == {"0": 8, "1": 3}  # nothing is waited for at first
    topics.fill(topic, {1: ["b"]})
    assert small.latestOffset(first, limit) is first
    hasty = reader_of(topics, topic, minOffsetsPerTrigger="3", maxTriggerDelay="0ms")
    topics.fill(topic, {1: ["b"]})
    last = least.latestOffset(end, ALL)
    topics.fill(topic, {1: ["b"]})
    assert places(hasty.latestOffset(last, limit), topic) == {"0": 8, "1": 6}


def test_available_now_ends_at_what_was_there_at_its_start(topics: Topics, topic: str) -> None:
    topics.create(topic)
    topics.fill(topic, {0: ["a"] * 5})
    reader = reader_of(topics, topic, maxOffsetsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    topics.fill(topic, {0: ["late"]})
    at, seen = reader.initialOffset(), []
    while (following := reader.latestOffset(at, ReadMaxRows(2))) is not at:
        seen.append(places(following, topic)["0"])
        at = following
    assert seen == [2, 4, 5]


def test_committed_reads_end_at_the_last_stable_offset(topics: Topics, topic: str) -> None:
    topics.create(topic)
    committed = {"kafka.isolation.level": "read_committed"}
    address = topics.broker.bootstrap
    with SyncProducer(bootstrap_servers=address, transactional_id=f"t-{topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"kept")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"undone")
        topics.fill(topic, {0: ["plain"]})
        reader = reader_of(topics, topic, **committed)
        start = reader.initialOffset()
        held = reader.latestOffset(start, ALL)
        assert values(reader, start, held) == [b"kept"]
        producer.abort_transaction()
    end = held
    while end is held:  # the marker is written after the answer
        end = reader.latestOffset(held, ALL)
    assert values(reader, held, end) == [b"plain"]
    careless = reader_of(topics, topic)
    assert values(careless, start, careless.latestOffset(start, ALL)) == [
        b"kept",
        b"undone",
        b"plain",
    ]


def test_ranges_may_begin_and_end_inside_a_batch(topics: Topics, topic: str) -> None:
    topics.create(topic)
    with SyncProducer(bootstrap_servers=topics.broker.bootstrap, linger_ms=50) as producer:
        for n in range(10):
            producer.send_nowait(topic, b"%d" % n)
        producer.flush()
    reader = reader_of(topics, topic)
    start = reader.initialOffset()
    part = RangesPartition([Range(topic, start["topics"][topic]["id"], 0, 3, 7)])
    (batch,) = reader.read(part)
    assert batch.column("offset").to_pylist() == [3, 4, 5, 6]


def test_a_small_batch_is_read_where_it_is_planned(topics: Topics, topic: str) -> None:
    topics.create(topic, 3)
    topics.fill(topic, {0: ["a", "b"], 1: ["c"], 2: ["d"]})
    reader = reader_of(topics, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    (part,) = reader.partitions(start, end)
    assert isinstance(reader, _SimpleStreamReaderWrapper)
    rows = list(reader.getCache(start, end) or ())
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert type(reader) is ScribaStreamReader
    assert [value for batch in rows for value in batch.column("value").to_pylist()] == [
        *(b"a", b"b"),
        *(b"c", b"d"),
    ]
    # What Java has lost is read by a task.
    assert list(reader.read(part)) == rows
    assert places(reader.reportLatestOffset() or {}, topic) == {"0": 2, "1": 1, "2": 1}
    # Nothing is offered for another batch.
    reader.partitions(start, end)
    assert reader.partitions(end, end) == []
    assert not isinstance(reader, _SimpleStreamReaderWrapper)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"maxRecordsOnDriver": "3"}, 1),
        ({"maxRecordsOnDriver": "0"}, 1),
        ({"minPartitions": "2"}, 2),
        ({"maxRecordsPerPartition": "1"}, 4),
    ],
)
def test_tasks_read_what_is_too_much_for_the_planner(
    topics: Topics, topic: str, options: dict[str, str], tasks: int
) -> None:
    topics.create(topic, 3)
    topics.fill(topic, {0: ["a", "b"], 1: ["c"], 2: ["d"]})
    reader = reader_of(topics, topic, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(reader.partitions(start, end)) == tasks
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert sorted(values(reader, start, end)) == [b"a", b"b", b"c", b"d"]


def test_tasks_read_few_records_that_are_large(topics: Topics, topic: str) -> None:
    topics.create(topic, 1)
    topics.fill(topic, {0: ["x" * 900_000] * 10})
    reader = reader_of(topics, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    for _ in range(2):  # the second time it is known
        (part,) = reader.partitions(start, end)
        assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert [batch.num_rows for batch in reader.read(part)] == [10]


def test_a_batch_that_the_planner_cannot_read_is_left_to_tasks(topics: Topics, topic: str) -> None:
    """They are tried again, and say what is wrong."""
    topics.create(topic)
    topics.fill(topic, {0: ["a", "b"]})
    reader = reader_of(topics, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    with topics.admin() as admin:
        admin.delete_records({(topic, 0): 1})
    (part,) = reader.partitions(start, end)
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    with pytest.raises(DataLoss, match="records 0 to 0"):
        list(reader.read(part))


def test_many_ranges_of_one_task_are_asked_for_together_and_no_more_than_they_hold(
    topics: Topics, topic: str
) -> None:
    topics.create(topic, 30)
    with SyncProducer(bootstrap_servers=topics.broker.bootstrap) as producer:
        for n in range(30):
            for _ in range(40):
                producer.send_nowait(topic, b"%02d" % n * 2_000, partition=n)
            producer.flush()
    reader = reader_of(topics, topic, maxRecordsOnDriver="0")
    known = reader.initialOffset()["topics"][topic]["id"]
    parts = [Range(topic, known, n, 2, 2 + n % 30 + 1) for n in range(30)]
    sizes = [(p.partition, p.size) for p in parts]
    found = list(reader.read(RangesPartition(parts)))
    assert [(batch.column("partition")[0].as_py(), batch.num_rows) for batch in found] == sizes
    settings = reader.options.settings()
    fresh = RangeReader(reader._link(), settings, Range(topic, known, 0, 0, 40), True)
    assert fresh.fetch_bytes == 64 << 10
    assert len(next(iter(fresh)).data) < 100_000  # of 160,000
    assert 4_000 * 20 < fresh.fetch_bytes < 4_500 * 40
    long = RangeReader(reader._link(), settings, Range(topic, known, 0, 0, 10_000_000), True)
    assert long.fetch_bytes == settings.max_partition_fetch_bytes


def test_a_topic_deleted_while_it_is_read_is_told(topics: Topics, topic: str) -> None:
    topics.create(topic)
    topics.fill(topic, {0: ["a"]})
    reader = reader_of(topics, topic)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with topics.admin() as admin:
        admin.delete_topics([topic])
    topics.create(topic)
    (part,) = reader.partitions(reader.initialOffset(), end)
    with pytest.raises(DataLoss, match="was deleted"):
        list(reader.read(part))
    lenient = reader_of(topics, topic, failOnDataLoss="false")
    assert list(lenient.read(part)) == []


def test_a_topic_deleted_a_moment_ago_is_missed_at_once(
    topics: Topics, new_topic: Callable[[], str]
) -> None:
    """What is there is looked up once a second; the topic goes in between."""
    patient = {"kafka.default.api.timeout.ms": "10000"}
    one, two = new_topic(), new_topic()
    for topic in (one, two):
        topics.create(topic)
        topics.fill(topic, {0: [topic]})
    both = f"{one},{two}"
    strict, lenient = (
        reader_of(topics, both, failOnDataLoss=lossy, **patient) for lossy in ("true", "false")
    )
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    assert lenient.latestOffset(lenient.initialOffset(), ALL)["topics"] == end["topics"]
    parts = strict.partitions(start, end)
    with topics.admin() as admin:
        admin.delete_topics([two])
    with pytest.raises(DataLoss, match=f"topic {two} is gone"):
        strict.latestOffset(end, ALL)
    assert list(lenient.latestOffset(end, ALL)["topics"]) == [one]

    def of_another_process(**options: str) -> ScribaStreamReader:
        named = {"kafka.client.id": f"other-{two}"}
        return reader_of(topics, both, **patient, **named, **options)

    (gone,) = (RangesPartition([found]) for found in ranges(parts) if found.topic == two)
    with pytest.raises(DataLoss, match=f"topic {two} .* was deleted"):
        list(of_another_process().read(gone))
    assert list(of_another_process(failOnDataLoss="false").read(gone)) == []
    nowhere: Offsets = {"topics": {}}
    with pytest.raises(DataLoss, match=f"topic {two} was deleted"):
        strict.partitions(nowhere, end)
    assert [found.topic for found in ranges(lenient.partitions(nowhere, end))] == [one, two]


def test_a_pattern_waits_for_its_first_topic(topics: Topics, topic: str) -> None:
    given = {**topics.kafka, "subscribePattern": f"{topic}-.*", "startingOffsets": "latest"}
    reader = ScribaStreamReader(read_options(given, streaming=True))
    start = reader.initialOffset()
    assert start["topics"] == {}
    assert reader.latestOffset(start, ALL) is start
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, ALL) is start

    reader = ScribaStreamReader(read_options(given, streaming=True))
    topics.create(f"{topic}-new")
    topics.fill(f"{topic}-new", {0: ["a"]})
    end = reader.latestOffset(start, ALL)
    assert values(reader, start, end) == [b"a"]
    restarted = ScribaStreamReader(read_options(given, streaming=True))
    assert values(restarted, restarted.initialOffset(), end) == [b"a"]
    del given["startingOffsets"]
    nothing = {**given, "subscribePattern": f"{topic}-other"}
    batch = ScribaDataSource(nothing).reader(columns(False))
    assert batch.partitions() == []


def test_offsets_are_asked_of_every_partition_and_no_other(topics: Topics, topic: str) -> None:
    topics.create(topic, 2)
    with pytest.raises(OptionError, match=f"says nothing of {topic}-1"):
        reader_of(topics, topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}').initialOffset()
    three = f'{{"{topic}": {{"0": 0, "1": -2, "2": 0}}}}'
    with pytest.raises(OptionError, match=f"{topic}-2 is not read"):
        reader_of(topics, topic, startingOffsets=three).initialOffset()


def test_what_compaction_left_out_is_stepped_over(tmp_path: Path) -> None:
    eager: dict[str, Any] = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.01",
        "segment_ms": "100",
    }
    node = ScribaBroker(tmp_path, {"log.cleaner.backoff.ms": "50"})
    with running(node) as broker:
        topics, topic = Topics(broker), "compacted"
        topics.create(topic, **eager)
        address = broker.bootstrap
        with SyncProducer(bootstrap_servers=address) as producer:
            for n in range(20):
                producer.send(topic, b"%d" % n, key=b"same")

        reader, old = reader_of(topics, topic), {b"%d" % n for n in range(19)}
        start = reader.initialOffset()

        def rewritten() -> bool:
            """Each record closes a segment when the one before it is old enough."""
            with SyncProducer(bootstrap_servers=address) as producer:
                producer.send(topic, b"last", key=b"other")
            end = reader.latestOffset(start, ALL)
            return not old & set(values(reader, start, end))

        eventually(rewritten)
        known = start["topics"][topic]["id"]
        gap = RangesPartition([Range(topic, known, 0, 3, 8)])
        assert [batch.num_rows for batch in reader.read(gap)] == []
        end = reader.latestOffset(start, ALL)
        found = values(reader, start, end)
        assert (found[0], found[-1]) == (b"19", b"last")


MINUTE_MS = 60_000
START_MS = 1_793_000_000_000


def fill_by_time(topics: Topics, topic: str, times: dict[int, list[int]]) -> None:
    """A record at each time, by partition."""
    with SyncProducer(bootstrap_servers=topics.broker.bootstrap) as producer:
        for partition, each in times.items():
            for time in each:
                producer.send_nowait(topic, b"x", partition=partition, timestamp=time)
        producer.flush()


def test_a_backlog_is_read_in_step_where_partitions_are_not_of_one_pace(
    topics: Topics, topic: str
) -> None:
    """One has a record a second for ten minutes, one the same number in the last of them, and one
    has them all at once."""
    topics.create(topic, 3, **KEPT)
    end = START_MS + 10 * MINUTE_MS
    steady = [START_MS + 1000 * n for n in range(600)]
    times = {0: steady, 1: [end - 6000 + 10 * n for n in range(600)], 2: [end] * 600}
    fill_by_time(topics, topic, times)
    reader = reader_of(topics, topic, maxOffsetsPerTrigger="90", alignByTimestamp="true")
    limit = reader.getDefaultReadLimit()
    at, batches = reader.initialOffset(), []
    while (following := reader.latestOffset(at, limit)) is not at:
        batches.append(places(following, topic))
        at = following
    read = [0, 0, 0]
    for batch in batches:
        ends = [batch[str(partition)] for partition in times]
        assert 0 < sum(ends) - sum(read) <= 90
        newest = max(times[p][ends[p] - 1] for p in times if ends[p])
        waiting = [times[p][ends[p]] for p in times if ends[p] < 600]
        assert all(time >= newest - 1000 for time in waiting)
        read = ends
    assert read == [600, 600, 600]


ENDING = """
from scriba.spark.reading.source import ScribaStreamReader

def fails():
    raise {error}

fails.__globals__["__name__"] = "{module}"
try:
    fails()
finally:
    ScribaStreamReader.stop(object.__new__(ScribaStreamReader))
"""


@pytest.mark.parametrize(
    ("error", "module", "told"),
    [
        ("ConnectionResetError", "pyspark.serializers", False),
        ("EOFError", "pyspark.serializers", False),
        ("ConnectionResetError", "scriba.peers.connection", True),
        ("ValueError", "pyspark.serializers", True),
    ],
)
def test_a_planner_that_java_has_left_ends_in_silence(error: str, module: str, told: bool) -> None:
    script = ENDING.format(error=error, module=module)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (error in ended.stderr, ended.returncode) == (told, int(told))
    assert told or not ended.stderr
