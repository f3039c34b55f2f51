"""What is told of groups from outside: DescribeGroups, ListGroups; and DeleteGroups."""

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.classic.group import ClassicGroup, Member, Phase, refuse
from scriba.groups.state import State
from scriba.groups.store import offset_tombstone
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token
from scriba.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

NOT_FOUND_FROM = 6


def describe(
    state: State, request: DescribeGroupsRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Groups of another protocol are as unknown here as those that do not exist."""
    groups = [_describe(state, group_id, caller.version) for group_id in request.groups]
    return Outcome(replies=[(token, DescribeGroupsResponse(groups=groups))])


def _describe(state: State, group_id: str, version: int) -> DescribeGroupsResponseDescribedGroup:
    group = state.store.groups.get(group_id)
    if not isinstance(group, ClassicGroup):
        described = DescribeGroupsResponseDescribedGroup(
            group_id=group_id, group_state=Phase.DEAD.value
        )
        if version >= NOT_FOUND_FROM:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            what = "does not exist" if group is None else "is not of the classic protocol"
            described.error_message = f"Group {group_id} {what}."
        return described
    stable = group.phase is Phase.STABLE
    protocol = group.protocol if stable else None
    return DescribeGroupsResponseDescribedGroup(
        group_id=group_id,
        group_state=group.state_name(),
        protocol_type=group.protocol_type_name(),
        protocol_data=protocol or "",
        members=[_member(member, protocol) for member in group.members.values()],
    )


def _member(member: Member, protocol: str | None) -> DescribedGroupMember:
    """What a member can do is told only of a stable group, whose protocol is settled."""
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol),
        member_assignment=member.assignment,
    )


def list_groups(
    state: State, request: ListGroupsRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """A state or type that does not exist matches no group; it is no error."""
    states = {each.strip().lower() for each in request.states_filter}
    types = {each.strip().lower() for each in request.types_filter}
    groups = [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type_name(),
            group_state=group.state_name(),
            group_type=group.kind,
        )
        for group in state.store.groups.values()
        if (not states or group.state_name().lower() in states)
        and (not types or group.kind in types)
    ]
    return Outcome(replies=[(token, ListGroupsResponse(groups=groups))])


def delete_groups(
    state: State, request: DeleteGroupsRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Removes groups without members, with all their offsets, also those still pending."""
    out = Outcome(splittable=True)
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        error = ErrorCode.NONE
        try:
            group = state.store.groups.get(group_id)
            if group is None:
                refuse(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_delete()
            out.records += [offset_tombstone(group_id, p) for p in state.store.places(group_id)]
            out.records += group.tombstones()
        except KafkaError as e:
            error = e.code
        results.append(DeletableGroupResult(group_id=group_id, error_code=error))
    out.replies.append((token, DeleteGroupsResponse(results=results)))
    return out
