"""Groups: who may ask is decided here, what is answered by the coordinator of the group.

A request that names several groups is cut up by the partitions that coordinate them, and their
answers are put together again. Each partition is asked for one group after the other: whoever waits
for it meanwhile waits for one group. Refusals have the shape of `groups.refusals`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scriba.broker.access import CLUSTER_NAME, Operation, Resource, allowed_operations
from scriba.broker.coordinators.kinds import serves_consumer_protocol
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.groups.refusals import refused
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.wire.messages import groups as wire
from scriba.wire.schema import LATEST, Message

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import GroupCoordinators, GroupMembership

Answer = Message | Deferred[Message]
M = TypeVar("M", bound=Message)

UNKNOWN_OPERATIONS: Final = -(1 << 31)
"""What stands for operations that were not asked for."""


# ---- one group ----


def _as_it_is(answer: Message) -> Message:
    return answer


def to_coordinator(
    node: GroupCoordinators,
    ctx: Context,
    request: Message,
    group_id: str,
    finish: Callable[[Any], Message] = _as_it_is,
) -> Answer:
    """The coordinator's answer, now or later, passed through `finish`."""
    try:
        answer = node.group_coordinators.begin(
            node.group_coordinators.partition_of(group_id), request, ctx
        )
    except KafkaError as error:
        return finish(refused(request, error.code, ctx.version))
    if isinstance(answer, Message):
        return finish(answer)
    return Deferred(_later(request, ctx, answer, finish))


async def _later(
    request: Message, ctx: Context, answer: Awaitable[Message], finish: Callable[[Any], Message]
) -> Message:
    try:
        return finish(await answer)
    except KafkaError as error:
        return finish(refused(request, error.code, ctx.version))


def _readable(node: GroupMembership, ctx: Context, group_id: str) -> bool:
    return node.access.allowed(ctx, Operation.READ, Resource.GROUP, group_id)


