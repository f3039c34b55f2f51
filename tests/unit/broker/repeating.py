"""Clients that say the same again and again, as the fast paths want it, and an authoriser."""

import asyncio
from collections.abc import Callable
from typing import Any

from scriba.broker.access import Operation, Resource
from scriba.broker.coordinators.shard_log import read_back
from scriba.broker.node import Node
from scriba.broker.request import Context
from scriba.groups.machine import Groups
from scriba.groups.store import Store
from scriba.records.batch import Record, encode_batch
from scriba.runtime.loop.pace import Pace
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import groups
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

TOPIC_RESOURCE, SET = 2, 0


class Writer:
    """A producer of one topic that says the same again and again."""

    def __init__(self, node: Node, world: ProcessWorld) -> None:
        self.node = node
        self.world = world

    async def open(self, name: str = "t", partitions: int = 1) -> "Writer":
        self.peer = await Peer.connect(self.world.net, "127.0.0.1", 9092)
        await self.create(name, partitions)
        return self

    async def create(self, name: str, partitions: int = 1) -> None:
        new = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        made = await self.peer.call(CreateTopicsRequest(topics=[new]), 7, CreateTopicsResponse)
        assert made.topics[0].error_code == 0

    def batch(self, **how: Any) -> bytearray:
        now = self.world.clock.wall_ms()
        return encode_batch([Record(0, now, b"k", b"v", ()), Record(1, now, b"k", b"w", ())], **how)

    async def send(
        self,
        batch: bytes | bytearray,
        version: int = 9,
        topic: str = "t",
        partitions: tuple[int, ...] = (0,),
        acks: int = -1,
    ) -> list[PartitionProduceResponse]:
        data = [PartitionProduceData(index=index, records=bytes(batch)) for index in partitions]
        id = self.node.image.topics_by_name[topic].id
        named = {"topic_id": id} if version >= 13 else {"name": topic}
        request = ProduceRequest(
            acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(partition_data=data, **named)]
        )
        answer = await self.peer.call(request, version, ProduceResponse)
        (told,) = answer.responses
        assert (told.topic_id if version >= 13 else told.name) == (id if version >= 13 else topic)
        return told.partition_responses

    async def configure(self, name: str, value: str) -> None:
        """Sets a setting of the topic, and waits until its partitions have it."""
        change = IncrementalAlterConfigsRequestAlterableConfig(
            name=name, config_operation=SET, value=value
        )
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name="t", configs=[change]
        )
        await self.peer.call(
            IncrementalAlterConfigsRequest(resources=[resource]), 1, IncrementalAlterConfigsResponse
        )
        await self.node.replicas.settled()

    async def took_the_short_way(self, batch: bytes | bytearray, **how: Any) -> bool:
        before = self.node.counters.fastpath_produces
        await self.send(batch, **how)
        return self.node.counters.fastpath_produces == before + 1


class Nobody:
    """An authoriser that came later."""

    open = False

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        return False


VERSION = 9


