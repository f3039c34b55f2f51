"""What the replicas of a cluster were seen to be, and what must hold of it.

Whoever can look into all nodes at one moment tells what it sees, again and again: who leads which
partition in which epoch, how far its high watermark is, and what the logs hold. The same for the
quorum of the controllers.

    one leader for each epoch of a partition, and for each epoch of the quorum
    a replica joins the in-sync set only with all that its leader had when its epoch began
    the high watermark does not go back within an epoch, and does not move below min.insync.replicas
    what was committed once is in the log of every later leader, at its offset, byte for byte
    below the leader's high watermark the logs of all in-sync replicas are the same
    logs of controllers that have one batch in common are the same up to it
    epoch and high watermark of a controller never go back, a leader commits nothing but with a
    record of its own epoch, and a snapshot holds committed records

An election that had to take a replica which may lack records is told (`flagged`): what was
committed before counts no more, since that is what the operator was warned of. A loss that nobody
was told of stays a finding.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from scriba.testing.history.findings import Findings, Where, place


class Batch(NamedTuple):
    """A batch in a log: where it lies, who wrote it, and a checksum for its bytes."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int

    def __str__(self) -> str:
        offsets = f"{self.base_offset}-{self.last_offset}"
        return f"offsets {offsets} of epoch {self.epoch} ({self.crc:08x})"


class Leading(NamedTuple):
    """What a leader holds to be true of its partition."""

    where: Where
    broker: int
    epoch: int
    partition_epoch: int
    high_watermark: int
    isr: tuple[int, ...]
    min_isr: int
    """min.insync.replicas, or the number of replicas where that is smaller."""
    epoch_start: int = 0
    """Where its log ended when its epoch began."""


class Log(NamedTuple):
    """What a node has of a partition; batches that a cleaner made need not be those of others."""

    start_offset: int
    batches: Sequence[Batch]
    compacted: bool = False

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.start_offset


@dataclass(slots=True)
class Committed:
    """All that was ever seen below a high watermark, by its offset."""

    batches: dict[int, Batch] = field(default_factory=dict)
    end_offset: int = 0

    def learn(self, log: Log, high_watermark: int) -> str | None:
        """Holds a leader's log against what is known, and adds to that; a complaint, or None."""
        if log.end_offset < self.end_offset:
            return f"ends at {log.end_offset}, committed are all up to {self.end_offset}"
        if not log.compacted:
            for batch in log.batches:
                if batch.base_offset >= max(high_watermark, self.end_offset):
                    break
                known = self.batches.get(batch.base_offset)
                if known is None and batch.base_offset >= self.end_offset:
                    self.batches[batch.base_offset] = batch
                elif known != batch:
                    return f"has {batch}, committed was {known or 'none that begins there'}"
        self.end_offset = max(self.end_offset, high_watermark)
        return None