def of_a_member(node: GroupMembership, ctx: Context, request: Any) -> Answer:
    """JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""
    if not _readable(node, ctx, request.group_id):
        return refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, ctx.version)
    return to_coordinator(node, ctx, request, request.group_id)


def consumer_group_heartbeat(
    node: GroupMembership, ctx: Context, request: wire.ConsumerGroupHeartbeatRequest
) -> Answer:
    if not serves_consumer_protocol(node):
        return refused(request, ErrorCode.UNSUPPORTED_VERSION, ctx.version)
    if not _readable(node, ctx, request.group_id):
        return refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, ctx.version)
    for name in request.subscribed_topic_names or ():
        if not node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, name):
            return refused(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ctx.version)
    return to_coordinator(node, ctx, request, request.group_id)


# ---- several groups ----


async def _by_shard(
    node: GroupMembership, ctx: Context, group_ids: Iterable[str], part: Callable[[list[str]], M]
) -> list[Any]:
    """Asks each shard about its groups, all shards at once; the answers of all."""
    shares: dict[int, list[str]] = {}
    answers: list[Any] = []
    for group_id in group_ids:
        try:
            shares.setdefault(node.group_coordinators.partition_of(group_id), []).append(group_id)
        except KafkaError as error:
            answers.append(refused(part([group_id]), error.code, ctx.version))
    pace = Pace(node.world.clock)

    async def ask(index: int, share: list[str]) -> None:
        for group_id in share:
            await pace()
            answers.append(await _ask_shard(node, ctx, index, part([group_id])))

    await asyncio.gather(*(ask(index, share) for index, share in shares.items()))
    return answers


async def _ask_shard(node: GroupMembership, ctx: Context, index: int, request: Message) -> Message:
    try:
        return await node.group_coordinators.ask_partition(index, request, ctx)
    except KafkaError as error:
        return refused(request, error.code, ctx.version)


def _may(
    node: GroupMembership, ctx: Context, operation: Operation, group_ids: Iterable[str]
) -> dict[str, bool]:
    """Each group that is named, once, and whether the caller may do that to it."""
    return {
        group_id: node.access.allowed(ctx, operation, Resource.GROUP, group_id)
        for group_id in group_ids
    }


def describe_groups(
    node: GroupMembership, ctx: Context, request: wire.DescribeGroupsRequest
) -> Deferred[wire.DescribeGroupsResponse]:
    return Deferred(_describe_groups(node, ctx, request))


async def _describe_groups(
    node: GroupMembership, ctx: Context, request: wire.DescribeGroupsRequest
) -> wire.DescribeGroupsResponse:
    may = _may(node, ctx, Operation.DESCRIBE, request.groups)
    answers = await _by_shard(
        node,
        ctx,
        (group_id for group_id, allowed in may.items() if allowed),
        lambda share: wire.DescribeGroupsRequest(groups=share),
    )
    found = {group.group_id: group for answer in answers for group in answer.groups}
    for group_id, allowed in may.items():
        if not allowed:
            found[group_id] = wire.DescribeGroupsResponseDescribedGroup(
                group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
            )
    if request.include_authorized_operations:
        for group in found.values():
            group.authorized_operations = _operations(node, ctx, group)
    return wire.DescribeGroupsResponse(groups=[found[group_id] for group_id in request.groups])


def _operations(node: GroupMembership, ctx: Context, group: Any) -> int:
    if group.error_code:
        return UNKNOWN_OPERATIONS
    return allowed_operations(node.access, ctx, Resource.GROUP, group.group_id)


def consumer_group_describe(
    node: GroupMembership, ctx: Context, request: wire.ConsumerGroupDescribeRequest
) -> Answer:
    if not serves_consumer_protocol(node):
        return refused(request, ErrorCode.UNSUPPORTED_VERSION, ctx.version)
    return Deferred(_consumer_group_describe(node, ctx, request))


async def _consumer_group_describe(
    node: GroupMembership, ctx: Context, request: wire.ConsumerGroupDescribeRequest
) -> wire.ConsumerGroupDescribeResponse:
    may = _may(node, ctx, Operation.DESCRIBE, request.group_ids)
    answers = await _by_shard(
        node,
        ctx,
        (group_id for group_id, allowed in may.items() if allowed and group_id),
        lambda share: wire.ConsumerGroupDescribeRequest(group_ids=share),
    )
    found = {group.group_id: group for answer in answers for group in answer.groups}
    for group_id in may:
        if group_id not in found:
            code = (
                ErrorCode.INVALID_GROUP_ID
                if may[group_id]
                else ErrorCode.GROUP_AUTHORIZATION_FAILED
            )
            found[group_id] = wire.ConsumerGroupDescribeResponseDescribedGroup(
                group_id=group_id, error_code=code
            )
    pace = Pace(node.world.clock)
    for group in found.values():
        if not node.access.open:
            await in_slices(_hide_topics(node, ctx, group), pace)
        if request.include_authorized_operations:
            group.authorized_operations = _operations(node, ctx, group)
    return wire.ConsumerGroupDescribeResponse(
        groups=[found[group_id] for group_id in request.group_ids]
    )


def _hide_topics(
    node: GroupMembership, ctx: Context, group: wire.ConsumerGroupDescribeResponseDescribedGroup
) -> Generator[None, None, None]:
    """A caller that may not see all topics of a group hears nothing of its members."""
    topics: set[str] = set()
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            topics.update(topic.topic_name for topic in assignment.topic_partitions)
        topics.update(member.subscribed_topic_names)
        yield
    for name in sorted(topics):
        if not node.access.allowed(ctx, Operation.DESCRIBE, Resource.TOPIC, name):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = "the group uses topics that the caller may not see"
            group.members = []
            return
        yield


def list_groups(
    node: GroupMembership, ctx: Context, request: wire.ListGroupsRequest
) -> Deferred[wire.ListGroupsResponse]:
    return Deferred(_list_groups(node, ctx, request))


async def _list_groups(
    node: GroupMembership, ctx: Context, request: wire.ListGroupsRequest
) -> wire.ListGroupsResponse:
    pace = Pace(node.world.clock)

    async def ask(index: int) -> Message:
        await pace()
        return await _ask_shard(node, ctx, index, request)

    asked = [ask(index) for index in node.group_coordinators.partitions_led()]
    everything = node.access.allowed(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    response = wire.ListGroupsResponse()
    for answer in await asyncio.gather(*asked):
        assert isinstance(answer, wire.ListGroupsResponse)
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            # Half a list would be taken for the whole.
            return wire.ListGroupsResponse(error_code=answer.error_code)
        if everything:
            response.groups += answer.groups
        else:
            response.groups += await in_slices(_describable(node, ctx, answer.groups), pace)
    return response


def _describable(
    node: GroupMembership, ctx: Context, groups: list[wire.ListedGroup]
) -> Generator[None, None, list[wire.ListedGroup]]:
    found = []
    for group in groups:
        if node.access.allowed(ctx, Operation.DESCRIBE, Resource.GROUP, group.group_id):
            found.append(group)
        yield
    return found


def delete_groups(
    node: GroupMembership, ctx: Context, request: wire.DeleteGroupsRequest
) -> Deferred[wire.DeleteGroupsResponse]:
    return Deferred(_delete_groups(node, ctx, request))


async def _delete_groups(
    node: GroupMembership, ctx: Context, request: wire.DeleteGroupsRequest
) -> wire.DeleteGroupsResponse:
    may = _may(node, ctx, Operation.DELETE, request.groups_names)
    answers = await _by_shard(
        node,
        ctx,
        (group_id for group_id, allowed in may.items() if allowed),
        lambda share: wire.DeleteGroupsRequest(groups_names=share),
    )
    results = {result.group_id: result for answer in answers for result in answer.results}
    for group_id, allowed in may.items():
        if not allowed:
            results[group_id] = wire.DeletableGroupResult(
                group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
            )
    return wire.DeleteGroupsResponse(results=[results[group_id] for group_id in may])


def refuse(request: Message, code: ErrorCode, text: str) -> Message:
    """For what goes wrong beside the coordinator."""
    return refused(request, code, LATEST)
