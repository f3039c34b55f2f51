"""How far a query has read: a place in every partition, with the id of every topic.

This is what Spark keeps in the checkpoint, as JSON:

    {"topics": {"orders": {"id": "<uuid>", "offsets": {"0": 17, "1": 4}}}, "since": {...}}

The id tells a topic that was deleted and made anew from the one that was read. `since` is where the
first batch began: Spark stores only where a batch ends and would ask again where to start when the
first one is repeated, and "latest" would then be a later place, with what lies between lost.

All of this is plain values; nothing here talks to anyone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from scriba.client.model import TopicPartition


class TopicOffsets(NamedTuple):
    """One topic: its id as text, and an offset for each partition."""

    id: str
    offsets: Mapping[int, int]


Positions = Mapping[str, TopicOffsets]


class Range(NamedTuple):
    """Part of a partition, from `start` up to and without `end`."""

    topic: str
    id: str
    partition: int
    start: int
    end: int

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Loss:
    """Something that should be there and is not."""

    what: str
    fix: str


INITIAL = "initial"
SINCE = "since"

LEAST_A_TASK: Final = 2_000
MOST_A_TASK: Final = 1_000_000
"""Records. To start a task that runs Python takes Spark as long as to read some ten thousand of
them; a task that fails is read again as a whole."""


def to_json(positions: Positions) -> dict[str, Any]:
    return {
        topic: {"id": spot.id, "offsets": {str(p): o for p, o in sorted(spot.offsets.items())}}
        for topic, spot in sorted(positions.items())
    }


def from_json(document: Mapping[str, Any]) -> Positions:
    return {
        topic: TopicOffsets(said["id"], {int(p): o for p, o in said["offsets"].items()})
        for topic, said in document.items()
    }


def find_losses(known: Positions, now: Positions) -> list[Loss]:
    """What of `known` can no longer be read, going by where the logs end now."""
    losses = []
    for topic, spot in known.items():
        current = now.get(topic)
        if current is None:
            losses.append(Loss(f"topic {topic} is gone", "bring it back, or unsubscribe"))
            continue
        if current.id != spot.id:
            losses.append(
                Loss(
                    f"topic {topic} was deleted and created anew since the checkpoint was written "
                    f"(its id was {spot.id} and is {current.id})",
                    "start with a new checkpoint to read the new topic",
                )
            )
            continue
        for partition, offset in spot.offsets.items():
            end = current.offsets.get(partition)
            if end is None:
                losses.append(Loss(f"partition {topic}-{partition} is gone", "bring it back"))
            elif end < offset:
                losses.append(
                    Loss(
                        f"{topic}-{partition} ends at offset {end}, before {offset}, which was "
                        "already read",
                        "start with a new checkpoint",
                    )
                )
    return losses


def resume_positions(
    known: Positions, now: Positions, begins: Mapping[TopicPartition, int]
) -> Positions:
    """Where to go on reading every partition of `now`.

    That is the known place, if the topic is still the same one and reaches so far; else where the
    log begins, which for a partition that was added later is its first offset.
    """
    found: dict[str, TopicOffsets] = {}
    for topic, current in now.items():
        before = known.get(topic)
        same = before is not None and before.id == current.id
        offsets = {}
        for partition, end in current.offsets.items():
            offset = before.offsets.get(partition) if before is not None and same else None
            if offset is None:
                offset = begins.get(TopicPartition(topic, partition), 0)
            offsets[partition] = min(offset, end)
        found[topic] = TopicOffsets(current.id, offsets)
    return found


def unread_partitions(known: Positions, now: Positions) -> list[TopicPartition]:
    """Partitions of topics that were never read before, whose beginning has to be looked up.

    A partition added to a known topic begins at 0: if its records were deleted before they were
    read, that is a loss, which the task that reads them will find.
    """
    return [
        TopicPartition(topic, partition)
        for topic, spot in now.items()
        if topic not in known or known[topic].id != spot.id
        for partition in spot.offsets
    ]


def total(start: Positions, end: Positions) -> int:
    """Offsets between the two."""
    return sum(part.size for part in ranges(start, end))


def ranges(start: Positions, end: Positions) -> list[Range]:
    """What lies between, partition by partition, empty ones left out."""
    found = []
    for topic, spot in end.items():
        before = start.get(topic)
        known = before.offsets if before is not None and before.id == spot.id else {}
        for partition, last in spot.offsets.items():
            first = known.get(partition, 0)
            if last > first:
                found.append(Range(topic, spot.id, partition, first, last))
    return found


def limit_rate(start: Positions, end: Positions, most: int) -> Positions:
    """At most `most` offsets between the two, each partition in proportion to what it has.

    What rounding leaves over goes to the partitions with most left, so that all of `most` is used.
    """
    parts = ranges(start, end)
    available = sum(part.size for part in parts)
    if available <= most:
        return end
    shares = {part.where: part.size * most // available for part in parts}
    spare = most - sum(shares.values())
    for part in sorted(parts, key=lambda p: (shares[p.where] - p.size, p.where)):
        given = min(spare, part.size - shares[part.where], 1)
        shares[part.where] += given
        spare -= given
    stops = {part.where: part.start + shares[part.where] for part in parts}
    return {
        topic: TopicOffsets(
            spot.id,
            {p: stops.get(TopicPartition(topic, p), last) for p, last in spot.offsets.items()},
        )
        for topic, spot in end.items()
    }


def cap(positions: Positions, ceiling: Positions) -> Positions:
    """No further than `ceiling`; partitions that it does not know stay out."""
    found = {}
    for topic, spot in positions.items():
        top = ceiling.get(topic)
        if top is None or top.id != spot.id:
            continue
        offsets = {p: min(o, top.offsets[p]) for p, o in spot.offsets.items() if p in top.offsets}
        found[topic] = TopicOffsets(spot.id, offsets)
    return found


def split(parts: Iterable[Range], least: int | None, most_records: int | None) -> list[Range]:
    """Cuts ranges so that there are about `least` of them, none longer than `most_records`."""
    whole = list(parts)
    available = sum(part.size for part in whole)
    found: list[Range] = []
    for part in whole:
        pieces = 1
        if most_records is not None:
            pieces = -(-part.size // most_records)
        if least is not None and least > len(whole):
            pieces = max(pieces, round(part.size / available * least))
        pieces = min(pieces, part.size)
        for number in range(pieces):
            first = part.start + part.size * number // pieces
            last = part.start + part.size * (number + 1) // pieces
            found.append(part._replace(start=first, end=last))
    return found


def pack(
    parts: Sequence[Range],
    cores: int | None = None,
    least: int | None = None,
    most_records: int | None = None,
) -> list[tuple[Range, ...]]:
    """Which ranges each task reads: about as many tasks as there are cores, and fewer when there
    is little to read.

    A range is never cut here, so that what one task reads of a partition stays in its order. There
    are `least` tasks at least, if there are as many ranges, and none gets more than `most_records`
    unless a single range has more. Without knowledge of the cores tasks are as small as is worth
    their start.
    """
    available = sum(part.size for part in parts)
    share = LEAST_A_TASK if cores is None else max(LEAST_A_TASK, -(-available // cores))
    tasks = max(-(-available // min(share, MOST_A_TASK)), least or 1)
    load: list[tuple[int, int]] = [(0, number) for number in range(min(tasks, len(parts)))]
    taken: list[list[int]] = [[] for _ in load]
    for place in sorted(range(len(parts)), key=lambda place: -parts[place].size):
        size = parts[place].size
        lightest, task = load[0]
        if most_records is not None and taken[task] and lightest + size > most_records:
            task = len(taken)
            taken.append([])
            heappush(load, (size, task))
        else:
            heappop(load)
            heappush(load, (lightest + size, task))
        taken[task].append(place)
    return [tuple(parts[place] for place in sorted(places)) for places in taken]
