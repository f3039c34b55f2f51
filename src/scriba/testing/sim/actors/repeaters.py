"""Clients that repeat themselves, as real ones do: what a broker's fast paths are made for.

    Producer       plain batches, for one partition or several
    Idempotent     batches with sequence numbers, some of them sent twice or out of order
    Transactional  transactions, committed and aborted
    Reader         one partition, fetched again and again
    SessionReader  the same in a fetch session, which other partitions join and leave
    WideReader     all partitions of all topics, in a fetch session or without
    Committer      offsets, committed without a member
    ClassicMember  the same by a member that joins, is thrown out and comes back
    ConsumerMember the same by a member of the consumer protocol
    Asker          Metadata, committed offsets and end offsets

Each keeps one habit for a while (the same topic, partitions, version, acks, limits), so that its
requests differ from each other in what fast paths let differ. Now and then a request is odd:
broken, unknown, stale, out of order, or of another shape. Nothing is checked here. All that goes
over the wire is written down, to be compared with another run.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from scriba.errors import ErrorCode, ParseError
from scriba.records.batch import Record, encode_batch, walk
from scriba.records.compression import Codec
from scriba.runtime.ports import Stream
from scriba.runtime.rng import SeededRng
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import fetch, groups, metadata, produce, txn
from scriba.wire.schema import Message

T = TypeVar("T")

PATIENCE_S: Final = 5
"""How long an answer is waited for, before the connection is given up."""
DAY_MS: Final = 86_400_000


class Said(NamedTuple):
    """One frame, or the end of a connection, as a client saw it."""

    at_s: float
    connection: int
    what: str
    data: bytes


@dataclass(slots=True)
class Topics:
    """What the clients know of the cluster; the scene keeps it up to date."""

    ids: dict[str, bytes] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)


class RecordedPeer(Peer):
    """Writes down what goes over its wire."""

    def __init__(self, stream: Stream, client_id: str, number: int, notes: list[Said]) -> None:
        super().__init__(stream, client_id)
        self._number = number
        self._notes = notes

    def note(self, what: str, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._notes.append(Said(now, self._number, what, data))

    def _frame(self, request: Message, version: int) -> bytes:
        frame = super()._frame(request, version)
        self.note("asked", frame)
        return frame

    def _take(self, frame: bytes) -> None:
        self.note("was told", frame)
        super()._take(frame)

    def _end(self, failure: OSError) -> None:
        self.note("ended", type(failure).__name__.encode())
        super()._end(failure)


@dataclass(slots=True)
class Repeater:
    name: str
    rng: SeededRng
    topics: Topics
    address: tuple[str, int]
    notes: list[Said] = field(default_factory=list)
    stopping: bool = False
    connections: int = 0
    world: ProcessWorld = field(init=False)
    peer: RecordedPeer = field(init=False)

    versions: ClassVar[range] = range(0)

    async def main(self, world: ProcessWorld) -> None:
        self.world = world
        while not self.stopping:
            try:
                self.connections += 1
                stream = await world.net.connect(*self.address)
                self.peer = RecordedPeer(stream, self.name, self.connections, self.notes)
                try:
                    await self.live()
                finally:
                    self.peer.close()
            except OSError:
                await asyncio.sleep(self.rng.between(0.02, 0.4))

    async def live(self) -> None:
        """One connection's life; an OSError ends it."""
        while not self.stopping:
            version = self.pick(self.versions)
            await self.begin(version)
            for _ in range(3 + self.rng.below(12)):
                await self.pause()
                if self.stopping:
                    return
                await self.repeat(version)

    async def begin(self, version: int) -> None:
        """Takes on a habit."""
        raise AssertionError("a repeater has habits")

    async def repeat(self, version: int) -> None:
        """One request more of the same habit."""
        raise AssertionError("a repeater has habits")

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.between(0, 0.03))

    def pick(self, among: Sequence[T]) -> T:
        return among[self.rng.below(len(among))]

    def odd(self) -> int:
        """Below ten for what is odd about a request; mostly nothing is."""
        return self.rng.below(10) if self.rng.chance(0.25) else 10

    async def call(self, request: Message, version: int, answer: type[Any]) -> Any:
        return await self.peer.call(request, version, answer, PATIENCE_S)

    def topic(self) -> str:
        return self.pick(sorted(self.topics.ids))

    def indexes(self, topic: str, several: float = 0.4) -> list[int]:
        count = self.topics.partitions[topic]
        if self.rng.chance(several):
            return [index for index in range(count) if self.rng.chance(0.7)] or [0]
        return [self.rng.below(count)]

    def named(self, topic: str, version: int, by_id_from: int, name: str) -> dict[str, Any]:
        """How a request of this version names a topic."""
        return {"topic_id": self.topics.ids[topic]} if version >= by_id_from else {name: topic}

    def now_ms(self) -> int:
        return self.world.clock.wall_ms()


