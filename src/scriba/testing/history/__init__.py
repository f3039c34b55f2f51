"""What clients did and saw in a run under faults, and what must hold of it: for any such run, on
simulated time or against processes.

    History       records of a log: acknowledged, refused or unknown; read; synced
    Transactions  all or nothing over partitions and offsets, and who may see what
    Groups        who owned which partition, and which offsets were committed and found
    Table         a compacted topic
    Replication   who led what, and what in-sync replicas had in common
    Quorum        the same for the controllers

Whoever drives a run tells these what it asked, what it was told and what it read, in the order in
which that happened, and asks for `violations` in the end. What got no answer is unknown: it may
have happened or not, and no check holds either against the broker.

`History` itself is about plain records. Every record's value is unique, so a value names a record.
The promises that the history keeps are `(partition, offset) -> value`: this record is at this
offset for good. An acknowledgement is a promise, what a consumer read is one, and so is what the
disk had synced when the power went. With `flush.messages=1` all of them hold for ever. Under the
default policy a power cut takes back all but what was synced, which includes all that was there at
a clean stop; a killed process takes back nothing.
"""

from dataclasses import dataclass, field
from enum import Enum

from scriba.testing.history.findings import Findings, Where
from scriba.testing.history.findings import short as _short
from scriba.testing.history.groups import Groups
from scriba.testing.history.replication import Quorum, Replication
from scriba.testing.history.table import Table
from scriba.testing.history.txn import Fate, Transactions, check_copied

__all__ = [
    "Fate",
    "Findings",
    "Groups",
    "History",
    "Outcome",
    "Quorum",
    "Replication",
    "Table",
    "Transactions",
    "Where",
    "check_copied",
]

PartitionOffset = tuple[int, int]
"""(partition, offset)"""


class Outcome(Enum):
    ACKED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Sent:
    partition: int
    idempotent: bool
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class History:
    synced_only: bool
    """Whether acknowledgements wait for the disk (`flush.messages=1`)."""
    sent: dict[bytes, Sent] = field(default_factory=dict)
    promised: dict[PartitionOffset, bytes] = field(default_factory=dict)
    for_good: dict[PartitionOffset, bytes] = field(default_factory=dict)
    """Promises that no power cut takes back."""
    violations: list[str] = field(default_factory=list)
    power_cuts: int = 0
    acked: int = 0
    seen: int = 0

    def send(self, partition: int, values: list[bytes], idempotent: bool) -> None:
        for value in values:
            assert value not in self.sent, "values are unique"
            self.sent[value] = Sent(partition, idempotent)

    def ack(self, partition: int, base_offset: int, values: list[bytes], cuts: int) -> None:
        """`cuts` is the number of power cuts before the connection that brought this was made:
        what was on its way when the power went tells of a log that may be gone."""
        for offset, value in enumerate(values, base_offset):
            self.sent[value].outcome = Outcome.ACKED
            self.acked += 1
            self._promise((partition, offset), value, "acknowledged", cuts)

    def refuse(self, values: list[bytes]) -> None:
        """The broker said that it did not write these."""
        for value in values:
            self.sent[value].outcome = Outcome.REFUSED

    def read(
        self,
        partition: int,
        position: int,
        high_watermark: int,
        records: list[tuple[int, bytes]],
        cuts: int,
    ) -> None:
        """What a consumer at `position` was given; `cuts` as with `ack`."""
        for offset, value in records:
            if offset != position:
                self.violation(f"partition {partition}: read {offset} at position {position}")
            if offset >= high_watermark:
                self.violation(f"partition {partition}: read {offset} past {high_watermark}")
            position = offset + 1
            self.seen += 1
            self._promise((partition, offset), value, "read", cuts)

    def power_cut(self, synced: dict[int, list[tuple[int, bytes]]]) -> None:
        """The disk lost what was not synced; `synced` is what it surely holds by partition."""
        self.power_cuts += 1
        if not self.synced_only:
            self.promised = dict(self.for_good)
        for partition, records in synced.items():
            for offset, value in records:
                self._promise((partition, offset), value, "synced", self.power_cuts)
        self.for_good = dict(self.promised)

    def clean_stop(self) -> None:
        """The node has stopped as it should: all that was promised is on the disk."""
        self.for_good = dict(self.promised)

    def violation(self, text: str) -> None:
        if len(self.violations) < 20:
            self.violations.append(text)

    def check(self, log: dict[int, list[tuple[int, bytes]]]) -> None:
        """Holds the whole log, as read in the end, against all that was promised."""
        found = {(partition, at): value for partition in log for at, value in log[partition]}
        for place, value in self.promised.items():
            if found.get(place) != value:
                self.violation(
                    f"{_at(place)}: promised {_short(value)}, is {_short(found.get(place))}"
                )
        for partition, records in log.items():
            for expected, (offset, _) in enumerate(records):
                if offset != expected:
                    self.violation(f"partition {partition}: offset {offset} follows {expected - 1}")
                    break
            self._check_values(partition, [value for _, value in records])

    def _check_values(self, partition: int, values: list[bytes]) -> None:
        seen: dict[bytes, None] = {}
        last: dict[bytes, int] = {}
        for value in values:
            sent = self.sent.get(value)
            if sent is None or sent.partition != partition:
                self.violation(f"partition {partition}: nobody sent {_short(value)} here")
                continue
            if sent.outcome is Outcome.REFUSED:
                self.violation(f"partition {partition}: {_short(value)} was refused, yet is there")
            if not sent.idempotent:
                continue
            if value in seen:
                self.violation(f"partition {partition}: {_short(value)} is there twice")
            seen[value] = None
            producer, number = value.split(b":")[:2]
            if int(number) <= last.get(producer, -1):
                self.violation(f"partition {partition}: {_short(value)} is out of order")
            last[producer] = int(number)

    def _promise(self, place: PartitionOffset, value: bytes, how: str, cuts: int) -> None:
        if cuts != self.power_cuts and not self.synced_only:
            return
        before = self.promised.setdefault(place, value)
        if before != value:
            self.violation(f"{_at(place)}: {how} {_short(value)}, before it was {_short(before)}")


def _at(place: PartitionOffset) -> str:
    return f"partition {place[0]} offset {place[1]}"
