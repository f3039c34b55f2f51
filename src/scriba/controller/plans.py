"""Plans: the records of one request or decision, made as they are pulled.

A plan decides on the image, and the image has a plan's own records only once whoever runs the
machine has appended and replayed them, a slice at a time. So a plan decides on each partition and
each broker once between two replays. One that works in several phases, and may come back to what it
has changed, yields a `BARRIER` in between: that ends the slice, and the next phase finds the
records of the one before in the image.

Never: two records of one slice change the same thing, for the later one was decided without the
earlier one. `twice` finds such a pair.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from scriba.wire.messages.stored import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from scriba.wire.schema import Message


class Barrier(enum.Enum):
    BARRIER = enum.auto()


BARRIER: Final = Barrier.BARRIER

Step = Message | Barrier
"""What a plan yields."""


class Cut(enum.Enum):
    """Why a slice ends."""

    FULL = enum.auto()
    BARRIER = enum.auto()
    END = enum.auto()


class Slice(NamedTuple):
    """Records to append and to replay before more are pulled."""

    records: list[Message]
    cut: Cut


def next_slice(plan: Iterator[Step], is_full: Callable[[list[Message]], bool]) -> Slice:
    """The next records of a plan, none where two cuts meet."""
    records: list[Message] = []
    for step in plan:
        if not isinstance(step, Barrier):
            records.append(step)
            if is_full(records):
                return Slice(records, Cut.FULL)
        else:
            return Slice(records, Cut.BARRIER)
    return Slice(records, Cut.END)


def in_slices(plan: Iterable[Step]) -> Iterator[list[Message]]:
    """A plan that is cut only where it has to be, for who replays each slice before the next."""
    pull, cut = iter(plan), Cut.FULL
    while cut is not Cut.END:
        records, cut = next_slice(pull, lambda _: False)
        if records:
            yield records


_PARTITION: Final = "topic_id", "partition_id"
_BROKER: Final = ("broker_id",)
_TOPIC: Final = ("topic_id",)
_CHANGED: Final[dict[type[Message], tuple[str, tuple[str, ...]]]] = {
    PartitionRecord: ("partition", _PARTITION),
    PartitionChangeRecord: ("partition", _PARTITION),
    RegisterBrokerRecord: ("broker", _BROKER),
    BrokerRegistrationChangeRecord: ("broker", _BROKER),
    UnregisterBrokerRecord: ("broker", _BROKER),
    TopicRecord: ("topic", _TOPIC),
    RemoveTopicRecord: ("topic", _TOPIC),
    ConfigRecord: ("config", ("resource_type", "resource_name", "name")),
    FeatureLevelRecord: ("feature", ("name",)),
}
"""What a record of each type changes, and the fields that say which one."""


def twice(
    records: Collection[Message], changed: set[tuple[Any, ...]] | None = None
) -> tuple[Any, ...] | None:
    """The first thing that two of these records change; None where each changes another.

    `changed` has what the records before them change, and gets what these do.
    """
    if changed is None:
        changed = set()
    for record in records:
        kind = _CHANGED.get(type(record))
        if kind is not None:
            what = kind[0], *(getattr(record, field) for field in kind[1])
            if what in changed:
                return what
            changed.add(what)
    return None
