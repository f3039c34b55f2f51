"""Committing offsets: OffsetCommit, TxnOffsetCommit, and what replay makes of their records.

A commit is accepted from the current member at the current generation; from anybody while the
group has no members (a simple consumer, an administrator). One that belongs to a transaction is
stored as pending with its producer, and counts from the moment the transaction commits.

Topics are looked up here: what does not exist cannot be committed to. The record keeps the topic's
id, so that offsets of a topic that was deleted are not taken for those of its successor.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Final, Protocol

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.classic.group import ClassicGroup, Phase, refuse
from scriba.groups.classic.rebalance import keep_session
from scriba.groups.facts import NO_TOPIC_ID, TopicFacts
from scriba.groups.state import State
from scriba.groups.store import CheckTopicPartition, Committed, Store
from scriba.instant import Instant
from scriba.outcome import Caller, Change, Origin, Outcome, Token, at_once, nothing
from scriba.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from scriba.wire.messages.stored_groups import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from scriba.wire.messages.txn import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

NO_PRODUCER = NO_EPOCH = -1
AT_ONCE = 250
"""Partitions of a commit that do not hold the loop for long; more are taken in slices."""
TOPIC_IDS_FROM = 10
GROUP_ID_NOT_FOUND_FROM = 9

LATEST_MS: Final = (1 << 63) - 1
"""What is to be kept for longer than there are timestamps is kept until then."""


class Partition(Protocol):
    """What OffsetCommit and TxnOffsetCommit tell of a partition."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class Verdicts:
    """The partitions of one topic in a request: error by error, then answered in their order."""

    def __init__(
        self, facts: TopicFacts | None, unknown: ErrorCode, partitions: Sequence[Partition]
    ) -> None:
        self.facts = facts
        self.partitions = partitions
        count = facts.partitions if facts is not None else 0
        absent = unknown if facts is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.errors = [
            ErrorCode.NONE if 0 <= each.partition_index < count else absent for each in partitions
        ]
        self.complete = facts is not None and absent not in self.errors
        """Whether all of it exists."""

    def acceptable(self) -> Iterator[tuple[int, TopicFacts, Partition]]:
        """Position, topic and partition of what has no error so far."""
        if self.facts is not None:
            for i, partition in enumerate(self.partitions):
                if self.errors[i] is ErrorCode.NONE:
                    yield i, self.facts, partition


# --- OffsetCommit ---


def commit(
    state: State, request: OffsetCommitRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    work = _commit(state, request, token, caller, now)
    if len(request.topics) + sum(len(topic.partitions) for topic in request.topics) > AT_ONCE:
        return Outcome(work=work)
    return at_once(work)


def _commit(
    state: State, request: OffsetCommitRequest, token: Token, caller: Caller, now: Instant
) -> Generator[None, None, Outcome]:
    verdicts = []
    for topic in request.topics:
        verdicts.append(look_up(state, topic, caller.version))
        yield
    out = Outcome(instead=nothing)
    if any(True for each in verdicts for _ in each.acceptable()):
        try:
            check = check_commit(state, request, caller, now)
            expire = request.retention_time_ms
            expire_ms = -1 if expire == -1 else min(now.wall_ms + expire, LATEST_MS)
            out.records = yield from _records(
                state, request.group_id, verdicts, check, now.wall_ms, expire_ms, with_id=True
            )
        except KafkaError as e:
            _refuse_all(verdicts, e.code)
    topics = []
    for topic, each in zip(request.topics, verdicts, strict=True):
        if not topic.partitions and each.facts is not None:
            continue  # of a topic without partitions Kafka tells only where it does not exist
        answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        topics.append(answer)
        yield
        for start in range(0, len(topic.partitions), AT_ONCE):
            yield
            slice_ = slice(start, start + AT_ONCE)
            answer.partitions += [
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=error
                )
                for partition, error in zip(
                    topic.partitions[slice_], each.errors[slice_], strict=True
                )
            ]
    if len(topics) > 1 and not all(each.complete for each in verdicts):
        topics = _once(topics)
    out.replies.append((token, OffsetCommitResponse(topics=topics)))
    return out


def _once(topics: list[OffsetCommitResponseTopic]) -> list[OffsetCommitResponseTopic]:
    """Kafka puts together what it says of a topic that is named twice if it has anything to add
    to the coordinator's answer."""
    found: dict[tuple[str, bytes], OffsetCommitResponseTopic] = {}
    for topic in topics:
        first = found.setdefault((topic.name, topic.topic_id), topic)
        if first is not topic:
            first.partitions += topic.partitions
    return list(found.values())


