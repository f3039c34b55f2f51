"""The part of `Admin` that is about groups and their offsets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scriba.client.admin.calls import Calls, outcome, several
from scriba.client.admin.model import GroupDescription, GroupListing, GroupMember
from scriba.client.coordinator import CoordinatorKind
from scriba.client.group.membership.payload import decode_assignment
from scriba.client.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    to_commit,
)
from scriba.errors import ErrorCode, ParseError
from scriba.peers.connection import Connection
from scriba.peers.errors import BrokerError, raise_for
from scriba.wire.messages import groups as wire

_OFFSETS_BY_NAME: Final = 9
"""The newest OffsetFetch and OffsetCommit that name topics; later ones have their ids."""

_FETCH_BY_GROUP: Final = 8
_TOPIC: Final = "__consumer_offsets"
_NO_OFFSET: Final = -1
_CONSUMER: Final = "consumer"
_NOT_MINE: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""What is said of a group that does not speak the consumer protocol, or is not there."""


GROUP_STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Empty",
    "NotReady",
    "Dead",
)
GROUP_TYPES: Final = ("classic", "consumer", "share", "streams")


def named(what: str, given: Iterable[str], known: Sequence[str]) -> list[str]:
    """Names that were given, in any case, as a broker knows them. ValueError for what is none of
    them: a broker would find no group, which reads as if there were none."""
    names = {name.lower(): name for name in known}
    given = several(given)
    for each in given:
        if each.lower() not in names:
            raise ValueError(f"{each!r} is no {what} of groups; there are {', '.join(known)}")
    return [names[each.lower()] for each in given]


