"""What brokers tell the active controller, and the envelope in which they forward requests."""

from scriba.wire.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableBytes,
    NullableStr,
    Str,
    Struct,
    UInt16,
    Uuid,
    field,
)


class BrokerRegistrationRequestListener(Struct):
    name: Str = field("0+")
    host: Str = field("0+")
    port: UInt16 = field("0+")
    security_protocol: Int16 = field("0+")


class BrokerRegistrationRequestFeature(Struct):
    name: Str = field("0+")
    min_supported_version: Int16 = field("0+")
    max_supported_version: Int16 = field("0+")


class BrokerRegistrationRequest(Message, key=62, versions="0-4", flexible="0+"):
    broker_id: Int32 = field("0+")
    cluster_id: Str = field("0+")
    incarnation_id: Uuid = field("0+")
    listeners: list[BrokerRegistrationRequestListener] = field("0+")
    features: list[BrokerRegistrationRequestFeature] = field("0+")
    rack: NullableStr = field("0+")
    is_migrating_zk_broker: Bool = field("1+")
    log_dirs: list[Uuid] = field("2+", ignorable=True)
    previous_broker_epoch: Int64 = field("3+", default=-1, ignorable=True)


class BrokerRegistrationResponse(Message, key=62, versions="0-4", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)


class BrokerHeartbeatRequest(Message, key=63, versions="0-2", flexible="0+"):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)
    current_metadata_offset: Int64 = field("0+")
    want_fence: Bool = field("0+")
    want_shut_down: Bool = field("0+")
    offline_log_dirs: list[Uuid] = field("1+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field("2+", default=None, tag=1)


class BrokerHeartbeatResponse(Message, key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    is_caught_up: Bool = field("0+")
    is_fenced: Bool = field("0+", default=True)
    should_shut_down: Bool = field("0+")


class UnregisterBrokerRequest(Message, key=64, versions="0", flexible="0+"):
    broker_id: Int32 = field("0+")


class UnregisterBrokerResponse(Message, key=64, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class ControllerRegistrationRequestListener(Struct):
    name: Str = field("0+")
    host: Str = field("0+")
    port: UInt16 = field("0+")
    security_protocol: Int16 = field("0+")


class ControllerRegistrationRequestFeature(Struct):
    name: Str = field("0+")
    min_supported_version: Int16 = field("0+")
    max_supported_version: Int16 = field("0+")


class ControllerRegistrationRequest(Message, key=70, versions="0", flexible="0+"):
    controller_id: Int32 = field("0+")
    incarnation_id: Uuid = field("0+")
    zk_migration_ready: Bool = field("0+")
    listeners: list[ControllerRegistrationRequestListener] = field("0+")
    features: list[ControllerRegistrationRequestFeature] = field("0+")


class ControllerRegistrationResponse(Message, key=70, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    error_message: NullableStr = field("0+")


class BrokerState(Struct):
    broker_id: Int32 = field("3+")
    broker_epoch: Int64 = field("3+", default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    new_isr: list[Int32] = field("0-2")
    new_isr_with_epochs: list[BrokerState] = field("3+")
    leader_recovery_state: Int8 = field("1+")
    partition_epoch: Int32 = field("0+")


class AlterPartitionRequestTopicData(Struct):
    topic_id: Uuid = field("2+")
    partitions: list[AlterPartitionRequestPartitionData] = field("0+")


class AlterPartitionRequest(Message, key=56, versions="2-3", flexible="0+"):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)
    topics: list[AlterPartitionRequestTopicData] = field("0+")


class AlterPartitionResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    leader_id: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    isr: list[Int32] = field("0+")
    leader_recovery_state: Int8 = field("1+")
    partition_epoch: Int32 = field("0+")


class AlterPartitionResponseTopicData(Struct):
    topic_id: Uuid = field("2+")
    partitions: list[AlterPartitionResponsePartitionData] = field("0+")


class AlterPartitionResponse(Message, key=56, versions="2-3", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    topics: list[AlterPartitionResponseTopicData] = field("0+")


class AssignReplicasToDirsRequestPartitionData(Struct):
    partition_index: Int32 = field("0+")


class AssignReplicasToDirsRequestTopicData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[AssignReplicasToDirsRequestPartitionData] = field("0+")


class AssignReplicasToDirsRequestDirectoryData(Struct):
    id: Uuid = field("0+")
    topics: list[AssignReplicasToDirsRequestTopicData] = field("0+")


class AssignReplicasToDirsRequest(Message, key=73, versions="0", flexible="0+"):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)
    directories: list[AssignReplicasToDirsRequestDirectoryData] = field("0+")


class AssignReplicasToDirsResponsePartitionData(Struct):
    partition_index: Int32 = field("0+")
    error_code: Int16 = field("0+")


class AssignReplicasToDirsResponseTopicData(Struct):
    topic_id: Uuid = field("0+")
    partitions: list[AssignReplicasToDirsResponsePartitionData] = field("0+")


class AssignReplicasToDirsResponseDirectoryData(Struct):
    id: Uuid = field("0+")
    topics: list[AssignReplicasToDirsResponseTopicData] = field("0+")


class AssignReplicasToDirsResponse(Message, key=73, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    directories: list[AssignReplicasToDirsResponseDirectoryData] = field("0+")


class AllocateProducerIdsRequest(Message, key=67, versions="0", flexible="0+"):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)


class AllocateProducerIdsResponse(Message, key=67, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = field("0+")
    error_code: Int16 = field("0+")
    producer_id_start: Int64 = field("0+")
    producer_id_len: Int32 = field("0+")


class EnvelopeRequest(Message, key=58, versions="0", flexible="0+"):
    request_data: Bytes = field("0+")
    request_principal: NullableBytes = field("0+")
    client_host_address: Bytes = field("0+")


class EnvelopeResponse(Message, key=58, versions="0", flexible="0+"):
    response_data: NullableBytes = field("0+", default=None)
    error_code: Int16 = field("0+")
