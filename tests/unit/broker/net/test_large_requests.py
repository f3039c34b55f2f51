"""Requests of many elements: in parts they come to what they come to at once; nobody waits for
them; more of them than anybody has reason to send end the connection."""

import asyncio
import dataclasses
import gc
import struct
import warnings
from collections.abc import Callable
from functools import partial
from sys import getrefcount
from typing import Any, cast

import pytest

from scriba.broker.api.table import api_table
from scriba.broker.handlers.groups.producers import describe_producers
from scriba.broker.handlers.records import fetch as fetch_handler
from scriba.broker.net import connection as connections
from scriba.broker.net.answers import KeptFrame, LargeAnswer, Unsent
from scriba.broker.net.buffers import LARGEST_KEPT, BufferPool
from scriba.broker.net.large_requests import (
    DEFAULT,
    LIMITS,
    MAX_REPEATS,
    TOLD_AT_ONCE,
    cut_of,
    letting_go,
    parts,
)
from scriba.broker.node import Node
from scriba.broker.request import Deferred, broker_context
from scriba.errors import ErrorCode
from scriba.groups.classic.group import ClassicGroup, Member
from scriba.groups.machine import Groups
from scriba.outcome import at_once as all_at_once
from scriba.records.batch import encode_batch, read_header
from scriba.runtime.loop import pace
from scriba.runtime.ports import Stream
from scriba.settings import NodeSettings
from scriba.settings.describe import describe_broker
from scriba.testing.sim.plays.compacting import keyed
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import API, ApiKey
from scriba.wire.frame import encode_request
from scriba.wire.messages import admin, fetch, groups, metadata, txn
from scriba.wire.packed import PIECE_BYTES, STEP_BYTES, Packed
from scriba.wire.schema import Field, Message, Struct

InANode = Callable[..., None]
TOPICS = ("e0", "e1", "e2")


async def dial(world: ProcessWorld) -> Peer:
    return await Peer.connect(world.net, "127.0.0.1", 9092)


async def sent(world: ProcessWorld, request: Message, version: int) -> Stream:
    """A connection of somebody who has sent a request, and reads nothing."""
    stream = await world.net.connect("127.0.0.1", 9092)
    body = encode_request(request, version, 1, "raw")
    rest = struct.pack(">i", len(body)) + body
    while rest:
        rest = rest[max(stream.send([rest]), 0) :]
        await asyncio.sleep(0.01)
    return stream


async def begin(world: ProcessWorld) -> Peer:
    """A node with a few topics and coordinators."""
    client = await dial(world)
    made = [admin.CreatableTopic(name=name, num_partitions=4) for name in TOPICS]
    for topic in made:
        topic.replication_factor = 1
    await client.send(admin.CreateTopicsRequest(topics=made), 7, admin.CreateTopicsResponse)
    for kind in (0, 1):
        found = metadata.FindCoordinatorRequest(key="e0", key_type=kind)
        await client.send(found, 3, metadata.FindCoordinatorResponse)
    return client


# ---- the same answer ----

CUT = [
    (key, version)
    for key, limits in LIMITS.items()
    if limits.cuts and key in api_table()
    for version in sorted({API[key].min_version, API[key].max_version})
]


def filled(cls: type[Any], version: int, path: tuple[str, ...], count: int) -> Any:
    """A structure whose lists on the path have `count` elements, each with a name of its own."""
    made = cls()
    for f in cls.FIELDS:
        if version not in f.within:
            continue
        if path and f.name == path[0]:
            setattr(made, f.name, [element(f, version, path, n, count) for n in range(count)])
        elif f.name in ("group_id", "transactional_id"):
            setattr(made, f.name, "e0")
    return made


