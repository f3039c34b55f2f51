"""What `.option(...)` takes: the names of Spark's Kafka connector, read and checked once.

Names are compared without case, as Spark does. `kafka.*` goes to the client under its own name.
A name that means nothing here is refused with the nearest match; one that the other connector
knows and this one does not is refused with what to do instead.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scriba.client.model import Isolation, OffsetSpec
from scriba.client.settings import ConsumerSettings, ProducerSettings
from scriba.config import nearest

LATEST: Final = int(OffsetSpec.LATEST)
EARLIEST: Final = int(OffsetSpec.EARLIEST)

DEFAULT_FETCH_BYTES: Final = 8 << 20
"""A task reads one partition, so it may take more of it at once than a consumer of many."""

DEFAULT_BATCH_BYTES: Final = 768 << 10
"""Below what a topic takes by default (message.max.bytes), headers and all."""

DEFAULT_TRANSACTION_MS: Final = 600_000
"""A batch of Spark may take minutes; brokers allow a quarter of an hour by default."""

PREFIX: Final = "kafka."

ON_DRIVER: Final = "maxRecordsOnDriver"
DEFAULT_ON_DRIVER: Final = 10_000
"""What takes less time than to start a task that runs Python."""

STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")
STARTS: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
COMMON: Final = (
    *STRATEGIES,
    *STARTS,
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "alignByTimestamp",
    "groupId",
    ON_DRIVER,
)
TARGETS: Final = ("topic", "topics")
SINK: Final = (
    *TARGETS,
    "sinkId",
    "tasks",
    "attempts",
    "markerMissing",
    "checkpointLocation",
    ON_DRIVER,
)
STREAM_SINK: Final = (*TARGETS, "checkpointLocation", "queryName")
"""Spark gives a stream's writer its own options too."""

UNSUPPORTED: Final[Mapping[str, str]] = {
    "groupIdPrefix": "no group is joined to read; groupId names the one that progress is told to",
    "kafkaConsumer.pollTimeoutMs": "use kafka.default.api.timeout.ms",
    "fetchOffset.numRetries": "requests are retried for kafka.default.api.timeout.ms",
    "fetchOffset.retryIntervalMs": "use kafka.retry.backoff.ms",
    "kafka.auto.offset.reset": "use startingOffsets and failOnDataLoss",
    "kafka.enable.auto.commit": "positions live in the checkpoint; groupId publishes them",
    "kafka.key.deserializer": "keys and values are bytes; cast the columns",
    "kafka.value.deserializer": "keys and values are bytes; cast the columns",
    "kafka.key.serializer": "keys and values are bytes or strings; cast the columns",
    "kafka.value.serializer": "keys and values are bytes or strings; cast the columns",
    "kafka.enable.idempotence": "writing is always idempotent",
    "kafka.transactional.id": "use sinkId",
    "kafka.acks": "writing always waits for all replicas in sync",
}
"""Names that mean something to Spark's or Kafka's code, with what to do here."""

_UNSUPPORTED: Final = {name.lower(): (name, reason) for name, reason in UNSUPPORTED.items()}

