"""What transactions were told, and what readers of committed records may see of them.

Every value is unique, so a value names a record. A transaction whose end was never asked for, or
that was aborted, is never seen, by nobody, at no time. One that was committed is seen whole: each
of its records once, in order, and its offsets. One whose commit got no answer is seen whole or not
at all, and whichever it was stays so.

Order is checked for each writer and partition: records stand in the log as they were written.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scriba.testing.history.findings import Findings, Where, place, short

Log = Mapping[Where, Sequence[tuple[int, bytes]]]
"""(offset, value) of the committed records of each partition."""

GroupPartition = tuple[str, Where]
"""(group, partition)"""


class Fate(enum.Enum):
    OPEN = "open"
    COMMITTING = "told to commit, without an answer"
    COMMITTED = "committed"
    ABORTED = "aborted"


MAY_BE_SEEN = (Fate.COMMITTING, Fate.COMMITTED)


@dataclass(slots=True)
class Transaction:
    name: str
    writer: str
    number: int
    fate: Fate = Fate.OPEN
    values: dict[bytes, Where] = field(default_factory=dict)
    offsets: dict[GroupPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class Transactions(Findings):
    told: dict[str, Transaction] = field(default_factory=dict)
    ends: Counter[Fate] = field(default_factory=Counter)
    seen: dict[tuple[Where, int], bytes] = field(default_factory=dict)
    _owner: dict[bytes, Transaction] = field(default_factory=dict)
    _order: dict[bytes, int] = field(default_factory=dict)

    # ---- what happened ----

    def begin(self, name: str, writer: str) -> None:
        assert name not in self.told, "names are unique"
        self.told[name] = Transaction(name, writer, len(self.told))

    def write(self, name: str, where: Where, value: bytes) -> None:
        """From now on the record may be in the log, whether or not an answer comes."""
        assert value not in self._owner, "values are unique"
        transaction = self.told[name]
        transaction.values[value] = where
        self._owner[value] = transaction
        self._order[value] = len(self._order)

    def send_offsets(self, name: str, group: str, offsets: Mapping[Where, int]) -> None:
        for where, offset in offsets.items():
            self.told[name].offsets[group, where] = offset

    def commit(self, name: str) -> None:
        """Asks for it; until an answer comes it may be committed or not."""
        self.told[name].fate = Fate.COMMITTING

    def committed(self, name: str) -> None:
        self._end(name, Fate.COMMITTED)

    def aborted(self, name: str) -> None:
        """It is told to be, or its producer was told that it cannot be committed any more."""
        self._end(name, Fate.ABORTED)

    def _end(self, name: str, fate: Fate) -> None:
        self.told[name].fate = fate
        self.ends[fate] += 1

    def read(self, where: Where, offset: int, value: bytes) -> None:
        """A reader of committed records was given this one."""
        transaction = self._owner.get(value)
        if transaction is None:
            self.violation(f"{place(where)}: nobody wrote {short(value)}")
        elif transaction.fate not in MAY_BE_SEEN:
            self.violation(
                f"{place(where)}: {short(value)} was read, its transaction is "
                f"{transaction.fate.value}"
            )
        before = self.seen.setdefault((where, offset), value)
        if before != value:
            self.violation(f"{place(where)} {offset}: read {short(value)}, before {short(before)}")

    # ---- what is left ----

    def check(self, log: Log, offsets: Mapping[GroupPartition, int | None] | None = None) -> None:
        """Holds all that is committed in the end against what was told.

        `offsets` are those of groups whose offsets only these transactions commit.
        """
        found: dict[bytes, Where] = {}
        for where, records in log.items():
            for _, value in records:
                if value in found:
                    self.violation(f"{place(where)}: {short(value)} is there twice")
                found[value] = where
            self._check_order(where, [value for _, value in records])
        self._check_seen(log)
        visible = [each for each in self.told.values() if self._check_one(each, found)]
        for value, where in found.items():
            if value not in self._owner:
                self.violation(f"{place(where)}: nobody wrote {short(value)}")
        for where_in_group, offset in (offsets or {}).items():
            self._check_offset(where_in_group, offset, visible)

    def _check_one(self, told: Transaction, found: Mapping[bytes, Where]) -> bool:
        """Whether it is visible, whole."""
        there = [value for value, where in told.values.items() if found.get(value) == where]
        if not there:
            if told.fate is Fate.COMMITTED and told.values:
                self.violation(f"{told.name} is committed, and lost")
            return told.fate is Fate.COMMITTED
        if told.fate not in MAY_BE_SEEN:
            self.violation(f"{told.name} is {told.fate.value}, yet {short(there[0])} is there")
        missing = [value for value in told.values if found.get(value) != told.values[value]]
        if missing:
            self.violation(
                f"{told.name} is {told.fate.value}: {short(there[0])} is there, "
                f"{short(missing[0])} is not"
            )
        return True

    def _check_order(self, where: Where, values: Iterable[bytes]) -> None:
        last: dict[str, int] = {}
        for value in values:
            transaction = self._owner.get(value)
            if transaction is None:
                continue
            if self._order[value] < last.get(transaction.writer, -1):
                self.violation(f"{place(where)}: {short(value)} is out of order")
            last[transaction.writer] = self._order[value]

    def _check_seen(self, log: Log) -> None:
        is_there = {(where, at): value for where in log for at, value in log[where]}
        for (where, at), value in self.seen.items():
            if where in log and is_there.get((where, at)) != value:
                self.violation(
                    f"{place(where)} {at}: {short(value)} was read, "
                    f"now it is {short(is_there.get((where, at)))}"
                )

    def _check_offset(
        self, where_in_group: GroupPartition, offset: int | None, visible: list[Transaction]
    ) -> None:
        group, where = where_in_group
        expected = max((t.offsets.get(where_in_group, -1) for t in visible), default=-1)
        unsure = {
            told.offsets.get(where_in_group, -1)
            for told in self.told.values()
            if told.fate is Fate.COMMITTING and not told.values
        }
        found = -1 if offset is None else offset
        if found != expected and not (found in unsure and found > expected):
            self.violation(
                f"{group} at {place(where)}: the offset is {found}, "
                f"the transactions that are there say {expected}"
            )


def check_copied(
    sources: Log,
    sinks: Log,
    offsets: Mapping[Where, int | None],
    source_of: Callable[[bytes], bytes],
) -> list[str]:
    """Consuming, transforming and producing exactly once: what lies below the group's offset has
    one copy, what lies above has none."""
    copies = Counter(source_of(value) for records in sinks.values() for _, value in records)
    found: list[str] = []
    for where, records in sources.items():
        end = offsets.get(where) or 0
        for offset, value in records:
            wanted = 1 if offset < end else 0
            if copies[value] != wanted:
                found.append(
                    f"{place(where)} {offset}: {short(value)} has {copies[value]} copies, "
                    f"the group is at {end}"
                )
    return found
