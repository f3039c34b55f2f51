"""What the leader of a partition asks for: its in-sync set, its directory, producer ids.

A change of the in-sync set is a compare-and-set on the leader's and the partition's epoch, so a
leader that was replaced, or that decides on an old view, changes nothing (KIP-497, KIP-841).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from scriba.controller.image import (
    NO_CHANGE,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    PartitionImage,
    changed,
)
from scriba.controller.partitions.elections import Rules, acceptor, change, rules
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
    BrokerState,
)
from scriba.wire.messages.stored import ProducerIdsRecord
from scriba.wire.schema import Message

PRODUCER_ID_BLOCK: Final = 1000
_MAX_PRODUCER_ID: Final = (1 << 63) - 1


def alter_partition(
    state: State, request: AlterPartitionRequest, version: int, now: Instant
) -> Result:
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    response = AlterPartitionResponse()
    return Result(_alter(state, request, version, response), response, atomic=False)


def _alter(
    state: State, request: AlterPartitionRequest, version: int, response: AlterPartitionResponse
) -> Iterator[Message]:
    decided: set[tuple[bytes, int]] = set()
    for asked in request.topics:
        answers = AlterPartitionResponseTopicData(topic_id=asked.topic_id)
        response.topics.append(answers)
        topic = state.image.topics_by_id.get(asked.topic_id)
        of_topic = rules(state, topic.name if topic else "")
        for wanted in asked.partitions:
            answer = AlterPartitionResponsePartitionData(partition_index=wanted.partition_index)
            answers.partitions.append(answer)
            if topic is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            partition = topic.partitions.get(wanted.partition_index)
            members = _members(wanted, version)
            error = _objection(state, request.broker_id, partition, wanted, members, of_topic)
            error = error or _repeated(decided, topic.id, wanted.partition_index)
            if error or partition is None:
                answer.error_code = error
                continue
            record = change(
                topic.id,
                wanted.partition_index,
                partition,
                acceptor(state, partition),
                of_topic,
                isr=tuple(member.broker_id for member in members),
                leader_recovery_state=wanted.leader_recovery_state,
                arrived=_is_as_asked(partition, wanted, members),
            )
            if record is not None:
                yield record
                partition = changed(partition, record)
                if record.leader not in (NO_CHANGE, request.broker_id):
                    answer.error_code = ErrorCode.NEW_LEADER_ELECTED
                    continue
            _fill(answer, partition)


def _repeated(decided: set[tuple[bytes, int]], topic_id: bytes, index: int) -> ErrorCode:
    """One request changes a partition once: the image does not show yet what it has changed."""
    if (topic_id, index) in decided:
        return ErrorCode.INVALID_REQUEST
    decided.add((topic_id, index))
    return ErrorCode.NONE


def _members(wanted: AlterPartitionRequestPartitionData, version: int) -> list[BrokerState]:
    if version >= 3:
        return wanted.new_isr_with_epochs
    return [BrokerState(broker_id=broker, broker_epoch=-1) for broker in wanted.new_isr]


def _is_as_asked(
    partition: PartitionImage,
    wanted: AlterPartitionRequestPartitionData,
    members: list[BrokerState],
) -> bool:
    """Whether the leader asks for what is: it says that observers have caught up."""
    return wanted.leader_recovery_state == partition.leader_recovery_state and {
        member.broker_id for member in members
    } == {*partition.isr}


def _fill(answer: AlterPartitionResponsePartitionData, partition: PartitionImage) -> None:
    answer.leader_id = partition.leader
    answer.leader_epoch = partition.leader_epoch
    answer.isr = list(partition.isr)
    answer.leader_recovery_state = partition.leader_recovery_state
    answer.partition_epoch = partition.partition_epoch


def _objection(
    state: State,
    broker_id: int,
    partition: PartitionImage | None,
    wanted: AlterPartitionRequestPartitionData,
    members: list[BrokerState],
    rules: Rules,
) -> ErrorCode:
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if (
        wanted.leader_epoch > partition.leader_epoch
        or wanted.partition_epoch > partition.partition_epoch
    ):
        # The leader has seen more than this image holds: another controller rules by now.
        return ErrorCode.NOT_CONTROLLER
    if wanted.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [member.broker_id for member in members]
    recovering = wanted.leader_recovery_state == RECOVERING
    if (
        not isr
        or len(set(isr)) != len(isr)
        or not set(isr).issubset(partition.replicas)
        or partition.leader not in isr
        or wanted.leader_recovery_state not in (RECOVERED, RECOVERING)
        or (recovering and len(isr) > 1)
        or (recovering and partition.leader_recovery_state == RECOVERED)
    ):
        return ErrorCode.INVALID_REQUEST
    if any(broker in rules.observing and broker not in partition.isr for broker in isr):
        return ErrorCode.INELIGIBLE_REPLICA
    if not _eligible(state, partition, members):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _eligible(state: State, partition: PartitionImage, members: Iterable[BrokerState]) -> bool:
    """A replica joins only as the incarnation that caught up: -1 skips that check (KIP-903).

    One whose directory failed since does not: the leader does not know of that yet.
    """
    for member in members:
        broker = state.image.brokers.get(member.broker_id)
        if broker is None or not broker.active:
            return False
        if member.broker_epoch not in (-1, broker.epoch):
            return False
        if not broker.holds(partition.directory(member.broker_id)):
            return False
    return True


def assign_replicas_to_dirs(
    state: State, request: AssignReplicasToDirsRequest, version: int, now: Instant
) -> Result:
    """A broker with several directories says where it put a replica (KIP-858)."""
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    response = AssignReplicasToDirsResponse()
    return Result(_assign(state, request, response), response, atomic=False)


def _assign(
    state: State, request: AssignReplicasToDirsRequest, response: AssignReplicasToDirsResponse
) -> Iterator[Message]:
    broker_id = request.broker_id
    decided: set[tuple[bytes, int]] = set()
    for directory in request.directories:
        topics = AssignReplicasToDirsResponseDirectoryData(id=directory.id)
        response.directories.append(topics)
        for asked in directory.topics:
            answers = AssignReplicasToDirsResponseTopicData(topic_id=asked.topic_id)
            topics.topics.append(answers)
            topic = state.image.topics_by_id.get(asked.topic_id)
            of_topic = rules(state, topic.name if topic else "")
            for wanted in asked.partitions:
                index = wanted.partition_index
                answer = AssignReplicasToDirsResponsePartitionData(partition_index=index)
                answers.partitions.append(answer)
                partition = topic.partitions.get(index) if topic else None
                if topic is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                elif partition is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif broker_id not in partition.replicas:
                    answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif error := _repeated(decided, topic.id, index):
                    answer.error_code = error
                else:
                    record = _assigned(
                        state, topic.id, index, partition, of_topic, broker_id, directory.id
                    )
                    if record is not None:
                        yield record


def _assigned(
    state: State,
    topic_id: bytes,
    index: int,
    partition: PartitionImage,
    rules: Rules,
    broker_id: int,
    directory: bytes,
) -> Message | None:
    """A replica in a directory that failed meanwhile, or in none (its files are damaged: the broker
    says `DIRECTORY_LOST`), is out of the in-sync set and not eligible."""
    where = list(partition.directories)
    where[partition.replicas.index(broker_id)] = directory
    moved = partition._replace(directories=tuple(where))
    held = state.image.brokers[broker_id].holds(directory)
    isr = partition.isr if held else tuple(b for b in partition.isr if b != broker_id)
    return change(
        topic_id,
        index,
        partition,
        acceptor(state, moved),
        rules,
        isr=isr,
        untrusted=NO_LEADER if held else broker_id,
        placed=moved,
    )


def allocate_producer_ids(
    state: State, request: AllocateProducerIdsRequest, version: int, now: Instant
) -> Result:
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    start = state.image.next_producer_id
    if start > _MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
        fail(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids have been given out")
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=start + PRODUCER_ID_BLOCK,
    )
    response = AllocateProducerIdsResponse(
        producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK
    )
    return Result([record], response)
