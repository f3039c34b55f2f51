"""Finds the broker that coordinates a group or a transactional id.

Any broker knows who it is. The answer is kept until somebody is told by that broker, or by a broken
connection, that it is no longer so.
"""

import enum
from collections.abc import Iterable
from typing import Final

from scriba.client.cluster import Cluster
from scriba.errors import ErrorCode, error_code
from scriba.peers.connection import Connection
from scriba.peers.errors import BrokerError, ClientError, NetworkError
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse

_SEVERAL_SINCE: Final = 4

MOVED: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
)
"""Answers after which the coordinator is looked for anew."""


class CoordinatorKind(enum.IntEnum):
    GROUP = 0
    TRANSACTION = 1


async def find_coordinators(
    cluster: Cluster, kind: CoordinatorKind, keys: Iterable[str]
) -> dict[str, int | BrokerError]:
    """One try: the broker's id for each key, or why it has none now."""
    return await _ask(await cluster.any_connection(), kind, keys)


async def _ask(
    connection: Connection, kind: CoordinatorKind, keys: Iterable[str]
) -> dict[str, int | BrokerError]:
    wanted = list(dict.fromkeys(keys))
    version = connection.version(FindCoordinatorRequest)
    found: dict[str, int | BrokerError] = {}
    if version >= _SEVERAL_SINCE:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=wanted)
        answer = await connection.request(request, FindCoordinatorResponse, version=version)
        for said in answer.coordinators:
            found[said.key] = _read(
                said.key, kind, said.node_id, said.error_code, said.error_message
            )
        return found
    for key in wanted:
        request = FindCoordinatorRequest(key=key, key_type=kind)
        said_one = await connection.request(request, FindCoordinatorResponse, version=version)
        number, message = said_one.error_code, said_one.error_message
        found[key] = _read(key, kind, said_one.node_id, number, message)
    return found


def _read(
    key: str, kind: CoordinatorKind, node: int, number: int, message: str | None
) -> int | BrokerError:
    if number:
        about = f"the coordinator of {kind.name.lower()} {key}"
        return BrokerError(error_code(number), message, about=about)
    return node


class Coordinator:
    """The coordinator of one key, and the connection to it."""

    def __init__(
        self, cluster: Cluster, kind: CoordinatorKind, key: str, purpose: str = ""
    ) -> None:
        self.key = key
        self.node: int | None = None
        self._cluster = cluster
        self._kind = kind
        self._purpose = purpose
        self._named_by = ""
        """Who said that it is this broker."""

    async def connect(self) -> Connection:
        """One try; the errors that may be tried again are retriable."""
        if self.node is None:
            connection = await self._cluster.any_connection()
            self._named_by = connection.address
            node = (await _ask(connection, self._kind, [self.key])).get(self.key)
            if node is None:
                raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, about=self.key)
            if isinstance(node, BrokerError):
                raise node
            self.node = node
        try:
            return await self._cluster.connect(self.node, self._purpose)
        except NetworkError:
            self.node = None
            raise

    def failed(self, failure: ClientError) -> None:
        """A request to it failed; it is looked for again where that tells that it has moved.

        Another broker is asked then: one that is cut off from the others would name the same one
        again, often itself.
        """
        if not isinstance(failure, BrokerError) or failure.code in MOVED:
            self.node = None
            self._cluster.doubt(self._named_by)
