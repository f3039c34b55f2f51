"""A commit that says what an earlier one said, but for its offsets.

Consumers commit the same partitions again and again. What does not change from one commit to the
next (group, member, generation, topics and partitions, metadata) is worked out once, as a
`Repeat`. Whether the member may commit is asked each time, as for any commit, and its records are
replayed as any others, but without being read: what they say is known.

A Repeat holds while the topics and the settings are those it was made under; who keeps it sees to
that. It knows plain commits only: of topics and partitions that exist, outside of a transaction,
without an expiry of their own.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.offsets.commit import (
    begin_simple_group,
    check_commit,
    look_up,
    metadata_fits,
)
from scriba.groups.state import State
from scriba.groups.store import Committed, TopicPartition
from scriba.instant import Instant
from scriba.outcome import Caller, Change
from scriba.wire.messages.groups import OffsetCommitRequest
from scriba.wire.messages.stored_groups import OffsetCommitKey, OffsetCommitValue

_new = tuple.__new__  # makes a named tuple without a call of Python


class Standing(NamedTuple):
    """What stays the same of one partition's commit."""

    topic_partition: TopicPartition
    topic_id: bytes
    leader_epoch: int
    metadata: str


class Repeat(NamedTuple):
    request: OffsetCommitRequest
    """Whose offsets mean nothing."""
    caller: Caller
    parts: tuple[Standing, ...]

    def records(self, offset: int, commit_ms: int) -> list[Change]:
        """The records of such a commit, with the same offset everywhere: what its bytes look
        like."""
        return [
            Change(
                OffsetCommitKey(
                    group=self.request.group_id,
                    topic=part.topic_partition[0],
                    partition=part.topic_partition[1],
                ),
                OffsetCommitValue(
                    offset=offset,
                    leader_epoch=part.leader_epoch,
                    metadata=part.metadata,
                    commit_timestamp=commit_ms,
                    topic_id=part.topic_id,
                ),
            )
            for part in self.parts
        ]


def repeat_of(state: State, request: OffsetCommitRequest, caller: Caller) -> Repeat | None:
    """None for a commit that is not plain."""
    if request.retention_time_ms != -1:
        return None
    parts: list[Standing] = []
    for topic in request.topics:
        verdicts = look_up(state, topic, caller.version)
        facts = verdicts.facts
        if facts is None or any(error is not ErrorCode.NONE for error in verdicts.errors):
            return None
        for each in topic.partitions:
            metadata = each.committed_metadata or ""
            if not metadata_fits(state, metadata):
                return None
            topic_partition = (facts.name, each.partition_index)
            parts.append(Standing(topic_partition, facts.id, each.committed_leader_epoch, metadata))
    return Repeat(request, caller, tuple(parts)) if parts else None


def check_and_touch(state: State, repeat: Repeat, now: Instant) -> bool:
    """Whether the commit would be accepted now, whole; then the member is seen to live."""
    try:
        check = check_commit(state, repeat.request, repeat.caller, now)
        if check is not None:
            for part in repeat.parts:
                check(part.topic_partition[0], part.topic_id, part.topic_partition[1])
    except KafkaError:
        return False
    return True


def replay_repeat(
    state: State, repeat: Repeat, offsets: Sequence[int], position: int, commit_ms: int
) -> None:
    """Replays the records of a repeated commit, which were appended from `position` on.

    As `replay_offset` does with each of them, which would have to be read again for that.
    """
    store = state.store
    group_id = repeat.request.group_id
    if group_id not in store.groups:
        begin_simple_group(store, group_id, commit_ms)
    for (topic_partition, topic_id, leader_epoch, metadata), offset in zip(
        repeat.parts, offsets, strict=True
    ):
        fields = (offset, leader_epoch, metadata, commit_ms, -1, topic_id, position)
        store.put_offset(group_id, topic_partition, _new(Committed, fields))
        position += 1
