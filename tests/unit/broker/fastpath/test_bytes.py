"""One byte of a learnt frame is another: the node does as if it had no fast paths.

A client repeats a request until a fast path knows it, and then sends it with one byte changed, for
every byte of the frame. Two nodes are told the same, one with fast paths and one without. What they
answer, whether they hang up, and all files that they leave have to be the same.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from scriba.broker.node import Node
from scriba.native import implementation
from scriba.records.batch import Record, encode_batch
from scriba.settings import NodeSettings
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.peer import Peer, Wire
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.frame import decode_response, encode_request
from scriba.wire.messages import admin, fetch, groups, metadata, produce
from scriba.wire.schema import Message

TOPIC: Final = "topic"
PARTITIONS: Final = 2
ADDRESS: Final = ("127.0.0.1", 9092)
LAST: Final = bytes.fromhex("0012 0000 7ffffffe ffff")
"""ApiVersions 0 with a correlation id of its own, whose answer comes after all earlier ones."""
SILENT_S: Final = 2
MASKS: Final = (0x01, 0x80, 0xFF) if os.environ.get("SEEDS") else (0x01,)

Frames = AsyncIterator[bytes]


class Line:
    """Connections to a node, one after the other, by frames."""

    def __init__(self, world: ProcessWorld) -> None:
        self._world = world
        self._wire: Wire | None = None
        self._heard: list[bytes] = []
        self._done = asyncio.Event()

    async def ask(self, frame: bytes) -> list[bytes]:
        """All that comes back for a frame; what is no frame is the end, or a long silence."""
        if self._wire is None:
            self._wire = Wire(await self._world.net.connect(*ADDRESS))
            self._wire.on_frame, self._wire.on_end = self._take, self._end
        self._heard.clear()
        self._done.clear()
        self._wire.send(frame)
        self._wire.send(LAST)
        try:
            await asyncio.wait_for(self._done.wait(), SILENT_S)
        except TimeoutError:
            self._wire.close(TimeoutError("silent"))
        if self._wire.closed:
            self._wire = None
        return self._heard[:]

    def _take(self, frame: bytes) -> None:
        if frame[:4] == LAST[4:8]:
            self._done.set()
        else:
            self._heard.append(frame)

    def _end(self, failure: OSError) -> None:
        self._heard.append(type(failure).__name__.encode())
        self._done.set()


@dataclass(slots=True)
class Client:
    """What a case is given to say the same again and again."""

    world: ProcessWorld
    line: Line
    topic_id: bytes
    version: int

    def named(self, by_id_from: int, name: str) -> dict[str, bytes | str]:
        by_id = self.version >= by_id_from
        return {"topic_id": self.topic_id} if by_id else {name: TOPIC}

    def frame(self, request: Message, correlation_id: int = 7) -> bytes:
        return encode_request(request, self.version, correlation_id, "me")

    def batch(self, **how: Any) -> bytes:
        now = self.world.clock.wall_ms()
        return bytes(encode_batch([Record(0, now, b"k", b"v", ()), Record(1, now)], **how))

    def produce(self, indexes: tuple[int, ...], **how: int) -> bytes:
        parts = [
            produce.PartitionProduceData(index=index, records=self.batch(**how))
            for index in indexes
        ]
        topic = produce.TopicProduceData(partition_data=parts, **self.named(13, "name"))  # type: ignore[arg-type]
        request = produce.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic])
        return self.frame(request)

    def fetch(self, offset: int, session_id: int = 0, epoch: int = -1) -> bytes:
        part = fetch.FetchPartition(fetch_offset=offset, partition_max_bytes=300)
        topic = fetch.FetchTopic(partitions=[part], **self.named(13, "topic"))  # type: ignore[arg-type]
        request = fetch.FetchRequest(
            max_wait_ms=20,
            min_bytes=1,
            max_bytes=10_000,
            isolation_level=1,
            session_id=session_id,
            session_epoch=epoch,
            topics=[topic],
        )
        return self.frame(request)

    def wide_fetch(
        self, offsets: dict[int, int], session_id: int = 0, epoch: int = -1, *forgotten: int
    ) -> bytes:
        named: Any = self.named(13, "topic")
        parts = [
            fetch.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=300)
            for index, offset in offsets.items()
        ]
        gone = [fetch.ForgottenTopic(partitions=list(forgotten), **named)] if forgotten else []
        request = fetch.FetchRequest(
            max_wait_ms=20,
            min_bytes=1,
            max_bytes=700,
            session_id=session_id,
            session_epoch=epoch,
            topics=[fetch.FetchTopic(partitions=parts, **named)] if parts else [],
            forgotten_topics_data=gone,
        )
        return self.frame(request)

    def commit(self, offset: int, partitions: int) -> bytes:
        parts = [
            groups.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata="note"
            )
            for index in range(partitions)
        ]
        topic = groups.OffsetCommitRequestTopic(partitions=parts, **self.named(10, "name"))  # type: ignore[arg-type]
        request = groups.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]
        )
        return self.frame(request)


# ---- what is said before a byte changes: the last frame is the one that a fast path knows ----


async def plain_produce(client: Client) -> Frames:
    for _ in range(3):
        yield client.produce((0,))


async def idempotent_produce(client: Client) -> Frames:
    for sequence in (0, 2, 2):
        yield client.produce((0,), producer_id=77, producer_epoch=0, base_sequence=sequence)


async def produce_to_several(client: Client) -> Frames:
    for _ in range(3):
        yield client.produce((0, 1))


async def plain_fetch(client: Client) -> Frames:
    for offset in (0, 2, 4):
        yield client.fetch(offset)


async def fetch_at_the_end(client: Client) -> Frames:
    for _ in range(3):
        yield client.fetch(8)


async def fetch_in_a_session(client: Client) -> Frames:
    (opened,) = await client.line.ask(client.fetch(0, epoch=0))
    _, answer = decode_response(fetch.FetchResponse, opened, client.version)
    for epoch in (1, 2, 3):
        yield client.fetch(2 * epoch, answer.session_id, epoch)


async def fetch_of_several(client: Client) -> Frames:
    for offset in (0, 2, 4):
        yield client.wide_fetch({1: offset, 0: 8})


async def fetch_in_a_session_of_several(client: Client) -> Frames:
    (opened,) = await client.line.ask(client.wide_fetch({0: 0, 1: 0}, epoch=0))
    _, answer = decode_response(fetch.FetchResponse, opened, client.version)
    id = answer.session_id
    yield client.wide_fetch({0: 2}, id, 1)
    yield client.wide_fetch({}, id, 2, 1)
    yield client.wide_fetch({1: 4, 0: 8}, id, 3, 0)


async def commit_of_one(client: Client) -> Frames:
    for offset in (1, 2, 3):
        yield client.commit(offset, 1)


async def commit_of_several(client: Client) -> Frames:
    for offset in (1, 2, 3):
        yield client.commit(offset, 2)


# ---- two nodes ----


@dataclass(slots=True)
class Told:
    answers: list[tuple[int, int, list[bytes]]] = field(default_factory=list)
    """The byte, how it was changed, and what came back."""
    files: dict[str, bytes] = field(default_factory=dict)
    hits: int = 0


def tell(
    habit: Callable[[Client], Frames],
    version: int,
    fast_paths: bool,
) -> Told:
    sim = SimWorld(seed=1, net_faults=NetFaults(steady=True))
    told = Told()
    settings = {
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "offsets.topic.num.partitions": "1",
        "scriba.fast.paths": str(fast_paths).lower(),
    }

    async def serve(world: ProcessWorld) -> None:
        node = Node(NodeSettings.parse(settings), world)
        await node.start()
        client = Client(world, Line(world), await ready(world), version)
        size = len([frame async for frame in habit(client)][-1])
        for at in range(size):
            for mask in MASKS:
                answers: list[bytes] = []
                async for frame in habit(client):
                    answers += await client.line.ask(frame)
                changed = frame[:at] + bytes([frame[at] ^ mask]) + frame[at + 1 :]
                answers += await client.line.ask(changed)
                told.answers.append((at, mask, answers))
        counters = node.counters
        told.hits = (
            counters.fastpath_produces + counters.fastpath_fetches + counters.fastpath_commits
        )
        await node.stop()

    async def main() -> None:
        host = sim.host("broker")
        await host.start(serve).task
        told.files = host.volume.files()

    sim.run(main())
    return told


async def ready(world: ProcessWorld) -> bytes:
    """Makes the topic with some records, and has a coordinator come up; the topic's id."""
    peer = await Peer.connect(world.net, *ADDRESS)
    new = admin.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    request = admin.CreateTopicsRequest(topics=[new], timeout_ms=1_000)
    made = await peer.call(request, 7, admin.CreateTopicsResponse)
    line = Line(world)
    client = Client(world, line, made.topics[0].topic_id, 9)
    for _ in range(4):
        await line.ask(client.produce((0, 1)))
    codes = {-1}
    while codes != {0}:
        await peer.call(
            metadata.FindCoordinatorRequest(key="g"), 2, metadata.FindCoordinatorResponse
        )
        (answer,) = await line.ask(client.commit(0, 1))
        _, committed = decode_response(groups.OffsetCommitResponse, answer, 9)
        codes = {part.error_code for topic in committed.topics for part in topic.partitions}
        await asyncio.sleep(0.01)
    peer.close()
    return made.topics[0].topic_id


