"""Transactions over two brokers: markers for partitions that another one leads, and coordinators
that live there. The other broker is a whole node; this one is only what its coordinators ask of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from scriba.broker.channels import BrokerChannels
from scriba.broker.coordinators.marker_routes import (
    Ending,
    MarkerQueue,
    Retry,
    Route,
    codes_of,
    ready,
    request_of,
    route,
)
from scriba.broker.coordinators.markers import TransactionMarkers
from scriba.broker.coordinators.verification import TransactionVerifier
from scriba.broker.node import Node
from scriba.controller.image import BrokerImage, ClusterImage, Listener
from scriba.controller.parts import PartitionImage, TopicImage
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.runtime.loop.tasks import Tasks
from scriba.settings import NodeSettings
from scriba.testing.sim.node import SimNode
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.txn.messages import MarkersNoted, MarkersWritten, TopicPartition, WriteMarkers
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from scriba.wire.messages.metadata import FindCoordinatorRequest
from scriba.wire.messages.txn import (
    InitProducerIdRequest,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from scriba.wire.schema import Message

ME, OTHER, NOBODY = 1, 2, -1
TOPIC, STATE, EPOCH = "orders", "__transaction_state", 3
Script = Callable[["Rig"], Awaitable[None]]


def led_by(broker: int, epoch: int = 1) -> PartitionImage:
    return PartitionImage((ME, OTHER), (bytes(16),) * 2, (ME, OTHER), broker, epoch, 0)


class Coordinators:
    """The transaction coordinators of this broker, as those see them who write markers."""

    topic = STATE
    on_send: Any = None

    def __init__(self) -> None:
        self.complete: list[str] = []
        self.index = 0

    def begin(self, index: int, request: Message, ctx: Any) -> Message:
        assert isinstance(request, MarkersWritten)
        self.complete.append(request.transactional_id)
        return MarkersNoted()

    def partition_of(self, key: str) -> int:
        return self.index


class Rig:
    def __init__(self, world: ProcessWorld, other: SimNode) -> None:
        self.sim_node = other
        self.image = ClusterImage()
        endpoint = Listener("PLAINTEXT", "two", 9092, 0)
        self.image.brokers[OTHER] = BrokerImage(
            OTHER, 7, bytes(16), (endpoint,), {}, None, False, False, (bytes(16),), (), 0
        )
        partitions = {index: led_by(OTHER) for index in range(100)}
        self.image.topics_by_name[TOPIC] = TopicImage(TOPIC, bytes(16), partitions)
        self.image.topics_by_name[STATE] = TopicImage(STATE, bytes(16), {0: led_by(OTHER)})
        self.coordinators = Coordinators()
        self.leads = SimpleNamespace(leader=object(), leader_epoch=EPOCH)
        self.notes: list[EventKind] = []
        self.asked: list[Message] = []
        self.node: Any = SimpleNamespace(
            id=ME,
            world=world,
            settings=NodeSettings(),
            image=self.image,
            tasks=Tasks(),
            txn_coordinators=self.coordinators,
            group_coordinators=SimpleNamespace(topic="__consumer_offsets"),
            replicas=SimpleNamespace(get=lambda topic, index: self.leads),
            note=lambda kind, about, text, failure=None: self.notes.append(kind),
        )
        self.channels = self.node.channels = BrokerChannels(self.node)
        self._call = self.channels.call
        self.channels.call = self.count  # type: ignore[method-assign]
        self.markers = self.node.txn_markers = TransactionMarkers(self.node)
        self.verifier = TransactionVerifier(self.node)

    @property
    def other(self) -> Node:
        assert self.sim_node.node is not None
        return self.sim_node.node

    async def count(self, broker_id: int, request: Message, *rest: Any, **more: Any) -> Any:
        self.asked.append(request)
        return await self._call(broker_id, request, *rest, **more)

    def set_leader(self, index: int, broker: int, epoch: int) -> None:
        self.image.topics_by_name[TOPIC].partitions[index] = led_by(broker, epoch)
        self.markers.metadata_changed()

    def end(self, name: str, indexes: Iterable[int], producer_id: int = 5_000) -> None:
        partitions = tuple((TOPIC, index) for index in indexes)
        send = WriteMarkers(0, name, producer_id, 1, True, partitions, 2)
        self.markers.carry_out(send, EPOCH)

    def written(self, index: int) -> int:
        """Markers in a partition of the other broker."""
        partition = self.other.replicas.get(TOPIC, index)
        assert partition is not None
        return partition.high_watermark.value

    async def until(self, condition: Callable[[], bool], within_s: float = 60) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def play(script: Script) -> None:
    sim = SimWorld(seed=5)
    given = {
        "node.id": str(OTHER),
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "advertised.listeners": "PLAINTEXT://two:9092",
        "transaction.state.log.num.partitions": "1",
    }

    async def main() -> None:
        other = SimNode(sim.host("two"), lambda: NodeSettings.parse(given), pytest.fail)
        await other.start()

        async def caller(world: ProcessWorld) -> None:
            rig = Rig(world, other)
            topic = CreatableTopic(name=TOPIC, num_partitions=4, replication_factor=1)
            await rig._call(OTHER, CreateTopicsRequest(topics=[topic]))
            await script(rig)

        await sim.host("one").start(caller).task

    sim.run(main())


# ---- markers ----


def test_a_marker_is_written_by_the_broker_that_leads_the_partition() -> None:
    async def script(rig: Rig) -> None:
        rig.end("t", [0, 1])
        await rig.until(lambda: rig.coordinators.complete == ["t"])
        assert [rig.written(index) for index in range(3)] == [1, 1, 0]
        assert len(rig.asked) == 1

    play(script)


def test_transactions_that_end_together_share_a_request() -> None:
    async def script(rig: Rig) -> None:
        for number in range(100):
            rig.end(f"t{number}", [number % 4], producer_id=number)
        await rig.until(lambda: len(rig.coordinators.complete) == 100)
        assert sum(rig.written(index) for index in range(4)) == 100
        assert len(rig.asked) <= 3

    play(script)


def test_a_partition_without_a_leader_holds_up_no_other_and_is_told_by_its_next_leader() -> None:
    async def script(rig: Rig) -> None:
        rig.set_leader(1, NOBODY, 2)
        rig.end("t", [0, 1])
        await rig.until(lambda: rig.written(0) == 1)
        await asyncio.sleep(5.5)
        assert rig.coordinators.complete == []
        assert [rig.written(0), rig.written(1)] == [1, 0]
        rig.set_leader(1, OTHER, 3)
        # Not only when its time has come: pauses are two seconds by now.
        await rig.until(lambda: rig.coordinators.complete == ["t"], within_s=0.5)
        assert [rig.written(0), rig.written(1)] == [1, 1]

    play(script)


def test_a_broker_that_is_away_is_asked_until_it_is_back() -> None:
    async def script(rig: Rig) -> None:
        await rig.sim_node.stop()
        rig.end("t", [0])
        await asyncio.sleep(5)
        assert rig.coordinators.complete == []
        assert 2 <= len(rig.asked) <= 30
        await rig.sim_node.start()
        await rig.until(lambda: rig.coordinators.complete == ["t"])
        assert EventKind.MARKER_REFUSED not in rig.notes

    play(script)


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    async def script(rig: Rig) -> None:
        rig.set_leader(1, NOBODY, 2)
        rig.end("t", [0, 1])
        await rig.until(lambda: rig.written(0) == 1)
        del rig.image.topics_by_name[TOPIC].partitions[1]
        rig.markers.metadata_changed()
        await rig.until(lambda: rig.coordinators.complete == ["t"], within_s=0.5)

    play(script)


def test_a_coordinator_that_has_lost_its_partition_sends_no_more() -> None:
    async def script(rig: Rig) -> None:
        rig.set_leader(1, NOBODY, 2)
        rig.end("t", [1])
        rig.leads = SimpleNamespace(leader=None, leader_epoch=EPOCH + 1)
        rig.set_leader(1, OTHER, 3)
        await asyncio.sleep(5)
        assert rig.asked == []
        assert not rig.markers._ending

    play(script)


def test_a_marker_that_was_refused_for_good_is_told_of_and_tried_again() -> None:
    async def script(rig: Rig) -> None:
        rig.end("t", [50])  # which the other broker has not heard of
        await asyncio.sleep(1)
        assert rig.coordinators.complete == []
        assert len(rig.asked) > 2
        rig.end("nobody", [0], producer_id=-1)
        await asyncio.sleep(1)
        assert EventKind.MARKER_REFUSED in rig.notes

    play(script)


# ---- plans ----


def ending(name: str, producer_id: int, indexes: Iterable[int] = (0,)) -> Ending:
    partitions = tuple((TOPIC, index) for index in indexes)
    return Ending(WriteMarkers(0, name, producer_id, 4, False, partitions, 2), EPOCH)


def test_a_request_has_a_producer_once_and_so_many_markers_at_most() -> None:
    queue = MarkerQueue()
    first, again, other = ending("a", 1, range(3)), ending("a", 1), ending("b", 2, range(3))
    for each in (first, again, other):
        for where in each.send.partitions:
            queue.add(each, where)
    taken = queue.take(5)
    assert taken == [(first, (TOPIC, i)) for i in range(3)] + [(other, (TOPIC, i)) for i in (0, 1)]
    assert queue.take(5) == [(again, (TOPIC, 0)), (other, (TOPIC, 2))]
    assert queue.take(5) == []


def test_a_request_says_all_that_a_marker_needs() -> None:
    one = ending("a", 1, (3, 1))
    batch = {one: {where: Route(OTHER, 1) for where in one.send.partitions}}
    (marker,) = request_of(batch).markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (1, 4, False)
    assert (marker.coordinator_epoch, marker.transaction_version) == (EPOCH, 2)
    assert [(t.name, t.partition_indexes) for t in marker.topics] == [(TOPIC, [1, 3])]


def test_a_marker_that_the_answer_passes_over_is_not_written() -> None:
    one = ending("a", 1, (0, 1))
    batch = {one: {where: Route(OTHER, 1) for where in one.send.partitions}}
    told = WritableTxnMarkerPartitionResult(partition_index=0)
    topic = WritableTxnMarkerTopicResult(name=TOPIC, partitions=[told])
    answer = WriteTxnMarkersResponse(
        markers=[WritableTxnMarkerResult(producer_id=1, topics=[topic])]
    )
    codes = {where[1]: code for _, where, code in codes_of(batch, answer)}
    assert codes == {0: ErrorCode.NONE, 1: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_what_is_due_or_has_moved_is_tried_again() -> None:
    image = ClusterImage()
    partitions = {index: led_by(OTHER) for index in range(3)}
    image.topics_by_name[TOPIC] = TopicImage(TOPIC, bytes(16), partitions)
    one = ending("a", 1, range(4))
    wheres: list[TopicPartition] = [(TOPIC, index) for index in range(4)]
    retries = [Retry(one, where, 100, route(image, where)) for where in wheres]
    due = Retry(one, (TOPIC, 0), 50, route(image, (TOPIC, 0)))
    partitions[1] = led_by(ME, 2)
    del partitions[2]
    now, later = ready([*retries, due], image, 50)
    assert {where[1] for _, where, *_ in now} == {0, 1, 2}
    assert [where[1] for _, where, *_ in later] == [0, 3]


# ---- verification ----


async def producer(rig: Rig, tid: str) -> tuple[int, int]:
    """A producer whose coordinator is the other broker."""
    while True:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[tid])
        await rig._call(OTHER, find)
        init = InitProducerIdRequest(transactional_id=tid, transaction_timeout_ms=60_000)
        answer = await rig._call(OTHER, init)
        if answer.error_code == 0:
            return answer.producer_id, answer.producer_epoch
        await asyncio.sleep(0.01)


def test_the_coordinator_is_asked_where_it_is() -> None:
    async def script(rig: Rig) -> None:
        who = await producer(rig, "t")
        where = TOPIC, 0
        codes = await rig.verifier.verify("t", *who, [where], add=False)
        assert codes == {where: ErrorCode.TRANSACTION_ABORTABLE}
        assert await rig.verifier.verify("t", *who, [where], add=True) == {where: ErrorCode.NONE}
        assert await rig.verifier.verify("t", *who, [where], add=False) == {where: ErrorCode.NONE}
        fenced = await rig.verifier.verify("t", who[0], who[1] - 1, [where], add=False)
        assert fenced == {where: ErrorCode.INVALID_PRODUCER_EPOCH}

    play(script)


def test_questions_that_come_together_share_a_request() -> None:
    async def script(rig: Rig) -> None:
        names = [f"t{number}" for number in range(30)]
        who = {name: await producer(rig, name) for name in names}
        answers = await asyncio.gather(
            *(rig.verifier.verify(name, *who[name], [(TOPIC, 0)], add=True) for name in names),
            rig.verifier.verify(names[0], *who[names[0]], [(TOPIC, 1)], add=True),
        )
        assert {code for codes in answers for code in codes.values()} == {ErrorCode.NONE}
        assert len(rig.asked) == 2

    play(script)


def test_a_coordinator_that_cannot_be_reached_is_away() -> None:
    async def script(rig: Rig) -> None:
        who = await producer(rig, "t")
        where = TOPIC, 0
        await rig.sim_node.stop()
        codes = await rig.verifier.verify("t", *who, [where], add=True)
        assert codes == {where: ErrorCode.NETWORK_EXCEPTION}
        rig.image.topics_by_name[STATE].partitions[0] = led_by(NOBODY, 2)
        codes = await rig.verifier.verify("t", *who, [where], add=True)
        assert codes == {where: ErrorCode.COORDINATOR_NOT_AVAILABLE}

    play(script)
