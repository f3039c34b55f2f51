"""Administrators' requests inside an Envelope, as brokers forward them to the controller (KIP-590).

The envelope carries the request as its client sent it (header and body), who that client is, and
from where. The controller answers with the response as the client would have got it, or with an
error of the envelope itself: NOT_CONTROLLER has the broker ask again elsewhere.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from scriba.errors import ErrorCode, KafkaError, ParseError, error_code
from scriba.wire.apis import API
from scriba.wire.frame import decode_response, encode_request
from scriba.wire.messages.brokers import EnvelopeRequest, EnvelopeResponse
from scriba.wire.messages.security import DefaultPrincipalData
from scriba.wire.schema import Message

PRINCIPAL_VERSION: Final = 0
_CORRELATION_ID: Final = 0
"""One envelope holds one request, so there is nothing to tell apart."""


def encode_principal(principal: str) -> bytes:
    """`Type:name` in Kafka's own form: the version, then the message."""
    kind, _, name = principal.partition(":")
    data = DefaultPrincipalData(type=kind, name=name)
    return PRINCIPAL_VERSION.to_bytes(2, "big") + data.encode(PRINCIPAL_VERSION)


def decode_principal(data: bytes | None) -> str:
    """KafkaError (PRINCIPAL_DESERIALIZATION_FAILURE) for what is none."""
    try:
        if not data or int.from_bytes(data[:2], "big") != PRINCIPAL_VERSION:
            raise ParseError("no principal of a version that is known")
        told = DefaultPrincipalData.decode(data[2:], PRINCIPAL_VERSION)
    except ParseError as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from error
    return f"{told.type}:{told.name}"


def encode_host(host: str) -> bytes:
    """The client's address as four or sixteen bytes; of a name there are none, as of loopback."""
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return ipaddress.IPv4Address("127.0.0.1").packed


def decode_host(data: bytes) -> str:
    try:
        return str(ipaddress.ip_address(bytes(data)))
    except ValueError as error:
        text = f"{len(data)} bytes are no address of a client"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error


def wrap(
    request: Message, version: int, principal: str, host: str, client_id: str | None
) -> EnvelopeRequest:
    return EnvelopeRequest(
        request_data=encode_request(request, version, _CORRELATION_ID, client_id),
        request_principal=encode_principal(principal),
        client_host_address=encode_host(host),
    )


def unwrap(request: Message, version: int, envelope: EnvelopeResponse) -> Any:
    """The response inside; KafkaError where the envelope itself was refused."""
    if envelope.error_code:
        code = error_code(envelope.error_code)
        raise KafkaError(code, f"the controller refused a forwarded request: {code.text}")
    key = request.KEY
    assert key is not None
    try:
        if envelope.response_data is None:
            raise ParseError("it is empty")
        _, response = decode_response(API[key].response, envelope.response_data, version)
    except ParseError as error:
        text = f"the controller's answer to a forwarded request cannot be read: {error}"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error
    return response
