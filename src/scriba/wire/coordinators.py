"""Records of the coordinators' topics as bytes, in the versions that Kafka 4.3 writes.

A key begins with an int16 that names its kind, a value with an int16 that is its version; the
schema's own fields follow. The kind decides which class the value has. A broker of another
release may have written kinds that are not known here: those are passed over, in both senses.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from struct import error as StructError
from typing import Final

from scriba.errors import ParseError
from scriba.wire import stored_groups as groups
from scriba.wire.schema import Buffer, Message
from scriba.wire.stored import TransactionLogKey, TransactionLogValue

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"

_SHORT: Final = Struct(">h")
_KEY_VERSION: Final = 0

_GROUP_KINDS: Final = (
    (groups.LegacyOffsetCommitKey, groups.LegacyOffsetCommitValue),
    (groups.OffsetCommitKey, groups.OffsetCommitValue),
    (groups.GroupMetadataKey, groups.GroupMetadataValue),
    (groups.ConsumerGroupMetadataKey, groups.ConsumerGroupMetadataValue),
    (groups.ConsumerGroupPartitionMetadataKey, groups.ConsumerGroupPartitionMetadataValue),
    (groups.ConsumerGroupMemberMetadataKey, groups.ConsumerGroupMemberMetadataValue),
    (
        groups.ConsumerGroupTargetAssignmentMetadataKey,
        groups.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    (
        groups.ConsumerGroupTargetAssignmentMemberKey,
        groups.ConsumerGroupTargetAssignmentMemberValue,
    ),
    (
        groups.ConsumerGroupCurrentMemberAssignmentKey,
        groups.ConsumerGroupCurrentMemberAssignmentValue,
    ),
    (groups.ConsumerGroupRegularExpressionKey, groups.ConsumerGroupRegularExpressionValue),
)

_Kinds = Mapping[int, tuple[type[Message], type[Message]]]


def _by_kind(pairs: Iterable[tuple[type[Message], type[Message]]]) -> _Kinds:
    return {key.KEY: (key, value) for key, value in pairs if key.KEY is not None}


KINDS: Final[Mapping[str, _Kinds]] = {
    OFFSETS_TOPIC: _by_kind(_GROUP_KINDS),
    TRANSACTIONS_TOPIC: _by_kind([(TransactionLogKey, TransactionLogValue)]),
}
"""Topic -> the number in front of a key -> the classes of key and value."""

_VALUE_VERSIONS: Final[Mapping[type[Message], int]] = {
    groups.GroupMetadataValue: 3,
    TransactionLogValue: 1,
}


def _value_version(value: Message) -> int:
    if isinstance(value, groups.OffsetCommitValue):
        # Only version 1 has room for an expiry of its own.
        return 4 if value.expire_timestamp == -1 else 1
    return _VALUE_VERSIONS.get(type(value), 0)


def encode_change(topic: str, change: tuple[Message, Message | None]) -> tuple[bytes, bytes | None]:
    """Key and value of a record; no value is a tombstone. ValueError for what cannot be stored."""
    key, value = change
    assert key.KEY in KINDS[topic], f"{type(key).__name__} is no record of {topic}"
    prefix = bytearray(_SHORT.pack(key.KEY))
    key.encode_into(prefix, _KEY_VERSION)
    if value is None:
        return bytes(prefix), None
    version = _value_version(value)
    body = bytearray(_SHORT.pack(version))
    value.encode_into(body, version)
    return bytes(prefix), bytes(body)


def decode_change(
    topic: str, key: Buffer, value: Buffer | None
) -> tuple[Message, Message | None] | None:
    """The record, or None for a kind unknown here; ParseError for bytes that are neither."""
    try:
        (kind,) = _SHORT.unpack_from(key)
        version = None if value is None else _SHORT.unpack_from(value)[0]
    except StructError as error:
        raise ParseError(f"a record of {topic} that does not begin with an int16") from error
    classes = KINDS[topic].get(kind)
    if classes is None:
        return None
    key_class, value_class = classes
    # As in Kafka, what follows the known fields is left alone.
    found: Message = key_class.decode_from(key, _SHORT.size, _KEY_VERSION)[0]
    content: Message | None = None
    if value is not None and version is not None:
        if version not in value_class.VERSIONS:
            raise ParseError(f"{value_class.__name__} has no version {version}")
        content = value_class.decode_from(value, _SHORT.size, version)[0]
    if key_class is groups.LegacyOffsetCommitKey:
        return _modern(found), None if content is None else _modern(content)
    return found, content


def _modern(message: Message) -> Message:
    """Commits of long ago, in the shape that later ones have."""
    if isinstance(message, groups.LegacyOffsetCommitKey):
        return groups.OffsetCommitKey(
            group=message.group, topic=message.topic, partition=message.partition
        )
    if isinstance(message, groups.LegacyOffsetCommitValue):
        return groups.OffsetCommitValue(
            offset=message.offset,
            metadata=message.metadata,
            commit_timestamp=message.commit_timestamp,
        )
    return message
