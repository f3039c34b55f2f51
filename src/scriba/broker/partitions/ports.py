"""Partitions as the parts above them see them (see `broker.ports`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition


class PartitionLookup(Protocol):
    @property
    def configured(self) -> int:
        """Counts how often partitions were given new settings."""

    def get(self, topic: str, index: int) -> Partition | None:
        """The partition, if this broker hosts a replica of it that can be used."""

    def find(self, topic: str, index: int) -> Partition:
        """The partition, or the error that a client understands."""


class PartitionAccess(Protocol):
    """Reading and appending: partitions are found, and then asked themselves."""

    @property
    def replicas(self) -> PartitionLookup: ...
