"""Produce: record batches on their way into a partition."""

from scriba.wire.schema import (
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    Records,
    Str,
    Struct,
    Uuid,
    field,
)


class PartitionProduceData(Struct):
    index: Int32 = field("0+")
    records: Records = field("0+")


class TopicProduceData(Struct):
    name: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field("0+")


class ProduceRequest(Message, key=0, versions="3-13", flexible="9+"):
    transactional_id: NullableStr = field("3+", default=None)
    acks: Int16 = field("0+")
    timeout_ms: Int32 = field("0+")
    topic_data: list[TopicProduceData] = field("0+")


class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32 = field("8+")
    batch_index_error_message: NullableStr = field("8+", default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = field("10+", default=-1)
    leader_epoch: Int32 = field("10+", default=-1)


class PartitionProduceResponse(Struct):
    index: Int32 = field("0+")
    error_code: Int16 = field("0+")
    base_offset: Int64 = field("0+")
    log_append_time_ms: Int64 = field("2+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field("8+", ignorable=True)
    error_message: NullableStr = field("8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = field("10+", tag=0)


class TopicProduceResponse(Struct):
    name: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field("0+")


class NodeEndpoint(Struct):
    node_id: Int32 = field("10+")
    host: Str = field("10+")
    port: Int32 = field("10+")
    rack: NullableStr = field("10+", default=None)


class ProduceResponse(Message, key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = field("0+")
    throttle_time_ms: Int32 = field("1+")
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0)
