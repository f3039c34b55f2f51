"""What lies in the directories when a node starts: replicas, halves of moves, strays.

The image says which of it belongs here. Of a replica that lies in two directories the copy with
more is kept; what belongs to no partition of the cluster is kept under another name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from scriba.broker.ports import BrokerIdentity, EventLog
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.storage.directory.names import PartitionName
from scriba.storage.results import FULL

if TYPE_CHECKING:
    from scriba.controller.image import ClusterImage, PartitionImage, TopicImage
    from scriba.storage.directory.logdir import LogDir
    from scriba.storage.log import Log

Placement = tuple[str, bytes, list[tuple[int, "PartitionImage"]]]
"""A topic's name and id, and those of its partitions that are to be looked at."""

FutureReplica = tuple[PartitionName, "LogDir", str]
"""A replica that moves into a directory, and the name of its entry there (KIP-113)."""

OpenLog = Callable[[PartitionName, bytes, "LogDir"], Awaitable["Log"]]


class FoundHost(BrokerIdentity, EventLog, Protocol):
    """What looking at the directories takes."""


class FoundReplicas:
    def __init__(self, node: FoundHost, dirs: list[LogDir], open_log: OpenLog) -> None:
        self._node = node
        self._dirs = [directory for directory in dirs if directory.readable]
        self._open_log = open_log
        self.replicas: dict[PartitionName, LogDir] = {}
        """What has not been claimed yet."""
        self.doubtful: set[PartitionName] = set()
        """Replicas that may lack what they are trusted to have."""

    async def look(self, image: ClusterImage) -> list[FutureReplica]:
        """Takes note of all that lies there; returns the moves that go on."""
        for directory in self._dirs:
            for name in directory.partitions():
                found = self.replicas.get(name)
                if found is not None:
                    found = await self._better(name, found, directory, image)
                self.replicas[name] = found or directory
        return await self._find_futures(image)

    async def set_aside_rest(self) -> None:
        """Renames what nobody claimed."""
        for name, directory in self.replicas.items():
            await self.rename_stray(name, directory)
        self.replicas.clear()

    async def _better(
        self, name: PartitionName, one: LogDir, other: LogDir, image: ClusterImage
    ) -> LogDir:
        """Which of two directories has the replica: a move between them was interrupted.

        The copy with the greater (epoch, end) has all that the other one has.
        """
        topic = image.topics_by_name.get(name.topic)
        partition = topic.partitions.get(name.partition) if topic is not None else None
        if topic is None or partition is None or self._node.id not in partition.replicas:
            await self.rename_stray(name, other)
            return one
        reached: dict[LogDir, tuple[bool, int, int, bool]] = {}
        for directory in (one, other):
            reached[directory] = (False, -1, -1, False)
            assigned = directory.id == partition.directory(self._node.id)
            with suppress(KafkaError):
                store = await self._open_log(name, topic.id, directory)
                directory.logs.pop(name, None)
                whole = store.failure is None
                reached[directory] = (whole, store.epochs.latest, store.end_offset, assigned)
                if store.cut_batches:
                    self.doubtful.add(name)
                await store.close()
        best, rest = (one, other) if reached[one] > reached[other] else (other, one)
        if not reached[rest][0] or not await rest.discard(name, topic.id):
            await self.rename_stray(name, rest)
        return best

    async def _find_futures(self, image: ClusterImage) -> list[FutureReplica]:
        """What moves between directories have left; those that go on."""
        moving: list[FutureReplica] = []
        for directory in self._dirs:
            for entry, name, topic_id in directory.found_futures():
                topic = image.topics_by_name.get(name.topic)
                partition = topic.partitions.get(name.partition) if topic is not None else None
                index, home = name.partition, self.replicas.get(name)
                if topic_id is None and home is not None:
                    # It was made, and no more: whoever asked for it got no answer.
                    await directory.remove_deleted((entry,))
                    continue
                if (
                    topic is None
                    or topic.id != topic_id
                    or partition is None
                    or self._node.id not in partition.replicas
                ):
                    await self._keep_future(directory, entry, name)
                    continue
                if home is not None:
                    moving.append((name, directory, entry))
                elif partition.directory(self._node.id) == directory.id:
                    # It was told of and takes the place of one that is gone. Whether it has all of
                    # that is only certain where that one was being removed.
                    if not any(each.took_away(topic_id, index) for each in self._dirs):
                        self.doubtful.add(name)
                    await directory.adopt_future(entry, name)
                    self.replicas[name] = directory
                else:
                    await self._keep_future(directory, entry, name)
        return moving

    async def _keep_future(self, directory: LogDir, entry: str, name: PartitionName) -> None:
        """Part of a replica of which there is nothing else, or that is not of this cluster."""
        kept = await directory.rename_stray_future(entry, name)
        text = f"{entry} was to become a replica that is not here: kept as {kept}"
        self._node.note(EventKind.PARTITION_STRAY, entry, text)

    def placed_here(self, topic: TopicImage) -> Placement:
        """Those partitions of a topic that are, or have files, on this broker: of a large cluster
        most are nothing to it."""
        me, found = self._node.id, self.replicas
        chosen = [
            (index, partition)
            for index, partition in topic.partitions.items()
            if me in partition.replicas or (topic.name, index) in found
        ]
        return topic.name, topic.id, sorted(chosen)

    async def rename_stray(self, name: PartitionName, directory: LogDir) -> None:
        """Files that belong to no partition of this cluster are kept, under another name."""
        try:
            kept = await directory.rename_stray(name)
        except OSError as error:
            if error.errno not in FULL:
                raise
            kept = "it is, for lack of room for another name"
        text = f"{name.topic}-{name.partition} is not in the cluster's metadata: kept as {kept}"
        self._node.note(EventKind.PARTITION_STRAY, f"{name.topic}-{name.partition}", text)
