"""Reads from the metadata log where replicas are, record by record, and tells the checker of moves.

It keeps no image of the controller's making: what is checked is what any reader of the log sees.
"""

from dataclasses import dataclass, field

from scriba.testing.history.findings import Where
from scriba.testing.history.moves import Moves, Placement
from scriba.wire.messages.stored import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from scriba.wire.schema import Message

NO_CHANGE = -2
"""A leader that a record does not speak of."""


@dataclass(slots=True)
class Placements:
    moves: Moves = field(default_factory=Moves)
    end_offset: int = 0
    """Up to where it has read."""
    _names: dict[bytes, str] = field(default_factory=dict)
    _directories: dict[int, set[bytes]] = field(default_factory=dict)
    _cordoned: dict[int, set[bytes]] = field(default_factory=dict)

    def follow(self, offset: int, record: Message) -> None:
        assert offset >= self.end_offset, "records are read once, and in their order"
        self.end_offset = offset + 1
        match record:
            case TopicRecord():
                self._names[record.topic_id] = record.name
            case RemoveTopicRecord():
                self.moves.deleted(self._names.pop(record.topic_id))
            case PartitionRecord():
                where = (self._names[record.topic_id], record.partition_id)
                self.moves.made(where, _made(record), self._take_nothing())
            case PartitionChangeRecord():
                self._change((self._names[record.topic_id], record.partition_id), record)
            case RegisterBrokerRecord():
                self._directories[record.broker_id] = {*record.log_dirs}
                self._cordoned[record.broker_id] = {*(record.cordoned_log_dirs or ())}
            case BrokerRegistrationChangeRecord():
                if record.log_dirs:
                    self._directories[record.broker_id] = {*record.log_dirs}
                if record.cordoned_log_dirs is not None:
                    self._cordoned[record.broker_id] = {*record.cordoned_log_dirs}
            case UnregisterBrokerRecord():
                del self._directories[record.broker_id], self._cordoned[record.broker_id]

    def _take_nothing(self) -> set[int]:
        """Brokers whose directories are all cordoned."""
        return {
            at
            for at, cordoned in self._cordoned.items()
            if cordoned and self._directories[at] <= cordoned
        }

    def _change(self, where: Where, record: PartitionChangeRecord) -> None:
        before = self.moves.placed[where]

        def now(said: list[int] | None, was: tuple[int, ...]) -> tuple[int, ...]:
            return was if said is None else tuple(said)

        self.moves.changed(
            where,
            Placement(
                now(record.replicas, before.replicas),
                now(record.isr, before.isr),
                before.leader if record.leader == NO_CHANGE else record.leader,
                now(record.adding_replicas, before.adding),
                now(record.removing_replicas, before.removing),
            ),
        )


def _made(record: PartitionRecord) -> Placement:
    return Placement(
        tuple(record.replicas),
        tuple(record.isr),
        record.leader,
        tuple(record.adding_replicas),
        tuple(record.removing_replicas),
    )
