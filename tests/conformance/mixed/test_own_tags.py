"""Apache Kafka passes over the tagged fields that are ours."""

import struct
from pathlib import Path

from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tools.kafka.brokers import QuickKafka, running
from tools.kafka.rawkafka import Connection, create_topic


def test_a_controller_of_kafka_takes_a_request_for_another_order(tmp_path: Path) -> None:
    kafka = QuickKafka(tmp_path / "kafka")
    asked = AlterPartitionReassignmentsRequest(
        order_only=True,
        topics=[
            ReassignableTopic(
                name="t",
                partitions=[ReassignablePartition(partition_index=0, replicas=[1])],
            )
        ],
    )
    with running(kafka), Connection(kafka.port) as connection:
        create_topic(connection, "t")
        header = struct.pack(">hhihb", asked.KEY, 1, 7, -1, 0)  # no client id, no tags
        body = header + asked.encode(1)
        connection.send(struct.pack(">i", len(body)) + body)
        received = connection.receive()
    assert struct.unpack_from(">ib", received) == (7, 0)
    answer = AlterPartitionReassignmentsResponse.decode(received[5:], 1)
    assert answer.error_code == 0
    assert [(told.name, told.partitions[0].error_code) for told in answer.responses] == [("t", 0)]
