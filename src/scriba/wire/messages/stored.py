"""Records that are kept, not sent: cluster metadata, control records, files beside a log.

The value of a record in `__cluster_metadata` is a message behind three varints: the version of
this frame, the type of the record, its version. Keys and values of coordinator records begin with
a 16-bit number instead: the type in a key, the version in a value. `quorum-state` is JSON.
"""

import json
from typing import Final

from scriba.errors import ParseError
from scriba.wire import uuids
from scriba.wire.schema import (
    Bool,
    Buffer,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    Str,
    Struct,
    UInt16,
    UInt32,
    Uuid,
    field,
)
from scriba.wire.varint import read_uvarint


class BrokerEndpoint(Struct):
    name: Str = field("0+")
    host: Str = field("0+")
    port: UInt16 = field("0+")
    security_protocol: Int16 = field("0+")


class BrokerFeature(Struct):
    name: Str = field("0+")
    min_supported_version: Int16 = field("0+")
    max_supported_version: Int16 = field("0+")


class RegisterBrokerRecord(Message, key=0, versions="0-4", flexible="0+"):
    broker_id: Int32 = field("0+")
    is_migrating_zk_broker: Bool = field("2+")
    incarnation_id: Uuid = field("0+")
    broker_epoch: Int64 = field("0+")
    end_points: list[BrokerEndpoint] = field("0+")
    features: list[BrokerFeature] = field("0+")
    rack: NullableStr = field("0+")
    fenced: Bool = field("0+", default=True)
    in_controlled_shutdown: Bool = field("1+")
    log_dirs: list[Uuid] = field("3+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field("4+", default=None, tag=1)


class UnregisterBrokerRecord(Message, key=1, versions="0", flexible="0+"):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+")


class TopicRecord(Message, key=2, versions="0", flexible="0+"):
    name: Str = field("0+")
    topic_id: Uuid = field("0+")


class PartitionRecord(Message, key=3, versions="0-2", flexible="0+"):
    partition_id: Int32 = field("0+", default=-1)
    topic_id: Uuid = field("0+")
    replicas: list[Int32] = field("0+")
    isr: list[Int32] = field("0+")
    removing_replicas: list[Int32] = field("0+")
    adding_replicas: list[Int32] = field("0+")
    leader: Int32 = field("0+", default=-1)
    leader_recovery_state: Int8 = field("0+", tag=0)
    leader_epoch: Int32 = field("0+", default=-1)
    partition_epoch: Int32 = field("0+", default=-1)
    directories: list[Uuid] = field("1+")
    eligible_leader_replicas: list[Int32] | None = field("2+", default=None, tag=1)
    last_known_elr: list[Int32] | None = field("2+", default=None, tag=2)


class ConfigRecord(Message, key=4, versions="0", flexible="0+"):
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    name: Str = field("0+")
    value: NullableStr = field("0+")


class PartitionChangeRecord(Message, key=5, versions="0-2", flexible="0+"):
    partition_id: Int32 = field("0+", default=-1)
    topic_id: Uuid = field("0+")
    isr: list[Int32] | None = field("0+", default=None, tag=0)
    leader: Int32 = field("0+", default=-2, tag=1)
    replicas: list[Int32] | None = field("0+", default=None, tag=2)
    removing_replicas: list[Int32] | None = field("0+", default=None, tag=3)
    adding_replicas: list[Int32] | None = field("0+", default=None, tag=4)
    leader_recovery_state: Int8 = field("0+", default=-1, tag=5)
    directories: list[Uuid] | None = field("1+", default=None, tag=8)
    eligible_leader_replicas: list[Int32] | None = field("2+", default=None, tag=6)
    last_known_elr: list[Int32] | None = field("2+", default=None, tag=7)


class FenceBrokerRecord(Message, key=7, versions="0", flexible="0+"):
    id: Int32 = field("0+")
    epoch: Int64 = field("0+")


class UnfenceBrokerRecord(Message, key=8, versions="0", flexible="0+"):
    id: Int32 = field("0+")
    epoch: Int64 = field("0+")


class RemoveTopicRecord(Message, key=9, versions="0", flexible="0+"):
    topic_id: Uuid = field("0+")


class DelegationTokenRecord(Message, key=10, versions="0", flexible="0+"):
    owner: Str = field("0+")
    requester: Str = field("0+")
    renewers: list[Str] = field("0+")
    issue_timestamp: Int64 = field("0+")
    max_timestamp: Int64 = field("0+")
    expiration_timestamp: Int64 = field("0+")
    token_id: Str = field("0+")


class UserScramCredentialRecord(Message, key=11, versions="0", flexible="0+"):
    name: Str = field("0+")
    mechanism: Int8 = field("0+")
    salt: Bytes = field("0+")
    stored_key: Bytes = field("0+")
    server_key: Bytes = field("0+")
    iterations: Int32 = field("0+")


class FeatureLevelRecord(Message, key=12, versions="0", flexible="0+"):
    name: Str = field("0+")
    feature_level: Int16 = field("0+")


class EntityData(Struct):
    entity_type: Str = field("0+")
    entity_name: NullableStr = field("0+")


class ClientQuotaRecord(Message, key=14, versions="0", flexible="0+"):
    entity: list[EntityData] = field("0+")
    key: Str = field("0+")
    value: Float64 = field("0+")
    remove: Bool = field("0+")


class ProducerIdsRecord(Message, key=15, versions="0", flexible="0+"):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)
    next_producer_id: Int64 = field("0+")


