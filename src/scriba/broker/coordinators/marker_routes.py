"""Where the markers of transactions go: which broker writes each, and what one request holds.

Values and plans only; `markers` carries them out. A partition belongs to whoever the metadata says
leads it, so a marker follows a leader that moves by being routed again. For each other broker there
is a queue: all that comes up while a request to it is under way goes with the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from scriba.errors import ErrorCode, error_code
from scriba.peers.ports import Signal
from scriba.txn.messages import TopicPartition, WriteMarkers
from scriba.txn.states import by_topic
from scriba.wire.messages.txn import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from scriba.controller.image import ClusterImage

NOBODY: Final = -1
"""The leader of a partition that has none."""


class Route(NamedTuple):
    """Who leads a partition, and since when: another one is worth another try at once."""

    broker_id: int
    leader_epoch: int


def route(image: ClusterImage, where: TopicPartition) -> Route | None:
    """Who is to write the marker; None where the partition is gone."""
    topic = image.topics_by_name.get(where[0])
    partition = topic.partitions.get(where[1]) if topic is not None else None
    if partition is None:
        return None
    return Route(partition.leader, partition.leader_epoch)


class Ending:
    """A transaction whose outcome stands, and which of its partitions have no marker yet."""

    __slots__ = ("epoch", "left", "over", "send")

    def __init__(self, send: WriteMarkers, epoch: int) -> None:
        self.send = send
        self.epoch = epoch
        """The leader epoch of the coordinator that asks."""
        self.left: dict[TopicPartition, int] = dict.fromkeys(send.partitions, 0)
        """Each with how often it was tried in vain."""
        self.over = False
        """Whether nobody waits for it any more: what comes late is dropped."""


class MarkerQueue:
    """What one broker is to be told, in the order in which it came up."""

    def __init__(self) -> None:
        self._waiting: dict[Ending, dict[TopicPartition, None]] = {}
        self._held: set[TopicPartition] = set()
        self.changed = Signal()
        """Wakes whoever sends, when there may be something to take."""

    def add(self, ending: Ending, where: TopicPartition) -> None:
        self._waiting.setdefault(ending, {})[where] = None
        self.changed.wake()

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """They are in a request without an answer: what else there is for them waits for that."""
        self._held.update(partitions)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        self._held.difference_update(partitions)
        self.changed.wake()

    def take(self, most: int) -> list[tuple[Ending, TopicPartition]]:
        """What goes with the next request, at most so many markers.

        No producer comes twice in one request, since its answer tells of producers alone.
        """
        taken: list[tuple[Ending, TopicPartition]] = []
        producers: set[int] = set()
        for ending, partitions in tuple(self._waiting.items()):
            if ending.over:
                del self._waiting[ending]
            elif len(taken) == most:
                break
            elif ending.send.producer_id not in producers:
                free = (where for where in partitions if where not in self._held)
                for where in tuple(islice(free, most - len(taken))):
                    producers.add(ending.send.producer_id)
                    del partitions[where]
                    taken.append((ending, where))
                if not partitions:
                    del self._waiting[ending]
        return taken


Batch = dict[Ending, dict[TopicPartition, Route]]
"""The markers of one request, each with the leader that it was for."""


def request_of(batch: Batch) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=ending.send.producer_id,
                producer_epoch=ending.send.producer_epoch,
                transaction_result=ending.send.commit,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(partitions).items()
                ],
                coordinator_epoch=ending.epoch,
                transaction_version=ending.send.transaction_version,
            )
            for ending, partitions in batch.items()
        ]
    )


def codes_of(
    batch: Batch, response: WriteTxnMarkersResponse
) -> Iterator[tuple[Ending, TopicPartition, ErrorCode]]:
    """What became of each marker; one that the answer passes over was not written."""
    told = {
        (marker.producer_id, topic.name, partition.partition_index): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
    for ending, partitions in batch.items():
        for where in partitions:
            code = told.get((ending.send.producer_id, *where))
            yield (
                ending,
                where,
                ErrorCode.UNKNOWN_SERVER_ERROR if code is None else error_code(code),
            )


def same_for_all(
    batch: Batch, code: ErrorCode
) -> Iterator[tuple[Ending, TopicPartition, ErrorCode]]:
    return ((ending, where, code) for ending, partitions in batch.items() for where in partitions)


class Retry(NamedTuple):
    """A marker that is to be tried again: when its time has come, or its partition has moved."""

    ending: Ending
    where: TopicPartition
    due_ms: int
    tried: Route | None


def ready(
    retries: Iterable[Retry], image: ClusterImage, now_ms: int
) -> tuple[list[Retry], list[Retry]]:
    """Those to try now, and those that wait on."""
    now: list[Retry] = []
    later: list[Retry] = []
    for retry in retries:
        moved = retry.due_ms <= now_ms or route(image, retry.where) != retry.tried
        (now if moved else later).append(retry)
    return now, later