def look_up(state: State, topic: OffsetCommitRequestTopic, version: int) -> Verdicts:
    """The partitions of a topic in the request, with the error of each that does not exist."""
    if version >= TOPIC_IDS_FROM:
        facts, unknown = state.topics.by_id(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    else:
        facts, unknown = state.topics.get(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return Verdicts(facts, unknown, topic.partitions)


def check_commit(
    state: State, request: OffsetCommitRequest, caller: Caller, now: Instant
) -> CheckTopicPartition | None:
    """KafkaError where this member may not commit now; else it is seen to live."""
    group = state.store.groups.get(request.group_id)
    epoch = request.generation_id_or_member_epoch
    if group is None:
        if epoch >= 0:
            known = caller.version >= GROUP_ID_NOT_FOUND_FROM
            refuse(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)
        return None
    check = group.check_commit(
        request.member_id, request.group_instance_id, epoch, caller.version, False
    )
    if isinstance(group, ClassicGroup) and group.phase in (Phase.STABLE, Phase.PREPARING):
        # Older clients commit without heartbeats in between; a commit shows that they live.
        keep_session(state, group, group.members[request.member_id], now)
    return check


# --- TxnOffsetCommit ---


def commit_in_txn(
    state: State, request: TxnOffsetCommitRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    verdicts = [
        Verdicts(state.topics.get(topic.name), unknown, topic.partitions)
        for topic in request.topics
    ]
    out = Outcome(producer=(request.producer_id, request.producer_epoch), instead=nothing)
    if any(True for each in verdicts for _ in each.acceptable()):
        try:
            check = _check_txn_commit(state, request, caller)
            out.records = at_once(
                _records(state, request.group_id, verdicts, check, now.wall_ms, -1, with_id=False)
            )
        except KafkaError as e:
            # A transaction's client knows generations only.
            stale = e.code is ErrorCode.STALE_MEMBER_EPOCH
            _refuse_all(verdicts, ErrorCode.ILLEGAL_GENERATION if stale else e.code)
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=error
                )
                for partition, error in zip(topic.partitions, each.errors, strict=True)
            ],
        )
        for topic, each in zip(request.topics, verdicts, strict=True)
    ]
    out.replies.append((token, TxnOffsetCommitResponse(topics=topics)))
    return out


def _check_txn_commit(
    state: State, request: TxnOffsetCommitRequest, caller: Caller
) -> CheckTopicPartition | None:
    if not request.group_id:
        refuse(ErrorCode.INVALID_GROUP_ID)
    if request.producer_id != NO_PRODUCER and request.producer_epoch == NO_EPOCH:
        # No batch can be written for it, as Kafka finds out late. Without a producer at all, which
        # gets here where nobody verifies, a commit is like any other.
        refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
    group = state.store.groups.get(request.group_id)
    if group is None:
        if request.generation_id >= 0:
            refuse(ErrorCode.ILLEGAL_GENERATION)
        return None
    return group.check_commit(
        request.member_id, request.group_instance_id, request.generation_id, caller.version, True
    )


# --- both ---


def _records(
    state: State,
    group_id: str,
    verdicts: list[Verdicts],
    check: CheckTopicPartition | None,
    commit_ms: int,
    expire_ms: int,
    *,
    with_id: bool,
) -> Generator[None, None, list[Change]]:
    """The records of all that can be committed, in slices. KafkaError, and then none, where the
    member may not commit to one of the places."""
    records = []
    for each in verdicts:
        for i, facts, partition in each.acceptable():
            if i % AT_ONCE == 0:
                yield
            metadata = partition.committed_metadata or ""
            if metadata and not metadata_fits(state, metadata):
                each.errors[i] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if check is not None:
                check(facts.name, facts.id, partition.partition_index)
            key = OffsetCommitKey(
                group=group_id, topic=facts.name, partition=partition.partition_index
            )
            value = OffsetCommitValue(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=metadata,
                commit_timestamp=commit_ms,
                expire_timestamp=expire_ms,
                # The value that can hold an expiry is an old one, without topic ids.
                topic_id=facts.id if with_id and expire_ms < 0 else NO_TOPIC_ID,
            )
            records.append(Change(key, value))
    return records


def _refuse_all(verdicts: list[Verdicts], error: ErrorCode) -> None:
    for each in verdicts:
        for i, _, _ in list(each.acceptable()):
            each.errors[i] = error


def metadata_fits(state: State, text: str) -> bool:
    """Kafka's limit counts UTF-16 units, whatever the setting's name says."""
    units = len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
    return units <= state.settings.offset_metadata_max_bytes


# --- replay ---


def replay_offset(
    state: State, key: OffsetCommitKey, value: OffsetCommitValue | None, origin: Origin
) -> None:
    store = state.store
    place = (key.topic, key.partition)
    if value is None:
        store.drop_offset(key.group, place)
        return
    if key.group not in store.groups:
        begin_simple_group(store, key.group, origin.timestamp_ms)
    committed = Committed.read(value, origin.offset)
    if origin.producer_id < 0:
        store.put_offset(key.group, place, committed)
    else:
        store.put_pending(origin.producer_id, key.group, place, committed)


def begin_simple_group(store: Store, group_id: str, timestamp_ms: int) -> None:
    """A simple consumer's group exists by its offsets alone."""
    store.groups[group_id] = ClassicGroup(group_id, timestamp_ms)


def replay_legacy_offset(
    state: State,
    key: LegacyOffsetCommitKey,
    value: LegacyOffsetCommitValue | None,
    origin: Origin,
) -> None:
    """Keys as Kafka wrote them before 0.9; the places are the same."""
    current = OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition)
    if value is None:
        replay_offset(state, current, None, origin)
        return
    as_now = OffsetCommitValue(
        offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp
    )
    replay_offset(state, current, as_now, origin)