# ---- producers ----


@dataclass(slots=True)
class Producer(Repeater):
    versions = range(3, 14)
    transactional_id: ClassVar[str | None] = None
    acks: int = -1
    wanted: list[int] = field(default_factory=list)
    place: dict[str, Any] = field(default_factory=dict)
    where: str = ""

    async def begin(self, version: int) -> None:
        self.acks = self.pick((-1, -1, 1, 1, 0))
        self.where = self.topic()
        self.wanted = self.indexes(self.where)
        self.place = self.named(self.where, version, 13, "name")

    async def repeat(self, version: int) -> None:
        requests = [
            self.request([(index, self.batch()) for index in self.wanted])
            for _ in range(1 if self.rng.chance(0.7) else 3)
        ]
        await asyncio.gather(*(self.send(request, version) for request in requests))

    def request(self, data: Sequence[tuple[int, bytes]]) -> produce.ProduceRequest:
        odd = self.odd()
        indexes = [index + (50 if odd == 0 else 0) for index, _ in data]
        parts = [
            produce.PartitionProduceData(index=index, records=records)
            for index, (_, records) in zip(indexes, data, strict=True)
        ]
        return produce.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=5 if odd == 1 else self.acks,
            timeout_ms=1_000,
            topic_data=[produce.TopicProduceData(partition_data=parts, **self.place)],
        )

    async def send(
        self, request: produce.ProduceRequest, version: int
    ) -> produce.ProduceResponse | None:
        if request.acks == 0:
            self.peer.send_unanswered(request, version)
            return None
        answer: produce.ProduceResponse = await self.call(request, version, produce.ProduceResponse)
        return answer

    def batch(self, **how: Any) -> bytes:
        rng, odd = self.rng, self.odd()
        stamp = self.now_ms() + (7 * DAY_MS if odd == 2 else 0)
        sizes = [rng.below(200) for _ in range(1 + rng.below(4))]
        if odd == 3:
            sizes[0] = 20_000
        records = [Record(at, stamp, b"k", rng.bytes(size), ()) for at, size in enumerate(sizes)]
        codec = self.pick((Codec.LZ4, Codec.GZIP)) if odd == 4 else Codec.NONE
        data = bytes(encode_batch(records, codec=codec, **how))
        if odd == 5:
            at = rng.below(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << rng.below(8)]) + data[at + 1 :]
        elif odd == 6:
            data += data
        elif odd == 7:
            data = data[: rng.below(len(data))]
        return data


@dataclass(slots=True)
class Idempotent(Producer):
    producer: tuple[int, int] | None = None
    """Its id and epoch."""
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    last: dict[tuple[str, int], bytes] = field(default_factory=dict)

    async def begin(self, version: int) -> None:
        await Producer.begin(self, version)
        self.acks = -1
        if self.producer is None or self.rng.chance(0.1):
            request = txn.InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=60_000
            )
            answer = await self.call(request, 4, txn.InitProducerIdResponse)
            fine = answer.error_code == ErrorCode.NONE
            self.producer = (answer.producer_id, answer.producer_epoch) if fine else None
            self.sequences, self.last = {}, {}

    async def repeat(self, version: int) -> None:
        if self.producer is None:
            return
        data = [(index, self.next_batch(index)) for index in self.wanted]
        answer = await self.send(self.request(data), version)
        if answer is not None and self.rng.chance(0.5):
            codes = [p.error_code for t in answer.responses for p in t.partition_responses]
            if any(codes):
                self.producer = None  # begins anew with another id

    def next_batch(self, index: int, **how: Any) -> bytes:
        """The next one, or the last once more, or one that comes too early or is too old."""
        assert self.producer is not None
        where, odd = (self.where, index), self.odd()
        if odd == 0 and where in self.last:
            return self.last[where]
        producer_id, epoch = self.producer
        sequence = self.sequences.get(where, 0) + (odd == 1)
        data = self.batch(
            producer_id=producer_id,
            producer_epoch=epoch - (odd == 2 and epoch > 0),
            base_sequence=sequence,
            **how,
        )
        try:
            self.sequences[where] = sequence + sum(header.count for _, header in walk(data))
        except ParseError:
            return data
        self.last[where] = data
        return data


