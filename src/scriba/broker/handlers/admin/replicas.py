"""Who leads partitions and who holds them: authorised here, decided by the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import at_once
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.storage.directory.names import PartitionName
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from scriba.broker.handlers.ports import ControllerForwarding, DirChanges
    from scriba.broker.ports import Authorization


def _require(node: Authorization, ctx: Context, operation: Operation) -> None:
    if not node.access.allowed(ctx, operation, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def elect_leaders(
    node: ControllerForwarding, ctx: Context, request: ElectLeadersRequest
) -> Deferred[ElectLeadersResponse]:
    _require(node, ctx, Operation.ALTER)
    return Deferred(node.controller.call(request, ctx.version, ctx))


def refuse_elect_leaders(
    request: ElectLeadersRequest, code: ErrorCode, text: str
) -> ElectLeadersResponse:
    """Told of each partition, too: version 0 has no other place for it."""
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=code, error_message=text)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def alter_partition_reassignments(
    node: ControllerForwarding, ctx: Context, request: AlterPartitionReassignmentsRequest
) -> Deferred[AlterPartitionReassignmentsResponse]:
    _require(node, ctx, Operation.ALTER)
    return Deferred(node.controller.call(request, ctx.version, ctx))


def refuse_alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, text: str
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=text,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=asked.partition_index, error_code=code, error_message=text
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def alter_replica_log_dirs(
    node: DirChanges, ctx: Context, request: AlterReplicaLogDirsRequest
) -> Deferred[AlterReplicaLogDirsResponse]:
    """Between directories of this broker; of a replica that is to come, where it goes (KIP-113)."""
    _require(node, ctx, Operation.ALTER)
    return Deferred(_alter_replica_log_dirs(node, request))


async def _alter_replica_log_dirs(
    node: DirChanges, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    pace = Pace(node.world.clock)
    wanted = await in_slices(_wanted(request), pace)
    refused = await node.replicas.moves.alter(wanted)
    return await in_slices(_told(wanted, refused), pace)


def _wanted(request: AlterReplicaLogDirsRequest) -> Generator[None, None, dict[PartitionName, str]]:
    """The directory of each partition, the last that is named for it."""
    wanted: dict[PartitionName, str] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                yield
                wanted[PartitionName(topic.name, index)] = directory.path
    return wanted


def _told(
    names: Iterable[PartitionName], refused: Mapping[PartitionName, KafkaError]
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for name in names:
        yield
        result = topics.get(name.topic)
        if result is None:
            result = topics[name.topic] = AlterReplicaLogDirTopicResult(topic_name=name.topic)
        error = refused.get(name)
        code = ErrorCode.NONE if error is None else error.code
        result.partitions.append(
            AlterReplicaLogDirPartitionResult(partition_index=name.partition, error_code=code)
        )
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def refuse_alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, code: ErrorCode, text: str
) -> AlterReplicaLogDirsResponse:
    wanted = at_once(_wanted(request))
    return at_once(_told(wanted, dict.fromkeys(wanted, KafkaError(code, text))))


def list_partition_reassignments(
    node: ControllerForwarding, ctx: Context, request: ListPartitionReassignmentsRequest
) -> Deferred[ListPartitionReassignmentsResponse]:
    _require(node, ctx, Operation.DESCRIBE)
    return Deferred(node.controller.call(request, ctx.version, ctx))
