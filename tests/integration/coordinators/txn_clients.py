"""Foreign producers behind one small face: run this transaction, and say how it ended."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import aiokafka
import confluent_kafka
import kafka

from tools.kafka.brokers import Broker

Records = Sequence[tuple[int, bytes]]
"""Partition and value."""


class TxnProducer(ABC):
    def __init__(self, cluster: Broker, tid: str, timeout_ms: int = 600_000) -> None:
        self.bootstrap = cluster.bootstrap
        self.tid = tid
        self.timeout_ms = timeout_ms

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Takes the transactional id."""

    @abstractmethod
    def run(self, topic: str, records: Records, commit: bool) -> None:
        """One transaction; raises what its client raises."""

    @abstractmethod
    def stop(self) -> None: ...


class Confluent(TxnProducer):
    def start(self) -> None:
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.tid,
                "transaction.timeout.ms": self.timeout_ms,
                "log_level": 0,
            }
        )
        self.producer.init_transactions(300)

    def open(self, topic: str, records: Records) -> None:
        """Begins a transaction whose records are in the log."""
        self.producer.begin_transaction()
        for partition, value in records:
            self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(300) == 0

    def run(self, topic: str, records: Records, commit: bool) -> None:
        self.open(topic, records)
        if commit:
            self.producer.commit_transaction(300)
        else:
            self.producer.abort_transaction(300)

    def stop(self) -> None:
        del self.producer


class KafkaPython(TxnProducer):
    def start(self) -> None:
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.tid,
            transaction_timeout_ms=self.timeout_ms,
        )
        self.producer.init_transactions()

    def run(self, topic: str, records: Records, commit: bool) -> None:
        self.producer.begin_transaction()
        for partition, value in records:
            self.producer.send(topic, value, partition=partition)
        self.producer.flush(300)
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()

    def stop(self) -> None:
        self.producer.close(5)


class AioKafka(TxnProducer):
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.tid,
            transaction_timeout_ms=self.timeout_ms,
        )
        await self.producer.start()

    def run(self, topic: str, records: Records, commit: bool) -> None:
        self.loop.run_until_complete(self._run(topic, records, commit))

    async def _run(self, topic: str, records: Records, commit: bool) -> None:
        await self.producer.begin_transaction()
        for partition, value in records:
            await self.producer.send_and_wait(topic, value, partition=partition)
        if commit:
            await self.producer.commit_transaction()
        else:
            await self.producer.abort_transaction()

    def stop(self) -> None:
        self.loop.run_until_complete(self.producer.stop())
        self.loop.close()


CLIENTS: dict[str, type[TxnProducer]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


class Reader:
    """Reads everything that is stable, from every partition, by librdkafka."""

    def __init__(
        self, cluster: Broker, topic: str, partitions: int, committed: bool = True
    ) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"reads-{topic}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "log_level": 0,
            }
        )
        self.places = [confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)]
        self.values: dict[int, list[bytes]] = {p: [] for p in range(partitions)}

    def to_the_end(self) -> dict[int, list[bytes]]:
        """What each partition holds up to its last stable offset, in order."""
        self.consumer.assign(self.places)
        left = set(self.values)
        while left:
            message: Any = self.consumer.poll(300)
            assert message is not None, "the consumer stalls"
            error = message.error()
            if error is None:
                self.values[message.partition()].append(message.value())
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
        self.consumer.close()
        return self.values
