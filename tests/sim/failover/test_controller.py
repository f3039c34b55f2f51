"""Whole nodes and their active controller: it moves, dies, is cut off; what others see of that.

Every answer to an administrator is held against all nodes at the very moment it comes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import pytest

from scriba.broker.metadata.quorum.batches import Batch
from scriba.broker.metrics.exposition import render
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.storage.results import NoRoom
from scriba.testing.sim.cluster import CLIENT_PORT, SimCluster
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from scriba.wire.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from scriba.wire.messages.txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.unit.broker.scraping import parsed

TOPIC_CONFIG: Final = 2
METRIC: Final = "kafka_controller_kafkacontroller_"
LONGEST_HOLD_S: Final = 5
SETTINGS: Final = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}

QUORUM: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata",
            partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
        )
    ]
)


class Shape(NamedTuple):
    """Nodes that vote, which are brokers as well unless they are dedicated, and further brokers."""

    controllers: int
    brokers: int
    dedicated: bool = False


class Scene:
    """A cluster, and a client that asks it node by node."""

    def __init__(self, cluster: SimCluster, world: ProcessWorld) -> None:
        self.cluster = cluster
        self.world = world
        self.sim = cluster.sim

    def node(self, node_id: int) -> Node:
        node = self.cluster.nodes[node_id].node
        assert node is not None
        return node

    def alive(self) -> list[Node]:
        return [node for _, node in self.cluster.running()]

    def active(self) -> int:
        """The node that is the active controller, for all that the others know."""
        ids = [node.id for node in self.alive() if node.metadata.active is not None]
        epoch = {at: self.node(at).metadata.quorum.epoch for at in ids}
        return max(ids, key=lambda at: epoch[at])

    async def until(self, true: Callable[[], bool], within_s: float) -> float:
        """Waits for it, and returns how long that took."""
        began = self.sim.loop.time()
        for _ in range(int(within_s * 100)):
            if true():
                return self.sim.loop.time() - began
            await asyncio.sleep(0.01)
        raise AssertionError(f"not so after {within_s} s")

    @property
    def brokers(self) -> list[int]:
        """Those that clients may ask, and that must know what they are told of."""
        dedicated = len(self.cluster.brokers) < len(self.cluster.ids)
        return [at for at in self.cluster.ids if not dedicated or at not in self.cluster.voters]

    def unfenced(self) -> bool:
        brokers = self.brokers
        return all(
            at in node.image.brokers and not node.image.brokers[at].fenced
            for node in self.alive()
            for at in brokers
        )

    async def ask(self, node_id: int) -> Peer:
        return await Peer.connect(self.world.net, self.cluster.name(node_id), CLIENT_PORT)

    async def create(self, through: int, name: str, timeout_ms: int = 10_000) -> ErrorCode:
        topic = CreatableTopic(name=name, num_partitions=3, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        peer = await self.ask(through)
        answer = await peer.send(request, 7, CreateTopicsResponse)
        return ErrorCode(answer.topics[0].error_code)

    def known(self, name: str) -> list[int]:
        brokers = self.brokers
        alive = (node for node in self.alive() if node.id in brokers)
        return [node.id for node in alive if name in node.image.topics_by_name]


def play(script: Callable[[Scene], Awaitable[None]], shape: Shape, seed: int = 1) -> None:
    sim = SimWorld(seed)
    complaints: list[str] = []
    cluster = SimCluster(
        sim, shape.controllers, shape.brokers, SETTINGS, complaints.append, shape.dedicated
    )

    async def main() -> None:
        await cluster.start()

        async def client(world: ProcessWorld) -> None:
            scene = Scene(cluster, world)
            await scene.until(scene.unfenced, 10)
            await script(scene)

        await sim.host("client").start(client).task

    sim.run(main())
    assert not complaints


shapes = pytest.mark.parametrize(
    "shape",
    [Shape(1, 2), Shape(3, 0), Shape(3, 2), Shape(3, 2, dedicated=True)],
    ids=["one controller", "three of both roles", "three and two brokers", "three dedicated"],
)


@shapes
def test_what_was_changed_through_any_broker_is_known_on_all_when_the_answer_comes(
    shape: Shape,
) -> None:
    async def script(scene: Scene) -> None:
        everybody = scene.brokers
        for through in everybody:
            name = f"through-{through}"
            assert await scene.create(through, name) is ErrorCode.NONE
            assert scene.known(name) == everybody

            peer = await scene.ask(through)
            change = IncrementalAlterConfigsRequestAlterableConfig(
                name="retention.ms", config_operation=0, value="1234567"
            )
            resource = IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=TOPIC_CONFIG, resource_name=name, configs=[change]
            )
            altered = await peer.send(
                IncrementalAlterConfigsRequest(resources=[resource]),
                1,
                IncrementalAlterConfigsResponse,
            )
            assert altered.responses[0].error_code == 0
            for node in scene.alive():
                assert node.image.config(TOPIC_CONFIG, name) == {"retention.ms": "1234567"}

            delete = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=5_000)
            deleted = await peer.send(delete, 6, DeleteTopicsResponse)
            assert deleted.responses[0].error_code == 0
            assert scene.known(name) == []

    play(script, shape)


@shapes
def test_a_broker_that_applies_slowly_is_waited_for(shape: Shape) -> None:
    """A long change is folded in slices: that it was fetched does not mean that it is there."""

    async def script(scene: Scene) -> None:
        everybody = scene.brokers
        for at in everybody:
            follower = scene.node(at).metadata.follower
            follower._apply = slowly(follower._apply)  # type: ignore[method-assign, assignment]
        for through in everybody:
            name = f"slow-{through}"
            assert await scene.create(through, name) is ErrorCode.NONE
            assert scene.known(name) == everybody

    play(script, shape)


@shapes
def test_nobody_waits_longer_to_be_seen_than_the_request_allows(shape: Shape) -> None:
    async def script(scene: Scene) -> None:
        through, *others = scene.brokers
        for at in others:
            if at != scene.active():
                follower = scene.node(at).metadata.follower
                follower._apply = never  # type: ignore[method-assign]
        began = scene.sim.loop.time()
        assert await scene.create(through, "hurried", timeout_ms=100) is ErrorCode.NONE
        assert scene.sim.loop.time() - began < 0.6, "a second is what bringing it there may take"
        assert through in scene.known("hurried")
        assert scene.known("hurried") != scene.brokers

    play(script, shape)


async def never(batches: list[Batch]) -> None:
    await asyncio.sleep(3600)


def slowly(apply: Callable[[list[Batch]], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def slow(batches: list[Batch]) -> None:
        await asyncio.sleep(0.3)
        await apply(batches)

    return slow


@shapes
def test_a_topic_that_metadata_makes_is_known_on_all(shape: Shape) -> None:
    async def script(scene: Scene) -> None:
        last = scene.brokers[-1]
        peer = await scene.ask(last)
        topics = [MetadataRequestTopic(name="asked-for")]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
        await peer.send(request, 12, MetadataResponse)
        assert scene.known("asked-for") == scene.brokers

    play(script, shape)


@shapes
def test_every_node_describes_the_quorum(shape: Shape) -> None:
    async def script(scene: Scene) -> None:
        for at in scene.brokers:
            peer = await scene.ask(at)
            answer = await peer.send(QUORUM, 2, DescribeQuorumResponse)
            told = answer.topics[0].partitions[0]
            assert told.error_code == 0
            assert told.leader_id == scene.active()
            assert {v.replica_id for v in told.current_voters} == set(scene.cluster.voters)
            observers = set(scene.cluster.ids) - set(scene.cluster.voters)
            assert {o.replica_id for o in told.observers} == observers

    play(script, shape)


def test_without_a_majority_clients_hear_in_time_that_nobody_leads_and_whom_to_start() -> None:
    async def script(scene: Scene) -> None:
        first, second, last = scene.brokers
        for at in (first, second):
            scene.cluster.nodes[at].process.kill()
        told = (
            f"; start controllers until a majority of {first}, {second}, {last} runs and can be "
            "reached"
        )
        for request, version, response, within_s in (
            (_asked_for_topic(5000), 7, CreateTopicsResponse, 5.5),
            (QUORUM, 2, DescribeQuorumResponse, 2.5),
        ):
            peer = await scene.ask(last)
            began = scene.sim.loop.time()
            answer: Any = await peer.send(request, version, response)
            assert scene.sim.loop.time() - began < within_s
            said = answer if request is QUORUM else answer.topics[0]
            assert said.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert said.error_message.startswith("no active controller has answered within")
            assert said.error_message.endswith(told)

    play(script, Shape(3, 0))


def _asked_for_topic(timeout_ms: int) -> CreateTopicsRequest:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


@pytest.mark.parametrize("seed", range(3))
def test_the_cluster_goes_on_when_the_active_controller_is_killed(seed: int) -> None:
    async def script(scene: Scene) -> None:
        first = scene.active()
        assert await scene.create(first, "before") is ErrorCode.NONE
        scene.cluster.nodes[first].process.kill()
        others = [at for at in scene.brokers if at != first]
        began = scene.sim.loop.time()
        assert await scene.create(others[0], "after") is ErrorCode.NONE
        assert scene.sim.loop.time() - began < 5
        assert scene.known("after") == others
        assert scene.active() != first
        # The others make contact with the new controller without waiting for their next turn.
        heard = scene.node(scene.active()).metadata.active
        assert heard is not None
        assert all(heard.machine.state.sessions[at].in_contact for at in others)
        # Its broker died with it: the new controller finds that out by itself.
        dead = lambda: all(node.image.brokers[first].fenced for node in scene.alive())  # noqa: E731
        assert await scene.until(dead, 10) < 3
        await scene.cluster.nodes[first].start()
        await scene.until(scene.unfenced, 10)
        assert await scene.create(first, "again") is ErrorCode.NONE
        assert scene.known("again") == scene.brokers

    play(script, Shape(3, 0), seed)


@shapes
def test_a_killed_broker_is_fenced_at_once_and_comes_back(shape: Shape) -> None:
    async def script(scene: Scene) -> None:
        for at in scene.brokers:
            if at == scene.active():
                continue
            scene.cluster.nodes[at].process.kill()
            fenced = lambda at=at: all(n.image.brokers[at].fenced for n in scene.alive())  # noqa: E731
            assert await scene.until(fenced, 10) < 1
            controller = scene.node(scene.active())
            before = controller.image.brokers[at].epoch
            for node in scene.alive():
                found = parsed(render(node))
                assert found[f"{METRIC}activecontrollercount"] == (node is controller)
                assert found[f"{METRIC}fencedbrokercount"] == 1
                assert found[f"{METRIC}activebrokercount"] == len(scene.brokers) - 1
            states = parsed(render(controller))
            assert states[f'{METRIC}brokerregistrationstate{{broker="{at}"}}'] == 10
            began = scene.sim.loop.time()
            await scene.cluster.nodes[at].start()
            await scene.until(scene.unfenced, 10)
            assert scene.sim.loop.time() - began < 5
            assert scene.node(scene.active()).image.brokers[at].epoch > before

    play(script, shape)


@shapes
def test_a_broker_that_comes_back_finds_its_partitions(shape: Shape) -> None:
    """Its own copy of the metadata is older than its logs, for it is committed by others."""

    async def script(scene: Scene) -> None:
        for number in range(10):
            assert await scene.create(scene.brokers[0], f"t-{number}") is ErrorCode.NONE
        for at in scene.brokers:
            if at == scene.active():
                continue
            held = {repr(partition) for partition in scene.node(at).replicas}
            scene.cluster.nodes[at].process.kill()
            await scene.cluster.nodes[at].start()
            assert not scene.node(at).events.counts[EventKind.PARTITION_STRAY]
            assert {repr(partition) for partition in scene.node(at).replicas} == held

    play(script, shape)


@pytest.mark.parametrize("seed", range(3))
def test_a_deposed_controller_has_no_effect(seed: int) -> None:
    async def script(scene: Scene) -> None:
        old = scene.active()
        others = [at for at in scene.brokers if at != old]
        for at in others:
            scene.sim.network.cut(scene.cluster.name(old), scene.cluster.name(at))
        lost = asyncio.ensure_future(scene.create(old, "speculative", timeout_ms=8_000))
        assert await scene.create(others[0], "agreed") is ErrorCode.NONE
        new = scene.active()
        assert new != old
        assert await lost is not ErrorCode.NONE
        assert scene.known("speculative") == []
        scene.sim.network.heal()
        await scene.until(lambda: scene.known("agreed") == scene.brokers, 20)
        await scene.until(scene.unfenced, 20)
        assert scene.node(old).metadata.active is None or scene.active() == old
        assert scene.known("speculative") == []
        assert await scene.create(old, "healed") is ErrorCode.NONE
        assert scene.known("healed") == scene.brokers

    play(script, Shape(3, 0), seed)


def test_nobody_waits_for_a_broker_that_is_stopped() -> None:
    async def script(scene: Scene) -> None:
        scene.cluster.nodes[3].process.pause()
        began = scene.sim.loop.time()
        assert await scene.create(2, "meanwhile") is ErrorCode.NONE
        assert scene.sim.loop.time() - began < 2
        assert scene.known("meanwhile") == [1, 2]
        began = scene.sim.loop.time()
        assert await scene.create(2, "later") is ErrorCode.NONE
        assert scene.sim.loop.time() - began < 0.5
        scene.cluster.nodes[3].process.resume()
        await scene.until(lambda: scene.known("later") == [1, 2, 3], 10)
        await scene.until(scene.unfenced, 10)

    play(script, Shape(1, 2))


@shapes
def test_a_broker_leaves_in_good_order_while_the_others_are_idle(
    shape: Shape,
) -> None:
    async def script(scene: Scene) -> None:
        assert await scene.create(scene.brokers[0], "t") is ErrorCode.NONE
        leaving = next(at for at in scene.brokers if at != scene.active())
        node = scene.node(leaving)
        began = scene.sim.loop.time()
        await scene.cluster.nodes[leaving].stop()
        assert scene.sim.loop.time() - began < 1
        assert not node.events.counts[EventKind.SHUTDOWN_NOT_CLEAN]
        await scene.cluster.nodes[leaving].start()
        await scene.until(scene.unfenced, 10)

    play(script, shape)


@shapes
@pytest.mark.parametrize("seed", range(3))
def test_all_nodes_stop_at_once_in_good_order(shape: Shape, seed: int) -> None:
    async def script(scene: Scene) -> None:
        assert await scene.create(scene.brokers[0], "t") is ErrorCode.NONE
        nodes = scene.alive()
        began = scene.sim.loop.time()
        await asyncio.gather(*(node.stop() for node in scene.cluster.nodes.values()))
        assert scene.sim.loop.time() - began < 3
        for node in nodes:
            assert not node.events.counts[EventKind.SHUTDOWN_NOT_CLEAN]
        await scene.cluster.start()
        await scene.until(scene.unfenced, 10)
        assert scene.known("t") == scene.brokers

    play(script, shape, seed)


@pytest.mark.parametrize("shape", [Shape(1, 2), Shape(3, 0)], ids=["one controller", "three"])
def test_topics_are_made_elsewhere_while_the_active_controllers_own_directory_is_cordoned(
    shape: Shape,
) -> None:
    async def script(scene: Scene) -> None:
        active = scene.active()
        directory = scene.node(active).replicas.dirs[0]
        directory.closed = NoRoom(ErrorCode.KAFKA_STORAGE_ERROR, "nearly full")
        brokers = scene.node(active).image.brokers
        await scene.until(lambda: not brokers[active].takes_new, 10)
        others = [at for at in scene.brokers if at != active]
        assert await scene.create(others[0], "made") is ErrorCode.NONE
        made = scene.node(active).image.topics_by_name["made"].partitions.values()
        assert not any(active in each.replicas for each in made)

    play(script, shape)


def test_brokers_serve_on_while_the_quorum_is_away() -> None:
    async def script(scene: Scene) -> None:
        assert await scene.create(2, "t") is ErrorCode.NONE
        scene.cluster.nodes[1].process.kill()
        await asyncio.sleep(30)
        for at in (2, 3):
            peer = await scene.ask(at)
            answer = await peer.send(
                MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12, MetadataResponse
            )
            assert answer.topics[0].error_code == 0
        code = await scene.create(3, "refused", timeout_ms=2_000)
        assert code is ErrorCode.REQUEST_TIMED_OUT
        await scene.cluster.nodes[1].start()
        await scene.until(scene.unfenced, 20)
        assert await scene.create(3, "made") is ErrorCode.NONE
        assert scene.known("made") == [1, 2, 3]

    play(script, Shape(1, 2))


def test_what_clients_ask_without_a_quorum_holds_their_connection_for_seconds_only() -> None:
    """A producer asks for metadata on the connection that it writes by: what it has under way there
    needs no controller, and must not wait for one that does not come."""

    async def script(scene: Scene) -> None:
        for at in (1, 2):
            scene.cluster.nodes[at].process.kill()
        (broker, *_) = scene.brokers
        peer = await scene.ask(broker)
        named = MetadataRequest(
            topics=[MetadataRequestTopic(name="unheard-of")], allow_auto_topic_creation=True
        )
        began = scene.sim.loop.time()
        metadata = await peer.send(named, 12, MetadataResponse)
        assert metadata.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        found = await peer.send(FindCoordinatorRequest(key="g"), 3, FindCoordinatorResponse)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        anonymous = InitProducerIdRequest(transactional_id=None)
        given = await peer.send(anonymous, 4, InitProducerIdResponse)
        assert given.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        offsets = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=1, producer_epoch=0, group_id="g"
        )
        added = await peer.send(offsets, 3, AddOffsetsToTxnResponse)
        assert added.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert scene.sim.loop.time() - began < 4 * LONGEST_HOLD_S

    play(script, Shape(3, 3, dedicated=True))
