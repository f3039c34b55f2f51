"""The fast path of Produce: whole requests, from their bytes to the bytes of the answer.

It takes the usual good request, be it of one partition or of hundreds, in four steps:

1. One walk over the frame finds each topic, partition and batch (`wire.locator`); nothing is
   decoded.
2. Header, checksum and records of all batches are judged, by the limits of their topics. This and
   the first step are one call (`native.judge`).
3. Partitions are asked whether they lead and take such a batch now.
4. The batches are appended, and the answer is packed from templates (`wire.template`).

Nothing has changed before the fourth step. Until then a request with anything unusual in any of its
partitions is left to its handler: a codec that is not lz4, a transaction, a topic that stores
something else than what it is sent or waits for the device, a leader elsewhere, a partition that is
named twice, a batch with any fault. The bytes that the handler answers and those of the fast path
are the same.

What is known of topics is forgotten when some topic or replica goes away, and of a topic when its
settings change. Each partition is asked each time whether it leads, so that what happens to others,
to their leaders and in-sync sets, leaves it alone.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from scriba.broker.handlers.records import produce
from scriba.broker.handlers.records.acks import AckWaits, Wait
from scriba.broker.handlers.records.leader_hints import MOVED, hint_produce
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.connection import Connection, Promise
from scriba.errors import ErrorCode, KafkaError, bare
from scriba.events import EventKind
from scriba.native import implementation
from scriba.native.judge import BATCHES_AT, TOPICS_AT, Found
from scriba.records.compression import Codec
from scriba.records.header import BatchHeader
from scriba.records.validate import LOOP_LZ4_BYTES, LOOP_PLAIN_BYTES, stores_as_sent
from scriba.wire.locator import plan
from scriba.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from scriba.wire.schema import first_version
from scriba.wire.template import ElementsPacker, Packer, answer_packer, elements_packer, packer

if TYPE_CHECKING:
    from scriba.broker.fastpath.ports import ProduceFastPathHost
    from scriba.broker.net.api_entry import ApiEntry
    from scriba.broker.partitions.partition import Partition
    from scriba.instant import Instant
    from scriba.settings import TopicSettings
    from scriba.storage.log import Appended

MOST_KEPT: Final = 64
"""Answers of different shapes whose bytes are kept, for a topic or for several topics together."""

ONE_BATCH: Final = 6
"""Of how many things `judge_produce` tells where a request has a single batch."""

MOST_BYTES: Final = produce.MOST_ON_THE_LOOP
"""A larger request is checked off the loop, by its handler."""

_FIELDS: Final = frozenset(
    {
        "transactional_id",
        "acks",
        "timeout_ms",
        "topic_data.name",
        "topic_data.topic_id",
        "topic_data.partition_data.index",
        "topic_data.partition_data.records",
    }
)
_PACKED: Final = ("index", "base_offset", "log_start_offset")
_MARK: Final = 0x5A17C0DE
_MARKS: Final = (_MARK << 31 | _MARK, _MARK << 31 | _MARK + 1)
_FAR_MS: Final = 1 << 62
"""Farther from now than any timestamp; with the time of day it still has 63 bits."""
_HEAD: Final = struct.Struct(">ii")
_INDEX: Final[Callable[[Target], int]] = attrgetter("index")

K = TypeVar("K")
V = TypeVar("V")


class Topic(NamedTuple):
    """What a topic takes, and its partitions here. `judge_produce` reads the first six fields."""

    most_bytes: int
    """Of a batch without a codec. None is taken where the topic stores something else than what it
    is sent, or where only what the device has counts."""
    need_keys: bool
    before_ms: int
    after_ms: int
    partitions: dict[int, Target]
    most_lz4: int
    """The same of a batch in lz4."""
    settings: TopicSettings
    name: str
    id: bytes
    answers: dict[int, ElementsPacker]
    """Pack the answers that tell of so many partitions of this topic."""


class Target:
    """A partition of such a topic, with all that is asked when a batch comes for it."""

    __slots__ = ("answer", "index", "min_isr", "partition", "settings", "topic")

    def __init__(self, topic: Topic, partition: Partition, answer: Packer) -> None:
        self.topic = topic
        self.partition = partition
        self.index = partition.index
        self.settings = topic.settings
        self.min_isr = topic.settings.min_insync_replicas
        self.answer = answer
        """Packs the answer to a request for this partition alone, of its correlation id, the
        offset of the batch and the first one of the log."""


Batch = tuple[Target, memoryview, BatchHeader]


def _waiting(targets: tuple[Target, ...], places: list[Appended]) -> bool:
    """Whether one of these batches is yet to be replicated."""
    return any(
        target.partition.high_watermark.value <= last_offset
        for target, (_, last_offset, _, _) in zip(targets, places, strict=True)
    )


def _topic_of(partition: Partition) -> Topic:
    settings = partition.settings
    limit = min(settings.max_message_bytes, settings.segment_bytes)
    plain, lz4 = (
        min(limit, most) if stores_as_sent(settings, codec) and settings.flush_messages != 1 else -1
        for codec, most in ((Codec.NONE, LOOP_PLAIN_BYTES), (Codec.LZ4, LOOP_LZ4_BYTES))
    )
    return Topic(
        plain,
        "compact" in settings.cleanup_policy,
        min(settings.message_timestamp_before_max_ms, _FAR_MS),
        min(settings.message_timestamp_after_max_ms, _FAR_MS),
        {},
        lz4,
        settings,
        partition.topic,
        partition.topic_id,
        {},
    )


class ProduceFastPath:
    """Produce in one version, which decides how topics are named and what is told of a batch."""

    __slots__ = (
        "_answers",
        "_api",
        "_by_id",
        "_configured",
        "_departures",
        "_flexible",
        "_head",
        "_judge",
        "_most_elements",
        "_pack",
        "_plan",
        "_topics",
        "_version",
        "node",
    )

    def __init__(self, node: ProduceFastPathHost, api: ApiEntry, version: int) -> None:
        self.node = node
        self._api = api
        self._version = version
        self._judge = implementation.chosen.judge_produce
        self._plan = plan(ProduceRequest, version, _FIELDS)
        self._most_elements = api.limits.at_once
        self._topics: dict[bytes, Topic] = {}
        self._departures = node.departures
        self._configured = node.replicas.configured
        self._flexible = version in ProduceResponse.FLEXIBLE
        self._pack = packer(PartitionProduceResponse, version, self._flexible, _PACKED)
        self._by_id = version >= first_version(TopicProduceData, "topic_id")
        self._head = _HEAD.pack(0, 0) + bytes(version >= api.tagged_from)
        self._answers: dict[tuple[bytes, ...], ElementsPacker] = {}
        """Pack the answers that tell of several topics, by the topic's id for each batch."""

    def take(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        """The answer; None where the request has to go to its handler: nothing has changed."""
        node = self.node
        if len(frame) > MOST_BYTES or not (
            (node.departures == self._departures and node.fast_paths and node.access.open)
            or self._is_open()
        ):
            return None
        now = connection.now
        found = self._judge(
            self._plan, frame, self._most_elements, self._topics, now.wall_ms, LOOP_LZ4_BYTES
        )
        if not found:
            if found is None:
                if node.replicas.configured != self._configured:
                    # It may have been judged by settings that a topic no longer has.
                    self._topics.clear()
                    self._configured = node.replicas.configured
                return None
            if not self._learn(frame):
                return None
            found = self._judge(
                self._plan, frame, self._most_elements, self._topics, now.wall_ms, LOOP_LZ4_BYTES
            )
            if not found:
                return None
        if len(found) > ONE_BATCH:
            return self._take_many(found, now)
        correlation_id, acks, _, target, view, header = found
        partition = target.partition
        leader = partition.leader
        if (
            leader is None
            or partition.closed is not None
            or partition.settings is not target.settings
            or (
                acks < 0 and len(leader.isr) < target.min_isr and not leader.in_sync(target.min_isr)
            )
        ):
            # The next request is looked at before its batches are judged.
            self._topics.clear()
            return None
        self._api.count += 1
        counters = node.counters
        counters.fastpath_produces += 1
        try:
            place = partition.append(view, header, now)
        except Exception as error:
            return self._conclude(found, [self._failure(error)])
        base_offset, last_offset, start_offset, repeat = place
        if repeat is not None:
            return self._conclude(found, [place])
        counters.messages_in += header.count
        counters.topic_bytes_in += len(view)
        if acks < 0 and partition.high_watermark.value <= last_offset:
            return _OneLater(self, found, place)
        if not acks:
            return ()
        return (target.answer(correlation_id, base_offset, start_offset),)

    def _take_many(self, found: Found, now: Instant) -> Parts | Parked | None:
        """Does with each batch what `take` does with one, and nothing before all may be taken."""
        acks = found[1]
        targets: tuple[Target, ...] = found[3::3]
        for target in targets:
            partition = target.partition
            leader = partition.leader
            if (
                leader is None
                or partition.closed is not None
                or partition.settings is not target.settings
                or (
                    acks < 0
                    and len(leader.isr) < target.min_isr
                    and not leader.in_sync(target.min_isr)
                )
            ):
                self._topics.clear()
                return None
        self._api.count += 1
        counters = self.node.counters
        counters.fastpath_produces += 1
        outcomes: list[Any] = []
        numbers: list[int] = []
        records = size = 0
        usual = True
        rest = iter(found[3:])
        for target, view, header in zip(rest, rest, rest, strict=True):
            try:
                place = target.partition.append(view, header, now)
            except Exception as error:
                outcomes.append(self._failure(error))
                usual = False
                continue
            outcomes.append(place)
            base_offset, last_offset, start_offset, repeat = place
            if repeat is not None:
                usual = False
            numbers += target.index, base_offset, start_offset
            # A batch that was judged to be plain has as many records as offsets.
            records += last_offset - base_offset + 1
            size += len(view)
        if not usual or (acks < 0 and _waiting(targets, outcomes)):
            return self._conclude(found, outcomes)
        counters.messages_in += records
        counters.topic_bytes_in += size
        if not acks:
            return ()
        return (self._packer_of(targets)(found[0], numbers),)

    def _is_open(self) -> bool:
        """Whether requests may be taken at all; forgets what may have changed with the cluster."""
        node = self.node
        if node.departures != self._departures:
            self._topics.clear()
            self._departures = node.departures
        return node.fast_paths and node.access.open

    def forget(self) -> None:
        self._topics.clear()
        self._answers.clear()

    # ---- before anything has changed ----

    def _learn(self, frame: memoryview) -> bool:
        """Looks up what a request names; whether all of it is here and takes batches now."""
        located = implementation.chosen.locate(self._plan, frame, self._most_elements)
        if located is None:
            return False
        at = TOPICS_AT
        for _ in range(located[TOPICS_AT - 1]):
            key = bytes(frame[located[at] : located[at + 1]])
            first = at + BATCHES_AT
            at = first + 3 * located[at + 2]
            for index in located[first:at:3]:
                if not self._learn_partition(key, index, located[3]):
                    return False
        return True

    def _learn_partition(self, key: bytes, index: int, acks: int) -> bool:
        node = self.node
        name = node.topic_name(key) if self._by_id else key.decode()
        partition = node.replicas.get(name, index) if name is not None else None
        if partition is None or partition.leader is None or name in node.internal_topics:
            return False
        settings = partition.settings
        if acks < 0 and not partition.leader.in_sync(settings.min_insync_replicas):
            return False
        topic = self._topics.get(key)
        if topic is None or topic.settings is not settings:
            topic = self._topics[key] = _topic_of(partition)
        topic.partitions[index] = Target(topic, partition, self._answer_of_one(partition))
        return topic.most_bytes >= 0 or topic.most_lz4 >= 0

    # ---- what became of the batches ----

    def _failure(self, error: Exception) -> KafkaError:
        """Why a batch was not appended; what nobody expected is told of, as by the handler."""
        if isinstance(error, KafkaError):
            return bare(error)
        self._api.errors += 1
        text = f"an append failed: {error!r}"
        self.node.note(EventKind.REQUEST_FAILED, "Produce", text, error)
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _conclude(self, found: Found, outcomes: list[Appended | KafkaError]) -> Parts | Parked:
        """Counts and tells what became of each batch, once that is known of all."""
        correlation_id, acks, timeout_ms = found[:3]
        counters = self.node.counters
        response = ProduceResponse()
        waits: list[Wait] = []
        for (target, view, header), outcome in zip(_batches(found), outcomes, strict=True):
            partition = target.partition
            if isinstance(outcome, KafkaError):
                answer = produce.refused(self.node, partition.index, partition, outcome)
            else:
                _, last_offset, _, repeat = outcome
                counters.messages_in += header.count
                counters.topic_bytes_in += len(view)
                counters.duplicates += repeat is not None
                answer = produce.appended(partition.index, header, outcome)
                end_offset = last_offset + 1
                if acks < 0 and partition.high_watermark.value < end_offset:
                    waits.append(Wait(answer, partition.acknowledged, end_offset))
            _told(response, target.topic).append(answer)
        if not acks:
            produce.close_on_failure(response)
            return ()
        if waits:
            return _Later(self, correlation_id, timeout_ms, response, waits)
        return (self.encoded(response, correlation_id),)

    # ---- answers ----

    def hint(self, connection: Connection, response: ProduceResponse) -> None:
        """Adds who leads instead (KIP-951)."""
        hint_produce(self.node, connection.listener, self._version, response)

    def encoded(self, response: ProduceResponse, correlation_id: int) -> bytearray:
        out = bytearray(self._head)
        response.encode_into(out, self._version)
        _HEAD.pack_into(out, 0, len(out) - 4, correlation_id)
        return out

    def _packer_of(self, targets: tuple[Target, ...]) -> ElementsPacker:
        """Packs the answer to a request for these partitions of which every batch was appended."""
        topic = targets[0].topic
        if targets[-1].topic is topic:
            count = len(targets)
            return topic.answers.get(count) or _kept(
                topic.answers, count, self._packer([topic] * count)
            )
        topics = [target.topic for target in targets]
        ids = tuple([topic.id for topic in topics])
        return self._answers.get(ids) or _kept(self._answers, ids, self._packer(topics))

    def _answer_of_one(self, partition: Partition) -> Packer:
        told = PartitionProduceResponse(
            index=partition.index, base_offset=_MARKS[0], log_start_offset=_MARKS[1]
        )
        topic = TopicProduceResponse(
            name=partition.topic, topic_id=partition.topic_id, partition_responses=[told]
        )
        return answer_packer(bytes(self.encoded(ProduceResponse(responses=[topic]), 0)), _MARKS)

    def _packer(self, topics: list[Topic]) -> ElementsPacker:
        """Packs answers that tell of batches of these topics."""
        mark = PartitionProduceResponse(
            index=_MARK, base_offset=_MARK << 31 | _MARK, log_start_offset=_MARK
        )
        response = ProduceResponse()
        for topic in topics:
            _told(response, topic).append(mark)
        element = self._pack(mark.index, mark.base_offset, mark.log_start_offset)
        gaps = bytes(self.encoded(response, 0)[_HEAD.size :]).split(element)
        return elements_packer(
            gaps, PartitionProduceResponse, self._version, self._flexible, _PACKED
        )


class _Later(Promise):
    """An answer that waits for replicas of several partitions."""

    __slots__ = ("_correlation_id", "_path", "_waits")

    def __init__(
        self,
        path: ProduceFastPath,
        correlation_id: int,
        timeout_ms: int,
        response: ProduceResponse,
        waits: list[Wait],
    ) -> None:
        super().__init__(pipelined=True)
        self._path = path
        self._waits = AckWaits(path.node.ack_deadlines, timeout_ms, response, waits, self._hint)
        self._correlation_id = correlation_id

    def begin(self) -> None:
        self._waits.begin(self._complete)

    def abandon(self) -> None:
        self._waits.abandon()

    def _hint(self, response: ProduceResponse) -> None:
        self._path.hint(self.connection, response)

    def _complete(self, response: ProduceResponse) -> None:
        self.connection.keep(self, (self._path.encoded(response, self._correlation_id),))


class _OneLater(Promise):
    """An answer that waits for replicas of one partition: itself what the watermark tells."""

    __slots__ = ("_error", "_found", "_path", "_place", "due", "over")

    due: float

    def __init__(self, path: ProduceFastPath, found: Found, place: Appended) -> None:
        super().__init__(pipelined=True)
        self._path = path
        # Not the view of the batch, whose buffer is used again.
        self._found = found[:4]
        self._place = place
        self._error = ErrorCode.NONE
        self.over = False

    def begin(self) -> None:
        _, _, timeout_ms, target = self._found
        target.partition.acknowledged.watch(self._place[1] + 1, self)
        if not self.over:
            self._path.node.ack_deadlines.add(self, max(timeout_ms, 0))

    def abandon(self) -> None:
        self.over = True

    # ---- as the watermark and the deadlines see it ----

    def done(self) -> bool:
        return self.over

    def set_result(self, result: None, /) -> None:
        self._end(ErrorCode.NONE)

    def set_exception(self, failure: BaseException, /) -> None:
        known = isinstance(failure, KafkaError)
        self._end(failure.code if known else ErrorCode.UNKNOWN_SERVER_ERROR)  # type: ignore[attr-defined]

    def expire(self) -> None:
        self._end(ErrorCode.REQUEST_TIMED_OUT)

    def _end(self, error: ErrorCode) -> None:
        """Not in the step that moved the watermark: an answer that leaves may do anything."""
        self.over = True
        self._error = error
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        connection = self.connection
        if connection.closed:
            return
        correlation_id, _, _, target = self._found
        base_offset, _, start_offset, _ = self._place
        if not self._error:
            answer = target.answer(correlation_id, base_offset, start_offset)
            connection.keep(self, (answer,))
            return
        told = PartitionProduceResponse(
            index=target.partition.index,
            error_code=self._error,
            base_offset=base_offset,
            log_start_offset=start_offset,
        )
        response = ProduceResponse()
        _told(response, target.topic).append(told)
        if self._error in MOVED:
            self._path.hint(connection, response)
        connection.keep(self, (self._path.encoded(response, correlation_id),))


def _batches(found: Found) -> list[Batch]:
    return list(zip(found[3::3], found[4::3], found[5::3], strict=True))


def _told(response: ProduceResponse, topic: Topic) -> list[PartitionProduceResponse]:
    """What is told of the partitions of a topic, which is the last so far or a new one."""
    topics = response.responses
    if not topics or topics[-1].name != topic.name:
        topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.id))
    return topics[-1].partition_responses


def _kept(table: dict[K, V], key: K, value: V) -> V:
    if len(table) >= MOST_KEPT:
        table.clear()
    table[key] = value
    return value
