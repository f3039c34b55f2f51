"""A group changes its protocol while it has members (`group.consumer.migration.policy`).

Upwards when the first member of the consumer protocol joins: the group epoch goes on from the
generation, everybody keeps what the last generation gave it, and the members of old remain as
members of the classic protocol, served by `consumer_classic`. Downwards when the last member of
the consumer protocol leaves, or comes back as a classic one: the generation goes on from the group
epoch, and the group rebalances. A group without members changes without asking the policy.
"""

from collections.abc import Generator

from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import Event, EventKind
from scriba.groups.classic.embedded import (
    by_id,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from scriba.groups.classic.group import CONSUMER_PROTOCOL, ClassicGroup, Member, Phase
from scriba.groups.classic.rebalance import keep_session as keep_classic_session
from scriba.groups.classic.rebalance import prepare
from scriba.groups.consumer import records
from scriba.groups.consumer.group import ConsumerGroup, Draft
from scriba.groups.consumer.member import Classic, ConsumerMember, hold
from scriba.groups.consumer.progress import cancel_timers
from scriba.groups.consumer.topic_hash import hashing
from scriba.groups.state import State
from scriba.instant import Instant
from scriba.outcome import Outcome, at_once

UPWARDS = ("upgrade", "bidirectional")
DOWNWARDS = ("downgrade", "bidirectional")


def upgrade(state: State, group: ClassicGroup) -> Generator[None, None, Draft]:
    """The classic group as a consumer group; nothing has happened until the draft is stored."""
    why = None
    if state.settings.consumer_migration_policy.lower() not in UPWARDS:
        why = "online upgrade is disabled"
    elif group.protocol_type != CONSUMER_PROTOCOL:
        why = "the group does not use the consumer embedded protocol"
    elif len(group.members) > state.settings.consumer_max_size:
        why = "the group size exceeds the consumer group maximum size"
    else:
        try:
            members = _members(state, group)
        except ParseError:
            why = "the embedded consumer protocol is malformed"
        except _CustomAssignor:
            why = "an unsupported custom assignor is in use"
    if why is not None:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because {why}.",
        )
    draft = Draft(ConsumerGroup(group.group_id))
    draft.records += group.tombstones()
    draft.write(*(records.member(group.group_id, member) for member in members))
    hashed = yield from hashing(draft.group.topics(), state.topics)
    draft.write(
        records.epoch(group.group_id, group.generation, hashed),
        *(
            records.target(
                group.group_id, m.member_id, {t: frozenset(held) for t, held in m.assigned.items()}
            )
            for m in members
        ),
        records.target_epoch(group.group_id, group.generation, 0),
        *(records.current(group.group_id, member) for member in members),
    )
    return draft


class _CustomAssignor(Exception):
    """A share came with data that only its own assignor can read."""


def _members(state: State, group: ClassicGroup) -> list[ConsumerMember]:
    taken: set[tuple[bytes, int]] = set()
    members = []
    for member in group.members.values():
        shares: dict[bytes, frozenset[int]] = {}
        if member.assignment:
            assignment = read_assignment(member.assignment)
            if assignment.user_data:
                raise _CustomAssignor
            named = ((each.topic, each.partitions) for each in assignment.assigned_partitions)
            shares = by_id(named, state.topics)
        subscription = read_subscription(member.metadata(_protocol(group, member)))
        # Clients may have assigned a partition twice; here it has one owner.
        own = {t: frozenset(p for p in ps if (t, p) not in taken) for t, ps in shares.items()}
        taken |= {(topic, partition) for topic, held in own.items() for partition in held}
        members.append(
            ConsumerMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=subscription.rack_id or None,
                client_id=member.client_id,
                client_host=member.client_host,
                names=frozenset(subscription.topics),
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                classic=Classic(member.session_timeout_ms, member.protocols),
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned=hold({t: held for t, held in own.items() if held}, group.generation),
            )
        )
    return members


def _protocol(group: ClassicGroup, member: Member) -> str | None:
    """The group's protocol; before its first generation is formed, what the member prefers."""
    return group.protocol if group.protocol is not None else member.protocols[0][0]


# --- downwards ---


def may_downgrade(state: State, group: ConsumerGroup, gone: set[str]) -> bool:
    """Whether, without these, there are members and all of them speak the classic protocol."""
    staying = [m for m in group.members.values() if m.member_id not in gone]
    return (
        bool(staying)
        and all(member.classic is not None for member in staying)
        and state.settings.consumer_migration_policy.lower() in DOWNWARDS
        and len(staying) <= state.settings.max_size
    )


def may_replace_last(state: State, group: ConsumerGroup, replaced: ConsumerMember) -> bool:
    """Whether a static member that comes back as a classic one was the last of the new protocol."""
    return (
        replaced.classic is None
        and len(group.classic_members()) == len(group.members) - 1
        and state.settings.consumer_migration_policy.lower() in DOWNWARDS
        and len(group.members) <= state.settings.max_size
    )


def downgrade(
    state: State,
    group: ConsumerGroup,
    gone: set[str],
    why: str | None,
    out: Outcome,
    now: Instant,
) -> None:
    """From here on the classic group lives; what is stored follows with the outcome's records. It
    rebalances if there is a reason why. `group` may be a draft, of which nothing is stored."""
    out.instead = None
    staying = [m for m in group.members.values() if m.member_id not in gone]
    classic = ClassicGroup(group.group_id, now.wall_ms)
    classic.generation = group.epoch
    for each in staying:
        assert each.classic is not None
        cancel_timers(state, group.group_id, each.member_id)
        member = Member(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            each.rebalance_timeout_ms,
            each.classic.session_timeout_ms,
            each.classic.protocols,
        )
        classic.add(member, CONSUMER_PROTOCOL)
    classic.phase = Phase.STABLE
    classic.protocol = classic.select_protocol()
    classic.topics = at_once(classic.subscribed_topics())
    for member in classic.members.values():
        member.assignment = write_assignment(
            group.target.get(member.member_id, {}),
            state.topics,
            version_of(member.metadata(classic.protocol)),
        )
        keep_classic_session(state, classic, member, now)
    out.records += [*state.store.groups[group.group_id].tombstones(), at_once(classic.record())]
    state.store.groups[group.group_id] = classic
    out.events.append(Event(EventKind.GROUP_MIGRATED, group.group_id, "to the classic protocol"))
    if why is not None:
        prepare(state, classic, why, out, now)