_DURATION: Final = re.compile(r"(\d+)\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|d|days?)")
_UNIT_MS: Final = {"ms": 1, "mi": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(ValueError):
    """An option that cannot be taken: which one, why, and what to do."""


def fail(name: str, complaint: str) -> "OptionError":
    return OptionError(f"option {name}: {complaint}")


Offsets = Mapping[str, Mapping[int, int]]
"""Per topic and partition: an offset, LATEST, EARLIEST, or a timestamp."""


@dataclass(frozen=True)
class OffsetChoice:
    """Where to begin or end: one word for all partitions, or one for each."""

    for_all: int | None = None
    """LATEST, EARLIEST, or with `by_timestamp` a timestamp."""
    by_partition: Offsets = field(default_factory=dict)
    by_timestamp: bool = False


@dataclass(frozen=True)
class Subscription:
    """Which topics: named, matching a pattern, or single partitions. One of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def wants(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or topic in self.partitions

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that were named; empty for a pattern."""
        return self.topics or tuple(self.partitions)


@dataclass(frozen=True)
class ReadOptions:
    client: Mapping[str, str]
    """Settings of the consumer, by Kafka's names."""
    subscription: Subscription
    start: OffsetChoice
    end: OffsetChoice
    timestamp_strategy: str
    """What a starting timestamp later than every record means: `error` or `latest`."""
    headers: bool
    fail_on_data_loss: bool
    isolation: Isolation
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    align_by_timestamp: bool = False
    """Whether partitions of a backlog are read up to the same time, and not by their sizes."""
    group: str | None = None
    max_on_driver: int = 0
    """Records of a micro-batch up to which it is read where it is planned, without a task."""

    def settings(self) -> ConsumerSettings:
        return ConsumerSettings.build(self.client, {})


class _OptionReader:
    """The options as given, by lower-case name: Spark hands them over like that."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self.values = {name.lower(): value for name, value in options.items()}
        allowed = {name.lower(): name for name in known}
        for given in options:
            name = given.lower()
            if name in _UNSUPPORTED:
                spelled, reason = _UNSUPPORTED[name]
                raise fail(spelled, f"{reason}; leave it out")
            if name not in allowed and not name.startswith(PREFIX):
                match = nearest(name, allowed)
                meant = f"; did you mean {allowed[match]}?" if match else ""
                raise fail(given, f"no such option{meant}")

    def text(self, name: str) -> str | None:
        return self.values.get(name.lower())

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise fail(name, f"must be true or false, not {text!r}")
        return text.strip().lower() == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"-?\d+", text.strip()) or int(text) < least:
            raise fail(name, f"must be a number from {least} up, not {text!r}")
        return int(text)

    def client(self) -> dict[str, str]:
        given = {n[len(PREFIX) :]: v for n, v in self.values.items() if n.startswith(PREFIX)}
        if not given.get("bootstrap.servers"):
            raise fail("kafka.bootstrap.servers", 'is needed, such as "localhost:9092"')
        return given


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Options of a read; OptionError or ConfigError says which one is wrong."""
    others = BATCH_ONLY if streaming else STREAM_ONLY
    for name in others:
        if name.lower() in (given.lower() for given in options):
            kind = "batch" if streaming else "streaming"
            raise fail(name, f"means something only in a {kind} query; leave it out")
    given = _OptionReader(options, (*COMMON, *(STREAM_ONLY if streaming else BATCH_ONLY)))
    client = given.client()
    group = client.pop("group.id", None)
    if group is not None and not streaming:
        raise fail("kafka.group.id", "a batch query has no progress to publish; leave it out")
    if group is not None and given.text("groupId") not in (None, group):
        raise fail("groupId", "kafka.group.id names another group; keep one of the two")
    client.setdefault("max.partition.fetch.bytes", str(DEFAULT_FETCH_BYTES))
    client.setdefault("client.id", "scriba-spark")
    settings = ConsumerSettings.build(client, {})
    committed = settings.isolation_level == "read_committed"
    smallest, largest = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
    if smallest is not None and largest is not None and smallest > largest:
        raise fail("minOffsetsPerTrigger", "is above maxOffsetsPerTrigger; lower it")
    return ReadOptions(
        client=client,
        subscription=_subscription(given),
        start=_start(given, streaming),
        end=_end(given),
        timestamp_strategy=_strategy(given),
        headers=given.flag("includeHeaders", False),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        isolation=Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED,
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        max_offsets=largest,
        min_offsets=smallest,
        max_delay_ms=_duration(given, "maxTriggerDelay", 15 * 60_000),
        align_by_timestamp=given.flag("alignByTimestamp", False),
        group=group or given.text("groupId"),
        max_on_driver=_on_driver(given),
    )


def _subscription(given: _OptionReader) -> Subscription:
    chosen = [name for name in STRATEGIES if given.text(name) is not None]
    if len(chosen) != 1:
        told = " and ".join(chosen) or "none"
        raise OptionError(f"give one of subscribe, subscribePattern and assign; there is {told}")
    (name,) = chosen
    text = (given.text(name) or "").strip()
    if not text:
        raise fail(name, "is empty")
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        return Subscription(topics=topics)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as wrong:
            raise fail(name, f"{text!r} is no pattern: {wrong}") from wrong
        return Subscription(pattern=text)
    document = _json(name, text)
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not all(_whole(p) and p >= 0 for p in partitions):
            raise fail(name, f'{topic}: must be a list of partitions, as in {{"orders": [0, 1]}}')
    return Subscription(partitions={t: tuple(sorted(set(p))) for t, p in document.items()})


def _start(given: _OptionReader, streaming: bool) -> OffsetChoice:
    """A timestamp for all wins over one for each partition, that over an offset."""
    time = given.number("startingTimestamp", 0)
    if time is not None:
        return OffsetChoice(for_all=time, by_timestamp=True)
    name = "startingOffsetsByTimestamp"
    if (text := given.text(name)) is not None:
        return OffsetChoice(by_partition=_offsets(name, text, 0), by_timestamp=True)
    name = "startingOffsets"
    text = given.text(name) or ("latest" if streaming else "earliest")
    if text.strip().lower() == "latest" and not streaming:
        raise fail(name, "a batch query that starts at the end reads nothing; give another place")
    choice = _offset_choice(name, text)
    if not streaming and any(LATEST in each.values() for each in choice.by_partition.values()):
        raise fail(name, "-1 (the end) is no place to start a batch query")
    return choice


def _end(given: _OptionReader) -> OffsetChoice:
    time = given.number("endingTimestamp", 0)
    if time is not None:
        return OffsetChoice(for_all=time, by_timestamp=True)
    name = "endingOffsetsByTimestamp"
    if (text := given.text(name)) is not None:
        return OffsetChoice(by_partition=_offsets(name, text, 0), by_timestamp=True)
    name = "endingOffsets"
    text = given.text(name) or "latest"
    if text.strip().lower() == "earliest":
        raise fail(name, "a query that ends at the beginning reads nothing; give another place")
    choice = _offset_choice(name, text)
    if any(EARLIEST in each.values() for each in choice.by_partition.values()):
        raise fail(name, "-2 (the beginning) is no place to end")
    return choice


def _on_driver(given: _OptionReader) -> int:
    found = given.number(ON_DRIVER, 0)
    return DEFAULT_ON_DRIVER if found is None else found


def _strategy(given: _OptionReader) -> str:
    name = "startingOffsetsByTimestampStrategy"
    text = (given.text(name) or "error").strip().lower()
    if text not in ("error", "latest"):
        raise fail(name, f"must be error or latest, not {text!r}")
    return text


def _offset_choice(name: str, text: str) -> OffsetChoice:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return OffsetChoice(for_all=EARLIEST if word == "earliest" else LATEST)
    return OffsetChoice(by_partition=_offsets(name, text, EARLIEST))


def _offsets(name: str, text: str, least: int) -> Offsets:
    found: dict[str, dict[int, int]] = {}
    for topic, places in _json(name, text).items():
        shape = f'{topic}: must be as in {{"{topic}": {{"0": 23, "1": 45}}}}'
        if not isinstance(places, dict):
            raise fail(name, shape)
        for partition, place in places.items():
            if not partition.isdigit() or not _whole(place) or place < least:
                raise fail(name, shape)
            found.setdefault(topic, {})[int(partition)] = place
    return found


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as wrong:
        raise fail(name, f"{text!r} is no JSON: {wrong}") from wrong
    if not isinstance(document, dict) or not document:
        raise fail(name, "must be a JSON object with a topic at least")
    return document


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _duration(given: _OptionReader, name: str, default: int) -> int:
    text = given.text(name)
    if text is None:
        return default
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise fail(name, f"must be a time such as 15m, 30s or 500ms, not {text!r}")
    number, unit = found.groups()
    key = unit[:2] if unit == "ms" or unit.startswith("milli") else unit[0]
    return int(number) * _UNIT_MS[key]


@dataclass(frozen=True)
class WriteOptions:
    client: Mapping[str, str]
    """Settings of the producer, by Kafka's names."""
    topic: str | None
    """Where rows without a topic of their own go."""
    topics: tuple[str, ...]
    """Topics that rows may name."""
    sink_id: str | None = None
    tasks: int | None = None
    attempts: int = 3
    marker_missing: str = "fail"
    checkpoint: str | None = None
    """Of the query, when Spark does not tell which query it is."""
    max_on_driver: int = 0
    """Rows of a batch up to which the driver writes it, without a task."""

    def settings(self) -> ProducerSettings:
        return ProducerSettings.build(self.client, {})

    @property
    def targets(self) -> tuple[str, ...]:
        own = () if self.topic is None else (self.topic,)
        return tuple(dict.fromkeys((*own, *self.topics)))


def write_options(
    options: Mapping[str, str], *, exactly_once: bool, streaming: bool = False
) -> WriteOptions:
    if not exactly_once:
        for name in SINK:
            if name not in (*TARGETS, *STREAM_SINK) and name.lower() in map(str.lower, options):
                raise fail(name, "means something only to scriba.spark.ExactlyOnceSink; use that")
    given = _OptionReader(options, SINK if exactly_once else STREAM_SINK if streaming else TARGETS)
    client = given.client()
    client.setdefault("client.id", "scriba-spark")
    client.setdefault("batch.size", str(DEFAULT_BATCH_BYTES))
    if exactly_once:
        client.setdefault("transaction.timeout.ms", str(DEFAULT_TRANSACTION_MS))
    ProducerSettings.build(client, {})
    missing = (given.text("markerMissing") or "fail").lower()
    if missing not in ("fail", "write"):
        raise fail("markerMissing", f"must be fail or write, not {missing!r}")
    topics = (given.text("topics") or "").split(",")
    found = WriteOptions(
        client=client,
        topic=given.text("topic"),
        topics=tuple(dict.fromkeys(name.strip() for name in topics if name.strip())),
        sink_id=given.text("sinkId"),
        tasks=given.number("tasks"),
        attempts=given.number("attempts") or 3,
        marker_missing=missing,
        checkpoint=given.text("checkpointLocation"),
        max_on_driver=_on_driver(given),
    )
    if not found.targets:
        raise fail("topic", "name the topic to write to, or with topics all that rows may name")
    return found
