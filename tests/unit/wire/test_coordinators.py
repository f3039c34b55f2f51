"""Records of the coordinators' topics, held against what Kafka 4.3's own serialiser writes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scriba.errors import ParseError
from scriba.wire.messages import stored_groups as groups
from scriba.wire.messages.coordinators import (
    KINDS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    decode_change,
    encode_change,
)
from scriba.wire.messages.stored import PartitionsSchema, TransactionLogKey, TransactionLogValue
from scriba.wire.schema import Message

TOPIC_ID = bytes(7) + b"\x01" + bytes(7) + b"\x02"

COMMIT_KEY = groups.OffsetCommitKey(group="g", topic="t", partition=3)

BY_KAFKA: dict[str, tuple[Message, Message | None, str, str | None]] = {
    "commit": (
        COMMIT_KEY,
        groups.OffsetCommitValue(
            offset=42, leader_epoch=5, metadata="m", commit_timestamp=1000, topic_id=TOPIC_ID
        ),
        "000100016700017400000003",
        "0004000000000000002a00000005026d00000000000003e801001000000000000000010000000000000002",
    ),
    "commit with an expiry of its own": (
        COMMIT_KEY,
        groups.OffsetCommitValue(
            offset=42, metadata="m", commit_timestamp=1000, expire_timestamp=2000
        ),
        "000100016700017400000003",
        "0001000000000000002a00016d00000000000003e800000000000007d0",
    ),
    "forgotten commit": (COMMIT_KEY, None, "000100016700017400000003", None),
    "classic group": (
        groups.GroupMetadataKey(group="g"),
        groups.GroupMetadataValue(
            protocol_type="consumer",
            generation=2,
            protocol="range",
            leader="a",
            current_state_timestamp=9,
            members=[
                groups.MemberMetadata(
                    member_id="a",
                    group_instance_id="i",
                    client_id="c",
                    client_host="/h",
                    rebalance_timeout=7,
                    session_timeout=8,
                    subscription=b"\x01",
                    assignment=b"\x02",
                )
            ],
        ),
        "0002000167",
        "00030008636f6e73756d657200000002000572616e676500016100000000000000090000000100016100016900"
        "016300022f68000000070000000800000001010000000102",
    ),
    "consumer group": (
        groups.ConsumerGroupMetadataKey(group_id="g"),
        groups.ConsumerGroupMetadataValue(epoch=4, metadata_hash=77),
        "0003000167",
        "000000000004010008000000000000004d",
    ),
    "target of a member": (
        groups.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        groups.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                groups.ConsumerGroupTargetAssignmentMemberValueTopicPartition(
                    topic_id=TOPIC_ID, partitions=[1]
                )
            ]
        ),
        "000700016700016d",
        "0000020000000000000001000000000000000202000000010000",
    ),
}


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), BY_KAFKA.values(), ids=BY_KAFKA)
def test_a_change_of_a_group_has_the_bytes_that_kafka_writes(
    key: Message, value: Message | None, key_hex: str, value_hex: str | None
) -> None:
    key_bytes = bytes.fromhex(key_hex)
    value_bytes = None if value_hex is None else bytes.fromhex(value_hex)
    assert encode_change(OFFSETS_TOPIC, (key, value)) == (key_bytes, value_bytes)
    assert decode_change(OFFSETS_TOPIC, key_bytes, value_bytes) == (key, value)


def test_a_commit_of_long_ago_is_read_as_one_of_today() -> None:
    old = groups.LegacyOffsetCommitKey(group="g", topic="t", partition=3)
    content = groups.LegacyOffsetCommitValue(offset=9, metadata="m", commit_timestamp=5)
    key, value = encode_change(OFFSETS_TOPIC, (old, content))
    assert decode_change(OFFSETS_TOPIC, key, value) == (
        COMMIT_KEY,
        groups.OffsetCommitValue(offset=9, metadata="m", commit_timestamp=5),
    )
    assert decode_change(OFFSETS_TOPIC, key, None) == (COMMIT_KEY, None)


def test_a_kind_of_another_release_is_passed_over() -> None:
    assert decode_change(OFFSETS_TOPIC, b"\x7f\x00rest", b"\x00\x00") is None
    assert decode_change(TRANSACTIONS_TOPIC, b"\x00\x07rest", None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\x00", None),
        (b"\x00\x02\x00\x05g", None),
        (b"\x00\x02\x00\x01g", b""),
        (b"\x00\x02\x00\x01g", b"\x00\x63\x00"),
        (b"\x00\x02\x00\x01g", b"\x00\x03\x00"),
    ],
)
def test_bytes_that_are_no_record_are_told_from_those_of_another_release(
    key: bytes, value: bytes | None
) -> None:
    with pytest.raises(ParseError):
        decode_change(OFFSETS_TOPIC, key, value)


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
SHORTS = st.integers(-(1 << 15), (1 << 15) - 1)


@given(
    NAMES,
    st.fixed_dictionaries(
        {
            "producer_id": LONGS,
            "previous_producer_id": LONGS,
            "next_producer_id": LONGS,
            "producer_epoch": SHORTS,
            "next_producer_epoch": SHORTS,
            "transaction_timeout_ms": INTS,
            "transaction_status": st.integers(0, 7),
            "transaction_partitions": st.none()
            | st.lists(
                st.builds(PartitionsSchema, topic=NAMES, partition_ids=st.lists(INTS, max_size=3)),
                max_size=3,
            ),
            "transaction_last_update_timestamp_ms": LONGS,
            "transaction_start_timestamp_ms": LONGS,
            "client_transaction_version": SHORTS,
        }
    ),
)
@settings(max_examples=50, deadline=None, database=None)
def test_a_transaction_comes_back_as_it_was_stored(name: str, values: dict[str, Any]) -> None:
    change = (TransactionLogKey(transactional_id=name), TransactionLogValue(**values))
    key, value = encode_change(TRANSACTIONS_TOPIC, change)
    assert decode_change(TRANSACTIONS_TOPIC, key, value) == change


@given(
    NAMES,
    NAMES,
    INTS,
    st.fixed_dictionaries(
        {
            "offset": LONGS,
            "leader_epoch": INTS,
            "metadata": NAMES | st.sampled_from(["m" * 125, "m" * 126, "m" * 127, "ü" * 64]),
            "commit_timestamp": LONGS,
            "expire_timestamp": st.just(-1) | LONGS,
            "topic_id": st.just(bytes(16)) | st.binary(min_size=16, max_size=16),
        }
    ),
)
@settings(max_examples=100, deadline=None, database=None)
def test_a_commit_has_the_bytes_that_its_schema_says(
    group: str, topic: str, partition: int, values: dict[str, Any]
) -> None:
    key = groups.OffsetCommitKey(group=group, topic=topic, partition=partition)
    value = groups.OffsetCommitValue(**values)
    version = 4 if value.expire_timestamp == -1 else 1
    assert encode_change(OFFSETS_TOPIC, (key, value)) == (
        b"\x00\x01" + key.encode(0),
        version.to_bytes(2, "big") + value.encode(version),
    )


@pytest.mark.parametrize("wrong", [{"offset": 1 << 63}, {"leader_epoch": 1 << 31}])
def test_a_commit_that_cannot_be_stored_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="OffsetCommitValue"):
        encode_change(OFFSETS_TOPIC, (COMMIT_KEY, groups.OffsetCommitValue(**wrong)))


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=60), st.none() | st.binary(max_size=60))
@settings(max_examples=200, deadline=None, database=None)
def test_any_bytes_are_a_record_or_passed_over_or_refused(
    topic: str, key: bytes, value: bytes | None
) -> None:
    try:
        decode_change(topic, key, value)
    except ParseError:
        return