@dataclass(slots=True)
class Replication(Findings):
    leaders: dict[tuple[Where, int], int] = field(default_factory=dict)
    committed: dict[Where, Committed] = field(default_factory=dict)
    flags: dict[Where, int] = field(default_factory=dict)
    """How many elections each partition had that may have lost records, and said so."""
    _last: dict[tuple[Where, int], Leading] = field(default_factory=dict)
    _newest: dict[Where, int] = field(default_factory=dict)
    """The newest epoch in which somebody led."""

    def leads(self, seen: Leading) -> tuple[int, ...]:
        """Takes down what a leader holds to be true; who is in sync that was not a moment ago."""
        where, epoch = seen.where, seen.epoch
        self._newest[where] = max(epoch, self._newest.get(where, -1))
        first = self.leaders.setdefault((where, epoch), seen.broker)
        if first != seen.broker:
            self.violation(
                f"{place(where)}: both {first} and {seen.broker} lead it in epoch {epoch}"
            )
        last = self._last.get((where, epoch))
        self._last[where, epoch] = seen
        if last is None or last.broker != seen.broker:
            return ()
        moved = seen.high_watermark - last.high_watermark
        if moved < 0:
            self.violation(
                f"{place(where)}: the high watermark went from {last.high_watermark} back to "
                f"{seen.high_watermark} in epoch {epoch}"
            )
        same_isr = (seen.isr, seen.partition_epoch) == (last.isr, last.partition_epoch)
        if moved > 0 and same_isr and len(seen.isr) < seen.min_isr == last.min_isr:
            self.violation(
                f"{place(where)}: the high watermark went from {last.high_watermark} to "
                f"{seen.high_watermark} with in-sync replicas {seen.isr}, "
                f"of which {seen.min_isr} are needed"
            )
        return tuple(broker for broker in seen.isr if broker not in last.isr)

    def joined(self, seen: Leading, broker: int, end_offset: int) -> None:
        """A replica whose log ends there has just become one of those in sync."""
        if end_offset < seen.epoch_start:
            self.violation(
                f"{place(seen.where)}: {broker} ends at {end_offset} and joined the in-sync "
                f"replicas; epoch {seen.epoch} of leader {seen.broker} begins at {seen.epoch_start}"
            )

    def leader_log(self, seen: Leading, log: Log) -> None:
        """The log of a partition's leader, which counts if it leads the newest epoch there was."""
        if seen.epoch < self._newest.get(seen.where, -1):
            return
        complaint = self.committed.setdefault(seen.where, Committed()).learn(
            log, seen.high_watermark
        )
        if complaint is not None:
            self.violation(
                f"{place(seen.where)}: leader {seen.broker} of epoch {seen.epoch} {complaint}"
            )

    def in_sync(self, seen: Leading, leader: Log, broker: int, log: Log) -> None:
        """The log of a replica that is in sync with that leader."""
        end = seen.high_watermark
        if log.end_offset < end:
            self.violation(
                f"{place(seen.where)}: {broker} is in sync and ends at {log.end_offset}, the high "
                f"watermark of leader {seen.broker} is {end}"
            )
            return
        if leader.compacted or log.compacted:
            return
        start = max(leader.start_offset, log.start_offset)
        for ours, theirs in zip(
            _between(leader.batches, start, end), _between(log.batches, start, end), strict=False
        ):
            if ours != theirs:
                self.violation(
                    f"{place(seen.where)}: below the high watermark {end} leader {seen.broker} has "
                    f"{ours}, {broker} is in sync and has {theirs}"
                )
                return

    def flagged(self, where: Where, excused: bool = True) -> None:
        """An election was told of that may have lost records; `excused` if it may have."""
        self.flags[where] = self.flags.get(where, 0) + 1
        if excused:
            self.committed.pop(where, None)


def _between(batches: Sequence[Batch], start: int, end: int) -> list[Batch]:
    return [batch for batch in batches if start <= batch.base_offset < end]


class Position(NamedTuple):
    """What a controller or an observer holds to be true of the quorum."""

    node: int
    life: int
    """Which of its lives this is: with one ends what it knows of the high watermark, and of an
    epoch that it has told nobody of."""
    epoch: int
    high_watermark: int
    leads: bool
    epoch_start: int = -1
    """Of a leader: where its epoch begins in the log."""


