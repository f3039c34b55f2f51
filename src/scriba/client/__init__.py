"""Clients of Kafka's protocol: producer, consumer and admin, for asyncio and for plain code.

Everything here is loaded when it is first asked for, so that a program pays for what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scriba.client.admin.admin import ALL_RECORDS, Admin
    from scriba.client.admin.calls import PartlyFailed, PartlyListed
    from scriba.client.admin.model import (
        ActiveProducer,
        ClusterDescription,
        ConfigEntry,
        ConfigOp,
        ConfigResource,
        ConfigSynonym,
        CreatedTopic,
        ElectionType,
        Endpoint,
        Feature,
        GroupDescription,
        GroupListing,
        GroupMember,
        LogDir,
        NewTopic,
        PartitionDescription,
        QuorumDescription,
        QuorumReplica,
        Reassignment,
        ReplicaLog,
        ResourceType,
        TopicDescription,
        TopicListing,
        TransactionDescription,
        TransactionListing,
        UpgradeType,
    )
    from scriba.client.cluster import Node
    from scriba.client.consuming.consumer import Consumer
    from scriba.client.consuming.record import ConsumerRecord
    from scriba.client.errors import (
        AbortableTransactionError,
        BufferFull,
        DecodeError,
        FatalTransactionError,
        OffsetError,
        ProducerFenced,
        RecordError,
        TransactionError,
        TransactionStateError,
    )
    from scriba.client.keywords import AdminKeywords, ConsumerKeywords, ProducerKeywords
    from scriba.client.model import (
        ConsumerGroupMetadata,
        Headers,
        HeadersLike,
        Isolation,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        OffsetSpec,
        RecordMetadata,
        TimestampType,
        TopicPartition,
    )
    from scriba.client.producing.batches import Delivery
    from scriba.client.producing.partitioner import by_key
    from scriba.client.producing.producer import Producer
    from scriba.client.sync.clients import (
        SyncAdmin,
        SyncConsumer,
        SyncDelivery,
        SyncProducer,
        SyncTransaction,
    )
    from scriba.client.transactions.transactions import Transaction
    from scriba.config import ConfigError
    from scriba.errors import ErrorCode
    from scriba.peers.errors import (
        BrokerError,
        ClientError,
        Closed,
        NetworkError,
        NotKafka,
        TimedOut,
    )

__all__ = [
    "ALL_RECORDS",
    "AbortableTransactionError",
    "ActiveProducer",
    "Admin",
    "AdminKeywords",
    "BrokerError",
    "BufferFull",
    "ClientError",
    "Closed",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigError",
    "ConfigOp",
    "ConfigResource",
    "ConfigSynonym",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerKeywords",
    "ConsumerRecord",
    "CreatedTopic",
    "DecodeError",
    "Delivery",
    "ElectionType",
    "Endpoint",
    "ErrorCode",
    "FatalTransactionError",
    "Feature",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "Headers",
    "HeadersLike",
    "Isolation",
    "LogDir",
    "NetworkError",
    "NewTopic",
    "Node",
    "NotKafka",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetError",
    "OffsetSpec",
    "PartitionDescription",
    "PartlyFailed",
    "PartlyListed",
    "Producer",
    "ProducerFenced",
    "ProducerKeywords",
    "QuorumDescription",
    "QuorumReplica",
    "Reassignment",
    "RecordError",
    "RecordMetadata",
    "ReplicaLog",
    "ReplicaOffsets",
    "ResourceType",
    "SyncAdmin",
    "SyncConsumer",
    "SyncDelivery",
    "SyncProducer",
    "SyncTransaction",
    "TimedOut",
    "TimestampType",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionError",
    "TransactionListing",
    "TransactionStateError",
    "UpgradeType",
    "by_key",
]

_HOMES = {
    "scriba.client.admin.admin": ("ALL_RECORDS", "Admin"),
    "scriba.client.admin.model": (
        "ActiveProducer",
        "ClusterDescription",
        "ConfigEntry",
        "ConfigOp",
        "ConfigResource",
        "ConfigSynonym",
        "CreatedTopic",
        "ElectionType",
        "Feature",
        "GroupDescription",
        "GroupListing",
        "GroupMember",
        "LogDir",
        "NewTopic",
        "PartitionDescription",
        "Endpoint",
        "QuorumDescription",
        "QuorumReplica",
        "Reassignment",
        "ReplicaLog",
        "ReplicaOffsets",
        "ResourceType",
        "TopicDescription",
        "TopicListing",
        "TransactionDescription",
        "TransactionListing",
        "UpgradeType",
    ),
    "scriba.client.producing.batches": ("Delivery",),
    "scriba.client.admin.calls": ("PartlyFailed", "PartlyListed"),
    "scriba.client.cluster": ("Node",),
    "scriba.client.consuming.consumer": ("Consumer",),
    "scriba.client.errors": (
        "AbortableTransactionError",
        "BufferFull",
        "DecodeError",
        "FatalTransactionError",
        "OffsetError",
        "ProducerFenced",
        "RecordError",
        "TransactionError",
        "TransactionStateError",
    ),
    "scriba.client.keywords": ("AdminKeywords", "ConsumerKeywords", "ProducerKeywords"),
    "scriba.client.model": (
        "ConsumerGroupMetadata",
        "Headers",
        "HeadersLike",
        "Isolation",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "OffsetSpec",
        "RecordMetadata",
        "TimestampType",
        "TopicPartition",
    ),
    "scriba.client.producing.partitioner": ("by_key",),
    "scriba.client.producing.producer": ("Producer",),
    "scriba.client.consuming.record": ("ConsumerRecord",),
    "scriba.client.sync.clients": (
        "SyncAdmin",
        "SyncConsumer",
        "SyncDelivery",
        "SyncProducer",
        "SyncTransaction",
    ),
    "scriba.client.transactions.transactions": ("Transaction",),
    "scriba.peers.errors": (
        "BrokerError",
        "ClientError",
        "Closed",
        "NetworkError",
        "NotKafka",
        "TimedOut",
    ),
    "scriba.config": ("ConfigError",),
    "scriba.errors": ("ErrorCode",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
