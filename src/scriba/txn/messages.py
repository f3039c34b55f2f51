"""What passes between the coordinator and the shell that carries out its wishes."""

from typing import NamedTuple

from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.txn import EndTxnRequest, InitProducerIdRequest
from scriba.wire.schema import Bool, Int16, Int64, Message, Str, field

TopicPartition = tuple[str, int]


class WriteMarkers(NamedTuple):
    """A send: this transaction has ended, and each of its partitions is to be told.

    Tried until every partition has its marker or is gone, then answered by `MarkersWritten`.
    """

    partition: int
    """The partition of `__transaction_state` that asks; its leader epoch goes with the markers."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int


class MarkersWritten(Message):
    """The answer to `WriteMarkers`."""

    transactional_id: Str = field("0+")
    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    commit: Bool = field("0+")


class MarkersNoted(Message):
    """The reply to `MarkersWritten`: the transaction is complete, or was so before."""


class ProducerIdNeeded(KafkaError):
    """The request uses up a producer id: it comes again with one.

    Ids are handed out by the controller, which a machine cannot ask. To a client that is told of
    this the coordinator is still loading, which is what Kafka's says while it has no id at hand.
    """

    def __init__(self) -> None:
        super().__init__(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a producer id is needed")


class InitProducerIdWith(Message):
    """InitProducerId again, with an id of its own."""

    request: InitProducerIdRequest = field("0+")
    fresh_producer_id: Int64 = field("0+")


class EndTxnWith(Message):
    """EndTxn again, with an id for the transactions that follow."""

    request: EndTxnRequest = field("0+")
    fresh_producer_id: Int64 = field("0+")
