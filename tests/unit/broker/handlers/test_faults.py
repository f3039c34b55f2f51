"""Faults by API: the error in the API's own shape, nothing carried out, and no way around them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.broker.api.faults import Fault, Faults
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch
from scriba.settings import NodeSettings
from scriba.testing.carried import ALWAYS, CARRIED, api_named, error_named
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.apis import API, ApiKey
from scriba.wire.messages import fetch, groups, metadata, produce
from tests.unit.broker.every_request import (
    EVERY_VERSION,
    TABLE,
    TOPIC,
    error_codes,
    prepare,
    request_for,
    with_a_topic,
)

Script = Callable[[Node, Faults, Peer, ProcessWorld], Awaitable[None]]

NO_PLACE = {(int(ApiKey.DESCRIBE_LOG_DIRS), 1), (int(ApiKey.DESCRIBE_LOG_DIRS), 2)}
"""Requests without a place for an error that is not of one directory."""


def in_a_node(script: Script) -> None:
    sim = SimWorld(seed=1)
    given = {"log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9092"}

    async def serve(world: ProcessWorld) -> None:
        faults = Faults()
        node = Node(NodeSettings.parse(given), world, faults=faults)
        await node.start()
        await script(node, faults, await with_a_topic(node, world), world)
        await node.stop()

    async def main() -> None:
        await sim.host("broker").start(serve).task

    sim.run(main())


def an_error(key: int) -> ErrorCode:
    """One that the API may be answered with and that nothing else would give."""
    return max(CARRIED[ApiKey(key)])


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_every_version_of_every_api_tells_the_error(key: int, version: int) -> None:
    async def play(node: Node, faults: Faults, client: Peer, world: ProcessWorld) -> None:
        await prepare(node, client, key)
        topic = node.image.topics_by_name[TOPIC]
        end, metadata_end = node.replicas.find(TOPIC, 0).log.end_offset, node.image.end_offset
        faults.arm(Fault(key, 1, error=an_error(key)))
        request = request_for(key, version, topic.id)
        answer = await client.send(request, version, API[key].response)
        if (key, version) in NO_PLACE:
            assert an_error(key) not in set(error_codes(answer))
            assert [fault.times for fault in faults.armed()] == [1]
            return
        assert an_error(key) in set(error_codes(answer))
        assert node.replicas.find(TOPIC, 0).log.end_offset == end
        assert node.image.end_offset == metadata_end
        assert not list(faults.armed())
        assert node.fast_paths

    in_a_node(play)


def test_a_node_that_is_given_no_faults_has_the_bare_handlers() -> None:
    sim = SimWorld(seed=1)

    async def look(world: ProcessWorld) -> None:
        bare = Node(NodeSettings.parse({"log.dirs": "/data"}), world)
        for key, entry in bare.dispatch.table.items():
            assert entry.handler is TABLE[key].handler

    async def main() -> None:
        await sim.host("broker").start(look).task

    sim.run(main())


def test_every_api_that_is_served_says_which_errors_it_carries() -> None:
    assert TABLE.keys() <= {int(key) for key in CARRIED}
    for errors in CARRIED.values():
        assert ErrorCode.NONE not in errors | ALWAYS


def test_an_error_that_no_broker_answers_is_refused() -> None:
    assert api_named("offset_commit") is api_named("OffsetCommit") is ApiKey.OFFSET_COMMIT
    with pytest.raises(ValueError, match="did you mean OffsetCommit"):
        api_named("OfsetCommit")
    with pytest.raises(ValueError, match="did you mean NOT_ENOUGH_REPLICAS"):
        error_named(ApiKey.PRODUCE, "NOT_ENOUGH_REPLICA")
    for wrong in ("REBALANCE_IN_PROGRESS", "NONE", ErrorCode.NETWORK_EXCEPTION):
        with pytest.raises(ValueError, match="Produce is never answered with"):
            error_named(ApiKey.PRODUCE, wrong)
    assert error_named(ApiKey.JOIN_GROUP, "REBALANCE_IN_PROGRESS")


def writes(value: bytes = b"v") -> produce.ProduceRequest:
    batch = encode_batch([Record(0, 1_750_000_000_000, None, value, ())])
    data = produce.PartitionProduceData(index=0, records=batch)
    topic = produce.TopicProduceData(name=TOPIC, partition_data=[data])
    return produce.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])


def reads(offset: int = 0) -> fetch.FetchRequest:
    part = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[part])
    return fetch.FetchRequest(max_bytes=1 << 20, session_epoch=-1, topics=[topic])


async def produced(client: Peer) -> int:
    answer = await client.send(writes(), 9, produce.ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


def test_requests_on_a_fast_path_meet_their_fault() -> None:
    async def play(node: Node, faults: Faults, client: Peer, world: ProcessWorld) -> None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for _ in range(3):
            assert await produced(client) == 0
            await client.send(reads(), 12, fetch.FetchResponse)
            await client.send(metadata.MetadataRequest(), 9, metadata.MetadataResponse)
        assert node.counters.fastpath_produces
        assert node.counters.fastpath_fetches
        faults.arm(Fault(ApiKey.PRODUCE, 2, error=code))
        faults.arm(Fault(ApiKey.FETCH, 1, error=code))
        faults.arm(Fault(ApiKey.METADATA, 1, error=ErrorCode.REBOOTSTRAP_REQUIRED))
        assert [await produced(client) for _ in range(3)] == [code, code, 0]
        told = [await client.send(reads(), 12, fetch.FetchResponse) for _ in range(2)]
        assert [set(error_codes(each)) for each in told] == [{code}, {0}]
        asked = metadata.MetadataRequest()
        answers = [await client.send(asked, 13, metadata.MetadataResponse) for _ in range(2)]
        assert [each.error_code for each in answers] == [ErrorCode.REBOOTSTRAP_REQUIRED, 0]
        before = node.counters.fastpath_produces
        assert await produced(client) == 0
        assert node.counters.fastpath_produces > before, "the fast path is open again"

    in_a_node(play)


def test_a_commit_on_its_fast_path_meets_its_fault() -> None:
    async def play(node: Node, faults: Faults, client: Peer, world: ProcessWorld) -> None:
        await prepare(node, client, ApiKey.OFFSET_COMMIT)
        commit = request_for(ApiKey.OFFSET_COMMIT, 9, b"")
        for _ in range(3):
            await client.send(commit, 9, groups.OffsetCommitResponse)
        assert node.counters.fastpath_commits
        faults.arm(Fault(ApiKey.OFFSET_COMMIT, 1, error=ErrorCode.REBALANCE_IN_PROGRESS))
        told = [await client.send(commit, 9, groups.OffsetCommitResponse) for _ in range(2)]
        assert [set(error_codes(each)) for each in told] == [
            {ErrorCode.REBALANCE_IN_PROGRESS},
            {0},
        ]

    in_a_node(play)


def test_only_the_client_that_is_named_has_the_fault() -> None:
    async def play(node: Node, faults: Faults, client: Peer, world: ProcessWorld) -> None:
        code = ErrorCode.NOT_ENOUGH_REPLICAS
        faults.arm(Fault(ApiKey.PRODUCE, 1, client_id="somebody else", error=code))
        assert await produced(client) == 0
        assert len(list(faults.armed())) == 1
        faults.clear()
        assert node.fast_paths

    in_a_node(play)


def test_an_answer_that_is_dropped_was_carried_out_or_not() -> None:
    async def play(node: Node, faults: Faults, client: Peer, world: ProcessWorld) -> None:
        log = node.replicas.find(TOPIC, 0).log
        for carried_out, end in ((True, 1), (False, 1)):
            peer = await Peer.connect(world.net, "127.0.0.1", 9092)
            faults.arm(Fault(ApiKey.PRODUCE, 1, drop=True, carried_out=carried_out))
            with pytest.raises((EOFError, ConnectionError)):
                await produced(peer)
            assert log.end_offset == end

    in_a_node(play)


def test_a_delayed_answer_comes_late_and_in_order() -> None:
    async def play(node: Node, faults: Faults, client: Peer, world: ProcessWorld) -> None:
        faults.arm(Fault(ApiKey.PRODUCE, 1, delay_ms=5000))
        before = world.clock.mono_ms()
        answering = asyncio.ensure_future(produced(client))
        await asyncio.sleep(1)
        assert node.replicas.find(TOPIC, 0).log.end_offset == 1
        assert not answering.done()
        assert await answering == 0
        assert world.clock.mono_ms() - before >= 5000

    in_a_node(play)


def test_a_request_that_fails_by_itself_is_late_with_its_error() -> None:
    async def play(node: Node, faults: Faults, client: Peer, world: ProcessWorld) -> None:
        faults.arm(Fault(ApiKey.HEARTBEAT, 1, delay_ms=5000))
        before = world.clock.mono_ms()
        beat: Any = groups.HeartbeatRequest(group_id="nowhere", member_id="nobody")
        answer = await client.send(beat, 4, groups.HeartbeatResponse)
        assert answer.error_code
        assert world.clock.mono_ms() - before >= 5000

    in_a_node(play)
