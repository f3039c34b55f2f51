"""The books on Spark: the view, the files, and a recount that finds every kind of mistake."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from scriba.client import SyncProducer
from scriba.pipelines.inventory.decide import Accepted, Books, Level, decide
from scriba.pipelines.inventory.jobs.reconcile import (
    broken_commands,
    chain_breaks,
    differing,
    lake_differences,
    miscounted,
    reconcile,
)
from scriba.pipelines.inventory.jobs.view import EVENT, ROW, archive, prepare_topic, start
from scriba.pipelines.inventory.model import Command, Event, EventType, Kind, Line
from scriba.pipelines.inventory.topics import Names
from tests.spark.desk import Desk, to_the_end


class Author:
    """Writes books as the writer does: each command one transaction in both topics."""

    def __init__(self, bootstrap: str, names: Names) -> None:
        self.names = names
        self.levels: dict[str, Level] = {}
        self.sequence = 0
        self.producer = SyncProducer(
            bootstrap_servers=bootstrap, transactional_id=names.transactional_id
        )

    def carry_out(self, kind: Kind, commit: bool = True, **quantities: int) -> None:
        lines = tuple(Line(item, quantity) for item, quantity in quantities.items())
        command = Command(f"{kind}-{self.sequence + 1}", kind, lines)
        decision = decide(command, Books(self.levels, (), self.sequence), 0)
        assert isinstance(decision, Accepted)
        self.producer.begin_transaction()
        for event in decision.events:
            for topic in (self.names.audit, self.names.events):
                self.producer.send_nowait(topic, event.encode(), event.item.encode())
        if not commit:
            self.producer.abort_transaction()
            return
        self.producer.commit_transaction()
        self.sequence += 1
        for event in decision.events:
            self.levels[event.item] = Level(event.stock, event.version)


@pytest.fixture
def author(desk: Desk, topic: str) -> Iterator[Author]:
    names = Names(topic[:40])
    desk.create(names.audit, 2)
    desk.create(names.events, 2, cleanup_policy="compact")
    made = Author(desk.broker.bootstrap, names)
    with made.producer:
        yield made


def run(desk: Desk, author: Author, checkpoint: str) -> Any:
    """The view up to the present end; its last progress."""
    client = {"bootstrap.servers": desk.broker.bootstrap}
    query = to_the_end(lambda: start(desk.spark, client, author.names, checkpoint, None))
    return query.lastProgress


def test_view_files_and_books_agree_a_lie_is_found_and_a_lost_checkpoint_is_no_loss(
    desk: Desk, author: Author, tmp_path: Path
) -> None:
    names, client = author.names, {"bootstrap.servers": desk.broker.bootstrap}
    asyncio.run(prepare_topic(client, names, True))
    checkpoint, lake = desk.checkpoint(), str(tmp_path / "lake")
    author.carry_out(Kind.RECEIVE, apple=50, pear=50, plum=50)
    author.carry_out(Kind.ORDER, commit=False, apple=50)
    author.carry_out(Kind.ORDER, apple=1, plum=2)
    run(desk, author, checkpoint)
    to_the_end(lambda: archive(desk.spark, client, names, lake, desk.checkpoint()))
    author.carry_out(Kind.ORDER, apple=3)
    late = reconcile(desk.spark, client, names, lake=lake)
    assert late.balanced, late.lines()
    assert late.behind == {"view": 1, "lake": 1}

    with SyncProducer(bootstrap_servers=desk.broker.bootstrap) as liar:
        row = b'{"item":"pear","stock":49,"version":1,"events":1,"told":50}'
        liar.send(names.stock, row, b"pear")
    run(desk, author, checkpoint)
    assert list(Path(checkpoint, "state").rglob("*.changelog")), "the state is not in RocksDB"
    lied = reconcile(desk.spark, client, names, settled=True)
    assert sorted(lied.differences) == [
        ("view", "pear: 49 counted, 50 told, from 1 events at version 1"),
        ("view", "pear: stock 49 at version 1, where the audit log has 50"),
    ]
    counted = (lied.items, lied.events, lied.commands, lied.stock)
    assert counted == (3, 6, 3, 150 - 1 - 2 - 3)
    assert lied.behind == {"view": 0}

    shutil.rmtree(checkpoint)
    run(desk, author, checkpoint)
    rows = desk.read(names.stock, **{"kafka.isolation.level": "read_committed"}).collect()
    table = {row.key: json.loads(row.value) for row in sorted(rows, key=lambda row: row.offset)}
    assert {key.decode(): (row["stock"], row["version"]) for key, row in table.items()} == {
        item: (level.stock, level.version) for item, level in author.levels.items()
    }


def books(spark: SparkSession, events: list[Event]) -> DataFrame:
    rows = [
        {**asdict(event), "key": event.item, "partition": 0, "offset": n}
        for n, event in enumerate(events)
    ]
    schema = f"{EVENT}, key string, partition int, offset long"
    return spark.createDataFrame(rows, schema)


GOOD = Event(EventType.RECEIVED, "good", 5, 5, 1, "one", "d", 1, 1, 1, 0)


def test_every_kind_of_mistake_is_named(spark: SparkSession) -> None:
    wrong = [
        GOOD,
        replace(GOOD, item="gap", version=2, command="two", sequence=2),
        replace(GOOD, item="sum", stock=6, command="three", sequence=3),
        replace(GOOD, item="sign", type=EventType.DECREASED, command="four", sequence=4),
        replace(GOOD, item="torn", command="five", sequence=5, lines=2),
        replace(GOOD, item="late", command="seven", sequence=7),
    ]
    audit = books(spark, wrong)
    table = spark.createDataFrame(
        [("good", 5, 1, 1, 5), ("sum", 5, 1, 1, 6), ("new", 1, 1, 1, 1)], ROW
    )
    raw = audit.selectExpr("partition", "offset", "cast(item as binary) as value")
    held = raw.where("offset not in (0, 5)").unionAll(raw.where("offset = 1"))
    held = held.unionAll(spark.sql("select 0, 9L, cast('x' as binary)"))
    checks = [
        chain_breaks(audit),
        broken_commands(audit),
        differing(audit, table, "events", None),
        miscounted(table),
        lake_differences(raw, held),
    ]
    found = checks[0]
    for check in checks[1:]:
        found = found.unionAll(check)
    assert sorted(tuple(row) for row in found.collect()) == [
        ("audit", "command five: 1 of 2 lines"),
        ("audit", "command seven: number 7 after 5"),
        ("audit", "gap: version 2 with change 5 and stock 5 follows version 0 with stock 0"),
        ("audit", "sign: version 1 with change 5 and stock 5 follows version 0 with stock 0"),
        ("audit", "sum: version 1 with change 5 and stock 6 follows version 0 with stock 0"),
        ("events", "new: stock 1 at version 1, which the audit log does not have"),
        ("events", "sum: stock 5 at version 1, where the audit log has 6"),
        ("lake", "partition 0, offset 0 is missing"),
        ("lake", "partition 0, offset 1 is there twice"),
        ("lake", "partition 0, offset 5 is missing"),
        ("lake", "partition 0, offset 9 is not in the audit log"),
        ("view", "sum: 5 counted, 6 told, from 1 events at version 1"),
    ]