@dataclass(slots=True)
class Transactional(Idempotent):
    versions = range(12, 14)
    transactional_id = "transactional"

    async def begin(self, version: int) -> None:
        request = metadata.FindCoordinatorRequest(key="transactional", key_type=1)
        await self.call(request, 2, metadata.FindCoordinatorResponse)
        await Idempotent.begin(self, version)

    async def repeat(self, version: int) -> None:
        if self.producer is None:
            return
        for _ in range(1 + self.rng.below(2)):
            await self.pause()
            data = [(index, self.next_batch(index, transactional=True)) for index in self.wanted]
            await self.send(self.request(data), version)
        request = txn.EndTxnRequest(
            transactional_id="transactional",
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=self.rng.chance(0.6),
        )
        answer = await self.call(request, 5, txn.EndTxnResponse)
        if answer.error_code == ErrorCode.NONE:
            self.producer = (answer.producer_id, answer.producer_epoch)
            self.sequences, self.last = {}, {}
        elif self.rng.chance(0.5):
            self.producer = None


# ---- readers ----


@dataclass(slots=True)
class Reader(Repeater):
    versions = range(4, 19)
    habit: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)
    index: int = 0
    several: bool = False
    position: int = 0

    async def begin(self, version: int) -> None:
        topic = self.topic()
        (self.index,) = self.indexes(topic, several=0)
        self.several = self.rng.chance(0.2)
        self.place = self.named(topic, version, 13, "topic")
        self.habit = {
            "max_wait_ms": self.pick((0, 0, 20, 300)),
            "min_bytes": self.pick((0, 1, 1, 500)),
            "max_bytes": self.pick((100, 1_000, 1 << 20)),
            "isolation_level": self.pick((0, 1)),
        }
        epoch = self.pick((-1, -1, 0, 1)) if version >= 9 else -1
        self.limits = {
            "partition_max_bytes": self.pick((1, 300, 5_000, 1 << 20)),
            "current_leader_epoch": epoch,
        }
        self.position = 0

    async def repeat(self, version: int) -> None:
        request = self.request()
        answer: fetch.FetchResponse = await self.call(request, version, fetch.FetchResponse)
        self.follow(answer)

    def request(self) -> fetch.FetchRequest:
        odd = self.odd()
        offset = self.pick((-1, 0, self.position + 1, 1 << 40)) if odd == 0 else self.position
        indexes = [self.index, (self.index + 1) % 3] if self.several else [self.index]
        parts = [self.part(index, offset) for index in indexes]
        topics = [fetch.FetchTopic(partitions=parts, **self.place)]
        return fetch.FetchRequest(topics=topics, **self.habit)

    def part(self, index: int, offset: int) -> fetch.FetchPartition:
        return fetch.FetchPartition(partition=index, fetch_offset=offset, **self.limits)

    def follow(self, answer: fetch.FetchResponse) -> None:
        for topic in answer.responses:
            for part in topic.partitions:
                if part.partition_index != self.index:
                    continue
                if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.position = max(part.log_start_offset, 0)
                try:
                    for _, header in walk(memoryview(bytes(part.records or b""))):  # type: ignore[arg-type]
                        self.position = header.base_offset + header.last_offset_delta + 1
                except ParseError:
                    pass  # the last batch is cut short by a limit of bytes
        if self.rng.chance(0.05):
            self.position = 0


@dataclass(slots=True)
class SessionReader(Reader):
    versions = range(7, 19)
    session_id: int = 0
    epoch: int = 0

    async def begin(self, version: int) -> None:
        await Reader.begin(self, version)
        self.session_id = self.epoch = 0
        self.several = False

    async def repeat(self, version: int) -> None:
        request, odd = self.request(), self.odd()
        request.session_id, request.session_epoch = self.session_id, self.epoch
        (topic,) = request.topics
        if self.session_id and odd == 1:
            request.session_epoch += 1
        elif self.session_id and odd == 2:
            topic.partitions.append(self.part((self.index + 1) % 3, 0))
        elif self.session_id and odd == 3:
            gone = [(self.index + 1) % 3]
            request.forgotten_topics_data = [fetch.ForgottenTopic(partitions=gone, **self.place)]
        elif self.session_id and odd == 4:
            request.topics = []
        answer: fetch.FetchResponse = await self.call(request, version, fetch.FetchResponse)
        self.follow(answer)
        if answer.error_code != ErrorCode.NONE:
            self.session_id = self.epoch = 0
        else:
            self.session_id, self.epoch = answer.session_id, self.epoch + 1


