"""What a question to a broker can come to; clients add their own (`scriba.client.errors`)."""

from typing import Final, Self

from scriba.errors import ErrorCode, error_code


class ClientError(Exception):
    """Base of all errors that a client raises."""

    retriable = False
    fix = ""
    explanation = ""
    """More lines on how it came about, where somebody found that out."""

    def __init__(self, message: str, *, fix: str = "", cause: BaseException | None = None) -> None:
        super().__init__(message)
        if fix:
            self.fix = fix
        if cause is not None:
            self.__cause__ = cause

    @property
    def cause(self) -> BaseException | None:
        return self.__cause__

    def anew(self) -> Self:
        """Itself, to be raised once more: else each time would add to its traceback, and to what
        the frames there keep in memory."""
        return self.with_traceback(None)

    def __str__(self) -> str:
        text = super().__str__()
        if self.fix:
            text = f"{text} (fix: {self.fix})"
        return f"{text}\n{self.explanation}" if self.explanation else text


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


class BrokerError(ClientError):
    """A broker refused, with a code of the protocol."""

    def __init__(self, code: ErrorCode, message: str | None = None, *, about: str = "") -> None:
        text = f"{code.name}: {message or code.text}"
        super().__init__(f"{about}: {text}" if about else text, fix=FIXES.get(code, ""))
        self.code = code
        self.about = about
        """What it was asked about, where that is said."""
        self.retriable = code.retriable


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
