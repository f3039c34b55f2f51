"""Writing topics: at least once from a batch query, exactly once from a stream."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from scriba.client import SyncProducer, TopicPartition
from scriba.client.errors import ProducerFenced
from scriba.client.settings import ProducerSettings
from scriba.peers.errors import BrokerError
from scriba.spark import ExactlyOnceSink, Figures, OptionError, Outcome, figures
from scriba.spark.link import Link
from scriba.spark.options import write_options
from scriba.spark.origin import cores, shuffled
from scriba.spark.writing.at_least_once import own_identity
from scriba.spark.writing.exactly_once import WriteTask
from scriba.spark.writing.targets import targets
from scriba.spark.writing.task_writer import TaskRepeated, TaskWriter
from scriba.spark.writing.transactions import Marker, SinkTransactions
from tests.spark.desk import KEPT, Desk, Topics, available_now, to_the_end
from tools.kafka.broker_fixtures import eventually

STEPS = ("take over", "begin", "write", "mark", "commit", "committed")
"""Where a driver may die."""


class Crash(Exception):
    pass


def crash_at(fatal: str, batch: int = 1) -> Callable[[str], None]:
    """Before this step of a run's first batch, or of a later one."""
    steps = Counter[str]()

    def watch(step: str) -> None:
        steps[step] += 1
        if step == fatal and steps[step] == batch:
            raise Crash(step)

    return watch


class Outcomes:
    """Writes by a sink, and keeps what became of each batch."""

    def __init__(self, sink: ExactlyOnceSink) -> None:
        self.sink = sink
        self.all: list[Outcome] = []

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.sink(rows, batch)
        assert self.sink.last is not None
        self.all.append(self.sink.last)

    @property
    def on_driver(self) -> list[bool]:
        return [each.on_driver for each in self.all]


def sink_of(desk: Desk, topic: str, **options: str) -> ExactlyOnceSink:
    return ExactlyOnceSink({**desk.kafka, "topic": topic, **options})


def committed(desk: Desk, topic: str) -> list[str]:
    return desk.values(desk.read(topic, **{"kafka.isolation.level": "read_committed"}))


