"""A member of a consumer group, as two records store it: what it asked for, what it holds.

None of these values is ever altered; a change makes a new one.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from scriba.groups.assignors import Assignment
from scriba.wire.messages.stored_groups import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupCurrentMemberAssignmentValueTopicPartitions,
    ConsumerGroupMemberMetadataValue,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""Member epochs with a meaning: in a request joining and leaving; the last one is also what a
static member is stored with until it comes back or its session ends."""


class MemberState(enum.IntEnum):
    """How far a member is on its way to its target; the numbers are stored."""

    STABLE = 0
    """It has its target, as far as it knows: all of it, once its epoch is the target's."""
    UNREVOKED_PARTITIONS = 1
    """It was asked to give up partitions and has not said that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up yet."""
    UNKNOWN = 127

    @classmethod
    def read(cls, value: int) -> "MemberState":
        return cls(value) if value in (0, 1, 2) else cls.UNKNOWN


Held = Mapping[bytes, Mapping[int, int]]
"""Topic id -> partition -> the target epoch at which the member got it."""


class Classic(NamedTuple):
    """What a member that still speaks the classic protocol said when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata of each, the preferred one first."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: Classic | None = None

    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Held = field(default_factory=dict)
    revoking: Held = field(default_factory=dict)

    def reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def places(self) -> Iterable[tuple[bytes, int]]:
        """Every partition that it may be reading."""
        for held in (self.assigned, self.revoking):
            for topic, partitions in held.items():
                for partition in partitions:
                    yield topic, partition

    def metadata(self) -> ConsumerGroupMemberMetadataValue:
        classic = None
        if self.classic is not None:
            classic = ClassicMemberMetadata(
                session_timeout_ms=self.classic.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in self.classic.protocols
                ],
            )
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.names),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=classic,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerMember":
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            names=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=None
            if classic is None
            else Classic(
                classic.session_timeout_ms,
                tuple((p.name, p.metadata) for p in classic.supported_protocols),
            ),
        )

    def holding(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_write_held(self.assigned),
            partitions_pending_revocation=_write_held(self.revoking),
        )

    def with_holding(
        self, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> "ConsumerMember":
        """Without a value it holds nothing and is about to be removed."""
        if value is None:
            return replace(
                self,
                epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                state=MemberState.STABLE,
                assigned={},
                revoking={},
            )
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState.read(value.state),
            assigned=_read_held(value.assigned_partitions, value.member_epoch),
            revoking=_read_held(value.partitions_pending_revocation, value.member_epoch),
        )


def hold(assignment: Assignment, epoch: int) -> Held:
    return {topic: dict.fromkeys(sorted(held), epoch) for topic, held in assignment.items()}


def _write_held(held: Held) -> list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(
            topic_id=topic,
            partitions=list(partitions),
            assignment_epochs=list(partitions.values()),
        )
        for topic, partitions in held.items()
    ]


def _read_held(
    topics: Sequence[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions], epoch: int
) -> Held:
    """Before Kafka 4.3 no epochs were stored with the partitions: then the member's own counts."""
    held: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(epoch, 0)] * len(topic.partitions)
        held[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return held