@dataclass(slots=True)
class WideReader(Repeater):
    """A consumer of many partitions. In a session it names those whose offset has changed, and has
    some forgotten for a while, as Java's consumer does with what it has not handed out yet."""

    versions = range(4, 19)
    habit: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    by_id: bool = False
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    told: dict[tuple[str, int], int] = field(default_factory=dict)
    """What the session has been told last."""
    session_id: int = 0
    epoch: int = -1

    async def begin(self, version: int) -> None:
        self.by_id = version >= 13
        places = [
            (topic, p) for topic in self.topics.ids for p in range(self.topics.partitions[topic])
        ]
        self.positions = {place: 0 for place in places if self.rng.chance(0.9)}
        self.habit = {
            "max_wait_ms": self.pick((0, 0, 20, 300)),
            "min_bytes": self.pick((0, 1, 1, 500)),
            "max_bytes": self.pick((0, 400, 3_000, 1 << 20)),
            "isolation_level": self.pick((0, 1)),
        }
        self.limits = {
            "partition_max_bytes": self.pick((1, 300, 5_000, 1 << 20)),
            "current_leader_epoch": self.pick((-1, -1, 0)) if version >= 9 else -1,
        }
        self.session_id, self.told = 0, {}
        self.epoch = 0 if version >= 7 and self.rng.chance(0.6) else -1

    async def repeat(self, version: int) -> None:
        asked = {place: at for place, at in self.positions.items() if self.rng.chance(0.9)}
        odd = self.odd()
        if odd == 0:
            asked = {(topic, index + 50): at for (topic, index), at in asked.items()}
        elif odd == 1:
            asked = dict.fromkeys(asked, self.pick((-1, 1 << 40)))
        elif odd == 2:
            asked = dict(reversed(asked.items()))
        request = fetch.FetchRequest(topics=self.listed(asked), **self.habit)
        if odd == 3:
            request.topics += request.topics
        if self.epoch >= 0:
            request.session_id, request.session_epoch = self.session_id, self.epoch
        if self.epoch > 0:
            changed = {place: at for place, at in asked.items() if self.told.get(place) != at}
            request.topics = self.listed(changed)
            gone = [place for place in self.told if place not in asked]
            request.forgotten_topics_data = [
                fetch.ForgottenTopic(partitions=[index], **self.place(topic))
                for topic, index in gone
            ]
        answer: fetch.FetchResponse = await self.call(request, version, fetch.FetchResponse)
        self.follow(answer)
        if self.epoch >= 0:
            lost = answer.error_code != ErrorCode.NONE or not answer.session_id
            self.told = {} if lost else asked
            self.session_id = 0 if lost else answer.session_id
            self.epoch = 0 if lost else self.epoch + 1

    def place(self, topic: str) -> dict[str, Any]:
        return {"topic_id": self.topics.ids[topic]} if self.by_id else {"topic": topic}

    def listed(self, asked: dict[tuple[str, int], int]) -> list[fetch.FetchTopic]:
        topics: list[fetch.FetchTopic] = []
        last = ""
        for (topic, index), at in asked.items():
            if topic != last:
                topics.append(fetch.FetchTopic(**self.place(topic)))
                last = topic
            part = fetch.FetchPartition(partition=index, fetch_offset=at, **self.limits)
            topics[-1].partitions.append(part)
        return topics

    def follow(self, answer: fetch.FetchResponse) -> None:
        names = {id: name for name, id in self.topics.ids.items()}
        for topic in answer.responses:
            name = names.get(topic.topic_id, "") if self.by_id else topic.topic
            for part in topic.partitions:
                place = (name, part.partition_index)
                if place not in self.positions:
                    continue
                if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.positions[place] = max(part.log_start_offset, 0)
                try:
                    for _, header in walk(memoryview(bytes(part.records or b""))):  # type: ignore[arg-type]
                        self.positions[place] = header.base_offset + header.last_offset_delta + 1
                except ParseError:
                    pass  # the last batch is cut short by a limit of bytes
        if self.rng.chance(0.1):
            self.positions = dict.fromkeys(self.positions, 0)


# ---- commits ----