class Committer(Writer):
    """A consumer of one topic that commits again and again."""

    member_id = ""
    generation = -1

    async def ready(self, partitions: int = 1) -> "Committer":
        await self.open(partitions=partitions)
        await self.coordinator()
        return self

    async def coordinator(self) -> None:
        """Waits until a commit of the topic is accepted."""
        codes = {-1}
        while codes != {0}:
            await self.peer.call(FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse)
            codes = set(await self.commit(0))
            await asyncio.sleep(0.01)

    async def commit(
        self,
        *offsets: int,
        version: int = VERSION,
        metadata: str | None = "",
        retention_ms: int = -1,
        group: str = "g",
    ) -> list[int]:
        """Commits partitions from 0 on; the error code of each."""
        id = self.node.image.topics_by_name["t"].id
        named = {"topic_id": id} if version >= 10 else {"name": "t"}
        parts = [
            groups.OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=3 if version >= 6 else -1,
                committed_metadata=metadata,
            )
            for index, offset in enumerate(offsets)
        ]
        request = groups.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            retention_time_ms=retention_ms,
            topics=[groups.OffsetCommitRequestTopic(partitions=parts, **named)],
        )
        answer = await self.peer.call(request, version, groups.OffsetCommitResponse)
        (topic,) = answer.topics
        assert (topic.topic_id if version >= 10 else topic.name) == (id if version >= 10 else "t")
        assert [each.partition_index for each in topic.partitions] == list(range(len(offsets)))
        return [each.error_code for each in topic.partitions]

    async def short(self, *offsets: int, **how: object) -> bool:
        before = self.node.counters.fastpath_commits
        assert await self.commit(*offsets, **how) == [0] * len(offsets)  # type: ignore[arg-type]
        return self.node.counters.fastpath_commits == before + 1

    def store(self, group: str = "g") -> Store:
        machine = self.node.group_coordinators.machine_of(
            self.node.group_coordinators.partition_of(group)
        )
        assert isinstance(machine, Groups)
        return machine.state.store

    async def store_read_back(self, group: str = "g") -> Store:
        """What a coordinator believes that loads the partition now."""
        live = self.node.group_coordinators.machine_of(
            self.node.group_coordinators.partition_of(group)
        )
        assert isinstance(live, Groups)
        machine = Groups(live.settings, live.state.topics)
        log = self.node.replicas.find(
            "__consumer_offsets", self.node.group_coordinators.partition_of(group)
        ).log
        await read_back(lambda: log, machine, 1 << 20, Pace(self.world.clock))
        return machine.state.store

    def offsets(self, group: str = "g") -> list[int]:
        return [each.offset for _, each in sorted(self.store().offsets[group].items())]

    async def join(self, sync: bool = True) -> None:
        """Becomes the one member of the group, in a new generation."""
        request = groups.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        answer = await self.peer.call(request, 3, groups.JoinGroupResponse)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        if sync:
            asked = groups.SyncGroupRequest(
                group_id="g", generation_id=self.generation, member_id=self.member_id
            )
            await self.peer.call(asked, 2, groups.SyncGroupResponse)


async def until(so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


class Reader:
    """A consumer of one topic that says the same again and again, and a producer beside it."""

    def __init__(self, node: Node, world: ProcessWorld) -> None:
        self.node = node
        self.world = world

    async def open(self, partitions: int = 1) -> "Reader":
        self.peer = await Peer.connect(self.world.net, "127.0.0.1", 9092)
        self.writer = await Peer.connect(self.world.net, "127.0.0.1", 9092)
        new = CreatableTopic(name="t", num_partitions=partitions, replication_factor=1)
        made = await self.writer.call(CreateTopicsRequest(topics=[new]), 7, CreateTopicsResponse)
        assert made.topics[0].error_code == 0
        self.topic_id = self.node.image.topics_by_name["t"].id
        return self

    async def write(self, size: int = 100, **how: Any) -> int:
        """Two records; where the first one went."""
        now = self.world.clock.wall_ms()
        records = [Record(0, now, b"k", b"v" * size, ()), Record(1, now, b"k", b"w" * size, ())]
        data = PartitionProduceData(index=0, records=bytes(encode_batch(records, **how)))
        request = ProduceRequest(
            transactional_id="shop" if how else None,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name="t", partition_data=[data])],
        )
        answer = await self.writer.call(request, 12, ProduceResponse)
        told = answer.responses[0].partition_responses[0]
        assert told.error_code == 0
        return told.base_offset

    def wanted(self, offset: int, version: int, **how: Any) -> FetchRequest:
        asked: dict[str, Any] = {"partition_max_bytes": 1 << 20, "fetch_offset": offset}
        asked |= {name: how.pop(name) for name in tuple(how) if hasattr(FetchPartition(), name)}
        named = {"topic_id": self.topic_id} if version >= 13 else {"topic": "t"}
        topic = FetchTopic(partitions=[FetchPartition(**asked)], **named)
        return FetchRequest(**{"max_bytes": 1 << 20, "min_bytes": 1, "topics": [topic], **how})

    async def ask(self, offset: int, version: int = 12, **how: Any) -> FetchResponse:
        return await self.peer.call(self.wanted(offset, version, **how), version, FetchResponse)

    async def ordinarily(self, offset: int, version: int = 12, **how: Any) -> FetchResponse:
        self.node.fast_paths = False
        answer = await self.ask(offset, version, **how)
        self.node.fast_paths = True
        return answer

    async def took_the_short_way(self, offset: int, version: int = 12, **how: Any) -> bool:
        """Whether an answer that is equal to the handler's was the fast path's."""
        ordinary = await self.ordinarily(offset, version, **how)
        before = self.node.counters.fastpath_fetches
        assert await self.ask(offset, version, **how) == ordinary
        return self.node.counters.fastpath_fetches > before

    @property
    def waiting(self) -> int:
        return self.node.replicas.find("t", 0).high_watermark.waiting()

    async def parked(self) -> None:
        await until(lambda: self.waiting > 0)
