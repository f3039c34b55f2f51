"""What brokers ask the active controller, on the controllers' listener.

A broker asks for itself (registration, heartbeats, in-sync replicas, directories, blocks of ids),
or passes on what an administrator asked it (Envelope). What is in an envelope is authorised once
more, for the client that it names, by the handler that serves the request itself.

On any node but the active controller all of them get NOT_CONTROLLER, and brokers look for it anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scriba.broker.envelope import decode_host, decode_principal
from scriba.broker.handlers.brokers import require_broker
from scriba.broker.net.api_entry import ApiEntry, refusal
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import EventKind
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.wire.apis import ApiKey
from scriba.wire.frame import RequestHeader, decode_request_header, response_header
from scriba.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    EnvelopeRequest,
    EnvelopeResponse,
)
from scriba.wire.schema import Message, TooMany

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import ControllerService

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
"""What an envelope may hold: requests that only the controller can carry out."""


def of_a_broker(node: ControllerService, ctx: Context, request: Message) -> Deferred[Any]:
    """BrokerRegistration, ControllerRegistration, AlterPartition, AssignReplicasToDirs and
    AllocateProducerIds."""
    require_broker(node, ctx)
    return Deferred(node.controller.call(request, ctx.version, ctx), pipelined=True)


def heartbeat(
    node: ControllerService, ctx: Context, request: BrokerHeartbeatRequest
) -> Deferred[BrokerHeartbeatResponse]:
    require_broker(node, ctx)
    return Deferred(_heartbeat(node, ctx, request))


async def _heartbeat(
    node: ControllerService, ctx: Context, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    response: BrokerHeartbeatResponse = await node.controller.call(request, ctx.version, ctx)
    if ctx.connection is not None:
        node.deaths.heard(ctx.connection, request.broker_id, request.broker_epoch)
    return response


# ---- Envelope ----


def envelope(
    node: ControllerService, ctx: Context, request: EnvelopeRequest
) -> Deferred[EnvelopeResponse]:
    require_broker(node, ctx)
    # Each client waits for its own answer, so no request of this connection depends on another.
    return Deferred(_envelope(node, ctx, request), pipelined=True)


async def _envelope(
    node: ControllerService, ctx: Context, request: EnvelopeRequest
) -> EnvelopeResponse:
    principal = decode_principal(request.request_principal)
    host = decode_host(request.client_host_address)
    pace = Pace(node.world.clock)
    api, header, inner = await _decode(node, ctx, request.request_data, pace)
    asked = Context(
        principal,
        ctx.listener,
        header.client_id,
        host,
        header.api_key,
        header.api_version,
        ctx.received,
    )
    api.count += 1
    answer: Any
    try:
        answer = api.handler(node, asked, inner)
        while isinstance(answer, Deferred):
            answer = await answer.awaitable
    except KafkaError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise
        api.errors += 1
        answer = refusal(api, inner, error.code, error.message, header.api_version)
    except Exception as error:
        api.errors += 1
        node.note(EventKind.REQUEST_FAILED, api.name, f"failed, forwarded: {error!r}", error)
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        answer = refusal(api, inner, code, code.text, header.api_version)
    out = response_header(answer, header.api_version, header.correlation_id)
    await in_slices(answer.encode_in_slices(out, header.api_version), pace)
    return EnvelopeResponse(response_data=bytes(out))


async def _decode(
    node: ControllerService, ctx: Context, data: bytes, pace: Pace
) -> tuple[ApiEntry, RequestHeader, Message]:
    try:
        header, start = decode_request_header(data)
        api = node.api_table(ctx.listener).get(header.api_key)
        if api is None or header.api_key not in FORWARDED:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"API {header.api_key} is not forwarded to controllers"
            )
        if not api.oldest <= header.api_version <= api.high:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        work = api.request.decode_in_slices(
            memoryview(data), start, header.api_version, api.limits.elements
        )
        request, _ = await in_slices(work, pace)
    except (ParseError, TooMany) as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a forwarded request: {error}") from error
    return api, header, request
