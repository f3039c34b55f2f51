"""Settings of the clients, by Kafka's names, each declared once.

They are given as keywords (`linger_ms=20`), as a mapping with dotted names
(`{"linger.ms": "20"}`), or both; a keyword wins. Either way a value goes through the same checks,
and an unknown name is refused with the nearest match.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Any, Final, Self

from scriba.client.group.settings import GroupKeys, settle_group
from scriba.client.model import is_text
from scriba.client.serializers import DESERIALIZERS, SERIALIZERS, Deserializer, Serializer
from scriba.config import ConfigError, Importance, Kind, Setting, Settings, did_you_mean, setting
from scriba.peers.addresses import parse_address

_MAX_INT: Final = 2**31 - 1
_SECURITY: Final = "TLS and SASL"
HIGH: Final = Importance.HIGH
LOW: Final = Importance.LOW

UNSUPPORTED: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("send.buffer.bytes", "receive.buffer.bytes"),
        "the kernel sizes socket buffers itself; leave it out",
    ),
    **dict.fromkeys(
        ("metric.reporters", "metrics.num.samples", "metrics.sample.window.ms"),
        "this client has no metric reporters; leave it out",
    ),
    "metrics.recording.level": "this client has no metric reporters; leave it out",
    "enable.metrics.push": "this client pushes no telemetry; leave it out",
    "interceptor.classes": "there are no interceptors; wrap send() or poll() instead",
    "client.dns.lookup": "every address of a host is tried in turn; leave it out",
    "partitioner.availability.timeout.ms": "a slow broker gets fewer records by itself",
}
"""Names that Kafka's clients know and these do not, with what to do."""


def _check_addresses(addresses: tuple[str, ...]) -> str | None:
    wrong = next((a for a in addresses if parse_address(a) is None), None)
    return None if wrong is None else f"{wrong!r} is not host:port"


_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.ASCII
)


