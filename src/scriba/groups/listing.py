"""What is told of groups from outside: DescribeGroups, ListGroups; and DeleteGroups.

Where there is much to tell or to delete it is done in slices, as one step all the same.
"""

from collections.abc import Generator, Iterable
from typing import Final

from scriba.errors import ErrorCode, KafkaError
from scriba.groups.classic.group import ClassicGroup, Member, Phase, refuse
from scriba.groups.state import State
from scriba.groups.store import offset_tombstone
from scriba.instant import Instant
from scriba.outcome import Caller, Outcome, Token, at_once
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

NOT_FOUND_FROM: Final = 6
AT_ONCE: Final = 250
"""Members, groups or offsets that do not hold the loop for long."""


def describe(
    state: State, request: DescribeGroupsRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Groups of another protocol are as unknown here as those that do not exist."""
    known = (state.store.groups.get(group_id) for group_id in request.groups)
    members = sum(len(group.members) for group in known if isinstance(group, ClassicGroup))
    work = _describe_all(state, request, token, caller.version)
    return Outcome(work=work) if members > AT_ONCE else at_once(work)


def _describe_all(
    state: State, request: DescribeGroupsRequest, token: Token, version: int
) -> Generator[None, None, Outcome]:
    groups = []
    for group_id in request.groups:
        described = yield from _describe(state, group_id, version)
        groups.append(described)
    return Outcome(replies=[(token, DescribeGroupsResponse(groups=groups))])


def _describe(
    state: State, group_id: str, version: int
) -> Generator[None, None, DescribeGroupsResponseDescribedGroup]:
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
    described = DescribeGroupsResponseDescribedGroup(
        group_id=group_id,
        group_state=group.state_name(),
        protocol_type=group.protocol_type_name(),
        protocol_data=protocol or "",
    )
    for count, member in enumerate(group.members.values(), 1):
        described.members.append(_member(member, protocol))
        if count % AT_ONCE == 0:
            yield
    return described


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
    work = _list(state, request, token)
    return Outcome(work=work) if len(state.store.groups) > AT_ONCE else at_once(work)


def _list(state: State, request: ListGroupsRequest, token: Token) -> Generator[None, None, Outcome]:
    """A state or type that does not exist matches no group; it is no error."""
    states = {each.strip().lower() for each in request.states_filter}
    types = {each.strip().lower() for each in request.types_filter}
    groups = []
    for count, group in enumerate(state.store.groups.values(), 1):
        if count % AT_ONCE == 0:
            yield
        name = group.state_name()
        if (not states or name.lower() in states) and (not types or group.kind in types):
            groups.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type_name(),
                    group_state=name,
                    group_type=group.kind,
                )
            )
    return Outcome(replies=[(token, ListGroupsResponse(groups=groups))])


def delete_groups(
    state: State, request: DeleteGroupsRequest, token: Token, caller: Caller, now: Instant
) -> Outcome:
    """Removes groups without members, with all their offsets, also those still pending."""
    store = state.store
    names = dict.fromkeys(request.groups_names)
    offsets = sum(
        len(held.get(name, ())) for name in names for held in (store.offsets, store.unstable)
    )
    work = _delete(state, names, token)
    return Outcome(work=work) if offsets > AT_ONCE else at_once(work)


def _delete(state: State, names: Iterable[str], token: Token) -> Generator[None, None, Outcome]:
    out = Outcome(splittable=True)
    results = []
    for group_id in names:
        error = ErrorCode.NONE
        try:
            group = state.store.groups.get(group_id)
            if group is None:
                refuse(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_delete()
        except KafkaError as e:
            error = e.code
        else:
            for count, place in enumerate(state.store.places(group_id), 1):
                out.records.append(offset_tombstone(group_id, place))
                if count % AT_ONCE == 0:
                    yield
            out.records += group.tombstones()
        results.append(DeletableGroupResult(group_id=group_id, error_code=error))
    out.replies.append((token, DeleteGroupsResponse(results=results)))
    return out
