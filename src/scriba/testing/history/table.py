"""What was written to a compacted topic, and what has to be left of it.

Every value is unique, so a value names a write; tombstones of one key are all alike. However much
was compacted, the log read from its start and folded by key gives each key's last value, or one of
a write after it whose end nobody knows. What is there stands where it was written, in the order of
offsets. What was compacted away does not come back, unless another replica leads, which is
compacted by itself; what an aborted transaction wrote does not come back ever.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scriba.testing.history.findings import Findings, Where, place, short

Row = tuple[int, bytes, bytes | None]
"""(offset, key, value); no value is a tombstone."""


class Known(enum.Enum):
    MAYBE = "nobody knows"
    WRITTEN = "written"
    NEVER = "never written"


@dataclass(slots=True)
class Write:
    where: Where
    key: bytes
    value: bytes | None
    number: int
    known: Known = Known.MAYBE
    offset: int = -1


@dataclass(slots=True)
class Table(Findings):
    replicas: int = 1
    writes: list[Write] = field(default_factory=list)
    _gone: dict[Where, set[int]] = field(default_factory=dict)
    _found: dict[Where, set[int]] = field(default_factory=dict)

    def write(self, where: Where, key: bytes, value: bytes | None) -> Write:
        write = Write(where, key, value, len(self.writes))
        self.writes.append(write)
        return write

    def written(self, write: Write, offset: int) -> None:
        write.known, write.offset = Known.WRITTEN, offset

    def never(self, write: Write) -> None:
        """It was refused, or its transaction aborted."""
        write.known = Known.NEVER

    def known(self, where: Where) -> list[Write]:
        """Writes that are known to be there by now."""
        return [w for w in self.writes if w.where == where and w.known is Known.WRITTEN]

    def read(
        self,
        where: Where,
        rows: Sequence[Row],
        end: int | None = None,
        known: Iterable[Write] | None = None,
    ) -> None:
        """All that a reader of committed records was given, from the start of the log up to `end`,
        which was its end as far as it was stable; `known` as it was when the reader began."""
        sent = {(each.key, each.value): each for each in self.writes if each.where == where}
        placed = {each.offset: each for each in self.writes if each.where == where}
        last = -1
        for offset, key, value in rows:
            sender = sent.get((key, value))
            if offset <= last:
                self.violation(f"{place(where)}: offset {offset} follows {last}")
            last = offset
            if sender is None:
                self.violation(f"{place(where)} {offset}: nobody wrote {short(value)}")
            elif value is not None and sender.known is Known.NEVER:
                self.violation(f"{place(where)} {offset}: {short(value)} was never committed")
            put = placed.get(offset)
            if put is not None and (put.key, put.value) != (key, value):
                self.violation(
                    f"{place(where)} {offset}: {short(put.value)} was written, is {short(value)}"
                )
        self._check_gone(where, {offset for offset, _, _ in rows})
        expected: dict[bytes, Write] = {}
        for write in self.known(where) if known is None else known:
            last_known = expected.get(write.key)
            below = end is None or write.offset < end
            if below and (last_known is None or last_known.offset < write.offset):
                expected[write.key] = write
        self._check_latest(where, rows, expected)

    def _check_gone(self, where: Where, offsets: set[int]) -> None:
        gone, found = self._gone.setdefault(where, set()), self._found.setdefault(where, set())
        for offset in sorted(gone & offsets) if self.replicas == 1 else ():
            self.violation(f"{place(where)} {offset}: was gone, and is back")
        gone |= found - offsets
        found |= offsets

    def _check_latest(
        self, where: Where, rows: Sequence[Row], expected: Mapping[bytes, Write]
    ) -> None:
        latest = {key: (offset, value) for offset, key, value in rows}
        for key, write in expected.items():
            offset, value = latest.get(key, (-1, None))
            if offset < write.offset and not (offset == -1 and self._may_be_removed(write)):
                self.violation(
                    f"{place(where)}: the last value of {short(key)} is {short(write.value)} at "
                    f"{write.offset}, found {short(value)} at {offset}"
                )

    def _may_be_removed(self, write: Write) -> bool:
        """By itself, being a tombstone, or by one that came, or may have come, after it."""
        return write.value is None or any(
            each.where == write.where
            and each.key == write.key
            and each.value is None
            and each.known is not Known.NEVER
            and (each.offset == -1 or each.offset > write.offset)
            for each in self.writes
        )
