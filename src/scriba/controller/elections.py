"""Who leads a partition, and the records that say so.

A new leader comes from the in-sync replicas that are active; one from outside them only by an
unclean election, which is then the whole in-sync set and marked as recovering (KIP-704). The
in-sync set is never emptied: the last replica stays in it, so that it is known who may come back.
"""

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from scriba.controller.image import (
    NO_CHANGE,
    NO_LEADER,
    RECOVERING,
    TOPIC,
    PartitionImage,
    TopicImage,
)
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.settings.topic import TopicSettings
from scriba.wire.messages.admin import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from scriba.wire.messages.stored import PartitionChangeRecord
from scriba.wire.schema import Message

PREFERRED_ELECTION: Final = 0
UNCLEAN_ELECTION: Final = 1


class Election(enum.Enum):
    PREFERRED = "the first replica, if it is in sync"
    ONLINE = "any in-sync replica, the present leader first"
    UNCLEAN = "any replica that is alive, if no in-sync one is"


def change(
    topic_id: bytes,
    index: int,
    partition: PartitionImage,
    acceptable: Callable[[int], bool],
    *,
    election: Election = Election.ONLINE,
    isr: tuple[int, ...] | None = None,
    leader_recovery_state: int | None = None,
    directories: tuple[bytes, ...] | None = None,
) -> PartitionChangeRecord | None:
    """The record that brings the partition to the wanted state, or None when it is there."""
    wanted_isr = partition.isr if isr is None else isr
    leader, unclean = _elect(partition, wanted_isr, acceptable, election)
    record = PartitionChangeRecord(topic_id=topic_id, partition_id=index)
    if leader != partition.leader:
        record.leader = leader
    if unclean:
        wanted_isr = (leader,)
        if partition.leader_recovery_state != RECOVERING:
            record.leader_recovery_state = RECOVERING
    if wanted_isr and wanted_isr != partition.isr:
        record.isr = list(wanted_isr)
    if leader_recovery_state not in (None, partition.leader_recovery_state):
        record.leader_recovery_state = leader_recovery_state
    if directories not in (None, partition.directories):
        record.directories = list(directories)
    unchanged = (
        record.leader == NO_CHANGE
        and record.isr is None
        and record.leader_recovery_state < 0
        and record.directories is None
    )
    return None if unchanged else record


def _elect(
    partition: PartitionImage,
    isr: tuple[int, ...],
    acceptable: Callable[[int], bool],
    election: Election,
) -> tuple[int, bool]:
    """The leader to be, and whether choosing it may lose records."""
    candidates = [partition.leader, *partition.replicas]
    if election is Election.PREFERRED:
        candidates.insert(0, partition.replicas[0])
    for broker in candidates:
        if broker in isr and acceptable(broker):
            return broker, False
    if election is Election.UNCLEAN:
        for broker in partition.replicas:
            if acceptable(broker):
                return broker, True
    return NO_LEADER, False


def acceptor(
    state: State,
    partition: PartitionImage,
    *,
    without: int = NO_LEADER,
    including: int = NO_LEADER,
) -> Callable[[int], bool]:
    """Whether a broker may lead: active, and its replica's directory online.

    `without` and `including` speak of a broker whose fencing or unfencing is in the making, when
    the image does not show it yet.
    """

    def acceptable(broker_id: int) -> bool:
        if broker_id == without:
            return False
        broker = state.image.brokers.get(broker_id)
        if broker is None or not (broker.active or broker_id == including):
            return False
        return broker.holds(partition.directory(broker_id))

    return acceptable


def unclean_allowed(state: State, topic: str) -> bool:
    overrides = state.image.config(TOPIC, topic)
    return TopicSettings.resolve(overrides, state.settings).unclean_leader_election_enable


def partitions(state: State) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Every partition, robust against replays between two of them."""
    for topic in list(state.image.topics_by_id.values()):
        for index, partition in topic.partitions.items():
            yield topic, index, partition


def leads_any(state: State, broker_id: int) -> bool:
    return any(partition.leader == broker_id for _, _, partition in partitions(state))


def update_leaders(
    state: State,
    chosen: Iterable[tuple[TopicImage, int, PartitionImage]],
    *,
    without: int = NO_LEADER,
    including: int = NO_LEADER,
) -> Iterator[Message]:
    """Takes `without` out of the given partitions, or lets `including` lead those it may."""
    unclean: dict[str, bool] = {}
    for topic, index, partition in chosen:
        if topic.name not in unclean:
            unclean[topic.name] = unclean_allowed(state, topic.name)
        record = change(
            topic.id,
            index,
            partition,
            acceptor(state, partition, without=without, including=including),
            election=Election.UNCLEAN if unclean[topic.name] else Election.ONLINE,
            isr=tuple(broker for broker in partition.isr if broker != without),
        )
        if record is not None:
            yield record


def elect_leaders(state: State, request: ElectLeadersRequest, version: int, now: Instant) -> Result:
    if request.election_type not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        fail(
            ErrorCode.INVALID_REQUEST,
            f"election type {request.election_type} is neither {PREFERRED_ELECTION} (preferred) "
            f"nor {UNCLEAN_ELECTION} (unclean)",
        )
    response = ElectLeadersResponse()
    return Result(_elections(state, request, response), response, atomic=False)


def _elections(
    state: State, request: ElectLeadersRequest, response: ElectLeadersResponse
) -> Iterator[Message]:
    every = request.topic_partitions is None
    if request.topic_partitions is None:
        asked = [(t.name, list(t.partitions)) for t in state.image.topics_by_name.values()]
    else:
        asked = [(t.topic, t.partitions) for t in request.topic_partitions]
    for name, indexes in asked:
        results = ReplicaElectionResult(topic=name)
        response.replica_election_results.append(results)
        for index in indexes:
            code, message, record = _election(state, name, index, request.election_type)
            if record is not None:
                yield record
            if every and code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            results.partition_result.append(
                PartitionResult(partition_id=index, error_code=code, error_message=message)
            )


def _election(
    state: State, name: str, index: int, kind: int
) -> tuple[ErrorCode, str | None, PartitionChangeRecord | None]:
    topic = state.image.topics_by_name.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}", None
    partition = topic.partitions.get(index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}", None
    preferred = kind == PREFERRED_ELECTION
    if partition.leader == partition.replicas[0] if preferred else partition.leader != NO_LEADER:
        return ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.text, None
    record = change(
        topic.id,
        index,
        partition,
        acceptor(state, partition),
        election=Election.PREFERRED if preferred else Election.UNCLEAN,
    )
    if record is not None:
        return ErrorCode.NONE, None, record
    code = (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        if preferred
        else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    )
    return code, code.text, None
