"""Who leads partitions and who holds them: authorised here, decided by the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
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
    from scriba.broker.handlers.ports import ControllerForwarding


def _require(node: ControllerForwarding, ctx: Context, operation: Operation) -> None:
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


def list_partition_reassignments(
    node: ControllerForwarding, ctx: Context, request: ListPartitionReassignmentsRequest
) -> Deferred[ListPartitionReassignmentsResponse]:
    _require(node, ctx, Operation.DESCRIBE)
    return Deferred(node.controller.call(request, ctx.version, ctx))
