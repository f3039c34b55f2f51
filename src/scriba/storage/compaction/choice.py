"""What to compact, decided from facts alone.

A compacted log has three parts. Below the *first dirty offset* it was compacted before. From there
to the *first uncleanable offset* it may be compacted now. Beyond lies what nobody may touch: open
transactions, the active segment, and records younger than `min.compaction.lag.ms`.

     start        first dirty           first uncleanable        end
       |  compacted   |      dirty             |   not yet        |
       +--------------+------------------------+------------------+

A log is due when the dirty part is more than `min.cleanable.dirty.ratio` of the first two, or when
a dirty record has waited longer than `max.compaction.lag.ms`. The dirtiest one goes first.
Rewriting shrinks segments, so neighbours that fit together become one.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from scriba.instant import Instant

Name = TypeVar("Name")

MAX_SPAN: Final = (1 << 31) - 1
"""Offsets in a segment's index are relative to its first one, in 32 bits."""


class Rules(Protocol):
    """The topic settings that decide when its logs are compacted."""

    @property
    def min_cleanable_dirty_ratio(self) -> float: ...
    @property
    def min_compaction_lag_ms(self) -> int: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...


class SealedSegment(NamedTuple):
    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int
    oldest_ms: int
    """Timestamp of the first batch, -1 if unknown or not needed."""
    newest_ms: int
    """Largest timestamp; as old as the file where records have none."""


class LogFacts(NamedTuple):
    sealed: Sequence[SealedSegment]
    active_offset: int
    """Where the active segment begins; the last sealed one ends there."""
    start_offset: int
    end_offset: int
    stable_offset: int
    """The last stable offset: no open transaction and nothing unreplicated below it."""
    checkpoint: int | None
    """How far the log was compacted, as the last pass wrote it down."""


class Dirt(NamedTuple):
    """What of a log can be compacted, and how much it needs it."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """How much too long the oldest dirty record has waited; 0 if it has not."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, rules: Rules) -> bool:
        if not self.dirty_bytes:
            return False
        return self.overdue_ms > 0 or self.ratio > rules.min_cleanable_dirty_ratio


def assess(facts: LogFacts, rules: Rules, now: Instant) -> Dirt:
    """How dirty a log is.

    A checkpoint outside the log belongs to one that was truncated or shortened since: everything
    is dirty then, which costs work and never data.
    """
    first_dirty = facts.checkpoint if facts.checkpoint is not None else facts.start_offset
    if not facts.start_offset <= first_dirty <= facts.end_offset:
        first_dirty = facts.start_offset
    bound = min(facts.stable_offset, facts.active_offset)
    ends = ends_of(facts)
    for segment, end in zip(facts.sealed, ends, strict=True):
        young = now.wall_ms - segment.newest_ms < rules.min_compaction_lag_ms
        if end > bound or (end > first_dirty and young):
            # Segments are rewritten whole, so one that is partly out of bounds is all of it.
            bound = segment.base_offset
            break
    clean = dirty = overdue = 0
    for segment, end in zip(facts.sealed, ends, strict=True):
        if segment.base_offset >= bound:
            break
        if end <= first_dirty:
            clean += segment.size
            continue
        dirty += segment.size
        if segment.oldest_ms > 0:
            overdue = max(overdue, now.wall_ms - segment.oldest_ms - rules.max_compaction_lag_ms)
    return Dirt(min(first_dirty, bound), bound, clean, dirty, overdue)


def ends_of(facts: LogFacts) -> list[int]:
    """Where each sealed segment ends: at its successor."""
    return [*(segment.base_offset for segment in facts.sealed[1:]), facts.active_offset][
        : len(facts.sealed)
    ]


def dirtiest(candidates: Iterable[tuple[Name, Dirt]]) -> list[Name]:
    """The logs in the order in which they are to be compacted."""
    return [name for name, _ in sorted(candidates, key=lambda pair: -pair[1].ratio)]


class GroupLimits(NamedTuple):
    """What one segment may hold."""

    size: int
    index_bytes: int


def groups(
    segments: Sequence[SealedSegment], end_offset: int, limits: GroupLimits
) -> list[list[SealedSegment]]:
    """Which neighbours become one segment; `end_offset` is where the last one ends."""
    found: list[list[SealedSegment]] = []
    size = index_bytes = time_index_bytes = 0
    for at, segment in enumerate(segments):
        end = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        fits = (
            bool(found)
            and size + segment.size <= limits.size
            and index_bytes + segment.index_bytes <= limits.index_bytes
            and time_index_bytes + segment.time_index_bytes <= limits.index_bytes
            and (not segment.size or end - 1 - found[-1][0].base_offset <= MAX_SPAN)
        )
        if fits:
            found[-1].append(segment)
            size += segment.size
            index_bytes += segment.index_bytes
            time_index_bytes += segment.time_index_bytes
        else:
            found.append([segment])
            size, index_bytes = segment.size, segment.index_bytes
            time_index_bytes = segment.time_index_bytes
    return found
