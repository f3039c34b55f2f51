"""Records of the coordinators' topics as bytes, in the versions that Kafka 4.3 writes.

A key begins with an int16 that names its kind, a value with an int16 that is its version; the
schema's own fields follow. The kind decides which class the value has. A broker of another
release may have written kinds that are not known here: those are passed over, in both senses.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

from scriba.errors import ParseError
from scriba.wire.messages import stored_groups as groups
from scriba.wire.messages.stored import TransactionLogKey, TransactionLogValue
from scriba.wire.schema import Buffer, Message

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_KEY_VERSION: Final = 0

_COMMIT_VERSION: Final = 4
_COMMIT_START: Final = Struct(">hqiB")
_ONE_BYTE_LENGTHS: Final = 127
_NO_ID: Final = bytes(16)
_NO_TAGS: Final = b"\0"
_TAGGED_ID: Final = b"\1\0\x10"
"""One tagged field, the first, of sixteen bytes."""

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
        return _COMMIT_VERSION if value.expire_timestamp == -1 else 1
    return _VALUE_VERSIONS.get(type(value), 0)


@lru_cache(maxsize=1024)
def _commit_key_start(group: str, topic: str) -> bytes:
    whole = bytearray(_SHORT.pack(groups.OffsetCommitKey.KEY or 0))
    groups.OffsetCommitKey(group=group, topic=topic).encode_into(whole, _KEY_VERSION)
    return bytes(whole[: -_INT.size])


def encode_commit(
    key: groups.OffsetCommitKey, value: groups.OffsetCommitValue
) -> tuple[bytes, bytes]:
    """The most frequent record of all, as `encode_change` would write it, in fewer steps."""
    metadata = value.metadata.encode()
    topic_id = value.topic_id
    if value.expire_timestamp != -1 or len(metadata) >= _ONE_BYTE_LENGTHS:
        return _encode(key, value, _value_version(value))
    try:
        content = _COMMIT_START.pack(
            _COMMIT_VERSION, value.offset, value.leader_epoch, len(metadata) + 1
        )
        end = _LONG.pack(value.commit_timestamp)
        place = _INT.pack(key.partition)
    except StructError as error:
        raise ValueError(f"OffsetCommitValue: {error}") from error
    tags = _TAGGED_ID + topic_id if topic_id != _NO_ID else _NO_TAGS
    start = _commit_key_start(key.group, key.topic)
    return start + place, b"".join((content, metadata, end, tags))


def encode_change(topic: str, change: tuple[Message, Message | None]) -> tuple[bytes, bytes | None]:
    """Key and value of a record; no value is a tombstone. ValueError for what cannot be stored."""
    key, value = change
    assert key.KEY in KINDS[topic], f"{type(key).__name__} is no record of {topic}"
    if type(value) is groups.OffsetCommitValue and type(key) is groups.OffsetCommitKey:
        return encode_commit(key, value)
    if value is None:
        prefix = bytearray(_SHORT.pack(key.KEY))
        key.encode_into(prefix, _KEY_VERSION)
        return bytes(prefix), None
    return _encode(key, value, _value_version(value))


def _encode(key: Message, value: Message, version: int) -> tuple[bytes, bytes]:
    prefix = bytearray(_SHORT.pack(key.KEY or 0))
    key.encode_into(prefix, _KEY_VERSION)
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
