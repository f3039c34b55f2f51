"""An API's fast paths, one for each version of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from scriba.broker.net.connection import FastPath

if TYPE_CHECKING:
    from scriba.broker.net.answers import Parked, Parts
    from scriba.broker.net.connection import Connection


class PartitionFastPath(FastPath, Protocol):
    """One that keeps what it has looked up of partitions."""

    def forget(self) -> None:
        """Lets go of all of them."""


class FastPathVersions:
    """Makes the fast path of a version when it is first asked for."""

    def __init__(self, make: Callable[[int], PartitionFastPath]) -> None:
        self._make = make
        self._versions: dict[int, PartitionFastPath] = {}

    def enter(
        self, connection: Connection, frame: memoryview, version: int
    ) -> Parts | Parked | None:
        """Asks the fast path, unless the connection has done so already."""
        path = self._versions.get(version)
        if path is None:
            path = self._versions[version] = self._make(version)
        if path is connection.fast_path:
            return None
        connection.fast_path = path
        return path.take(connection, frame)

    def forget(self) -> None:
        """Lets go of all partitions: one of them is gone, and a version may have no client left."""
        for path in self._versions.values():
            path.forget()
