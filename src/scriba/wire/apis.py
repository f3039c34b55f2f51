"""Every API in one table: key, name, versions, and the classes of its request and response.

The table knows versions without importing the messages, so that a node loads only the families
it serves; a test holds it against the declarations.
"""

import enum
from functools import cached_property
from importlib import import_module
from typing import Final

from scriba.wire.schema import LATEST, Message

_B: Final = 1  # served on the listeners of brokers
_C: Final = 2  # served on the listeners of controllers


class ApiKey(enum.IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Api:
    """One request and its response. The versions are those of the released protocol."""

    def __init__(
        self,
        key: int,
        name: str,
        family: str,
        min_version: int,
        max_version: int,
        flexible_from: int | None,
        listeners: int,
    ) -> None:
        self.key = ApiKey(key)
        self.name = name
        self.family = family
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_from = LATEST + 1 if flexible_from is None else flexible_from
        self.on_broker = bool(listeners & _B)
        self.on_controller = bool(listeners & _C)

    @cached_property
    def request(self) -> type[Message]:
        return self._load("Request")

    @cached_property
    def response(self) -> type[Message]:
        return self._load("Response")

    def _load(self, side: str) -> type[Message]:
        message: type[Message] = getattr(
            import_module(f"scriba.wire.messages.{self.family}"), self.name + side
        )
        return message

    @property
    def advertised_min(self) -> int:
        """Old clients take a broker without Produce 0 for one that lacks features (KIP-896)."""
        return 0 if self.key is ApiKey.PRODUCE else self.min_version

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def __repr__(self) -> str:
        return f"Api({self.name} {self.min_version}-{self.max_version})"


_TABLE: Final = (
    (0, "Produce", "produce", 3, 13, 9, _B),
    (1, "Fetch", "fetch", 4, 18, 12, _B | _C),
    (2, "ListOffsets", "fetch", 1, 11, 6, _B),
    (3, "Metadata", "metadata", 0, 13, 9, _B),
    (8, "OffsetCommit", "groups", 2, 10, 8, _B),
    (9, "OffsetFetch", "groups", 1, 10, 6, _B),
    (10, "FindCoordinator", "metadata", 0, 6, 3, _B),
    (11, "JoinGroup", "groups", 0, 9, 6, _B),
    (12, "Heartbeat", "groups", 0, 4, 4, _B),
    (13, "LeaveGroup", "groups", 0, 5, 4, _B),
    (14, "SyncGroup", "groups", 0, 5, 4, _B),
    (15, "DescribeGroups", "groups", 0, 6, 5, _B),
    (16, "ListGroups", "groups", 0, 5, 3, _B),
    (17, "SaslHandshake", "security", 0, 1, None, _B | _C),
    (18, "ApiVersions", "metadata", 0, 4, 3, _B | _C),
    (19, "CreateTopics", "admin", 2, 7, 5, _B | _C),
    (20, "DeleteTopics", "admin", 1, 6, 4, _B | _C),
    (21, "DeleteRecords", "admin", 0, 2, 2, _B),
    (22, "InitProducerId", "txn", 0, 5, 2, _B),
    (23, "OffsetForLeaderEpoch", "fetch", 2, 4, 4, _B),
    (24, "AddPartitionsToTxn", "txn", 0, 5, 3, _B),
    (25, "AddOffsetsToTxn", "txn", 0, 4, 3, _B),
    (26, "EndTxn", "txn", 0, 5, 3, _B),
    (27, "WriteTxnMarkers", "txn", 1, 2, 1, _B),
    (28, "TxnOffsetCommit", "txn", 0, 5, 3, _B),
    (29, "DescribeAcls", "security", 1, 3, 2, _B | _C),
    (30, "CreateAcls", "security", 1, 3, 2, _B | _C),
    (31, "DeleteAcls", "security", 1, 3, 2, _B | _C),
    (32, "DescribeConfigs", "configs", 1, 4, 4, _B | _C),
    (33, "AlterConfigs", "configs", 0, 2, 2, _B | _C),
    (34, "AlterReplicaLogDirs", "admin", 1, 2, 2, _B),
    (35, "DescribeLogDirs", "admin", 1, 5, 2, _B),
    (36, "SaslAuthenticate", "security", 0, 2, 2, _B | _C),
    (37, "CreatePartitions", "admin", 0, 3, 2, _B | _C),
    (38, "CreateDelegationToken", "security", 1, 3, 2, _B | _C),
    (39, "RenewDelegationToken", "security", 1, 2, 2, _B | _C),
    (40, "ExpireDelegationToken", "security", 1, 2, 2, _B | _C),
    (41, "DescribeDelegationToken", "security", 1, 3, 2, _B | _C),
    (42, "DeleteGroups", "groups", 0, 2, 2, _B),
    (43, "ElectLeaders", "admin", 0, 2, 2, _B | _C),
    (44, "IncrementalAlterConfigs", "configs", 0, 1, 1, _B | _C),
    (45, "AlterPartitionReassignments", "admin", 0, 1, 0, _B | _C),
    (46, "ListPartitionReassignments", "admin", 0, 0, 0, _B | _C),
    (47, "OffsetDelete", "groups", 0, 0, None, _B),
    (48, "DescribeClientQuotas", "configs", 0, 1, 1, _B),
    (49, "AlterClientQuotas", "configs", 0, 1, 1, _B | _C),
    (50, "DescribeUserScramCredentials", "security", 0, 0, 0, _B | _C),
    (51, "AlterUserScramCredentials", "security", 0, 0, 0, _B | _C),
    (52, "Vote", "quorum", 0, 2, 0, _C),
    (53, "BeginQuorumEpoch", "quorum", 0, 1, 1, _C),
    (54, "EndQuorumEpoch", "quorum", 0, 1, 1, _C),
    (55, "DescribeQuorum", "quorum", 0, 2, 0, _B | _C),
    (56, "AlterPartition", "brokers", 2, 3, 0, _C),
    (57, "UpdateFeatures", "configs", 0, 2, 0, _B | _C),
    (58, "Envelope", "brokers", 0, 0, 0, _C),
    (59, "FetchSnapshot", "quorum", 0, 1, 0, _C),
    (60, "DescribeCluster", "metadata", 0, 2, 0, _B | _C),
    (61, "DescribeProducers", "txn", 0, 0, 0, _B),
    (62, "BrokerRegistration", "brokers", 0, 4, 0, _C),
    (63, "BrokerHeartbeat", "brokers", 0, 2, 0, _C),
    (64, "UnregisterBroker", "brokers", 0, 0, 0, _B | _C),
    (65, "DescribeTransactions", "txn", 0, 0, 0, _B),
    (66, "ListTransactions", "txn", 0, 2, 0, _B),
    (67, "AllocateProducerIds", "brokers", 0, 0, 0, _C),
    (68, "ConsumerGroupHeartbeat", "groups", 0, 1, 0, _B),
    (69, "ConsumerGroupDescribe", "groups", 0, 1, 0, _B),
    (70, "ControllerRegistration", "brokers", 0, 0, 0, _C),
    (71, "GetTelemetrySubscriptions", "configs", 0, 0, 0, _B),
    (72, "PushTelemetry", "configs", 0, 0, 0, _B),
    (73, "AssignReplicasToDirs", "brokers", 0, 0, 0, _C),
    (74, "ListConfigResources", "configs", 0, 1, 0, _B),
    (75, "DescribeTopicPartitions", "metadata", 0, 0, 0, _B),
    (76, "ShareGroupHeartbeat", "share", 1, 1, 0, _B),
    (77, "ShareGroupDescribe", "share", 1, 1, 0, _B),
    (78, "ShareFetch", "share", 1, 2, 0, _B),
    (79, "ShareAcknowledge", "share", 1, 2, 0, _B),
    (80, "AddRaftVoter", "quorum", 0, 1, 0, _B | _C),
    (81, "RemoveRaftVoter", "quorum", 0, 0, 0, _B | _C),
    (82, "UpdateRaftVoter", "quorum", 0, 0, 0, _C),
    (83, "InitializeShareGroupState", "share", 0, 0, 0, _B),
    (84, "ReadShareGroupState", "share", 0, 0, 0, _B),
    (85, "WriteShareGroupState", "share", 0, 1, 0, _B),
    (86, "DeleteShareGroupState", "share", 0, 0, 0, _B),
    (87, "ReadShareGroupStateSummary", "share", 0, 1, 0, _B),
    (88, "StreamsGroupHeartbeat", "streams", 0, 0, 0, _B),
    (89, "StreamsGroupDescribe", "streams", 0, 0, 0, _B),
    (90, "DescribeShareGroupOffsets", "share", 0, 1, 0, _B),
    (91, "AlterShareGroupOffsets", "share", 0, 0, 0, _B),
    (92, "DeleteShareGroupOffsets", "share", 0, 0, 0, _B),
)

API: Final[dict[int, Api]] = {row[0]: Api(*row) for row in _TABLE}
