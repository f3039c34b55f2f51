"""Isolation levels, as Fetch and ListOffsets number them."""

from typing import Final

from scriba.errors import ErrorCode, KafkaError

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


def check_isolation(level: int) -> None:
    """Kafka has no code of its own for a level it does not know."""
    if level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"isolation level {level} does not exist; use 0 or 1"
        )
