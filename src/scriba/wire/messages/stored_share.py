"""Records of `__share_group_state`."""

from scriba.wire.schema import Int8, Int16, Int32, Int64, Message, Str, Struct, Uuid, field


class ShareSnapshotKey(Message, key=0, versions="0"):
    group_id: Str = field("0")
    topic_id: Uuid = field("0")
    partition: Int32 = field("0")


class ShareSnapshotValueStateBatch(Struct):
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    delivery_state: Int8 = field("0+")
    delivery_count: Int16 = field("0+")


class ShareSnapshotValue(Message, key=0, versions="0", flexible="0+"):
    snapshot_epoch: Int32 = field("0+")
    state_epoch: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    delivery_complete_count: Int32 = field("0+", default=-1, tag=0)
    create_timestamp: Int64 = field("0+")
    write_timestamp: Int64 = field("0+")
    state_batches: list[ShareSnapshotValueStateBatch] = field("0+")


class ShareUpdateKey(Message, key=1, versions="0"):
    group_id: Str = field("0")
    topic_id: Uuid = field("0")
    partition: Int32 = field("0")


class ShareUpdateValueStateBatch(Struct):
    first_offset: Int64 = field("0+")
    last_offset: Int64 = field("0+")
    delivery_state: Int8 = field("0+")
    delivery_count: Int16 = field("0+")


class ShareUpdateValue(Message, key=1, versions="0", flexible="0+"):
    snapshot_epoch: Int32 = field("0+")
    leader_epoch: Int32 = field("0+")
    start_offset: Int64 = field("0+")
    delivery_complete_count: Int32 = field("0+", default=-1, tag=0)
    state_batches: list[ShareUpdateValueStateBatch] = field("0+")
