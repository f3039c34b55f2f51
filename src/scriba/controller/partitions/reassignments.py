"""Which brokers hold a partition, and how that is changed (KIP-455).

A reassignment first adds: the partition has the replicas of the target and those that are to go,
and says which are which. When all of the target are in sync, the change of the in-sync set that
says so removes the others (`elections.change`). So at no moment there are fewer replicas in sync
than without it, and where there is nothing to add or wait for it is done at once.

It can be changed while it runs, and cancelled. The replicas that it began with stay until it ends,
so that cancelling leads back to them whatever was asked for in between: original = replicas -
adding, target = replicas - removing. One that was being added and is no longer wanted is both, as
long as it is in sync and may be needed; if it is not, it goes at once. (Kafka's controllers forget
what a reassignment began with when it is changed.)

Never: a replica is removed while one of the target is not in sync; a partition loses its leader, or
the last replica that may lead it, because a reassignment is cancelled or changed; a replica is
elected by it that may lack records, where such are asked first what they have (`unclean`): there is
no time to ask in the one record that it is.
"""

from collections.abc import Iterator

from scriba.controller.image import NO_LEADER, PartitionImage, TopicImage, changed
from scriba.controller.partitions.balance_runs import stopped
from scriba.controller.partitions.elections import acceptor, change, rules
from scriba.controller.partitions.placement import check_placement, check_replicas, refuse_replicas
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from scriba.wire.messages.stored import PartitionChangeRecord
from scriba.wire.schema import Message


def alter_partition_reassignments(
    state: State, request: AlterPartitionReassignmentsRequest, version: int, now: Instant
) -> Result:
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
    )
    return Result(_alter_each(state, request, response), response, atomic=False)


def _alter_each(
    state: State,
    request: AlterPartitionReassignmentsRequest,
    response: AlterPartitionReassignmentsResponse,
) -> Iterator[Message]:
    """Each partition stands for itself: one that is refused does not hold the others up."""
    altered: set[tuple[str, int]] = set()
    cancelled = False
    for topic in request.topics:
        answers = ReassignableTopicResponse(name=topic.name)
        response.responses.append(answers)
        for asked in topic.partitions:
            index = asked.partition_index
            answer = ReassignablePartitionResponse(partition_index=index, error_message=None)
            answers.partitions.append(answer)
            try:
                if (topic.name, index) in altered:
                    about = f"{topic.name}-{index}"
                    fail(ErrorCode.INVALID_REQUEST, f"the request names {about} more than once")
                if request.order_only:
                    _check_order_only(state, topic.name, asked)
                factor_may_change = request.allow_replication_factor_change
                record = _alter(state, topic.name, asked, factor_may_change)
            except KafkaError as error:
                answer.error_code = error.code
                # Kafka has no words for the one code that says it all.
                known = error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                answer.error_message = None if known else error.message
                continue
            cancelled = cancelled or asked.replicas is None
            if record is not None:
                altered.add((topic.name, index))
                yield record
    if cancelled:
        yield from stopped(state)


def _check_order_only(state: State, name: str, asked: ReassignablePartition) -> None:
    """Whoever asks for another order of the replicas that it knows must not undo a move that it
    does not know of."""
    topic = state.image.topics_by_name.get(name)
    partition = None if topic is None else topic.partitions.get(asked.partition_index)
    if partition is None:
        return  # it is refused for that
    about = f"{name}-{asked.partition_index}"
    if partition.is_reassigning:
        fail(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"{about} moves: its order is decided by that")
    if asked.replicas is None or sorted(asked.replicas) != sorted(partition.replicas):
        fail(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{about} has replicas {list(partition.replicas)} by now, and only their order was to "
            "change",
        )


def reassign(
    state: State, name: str, index: int, replicas: tuple[int, ...]
) -> PartitionChangeRecord | None:
    """Has a partition go to these brokers, as a request would; KafkaError where it cannot."""
    asked = ReassignablePartition(partition_index=index, replicas=list(replicas))
    return _alter(state, name, asked, factor_may_change=False)


def _alter(
    state: State, name: str, asked: ReassignablePartition, factor_may_change: bool
) -> PartitionChangeRecord | None:
    topic = state.image.topics_by_name.get(name)
    if topic is None:
        fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    about = f"{name}-{asked.partition_index}"
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {about}")
    if asked.replicas is None:
        if not partition.is_reassigning:
            fail(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        placed = _without(partition, partition.adding_replicas)._replace(
            adding_replicas=(), removing_replicas=()
        )
    else:
        check_replicas(state, asked.replicas, about)
        placement = state.image.placement(name)
        check_placement(state, asked.replicas, about, placement, partition.target)
        if not factor_may_change and len(asked.replicas) != len(partition.target):
            fail(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{about} is to have {len(partition.target)} replicas, not {len(asked.replicas)}; "
                "allow a change of the replication factor, or name as many",
            )
        placed = _towards(state, partition, tuple(asked.replicas))
    return _placed(state, topic, asked.partition_index, partition, placed)


def _without(partition: PartitionImage, gone: tuple[int, ...]) -> PartitionImage:
    stay = tuple(broker for broker in partition.replicas if broker not in gone)
    return partition._replace(replicas=stay, directories=tuple(map(partition.directory, stay)))


def _towards(state: State, partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    """The partition on its way to these replicas, from those that it had before any way."""
    original = partition.original
    useful = {*original, *partition.isr, *partition.eligible_leader_replicas}
    leaving = sorted(b for b in partition.replicas if b not in target and b in useful)
    replicas = (*target, *leaving)
    return partition._replace(
        replicas=replicas,
        directories=tuple(
            partition.directory(broker)
            if broker in partition.replicas
            else state.image.brokers[broker].default_directory()
            for broker in replicas
        ),
        adding_replicas=tuple(sorted(b for b in replicas if b not in original)),
        removing_replicas=tuple(leaving),
    )


def _placed(
    state: State, topic: TopicImage, index: int, partition: PartitionImage, placed: PartitionImage
) -> PartitionChangeRecord | None:
    accept, of_topic = acceptor(state, placed), rules(state, topic.name)
    record = change(topic.id, index, partition, accept, of_topic, placed=placed)
    if record is None:
        return None
    after = changed(partition, record)
    trusted = {*partition.isr, *partition.eligible_leader_replicas}
    leads_on = after.leader != NO_LEADER or partition.leader == NO_LEADER
    if not leads_on or (after.leader == NO_LEADER and not trusted & {*after.replicas}):
        led = partition.leader != NO_LEADER
        first = f"stop broker {partition.leader} and run" if led else "first run"
        refuse_replicas(
            f"{topic.name}-{index}",
            f"would have no replica that may lead: in sync are {list(partition.isr)}; wait for "
            f"one of the others to catch up, or {first} `scriba cluster elect --unclean`, which "
            "says what is lost",
        )
    return record


def list_partition_reassignments(
    state: State, request: ListPartitionReassignmentsRequest, version: int, now: Instant
) -> Result:
    found = list(state.partitions.reassigning(state.image))
    # However many are asked for, those are few.
    wanted: dict[str, set[int]] = {topic.name: set() for topic, _, _ in found}
    for asked in request.topics or ():
        if asked.name in wanted:
            wanted[asked.name].update(asked.partition_indexes)
    topics: dict[str, OngoingTopicReassignment] = {}
    for topic, index, partition in found:
        if request.topics is not None and index not in wanted[topic.name]:
            continue
        if topic.name not in topics:
            topics[topic.name] = OngoingTopicReassignment(name=topic.name)
        topics[topic.name].partitions.append(
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
        )
    return Result(
        (), ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))
    )