def parse_duration_ms(text: str) -> int | None:
    """An ISO 8601 duration of days to seconds, such as P1DT12H; None when it is none."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000)


def _check_reset(policy: str) -> str | None:
    if policy in ("latest", "earliest", "none"):
        return None
    kind, _, duration = policy.partition(":")
    if kind == "by_duration" and parse_duration_ms(duration) is not None:
        return None
    return "must be latest, earliest, none or by_duration:<ISO 8601 duration, such as PT2H>"


def _check_name(name: str) -> str | None:
    return None if len(name.encode()) <= 32767 else "is too long"


def _check_transactional_id(name: str) -> str | None:
    return _check_name(name) if name else "must not be empty"


class ClientSettings(Settings):
    """What every client takes."""

    bootstrap_servers: tuple[str, ...] = setting(
        Kind.LIST,
        default=(),
        check=_check_addresses,
        importance=HIGH,
        doc="Addresses (host:port) of one or more brokers; the others are learnt from them.",
    )
    client_id: str = setting(
        Kind.STRING,
        default="scriba",
        check=_check_name,
        doc="Name of this client in requests: brokers show it in logs and apply quotas by it.",
    )
    request_timeout_ms: int = setting(
        Kind.INT,
        default=30_000,
        at_least=0,
        doc="How long an answer may take before the connection is given up.",
    )
    retry_backoff_ms: int = setting(
        Kind.LONG,
        default=100,
        at_least=0,
        doc="Pause before a request is tried again; it doubles with each failure.",
    )
    retry_backoff_max_ms: int = setting(
        Kind.LONG,
        default=1_000,
        at_least=0,
        doc="Longest pause between two tries of a request; 20% jitter is added.",
    )
    reconnect_backoff_ms: int = setting(
        Kind.LONG,
        default=50,
        at_least=0,
        doc="Pause before a broker that could not be reached is tried again; it doubles.",
    )
    reconnect_backoff_max_ms: int = setting(
        Kind.LONG,
        default=1_000,
        at_least=0,
        doc="Longest pause between two tries to reach a broker; 20% jitter is added.",
    )
    socket_connection_setup_timeout_ms: int = setting(
        Kind.LONG,
        default=10_000,
        at_least=0,
        doc="How long making a connection may take; it doubles with each failure.",
    )
    socket_connection_setup_timeout_max_ms: int = setting(
        Kind.LONG,
        default=30_000,
        at_least=0,
        doc="Longest that making a connection may take, however often it has failed.",
    )
    connections_max_idle_ms: int = setting(
        Kind.LONG,
        default=540_000,
        at_least=-1,
        doc="An unused connection is closed after this time; -1 keeps it.",
    )
    metadata_max_age_ms: int = setting(
        Kind.LONG,
        default=300_000,
        at_least=0,
        doc="Brokers, topics and leaders are looked up anew after this time, changes or not.",
    )
    metadata_recovery_strategy: str = setting(
        Kind.STRING,
        default="rebootstrap",
        choices=("none", "rebootstrap"),
        importance=LOW,
        doc="Whether the bootstrap servers are asked again when no known broker answers.",
    )
    metadata_recovery_rebootstrap_trigger_ms: int = setting(
        Kind.LONG,
        default=300_000,
        at_least=0,
        importance=LOW,
        doc="With rebootstrap: all brokers are forgotten when none has told of the cluster for "
        "this time, and the bootstrap servers are asked.",
    )
    security_protocol: str = setting(
        Kind.STRING,
        default="PLAINTEXT",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        feature=_SECURITY,
        doc="Protocol of connections to brokers.",
    )

    @classmethod
    def build(cls, config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> Self:
        """Settings from dotted names and keywords; ConfigError says which one is wrong and why."""
        values: dict[str, Any] = {}
        if config is None:
            config = {}
        if not isinstance(config, Mapping) or not all(isinstance(name, str) for name in config):
            raise ConfigError(
                "config",
                "must be a mapping of settings by their names; servers are given as "
                'bootstrap_servers="localhost:9092"',
                reprlib.repr(config),
            )
        for name, value in config.items():
            values |= cls._read(cls._find(name, dotted=True), value)
        for name, value in keywords.items():
            declared = cls._find(name, dotted=False)
            values.pop(declared.attribute, None)  # also where None takes back what config says
            values |= cls._read(declared, value)
        if not values.get("bootstrap_servers"):
            raise ConfigError("bootstrap.servers", 'is needed, such as "localhost:9092"')
        return cls(**cls.settle(values))

    @classmethod
    def settle(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Checks values against each other; `values` holds only what was given."""
        return values

    @classmethod
    def _find(cls, name: str, dotted: bool) -> Setting:
        official = name if dotted else name.replace("_", ".")
        found = cls.table.get(official)
        if found is None:
            reason = UNSUPPORTED.get(official)
            names = cls.table if dotted else [s.attribute for s in cls.table.values()]
            raise ConfigError(name, reason or f"no such setting{did_you_mean(name, names)}")
        return found

    @classmethod
    def _read(cls, declared: Setting, value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        if declared.kind is Kind.CLASS and not isinstance(value, str):
            if not callable(value):
                raise ConfigError(declared.name, "must be a name or a callable", repr(value))
            return {declared.attribute: value}
        text = ",".join(value) if isinstance(value, list) else declared.render(value)
        if text and not is_text(text):
            raise ConfigError(declared.name, "holds what is no character", ascii(text))
        return {declared.attribute: declared.parse(text or "")}


class AdminSettings(ClientSettings):
    """What `Admin` takes."""

    connections_max_idle_ms: int = setting(
        Kind.LONG,
        default=300_000,
        at_least=-1,
        doc="An unused connection is closed after this time; -1 keeps it.",
    )
    default_api_timeout_ms: int = setting(
        Kind.INT,
        default=60_000,
        at_least=0,
        doc="How long a call may take with all its retries, unless it is given a time.",
    )


class ProducerSettings(ClientSettings):
    """What `Producer` takes."""

    key_serializer: str | Serializer = setting(
        Kind.CLASS,
        default="bytes",
        choices=tuple(SERIALIZERS),
        importance=HIGH,
        doc="Turns a key into bytes: a name, or a callable from the key to bytes.",
    )
    value_serializer: str | Serializer = setting(
        Kind.CLASS,
        default="bytes",
        choices=tuple(SERIALIZERS),
        importance=HIGH,
        doc="Turns a value into bytes: a name, or a callable from the value to bytes.",
    )
    acks: str = setting(
        Kind.STRING,
        default="all",
        choices=("all", "-1", "0", "1"),
        importance=HIGH,
        doc="Who must have a record before it counts as sent: all in-sync replicas, the leader "
        "(1), or nobody (0: no answer is waited for). 0 and 1 turn idempotence off.",
    )
    enable_idempotence: bool = setting(
        Kind.BOOLEAN,
        default=True,
        doc="Whether retries can neither double nor reorder records. Unless it is asked for, acks "
        "below all, no retries, or more than five requests in flight turn it off.",
    )
    compression_type: str = setting(
        Kind.STRING,
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        importance=HIGH,
        doc="Codec of the batches that are sent.",
    )
    compression_gzip_level: int = setting(
        Kind.INT,
        default=-1,
        at_least=1,
        at_most=9,
        also=-1,
        doc="Compression level of gzip; -1 is its default.",
    )
    compression_lz4_level: int = setting(
        Kind.INT,
        default=9,
        at_least=1,
        at_most=17,
        doc="Compression level of lz4; 9 is its fast mode.",
    )
    compression_zstd_level: int = setting(
        Kind.INT, default=3, at_least=-131072, at_most=22, doc="Compression level of zstd."
    )
    batch_size: int = setting(
        Kind.INT, default=16_384, at_least=0, doc="Bytes at which a batch counts as full."
    )
    linger_ms: int = setting(
        Kind.LONG,
        default=5,
        at_least=0,
        doc="How long a batch that is not full waits for more records.",
    )
    buffer_memory: int = setting(
        Kind.LONG,
        default=32 << 20,
        at_least=0,
        importance=HIGH,
        doc="Bytes of records that may wait for their acknowledgement.",
    )
    max_block_ms: int = setting(
        Kind.LONG,
        default=60_000,
        at_least=0,
        doc="How long a send waits for room in the buffer and for the topic's metadata.",
    )
    max_request_size: int = setting(
        Kind.INT, default=1 << 20, at_least=0, doc="Largest record, and request, in bytes."
    )
    max_in_flight_requests_per_connection: int = setting(
        Kind.INT,
        default=5,
        at_least=1,
        doc="Requests to one broker before the first is answered; idempotence allows up to 5.",
    )
    retries: int = setting(
        Kind.INT,
        default=_MAX_INT,
        at_least=0,
        at_most=_MAX_INT,
        doc="How often a batch is tried again; delivery.timeout.ms is the better limit.",
    )
    delivery_timeout_ms: int = setting(
        Kind.INT,
        default=120_000,
        at_least=0,
        doc="Time from send() until a record is acknowledged or has failed.",
    )
    partitioner_class: Any = setting(
        Kind.CLASS,
        default=None,
        choices=("round-robin", "org.apache.kafka.clients.producer.RoundRobinPartitioner"),
        doc="Who chooses the partition of a record that names none. Unset: the key's murmur2 as "
        "in Java, and without a key one partition until a batch is full. Or round-robin, or a "
        "callable (topic, key bytes, value bytes, number of partitions) -> partition.",
    )
    partitioner_ignore_keys: bool = setting(
        Kind.BOOLEAN, default=False, doc="Whether records with a key are spread like the others."
    )
    partitioner_adaptive_partitioning_enable: bool = setting(
        Kind.BOOLEAN,
        default=True,
        importance=LOW,
        doc="Whether partitions with shorter queues get more of the records without a key.",
    )
    metadata_max_idle_ms: int = setting(
        Kind.LONG,
        default=300_000,
        at_least=5_000,
        importance=LOW,
        doc="A topic that nothing was sent to for this time is forgotten.",
    )
    transactional_id: str | None = setting(
        Kind.STRING,
        default=None,
        check=_check_transactional_id,
        doc="Makes the producer transactional: its name, by which a later one takes over from it.",
    )
    transaction_timeout_ms: int = setting(
        Kind.INT,
        default=60_000,
        at_least=1,
        doc="How long a transaction may be open before its coordinator aborts it.",
    )

    @classmethod
    def settle(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("acks") == "-1":
            values["acks"] = "all"
        _settle_idempotence(values)
        _settle_times(values)
        return values


def _settle_idempotence(values: dict[str, Any]) -> None:
    """Idempotence needs acks, retries and few requests in flight; what was not asked for yields."""
    reasons = (
        ("acks", values.get("acks", "all") == "all", "acks=all"),
        ("retries", values.get("retries", 1) > 0, "retries above 0"),
        (
            "max.in.flight.requests.per.connection",
            values.get("max_in_flight_requests_per_connection", 5) <= 5,
            "at most 5 requests in flight",
        ),
    )
    transactional = values.get("transactional_id") is not None
    for name, holds, needed in reasons:
        if holds:
            continue
        if transactional:
            raise ConfigError(name, f"transactional.id needs {needed}; drop one of the two")
        if values.get("enable_idempotence"):
            raise ConfigError(name, f"enable.idempotence=true needs {needed}; drop one of the two")
        values["enable_idempotence"] = False
    if transactional and not values.get("enable_idempotence", True):
        raise ConfigError("enable.idempotence", "transactional.id needs it; drop one of the two")


def _settle_times(values: dict[str, Any]) -> None:
    """A batch needs its linger and at least one try within the time for its delivery."""
    table = ProducerSettings.table
    needed = sum(
        values.get(name.replace(".", "_"), table[name].default)
        for name in ("linger.ms", "request.timeout.ms")
    )
    given = values.get("delivery_timeout_ms")
    if given is None:
        values["delivery_timeout_ms"] = max(needed, table["delivery.timeout.ms"].default)
    elif given < needed:
        raise ConfigError(
            "delivery.timeout.ms",
            f"must be at least linger.ms + request.timeout.ms = {needed}; raise it or lower those",
            str(given),
        )


class ConsumerSettings(GroupKeys, ClientSettings):
    """What `Consumer` takes."""

    key_deserializer: str | Deserializer = setting(
        Kind.CLASS,
        default="bytes",
        choices=tuple(DESERIALIZERS),
        importance=HIGH,
        doc="Turns the bytes of a key into an object: a name, or a callable from bytes.",
    )
    value_deserializer: str | Deserializer = setting(
        Kind.CLASS,
        default="bytes",
        choices=tuple(DESERIALIZERS),
        importance=HIGH,
        doc="Turns the bytes of a value into an object: a name, or a callable from bytes.",
    )
    scriba_decode_errors: str = setting(
        Kind.STRING,
        default="raise",
        choices=("raise", "skip"),
        doc="What happens to a record that a deserializer refuses: poll raises a DecodeError "
        "that names it, or it is logged and left out.",
    )
    auto_offset_reset: str = setting(
        Kind.STRING,
        default="latest",
        check=_check_reset,
        doc="Where to read when there is no position, or it is not in the log: latest, "
        "earliest, by_duration:PT2H (that long ago), or none to raise an OffsetError.",
    )
    isolation_level: str = setting(
        Kind.STRING,
        default="read_uncommitted",
        choices=("read_uncommitted", "read_committed"),
        doc="Whether records of open and aborted transactions are left out.",
    )
    fetch_min_bytes: int = setting(
        Kind.INT,
        default=1,
        at_least=0,
        importance=HIGH,
        doc="The broker answers once it has this much, or after fetch.max.wait.ms.",
    )
    fetch_max_wait_ms: int = setting(
        Kind.INT, default=500, at_least=0, doc="How long the broker may wait for fetch.min.bytes."
    )
    fetch_max_bytes: int = setting(
        Kind.INT, default=50 << 20, at_least=0, doc="Bytes in one answer; one batch always fits."
    )
    max_partition_fetch_bytes: int = setting(
        Kind.INT,
        default=1 << 20,
        at_least=0,
        doc="Bytes of one partition in one answer; one batch always fits.",
    )
    max_poll_records: int = setting(
        Kind.INT, default=500, at_least=1, doc="Most records that one poll returns."
    )
    check_crcs: bool = setting(
        Kind.BOOLEAN, default=True, importance=LOW, doc="Whether checksums are checked on reading."
    )
    client_rack: str = setting(
        Kind.STRING,
        default="",
        importance=LOW,
        doc="Where this client runs; brokers with a replica selector name a replica close by.",
    )
    allow_auto_create_topics: bool = setting(
        Kind.BOOLEAN,
        default=True,
        doc="Whether assigning a missing topic may create it, if the broker allows.",
    )
    default_api_timeout_ms: int = setting(
        Kind.INT,
        default=60_000,
        at_least=0,
        doc="How long a call may take with all its retries, unless it is given a time.",
    )

    @classmethod
    def settle(cls, values: dict[str, Any]) -> dict[str, Any]:
        settle_group(values, cls.table)
        return values