def element(f: Field, version: int, path: tuple[str, ...], n: int, count: int) -> Any:
    inner = f.type.element
    assert inner is not None
    if inner.struct is None:
        assert inner.kind is not None
        return f"e{n}" if inner.kind.name == "string" else n
    made = filled(inner.struct, version, path[1:], count)
    for each in inner.struct.FIELDS:
        if version not in each.within or each.type.kind is None:
            continue
        if each.name in ("name", "topic", "group_id", "resource_name", "member_id"):
            setattr(made, each.name, f"e{n}")
        elif each.name in ("partition_index", "index", "partition"):
            setattr(made, each.name, n)
        elif each.name == "resource_type":
            made.resource_type = 2
    return made


def plain(value: Any) -> Any:
    """For comparing: without ids, which are random, and lists in no order."""
    if isinstance(value, Struct):
        return {f.name: plain(getattr(value, f.name)) for f in value.FIELDS if f.name != "topic_id"}
    if isinstance(value, list):
        return sorted(map(plain, value), key=repr)
    return value


@pytest.mark.parametrize(
    ("key", "version"), CUT, ids=[f"{API[key].name}-{version}" for key, version in CUT]
)
def test_in_parts_a_request_comes_to_what_it_comes_to_at_once(
    in_a_node: InANode, key: ApiKey, version: int
) -> None:
    limits, api = LIMITS[key], API[key]
    names = {f.name for f in api.request.FIELDS if version in f.within}
    cut = next((cut for cut in limits.cuts if cut.asked[0] in names), None)
    if cut is None:
        return  # this version has one thing to ask for
    request = filled(api.request, version, cut.asked, 7)
    if key is ApiKey.PRODUCE:
        request.acks = 1
    answers: list[Any] = []

    def play(part: int) -> None:
        async def script(node: Node, world: ProcessWorld) -> None:
            client = await begin(world)
            entry = node.dispatch.table[key]
            at_once, size = (1, part) if part else (1_000, limits.part)
            entry.limits = dataclasses.replace(limits, at_once=at_once, part=size)
            answers.append(await client.send(request, version, api.response))
            assert entry.large == (1 if part else 0)

        in_a_node(script)

    for part in (0, 3):
        play(part)
    assert getattr(answers[0], cut.told[0]) or answers[0].error_code
    assert plain(answers[1]) == plain(answers[0])