def test_a_batch_query_writes_rows_where_a_producer_would(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    ours, theirs = new_topic(), new_topic()
    desk.create(ours, 3)
    desk.create(theirs, 3)
    keys = [f"key-{n}" for n in range(30)]
    with SyncProducer(bootstrap_servers=desk.broker.bootstrap) as producer:
        for key in keys:
            producer.send_nowait(theirs, b"v", key=key.encode())
        producer.flush()
    rows = desk.spark.createDataFrame([(key, "v") for key in keys], "key string, value string")
    rows.write.format("scriba").options(**desk.kafka, topic=ours).mode("append").save()

    def places(topic: str) -> set[tuple[bytes, int]]:
        return {(row.key, row.partition) for row in desk.read(topic).collect()}

    assert places(ours) == places(theirs)


def test_rows_name_their_topic_and_partition_and_carry_headers(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    one, two = new_topic(), new_topic()
    desk.create(one, 2)
    desk.create(two, 2)
    rows = desk.spark.createDataFrame(
        [(one, 1, "a", [("h", bytearray(b"1"))]), (two, 0, "b", None)],
        "topic string, partition int, value string, headers array<struct<key:string,value:binary>>",
    )
    rows.write.format("scriba").options(**desk.kafka, topics=f"{one},{two}").mode("append").save()
    found = desk.read(f"{one},{two}", includeHeaders="true").orderBy("value").collect()
    assert [(r.topic, r.partition, r.value) for r in found] == [(one, 1, b"a"), (two, 0, b"b")]
    assert [(h.key, h.value) for h in found[0].headers] == [("h", b"1")]
    wrong = rows.withColumn("partition", F.col("partition").cast("long"))
    with pytest.raises(PySparkException, match="column partition is of type bigint"):
        wrong.write.format("scriba").options(**desk.kafka, topic=one).mode("append").save()


def test_a_stream_is_written_once_wherever_its_driver_dies(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 2)
    desk.create(target, 3)
    checkpoint = desk.checkpoint()
    values = [f"{n}" for n in range(8)]
    desk.fill(source, {0: values[:4], 1: values[4:]})
    for step in STEPS:
        options = {**desk.kafka, "topic": target, "tasks": "2"}
        sink = ExactlyOnceSink(options, watch=crash_at(step))
        with pytest.raises(StreamingQueryException, match=step):
            available_now(desk.stream(source), checkpoint, sink)
    assert committed(desk, target) == values
    desk.fill(source, {0: ["more"]})
    outcomes = Outcomes(sink_of(desk, target))
    available_now(desk.stream(source), checkpoint, outcomes)
    assert [(done.rows, done.repeated) for done in outcomes.all] == [(0, True), (1, False)]
    assert committed(desk, target) == [*values, "more"]


def test_rows_that_the_driver_has_are_written_once_wherever_it_dies(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 3)
    checkpoint = desk.checkpoint()
    values = [f"{n}" for n in range(8)]
    desk.fill(source, {0: values})
    written = []
    for watch in (*map(crash_at, STEPS), lambda step: None):
        sink = ExactlyOnceSink({**desk.kafka, "topic": target}, watch=watch)

        def write(rows: DataFrame, batch: int, sink: ExactlyOnceSink = sink) -> None:
            make = rows.select("key", "value").toArrow
            written.append(sink.write(make, batch, rows.sparkSession))

        with contextlib.suppress(StreamingQueryException):
            available_now(desk.stream(source), checkpoint, write)
    assert committed(desk, target) == values
    assert written == [False]


def test_small_batches_are_written_by_the_driver_once_wherever_it_dies(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    """The first batch of a run is written by tasks, the second by the driver, which dies."""
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 3)
    checkpoint = desk.checkpoint()
    values = [f"{n:02}" for n in range(15)]
    desk.fill(source, {0: values})
    stream = desk.stream(source, maxOffsetsPerTrigger="2")
    for step in STEPS[1:]:
        sink = ExactlyOnceSink({**desk.kafka, "topic": target}, watch=crash_at(step, batch=2))
        outcomes = Outcomes(sink)
        with pytest.raises(StreamingQueryException, match=step):
            available_now(stream, checkpoint, outcomes)
        assert outcomes.on_driver == [False]
    outcomes = Outcomes(sink_of(desk, target))
    available_now(stream, checkpoint, outcomes)
    assert [(done.repeated, done.on_driver) for done in outcomes.all] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert committed(desk, target) == values


def test_the_driver_writes_rows_where_and_as_tasks_would(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    source, one, two = new_topic(), new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(one, 3)
    desk.create(two, 3)
    desk.fill(source, {0: [f"{n}" for n in range(40)]})
    rows = desk.stream(source, maxOffsetsPerTrigger="20").selectExpr(
        f"if(offset % 2 = 0, '{one}', '{two}') as topic",
        "if(offset % 5 = 0, 2, null) as partition",
        "if(offset % 3 = 0, null, concat('key-', offset % 4)) as key",
        "if(offset % 7 = 0, null, cast(value as string)) as value",
        "if(offset % 4 = 0, array(named_struct('key', 'h', 'value', value)), null) as headers",
        "offset as ignored",
    )
    written = []
    for most in ("20", "0"):
        sink = ExactlyOnceSink(
            {**desk.kafka, "topics": f"{one},{two}", "maxRecordsOnDriver": most, "sinkId": most}
        )
        outcomes = Outcomes(sink)
        available_now(rows, desk.checkpoint(), outcomes)
        assert outcomes.on_driver == [False, most != "0"]
        assert [each.rows for each in outcomes.all] == [20, 20]
        written.append(desk.read(f"{one},{two}", includeHeaders="true").orderBy("offset").collect())
    once = written[0]
    assert len(once) == 40
    places = Counter((row.topic, row.partition, row.key, row.value) for row in once)
    both = Counter((row.topic, row.partition, row.key, row.value) for row in written[1])
    keyed = [place for place in places if place[2] is not None]
    assert len(keyed) > 10
    assert all(both[place] == 2 * places[place] for place in keyed)
    assert sum(row.headers is not None for row in once) == 10


@pytest.mark.parametrize(
    ("sizes", "rows", "taken"),
    [
        ("12911", "explode(sequence(1, n))", [False, True, False, False, True]),
        ("1191", "if(n < 9, 'x', repeat('x', 400000))", [False, True, False, True]),
    ],
)
def test_a_batch_too_large_for_the_driver_is_left_to_tasks(
    desk: Desk, new_topic: Callable[[], str], sizes: str, rows: str, taken: list[bool]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 2)
    desk.fill(source, {0: [*sizes]})
    numbers = desk.stream(source, maxOffsetsPerTrigger="1")
    numbers = numbers.selectExpr("cast(cast(value as string) as int) as n")
    made = numbers.selectExpr(f"{rows} as made").selectExpr("cast(made as string) as value")
    most = "4" if "explode" in rows else "100"
    outcomes = Outcomes(sink_of(desk, target, maxRecordsOnDriver=most))
    query = available_now(made, desk.checkpoint(), outcomes)
    assert outcomes.on_driver == taken
    # What is computed twice Spark counts twice.
    assert [each["numInputRows"] for each in query.recentProgress] == [
        1,
        1,
        2,
        *[1] * len(taken[3:]),
    ]
    assert {each.attempts for each in outcomes.all} == {1}
    count = sum(map(int, sizes)) if "explode" in rows else len(sizes)
    assert len(committed(desk, target)) == len(desk.values(desk.read(target))) == count


def test_state_is_counted_once_when_a_batch_is_too_large_for_the_driver(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 1)
    desk.fill(source, {0: [*"aaaabaabcabc"]})
    stream = desk.stream(source, maxOffsetsPerTrigger="3")
    counts = stream.groupBy(F.col("value").cast("string").alias("key")).count()
    rows = counts.select(F.concat_ws("=", "key", "count").alias("value"))
    outcomes = Outcomes(sink_of(desk, target, maxRecordsOnDriver="2"))
    writer = rows.writeStream.outputMode("update").foreachBatch(outcomes)
    writer = writer.option("checkpointLocation", desk.checkpoint())
    to_the_end(lambda: writer.trigger(availableNow=True).start())
    assert outcomes.on_driver == [False, True, False, False]
    assert committed(desk, target) == sorted(
        ["a=3", "a=5", "b=1", "a=6", "b=2", "c=1", "a=7", "b=3", "c=2"]
    )


def test_a_query_with_state_goes_on_after_a_batch_that_was_committed_before(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 1)
    checkpoint = desk.checkpoint()

    def count(watch: Callable[[str], None]) -> None:
        counts = desk.stream(source).groupBy(F.col("value").cast("string").alias("key")).count()
        rows = counts.select(F.concat_ws("=", "key", "count").alias("value"))
        sink = ExactlyOnceSink({**desk.kafka, "topic": target}, watch=watch)
        stream = rows.writeStream.outputMode("update").foreachBatch(sink)
        stream = stream.option("checkpointLocation", checkpoint)
        to_the_end(lambda: stream.trigger(availableNow=True).start())

    desk.fill(source, {0: ["a", "a"]})
    with pytest.raises(StreamingQueryException, match="committed"):
        count(crash_at("committed"))
    desk.fill(source, {0: ["a"]})
    count(lambda step: None)
    assert committed(desk, target) == ["a=2", "a=3"]


def test_a_batch_whose_worker_is_killed_while_it_writes_begins_anew(
    desk: Desk, new_topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 2)
    desk.fill(source, {0: [f"{n}" for n in range(20)]})
    scar = desk.folder / "killed-before"

    class Dying(WriteTask):
        def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
            yield from super().__call__(self.until_death(batches))

        def until_death(self, batches: Iterator[Any]) -> Iterator[Any]:
            yield from batches
            if not scar.exists():
                scar.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("scriba.spark.writing.exactly_once.WriteTask", Dying)
    sink = sink_of(desk, target, **{"kafka.batch.size": "1"})
    available_now(desk.stream(source), desk.checkpoint(), sink)
    assert scar.exists()
    assert sink.last is not None
    assert (sink.last.attempts, sink.last.rows) == (2, 20)
    assert committed(desk, target) == sorted(f"{n}" for n in range(20))
    assert len(desk.values(desk.read(target))) > 20  # what the killed worker wrote, aborted


def test_rows_that_were_shuffled_are_told_from_those_a_task_has_just_read(
    desk: Desk, topic: str
) -> None:
    desk.create(topic, 2)
    desk.fill(topic, {0: ["a"], 1: ["b"]})
    found = []

    def look(rows: DataFrame, batch: int) -> None:
        found.append(shuffled(rows))
        rows.collect()  # a query with state fails unless its batches are computed

    available_now(desk.stream(topic).where("length(value) > 0"), desk.checkpoint(), look)
    available_now(desk.stream(topic).dropDuplicates(["value"]), desk.checkpoint(), look)
    assert found == [False, True]
    assert cores(desk.spark) == 2


def test_a_driver_that_was_replaced_cannot_commit(desk: Desk, new_topic: Callable[[], str]) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 1)
    desk.fill(source, {0: ["a"]})
    settings = ProducerSettings.build({"bootstrap.servers": desk.broker.bootstrap}, {})
    other = Link(settings)

    def take_over(step: str) -> None:
        if step == "mark":
            SinkTransactions(other, settings, "shared", TopicPartition(target, 0)).take_over()

    sink = ExactlyOnceSink({**desk.kafka, "topic": target, "sinkId": "shared"}, watch=take_over)
    with pytest.raises(StreamingQueryException, match=r"(?i)fenced|epoch"):
        available_now(desk.stream(source), desk.checkpoint(), sink)
    other.close()
    assert committed(desk, target) == []


def test_two_queries_write_at_the_same_time(desk: Desk, new_topic: Callable[[], str]) -> None:
    source, one, two = new_topic(), new_topic(), new_topic()
    for topic in (source, one, two):
        desk.create(topic, 2)
    desk.fill(source, {0: ["a", "b"], 1: ["c"]})
    stream, failures = desk.stream(source, maxOffsetsPerTrigger="1"), []

    def copy(target: str) -> None:
        try:
            available_now(stream, desk.checkpoint(), sink_of(desk, target, tasks="1"))
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=copy, args=(target,)) for target in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert committed(desk, one) == committed(desk, two) == ["a", "b", "c"]


def test_what_is_to_be_written_to_must_be_there(
    topics: Topics, new_topic: Callable[[], str]
) -> None:
    """It is told at once, at the start of a batch as in the middle of it."""
    there, missing = new_topic(), new_topic()
    topics.create(there, 3)
    given = {**topics.kafka, "topics": f"{there},{missing}", "kafka.max.block.ms": "20000"}
    options = write_options(given, exactly_once=True)
    link = Link(options.settings())
    with pytest.raises(OptionError, match=f"{missing} does not exist; create it"):
        targets(link, options)
    topics.create(missing)
    assert targets(link, options) == {there: 3, missing: 1}
    identity = link.run(own_identity(link))
    patient = {**options.client, "delivery.timeout.ms": "40000"}
    writer = TaskWriter(link, ProducerSettings.build(patient, {}), identity)
    with topics.admin() as admin:
        admin.delete_topics([missing])
    writer.add(TopicPartition(missing, 0), 0, None, b"late", ())
    with pytest.raises(BrokerError, match=f"{missing} was deleted"):
        writer.finish()
    link.close()


class Listener(StreamingQueryListener):
    """Keeps the figures of each batch, and says when a query ended."""

    def __init__(self) -> None:
        self.figures: dict[str, list[Figures]] = {}
        self.ended: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.figures.setdefault(str(event.progress.id), []).append(figures(event.progress))

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.add(str(event.runId))


def test_records_of_a_key_keep_their_order_and_listeners_hear_what_was_written(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    """Over several batches, by several tasks, exactly once and at least once."""
    source, once, often = new_topic(), new_topic(), new_topic()
    for topic, partitions in ((source, 3), (once, 4), (often, 2)):
        desk.create(topic, partitions)
    with SyncProducer(bootstrap_servers=desk.broker.bootstrap) as producer:
        for n in range(90):
            producer.send_nowait(source, b"%d" % n, key=b"key-%d" % (n % 11))
        producer.flush()
    rows = desk.stream(source, maxOffsetsPerTrigger="40").select("key", "value")
    listener = Listener()
    desk.spark.streams.addListener(listener)
    checkpoint = desk.checkpoint()
    options = {**desk.kafka, "topic": once, "tasks": "2"}
    failing = ExactlyOnceSink(options, watch=crash_at("committed"))
    try:
        with pytest.raises(StreamingQueryException, match="committed"):
            available_now(rows, checkpoint, failing)
        query = available_now(rows, checkpoint, sink_of(desk, once, tasks="2"))
        plain = rows.writeStream.format("scriba").options(**desk.kafka, topic=often)
        plain = plain.option("checkpointLocation", desk.checkpoint()).queryName(often)
        other = to_the_end(lambda: plain.trigger(availableNow=True).start())
        eventually(lambda: {str(query.runId), str(other.runId)} <= listener.ended)
    finally:
        desk.spark.streams.removeListener(listener)
    heard = listener.figures[str(query.id)]
    assert [found.lag for found in heard] == [None, 10, 0]  # a repeated batch is not planned
    done = [found.sink for found in heard]
    assert [(each.batch, each.rows, each.attempts, each.repeated) for each in done if each] == [
        (0, 0, 0, True),
        (1, 40, 1, False),
        (2, 10, 1, False),
    ]
    assert [each.transaction_ms > 0 for each in done if each] == [False, True, True]
    assert [(found.lag, found.sink) for found in listener.figures[str(other.id)]] == [
        (50, None),
        (10, None),
        (0, None),
    ]
    for target in (once, often):
        written = desk.read(target, **{"kafka.isolation.level": "read_committed"})
        by_key: dict[bytes, list[tuple[int, int, int]]] = {}
        for row in written.collect():
            by_key.setdefault(row.key, []).append((row.partition, row.offset, int(row.value)))
        assert sum(map(len, by_key.values())) == 90
        for places in by_key.values():
            ordered = sorted(places)
            assert len({partition for partition, _, _ in ordered}) == 1
            assert [n for _, _, n in ordered] == sorted(n for _, _, n in ordered)


@pytest.mark.parametrize("earlier", [[], ["first"]], ids=["tasks", "driver"])
def test_a_query_stopped_amid_a_batch_ends_quietly_and_goes_on_later(
    desk: Desk,
    new_topic: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
    earlier: list[str],
) -> None:
    """The driver would write it when there was a small one before."""
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 1)
    checkpoint, begun, hold = desk.checkpoint(), desk.folder / "begun", desk.folder / "hold"

    def until_told(batches: Iterator[Any]) -> Iterator[Any]:
        if hold.exists():
            begun.touch()
        while hold.exists():
            time.sleep(0.05)
        yield from batches

    rows = desk.stream(source)
    held = rows.mapInArrow(until_told, rows.schema)
    steps: list[str] = []
    sink = ExactlyOnceSink({**desk.kafka, "topic": target}, watch=steps.append)
    writer = held.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    if earlier:
        desk.fill(source, {0: earlier})
        query = writer.start()
        query.processAllAvailable()
        steps.clear()
    hold.touch()
    desk.fill(source, {0: ["a", "b"]})
    if not earlier:
        query = writer.start()
    eventually(begun.exists)
    caplog.clear()
    query.stop()
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in told] == []
    assert query.exception() is None
    assert steps == [*([] if earlier else ["take over"]), "begin", "write", "abort"]
    hold.unlink()
    available_now(rows, checkpoint, sink_of(desk, target))
    assert committed(desk, target) == ["a", "b", *earlier]


