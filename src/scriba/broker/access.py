"""The one question every handler asks before it acts: may this caller do this to that?"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from scriba.broker.request import Context


class Operation(IntEnum):
    """Kafka's operations, numbered as on the wire."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Resource(IntEnum):
    """Kafka's resource types, numbered as on the wire."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


CLUSTER_NAME: Final = "kafka-cluster"


class Access(Protocol):
    open: bool
    """Whether everyone may do everything, so that equal questions have equal answers."""

    def allowed(
        self, ctx: Context, operation: Operation, resource: Resource, name: str
    ) -> bool: ...


class AllowAll:
    """What holds while no authoriser is configured: everyone may do everything."""

    open = True

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        return True


class RefuseClients:
    """What holds while the cluster has ACLs: nobody here can tell whom they allow what.

    Only brokers go on, so that others take over what this one led."""

    open = False

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        return operation is Operation.CLUSTER_ACTION


class TopicVisibility:
    """Whether the sender of a request may know of a topic; equal for equal senders."""

    __slots__ = ("_access", "_ctx", "_who")

    def __init__(self, access: Access, ctx: Context) -> None:
        self._access = access
        self._ctx = ctx
        self._who = (ctx.principal, ctx.listener, ctx.host)

    def __call__(self, topic: str) -> bool:
        return self._access.allowed(self._ctx, Operation.DESCRIBE, Resource.TOPIC, topic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicVisibility) and self._who == other._who

    def __hash__(self) -> int:
        return hash(self._who)


def allowed_operations(access: Access, ctx: Context, resource: Resource, name: str) -> int:
    """The bit field that Metadata, DescribeCluster and others report on request."""
    bits = 0
    for operation in OPERATIONS_OF[resource]:
        if access.allowed(ctx, operation, resource, name):
            bits |= 1 << operation
    return bits


OPERATIONS_OF: Final[dict[Resource, tuple[Operation, ...]]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
