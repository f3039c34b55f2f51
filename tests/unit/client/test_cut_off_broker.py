"""A broker that is cut off from the others answers as if nothing had happened; clients ask others.

What it says is old, and never an error by itself: it names itself as leader and coordinator. (Whole
clusters with such a cut are in tests/sim/failover/test_cut_off_leader.py.)
"""

import asyncio
import copy
from typing import Any

import pytest

from scriba.client.admin.admin import Admin
from scriba.client.admin.model import NewTopic
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.admin import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.messages.brokers import UnregisterBrokerResponse
from scriba.wire.messages.fetch import FetchRequest, FetchResponse
from scriba.wire.messages.metadata import (
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from scriba.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.unit.client.clients import T0, consumer, fill, producer, read, values
from tests.unit.client.fake_cluster import PORT, SILENCE, FakeCluster
from tests.unit.client.fake_coordinator import FakeTransactions


class CutOffCluster(FakeCluster):
    """Three brokers; the first can be cut off from the others."""

    def __init__(self) -> None:
        super().__init__(brokers=3)
        self.old: dict[str, Any] | None = None
        """What the first knew when it was cut off."""
        self.refusal = ErrorCode.REQUEST_TIMED_OUT
        """What it says to producers."""

    @property
    def bootstrap(self) -> str:
        return f"b1:{PORT}"

    def cut_off(self, leader: int = 2) -> None:
        self.old = copy.deepcopy(self.topics)
        for topic in self.topics.values():
            for log in topic.logs:
                log.elect(leader)

    async def handle(self, broker: int, key: int, version: int, request: Any) -> object:
        if isinstance(request, CreateTopicsRequest):
            return self._create(broker, request)
        if self.old is None or broker != 1:
            return await super().handle(broker, key, version, request)
        match request:
            case MetadataRequest():
                return self._stale_metadata(broker, request, version)
            case ProduceRequest():
                self.seen.append((broker, request, version))
                return self._refused(request)
            case FetchRequest():
                self.seen.append((broker, request, version))
                await asyncio.sleep(request.max_wait_ms / 1000)
                return FetchResponse(session_id=request.session_id)
        return await super().handle(broker, key, version, request)

    def _stale_metadata(
        self, broker: int, request: MetadataRequest, version: int
    ) -> MetadataResponse:
        self.seen.append((broker, request, version))
        assert self.old is not None
        now, self.topics = self.topics, self.old
        answer = self._metadata(request)
        self.topics = now
        return answer

    def _refused(self, request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        PartitionProduceResponse(index=p.index, error_code=self.refusal)
                        for p in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _create(self, broker: int, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """A broker without a controller says that it has none."""
        code = ErrorCode.NONE if broker != 1 else ErrorCode.NOT_CONTROLLER
        topics = [CreatableTopicResult(name=t.name, error_code=code) for t in request.topics]
        return CreateTopicsResponse(topics=topics)

    def asked(self, kind: type[Any]) -> set[int]:
        """Brokers that got such requests."""
        return {broker for broker, message, _ in self.seen if isinstance(message, kind)}


@pytest.mark.parametrize(
    "refusal",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_producer_that_gets_nowhere_asks_another_broker_who_leads(refusal: ErrorCode) -> None:
    cluster = CutOffCluster()
    (log,) = cluster.topic("t")
    cluster.refusal = refusal

    async def work(world: ProcessWorld) -> None:
        async with producer(cluster, world, delivery_timeout_ms=31_000) as p:
            await p.send("t", b"before")
            assert cluster.asked(MetadataRequest) == {1}
            cluster.cut_off()
            await p.send("t", b"after")

    cluster.run(work)
    assert values(log) == [b"before", b"after"]


def test_consumer_learns_of_the_new_leader_when_its_picture_has_grown_old() -> None:
    cluster = CutOffCluster()
    (log,) = cluster.topic("t")
    fill(log, 1)

    async def work(world: ProcessWorld) -> None:
        async with consumer(cluster, world, metadata_max_age_ms=10_000) as c:
            c.assign([T0])
            assert [record.offset for record in await read(c, 1)] == [0]
            cluster.cut_off()
            fill(log, 1, start=1)
            assert [record.offset for record in await read(c, 1)] == [1]

    cluster.run(work)


def test_older_word_of_the_broker_that_is_cut_off_does_not_undo_a_newer_one() -> None:
    cluster = CutOffCluster()
    (log,) = cluster.topic("t")

    async def work(world: ProcessWorld) -> None:
        async with producer(cluster, world, metadata_max_age_ms=1_000) as p:
            await p.send("t", b"0")
            cluster.cut_off()
            await p.send("t", b"1")
            cluster.seen.clear()
            for n in range(2, 22):  # the picture grows old several times, and all are asked
                await asyncio.sleep(0.5)
                await p.send("t", b"%d" % n)

    cluster.run(work)
    assert cluster.asked(MetadataRequest) == {1, 2, 3}
    assert cluster.asked(ProduceRequest) == {2}
    assert len(values(log)) == 22


def test_administrator_goes_to_another_broker_when_one_has_no_controller() -> None:
    cluster = CutOffCluster()

    async def work(world: ProcessWorld) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 10_000}
        async with Admin(settings, _ports=world) as admin:
            await admin.create_topics([NewTopic("t", 1, 1)])

    cluster.run(work)


def test_request_that_any_broker_may_answer_is_tried_again_at_another() -> None:
    cluster = FakeCluster(brokers=3)
    asked: list[int] = []

    def refuse(broker: int, request: Any) -> object:
        asked.append(broker)
        return UnregisterBrokerResponse(error_code=ErrorCode.NOT_CONTROLLER)

    def serve(broker: int, request: Any) -> object:
        asked.append(broker)
        return UnregisterBrokerResponse()

    cluster.next(ApiKey.UNREGISTER_BROKER, refuse, refuse, serve)

    async def work(world: ProcessWorld) -> None:
        async with Admin({"bootstrap.servers": cluster.bootstrap}, _ports=world) as admin:
            await admin.unregister_broker(4)

    cluster.run(work)
    assert sorted(asked) == [1, 2, 3]


def test_broker_that_is_asked_for_the_picture_and_stays_silent_is_not_waited_for() -> None:
    cluster = FakeCluster(brokers=3)
    (log,) = cluster.topic("t")

    async def work(world: ProcessWorld) -> None:
        async with producer(cluster, world, max_block_ms=20_000) as p:
            await p.send("t", b"0")
            cluster.topic("u")
            cluster.next(ApiKey.METADATA, lambda broker, request: SILENCE)
            began = world.clock.mono_ms()
            await p.send("u", b"1")
            assert world.clock.mono_ms() - began < 10_000

    cluster.run(work)
    assert values(log) == [b"0"]


def test_connection_that_ends_since_its_broker_left_is_no_error_of_the_application() -> None:
    cluster = CutOffCluster()
    (log,) = cluster.topic("t")
    fill(log, 1)

    async def work(world: ProcessWorld) -> None:
        async with consumer(cluster, world, metadata_max_age_ms=900) as c:
            c.assign([T0])
            await read(c, 1)
            cluster.cut_off()
            cluster.brokers.remove(1)  # it still answers, some time after it was asked
            fill(log, 1, start=1)
            assert [record.offset for record in await read(c, 1)] == [1]

    cluster.run(work)


class Unlisted(FakeCluster):
    """The third broker tells of the other two, which after some time tell of nobody."""

    mute = False

    @property
    def bootstrap(self) -> str:
        return f"b3:{PORT}"

    async def handle(self, broker: int, key: int, version: int, request: Any) -> object:
        answer = await super().handle(broker, key, version, request)
        if isinstance(answer, MetadataResponse):
            if self.mute and broker != 3:
                return SILENCE
            del answer.brokers[2]
        return answer


def test_brokers_that_have_not_told_of_the_cluster_for_long_are_forgotten() -> None:
    cluster = Unlisted(brokers=3)
    (log,) = cluster.topic("t")

    async def work(world: ProcessWorld) -> None:
        settings = {"metadata_recovery_rebootstrap_trigger_ms": 60_000, "max_block_ms": 200_000}
        async with producer(cluster, world, **settings) as p:
            await p.send("t", b"0")
            cluster.stop(3)
            cluster.mute = True
            cluster.topic("u")
            cluster.start(3)
            await p.send("u", b"1")

    cluster.run(work)
    assert values(log) == [b"0"]


class Usurper(FakeTransactions):
    """The first broker names itself as coordinator, which the second is."""

    @property
    def bootstrap(self) -> str:
        return f"b1:{PORT}"

    async def handle(self, broker: int, key: int, version: int, request: Any) -> object:
        answer = await super().handle(broker, key, version, request)
        if broker == 1 and isinstance(answer, FindCoordinatorResponse):
            for said in answer.coordinators:
                said.node_id, said.host = 1, "b1"
        return answer


def test_coordinator_that_moved_is_looked_for_at_another_broker() -> None:
    cluster = Usurper(brokers=2)
    cluster.topic("t")
    cluster.coordinator = 2

    async def work(world: ProcessWorld) -> None:
        async with producer(cluster, world, transactional_id="id", max_block_ms=10_000) as p:
            await p.begin_transaction()
            await p.send("t", b"0")
            await p.commit_transaction()

    cluster.run(work)
    assert cluster.committed == [b"0"]
