"""A group of the consumer protocol (KIP-848): what is stored of it, and what follows from that.

Three numbers only rise. The *group epoch* counts changes of what is to be shared: members,
subscriptions, topics. The *target epoch* says for which group epoch the target (who shall have
what) was computed. A *member epoch* says which target the member has reached. A partition belongs
to the member that holds it, from the record that gives it until the record that takes it away;
whoever is to have it next waits for that. So at any time a partition has one owner at most,
whatever the targets say.

A group changes by `apply` only, one record at a time. To decide something, work on a `Draft`: each
record written to it is applied to a copy at once, and to the group itself when it is stored.
"""

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.assignors import Assignment
from scriba.groups.consumer import records
from scriba.groups.consumer.member import ConsumerMember
from scriba.groups.facts import Topics
from scriba.groups.store import CheckTopicPartition, Committed
from scriba.outcome import Change, Sees
from scriba.wire.messages.stored_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from scriba.wire.schema import Message

CONSUMER: Final = "consumer"
MODERN_COMMIT_VERSION: Final = 9
"""From here on OffsetCommit has a member epoch; older clients know no consumer groups."""


class Phase(enum.StrEnum):
    """As the describing and listing requests name them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Resolved(NamedTuple):
    """The topics that an expression matched when it was last looked up."""

    topics: frozenset[str]
    version: int
    wall_ms: int


class ConsumerGroup:
    """Implements `store.Group`."""

    kind = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Assignment] = {}
        self.target_epoch = 1
        self.target_wall_ms = 0
        self.regexes: dict[str, Resolved] = {}
        self.has_partition_metadata = False
        self.owners: dict[tuple[bytes, int], str] = {}
        """Topic id and partition -> who holds it."""
        self.statics: dict[str, str] = {}
        """Instance id -> member id."""
        self._topics: frozenset[str] | None = None
        self.stale = True
        """Topics may have changed since the hash was computed. Not stored."""
        self.topics_came = True
        """There may be topics that no expression was held against. Not stored."""

    def copy(self) -> "ConsumerGroup":
        other = ConsumerGroup(self.group_id)
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict) else value)
        return other

    # --- what follows from what is stored ---

    def phase(self) -> Phase:
        if not self.members:
            return Phase.EMPTY
        if self.epoch > self.target_epoch:
            return Phase.ASSIGNING
        if all(member.reconciled(self.target_epoch) for member in self.members.values()):
            return Phase.STABLE
        return Phase.RECONCILING

    def topics(self) -> frozenset[str]:
        """Names of all topics that members subscribe to, by name or by expression."""
        if self._topics is None:
            names = [member.names for member in self.members.values()]
            matched = [resolved.topics for resolved in self.regexes.values()]
            self._topics = frozenset().union(*names, *matched)
        return self._topics

    def subscription(self, member: ConsumerMember, topics: Topics) -> dict[bytes, int]:
        """Topic id -> number of partitions, of the topics a member subscribes to that exist."""
        names = member.names
        if member.regex in self.regexes:
            names |= self.regexes[member.regex].topics
        found = (topics.get(name) for name in sorted(names))
        return {topic.id: topic.partitions for topic in found if topic is not None}

    def assignor(self, offered: Sequence[str]) -> str:
        """Of the assignors offered, the one that most members ask for, or else the first."""
        votes = Counter(member.assignor for member in self.members.values())
        return max(offered, key=lambda name: votes[name])

    def static(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = self.statics.get(instance_id) if instance_id is not None else None
        return self.members.get(member_id) if member_id is not None else None

    def classic_members(self) -> list[ConsumerMember]:
        return [member for member in self.members.values() if member.classic is not None]

    def free_for(self, member_id: str) -> Callable[[bytes, int], bool]:
        return lambda topic, partition: self.owners.get((topic, partition), member_id) == member_id

    # --- store.Group ---

    def state_name(self) -> str:
        return self.phase().value

    def protocol_type_name(self) -> str:
        return CONSUMER

    def empty(self) -> bool:
        return not self.members

    def subscribed(self, topic: str) -> bool:
        return topic in self.topics()

    def idle_since(self, committed: Committed) -> int | None:
        return committed.commit_ms

    def tombstones(self) -> list[Change]:
        return records.no_group(self.group_id, self.members, self.regexes)

    def check_delete(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def check_offset_delete(self) -> None:
        """Whether a topic is in use is looked at topic by topic."""

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Neither a member nor an epoch: an administrator, or a client older than these."""
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.epoch:
            raise _stale(member, f"epoch {epoch} is not the member's, {member.epoch}")

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, version: int, in_txn: bool
    ) -> CheckTopicPartition | None:
        """A member that has moved on under a commit under way (its epoch is newer than the
        request's) still owns what it held at that epoch: such a commit is judged by place."""
        if epoch < 0 and not self.members:
            return None
        if in_txn and epoch == -1 and not member_id and instance_id is None:
            return None
        member = self.member(member_id)
        if not in_txn and member.classic is None and version < MODERN_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"members of consumer groups commit with version {MODERN_COMMIT_VERSION} or later",
            )
        if epoch > member.epoch:
            raise _stale(member, f"epoch {epoch} is newer than the member's, {member.epoch}")
        if epoch == member.epoch:
            return None

        def check(topic: str, topic_id: bytes, partition: int) -> None:
            since = member.assigned.get(topic_id, {}).get(partition)
            if since is None:
                since = member.revoking.get(topic_id, {}).get(partition)
            if since is None or epoch < since:
                raise _stale(member, f"{topic}-{partition} was not the member's at epoch {epoch}")

        return check

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    # --- changes ---

    def apply(self, key: Message, value: Message | None) -> None:
        _APPLY[type(key)](self, key, value)

    def _put(self, member: ConsumerMember) -> None:
        self._release(member.member_id)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        # A log may be compacted so that the new owner is read before the old one's later record:
        # the last word is right, and the old one takes back nothing that is no longer its own.
        for place in member.places():
            self.owners[place] = member.member_id
        self._topics = None

    def _release(self, member_id: str) -> ConsumerMember | None:
        member = self.members.get(member_id)
        if member is not None:
            for place in member.places():
                if self.owners.get(place) == member_id:
                    del self.owners[place]
        return member

    def _member(
        self, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        if value is not None:
            old = self.members.get(key.member_id, ConsumerMember(key.member_id))
            self._put(old.with_metadata(value))
            return
        member = self._release(key.member_id)
        if member is None:
            return
        del self.members[key.member_id]
        if member.instance_id is not None and self.statics.get(member.instance_id) == key.member_id:
            del self.statics[member.instance_id]
        self._topics = None

    def _current(
        self,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        member = self.members.get(key.member_id)
        if member is None and value is None:
            return
        self._put((member or ConsumerMember(key.member_id)).with_holding(value))

    def _epoch(
        self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None
    ) -> None:
        if value is not None:
            self.epoch = value.epoch
            self.metadata_hash = value.metadata_hash

    def _partition_metadata(self, key: Message, value: Message | None) -> None:
        self.has_partition_metadata = value is not None

    def _target(
        self,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
            return
        self.target[key.member_id] = {
            topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
        }

    def _target_epoch(
        self,
        key: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        self.target_epoch = -1 if value is None else value.assignment_epoch
        self.target_wall_ms = 0 if value is None else value.assignment_timestamp

    def _regex(
        self,
        key: ConsumerGroupRegularExpressionKey,
        value: ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            self.regexes[key.regular_expression] = Resolved(
                frozenset(value.topics), value.version, value.timestamp
            )
        self._topics = None


_APPLY: Final[Mapping[type[Message], Callable[[ConsumerGroup, Any, Any], None]]] = {
    ConsumerGroupMemberMetadataKey: ConsumerGroup._member,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._current,
    ConsumerGroupMetadataKey: ConsumerGroup._epoch,
    ConsumerGroupPartitionMetadataKey: ConsumerGroup._partition_metadata,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._target,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._target_epoch,
    ConsumerGroupRegularExpressionKey: ConsumerGroup._regex,
}

KEYS: Final = tuple(_APPLY)
"""The kinds of records that a consumer group is made of."""


def _stale(member: ConsumerMember, text: str) -> KafkaError:
    """A classic member learns it in its own words."""
    code = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
    return KafkaError(code, text)


class Draft:
    """A group as it will be when `records` are stored; the group given stays as it is."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.records: list[Change] = []
        self.sees: Sees | None = None
        """Which topics the member sees whose request this is about."""
        self._copied = False

    def write(self, *changes: Change) -> Self:
        if not self._copied:
            self.group = self.group.copy()
            self._copied = True
        for change in changes:
            self.group.apply(change.key, change.value)
            self.records.append(change)
        return self
