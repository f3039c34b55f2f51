"""A group at a coordinator that speaks only older versions, in virtual time."""

from typing import Any

import pytest

from scriba.client.consuming.consumer import Consumer
from scriba.client.model import OffsetAndMetadata, TopicPartition
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError
from scriba.records.batch import Record, encode_batch
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    SyncGroupRequest,
    SyncGroupResponse,
)
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from tests.unit.client.fake_cluster import FakeCluster

OLD: dict[int, int] = {
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.JOIN_GROUP: 2,
    ApiKey.SYNC_GROUP: 1,
    ApiKey.HEARTBEAT: 1,
    ApiKey.LEAVE_GROUP: 1,
    ApiKey.OFFSET_COMMIT: 5,
    ApiKey.OFFSET_FETCH: 3,
}


class OldCluster(FakeCluster):
    """A group of one member, as brokers kept it before Kafka 2.1."""

    def __init__(self) -> None:
        super().__init__()
        self.top_versions = dict(OLD)
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.left: list[str] = []

    async def handle(self, broker: int, key: int, version: int, request: Any) -> object:
        match request:
            case FindCoordinatorRequest():
                assert request.key == "g"
                return FindCoordinatorResponse(node_id=1, host="b1", port=9092)
            case JoinGroupRequest():
                chosen = request.protocols[0]
                me = JoinGroupResponseMember(member_id="m", metadata=chosen.metadata)
                return JoinGroupResponse(
                    generation_id=1,
                    protocol_name=chosen.name,
                    leader="m",
                    member_id="m",
                    members=[me],
                )
            case SyncGroupRequest():
                return SyncGroupResponse(assignment=request.assignments[0].assignment)
            case HeartbeatRequest():
                return HeartbeatResponse()
            case LeaveGroupRequest():
                self.left.append(request.member_id)
                return LeaveGroupResponse()
            case OffsetCommitRequest():
                return self._commit(request)
            case OffsetFetchRequest():
                return self._committed(request)
        return await super().handle(broker, key, version, request)

    def _commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        for topic in request.topics:
            for p in topic.partitions:
                self.committed[TopicPartition(topic.name, p.partition_index)] = OffsetAndMetadata(
                    p.committed_offset, p.committed_metadata or ""
                )
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=p.partition_index)
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _committed(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        assert request.group_id == "g"
        nothing = OffsetAndMetadata(-1)
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=index,
                            committed_offset=place.offset,
                            metadata=place.metadata,
                        )
                        for index in topic.partition_indexes
                        for place in [
                            self.committed.get(TopicPartition(topic.name, index), nothing)
                        ]
                    ],
                )
                for topic in request.topics or []
            ]
        )


def test_a_member_joins_reads_commits_and_leaves_in_the_versions_that_both_speak() -> None:
    cluster = OldCluster()
    [log] = cluster.topic("t")
    log.write(bytes(encode_batch([Record(0, n, None, b"%d" % n) for n in range(10)])))
    where = TopicPartition("t", 0)

    def consumer(world: ProcessWorld) -> Consumer:
        return Consumer(
            bootstrap_servers=cluster.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            _ports=world,
        )

    async def main(world: ProcessWorld) -> None:
        async with consumer(world) as c:
            c.subscribe("t")
            async for record in c:
                if record.offset == 3:
                    break
            await c.commit({where: OffsetAndMetadata(2, "two")})
            assert await c.committed([where]) == {where: OffsetAndMetadata(2, "two")}
        assert cluster.left == ["m"]
        assert cluster.committed == {where: OffsetAndMetadata(4)}
        async with consumer(world) as c:
            c.subscribe("t")
            assert (await anext(c)).offset == 4, "closing committed the position"

    cluster.run(main)
    for _, message, version in cluster.seen:
        assert version <= OLD.get(message.KEY or 0, 99)


def test_a_static_member_needs_a_coordinator_that_knows_static_members() -> None:
    cluster = OldCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap, group_id="g", group_instance_id="i", _ports=world
        ) as c:
            c.subscribe("t")
            with pytest.raises(BrokerError, match="group_instance_id") as caught:
                await anext(c)
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION

    cluster.run(main)