@dataclass(slots=True)
class Quorum(Findings):
    leaders: dict[int, int] = field(default_factory=dict)
    committed: Committed = field(default_factory=Committed)
    _last: dict[int, Position] = field(default_factory=dict)
    _snapshots: dict[tuple[int, int], int] = field(default_factory=dict)
    _high_watermark: int = -1
    """The largest that any node was seen to know of."""

    def at(self, seen: Position) -> None:
        last = self._last.get(seen.node)
        self._last[seen.node] = seen
        self._high_watermark = max(self._high_watermark, seen.high_watermark)
        if seen.leads:
            first = self.leaders.setdefault(seen.epoch, seen.node)
            if first != seen.node:
                self.violation(
                    f"the quorum: both {first} and {seen.node} lead it in epoch {seen.epoch}"
                )
        if last is None:
            return
        if seen.life == last.life and seen.epoch < last.epoch:
            self.violation(
                f"the quorum: {seen.node} went from epoch {last.epoch} back to {seen.epoch}"
            )
        moved = seen.high_watermark - last.high_watermark
        same = (seen.life, seen.epoch, seen.leads) == (last.life, last.epoch, last.leads)
        if moved > 0 and same and seen.leads and seen.high_watermark <= seen.epoch_start:
            self.violation(
                f"the quorum: {seen.node} committed up to {seen.high_watermark} though its epoch "
                f"{seen.epoch} begins at {seen.epoch_start}"
            )
        if seen.life == last.life and moved < 0:
            self.violation(
                f"the quorum: the high watermark of {seen.node} went from {last.high_watermark} "
                f"back to {seen.high_watermark}"
            )

    def voters(self, node: int, epoch: int, committed: Set[object], counted: Set[object]) -> None:
        """A leader counts by other voters than are committed: one more, or one less."""
        if len(committed ^ counted) > 1:
            self.violation(
                f"the quorum: {node} counts in epoch {epoch} by voters of which "
                f"{len(committed ^ counted)} are other than committed"
            )

    def logs(self, logs: Mapping[int, Log], high_watermarks: Mapping[int, int]) -> None:
        """All logs at one moment, and how far each node that runs takes its own for committed."""
        for node, high_watermark in high_watermarks.items():
            log = logs[node]
            upto = Log(log.start_offset, _between(log.batches, 0, high_watermark))
            known = {at: self.committed.batches.get(at) for at in _bases(upto)}
            for batch in upto.batches:
                if known[batch.base_offset] not in (None, batch):
                    self.violation(
                        f"the quorum: {node} has committed {batch}, before that it was "
                        f"{known[batch.base_offset]}"
                    )
                self.committed.batches[batch.base_offset] = batch
            self.committed.end_offset = max(self.committed.end_offset, high_watermark)
        nodes = sorted(logs)
        for at, one in enumerate(nodes):
            for other in nodes[at + 1 :]:
                self._same_prefix(one, logs[one], other, logs[other])

    def _same_prefix(self, one: int, a: Log, other: int, b: Log) -> None:
        theirs = {batch.base_offset: batch for batch in b.batches}
        common = [
            (batch, theirs[batch.base_offset]) for batch in a.batches if batch.base_offset in theirs
        ]
        while common and common[-1][0].epoch != common[-1][1].epoch:
            common.pop()
        for ours, their in common:
            if ours != their:
                self.violation(
                    f"the quorum: {one} has {ours}, {other} has {their}, and later both have "
                    f"offset {common[-1][0].base_offset} of epoch {common[-1][0].epoch}"
                )
                return

    def snapshot(self, node: int, end_offset: int, epoch: int) -> None:
        """A node has a snapshot of all before an offset, the last of it written in this epoch."""
        self._snapshots[end_offset, epoch] = node

    def snapshot_now(self, node: int, end_offset: int) -> None:
        """A node that runs has a snapshot at the moment that all nodes were last looked at."""
        if end_offset > self._high_watermark:
            self.violation(
                f"the quorum: {node} took a snapshot up to offset {end_offset}; the largest high "
                f"watermark is {self._high_watermark}"
            )

    def finish(self) -> None:
        """Holds snapshots against what is committed, now that this is known to the end."""
        ends = {batch.last_offset + 1: batch for batch in self.committed.batches.values()}
        for (end_offset, epoch), node in self._snapshots.items():
            last = ends.get(end_offset)
            if end_offset > self.committed.end_offset or (last and last.epoch != epoch):
                self.violation(
                    f"the quorum: {node} took a snapshot up to offset {end_offset} of epoch "
                    f"{epoch}; committed there is {last or 'nothing'}"
                )


def _bases(log: Log) -> list[int]:
    return [batch.base_offset for batch in log.batches]