class BrokerRegistrationChangeRecord(Message, key=17, versions="0-3", flexible="0+"):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+")
    fenced: Int8 = field("0+", tag=0)
    in_controlled_shutdown: Int8 = field("1+", tag=1)
    log_dirs: list[Uuid] = field("2+", tag=2)
    cordoned_log_dirs: list[Uuid] | None = field("3+", default=None, tag=3)


class AccessControlEntryRecord(Message, key=18, versions="0", flexible="0+"):
    id: Uuid = field("0+")
    resource_type: Int8 = field("0+")
    resource_name: Str = field("0+")
    pattern_type: Int8 = field("0+")
    principal: Str = field("0+")
    host: Str = field("0+")
    operation: Int8 = field("0+")
    permission_type: Int8 = field("0+")


class RemoveAccessControlEntryRecord(Message, key=19, versions="0", flexible="0+"):
    id: Uuid = field("0+")


class NoOpRecord(Message, key=20, versions="0", flexible="0+"):
    pass


class ZkMigrationStateRecord(Message, key=21, versions="0", flexible="0+"):
    zk_migration_state: Int8 = field("0+")


class RemoveUserScramCredentialRecord(Message, key=22, versions="0", flexible="0+"):
    name: Str = field("0+")
    mechanism: Int8 = field("0+")


class BeginTransactionRecord(Message, key=23, versions="0", flexible="0+"):
    name: NullableStr = field("0+", default=None, tag=0)


class EndTransactionRecord(Message, key=24, versions="0", flexible="0+"):
    pass


class AbortTransactionRecord(Message, key=25, versions="0", flexible="0+"):
    reason: NullableStr = field("0+", default=None, tag=0)


class RemoveDelegationTokenRecord(Message, key=26, versions="0", flexible="0+"):
    token_id: Str = field("0+")


class ControllerEndpoint(Struct):
    name: Str = field("0+")
    host: Str = field("0+")
    port: UInt16 = field("0+")
    security_protocol: Int16 = field("0+")


class ControllerFeature(Struct):
    name: Str = field("0+")
    min_supported_version: Int16 = field("0+")
    max_supported_version: Int16 = field("0+")


