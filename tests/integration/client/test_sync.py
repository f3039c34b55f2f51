"""The synchronous face of the clients, with its event loop in a thread of its own."""

from typing import Any

import pytest
from brokers import Broker

from scriba.client import (
    Closed,
    NewTopic,
    RecordError,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)


def test_calls_wait_for_their_results(broker: Broker, topic: str) -> None:
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap}
    with SyncAdmin(**common) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    with SyncProducer(**common, linger_ms=0) as producer:
        assert producer.send(topic, b"0").offset == 0
        deliveries = [producer.send_nowait(topic, b"%d" % n) for n in range(1, 3000)]
        assert [delivery.result().offset for delivery in deliveries] == list(range(1, 3000))
        refused = producer.send_nowait(topic, "text")
        assert isinstance(refused.exception(), RecordError)
        with pytest.raises(RecordError):
            refused.result()
    with pytest.raises(Closed):
        producer.send(topic, b"late")
    with SyncConsumer(**common, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions(topic))
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 1234:
                break
        assert consumer.position((topic, 0)) == 1234, "what was read ahead is given back"
        while len(seen) < 3000:
            seen += [record.offset for record in consumer.poll(1000)]
        assert seen == list(range(3000))
        assert consumer.settings.max_poll_records == 500


def test_what_was_handed_over_is_sent_at_the_end(broker: Broker, topic: str) -> None:
    with SyncProducer(bootstrap_servers=broker.bootstrap, linger_ms=60_000) as producer:
        left = producer.send_nowait(topic, b"x")
    assert left.done()
    assert left.result().offset == 0


def test_a_wrong_setting_is_told_when_the_client_is_made() -> None:
    with pytest.raises(ValueError, match="did you mean linger_ms"):
        SyncProducer(bootstrap_servers="localhost:9092", lingerms=1)
