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


class MetadataSettling(Protocol):
    async def applied(self) -> None:
        """Returns when this broker has carried out all metadata that it has seen so far."""

    async def created(self) -> None:
        """As `applied`; files of new partitions are waited for as well, but not for long."""


class SettledMetadata(Protocol):
    """For whoever has had metadata changed and answers when the change is in effect."""

    @property
    def replicas(self) -> MetadataSettling: ...
