"""Requests of brokers are served where brokers talk, and refused where only clients do."""

from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import fetch, txn
from scriba.wire.schema import Message
from tests.unit.broker.every_request import error_codes

AMONG_BROKERS, OF_CLIENTS = 9092, 9095
LISTENERS = {
    "listeners": f"PLAINTEXT://127.0.0.1:{AMONG_BROKERS},CLIENTS://127.0.0.1:{OF_CLIENTS}",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter_broker_listener_name": "PLAINTEXT",
}

OF_A_BROKER: list[tuple[Message, int, type[Message]]] = [
    (
        # It would move high watermarks, and be shown what no consumer may see yet.
        fetch.FetchRequest(
            replica_state=fetch.ReplicaState(replica_id=3, replica_epoch=1),
            topics=[
                fetch.FetchTopic(
                    topic_id=b"t" * 16,
                    partitions=[
                        fetch.FetchPartition(
                            partition=0, current_leader_epoch=0, partition_max_bytes=1 << 20
                        )
                    ],
                )
            ],
        ),
        17,
        fetch.FetchResponse,
    ),
    (
        fetch.ListOffsetsRequest(
            replica_id=3,
            topics=[
                fetch.ListOffsetsTopic(
                    name="t",
                    partitions=[fetch.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                )
            ],
        ),
        6,
        fetch.ListOffsetsResponse,
    ),
    (
        fetch.OffsetForLeaderEpochRequest(
            replica_id=3,
            topics=[
                fetch.OffsetForLeaderTopic(
                    topic="t", partitions=[fetch.OffsetForLeaderPartition(partition=0)]
                )
            ],
        ),
        4,
        fetch.OffsetForLeaderEpochResponse,
    ),
    (
        txn.AddPartitionsToTxnRequest(
            transactions=[txn.AddPartitionsToTxnTransaction(transactional_id="x")]
        ),
        5,
        txn.AddPartitionsToTxnResponse,
    ),
]


@pytest.mark.parametrize(
    ("request_", "version", "response"), OF_A_BROKER, ids=[type(r[0]).__name__ for r in OF_A_BROKER]
)
def test_a_listener_for_clients_lets_nobody_pass_for_a_broker(
    in_a_node: Any, request_: Message, version: int, response: type[Message]
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        client = await Peer.connect(world.net, "127.0.0.1", OF_CLIENTS)
        assert refused in error_codes(await client.send(request_, version, response))
        broker = await Peer.connect(world.net, "127.0.0.1", AMONG_BROKERS)
        assert refused not in error_codes(await broker.send(request_, version, response))

    in_a_node(script, **LISTENERS)