class GroupAdmin:
    _calls: Calls

    async def list_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        timeout_ms: int | None = None,
    ) -> list[GroupListing]:
        """All groups by name, or those in one of these states and of one of these types.

        PartlyListed, with the others in it, where partitions of `__consumer_offsets` are offline.
        """
        request = wire.ListGroupsRequest(
            states_filter=named("state", states, GROUP_STATES),
            types_filter=named("type", types, GROUP_TYPES),
        )

        async def ask(node: int) -> list[GroupListing]:
            answer = await self._calls.ask(request, wire.ListGroupsResponse, node)
            raise_for(answer.error_code, about="the groups")
            return [
                GroupListing(
                    g.group_id, g.group_type.lower() or "classic", g.group_state, g.protocol_type
                )
                for g in answer.groups
            ]

        return await self._calls.all_listed(
            ask, lambda listing: listing.group_id, _TOPIC, timeout_ms, "the groups"
        )

    async def describe_groups(
        self, names: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """Members, state and assignment of groups of either protocol."""
        return await self._calls.at_coordinators(
            CoordinatorKind.GROUP, names, self._describe, timeout_ms, "the groups"
        )

    async def _describe(
        self, node: int, names: list[str]
    ) -> dict[str, GroupDescription | BrokerError]:
        found = await self._describe_consumer(node, names)
        others = [name for name in names if name not in found]
        if others:
            found.update(await self._describe_classic(node, others))
        return found

    async def _describe_consumer(
        self, node: int, names: list[str]
    ) -> dict[str, GroupDescription | BrokerError]:
        """Those of the newer protocol; what is left out may be of the older one."""
        request = wire.ConsumerGroupDescribeRequest(group_ids=names)
        try:
            answer = await self._calls.ask(request, wire.ConsumerGroupDescribeResponse, node)
        except BrokerError as refused:
            if refused.code is ErrorCode.UNSUPPORTED_VERSION:
                return {}
            raise
        return {
            g.group_id: outcome(
                g.error_code, g.error_message, _consumer_group(g, node), f"group {g.group_id}"
            )
            for g in answer.groups
            if g.error_code not in _NOT_MINE
        }

    async def _describe_classic(
        self, node: int, names: list[str]
    ) -> dict[str, GroupDescription | BrokerError]:
        request = wire.DescribeGroupsRequest(groups=names)
        answer = await self._calls.ask(request, wire.DescribeGroupsResponse, node)
        found: dict[str, GroupDescription | BrokerError] = {}
        for g in answer.groups:
            about = f"group {g.group_id}"
            if not g.error_code and g.group_state == "Dead":  # how older brokers say it
                found[g.group_id] = BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, about=about)
            else:
                described = _classic_group(g, node)
                found[g.group_id] = outcome(g.error_code, g.error_message, described, about)
        return found

    async def delete_groups(self, names: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Deletes groups that have no members, with all their offsets."""

        async def ask(node: int, part: list[str]) -> dict[str, BrokerError | None]:
            request = wire.DeleteGroupsRequest(groups_names=part)
            answer = await self._calls.ask(request, wire.DeleteGroupsResponse, node)
            return {
                r.group_id: outcome(r.error_code, None, None, f"group {r.group_id}")
                for r in answer.results
            }

        await self._calls.at_coordinators(
            CoordinatorKind.GROUP, names, ask, timeout_ms, "deleting groups"
        )

    # -- offsets ---------------------------------------------------------------------------------

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets a group has committed, all or those of these partitions.

        With `require_stable` it waits for open transactions that commit offsets of the group.
        """
        topics: dict[str, list[int]] | None = None
        if partitions is not None:
            topics = {}
            for topic, partition in partitions:
                topics.setdefault(topic, []).append(partition)

        async def ask(
            node: int, names: list[str]
        ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | BrokerError]:
            connection = await self._calls.cluster.connect(node)
            try:
                return {
                    name: await _fetch(connection, name, topics, require_stable) for name in names
                }
            except BrokerError as refused:
                if refused.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise
                return dict.fromkeys(names, refused)

        found = await self._calls.at_coordinators(
            CoordinatorKind.GROUP, [group_id], ask, timeout_ms, f"offsets of {group_id}"
        )
        return found[group_id]

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        *,
        member: ConsumerGroupMetadata | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commits offsets for a group that has no members."""
        request = _commit_request(group_id, offsets, member)
        wanted = {TopicPartition(*where) for where in offsets}

        async def ask(node: int, part: list[str]) -> dict[str, BrokerError | None]:
            connection = await self._calls.cluster.connect(node)
            version = connection.version(wire.OffsetCommitRequest, _OFFSETS_BY_NAME)
            answer = await connection.request(request, wire.OffsetCommitResponse, version=version)
            errors = {
                TopicPartition(t.name, p.partition_index): p.error_code
                for t in answer.topics
                for p in t.partitions
            }
            failed = _first(errors, wanted)
            if failed is not None and failed.code is ErrorCode.UNKNOWN_MEMBER_ID and not member:
                # A commit without a member is refused so where there are some.
                failed.fix = f"stop the members of {group_id} first"
            return {group_id: failed}

        await self._calls.at_coordinators(
            CoordinatorKind.GROUP, [group_id], ask, timeout_ms, f"offsets of {group_id}"
        )

    async def delete_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Forgets the offsets of partitions of topics that no member of the group reads."""
        wanted = [TopicPartition(*where) for where in partitions]
        topics: dict[str, wire.OffsetDeleteRequestTopic] = {}
        for topic, partition in wanted:
            found = topics.setdefault(topic, wire.OffsetDeleteRequestTopic(name=topic))
            found.partitions.append(wire.OffsetDeleteRequestPartition(partition_index=partition))
        request = wire.OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))

        async def ask(node: int, part: list[str]) -> dict[str, BrokerError | None]:
            answer = await self._calls.ask(request, wire.OffsetDeleteResponse, node)
            refused = outcome(answer.error_code, None, None, f"group {group_id}")
            errors = {
                TopicPartition(t.name, p.partition_index): p.error_code
                for t in answer.topics
                for p in t.partitions
            }
            return {group_id: refused or _first(errors, wanted)}

        await self._calls.at_coordinators(
            CoordinatorKind.GROUP, [group_id], ask, timeout_ms, f"offsets of {group_id}"
        )