def test_progress_that_is_noted_later_is_for_other_sinks(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    """It would name other rows by the number of a batch that was committed, so Spark refuses."""
    source, target = new_topic(), new_topic()
    desk.create(source)
    desk.create(target)
    desk.fill(source, {0: ["a"]})
    rows = desk.stream(source).select("key", "value")
    hasty = rows.writeStream.option("asyncProgressTrackingEnabled", "true")
    hasty = hasty.option("checkpointLocation", desk.checkpoint())
    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        hasty.foreachBatch(sink_of(desk, target)).start()
    ours = rows.writeStream.option("asyncProgressTrackingEnabled", "true").format("scriba")
    ours = ours.option("checkpointLocation", desk.checkpoint()).options(**desk.kafka, topic=target)
    with pytest.raises(PySparkException, match="does not support async progress tracking"):
        ours.start()
    theirs = rows.writeStream.option("asyncProgressTrackingEnabled", "true").format("kafka")
    theirs = theirs.options(**desk.kafka, topic=target)
    query = theirs.option("checkpointLocation", desk.checkpoint()).start()
    query.processAllAvailable()
    query.stop()
    assert desk.values(desk.read(target)) == ["a"]


def test_a_sink_without_memory_of_its_query_asks_before_it_writes(
    desk: Desk, new_topic: Callable[[], str]
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 1)
    desk.create(target, 1)
    checkpoint = desk.checkpoint()
    desk.fill(source, {0: ["a"]})
    available_now(desk.stream(source), checkpoint, sink_of(desk, target))
    desk.fill(source, {0: ["b"]})
    moved = {"sinkId": f"moved-{target}"}
    with pytest.raises(StreamingQueryException, match="markerMissing=write"):
        available_now(desk.stream(source), checkpoint, sink_of(desk, target, **moved))
    # A checkpoint that is given to the sink has to be that of its query.
    sink = sink_of(desk, target, checkpointLocation=desk.checkpoint(), **moved)
    with pytest.raises(StreamingQueryException, match="is not the checkpoint of a query that is"):
        available_now(desk.stream(source), checkpoint, sink)
    sink = sink_of(desk, target, markerMissing="write", checkpointLocation=checkpoint, **moved)
    available_now(desk.stream(source), checkpoint, sink)
    assert committed(desk, target) == ["a", "b"]


def test_a_second_writer_under_one_identity_is_refused(desk: Desk, topic: str) -> None:
    """As when Spark runs a task again after it lost an executor, without saying so."""
    desk.create(topic, 1, **KEPT)
    settings = ProducerSettings.build({"bootstrap.servers": desk.broker.bootstrap}, {})
    link, where = Link(settings), TopicPartition(topic, 0)
    transactions = SinkTransactions(link, settings, f"twice-{topic}", where)
    assert transactions.take_over() is None
    identity = transactions.begin([where])
    first = TaskWriter(link, settings, identity)
    first.add(where, 0, None, b"once", ())
    assert [(w.partition, w.rows) for w in first.finish()] == [(0, 1)]
    second = TaskWriter(link, settings, identity)
    second.add(where, 0, None, b"twice", ())
    with pytest.raises(TaskRepeated, match=f"{topic}-0"):
        second.finish()
    transactions.abort()
    identity = transactions.begin([where])
    third = TaskWriter(link, settings, identity)
    third.add(where, 0, None, b"anew", ())
    third.finish()
    first.add(where, 0, None, b"late", ())
    with pytest.raises(BrokerError, match=r"EPOCH|FENCED"):
        first.finish()
    transactions.mark(Marker("q", 7))
    transactions.commit()
    assert SinkTransactions(link, settings, f"twice-{topic}", where).take_over() == ("q", 7)
    transactions.begin([where])
    with pytest.raises(ProducerFenced):
        transactions.mark(Marker("q", 8))
    link.close()
    assert committed(desk, topic) == ["anew"]


def test_batches_too_large_for_a_topic_are_cut(desk: Desk, topic: str) -> None:
    desk.create(topic, 1, max_message_bytes="4000")
    rows = desk.spark.range(100).selectExpr("lpad(cast(id as string), 100, '0') as value")
    rows.write.format("scriba").options(**desk.kafka, topic=topic).mode("append").save()
    assert Counter(len(value) for value in desk.values(desk.read(topic))) == {100: 100}
