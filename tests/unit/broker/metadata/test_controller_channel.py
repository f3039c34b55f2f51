"""The way to the active controller: forwarded, retried, and refused where it must be."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scriba.broker.access import AllowAll, Operation, Resource
from scriba.broker.envelope import decode_principal, encode_principal, wrap
from scriba.broker.metadata.channel import Leader
from scriba.broker.node import Node
from scriba.broker.request import ANONYMOUS, Context
from scriba.errors import ErrorCode, KafkaError
from scriba.peers.connection import Connection
from scriba.peers.errors import NetworkError
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimProcess, SimWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from scriba.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    BrokerHeartbeatRequest,
    EnvelopeRequest,
    EnvelopeResponse,
)
from scriba.wire.messages.metadata import MetadataRequest
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from tests.unit.broker.metadata.remote_callers import CONTROLLER, RemoteCaller

LISTENERS = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"


class Noted(AllowAll):
    """Allows everything, and remembers who asked for what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Operation, str]] = []

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        self.asked.append((ctx.principal, ctx.host, operation, name))
        return True


class Caller(RemoteCaller):
    """A broker without a controller of its own."""

    def __init__(self, world: ProcessWorld, sim: SimWorld, **settings: Any) -> None:
        super().__init__(world, **settings)
        self.sim = sim


class Stage:
    """The only controller of a cluster, on a host of its own."""

    def __init__(self, sim: SimWorld) -> None:
        self.sim = sim
        self.access = Noted()
        self.node: Node
        self.process: SimProcess

    async def boot(self) -> None:
        up = asyncio.Event()

        async def serve(world: ProcessWorld) -> None:
            given = {"node.id": "1", "log.dirs": "/data", "listeners": LISTENERS}
            given["advertised.listeners"] = "PLAINTEXT://controller:9092"
            self.node = Node(NodeSettings.parse(given), world, self.access)
            await self.node.start()
            up.set()
            await self.node.wait_stopped()

        self.process = self.sim.host("controller").start(serve)
        await up.wait()


def play(script: Callable[[Caller, Stage], Awaitable[None]], **settings: Any) -> None:
    sim = SimWorld(seed=5)

    async def main() -> None:
        stage = Stage(sim)
        await stage.boot()

        async def caller(world: ProcessWorld) -> None:
            await script(Caller(world, sim, **settings), stage)

        await sim.host("caller").start(caller).task

    sim.run(main())


def topic(name: str, timeout_ms: int = 10_000) -> CreateTopicsRequest:
    asked = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[asked], timeout_ms=timeout_ms)


def by_client(listener: str = "PLAINTEXT") -> Context:
    return Context("User:alice", listener, "her-tool", "10.1.2.3", ApiKey.CREATE_TOPICS, 7, 0)


def heartbeat(broker_epoch: int = 0) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(broker_id=7, broker_epoch=broker_epoch)


