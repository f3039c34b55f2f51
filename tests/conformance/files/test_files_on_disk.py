"""The files on disk, read by Kafka's own dump and metadata tools."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.kafka.broker_fixtures import TARGETS, eventually
from tools.kafka.brokers import TESTED, Broker, running
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import (
    T0,
    Codec,
    Connection,
    batch,
    create_topic,
    init_producer_id,
    produce,
    produced,
)

TOPIC = "dumped"
BATCHES = 60


@pytest.fixture(scope="module", params=TARGETS)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker that wrote several segments in every codec, then stopped cleanly.

    Segments of a megabyte, the smallest that Kafka allows: sixty batches of some 100 KB before
    compression, plain ones by an idempotent producer.
    """
    broker = TESTED[request.param](tmp_path_factory.mktemp(f"{request.param}-files"))
    with running(broker), Connection(broker.port) as connection:
        create_topic(connection, TOPIC, segment_bytes="1048576", index_interval_bytes="4096")
        create_topic(connection, "settled", partitions=3, retention_ms="99999999")
        producer, epoch = init_producer_id(connection)
        sequence = 0
        for number in range(BATCHES):
            codec = Codec(number % 5 if number % 2 else 0)
            values = [b"%d-%d " % (number, n) * 2000 for n in range(10)]
            data = batch(values, codec=codec, timestamp=T0 + number * 1000)
            if codec == Codec.NONE:
                data = data.but(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
                sequence += 10
            answer = produced(connection.call(produce(data.encode(), TOPIC), 9))
            assert (answer.error_code, answer.base_offset) == (0, number * 10)
        broker.stop()
        yield broker


def files(broker: Broker, suffix: str) -> list[Path]:
    return sorted((broker.log_dir / f"{TOPIC}-0").glob(f"*[0-9]{suffix}"))


def joined(paths: list[Path]) -> str:
    return ",".join(map(str, paths))


def test_every_batch_and_record_is_readable(written: Broker, tools: Tools) -> None:
    logs = files(written, ".log")
    assert len(logs) >= 3
    dumped = tools.run("dump-log", "--print-data-log", "--files", joined(logs)).ok()
    found = re.findall(
        r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* partitionLeaderEpoch: 0 .*"
        r" (?:CreateTime): (\d+) .* compresscodec: (\w+) .* isvalid: true",
        dumped,
    )
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert found == [
        (str(n * 10), str(n * 10 + 9), "10", str(T0 + n * 1000), names[n % 5 if n % 2 else 0])
        for n in range(BATCHES)
    ]
    assert len(re.findall(r"^\| offset: \d+ .* payload: ", dumped, re.MULTILINE)) == BATCHES * 10
    assert "isvalid: false" not in dumped


def test_indexes_agree_with_the_log(written: Broker, tools: Tools) -> None:
    offsets, times = files(written, ".index"), files(written, ".timeindex")
    assert len(offsets) == len(times) == len(files(written, ".log"))
    verified = tools.run("dump-log", "--verify-index-only", "--files", joined(offsets + times)).ok()
    for complaint in ("Mismatches", "Found timestamp mismatch", "out of order", "Non-consecutive"):
        assert complaint not in verified
    sane = tools.run("dump-log", "--index-sanity-check", "--files", joined(offsets + times)).ok()
    assert sane.count("passed sanity check.") == len(offsets) + len(times)
    entries = tools.run("dump-log", "--files", joined(offsets)).ok()
    assert len(re.findall(r"^offset: \d+ position: \d+$", entries, re.MULTILINE)) > BATCHES / 4


def test_producer_snapshots_hold_the_last_sequence(written: Broker, tools: Tools) -> None:
    snapshots = files(written, ".snapshot")
    dumped = tools.run("dump-log", "--files", str(snapshots[-1])).ok()
    plain = [n for n in range(BATCHES) if n % 2 == 0 or n % 5 == 0]
    assert snapshots[-1].stem == f"{BATCHES * 10:020}"
    assert f"lastSequence: {len(plain) * 10 - 1} lastOffset: {plain[-1] * 10 + 9}" in dumped


def test_the_metadata_log_is_kafkas(written: Broker, tools: Tools) -> None:
    logs = sorted((written.log_dir / "__cluster_metadata-0").glob("*[0-9].log"))
    dumped = tools.run("dump-log", "--cluster-metadata-decoder", "--files", joined(logs)).ok()
    assert "isvalid: false" not in dumped
    assert "Could not decode" not in dumped
    records = [
        json.loads(payload) for payload in re.findall(r"payload: (\{.*\})$", dumped, re.MULTILINE)
    ]
    by_type: dict[str, list[dict[str, object]]] = {}
    for record in records:
        by_type.setdefault(record["type"], []).append(record["data"])
    assert {"REGISTER_BROKER_RECORD", "FEATURE_LEVEL_RECORD", "PARTITION_RECORD"} <= set(by_type)
    topics = {record["name"]: record["topicId"] for record in by_type["TOPIC_RECORD"]}
    assert {TOPIC, "settled"} <= set(topics)
    partitions = [r for r in by_type["PARTITION_RECORD"] if r["topicId"] == topics["settled"]]
    assert sorted(r["partitionId"] for r in partitions) == [0, 1, 2]  # type: ignore[type-var]
    settings = [(r["resourceName"], r["name"], r["value"]) for r in by_type["CONFIG_RECORD"]]
    assert ("settled", "retention.ms", "99999999") in settings
    assert "LeaderChange" in dumped


def test_small_files_hold_what_kafka_writes(written: Broker, tools: Tools) -> None:
    folder = written.log_dir
    meta = dict(
        line.split("=", 1)
        for line in (folder / "meta.properties").read_text().splitlines()
        if not line.startswith("#")
    )
    assert meta["version"] == "1"
    assert len(meta["cluster.id"]) == len(meta["directory.id"]) == 22
    assert int(meta["node.id"]) >= 0
    assert (folder / ".kafka_cleanshutdown").exists()
    partition = folder / f"{TOPIC}-0"
    assert re.fullmatch(
        r"version: 0\ntopic_id: \S{22}", (partition / "partition.metadata").read_text().strip()
    )
    assert (partition / "leader-epoch-checkpoint").read_text().split() == ["0", "1", "0", "0"]
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        version, count, *rows = (folder / name).read_text().splitlines()
        assert version == "0"
        assert int(count) == len(rows)
        assert f"{TOPIC} 0 {BATCHES * 10}" in rows


def test_the_metadata_shell_builds_its_image_from_the_log(written: Broker, tools: Tools) -> None:
    log = str(written.log_dir / "__cluster_metadata-0" / f"{0:020}.log")
    wanted = re.compile(r"PartitionRegistration\(replicas=\[\d+\], directories=\[\S{22}\]")

    def found() -> bool:
        """The shell begins when it has read some of the log, and does not wait for the rest."""
        asked = ["cat", "/image/topics/byName/settled/2"]
        return bool(wanted.search(tools.run("metadata-shell", "--snapshot", log, *asked).ok()))

    eventually(found)