@dataclass(slots=True)
class Committer(Repeater):
    versions = range(2, 11)
    group: ClassVar[str] = "plain"
    where: str = ""
    place: dict[str, Any] = field(default_factory=dict)
    wanted: list[int] = field(default_factory=list)
    note: str | None = ""
    offset: int = 0
    member_id: str = ""
    generation: int = -1

    async def begin(self, version: int) -> None:
        request = metadata.FindCoordinatorRequest(key=self.group)
        await self.call(request, 2, metadata.FindCoordinatorResponse)
        self.where = self.topic()
        self.wanted = self.indexes(self.where)
        self.place = self.named(self.where, version, 10, "name")
        self.note = self.pick(("", "note", None))

    async def repeat(self, version: int) -> None:
        odd = self.odd()
        self.offset += self.rng.below(20)
        parts = [
            groups.OffsetCommitRequestPartition(
                partition_index=index + (50 if odd == 0 else 0),
                committed_offset=self.offset + index,
                committed_leader_epoch=1 if version >= 6 else -1,
                committed_metadata="another" if odd == 1 else self.note,
            )
            for index in self.wanted
        ]
        request = groups.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation + (odd == 2) - (odd == 3),
            member_id="nobody" if odd == 4 else self.member_id,
            retention_time_ms=1_000 if odd == 5 and version <= 4 else -1,
            topics=[groups.OffsetCommitRequestTopic(partitions=parts, **self.place)],
        )
        answer = await self.call(request, version, groups.OffsetCommitResponse)
        self.heard([p.error_code for topic in answer.topics for p in topic.partitions])

    def heard(self, codes: Sequence[int]) -> None:
        """What to make of an answer."""


@dataclass(slots=True)
class ClassicMember(Committer):
    group = "classic"

    async def begin(self, version: int) -> None:
        await Committer.begin(self, version)
        if not self.member_id or self.rng.chance(0.3):
            await self.join()

    async def pause(self) -> None:
        # Now and then longer than its session lasts.
        await asyncio.sleep(self.rng.between(0, 0.03) if self.rng.chance(0.97) else 1.2)

    async def join(self) -> None:
        request = groups.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=1_000,
            rebalance_timeout_ms=1_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = await self.call(request, 3, groups.JoinGroupResponse)
        if joined.error_code != ErrorCode.NONE:
            self.member_id, self.generation = "", -1
            return
        self.member_id, self.generation = joined.member_id, joined.generation_id
        if self.rng.chance(0.8):  # else it commits while the group forms
            sync = groups.SyncGroupRequest(
                group_id=self.group, generation_id=self.generation, member_id=self.member_id
            )
            await self.call(sync, 2, groups.SyncGroupResponse)

    def heard(self, codes: Sequence[int]) -> None:
        if ErrorCode.UNKNOWN_MEMBER_ID in codes and self.rng.chance(0.5):
            self.member_id, self.generation = "", -1


@dataclass(slots=True)
class ConsumerMember(Committer):
    versions = range(9, 11)
    group = "consumer"

    async def begin(self, version: int) -> None:
        await Committer.begin(self, version)
        self.member_id = f"member-{self.connections}"
        beat = groups.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=max(self.generation, 0),
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=[self.where],
            topic_partitions=[],
        )
        answer = await self.call(beat, 1, groups.ConsumerGroupHeartbeatResponse)
        self.generation = answer.member_epoch if answer.error_code == ErrorCode.NONE else -1


# ---- questions ----


@dataclass(slots=True)
class Asker(Repeater):
    versions = range(4, 14)
    wanted: list[str] | None = None

    async def begin(self, version: int) -> None:
        names = [*sorted(self.topics.ids), "nothing such"]
        self.wanted = None if self.rng.chance(0.4) else [self.pick(names)]

    async def repeat(self, version: int) -> None:
        await asyncio.sleep(self.rng.between(0, 0.1))
        named = [metadata.MetadataRequestTopic(name=name) for name in self.wanted or ()]
        request = metadata.MetadataRequest(
            topics=None if self.wanted is None else named, allow_auto_topic_creation=False
        )
        await self.call(request, version, metadata.MetadataResponse)
        if self.rng.chance(0.3):
            await self.offsets()

    async def offsets(self) -> None:
        """What fast paths have left behind, as the ordinary way tells it."""
        for kind in (Committer, ClassicMember, ConsumerMember):
            asked = groups.OffsetFetchRequest(group_id=kind.group, topics=None)
            await self.call(asked, 5, groups.OffsetFetchResponse)
        topic = self.topic()
        parts = [
            fetch.ListOffsetsPartition(partition_index=index, timestamp=self.pick((-1, -2, -3)))
            for index in range(self.topics.partitions[topic])
        ]
        ends = fetch.ListOffsetsRequest(
            replica_id=-1, topics=[fetch.ListOffsetsTopic(name=topic, partitions=parts)]
        )
        await self.call(ends, 7, fetch.ListOffsetsResponse)


CAST: Final[Mapping[str, type[Repeater]]] = {
    "producer": Producer,
    "rival": Producer,
    "idempotent": Idempotent,
    "transactional": Transactional,
    "reader": Reader,
    "follower": Reader,
    "session": SessionReader,
    "wide": WideReader,
    "broad": WideReader,
    "committer": Committer,
    "classic": ClassicMember,
    "consumer": ConsumerMember,
    "asker": Asker,
}
