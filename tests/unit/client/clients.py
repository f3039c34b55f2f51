"""Clients of scripted brokers, and what is in the brokers' logs."""

from typing import Any

from scriba.client.consuming.consumer import Consumer
from scriba.client.consuming.record import ConsumerRecord
from scriba.client.model import TopicPartition
from scriba.client.producing.producer import Producer
from scriba.records.batch import Record, decode_records, encode_batch
from scriba.testing.sim.world.world import ProcessWorld
from tests.unit.client.fake_cluster import FakeCluster, Log

T0 = TopicPartition("t", 0)


def consumer(cluster: FakeCluster, world: ProcessWorld, **settings: Any) -> Consumer:
    chosen = {"auto_offset_reset": "earliest", **settings}
    return Consumer(bootstrap_servers=cluster.bootstrap, _ports=world, **chosen)


def fill(log: Log, *batches: int, start: int = 0, **options: Any) -> None:
    """Writes batches of these counts; values are numbers, timestamps their thousands."""
    for count in batches:
        records = [Record(0, (start + n) * 1000, b"k", b"%d" % (start + n)) for n in range(count)]
        log.write(bytes(encode_batch(records, **options)))
        start += count


async def read(c: Consumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    taken: list[ConsumerRecord[Any, Any]] = []
    while len(taken) < count:
        polled = await c.poll(60_000)
        assert polled, "nothing more came"
        taken += polled
    return taken


def offsets(records: list[ConsumerRecord[Any, Any]]) -> list[int]:
    return [record.offset for record in records]


def producer(cluster: FakeCluster, world: ProcessWorld, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap, _ports=world, **settings)


def records(log: Log) -> list[Record]:
    return [record for _, data in log.batches for record in decode_records(data)]


def values(log: Log) -> list[bytes]:
    return [record.value or b"" for record in records(log)]
