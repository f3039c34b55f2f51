"""Where replicas lie, as the controller knows it (KIP-858).

A broker with several directories chooses itself where a new replica goes, and finds a replica
where an operator has put it. Whatever the metadata does not say yet is told to the controller in
one request, again with each heartbeat until there is an answer; then the metadata tells of every
replica which directory takes it along when its device fails.

Of a replica whose files are damaged, or turn out to lack records, the broker says that it is in no
directory (`DIRECTORY_LOST`): it leaves the in-sync set, and those that may lead.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Final, NamedTuple, Protocol

from scriba.broker.ports import BackgroundTasks, BrokerIdentity, ControllerAccess
from scriba.controller.image import DIRECTORY_LOST
from scriba.errors import ErrorCode, KafkaError
from scriba.storage.directory.names import PartitionName
from scriba.wire.messages.brokers import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 2_000
UNKNOWN_HERE: Final = (ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH)


class AssignmentHost(BackgroundTasks, BrokerIdentity, ControllerAccess, Protocol):
    """What telling the controller takes."""


class DirectoryAssignment(NamedTuple):
    topic_id: bytes
    directory: bytes


class Assignments:
    def __init__(self, node: AssignmentHost) -> None:
        self._node = node
        self._untold: dict[PartitionName, DirectoryAssignment] = {}
        self._teller: asyncio.Task[None] | None = None
        self._lost: dict[PartitionName, DirectoryAssignment] = {}
        """Replicas that are in use and must not count as whole: told before where they are."""

    def note(self, name: PartitionName, topic_id: bytes, directory: bytes, known: bytes) -> None:
        """A replica is in `directory`, and the metadata says it is in `known`."""
        if directory == known:
            self._untold.pop(name, None)
        else:
            self._untold[name] = DirectoryAssignment(topic_id, directory)

    def lose(self, name: PartitionName, topic_id: bytes) -> None:
        """The replica lacks records that it is trusted to have."""
        self._lost[name] = DirectoryAssignment(topic_id, DIRECTORY_LOST)

    def is_told(self, name: PartitionName) -> bool:
        """Whether the controller has answered to what was last noted of the replica."""
        return name not in self._untold

    def forget(self, name: PartitionName) -> None:
        self._untold.pop(name, None)

    @property
    def untold_losses(self) -> bool:
        """Whether the controller trusts a replica that it must not trust."""
        return bool(self._lost)

    def begin_to_tell(self) -> asyncio.Task[None] | None:
        """Has the controller told what it does not know, by one task for all who ask."""
        if (self._untold or self._lost) and (self._teller is None or self._teller.done()):
            self._teller = self._node.tasks.spawn(self._tell(), name="places of replicas")
        return self._teller

    async def tell(self) -> None:
        """Returns when the controller was told; what it does not take is told again later."""
        teller = self.begin_to_tell()
        if teller is not None and not teller.done():
            await asyncio.wait((teller,))

    async def _tell(self) -> None:
        while untold := self._lost or self._untold:
            told = dict(islice(untold.items(), MOST_AT_ONCE))
            try:
                await self._node.controller.call(self._request(told))
            except KafkaError as error:
                log.info("the controller was not told of %d replicas: %s", len(told), error)
                if error.code in UNKNOWN_HERE:
                    self._lost.clear()  # whom it does not know, it trusts with nothing
                return
            # Refused is answered as well: such a replica is not ours any more.
            for name, assignment in told.items():
                if untold.get(name) == assignment:
                    del untold[name]

    def _request(
        self, assignments: dict[PartitionName, DirectoryAssignment]
    ) -> AssignReplicasToDirsRequest:
        by_directory: dict[bytes, dict[bytes, list[int]]] = {}
        for name, assignment in assignments.items():
            topics = by_directory.setdefault(assignment.directory, {})
            topics.setdefault(assignment.topic_id, []).append(name.partition)
        return AssignReplicasToDirsRequest(
            broker_id=self._node.id,
            broker_epoch=self._node.broker_epoch,
            directories=[
                AssignReplicasToDirsRequestDirectoryData(
                    id=directory,
                    topics=[
                        AssignReplicasToDirsRequestTopicData(
                            topic_id=topic_id,
                            partitions=[
                                AssignReplicasToDirsRequestPartitionData(partition_index=index)
                                for index in indexes
                            ],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory, topics in by_directory.items()
            ],
        )
