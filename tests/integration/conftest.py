"""Live brokers, shared with the benchmarks (see tools/kafka), and a watchful bystander."""

from collections.abc import Iterator

import pytest

from tests.integration.commands import scriba
from tools.kafka.broker_fixtures import cluster, new_topic, own_cluster, topic
from tools.kafka.brokers import Broker, KafkaBroker
from tools.kafka.rawkafka import (
    Connection,
    batch,
    create_topic,
    fetch,
    fetched,
    produce,
    produced,
)

__all__ = ["cluster", "new_topic", "own_cluster", "scriba", "topic"]

MAX_GROWTH = 96 << 20
"""What one misbehaving client may cost in memory; the JVM's heap is its own bound."""


@pytest.fixture
def bystander(cluster: Broker, topic: str) -> Iterator[Connection]:
    """A well-behaved client with one record in `topic`, to whom nothing may happen.

    After the test its connection still works, the log holds its one record and no other, and the
    broker is the same process without much more memory.
    """
    process, memory = cluster.pid, cluster.resident_bytes()
    with Connection(cluster.port) as connection:
        create_topic(connection, topic)
        assert (
            produced(connection.call(produce(batch([b"safe"]).encode(), topic), 9)).base_offset == 0
        )
        yield connection
        part = fetched(connection.call(fetch(0, topic), 12))
        assert (part.error_code, part.high_watermark) == (0, 1)
        assert b"safe" in part.records
    assert cluster.process is not None
    assert cluster.process.poll() is None
    assert cluster.pid == process
    if not isinstance(cluster, KafkaBroker):
        assert cluster.resident_bytes() - memory < MAX_GROWTH
