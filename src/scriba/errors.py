"""Every error code of the protocol, once: number, name, whether trying again can help, and why.

Code on the wire is a signed 16-bit number; inside the house it is an `ErrorCode`. `KafkaError`
carries one to the peer that caused it; `ParseError` is what bytes from outside may raise.
"""

import enum
from typing import TypeVar


class ErrorCode(enum.IntEnum):
    """A protocol error; `retriable` is Kafka's word on whether a client may simply try again."""

    retriable: bool
    text: str

    def __new__(cls, code: int, retriable: bool = False, text: str = "") -> "ErrorCode":
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "something unexpected went wrong on the server"
    NONE = 0, False, "no error"
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is before the start or after the end of the log"
    CORRUPT_MESSAGE = 2, True, "the batch fails its checksum or is malformed"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "no such topic or partition here"
    INVALID_FETCH_SIZE = 4, False, "the fetch size makes no sense"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "this broker does not lead, or does not hold, the partition"
    REQUEST_TIMED_OUT = 7, True, "the request was not completed in time"
    BROKER_NOT_AVAILABLE = 8, False, "the broker cannot be reached"
    REPLICA_NOT_AVAILABLE = 9, True, "the replica of this partition is not available"
    MESSAGE_TOO_LARGE = 10, False, "the batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, False, "the controller that sent this has been replaced"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the text committed with the offset is too long"
    NETWORK_EXCEPTION = 13, True, "the connection was lost before an answer came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, True, "no coordinator is available"
    NOT_COORDINATOR = 16, True, "another broker coordinates this"
    INVALID_TOPIC_EXCEPTION = 17, False, "not a legal topic name, or not a topic to write to"
    RECORD_LIST_TOO_LARGE = 18, False, "the batch is larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, True, "fewer replicas are in sync than the topic demands"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "written, but too few replicas are in sync"
    INVALID_REQUIRED_ACKS = 21, False, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, False, "the group has moved on to another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "shares no protocol with the rest of the group"
    INVALID_GROUP_ID = 24, False, "the group id is not legal"
    UNKNOWN_MEMBER_ID = 25, False, "the group has no such member"
    INVALID_SESSION_TIMEOUT = 26, False, "outside the range of session timeouts allowed here"
    REBALANCE_IN_PROGRESS = 27, False, "the group is rebalancing; join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "the committed offset data has an impossible size"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "not allowed on the cluster"
    INVALID_TIMESTAMP = 32, False, "the timestamp is outside the range the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "this SASL mechanism is not offered"
    ILLEGAL_SASL_STATE = 34, False, "not expected at this point of authentication"
    UNSUPPORTED_VERSION = 35, False, "this version of the API is not served"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of this name exists"
    INVALID_PARTITIONS = 37, False, "the number of partitions is not acceptable"
    INVALID_REPLICATION_FACTOR = 38, False, "below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the replica assignment is not valid"
    INVALID_CONFIG = 40, False, "the configuration is not valid"
    NOT_CONTROLLER = 41, True, "another node is the active controller"
    INVALID_REQUEST = 42, False, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "the stored record format cannot do this"
    POLICY_VIOLATION = 44, False, "a configured policy forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "the producer's sequence number leaves a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "the producer's sequence number was already used"
    INVALID_PRODUCER_EPOCH = 47, False, "the producer's epoch is out of date"
    INVALID_TXN_STATE = 48, False, "the transaction is in no state for this"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "the producer id has another transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "longer than a transaction may take on this broker"
    CONCURRENT_TRANSACTIONS = 51, True, "another operation on this transaction is under way"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "the marker's coordinator has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "not allowed to use this transactional id"
    SECURITY_DISABLED = 54, False, "no authorizer is configured"
    OPERATION_NOT_ATTEMPTED = 55, False, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, True, "the disk under the log failed"
    LOG_DIR_NOT_FOUND = 57, False, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, False, "authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "the broker no longer knows this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, False, "a reassignment of the partition is under way"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation tokens are not enabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "not the owner or a renewer of the token"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "no tokens over such a connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "not allowed on this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, False, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "the principal type is not supported"
    NON_EMPTY_GROUP = 68, False, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, False, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "the broker does not know this fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session is at another epoch"
    LISTENER_NOT_FOUND = 72, True, "the leader has no listener of the kind the request came in on"
    TOPIC_DELETION_DISABLED = 73, False, "topics cannot be deleted on this cluster"
    FENCED_LEADER_EPOCH = 74, True, "the request's leader epoch is out of date"
    UNKNOWN_LEADER_EPOCH = 75, True, "the request's leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "the client cannot read the compression used here"
    STALE_BROKER_EPOCH = 77, False, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, True, "a new leader's high watermark has not caught up yet"
    MEMBER_ID_REQUIRED = 79, False, "join again with the member id given here"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group is full"
    FENCED_INSTANCE_ID = 82, False, "another member took over this group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "no replica may become leader"
    ELECTION_NOT_NEEDED = 84, True, "the partition already has the leader it should have"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "no reassignment is under way"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "the group is subscribed to the topic"
    INVALID_RECORD = 87, False, "a record breaks the rules of the topic"
    UNSTABLE_OFFSET_COMMIT = 88, True, "a transaction still holds back these offsets"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "the quota is used up; wait as long as the answer says"
    PRODUCER_FENCED = 90, False, "a newer producer took over this transactional id"
    RESOURCE_NOT_FOUND = 91, False, "the request names something that does not exist"
    DUPLICATE_RESOURCE = 92, False, "the request names the same thing twice"
    UNACCEPTABLE_CREDENTIAL = 93, False, "the credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, False, "sender or receiver is not among the expected voters"
    INVALID_UPDATE_VERSION = 95, False, "the update carries a version that is not valid"
    FEATURE_UPDATE_FAILED = 96, False, "the finalized features could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "the forwarded principal cannot be read"
    SNAPSHOT_NOT_FOUND = 98, False, "no such snapshot"
    POSITION_OUT_OF_RANGE = 99, False, "the position lies outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, True, "no topic with this id here"
    DUPLICATE_BROKER_REGISTRATION = 101, False, "another live broker has this id"
    BROKER_ID_NOT_REGISTERED = 102, False, "no broker with this id is registered"
    INCONSISTENT_TOPIC_ID = 103, True, "the log belongs to another topic id"
    INCONSISTENT_CLUSTER_ID = 104, False, "the request is meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "the fetch session mixes topic names and topic ids"
    INELIGIBLE_REPLICA = 107, False, "a replica in the new ISR may not be there"
    NEW_LEADER_ELECTED = 108, False, "done, but the partition has a new leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "the offset now lives in tiered storage"
    FENCED_MEMBER_EPOCH = 110, False, "the member was fenced; give up all partitions and join again"
    UNRELEASED_INSTANCE_ID = 111, False, "another member still holds this instance id"
    UNSUPPORTED_ASSIGNOR = 112, False, "the group has no such assignor"
    STALE_MEMBER_EPOCH = 113, False, "the member's epoch is out of date; heartbeat, then try again"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "the request belongs on the other kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "this kind of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, False, "no controller with this id"
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "the telemetry subscription is unknown or out of date"
    TELEMETRY_TOO_LARGE = 118, False, "the telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, False, "the controller refuses the registration"
    TRANSACTION_ABORTABLE = 120, False, "the transaction failed; abort it and go on"
    INVALID_RECORD_STATE = 121, False, "the record cannot be acknowledged in its state"
    SHARE_SESSION_NOT_FOUND = 122, True, "the broker does not know this share session"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "the share session is at another epoch"
    FENCED_STATE_EPOCH = 124, False, "the share-group state is at another epoch"
    INVALID_VOTER_KEY = 125, False, "the voter key is not that of the receiver"
    DUPLICATE_VOTER = 126, False, "the node is already a voter"
    VOTER_NOT_FOUND = 127, False, "the node is not a voter"
    INVALID_REGULAR_EXPRESSION = 128, False, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, False, "the client's metadata is useless; bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, False, "the topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "the topology epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, False, "the topology epoch is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "the broker holds as many share sessions as it may"


def error_code(number: int) -> ErrorCode:
    """The code that a peer sent; one that is newer than this table counts as unknown."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class KafkaError(Exception):
    """An operation failed in a way the protocol has a code for."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or code.text

    @property
    def retriable(self) -> bool:
        return self.code.retriable

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


E = TypeVar("E", bound=KafkaError)


def bare(error: KafkaError) -> KafkaError:
    """The error without its traceback, for one that is kept: the frames that it passed, and those
    that had called them, would be kept with it, and the bytes of a request that they have."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def anew(error: E) -> E:
    """A copy of an error, to raise where that one is kept, or to keep where that one is raised.

    What is raised has the frames that it passed, with each time more of them, and with those the
    requests that they were handling.
    """
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy


class ParseError(Exception):
    """Bytes from outside do not follow the protocol: the one error that decoding may raise."""
