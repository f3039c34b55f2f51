"""Where a group's offsets would go: decided from facts, before anything is changed."""

from collections.abc import Mapping
from typing import NamedTuple

from scriba.cli.parsing.positions import Position
from scriba.client import TopicPartition

Offsets = Mapping[TopicPartition, int]


class OffsetChange(NamedTuple):
    """Of one partition: what is committed, what would be, and where the log ends."""

    where: TopicPartition
    before: int | None
    after: int
    end: int


def moves(
    to: Position | None,
    shift: int | None,
    committed: Offsets,
    starts: Offsets,
    ends: Offsets,
    timed: Offsets,
) -> list[OffsetChange]:
    """A move for each partition that is there, to a place or by a shift.

    `timed` has the offset of the first record at or after the time of a place; where there is
    none, that is the end. Nothing leaves the log: the nearest offset in it is taken. What was
    never committed cannot be shifted, and is left out.
    """
    found: list[OffsetChange] = []
    for where in sorted(ends):
        before, start, end = committed.get(where), starts[where], ends[where]
        if to is not None:
            wanted = _wanted(to, start, end, timed.get(where))
        elif before is not None:
            assert shift is not None
            wanted = before + shift
        else:
            continue
        found.append(OffsetChange(where, before, min(max(wanted, start), end), end))
    return found


def _wanted(to: Position, start: int, end: int, timed: int | None) -> int:
    match to.kind:
        case "beginning":
            return start
        case "end":
            return end
        case "last":
            return end - to.number
        case "offset":
            return to.number
        case "time":
            return end if timed is None else timed