def test_a_topic_whose_partitions_are_cut_apart_is_one_in_the_answer(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        entry = node.dispatch.table[ApiKey.OFFSET_FOR_LEADER_EPOCH]
        entry.limits = dataclasses.replace(entry.limits, at_once=1, part=5)
        asked = [fetch.OffsetForLeaderPartition(partition=n, leader_epoch=0) for n in range(12)]
        request = fetch.OffsetForLeaderEpochRequest(
            topics=[fetch.OffsetForLeaderTopic(topic=name, partitions=asked) for name in TOPICS]
        )
        answer = await client.send(request, 4, fetch.OffsetForLeaderEpochResponse)
        assert [topic.topic for topic in answer.topics] == list(TOPICS)
        for topic in answer.topics:
            assert [each.partition for each in topic.partitions] == list(range(12))

    in_a_node(script)


def test_repeats_are_told_each_time_or_once_as_kafka_does(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        many = ["e0", "e1"] * 2_000
        told = await client.send(
            groups.DescribeGroupsRequest(groups=many), 5, groups.DescribeGroupsResponse
        )
        assert [group.group_id for group in told.groups] == many
        gone = await client.send(
            groups.DeleteGroupsRequest(groups_names=many), 2, groups.DeleteGroupsResponse
        )
        assert [result.group_id for result in gone.results] == ["e0", "e1"]
        twice = [fetch.ListOffsetsPartition(partition_index=0, timestamp=-1)] * 600
        listed = await client.send(
            fetch.ListOffsetsRequest(
                topics=[fetch.ListOffsetsTopic(name=name, partitions=twice) for name in TOPICS]
            ),
            7,
            fetch.ListOffsetsResponse,
        )
        codes = {each.error_code for topic in listed.topics for each in topic.partitions}
        assert codes == {42}

    in_a_node(script)


def test_one_partition_named_too_often_ends_the_connection(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        same = [fetch.ListOffsetsPartition(timestamp=-1)] * (MAX_REPEATS + 1)
        request = fetch.ListOffsetsRequest(
            topics=[fetch.ListOffsetsTopic(name="e0", partitions=same)]
        )
        with pytest.raises(ConnectionError):
            await client.send(request, 7, fetch.ListOffsetsResponse)

    in_a_node(script)


# ---- too much ----


def cheapest(cls: type[Message], version: int) -> tuple[str, ...] | None:
    """The first array of a request, by its name; None where it has none."""
    for f in cls.FIELDS:
        if version in f.within and f.tag is None and f.type.element is not None:
            return (f.name,)
    return None


EVERY = [
    (key, version)
    for key in api_table()
    for version in sorted({API[key].min_version, API[key].max_version})
    if cheapest(API[key].request, version)
]


@pytest.mark.parametrize(
    ("key", "version"), EVERY, ids=[f"{API[key].name}-{version}" for key, version in EVERY]
)
def test_more_elements_than_an_api_takes_end_the_connection_and_no_other(
    in_a_node: InANode, key: int, version: int
) -> None:
    request_class = API[key].request
    path = cheapest(request_class, version)
    assert path is not None
    limits = LIMITS.get(ApiKey(key), DEFAULT)
    few = dataclasses.replace(limits, elements=40, at_once=10)
    request = filled(request_class, version, path, 41)

    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await begin(world), await dial(world)
        node.dispatch.table[key].limits = few
        with pytest.raises(ConnectionError):
            await client.send(request, version, API[key].response)
        assert client.closed
        assert node.dispatch.table[key].large == 0
        await other.send(metadata.ApiVersionsRequest(), 0, metadata.ApiVersionsResponse)

    in_a_node(script)


def test_every_api_has_a_limit_of_what_it_takes() -> None:
    for key, entry in api_table().items():
        assert entry.limits.at_once <= entry.limits.elements <= 300_000, API[key].name


def test_all_topics_of_a_large_cluster_can_be_described(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        named = [metadata.TopicRequest(name=f"e{n}") for n in range(50_000)]
        request = metadata.DescribeTopicPartitionsRequest(topics=named)
        page = await client.send(request, 0, metadata.DescribeTopicPartitionsResponse)
        assert len(page.topics) == 50_000

    in_a_node(script)


def test_a_partition_is_asked_for_its_producers_once(in_a_node: InANode) -> None:
    """Four bytes for each time it is named would else be answered by all of its producers."""

    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        for indexes, code in (([0] * 900, 42), ([0, 1, 2, 3] * 300, 42), ([0, 1, 2, 3], 0)):
            asked = [txn.TopicRequest(name="e0", partition_indexes=indexes)]
            asked.append(txn.TopicRequest(name="e1", partition_indexes=[0]))
            request = txn.DescribeProducersRequest(topics=asked)
            told = await client.send(request, 0, txn.DescribeProducersResponse)
            assert [p.partition_index for p in told.topics[0].partitions] == indexes
            assert {p.error_code for topic in told.topics for p in topic.partitions} == {code}

    in_a_node(script)


def test_a_partition_of_many_producers_is_described_in_slices(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        partition = node.replicas.find("e0", 0)
        for producer_id in range(100):
            batch = encode_batch(
                keyed([("k", "v")], 0), producer_id=producer_id, producer_epoch=0, base_sequence=0
            )
            partition.log.append(memoryview(batch), read_header(batch), 0, world.clock.now())
        asked = [txn.TopicRequest(name="e0", partition_indexes=[0])]
        request = txn.DescribeProducersRequest(topics=asked)
        answer = describe_producers(node, broker_context(61, 0, 0), request)
        assert isinstance(answer, Deferred), "all of it was told in one go"
        answer.awaitable.close()  # type: ignore[attr-defined]
        told = await client.send(request, 0, txn.DescribeProducersResponse)
        producers = told.topics[0].partitions[0].active_producers
        assert [each.producer_id for each in producers] == list(range(100))

    in_a_node(script)


def test_few_resources_are_described_with_all_their_settings_in_one_go() -> None:
    rows = len(describe_broker(NodeSettings.parse({"node.id": "1"})))
    assert LIMITS[ApiKey.DESCRIBE_CONFIGS].at_once * rows < TOLD_AT_ONCE // 2


@pytest.mark.parametrize("times", [2, 900, 5_000])
def test_a_group_is_asked_for_all_its_offsets_once(in_a_node: InANode, times: int) -> None:
    """Six bytes for each time it is named would else be answered by all that it has committed."""

    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        wanted = [groups.OffsetFetchRequestGroup(group_id="e0", topics=None) for _ in range(times)]
        request = groups.OffsetFetchRequest(groups=wanted)
        answer = await client.send(request, 8, groups.OffsetFetchResponse)
        assert {group.error_code for group in answer.groups} == {ErrorCode.INVALID_REQUEST}
        for n, group in enumerate(wanted):
            group.group_id = f"e{n}"
        answer = await client.send(request, 8, groups.OffsetFetchResponse)
        assert [group.group_id for group in answer.groups] == [w.group_id for w in wanted]
        assert ErrorCode.INVALID_REQUEST not in {group.error_code for group in answer.groups}

    in_a_node(script)


# ---- in slices ----


def test_who_asks_beside_a_large_request_is_answered_between_its_slices(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock finds the slice spent, so there are as many slices as looks."""
    monkeypatch.setattr(pace, "SLICE_MS", 0)
    count = 20_000
    slices = 0
    call = pace._Turns.call

    def counted(self: Any, slice_: Any) -> None:
        nonlocal slices
        slices += 1
        call(self, slice_)

    monkeypatch.setattr(pace._Turns, "call", counted)

    async def script(node: Node, world: ProcessWorld) -> None:
        nonlocal slices
        client, other = await begin(world), await dial(world)
        topics = [
            fetch.OffsetForLeaderTopic(
                topic="e0", partitions=[fetch.OffsetForLeaderPartition(leader_epoch=0)] * count
            )
        ]
        request = fetch.OffsetForLeaderEpochRequest(topics=topics)
        slices = 0
        answer = client.send(request, 4, fetch.OffsetForLeaderEpochResponse)
        rounds = 0
        while not answer.done():
            await other.send(metadata.ApiVersionsRequest(), 0, metadata.ApiVersionsResponse)
            rounds += 1
        assert len((await answer).topics[0].partitions) == count
        # Decoded and encoded with a look after each 32 elements, handled with one for each part.
        assert (
            slices >= 2 * count // pace.BETWEEN_LOOKS + count // node.dispatch.table[23].limits.part
        )
        assert rounds > 1

    in_a_node(script)


def put_group(node: Node, group_id: str, members: int, metadata: bytes = b"") -> None:
    """A group that came to have so many members."""
    index = node.group_coordinators.partition_of(group_id)
    machine = node.group_coordinators.machine_of(index)
    assert isinstance(machine, Groups)
    group = ClassicGroup(group_id, 0)
    for n in range(members):
        group.add(Member(f"m{n}", None, "", "", 1, 1, (), assignment=metadata), "consumer")
    machine.state.store.groups[group_id] = group


class Slices:
    """How many slices there were, and how many elements of answers were encoded in the largest."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = self.largest = self._since = 0
        patch.setattr(pace, "SLICE_MS", 0)
        call, adding = pace._Turns.call, Packed.adding

        def counted(turns: Any, slice_: Any) -> None:
            self.count += 1
            self._since = 0
            call(turns, slice_)

        def stepped(packed: Packed, elements: Any) -> Any:
            for _ in adding(packed, elements):
                self._since += 1
                self.largest = max(self.largest, self._since)
                yield

        patch.setattr(pace._Turns, "call", counted)
        patch.setattr(Packed, "adding", stepped)


@pytest.mark.parametrize("repeats", [10, 150])
def test_a_large_group_that_is_described_again_and_again_is_encoded_in_slices(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    members = 1_100
    slices = Slices(monkeypatch)

    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await begin(world), await dial(world)
        put_group(node, "e0", members)
        request = groups.DescribeGroupsRequest(groups=["e0"] * repeats)
        slices.count = 0
        answer = client.send(request, 5, groups.DescribeGroupsResponse)
        rounds = 0
        while not answer.done():
            await other.send(metadata.ApiVersionsRequest(), 0, metadata.ApiVersionsResponse)
            rounds += 1
        told = (await answer).groups
        assert [(group.group_id, len(group.members)) for group in told] == (
            [("e0", members)] * repeats
        )
        assert slices.count >= repeats * members // pace.BETWEEN_LOOKS
        assert slices.largest <= pace.BETWEEN_LOOKS
        assert rounds > 1

    in_a_node(script)


def test_an_answer_of_few_elements_and_many_bytes_is_encoded_in_slices(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = Slices(monkeypatch)
    members, size = 200, 1 << 16

    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        put_group(node, "e0", members, bytes(size))
        slices.count = 0
        request = groups.DescribeGroupsRequest(groups=["e0"])
        (told,) = (await client.send(request, 5, groups.DescribeGroupsResponse)).groups
        assert sum(len(member.member_assignment) for member in told.members) == members * size
        assert slices.count >= members * size // STEP_BYTES // pace.BETWEEN_LOOKS

    in_a_node(script)


@pytest.mark.parametrize("repeats", [2, 40])
def test_an_answer_without_end_closes_the_connection_before_it_is_all_encoded(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    limit = 1 << 20
    monkeypatch.setattr("scriba.broker.net.large_requests.MAX_ANSWER", limit)
    encoded = 0
    keep = Packed._keep

    def counted(packed: Packed, out: bytearray) -> None:
        nonlocal encoded
        encoded += len(out)
        keep(packed, out)

    monkeypatch.setattr(Packed, "_keep", counted)

    async def script(node: Node, world: ProcessWorld) -> None:
        client, other = await begin(world), await dial(world)
        put_group(node, "e0", 1_000, bytes(1 << 13))
        request = groups.DescribeGroupsRequest(groups=["e0"] * repeats)
        with pytest.raises(ConnectionError):
            await client.send(request, 5, groups.DescribeGroupsResponse)
        assert encoded < 2 * limit
        await other.send(metadata.ApiVersionsRequest(), 0, metadata.ApiVersionsResponse)

    in_a_node(script)


def test_large_works_take_turns_one_slice_in_each_turn_of_the_loop() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        rounds = 0

        async def work(name: str) -> None:
            for _ in range(3):
                await pace.next_turn()
                order.append(f"{name} {rounds}")

        works = [asyncio.ensure_future(work(name)) for name in "abc"]
        while not all(each.done() for each in works):
            await asyncio.sleep(0)
            rounds += 1
        return order

    order = asyncio.run(main())
    assert [each[0] for each in order] == list("abc" * 3)
    turns = [each[2:] for each in order]
    assert len(set(turns)) == len(turns)


def test_a_large_fetch_opens_a_session_and_is_answered(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        asked = [fetch.FetchPartition(partition=n, partition_max_bytes=1) for n in range(3_000)]
        request = fetch.FetchRequest(
            max_bytes=1 << 20,
            session_epoch=0,
            topics=[fetch.FetchTopic(topic="e0", partitions=asked)],
        )
        first = await client.send(request, 12, fetch.FetchResponse)
        assert [p.partition_index for p in first.responses[0].partitions] == list(range(3_000))
        assert first.session_id
        again = fetch.FetchRequest(
            max_bytes=1 << 20, session_id=first.session_id, session_epoch=1, max_wait_ms=0
        )
        second = await client.send(again, 12, fetch.FetchResponse)
        # What does not exist is told each time; what does has no news.
        told = [p.partition_index for p in second.responses[0].partitions]
        assert sorted(told) == list(range(4, 3_000))

    in_a_node(script)


def test_large_requests_wait_while_peers_do_not_take_large_answers(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        other = await begin(world)
        node.dispatch._unsent.limit = 100_000
        many = groups.DescribeGroupsRequest(groups=["x" * 1_000] * 5_000)
        silent = await sent(world, many, 5)
        await asyncio.sleep(1)
        assert node.dispatch._unsent.bytes > 5_000_000
        answer = other.send(many, 5, groups.DescribeGroupsResponse)
        await asyncio.sleep(5)
        assert not answer.done()
        # Small ones do not wait, and the others go on when the peer has gone.
        await (await dial(world)).send(
            metadata.ApiVersionsRequest(), 0, metadata.ApiVersionsResponse
        )
        silent.close()
        assert len((await answer).groups) == 5_000
        await asyncio.sleep(1)
        assert node.dispatch._unsent.bytes == 0

    in_a_node(script)


def test_who_does_not_take_its_answer_is_hung_up_on_when_others_wait(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        other = await begin(world)
        node.dispatch._unsent.limit = 100_000
        many = groups.DescribeGroupsRequest(groups=["x" * 1_000] * 5_000)
        silent = await sent(world, many, 5)
        await asyncio.sleep(1)
        answer = await asyncio.wait_for(other.send(many, 5, groups.DescribeGroupsResponse), 60)
        assert len(answer.groups) == 5_000
        await asyncio.sleep(1)
        assert silent._link.broken or silent._in.ended  # type: ignore[attr-defined]
        assert node.dispatch._unsent.bytes == 0

    in_a_node(script)


def test_hundreds_do_not_wait_for_hundreds_of_thousands(in_a_node: InANode) -> None:
    """However many of those are in the queue, and whoever has gone is not answered."""

    async def script(node: Node, world: ProcessWorld) -> None:
        other = await begin(world)
        entry = node.dispatch.table[ApiKey.DESCRIBE_GROUPS]
        ordinary, held = entry.handler, asyncio.Event()

        async def slow(request: Any, answer: Any) -> Any:
            try:
                if len(request.groups[0]) > 2:
                    await held.wait()
            except asyncio.CancelledError:
                answer.awaitable.close()
                raise
            return await answer.awaitable

        entry.handler = lambda node, ctx, request: Deferred(
            slow(request, ordinary(node, ctx, request))
        )
        many = groups.DescribeGroupsRequest(groups=[f"g{n}" for n in range(100, 20_000)])
        streams = [await sent(world, many, 5) for _ in range(8)]
        await asyncio.sleep(1)
        few = groups.DescribeGroupsRequest(groups=["e0"] * 200)
        found = await asyncio.wait_for(other.send(few, 5, groups.DescribeGroupsResponse), 60)
        assert len(found.groups) == 200
        for stream in streams:
            stream.close()
        await asyncio.sleep(1)
        assert node.server.connections == 1, "all are noticed, those that were begun as well"
        begun = entry.large
        held.set()
        await asyncio.sleep(5)
        assert entry.large == begun

    in_a_node(script)


def test_a_large_fetch_that_waits_keeps_neither_its_bytes_nor_its_repeats(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await begin(world)
        seen: list[Any] = []
        entry = node.dispatch.table[ApiKey.FETCH]
        ordinary = entry.handler

        def curious(node: Node, ctx: Any, request: Any) -> Any:
            seen.append(request)
            return ordinary(node, ctx, request)

        entry.handler = curious
        asked = [fetch.FetchPartition(partition=0, partition_max_bytes=1)] * 50_000
        request = fetch.FetchRequest(
            max_bytes=1 << 20,
            max_wait_ms=2**31 - 1,
            min_bytes=1,
            session_epoch=-1,
            topics=[fetch.FetchTopic(topic="e0", partitions=asked)],
        )
        given = node.server.pool._kept
        stream = await sent(world, request, 12)
        await asyncio.sleep(1)
        assert seen[0].topics == []
        assert node.server.pool._kept > given, "the buffer is back"
        # It waits for days; whoever has gone is noticed all the same.
        stream.close()
        await asyncio.sleep(node.settings.connections_max_idle_ms / 1000 + 60)
        node.server.close_idle()
        assert node.server.connections == 0

    in_a_node(script)


# ---- turns of a connection ----


class Ticking:
    """A clock that shows a millisecond more at each look."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def now(self) -> Any:
        self._looks += 1
        now = self._clock.now()
        return now._replace(mono_ms=now.mono_ms + self._looks)


def test_who_pipelines_gives_way_when_its_time_is_up(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1_000

    async def script(node: Node, world: ProcessWorld) -> None:
        stream = await world.net.connect("127.0.0.1", 9092)
        body = encode_request(metadata.ApiVersionsRequest(), 0, 1, "raw")
        frames = (struct.pack(">i", len(body)) + body) * count
        runs: list[int] = []
        entry = node.dispatch.table[ApiKey.API_VERSIONS]
        run = connections.Connection._run

        def counted(self: Any, data: memoryview) -> None:
            before = entry.count
            run(self, data)
            runs.append(entry.count - before)

        monkeypatch.setattr(connections.Connection, "_run", counted)
        node.server.clock = Ticking(node.server.clock)
        received = bytearray(1 << 20)
        sent = 0
        while entry.count < count:
            if sent < len(frames):
                sent += max(stream.send([frames[sent:]]), 0)
            while stream.recv_into(memoryview(received)) > 0:
                pass
            await asyncio.sleep(0.001)
        # A turn is over after TURN_MS, not after so many requests.
        assert max(runs) <= connections.TURN_MS
        stream.close()

    in_a_node(script)


# ---- what nobody awaits any more ----


@pytest.mark.parametrize("version", [0, 5])
def test_a_reset_in_the_midst_of_requests_leaves_nothing_unawaited(
    in_a_node: InANode, version: int
) -> None:
    """The connection ends in the pass that parked a request: its task has not begun."""

    async def script(node: Node, world: ProcessWorld) -> None:
        await begin(world)
        requests: list[tuple[Message, int]] = [
            (groups.DescribeGroupsRequest(groups=["g"]), version),
            (groups.HeartbeatRequest(group_id="g", member_id="m"), 4),
            (
                groups.OffsetFetchRequest(
                    groups=[groups.OffsetFetchRequestGroup(group_id="g")] * 3
                ),
                8,
            ),
            (metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="new")]), 9),
            (fetch.ListOffsetsRequest(topics=[]), 7),
        ]
        for request, number in requests:
            stream = await world.net.connect("127.0.0.1", 9092)
            await asyncio.sleep(0.01)
            (connection,) = list(node.server._connections)[-1:]
            body = encode_request(request, number, 1, "raw")
            parked = node.dispatch.handle(connection, memoryview(body))
            connection._take(parked)
            connection.close()
            stream.close()
            await asyncio.sleep(0.01)
        gc.collect()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        in_a_node(script)
        gc.collect()
    assert [str(each.message) for each in caught if "never awaited" in str(each.message)] == []


# ---- much memory ----

LONG = 32_000


def long_names(count: int) -> list[str]:
    return [f"{n:05}".ljust(LONG, "x") for n in range(count)]


def test_no_step_of_an_answer_of_long_names_copies_much() -> None:
    """Of a step that copied all of a part, thirty-two were done without a look at the clock."""
    packed = Packed(groups.DescribeGroupsResponse, "groups", 5)
    for _ in range(4):
        described = groups.DescribeGroupsResponseDescribedGroup
        all_at_once(packed.adding(described(group_id=name) for name in long_names(50)))
    answer = groups.DescribeGroupsResponse(groups=cast(Any, packed))
    out, before = bytearray(), 0
    for _ in answer.encode_in_slices(out, 5):
        assert len(out) - before <= STEP_BYTES + 16
        before = len(out)
    assert not packed.pieces, "what is copied is given back"
    found = groups.DescribeGroupsResponse.decode(bytes(out), 5)
    assert [group.group_id for group in found.groups] == 4 * long_names(50)


LONG_NAMED: dict[str, tuple[ApiKey, Callable[[list[str]], Message]]] = {
    "keys": (
        ApiKey.FIND_COORDINATOR,
        lambda names: metadata.FindCoordinatorRequest(coordinator_keys=names),
    ),
    "groups": (
        ApiKey.OFFSET_FETCH,
        lambda names: groups.OffsetFetchRequest(
            groups=[groups.OffsetFetchRequestGroup(group_id=name) for name in names]
        ),
    ),
    "once": (ApiKey.DELETE_GROUPS, lambda names: groups.DeleteGroupsRequest(groups_names=names)),
    "together": (
        ApiKey.CREATE_TOPICS,
        lambda names: admin.CreateTopicsRequest(
            topics=[admin.CreatableTopic(name=name) for name in names]
        ),
    ),
}


@pytest.mark.parametrize("case", LONG_NAMED)
def test_of_what_has_long_names_few_are_handled_in_one_go(case: str) -> None:
    """The hash of a name of 32 KB, which chooses a coordinator, takes milliseconds."""
    api, make = LONG_NAMED[case]
    limits = LIMITS[api]
    for names, most in ((long_names(20), 2), ([f"g{n}" for n in range(200)], limits.part)):
        request = make(names)
        cut = cut_of(limits, request)
        assert cut is not None
        made = [part.request for part in parts(request, limits, cut) if part is not None]
        sizes = [len(getattr(part, cut.asked[0])) for part in made]
        assert sum(sizes) == len(names)
        assert max(sizes) == most


def test_a_fetch_of_few_topics_with_long_names_is_not_done_at_once(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        ctx = broker_context(ApiKey.FETCH, 12, 0)
        for names, at_once in ((long_names(20), True), (long_names(40), False)):
            asked = [
                fetch.FetchTopic(topic=name, partitions=[fetch.FetchPartition()]) for name in names
            ]
            answer = fetch_handler.fetch(node, ctx, fetch.FetchRequest(topics=asked))
            assert isinstance(answer, Deferred) is not at_once
            told = await answer.awaitable if isinstance(answer, Deferred) else answer
            assert isinstance(told, fetch.FetchResponse)
            assert len(told.responses) == len(names)

    in_a_node(script)


def test_elements_of_a_request_are_let_go_one_by_one() -> None:
    topics = [
        groups.OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1])
        for name in long_names(3)
    ]
    request = groups.OffsetFetchRequest(
        groups=[
            groups.OffsetFetchRequestGroup(group_id="g", topics=topics),
            groups.OffsetFetchRequestGroup(group_id="h", topics=None),
        ]
    )
    steps = letting_go(request, ("groups", "topics", "partition_indexes"))
    left = [len(topics) for _ in steps]
    assert left == [3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0]
    assert request.groups == []


def test_a_frame_that_is_given_back_is_kept_by_nobody() -> None:
    pool = BufferPool()
    lent = pool.take(LARGEST_KEPT + 1)
    kept = KeptFrame(memoryview(lent.memory)[:10], partial(pool.give, lent))
    kept.give_back()
    memory = lent.memory
    del lent
    assert getrefcount(memory) == 2, "this name, and the argument"


def test_a_large_answer_lies_in_pieces_and_arrives_whole(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    wait_in = LargeAnswer.wait_in

    def noting(answer: LargeAnswer, unsent: Unsent) -> None:
        sizes.append(len(answer))
        wait_in(answer, unsent)

    async def script(node: Node, world: ProcessWorld) -> None:
        client = await begin(world)
        monkeypatch.setattr(LargeAnswer, "wait_in", noting)
        names = long_names(150)
        asked = groups.DescribeGroupsRequest(groups=names)
        answer = await client.send(asked, 5, groups.DescribeGroupsResponse)
        assert [group.group_id for group in answer.groups] == names
        assert len(sizes) > 10
        assert max(sizes) < 2 * PIECE_BYTES
        assert node.dispatch._unsent.bytes == 0

    in_a_node(script)
