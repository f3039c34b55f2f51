"""Access control lists: there are none without an authorizer, and that is the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.request import Context
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.security import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.ports import Authorization


def _refuse(node: Authorization, ctx: Context, operation: Operation) -> NoReturn:
    if not node.access.allowed(ctx, operation, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    raise KafkaError(ErrorCode.SECURITY_DISABLED)


def describe_acls(node: Authorization, ctx: Context, request: Message) -> NoReturn:
    _refuse(node, ctx, Operation.DESCRIBE)


def change_acls(node: Authorization, ctx: Context, request: Message) -> NoReturn:
    """CreateAcls and DeleteAcls."""
    _refuse(node, ctx, Operation.ALTER)


def refuse_create_acls(
    request: CreateAclsRequest, code: ErrorCode, text: str
) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=code, error_message=text) for _ in request.creations]
    )


def refuse_delete_acls(
    request: DeleteAclsRequest, code: ErrorCode, text: str
) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=code, error_message=text) for _ in request.filters
        ]
    )
