"""Produce with fast paths and without: the same bytes for clients, the same bytes on disk."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from errno import ENOSPC
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.native import implementation
from scriba.records.batch import Record, encode_batch, seal
from scriba.records.compression import Codec
from scriba.records.header import LOG_OVERHEAD, read_header
from scriba.replication.leader import Follower, Heard
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.frame import encode_request
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from scriba.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

InANode = Callable[..., None]
Batches = Mapping[str, Sequence[tuple[int, bytes | bytearray | None]]]
"""By topic: partitions and what comes for them."""

VERSIONS = range(3, 14)
PARTITIONS = 8
TOPICS: dict[str, dict[str, str]] = {
    "one": {},
    "two": {},
    "by-arrival": {"message.timestamp.type": "LogAppendTime"},
    "packed": {"compression.type": "lz4"},
    "unpacked": {"compression.type": "uncompressed"},
    "compacted": {"cleanup.policy": "compact"},
    "flushed": {"flush.messages": "1"},
    "small": {"max.message.bytes": "200"},
}


class RawPeer(Peer):
    """Keeps the bytes of the answers, too."""

    frames: list[bytes]

    @classmethod
    async def to(cls, world: ProcessWorld) -> "RawPeer":
        peer = cls(await world.net.connect("127.0.0.1", 9092), "raw")
        peer.frames = []
        return peer

    def _take(self, frame: bytes) -> None:
        self.frames.append(frame)
        super()._take(frame)


class Side:
    """A node with fast paths, or without, and a client that keeps all that it is told."""

    def __init__(self, node: Node, world: ProcessWorld) -> None:
        self.node = node
        self.world = world
        self.now = world.clock.wall_ms()
        self.taken: list[int] = []
        """Of each request, how many took the fast path: one or none."""

    async def ready(self) -> "Side":
        self.peer = await RawPeer.to(self.world)
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=text) for key, text in given.items()],
            )
            for name, given in TOPICS.items()
        ]
        made = await self.peer.call(CreateTopicsRequest(topics=topics), 7, CreateTopicsResponse)
        assert not any(topic.error_code for topic in made.topics)
        self.peer.frames.clear()
        return self

    def batch(self, count: int = 2, key: bytes | None = b"k", **how: Any) -> bytearray:
        records = [Record(n, self.now + n, key, b"value", ()) for n in range(count)]
        return encode_batch(records, **how)

    def request(self, batches: Batches, version: int, acks: int, **more: Any) -> ProduceRequest:
        topics = []
        for name, entries in batches.items():
            known = self.node.image.topics_by_name.get(name)
            data = [
                PartitionProduceData(index=index, records=None if each is None else bytes(each))
                for index, each in entries
            ]
            id = known.id if known is not None else b"?" * 16
            topics.append(TopicProduceData(name=name, topic_id=id, partition_data=data))
        return ProduceRequest(acks=acks, timeout_ms=500, topic_data=topics, **more)

    async def send(
        self, batches: Batches, version: int = 9, acks: int = -1, **more: Any
    ) -> list[PartitionProduceResponse]:
        before = self.node.counters.fastpath_produces
        request = self.request(batches, version, acks, **more)
        told: list[PartitionProduceResponse] = []
        if acks == 0:
            self.peer.send_unanswered(request, version)
            await asyncio.sleep(0.1)
        else:
            answer = await self.peer.call(request, version, ProduceResponse)
            told = [each for topic in answer.responses for each in topic.partition_responses]
        self.taken.append(self.node.counters.fastpath_produces - before)
        return told

    def logs(self) -> dict[str, bytes]:
        """All bytes of all partitions."""
        found: dict[str, bytes] = {}
        for name in TOPICS:
            for index in range(PARTITIONS):
                log = self.node.replicas.find(name, index).log
                segment = log._segments.active
                held = bytearray(segment.size)
                if segment.size:
                    segment.open_file().pread_into(memoryview(held), 0)
                found[f"{name}-{index}"] = bytes(held)
        return found


Play = Callable[[Side], Awaitable[None]]


@pytest.fixture
def on_both_sides(in_a_node: InANode) -> Callable[..., tuple[Side, Side]]:
    """Plays the same with fast paths and without; what clients are told and logs must be equal."""

    def run(play: Play, **settings: Any) -> tuple[Side, Side]:
        sides: list[tuple[Side, list[bytes], dict[str, bytes]]] = []
        for fast in ("true", "false"):

            async def script(node: Node, world: ProcessWorld) -> None:
                side = await Side(node, world).ready()
                await play(side)
                sides.append((side, side.peer.frames, side.logs()))

            in_a_node(script, scriba_fast_paths=fast, **settings)
        (fast_side, told, logs), (slow_side, ordinary_told, ordinary_logs) = sides
        assert told == ordinary_told
        assert logs == ordinary_logs
        assert not any(slow_side.taken)
        for name in ("messages_in", "topic_bytes_in", "failed_produce", "duplicates"):
            counted = [getattr(side.node.counters, name) for side in (fast_side, slow_side)]
            assert counted[0] == counted[1], name
        return fast_side, slow_side

    return run


Both = Callable[..., tuple[Side, Side]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_requests_over_several_partitions_and_topics(
    on_both_sides: Both, version: int, acks: int
) -> None:
    async def play(side: Side) -> None:
        batch = side.batch()
        await side.send({"one": [(3, batch)]}, version, acks)
        await side.send({"one": [(n, batch) for n in (5, 0, 3, 7)]}, version, acks)
        await side.send({"two": [(1, batch), (0, batch)], "one": [(2, batch)]}, version, acks)
        for _ in range(2):
            await side.send({"one": [(n, batch) for n in range(8)]}, version, acks)

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 1, 1, 1, 1]


UNUSUAL: dict[str, Callable[[Side], Batches]] = {
    "an unknown topic": lambda side: {"none": [(0, side.batch())], "one": [(0, side.batch())]},
    "an unknown partition": lambda side: {"one": [(0, side.batch()), (8, side.batch())]},
    "a negative partition": lambda side: {"one": [(0, side.batch()), (-1, side.batch())]},
    "an internal topic": lambda side: {"__consumer_offsets": [(0, side.batch())]},
    "a partition named twice": lambda side: {"one": [(0, side.batch()), (0, side.batch(3))]},
    "no records": lambda side: {"one": [(0, side.batch()), (1, None)]},
    "records of no bytes": lambda side: {"one": [(0, b""), (1, side.batch())]},
    "no partitions": lambda side: {"one": [], "two": [(0, side.batch())]},
    "no topics": lambda side: {},
    "a codec beside plain": lambda side: {
        "one": [(0, side.batch()), (1, side.batch(codec=Codec.GZIP)), (2, side.batch())]
    },
    "lz4 in a topic without codecs": lambda side: {
        "unpacked": [(0, side.batch(codec=Codec.LZ4))],
        "one": [(0, side.batch())],
    },
    "a codec of its own": lambda side: {"packed": [(0, side.batch())], "one": [(0, side.batch())]},
    "a flush for each batch": lambda side: {"flushed": [(0, side.batch()), (1, side.batch())]},
    "a batch too large": lambda side: {"small": [(0, side.batch()), (1, side.batch(50))]},
    "a compacted topic, no keys": lambda side: {
        "compacted": [(0, side.batch()), (1, side.batch(key=None))]
    },
    "a wrong checksum": lambda side: {"one": [(0, side.batch()), (1, side.batch()[:-1] + b"?")]},
    "two batches in one": lambda side: {"one": [(0, side.batch() + side.batch())]},
    "part of a batch": lambda side: {"one": [(0, side.batch()[:40]), (1, side.batch())]},
    "a transactional batch": lambda side: {
        "one": [(0, side.batch(producer_id=1, base_sequence=0, transactional=True))]
    },
    "a record from far ahead": lambda side: {
        "one": [(0, encode_batch([Record(0, side.now + (9 << 40), None, b"", ())]))]
    },
}


@pytest.mark.parametrize("case", UNUSUAL)
@pytest.mark.parametrize("version", [3, 8, 12, 13])
def test_anything_unusual_in_any_partition_goes_to_the_handler(
    on_both_sides: Both, case: str, version: int
) -> None:
    async def play(side: Side) -> None:
        await side.send({"one": [(0, side.batch()), (1, side.batch())]}, version)
        await side.send(UNUSUAL[case](side), version)
        await side.send({"one": [(0, side.batch()), (1, side.batch())]}, version)

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 0, 1]


@pytest.mark.parametrize("version", [3, 8, 12, 13])
def test_batches_in_lz4_take_the_fast_path(on_both_sides: Both, version: int) -> None:
    async def play(side: Side) -> None:
        packed = side.batch(50, codec=Codec.LZ4)
        await side.send({"packed": [(0, packed)]}, version)
        await side.send({"one": [(0, packed), (1, side.batch()), (2, packed)]}, version)
        cut = bytearray(packed)[:-9]
        seal(cut, read_header(packed)._replace(length=len(cut) - LOG_OVERHEAD))
        await side.send({"one": [(0, packed), (1, cut)]}, version)

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 1, int(not implementation.chosen.native)]


def test_topics_that_stamp_their_records_are_left_to_the_handler(in_a_node: InANode) -> None:
    """Not byte for byte: the stamp is the time of the append, which takes a moment."""

    async def script(node: Node, world: ProcessWorld) -> None:
        side = await Side(node, world).ready()
        (told,) = await side.send({"by-arrival": [(0, side.batch())]})
        assert told.log_append_time_ms >= side.now
        assert side.taken == [0]

    in_a_node(script)


def test_a_repeat_is_told_the_time_that_the_broker_gave_the_first(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        side = await Side(node, world).ready()
        numbered: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        (first,) = await side.send({"by-arrival": [(0, side.batch(**numbered))]})
        await asyncio.sleep(1)
        (again,) = await side.send({"by-arrival": [(0, side.batch(**numbered))]})
        assert (again.error_code, again.base_offset) == (0, first.base_offset)
        assert again.log_append_time_ms == first.log_append_time_ms

    in_a_node(script)


def test_keyed_records_of_a_compacted_topic_take_the_fast_path(on_both_sides: Both) -> None:
    async def play(side: Side) -> None:
        await side.send({"compacted": [(0, side.batch()), (1, side.batch())]})

    fast, _ = on_both_sides(play)
    assert fast.taken == [int(implementation.chosen.native)]


@pytest.mark.parametrize("acks", [-1, 1])
def test_idempotent_producers_are_told_of_duplicates_and_gaps(
    on_both_sides: Both, acks: int
) -> None:
    def numbered(side: Side, sequence: int, producer: int = 7, epoch: int = 0) -> bytearray:
        return side.batch(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)

    async def play(side: Side) -> None:
        def all_of(sequence: int) -> list[tuple[int, bytearray]]:
            return [(index, numbered(side, sequence)) for index in range(4)]

        await side.send({"one": all_of(0)}, acks=acks)
        await side.send({"one": all_of(2), "two": all_of(0)}, acks=acks)
        told = await side.send({"one": all_of(2)[:2] + all_of(4)[2:]}, acks=acks)
        assert [each.base_offset for each in told] == [2, 2, 4, 4], "two were there already"
        told = await side.send({"one": [*all_of(4)[:2], (2, numbered(side, 90))]}, acks=acks)
        assert [each.error_code for each in told] == [
            0,
            0,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ]
        await side.send({"one": [(0, numbered(side, 0, epoch=1)), (1, numbered(side, 6))]})
        told = await side.send({"one": [(0, numbered(side, 2)), (1, numbered(side, 8))]})
        assert told[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 1, 1, 1, 1, 1]


def test_one_failed_log_costs_its_own_partition_alone(on_both_sides: Both) -> None:
    async def play(side: Side) -> None:
        await side.send({"one": [(0, side.batch()), (1, side.batch())]})
        segment = side.node.replicas.find("one", 1).log._segments.active
        file = segment.file
        segment.file = _Full(file)
        told = await side.send({"one": [(0, side.batch()), (1, side.batch()), (2, side.batch())]})
        assert [each.error_code for each in told] == [0, ErrorCode.KAFKA_STORAGE_ERROR, 0]
        (alone,) = await side.send({"one": [(1, side.batch())]})
        assert alone.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        segment.file = file

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 1, 1]


def test_a_defect_in_one_append_is_answered_and_told_of(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        side = await Side(node, world).ready()
        await side.send({"one": [(0, side.batch()), (1, side.batch())]})
        segment = node.replicas.find("one", 1).log._segments.active
        file = segment.file
        segment.file = _Broken(file)
        told = await side.send({"one": [(0, side.batch()), (1, side.batch())]})
        assert [each.error_code for each in told] == [0, ErrorCode.UNKNOWN_SERVER_ERROR]
        segment.file = file
        (event,) = [e for e in node.events.since() if e.kind is EventKind.REQUEST_FAILED]
        assert "out of order" in event.text
        assert not any(each.error_code for each in await side.send({"one": [(1, side.batch())]}))
        assert side.taken == [1, 1, 1]

    in_a_node(script)


def test_a_topic_with_looser_settings_is_back_on_the_fast_path(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        side = await Side(node, world).ready()

        async def alter(value: str) -> None:
            change = IncrementalAlterConfigsRequestAlterableConfig(
                name="max.message.bytes", value=value
            )
            resource = IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=2, resource_name="one", configs=[change]
            )
            request = IncrementalAlterConfigsRequest(resources=[resource])
            answer = await side.peer.call(request, 1, IncrementalAlterConfigsResponse)
            assert not any(each.error_code for each in answer.responses)

        batches = {"one": [(0, side.batch(50))]}
        await side.send(batches)
        await alter("200")
        await side.send(batches)
        await side.send(batches)
        await alter("100000")
        await side.send(batches)
        await side.send(batches)
        assert side.taken[:3] == [1, 0, 0]
        assert side.taken[-1] == 1

    in_a_node(script)


class _Broken:
    """A file that has a defect."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def pwrite(self, *_: Any) -> int:
        raise RuntimeError("out of order")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Full:
    """A file on a device that takes nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def pwrite(self, *_: Any) -> int:
        raise OSError(ENOSPC, "no space left")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_failure_with_acks_0_ends_the_connection(on_both_sides: Both) -> None:
    async def play(side: Side) -> None:
        good = side.batch(producer_id=7, producer_epoch=0, base_sequence=0)
        gap = side.batch(producer_id=7, producer_epoch=0, base_sequence=9)
        await side.send({"one": [(0, good), (1, good)]}, acks=0)
        assert not side.peer.closed
        await side.send({"one": [(0, gap), (2, good)]}, acks=0)
        assert side.peer.closed

    on_both_sides(play)


@pytest.mark.parametrize("version", [7, 9, 13])
def test_bytes_behind_a_request_and_odd_client_ids(in_a_node: InANode, version: int) -> None:
    """As the decoder does: the first are overlooked, and what is no text ends the connection."""

    async def script(node: Node, world: ProcessWorld) -> None:
        side = await Side(node, world).ready()
        request = side.request({"one": [(0, side.batch())]}, version, -1)

        async def answered(frame: bytes) -> bool:
            stream = await world.net.connect("127.0.0.1", 9092)
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            stream.want(lambda: None if ready.done() else ready.set_result(None), None)
            stream.send([len(frame).to_bytes(4, "big") + frame])
            await asyncio.wait_for(ready, 10)
            got = stream.recv_into(memoryview(bytearray(1000)))
            stream.close()
            return got > 0

        whole = encode_request(request, version, 1, "me")
        assert await answered(whole)
        assert await answered(whole + b"more")
        assert await answered(encode_request(request, version, 1, "m\xe9"))
        assert await answered(encode_request(request, version, 1, None))
        assert not await answered(whole.replace(b"me", b"\xff\xfe", 1))
        assert node.replicas.find("one", 0).log.end_offset == 4 * 2
        assert node.counters.fastpath_produces == 3

    in_a_node(script)


ONE_AND_SEVERAL = pytest.mark.parametrize("others", [(), (0,)], ids=["one", "several"])
"""Requests of one partition and of several are taken by functions of their own, with one rule."""


@ONE_AND_SEVERAL
def test_settings_that_change_between_two_requests(
    on_both_sides: Both, others: tuple[int, ...]
) -> None:
    async def play(side: Side) -> None:
        both = {"one": [(n, side.batch()) for n in (*others, 1)]}
        await side.send(both)
        partition = side.node.replicas.find("one", 1)
        ordinary = partition.settings
        partition.configure(side.node.replicas.find("small", 0).settings)
        told = await side.send({"one": [*((n, side.batch()) for n in others), (1, side.batch(50))]})
        codes = [*(0 for _ in others), ErrorCode.MESSAGE_TOO_LARGE]
        assert [each.error_code for each in told] == codes
        partition.configure(ordinary)
        await side.send(both)
        await side.send(both)

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 0, 1, 1]


@ONE_AND_SEVERAL
def test_a_partition_that_leads_no_more(on_both_sides: Both, others: tuple[int, ...]) -> None:
    async def play(side: Side) -> None:
        both = {"one": [(n, side.batch()) for n in (*others, 1)]}
        await side.send(both)
        partition = side.node.replicas.find("one", 1)
        leader, partition.leader = partition.leader, None
        told = await side.send(both)
        codes = [*(0 for _ in others), ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert [each.error_code for each in told] == codes
        partition.leader = leader
        await side.send(both)

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 0, 1]


@ONE_AND_SEVERAL
def test_too_few_in_sync_replicas_are_found_before_batches_are_judged(
    on_both_sides: Both, monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...]
) -> None:
    judged: list[object] = []
    judge = implementation.chosen.judge_produce

    def counting(*given: Any) -> Any:
        found = judge(*given)
        judged.append(found)
        return found

    monkeypatch.setattr(
        implementation, "chosen", implementation.chosen._replace(judge_produce=counting)
    )

    async def play(side: Side) -> None:
        both = {"one": [(n, side.batch()) for n in (*others, 1)]}
        await side.send(both)
        leader = side.node.replicas.find("one", 1).leader
        assert leader is not None
        leader.replicas, leader.isr = (0, 1), ()  # two are asked for below, none is there
        for _ in range(3):
            told = await side.send(both)
            codes = [*(0 for _ in others), ErrorCode.NOT_ENOUGH_REPLICAS]
            assert [each.error_code for each in told] == codes
        await side.send(both, acks=1)

    fast, _ = on_both_sides(play, min_insync_replicas=2)
    assert fast.taken == [1, 0, 0, 0, 1]
    # The first request: not known yet, then judged. The second: judged in vain. Then no more.
    assert [bool(found) for found in judged[:6]] == [False, True, True, False, False, False]


def test_a_produce_that_waits_for_several_watermarks(on_both_sides: Both) -> None:
    async def play(side: Side) -> None:
        both = {"one": [(0, side.batch()), (1, side.batch())], "two": [(0, side.batch())]}
        partitions = [side.node.replicas.find("one", n) for n in (0, 1)]
        held = [_Held(partition) for partition in partitions]
        waiting = asyncio.create_task(side.send(both))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        held[0].let_go()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        held[1].let_go()
        assert [each.error_code for each in await waiting] == [0, 0, 0]
        again = _Held(partitions[1])
        told = await side.send(both)
        assert [each.error_code for each in told] == [0, ErrorCode.REQUEST_TIMED_OUT, 0]
        again.let_go()

    fast, _ = on_both_sides(play)
    assert fast.taken == [1, 1]


class _Held:
    """Keeps the high watermark of a partition where it is, as a follower that lags does."""

    def __init__(self, partition: Any) -> None:
        self._partition = partition
        leader = partition.leader
        self._before = leader.replicas, leader.isr
        leader.replicas = leader.isr = (*leader.replicas, 99)
        leader.followers[99] = Follower(0, Heard(), end_offset=partition.high_watermark.value)

    def let_go(self) -> None:
        leader = self._partition.leader
        leader.replicas, leader.isr = self._before
        del leader.followers[99]
        self._partition.refresh()
