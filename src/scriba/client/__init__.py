"""Clients of Kafka's protocol: producer, consumer and admin, for asyncio and for plain code.

Everything here is loaded when it is first asked for, so that a program pays for what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scriba.client.admin import ALL_RECORDS, Admin
    from scriba.client.admin_model import (
        ConfigOp,
        ConfigResource,
        NewTopic,
        ResourceType,
        UpgradeType,
    )
    from scriba.client.batches import Delivery
    from scriba.client.calls import PartlyFailed
    from scriba.client.consumer import Consumer
    from scriba.client.errors import (
        AbortableTransactionError,
        BrokerError,
        BufferFull,
        ClientError,
        Closed,
        DecodeError,
        FatalTransactionError,
        NetworkError,
        OffsetError,
        ProducerFenced,
        RecordError,
        TimedOut,
        TransactionError,
        TransactionStateError,
    )
    from scriba.client.model import (
        ConsumerGroupMetadata,
        Isolation,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        OffsetSpec,
        RecordMetadata,
        TimestampType,
        TopicPartition,
    )
    from scriba.client.producer import Producer
    from scriba.client.record import ConsumerRecord
    from scriba.client.sync import SyncAdmin, SyncConsumer, SyncProducer

__all__ = [
    "ALL_RECORDS",
    "AbortableTransactionError",
    "Admin",
    "BrokerError",
    "BufferFull",
    "ClientError",
    "Closed",
    "ConfigOp",
    "ConfigResource",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "DecodeError",
    "Delivery",
    "FatalTransactionError",
    "Isolation",
    "NetworkError",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetError",
    "OffsetSpec",
    "PartlyFailed",
    "Producer",
    "ProducerFenced",
    "RecordError",
    "RecordMetadata",
    "ResourceType",
    "SyncAdmin",
    "SyncConsumer",
    "SyncProducer",
    "TimedOut",
    "TimestampType",
    "TopicPartition",
    "TransactionError",
    "TransactionStateError",
    "UpgradeType",
]

_HOMES = {
    "admin": ("ALL_RECORDS", "Admin"),
    "admin_model": ("ConfigOp", "ConfigResource", "NewTopic", "ResourceType", "UpgradeType"),
    "batches": ("Delivery",),
    "calls": ("PartlyFailed",),
    "consumer": ("Consumer",),
    "errors": (
        "AbortableTransactionError",
        "BrokerError",
        "BufferFull",
        "ClientError",
        "Closed",
        "DecodeError",
        "FatalTransactionError",
        "NetworkError",
        "OffsetError",
        "ProducerFenced",
        "RecordError",
        "TimedOut",
        "TransactionError",
        "TransactionStateError",
    ),
    "model": (
        "ConsumerGroupMetadata",
        "Isolation",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "OffsetSpec",
        "RecordMetadata",
        "TimestampType",
        "TopicPartition",
    ),
    "producer": ("Producer",),
    "record": ("ConsumerRecord",),
    "sync": ("SyncAdmin", "SyncConsumer", "SyncProducer"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