async def refused(call: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value.code


def test_an_administrators_request_is_forwarded_in_his_name() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        answer: CreateTopicsResponse = await caller.channel.call(topic("t"), 7, by_client())
        assert [(t.name, t.error_code, t.num_partitions) for t in answer.topics] == [("t", 0, 1)]
        assert "t" in stage.node.image.topics_by_name
        expected = ("User:alice", "10.1.2.3", Operation.CREATE, "kafka-cluster")
        assert expected in stage.access.asked
        assert caller.settled == [True]

    play(script)


def test_an_old_version_is_forwarded_as_it_is() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        answer = await caller.channel.call(topic("t"), 2, by_client())
        assert [(t.name, t.error_code) for t in answer.topics] == [("t", 0)]

    play(script)


def test_what_a_broker_asks_itself_is_forwarded_in_its_own_name() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        await caller.channel.call(topic("t"))
        assert {who for who, *_ in stage.access.asked} == {ANONYMOUS}

    play(script)


def test_a_refused_request_looks_the_same_from_afar() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        await caller.channel.call(topic("t"))
        again = await caller.channel.call(topic("t"), 7, by_client())
        assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        unknown = await refused(caller.channel.call(heartbeat()))
        assert unknown is ErrorCode.BROKER_ID_NOT_REGISTERED
        ids = AllocateProducerIdsRequest(broker_id=1, broker_epoch=-5)
        assert await refused(caller.channel.call(ids)) is ErrorCode.STALE_BROKER_EPOCH

    play(script)


def test_the_quorum_is_described_through_any_broker() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        asked = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        answer = await caller.channel.call(asked, 2, by_client())
        assert answer.topics[0].partitions[0].leader_id == CONTROLLER

    play(script)


def test_a_request_waits_for_a_controller() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        caller.lead(None)
        waiting = asyncio.ensure_future(caller.channel.call(topic("t")))
        await asyncio.sleep(3)
        assert not waiting.done()
        caller.lead(Leader(CONTROLLER, 1, ("controller", 9093)))
        assert (await waiting).topics[0].error_code == 0

    play(script)


def test_a_request_without_a_controller_ends_with_its_time() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        caller.lead(None)
        began = caller.now()
        code = await refused(caller.channel.call(topic("t", timeout_ms=4_000)))
        assert code is ErrorCode.REQUEST_TIMED_OUT
        assert 4_000 <= caller.now() - began < 4_100
        code = await refused(caller.channel.call(heartbeat(), timeout_ms=500))
        assert code is ErrorCode.REQUEST_TIMED_OUT

    play(script)


def test_a_killed_controller_is_asked_again_when_it_is_back() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        await caller.channel.call(topic("before"))
        stage.process.kill()
        waiting = asyncio.ensure_future(caller.channel.call(topic("after")))
        await asyncio.sleep(1)
        assert not waiting.done()
        await stage.boot()
        assert (await waiting).topics[0].error_code == 0

    play(script)


def test_nobody_waits_for_a_leader_that_has_been_replaced() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        # Somebody listens there, and never says a word, as a stopped process does.
        silent = caller.sim.host("silent")

        async def listen(world: ProcessWorld) -> None:
            world.net.listen("127.0.0.1", 9093, lambda stream: None)
            await asyncio.get_running_loop().create_future()

        silent.start(listen)
        caller.lead(Leader(9, 1, ("silent", 9093)))
        waiting = asyncio.ensure_future(caller.channel.call(topic("t", timeout_ms=20_000)))
        await asyncio.sleep(1)
        began = caller.now()
        caller.lead(Leader(CONTROLLER, 2, ("controller", 9093)))
        assert (await waiting).topics[0].error_code == 0
        assert caller.now() - began < 1_000

    play(script)


def test_what_has_been_done_is_not_asked_again_where_a_node_has_lost_sight_of_the_leader() -> None:
    """It is the node alone that has not heard of the leader for a while, who has made the topic."""

    async def script(caller: Caller, stage: Stage) -> None:
        await caller.channel.call(topic("before"))
        caller.sim.network.cut("controller", "caller", one_way=True)
        waiting = asyncio.ensure_future(caller.channel.call(topic("t")))
        while "t" not in stage.node.image.topics_by_name:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        caller.lead(None)
        caller.sim.network.heal()
        caller.lead(Leader(CONTROLLER, 1, ("controller", 9093)))
        assert (await waiting).topics[0].error_code == 0

    play(script)


def test_a_node_that_is_not_the_controller_passes_nothing_on() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        ctx = by_client(listener="CONTROLLER")
        code = await refused(caller.channel.call(topic("t"), 7, ctx))
        assert code is ErrorCode.NOT_CONTROLLER
        assert "t" not in stage.node.image.topics_by_name

    play(script)


def test_a_closed_channel_asks_nobody() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        caller.channel.close()
        code = await refused(caller.channel.call(topic("t", timeout_ms=2_000)))
        assert code is ErrorCode.REQUEST_TIMED_OUT

    play(script)


# ---- envelopes that others send ----


async def send(caller: Caller, envelope: EnvelopeRequest, port: int = 9093) -> EnvelopeResponse:
    limits = SimpleNamespace(client_id="t", request_timeout_ms=5_000, connections_max_idle_ms=-1)
    ports: Any = caller.world
    connection = await Connection.open(ports, "controller", port, limits, 5_000)
    return await connection.request(envelope, EnvelopeResponse, version=0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"request_principal": b"\x00\x09nobody"}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"request_principal": None}, ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        ({"client_host_address": b"abc"}, ErrorCode.INVALID_REQUEST),
        ({"request_data": b"\x00"}, ErrorCode.INVALID_REQUEST),
        ({"request_data": b"\x00\x13\x00\x63" + bytes(20)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"request_data": b"\x00\x13\x00\x07" + bytes(7) + b"\xff"}, ErrorCode.INVALID_REQUEST),
    ],
    ids=["principal", "no principal", "host", "header", "version", "body"],
)
def test_an_envelope_that_cannot_be_read_is_refused(change: dict[str, Any], code: int) -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        envelope = wrap(topic("t"), 7, "User:bob", "10.0.0.1", None)
        for name, value in change.items():
            setattr(envelope, name, value)
        assert (await send(caller, envelope)).error_code == code
        assert (await send(caller, wrap(topic("t"), 7, "User:bob", "::1", None))).error_code == 0

    play(script)


def test_only_what_controllers_decide_may_be_in_an_envelope() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        for request in (MetadataRequest(topics=[]), heartbeat()):
            envelope = wrap(request, request.VERSIONS.high, "User:bob", "10.0.0.1", None)
            assert (await send(caller, envelope)).error_code == ErrorCode.INVALID_REQUEST

    play(script)


def test_clients_listeners_serve_no_envelopes() -> None:
    async def script(caller: Caller, stage: Stage) -> None:
        envelope = wrap(topic("t"), 7, "User:bob", "10.0.0.1", None)
        with pytest.raises(NetworkError):
            await send(caller, envelope, port=9092)
        assert "t" not in stage.node.image.topics_by_name

    play(script)


def test_a_principal_is_encoded_as_kafka_does() -> None:
    data = encode_principal("User:alice")
    # Version 0; compact strings with their length and one; not by a token; no tagged fields.
    assert data == b"\x00\x00" + b"\x05User" + b"\x06alice" + b"\x00" + b"\x00"
    assert decode_principal(data) == "User:alice"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((ErrorCode.NOT_CONTROLLER, ErrorCode.VOTER_NOT_FOUND), ErrorCode.NONE),
        ((ErrorCode.VOTER_NOT_FOUND,), ErrorCode.VOTER_NOT_FOUND),
        ((ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_REQUEST), ErrorCode.INVALID_REQUEST),
    ],
)
def test_removal_that_was_done_by_the_attempt_before_is_done(
    answers: tuple[ErrorCode, ...], expected: ErrorCode
) -> None:
    """A leader that removed itself is gone before its answer is here."""

    async def script(caller: Caller, stage: Stage) -> None:
        left = list(answers)

        async def call(*args: Any) -> Any:
            raise KafkaError(left.pop(0))

        caller.leads = True
        caller.call = call  # type: ignore[attr-defined]
        try:
            told = await caller.channel.call(RemoveRaftVoterRequest(voter_id=1))
            assert isinstance(told, RemoveRaftVoterResponse)
            code = ErrorCode(told.error_code)
        except KafkaError as error:
            code = error.code
        assert code is expected

    play(script)
