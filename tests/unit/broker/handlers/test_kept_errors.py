"""Errors that are kept, and told to everybody who asks, keep nothing of those who asked."""

import gc
from collections.abc import Callable
from types import TracebackType
from weakref import ref

import pytest

from scriba.broker.handlers.records.produce import produce
from scriba.broker.node import Node
from scriba.broker.request import ANONYMOUS, Context
from scriba.errors import ErrorCode, KafkaError
from scriba.records.batch import Record, encode_batch
from scriba.storage.directory.names import PartitionName
from scriba.storage.results import Failure, NoRoom
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

InANode = Callable[..., None]
T0 = 1_750_000_000_000
BATCH = bytes(encode_batch([Record(0, T0, None, b"v", ())]))
CTX = Context(ANONYMOUS, "PLAINTEXT", "c", "127.0.0.1", ApiKey.PRODUCE, 9, 0)


class Records(bytearray):
    """Bytes of a request."""


def request(records: Records) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic])


def refuse_by_closing(node: Node, error: KafkaError) -> None:
    node.replicas.find("t", 0).closed = error


def refuse_by_taking_offline(node: Node, error: KafkaError) -> None:
    node.replicas.offline(PartitionName("t", 0), error)


def refuse_by_a_failed_log(node: Node, error: KafkaError) -> None:
    node.replicas.find("t", 0).log.failure = Failure(error, False)


def frames(trace: TracebackType | None) -> int:
    count = 0
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


@pytest.mark.parametrize(
    "refuse", [refuse_by_closing, refuse_by_taking_offline, refuse_by_a_failed_log]
)
def test_an_error_that_refuses_every_request_keeps_none_of_them(
    in_a_node: InANode, refuse: Callable[[Node, KafkaError], None]
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        peer = await Peer.connect(world.net, "127.0.0.1", 9092)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = await peer.call(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
        assert not created.topics[0].error_code
        error = NoRoom(ErrorCode.KAFKA_STORAGE_ERROR, "it is full")
        refuse(node, error)
        kept = []
        for _ in range(1_000):
            records = Records(BATCH)
            kept.append(ref(records))
            answer = produce(node, CTX, request(records))
            del records
            assert isinstance(answer, ProduceResponse)
            told = answer.responses[0].partition_responses[0]
            assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert told.error_message == "it is full"
        gc.collect()
        assert not any(each() for each in kept)
        assert frames(error.__traceback__) < 10

    in_a_node(script)