class RegisterControllerRecord(Message, key=27, versions="0", flexible="0+"):
    controller_id: Int32 = field("0+")
    incarnation_id: Uuid = field("0+")
    zk_migration_ready: Bool = field("0+")
    end_points: list[ControllerEndpoint] = field("0+")
    features: list[ControllerFeature] = field("0+")


class ClearElrRecord(Message, key=28, versions="0", flexible="0+"):
    topic_name: Str = field("0+")


class UnknownRecord(Message, versions="0", flexible="0+"):
    """Stands for a record of the metadata log whose type this release does not know."""

    type: Int32 = field("0+")
    version: Int32 = field("0+")


class ControlRecordTypeSchema(Message, versions="0"):
    type: Int16 = field("0+")


class EndTxnMarker(Message, versions="0"):
    coordinator_epoch: Int32 = field("0+")


class LeaderChangeMessageVoter(Struct):
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    version: Int16 = field("0+")
    leader_id: Int32 = field("0+")
    voters: list[LeaderChangeMessageVoter] = field("0+")
    granting_voters: list[LeaderChangeMessageVoter] = field("0+")


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    version: Int16 = field("0+")
    last_contained_log_timestamp: Int64 = field("0+")


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    version: Int16 = field("0+")


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    version: Int16 = field("0+")
    kraft_version: Int16 = field("0+")


class Endpoint(Struct):
    name: Str = field("0+")
    host: Str = field("0+")
    port: UInt16 = field("0+")


class KRaftVersionFeature(Struct):
    min_supported_version: Int16 = field("0+")
    max_supported_version: Int16 = field("0+")


class VotersRecordVoter(Struct):
    voter_id: Int32 = field("0+")
    voter_directory_id: Uuid = field("0+")
    endpoints: list[Endpoint] = field("0+")
    kraft_version_feature: KRaftVersionFeature = field("0+")


class VotersRecord(Message, versions="0", flexible="0+"):
    version: Int16 = field("0+")
    voters: list[VotersRecordVoter] = field("0+")


class QuorumStateDataVoter(Struct):
    voter_id: Int32 = field("0")


class QuorumStateData(Message, versions="0-1", flexible="0+"):
    cluster_id: Str = field("0")
    leader_id: Int32 = field("0+", default=-1)
    leader_epoch: Int32 = field("0+", default=-1)
    voted_id: Int32 = field("0+", default=-1)
    voted_directory_id: Uuid = field("1+")
    applied_offset: Int64 = field("0")
    current_voters: list[QuorumStateDataVoter] | None = field("0")


class ProducerEntry(Struct):
    producer_id: Int64 = field("1")
    epoch: Int16 = field("1")
    last_sequence: Int32 = field("1")
    last_offset: Int64 = field("1")
    offset_delta: Int32 = field("1")
    timestamp: Int64 = field("1")
    coordinator_epoch: Int32 = field("1")
    current_txn_first_offset: Int64 = field("1")


class ProducerSnapshot(Message, versions="1"):
    crc: UInt32 = field("1")
    producer_entries: list[ProducerEntry] = field("1")


class TransactionLogKey(Message, key=0, versions="0"):
    transactional_id: Str = field("0")


class PartitionsSchema(Struct):
    topic: Str = field("0+")
    partition_ids: list[Int32] = field("0+")


class TransactionLogValue(Message, key=0, versions="0-1", flexible="1+"):
    producer_id: Int64 = field("0+")
    previous_producer_id: Int64 = field("1+", default=-1, tag=0)
    next_producer_id: Int64 = field("1+", default=-1, tag=1)
    producer_epoch: Int16 = field("0+")
    next_producer_epoch: Int16 = field("1+", default=-1, tag=3)
    transaction_timeout_ms: Int32 = field("0+")
    transaction_status: Int8 = field("0+")
    transaction_partitions: list[PartitionsSchema] | None = field("0+")
    transaction_last_update_timestamp_ms: Int64 = field("0+")
    transaction_start_timestamp_ms: Int64 = field("0+")
    client_transaction_version: Int16 = field("1+", tag=2)