def _first(
    errors: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
) -> BrokerError | None:
    """The first failure of several partitions, in their order."""
    for where in sorted(wanted):
        failed = outcome(errors.get(where, 0), None, None, str(where))
        if failed is not None:
            return failed
    return None


async def _fetch(
    connection: Connection,
    group_id: str,
    topics: dict[str, list[int]] | None,
    require_stable: bool,
) -> dict[TopicPartition, OffsetAndMetadata]:
    version = connection.version(wire.OffsetFetchRequest, _OFFSETS_BY_NAME)
    if version >= _FETCH_BY_GROUP:
        asked = None
        if topics is not None:
            asked = [
                wire.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ]
        group = wire.OffsetFetchRequestGroup(group_id=group_id, topics=asked)
        request = wire.OffsetFetchRequest(groups=[group], require_stable=require_stable)
    else:
        request = wire.OffsetFetchRequest(
            group_id=group_id,
            topics=None
            if topics is None
            else [
                wire.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ],
            require_stable=require_stable,
        )
    answer = await connection.request(request, wire.OffsetFetchResponse, version=version)
    said = answer.groups[0] if version >= _FETCH_BY_GROUP else answer
    raise_for(said.error_code, about=f"group {group_id}")
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for t in said.topics:
        for p in t.partitions:
            where = TopicPartition(t.name, p.partition_index)
            raise_for(p.error_code, about=str(where))
            if p.committed_offset != _NO_OFFSET:
                found[where] = OffsetAndMetadata(
                    p.committed_offset, p.metadata or "", p.committed_leader_epoch
                )
    return dict(sorted(found.items()))


def _commit_request(
    group_id: str,
    offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
    member: ConsumerGroupMetadata | None,
) -> wire.OffsetCommitRequest:
    who = member or ConsumerGroupMetadata(group_id)
    topics: dict[str, wire.OffsetCommitRequestTopic] = {}
    for (topic, partition), at in to_commit(offsets).items():
        found = topics.setdefault(topic, wire.OffsetCommitRequestTopic(name=topic))
        found.partitions.append(
            wire.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=at.offset,
                committed_leader_epoch=at.leader_epoch,
                committed_metadata=at.metadata,
            )
        )
    return wire.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=who.generation_id,
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
        topics=list(topics.values()),
    )


# -- reading -------------------------------------------------------------------------------------


def _consumer_group(
    said: wire.ConsumerGroupDescribeResponseDescribedGroup, node: int
) -> GroupDescription:
    return GroupDescription(
        said.group_id,
        _CONSUMER,
        said.group_state,
        _CONSUMER,
        said.assignor_name,
        node,
        tuple(
            GroupMember(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                have := _places(m.assignment),
                None if (target := _places(m.target_assignment)) == have else target,
                m.member_epoch,
                (*m.subscribed_topic_names, *filter(None, [m.subscribed_topic_regex])),
            )
            for m in said.members
        ),
        said.group_epoch,
    )


def _places(said: wire.ConsumerGroupDescribeResponseAssignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, partition)
            for topic in said.topic_partitions
            for partition in topic.partitions
        )
    )


def _classic_group(said: wire.DescribeGroupsResponseDescribedGroup, node: int) -> GroupDescription:
    consumers = said.protocol_type == _CONSUMER
    return GroupDescription(
        said.group_id,
        "classic",
        said.group_state,
        said.protocol_type,
        said.protocol_data,
        node,
        tuple(
            GroupMember(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                _classic_assignment(m.member_assignment) if consumers else (),
            )
            for m in said.members
        ),
    )


def _classic_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """What a member was given by its leader, whose program may have written anything."""
    if not data:
        return ()
    try:
        return tuple(sorted(decode_assignment(data)))
    except ParseError:
        return ()
