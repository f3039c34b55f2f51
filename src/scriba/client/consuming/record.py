"""What a consumer gives: one record, and whose clock its timestamp is of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from scriba.client.model import Headers, K, TimestampType, V
from scriba.native import implementation
from scriba.native.consumer_records import RecordFields

if not TYPE_CHECKING:
    RecordFields = implementation.chosen.RecordFields


@dataclass
class ConsumerRecord(RecordFields, Generic[K, V]):
    """One record as read. Treat it as a value: nothing looks at it again."""

    __slots__ = ()

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: K
    value: V
    headers: Headers
    leader_epoch: int

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """For copies and other processes; the fields are not where Python looks for them."""
        fields = (getattr(self, name) for name in self.__match_args__)
        return type(self), tuple(fields)
