"""The clients' settings as keywords, for type checkers and editors.

Written by `make docs` from the declarations in `scriba.client.settings`; do not edit.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict


class ClientKeywords(TypedDict, total=False):
    """Keywords that every client takes."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    metadata_max_age_ms: int
    metadata_recovery_strategy: Literal["none", "rebootstrap"]
    metadata_recovery_rebootstrap_trigger_ms: int
    security_protocol: Literal["PLAINTEXT"]


class AdminKeywords(ClientKeywords, total=False):
    """Keywords that `Admin` takes."""

    default_api_timeout_ms: int


class ProducerKeywords(ClientKeywords, total=False):
    """Keywords that `Producer` takes."""

    key_serializer: str | Callable[..., Any]
    value_serializer: str | Callable[..., Any]
    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    enable_idempotence: bool
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    retries: int
    delivery_timeout_ms: int
    partitioner_class: str | Callable[..., Any]
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    metadata_max_idle_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int


class ConsumerKeywords(ClientKeywords, total=False):
    """Keywords that `Consumer` takes."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: Literal["classic", "consumer"]
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Sequence[str]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    exclude_internal_topics: bool
    scriba_decode_errors: Literal["raise", "skip"]
    auto_offset_reset: str
    isolation_level: Literal["read_uncommitted", "read_committed"]
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    check_crcs: bool
    client_rack: str
    allow_auto_create_topics: bool
    default_api_timeout_ms: int