CASES: Final = [
    *((plain_produce, version) for version in (3, 5, 8, 9, 13)),
    *((idempotent_produce, version) for version in (7, 12)),
    *((produce_to_several, version) for version in (8, 11)),
    *((plain_fetch, version) for version in (7, 11, 12, 13, 18)),
    (fetch_at_the_end, 12),
    *((fetch_in_a_session, version) for version in (8, 12, 17)),
    *((fetch_of_several, version) for version in (4, 6, 10, 12, 15)),
    *((fetch_in_a_session_of_several, version) for version in (7, 12, 18)),
    *((commit_of_one, version) for version in (2, 5, 6, 8, 10)),
    *((commit_of_several, version) for version in (7, 9)),
]


@pytest.mark.parametrize(
    ("habit", "version"), CASES, ids=[f"{h.__name__}-{v}".replace("_", "-") for h, v in CASES]
)
@pytest.mark.parametrize(
    "chosen",
    [each for each in (implementation.NATIVE, implementation.FALLBACK) if each is not None],
    ids=lambda chosen: "native" if chosen.native else "python",
)
def test_a_frame_with_one_byte_changed_is_answered_as_without_fast_paths(
    habit: Callable[[Client], Frames],
    version: int,
    chosen: implementation.Implementation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(implementation, "chosen", chosen)
    fast, general = (tell(habit, version, fast_paths) for fast_paths in (True, False))
    for one, other in zip(fast.answers, general.answers, strict=True):
        assert one == other
    assert fast.files == general.files
    assert fast.hits >= len(fast.answers), "frames took a fast path before a byte of them changed"
    assert not general.hits
