"""What can go wrong, in few types; each says whether trying again can help, and what to do.

    ClientError
      NetworkError      no connection, or it broke before the answer came
        NotKafka        something answers at the address, but it is no broker
      TimedOut          a time limit of the caller passed first
      BrokerError       a broker answered with an error code
        OffsetError     a consumer's position is outside its log, and no reset is configured
      BufferFull        the producer's buffer has no room at the moment
      RecordError       one record cannot be written or read
        DecodeError     the same, named by topic, partition and offset
      TransactionError  a transaction cannot go on
        TransactionStateError      a call in the wrong order; nothing has happened
        AbortableTransactionError  abort it; the producer can go on with another
        FatalTransactionError      this producer can do nothing but close
          ProducerFenced           ... since a newer one has its transactional id
      Closed            the client was closed

`cause` is the failure underneath, if there was one. Settings that cannot be taken raise
`scriba.config.ConfigError` when the client is made.
"""

from typing import Final

from scriba.errors import ErrorCode, error_code


class ClientError(Exception):
    """Base of all errors that a client raises."""

    retriable = False
    fix = ""

    def __init__(self, message: str, *, fix: str = "", cause: BaseException | None = None) -> None:
        super().__init__(message)
        if fix:
            self.fix = fix
        if cause is not None:
            self.__cause__ = cause

    @property
    def cause(self) -> BaseException | None:
        return self.__cause__

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (fix: {self.fix})" if self.fix else text


class NetworkError(ClientError):
    """No connection could be made, or it broke with a request under way."""

    retriable = True


class NotKafka(NetworkError):
    """What answers at an address does not speak Kafka's protocol.

    Tried again while the cluster is known; final where no bootstrap server is a broker.
    """


class TimedOut(ClientError):
    """A time limit passed. What was asked may have happened all the same."""

    retriable = True


class Closed(ClientError):
    """The client was closed before, or while, this was done."""


class BufferFull(ClientError):
    """`buffer.memory` is used up by records that no broker has acknowledged yet."""

    retriable = True
    fix = "await producer.enqueue() or send(), which wait for room, or raise buffer.memory"

    def __init__(self, message: str, size: int, *, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.size = size
        """Bytes that the record needs."""


class BrokerError(ClientError):
    """A broker refused, with a code of the protocol."""

    def __init__(self, code: ErrorCode, message: str | None = None, *, about: str = "") -> None:
        text = f"{code.name}: {message or code.text}"
        super().__init__(f"{about}: {text}" if about else text, fix=FIXES.get(code, ""))
        self.code = code
        self.retriable = code.retriable


class OffsetError(BrokerError):
    """The position of a partition is not in its log, and `auto.offset.reset` is none.

    `offset` is where the consumer stood, -1 when it has not been anywhere yet. After a truncation
    (KIP-320) `diverged_at` is the first offset whose record is not the one that was read.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, diverged_at: int | None = None
    ) -> None:
        if offset < 0:
            message = "there is no position, and auto.offset.reset is none"
        elif diverged_at is None:
            message = f"offset {offset} is not in the log"
        else:
            message = f"the log was truncated below offset {offset}, to {diverged_at}"
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message, about=f"{topic}-{partition}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.diverged_at = diverged_at


class RecordError(ClientError):
    """A record that cannot be written: its key, value or a header is not what it has to be."""


class DecodeError(RecordError):
    """A record that cannot be read. `consumer.skip(error)` goes on behind it."""

    fix = "call consumer.skip(error) to go on behind it, or set scriba.decode.errors=skip"

    def __init__(self, topic: str, partition: int, offset: int, next_offset: int, why: str) -> None:
        super().__init__(f"{topic}-{partition} at offset {offset}: {why}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset


class TransactionError(ClientError):
    """A transaction cannot go on. Which kind it is says what to do."""


class TransactionStateError(TransactionError):
    """A call that makes no sense where the transaction stands. Nothing has happened."""


class AbortableTransactionError(TransactionError):
    """The transaction failed and must be aborted; then the producer can begin another."""

    fix = "abort the transaction, then try it again"


class FatalTransactionError(TransactionError):
    """This producer can send nothing any more. Its open transaction will be aborted for it."""

    fix = "close this producer"


class ProducerFenced(FatalTransactionError):
    """Another producer took over the transactional id, or the time for a transaction passed."""

    fix = "close this producer; another one goes on with its transactional id"


_GONE: Final = "others have the partitions now; poll more often, or raise max.poll.interval.ms"

FIXES: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records, or raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "lower batch.size, or raise the topic's segment.bytes",
    ErrorCode.OFFSET_OUT_OF_RANGE: "seek to an offset in the log, or set auto.offset.reset",
    ErrorCode.NOT_ENOUGH_REPLICAS: "bring replicas back, or lower min.insync.replicas",
    ErrorCode.INVALID_TIMESTAMP: "send a time within the topic's message.timestamp.*.max.ms",
    ErrorCode.INVALID_REPLICATION_FACTOR: "ask for at most as many replicas as there are brokers",
    ErrorCode.UNSUPPORTED_VERSION: "use a broker that serves this API",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this client access to the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "grant this client access to the cluster",
    ErrorCode.UNKNOWN_MEMBER_ID: _GONE,
    ErrorCode.ILLEGAL_GENERATION: _GONE,
    ErrorCode.REBALANCE_IN_PROGRESS: "poll, which completes the rebalance, and commit again",
    ErrorCode.FENCED_INSTANCE_ID: "give each member a group.instance.id of its own",
    ErrorCode.UNRELEASED_INSTANCE_ID: "give each member a group.instance.id of its own",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "give all members an assignor that all of them know",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this client access to the group",
    ErrorCode.INVALID_SESSION_TIMEOUT: "choose one within the broker's group.*.session.timeout.ms",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first",
    ErrorCode.GROUP_ID_NOT_FOUND: "check its name; what there is, a list of groups shows",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "check its name; what there is, a list shows",
    ErrorCode.INVALID_RECORD: "send what the topic accepts: a compacted topic needs keys",
}


def raise_for(number: int, message: str | None = None, *, about: str = "") -> None:
    """Raises unless the number says that all went well."""
    if number:
        raise BrokerError(error_code(number), message, about=about)
