"""Transactions inside one node on simulated time: settings, markers that have to wait, and time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from scriba.broker.handlers.groups import txn
from scriba.broker.handlers.groups.txn import add_partitions_to_txn
from scriba.broker.node import Node
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.records.batch import Record, encode_batch
from scriba.runtime.loop import pace
from scriba.storage.directory.names import PartitionName
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.txn.messages import WriteMarkers
from scriba.wire.apis import ApiKey
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from scriba.wire.messages.txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from scriba.wire.schema import Message

TOPIC, TID = "orders", "shop"
InANode = Callable[..., None]
Answer = TypeVar("Answer", bound=Message)


class Producer:
    def __init__(self, peer: Peer, world: ProcessWorld) -> None:
        self.peer = peer
        self.now_ms = world.clock.wall_ms()
        self.id, self.epoch = -1, -1

    async def begin(self, timeout_ms: int = 60_000) -> None:
        await self.peer.call(
            FindCoordinatorRequest(key=TID, key_type=1), 2, FindCoordinatorResponse
        )
        request = InitProducerIdRequest(transactional_id=TID, transaction_timeout_ms=timeout_ms)
        loading = True
        while loading:
            answer = await self.peer.call(request, 4, InitProducerIdResponse)
            loading = answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(0.01)
        assert answer.error_code == 0
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    async def write(self, version: int) -> int:
        records = encode_batch(
            [Record(timestamp=self.now_ms, value=b"v")],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=0,
            transactional=True,
        )
        entry = PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            transactional_id=TID,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[entry])],
        )
        answer = await self.peer.call(request, version, ProduceResponse)
        return answer.responses[0].partition_responses[0].error_code

    async def end(self, commit: bool) -> EndTxnResponse:
        return await self.ask(
            EndTxnRequest(
                transactional_id=TID,
                producer_id=self.id,
                producer_epoch=self.epoch,
                committed=commit,
            ),
            5,
            EndTxnResponse,
        )

    async def state(self) -> str:
        request = DescribeTransactionsRequest(transactional_ids=[TID])
        answer = await self.ask(request, 0, DescribeTransactionsResponse)
        return str(answer.transaction_states[0].transaction_state)

    async def ask(self, request: Message, version: int, answer: type[Answer]) -> Answer:
        return await self.peer.call(request, version, answer)


async def producer(world: ProcessWorld) -> Producer:
    peer = await Peer.connect(world.net, "127.0.0.1", 9092)
    topic = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    answer = await peer.call(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)
    assert answer.topics[0].error_code == 0
    return Producer(peer, world)


@pytest.mark.parametrize("enabled", [True, False])
def test_writes_are_verified_unless_that_is_switched_off(in_a_node: InANode, enabled: bool) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await producer(world)
        await client.begin()
        code = await client.write(9)
        assert code == (ErrorCode.INVALID_TXN_STATE if enabled else 0)

    in_a_node(play, transaction_partition_verification_enable=str(enabled).lower())


def test_a_marker_waits_until_its_partition_is_there_again(in_a_node: InANode) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await producer(world)
        await client.begin()
        assert await client.write(12) == 0
        name = PartitionName(TOPIC, 0)
        partition = node.replicas.get(*name)
        node.replicas.offline(name, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "away"))
        answer = await client.end(commit=True)
        assert (answer.error_code, answer.producer_epoch) == (0, client.epoch + 1)
        await asyncio.sleep(5)
        assert await client.state() == "PrepareCommit"
        assert (await client.end(commit=True)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        client.epoch += 1
        assert await client.write(12) in (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
        assert partition is not None
        topic = node.image.topics_by_name[TOPIC]
        await node.replicas._place([(TOPIC, topic.id, [(0, topic.partitions[0])])])
        await asyncio.sleep(5)
        assert await client.state() == "CompleteCommit"

    in_a_node(play)


def test_many_transactions_that_end_at_once_all_end(in_a_node: InANode) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await producer(world)
        await client.begin()
        partition = node.replicas.get(TOPIC, 0)
        index = node.txn_coordinators.partition_of(TID)
        shard = node.replicas.get(node.txn_coordinators.topic, index)
        assert partition is not None
        assert shard is not None
        for number in range(100):
            send = WriteMarkers(index, f"t{number}", 5_000 + number, 1, True, ((TOPIC, 0),), 2)
            node.txn_markers.carry_out(send, shard.leader_epoch)
        assert partition.log.end_offset < 100
        await asyncio.sleep(0.1)
        assert partition.log.end_offset == 100
        assert not node.txn_markers._ending

    in_a_node(play)


def test_a_transaction_is_aborted_when_its_time_is_up(in_a_node: InANode) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await producer(world)
        await client.begin(timeout_ms=5_000)
        assert await client.write(12) == 0
        await asyncio.sleep(4.9)
        assert await client.state() == "Ongoing"
        await asyncio.sleep(0.2)
        assert await client.state() == "CompleteAbort"
        noted = [event for event in node.events.since() if event.about == TID]
        assert [event.kind for event in noted] == [EventKind.TRANSACTION_TIMED_OUT]

    in_a_node(play)


def test_transactions_are_listed_by_pattern(in_a_node: InANode) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await producer(world)
        await client.begin()

        async def listed(pattern: str) -> list[str]:
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
            answer = await client.ask(request, 2, ListTransactionsResponse)
            assert answer.error_code == 0
            return [state.transactional_id for state in answer.transaction_states]

        assert await listed("sh.p") == [TID]
        assert await listed("sh") == []
        assert await listed("") == [TID]
        bad = ListTransactionsRequest(transactional_id_pattern="(")
        answer = await client.ask(bad, 2, ListTransactionsResponse)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    in_a_node(play)


def test_partitions_for_several_transactions_are_asked_for_by_brokers_alone(
    in_a_node: InANode,
) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        request = AddPartitionsToTxnRequest(
            transactions=[AddPartitionsToTxnTransaction(transactional_id=TID)]
        )
        for port, code in ((9092, ErrorCode.NONE), (9094, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)):
            peer = await Peer.connect(world.net, "127.0.0.1", port)
            answer = await peer.call(request, 5, AddPartitionsToTxnResponse)
            assert answer.error_code == code

    in_a_node(
        play,
        listeners="PLAINTEXT://127.0.0.1:9092,CLIENTS://127.0.0.1:9094",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
        inter_broker_listener_name="PLAINTEXT",
    )


@pytest.mark.parametrize("missing", [False, True])
def test_many_partitions_are_judged_and_told_of_in_slices(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    """With the answer that a few get, to each as often as it is named."""
    monkeypatch.setattr(pace, "SLICE_MS", 0)
    turns = 0
    next_turn = pace.next_turn

    async def count() -> None:
        nonlocal turns
        turns += 1
        await next_turn()

    async def play(node: Node, world: ProcessWorld) -> None:
        client = await producer(world)
        await client.begin()
        ctx = Context(ANONYMOUS, "", None, "", ApiKey.ADD_PARTITIONS_TO_TXN, 3, 0)
        topics = [
            AddPartitionsToTxnTopic(name=name, partitions=[each % 2 for each in range(100)])
            for name in (TOPIC, "nowhere" if missing else TOPIC)
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TID,
            v3_and_below_producer_id=client.id,
            v3_and_below_producer_epoch=client.epoch,
            v3_and_below_topics=topics,
        )

        async def told() -> AddPartitionsToTxnResponse:
            answer = add_partitions_to_txn(node, ctx, request)
            done = await answer.awaitable if isinstance(answer, Deferred) else answer
            assert isinstance(done, AddPartitionsToTxnResponse)
            return done

        few = await told()
        monkeypatch.setattr(txn, "AT_ONCE", 10)
        monkeypatch.setattr(pace, "next_turn", count)
        many = await told()
        assert many.encode(3) == few.encode(3)
        answers = [
            each
            for topic in many.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]
        assert len(answers) == (4 if missing else 200)
        assert turns >= 200 // pace.BETWEEN_LOOKS

    in_a_node(play)


def test_a_groups_offsets_join_a_transaction_only_where_their_topic_is_known(
    in_a_node: InANode,
) -> None:
    """A partition that the coordinator does not know would get no marker."""

    async def play(node: Node, world: ProcessWorld) -> None:
        client = await producer(world)
        await client.begin()
        request = AddOffsetsToTxnRequest(
            transactional_id=TID, producer_id=client.id, producer_epoch=client.epoch, group_id="g"
        )
        answer = await client.ask(request, 3, AddOffsetsToTxnResponse)
        assert answer.error_code == ErrorCode.NONE
        topic = node.image.topics_by_name[node.group_coordinators.topic]
        describe = DescribeTransactionsRequest(transactional_ids=[TID])
        told = await client.ask(describe, 0, DescribeTransactionsResponse)
        ((name, indexes),) = [
            (each.topic, each.partitions) for each in told.transaction_states[0].topics
        ]
        assert name == topic.name
        assert topic.partitions.keys() >= set(indexes)

    in_a_node(play)