METADATA_RECORDS: Final[dict[int, type[Message]]] = {
    cls.KEY: cls
    for cls in (
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        FenceBrokerRecord,
        UnfenceBrokerRecord,
        RemoveTopicRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        NoOpRecord,
        ZkMigrationStateRecord,
        RemoveUserScramCredentialRecord,
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        RemoveDelegationTokenRecord,
        RegisterControllerRecord,
        ClearElrRecord,
    )
    if cls.KEY is not None
}

FRAME_VERSION = 1


def encode_metadata_record(message: Message, version: int | None = None) -> bytes:
    """The value of a record in the metadata log, at the newest version unless told."""
    assert METADATA_RECORDS.get(message.KEY or 0) is type(message)
    at = message.VERSIONS.high if version is None else version
    out = bytearray((FRAME_VERSION, message.KEY or 0, at))
    message.encode_into(out, at)
    return bytes(out)


def decode_metadata_record(buf: Buffer) -> Message:
    """A record of the metadata log; an `UnknownRecord` where a later release has added its type."""
    try:
        frame, key, version, pos = buf[0], buf[1], buf[2], 3
        if (frame | key | version) & 0x80:
            frame, pos = read_uvarint(buf, 0)
            key, pos = read_uvarint(buf, pos)
            version, pos = read_uvarint(buf, pos)
    except (ValueError, IndexError) as e:
        raise ParseError(f"metadata record: {e}") from e
    if frame != FRAME_VERSION:
        raise ParseError(f"metadata record: unknown frame version {frame}")
    cls = METADATA_RECORDS.get(key)
    if cls is None:
        return UnknownRecord(type=key, version=version)
    message, end = cls.decode_from(buf, pos, version)
    if end != len(buf):
        raise ParseError(f"{cls.__name__} v{version}: {len(buf) - end} bytes left over")
    return message


def encode_prefixed(number: int, message: Message, version: int) -> bytes:
    """A coordinator record's key (`number` is its type) or value (its version again)."""
    out = bytearray(number.to_bytes(2, "big"))
    message.encode_into(out, version)
    return bytes(out)


def read_prefix(buf: Buffer) -> int:
    """The number a coordinator record's key or value begins with; its body follows at 2."""
    if len(buf) < 2:
        raise ParseError("coordinator record: truncated")
    return int.from_bytes(buf[:2], "big", signed=True)


def encode_quorum_state(state: QuorumStateData, version: int = 1) -> bytes:
    """The content of the file `quorum-state`."""
    if version == 0:
        voters = state.current_voters
        facts: dict[str, object] = {
            "clusterId": state.cluster_id,
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "appliedOffset": state.applied_offset,
            "currentVoters": voters and [{"voterId": v.voter_id} for v in voters],
        }
    else:
        facts = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "votedDirectoryId": uuids.to_text(state.voted_directory_id),
        }
    facts["data_version"] = version
    return json.dumps(facts, separators=(",", ":")).encode()


def decode_quorum_state(buf: Buffer) -> QuorumStateData:
    try:
        facts = json.loads(bytes(buf))
        version = facts["data_version"]
        if version not in QuorumStateData.VERSIONS:
            raise ParseError(f"quorum-state: unknown version {version}")
        state = QuorumStateData(
            leader_id=int(facts["leaderId"]),
            leader_epoch=int(facts["leaderEpoch"]),
            voted_id=int(facts["votedId"]),
        )
        if version == 0:
            voters = facts["currentVoters"]
            state.cluster_id = str(facts["clusterId"])
            state.applied_offset = int(facts["appliedOffset"])
            state.current_voters = voters and [
                QuorumStateDataVoter(voter_id=int(v["voterId"])) for v in voters
            ]
        else:
            state.voted_directory_id = uuids.from_text(facts["votedDirectoryId"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ParseError(f"quorum-state: {e!r}") from e
    return state
