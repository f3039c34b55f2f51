"""Committed offsets of a group: written to and read from its coordinator.

Topics go by id where the broker takes ids and they are known, by name otherwise. Each call is one
try; what can be tried again says so.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from scriba.client.cluster import Cluster
from scriba.client.coordinator import Coordinator
from scriba.client.group.membership.payload import by_topic
from scriba.client.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from scriba.errors import ErrorCode, error_code
from scriba.peers.errors import BrokerError, ClientError
from scriba.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from scriba.wire.uuids import ZERO

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

_BY_ID: Final = 10
_SEVERAL_GROUPS: Final = 8
_REQUIRE_STABLE: Final = 7

MISSING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Answers about a topic that is not there, or not yet."""


class CommittedOffsets:
    def __init__(self, cluster: Cluster, coordinator: Coordinator) -> None:
        self._cluster = cluster
        self._coordinator = coordinator

    async def commit(self, member: ConsumerGroupMetadata, offsets: Offsets) -> None:
        """BrokerError for the first partition that was refused."""
        try:
            await self._commit(member, offsets)
        except ClientError as failure:
            self._failed(failure)
            raise

    async def _commit(self, member: ConsumerGroupMetadata, offsets: Offsets) -> None:
        connection = await self._coordinator.connect()
        version = connection.version(OffsetCommitRequest, self._newest(offsets))
        request = OffsetCommitRequest(
            group_id=member.group_id,
            generation_id_or_member_epoch=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=self._id(topic),
                    partitions=[
                        _place(index, offsets[TopicPartition(topic, index)]) for index in indexes
                    ],
                )
                for topic, indexes in by_topic(offsets).items()
            ],
        )
        answer = await connection.request(request, OffsetCommitResponse, version=version)
        for said in answer.topics:
            for p in said.partitions:
                if p.error_code:
                    name = self._name(said.topic_id) if version >= _BY_ID else said.name
                    about = f"committing {name}-{p.partition_index} of group {member.group_id}"
                    raise BrokerError(error_code(p.error_code), about=about)

    async def fetch(
        self, member: ConsumerGroupMetadata, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What is committed; None where nothing is. Waits for open transactions (KIP-447)."""
        try:
            return await self._fetch(member, list(partitions))
        except ClientError as failure:
            self._failed(failure)
            raise

    async def _fetch(
        self, member: ConsumerGroupMetadata, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        connection = await self._coordinator.connect()
        version = connection.version(OffsetFetchRequest, self._newest(partitions))
        topics = by_topic(partitions)
        request = OffsetFetchRequest(require_stable=version >= _REQUIRE_STABLE)
        if version >= _SEVERAL_GROUPS:
            group = OffsetFetchRequestGroup(
                group_id=member.group_id,
                member_id=member.member_id or None,
                member_epoch=member.generation_id,
                topics=[
                    OffsetFetchRequestTopics(
                        name=topic, topic_id=self._id(topic), partition_indexes=indexes
                    )
                    for topic, indexes in topics.items()
                ],
            )
            request.groups = [group]
        else:
            request.group_id = member.group_id
            request.topics = [
                OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ]
        answer = await connection.request(request, OffsetFetchResponse, version=version)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)
        for name, p in self._places(answer, version, f"group {member.group_id}"):
            where = TopicPartition(name, p.partition_index)
            if p.error_code:
                raise BrokerError(error_code(p.error_code), about=f"committed offset of {where}")
            if p.committed_offset >= 0:  # brokers take others, at which nobody can go on
                found[where] = OffsetAndMetadata(
                    p.committed_offset, p.metadata or "", p.committed_leader_epoch
                )
        return found

    def _places(
        self, answer: OffsetFetchResponse, version: int, about: str
    ) -> Iterable[tuple[str, OffsetFetchResponsePartitions | OffsetFetchResponsePartition]]:
        code = answer.error_code
        if version >= _SEVERAL_GROUPS:
            code = answer.groups[0].error_code if answer.groups else 0
        if code:
            raise BrokerError(error_code(code), about=about)
        for topic in answer.topics:
            for place in topic.partitions:
                yield topic.name, place
        for group in answer.groups:
            for said in group.topics:
                name = self._name(said.topic_id) if version >= _BY_ID else said.name
                for p in said.partitions:
                    yield name, p

    def _failed(self, failure: ClientError) -> None:
        self._coordinator.failed(failure)
        if isinstance(failure, BrokerError) and failure.code in MISSING:
            self._cluster.stale()  # deleted, or made anew under another id

    def _id(self, topic: str) -> bytes:
        known = self._cluster.topics.get(topic)
        return ZERO if known is None else known.id

    def _name(self, topic_id: bytes) -> str:
        """An answer names only what was asked for by an id that was known then."""
        name = self._cluster.names.get(topic_id)
        if name is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, about="an answer of the coordinator")
        return name

    def _newest(self, partitions: Iterable[TopicPartition]) -> int | None:
        known = all(self._id(where.topic) != ZERO for where in partitions)
        return None if known else _BY_ID - 1


def _place(index: int, committed: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )
