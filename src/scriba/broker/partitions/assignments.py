"""Where replicas lie, as the controller knows it (KIP-858).

A broker with several directories chooses itself where a new replica goes, and finds a replica
where an operator has put it. Whatever the metadata does not say yet is told to the controller in
one request, again with each heartbeat until there is an answer; then the metadata tells of every
replica which directory takes it along when its device fails. Of a replica whose files are damaged
the broker says that it is in none (`DIRECTORY_LOST`).
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Final, NamedTuple, Protocol

from scriba.broker.ports import BackgroundTasks, BrokerIdentity, ControllerAccess
from scriba.errors import KafkaError
from scriba.storage.directory.names import PartitionName
from scriba.wire.messages.brokers import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 2_000


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

    def note(self, name: PartitionName, topic_id: bytes, directory: bytes, known: bytes) -> None:
        """A replica is in `directory`, and the metadata says it is in `known`."""
        if directory == known:
            self._untold.pop(name, None)
        else:
            self._untold[name] = DirectoryAssignment(topic_id, directory)

    def forget(self, name: PartitionName) -> None:
        self._untold.pop(name, None)

    def begin_to_tell(self) -> asyncio.Task[None] | None:
        """Has the controller told what it does not know, by one task for all who ask."""
        if self._untold and (self._teller is None or self._teller.done()):
            self._teller = self._node.tasks.spawn(self._tell(), name="places of replicas")
        return self._teller

    async def tell(self) -> None:
        """Returns when the controller was told; what it does not take is told again later."""
        teller = self.begin_to_tell()
        if teller is not None and not teller.done():
            await asyncio.wait((teller,))

    async def _tell(self) -> None:
        while self._untold:
            told = dict(islice(self._untold.items(), MOST_AT_ONCE))
            try:
                await self._node.controller.call(self._request(told))
            except KafkaError as error:
                log.info("the controller was not told of %d replicas: %s", len(told), error)
                return
            # Refused is answered as well: such a replica is not ours any more.
            for name, assignment in told.items():
                if self._untold.get(name) == assignment:
                    del self._untold[name]

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
