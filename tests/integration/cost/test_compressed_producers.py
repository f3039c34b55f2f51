"""Many compressed producers beside each other: each is judged by its own bytes.

Batches that are unpacked off the loop are appended after a while in which the memory they came in
serves other connections. Client ids, topics, codecs and sizes all differ, so that whoever reads
another's request finds other fields where its own were.
"""

import threading
from random import Random
from typing import Any

import confluent_kafka

from tests.typed import present
from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import Codec as RawCodec
from tools.kafka.rawkafka import (
    Connection,
    batch,
    create_topic,
    init_producer_id,
    produce,
    produced,
)

CODECS = ("gzip", "zstd", "snappy", "gzip", "zstd", "lz4")
MESSAGES = 1500
ROUNDS = 60


class Writer(threading.Thread):
    """One producer of its own topic that keeps what it was told."""

    def __init__(self, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.sent: list[bytes] = []
        self.failed: list[str] = []

    def run(self) -> None:
        try:
            self.write()
        except Exception as error:
            self.failed.append(repr(error))

    def write(self) -> None:
        raise NotImplementedError


class Foreign(Writer):
    """librdkafka, with batches far above what is unpacked on the loop."""

    def __init__(self, cluster: Broker, topic: str, number: int, transactional: bool) -> None:
        super().__init__(topic)
        self.settings: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": "c" * (1 + number * 5),
            "enable.idempotence": True,
            "compression.type": CODECS[number % len(CODECS)],
            "linger.ms": 20,
            "batch.num.messages": 200 + number * 30,
        }
        if transactional:
            self.settings["transactional.id"] = topic
        self.transactional = transactional
        self.noise = Random(number)

    def write(self) -> None:
        producer = confluent_kafka.Producer(self.settings)
        if self.transactional:
            producer.init_transactions(300)
        rounds = 5 if self.transactional else 1
        for _ in range(rounds):
            if self.transactional:
                producer.begin_transaction()
            for _ in range(MESSAGES // rounds):
                value = self.noise.randbytes(self.noise.randrange(100, 500)) + bytes(200)
                self.sent.append(value)
                producer.produce(self.topic, value, partition=0, on_delivery=self._told)
                producer.poll(0)
            assert producer.flush(300) == 0
            if self.transactional:
                producer.commit_transaction(300)

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))


class Bare(Writer):
    """One request after the other, each a batch of another size."""

    def __init__(self, cluster: Broker, topic: str, number: int) -> None:
        super().__init__(topic)
        self.port = cluster.port
        self.codec = (RawCodec.GZIP, RawCodec.SNAPPY, RawCodec.ZSTD)[number % 3]
        self.noise = Random(100 + number)

    def write(self) -> None:
        with Connection(self.port) as connection:
            producer_id, epoch = init_producer_id(connection)
            for sequence in range(ROUNDS):
                value = self.noise.randbytes(self.noise.randrange(33_000, 250_000))
                data = batch(
                    [value],
                    codec=self.codec,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                ).encode()
                self.sent.append(value)
                told = produced(connection.call(produce(data, self.topic), 9))
                if told.error_code:
                    self.failed.append(str(told))


def read_back(cluster: Broker, topic: str) -> list[bytes]:
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    try:
        while True:
            message = reader.poll(300)
            assert message is not None, "nothing came"
            if message.error() is not None:
                assert present(message.error()).code() == confluent_kafka.KafkaError._PARTITION_EOF
                return values
            value = message.value()
            assert value is not None
            values.append(value)
    finally:
        reader.close()


def test_compressed_producers_beside_each_other_are_all_acknowledged(
    own_cluster: Broker, topic: str
) -> None:
    cluster = own_cluster
    writers: list[Writer] = [
        Foreign(cluster, f"{topic}-{'f' * number}", number, transactional=number % 4 == 3)
        for number in range(8)
    ]
    writers += [Bare(cluster, f"{topic}-b{number}", number) for number in range(6)]
    with Connection(cluster.port) as connection:
        for writer in writers:
            create_topic(connection, writer.topic)
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(600)
        assert not writer.is_alive()
    assert {writer.topic: writer.failed for writer in writers if writer.failed} == {}
    for writer in writers:
        assert read_back(cluster, writer.topic) == writer.sent
