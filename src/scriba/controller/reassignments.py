"""Which brokers hold a partition, as far as it can be changed: not yet.

Replicas are not moved in this release. A reassignment to the replicas that a partition has is done
as soon as it is asked for, as in Kafka; every other is refused, and none is ever under way.
"""

from scriba.controller.image import PartitionImage
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def alter_partition_reassignments(
    state: State, request: AlterPartitionReassignmentsRequest, version: int, now: Instant
) -> Result:
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
    )
    for topic in request.topics:
        answers = ReassignableTopicResponse(name=topic.name)
        response.responses.append(answers)
        for asked in topic.partitions:
            answer = ReassignablePartitionResponse(
                partition_index=asked.partition_index, error_message=None
            )
            answers.partitions.append(answer)
            try:
                _alter(state, topic.name, asked)
            except KafkaError as error:
                answer.error_code = error.code
                # Kafka has no words for the one code that says it all.
                known = error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                answer.error_message = None if known else error.message
    return Result((), response)


def _alter(state: State, name: str, asked: ReassignablePartition) -> None:
    topic = state.image.topics_by_name.get(name)
    if topic is None:
        fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        fail(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {name}-{asked.partition_index}",
        )
    if asked.replicas is None:  # asks to take a reassignment back
        fail(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    _check_target(state, partition, asked.replicas)


def _check_target(state: State, partition: PartitionImage, replicas: list[int]) -> None:
    if not replicas:
        why = "a partition needs at least one replica"
    elif len(set(replicas)) < len(replicas):
        why = f"the replicas {replicas} name a broker twice"
    elif unknown := [broker for broker in replicas if broker not in state.image.brokers]:
        why = f"there is no broker {unknown[0]}"
    elif replicas != list(partition.replicas):
        why = f"replicas cannot be moved yet; they are {list(partition.replicas)} and stay there"
    else:
        return
    fail(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)


def list_partition_reassignments(
    state: State, request: ListPartitionReassignmentsRequest, version: int, now: Instant
) -> Result:
    return Result((), ListPartitionReassignmentsResponse(error_message=None))
