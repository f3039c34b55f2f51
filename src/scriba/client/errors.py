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

from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, ClientError


class BufferFull(ClientError):
    """`buffer.memory` is used up by records that no broker has acknowledged yet."""

    retriable = True
    fix = "await producer.enqueue() or send(), which wait for room, or raise buffer.memory"

    def __init__(self, message: str, size: int, *, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.size = size
        """Bytes that the record needs."""


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
