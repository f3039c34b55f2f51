"""What each client writes, every other reads: codecs, headers, nulls, large records, times.

All writers write one after the other into one log, so that a reader meets the batches of all of
them at once and needs to start but once. Only snappy has a log of its own: not every reader has
that codec.
"""

import pytest

from tests.conformance.interop.model import CODECS, Record, Seen, seen
from tests.conformance.interop.readers import READERS, WITHOUT_SNAPPY
from tests.conformance.interop.writers import WRITERS
from tools.kafka.brokers import Broker
from tools.kafka.kafka_jars import Tools
from tools.kafka.rawkafka import Codec, Connection, create_topic, fetch, fetched, walk

TOPICS = {codec: "interop-snappy" if codec == "snappy" else "interop" for codec in CODECS}

Origin = tuple[str, str]
"""Writer and codec."""

Written = dict[str, list[tuple[Origin, Seen]]]
"""By topic, each record in the order of the log, as every reader has to see it."""


@pytest.fixture(scope="module")
def written(cluster: Broker, tools: Tools) -> Written:
    logs: dict[str, list[tuple[Origin, Record]]] = {name: [] for name in TOPICS.values()}
    with Connection(cluster.port) as connection:
        for name in logs:
            create_topic(connection, name)
    for name, (write, codecs) in WRITERS.items():
        for codec in codecs:
            records = write(cluster, tools, TOPICS[codec], codec)
            logs[TOPICS[codec]] += [((name, codec), record) for record in records]
    return {name: with_times(cluster, name, log) for name, log in logs.items()}


def with_times(
    cluster: Broker, topic: str, log: list[tuple[Origin, Record]]
) -> list[tuple[Origin, Seen]]:
    """Where a writer took a time of its own, all readers have to agree with the first on it."""
    chosen = [found.timestamp for found in READERS["confluent-kafka"](cluster, topic, len(log))]
    return [
        (origin, seen(offset, r.timestamp or chosen[offset], r.key, r.value, r.headers))
        for offset, (origin, r) in enumerate(log)
    ]


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_sees_what_every_writer_wrote(
    cluster: Broker, written: Written, reader: str
) -> None:
    for topic, log in written.items():
        if topic == TOPICS["snappy"] and reader in WITHOUT_SNAPPY:
            continue
        found = READERS[reader](cluster, topic, len(log))
        assert list(zip((origin for origin, _ in log), found, strict=True)) == log


def test_every_writer_used_its_codec(cluster: Broker, written: Written) -> None:
    """A writer may leave a batch plain which the codec would make longer, but not all of them."""
    used: dict[Origin, set[str]] = {
        (name, codec): set() for name, (_, codecs) in WRITERS.items() for codec in codecs
    }
    with Connection(cluster.port) as connection:
        for topic, log in written.items():
            offset = 0
            while offset < len(log):
                told = fetched(connection.call(fetch(offset, topic), 12))
                for base, following, batch in walk(bytes(told.records)):
                    used[log[base][0]].add(Codec(batch[22] & 7).name.lower())
                    offset = following
    for origin, found in used.items():
        assert origin[1] in found, origin
        assert found <= {origin[1], "none"}, origin
