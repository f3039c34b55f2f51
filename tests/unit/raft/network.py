"""Several raft machines on one table: a network that misbehaves, disks that forget, and a judge.

Everything follows from one seed. A disk keeps what was flushed; a crash takes the rest. The judge
looks after every event, so a broken rule is found where it is broken, not where it shows.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import NamedTuple

from scriba.instant import Instant
from scriba.raft import changes
from scriba.raft.epochs import EpochTable
from scriba.raft.machine import Raft
from scriba.raft.messages import (
    FetchReply,
    HardState,
    Position,
    Ready,
    Reply,
    Request,
    Run,
    Voter,
)
from scriba.raft.roles import Role, Timeouts

TIMEOUTS = Timeouts(election_ms=100, fetch_ms=200, request_ms=100)


class Entry(NamedTuple):
    epoch: int
    value: int
    voters: tuple[Voter, ...] | None = None
    """Who votes from here on, if the entry says so."""


class Voting(NamedTuple):
    """Who votes, where that stands, and where a node ceased to be one of them."""

    voters: tuple[Voter, ...]
    since: int = -1
    removed_at: int = -1


class Broken(AssertionError):
    """A rule of the quorum does not hold."""


class Disk:
    """`entries` begin at `start`; those below `flushed` survive a crash."""

    def __init__(self, voters: tuple[Voter, ...]) -> None:
        self.hard_state = HardState(0)
        self.start = Position(0, 0)
        self.start_voters = voters
        self.entries: list[Entry] = []
        self.flushed = 0

    @property
    def end(self) -> int:
        return self.start.offset + len(self.entries)

    def between(self, low: int, high: int) -> list[Entry]:
        return self.entries[low - self.start.offset : high - self.start.offset]

    def lose_unflushed(self) -> None:
        del self.entries[self.flushed - self.start.offset :]

    def voting(self, own: Voter) -> Voting:
        """As the log has it for one node."""
        found = Voting(self.start_voters)
        for offset, entry in enumerate(self.entries, self.start.offset):
            if entry.voters is None:
                continue
            removed_at = found.removed_at
            if own in entry.voters:
                removed_at = -1
            elif own in found.voters:
                removed_at = offset
            found = Voting(entry.voters, offset, removed_at)
        return found

    def epochs(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for offset, entry in enumerate(self.entries, self.start.offset):
            if not found or found[-1][0] != entry.epoch:
                found.append((entry.epoch, offset))
        return found


class Machine:
    """One node: its machine while it runs, its disk for ever."""

    def __init__(self, table: Table, own: Voter) -> None:
        self.table = table
        self.own = own
        self.disk = Disk(tuple(table.voters))
        self.raft: Raft | None = None
        self.life = 0
        self.high_watermark = 0
        self.epoch = 0

    def boot(self) -> None:
        self.life += 1
        disk = self.disk
        self.high_watermark = disk.start.offset
        voters, since, removed_at = disk.voting(self.own)
        self.raft = self.table.make(
            self.own,
            voters,
            disk.hard_state,
            EpochTable(disk.start, disk.epochs(), disk.end),
            disk.flushed,
            self.table.random.randrange,
            self.table.now,
            TIMEOUTS,
            self.table.bootstrap(self.own),
            voters_since=since,
            removed_at=removed_at,
        )
        self.settle()

    def crash(self) -> None:
        self.raft = None
        self.life += 1
        self.disk.lose_unflushed()

    def receive(self, sender: int, message: Request | Reply, token: object) -> None:
        if self.raft is not None:
            self.raft.step(sender, message, self.table.now, token)
            self.settle()

    def settle(self) -> None:
        """Does what the machine wants done until it wants nothing more, then sets its alarm."""
        while self.raft is not None and (ready := self.raft.ready()) is not None:
            self._carry_out(ready)
        if self.raft is not None:
            self.table.judge(self)
            due = self.raft.next_deadline()
            if due is not None:
                self.table.at(due, self._alarm(self.life))

    def _alarm(self, life: int) -> Callable[[], None]:
        def ring() -> None:
            if self.raft is not None and self.life == life:
                due = self.raft.next_deadline()
                if due is not None and due <= self.table.now.mono_ms:
                    self.raft.tick(self.table.now)
                    self.settle()

        return ring

    def _carry_out(self, ready: Ready) -> None:
        assert self.raft is not None
        disk = self.disk
        if ready.hard_state is not None and self.table.persists_votes:
            disk.hard_state = ready.hard_state
        if ready.truncate_to is not None:
            del disk.entries[ready.truncate_to - disk.start.offset :]
            disk.flushed = min(disk.flushed, ready.truncate_to)
            self.learn_voters()
        if ready.append is not None:
            payload = ready.append.payload
            assert isinstance(payload, list)
            disk.entries.extend(payload)
            self.learn_voters()
            self.flush_soon()
        led = (self.raft.epoch, self.own.id)
        if ready.leadership == led and self.raft.role is Role.LEADER:
            self.table.led(self)
            self.propose(-self.raft.epoch)
        if ready.fetch_snapshot is not None:
            self.table.copy_snapshot(self, ready.fetch_snapshot)
        for peer, request in ready.sends:
            self.table.send(self.own.id, peer, request)
        for token, reply in ready.replies:
            self.table.answer(self, token, self._with_entries(reply))

    def _with_entries(self, reply: Reply) -> Reply:
        if not isinstance(reply, FetchReply) or reply.end_offset <= reply.position.offset:
            return reply
        entries = self.disk.between(reply.position.offset, reply.end_offset)[:4]
        runs: list[Run] = []
        for end, entry in enumerate(entries, reply.position.offset + 1):
            if runs and runs[-1].epoch == entry.epoch:
                runs[-1] = Run(entry.epoch, end)
            else:
                runs.append(Run(entry.epoch, end))
        return reply._replace(runs=tuple(runs), payload=entries)

    def learn_voters(self) -> None:
        """Tells the machine who votes, as its shell does, if that is different now."""
        assert self.raft is not None
        voters, since, removed_at = self.disk.voting(self.own)
        if list(voters) != list(self.raft.voters.values()) or since != self.raft.voters_since:
            self.raft.set_voters(voters, self.table.now, since, removed_at)

    def propose(self, value: int, voters: tuple[Voter, ...] | None = None) -> None:
        assert self.raft is not None
        offset = self.raft.append(1)
        assert offset == self.disk.end
        self.disk.entries.append(Entry(self.raft.epoch, value, voters))
        self.learn_voters()
        self.flush_soon()

    def flush_soon(self) -> None:
        life = self.life

        def flush() -> None:
            if self.raft is not None and self.life == life:
                self.disk.flushed = self.disk.end
                self.raft.persisted(self.disk.end, self.table.now)
                self.settle()

        self.table.after(self.table.random.randrange(self.table.slowest_flush_ms), flush)

    def compact(self) -> None:
        """Takes a snapshot at the high watermark and drops the log before it."""
        if self.raft is None:
            return
        disk, upto = self.disk, min(self.raft.high_watermark, self.disk.flushed)
        if upto <= disk.start.offset:
            return
        epoch = disk.entries[upto - 1 - disk.start.offset].epoch
        disk.start_voters = self.table.voters_at(upto)
        del disk.entries[: upto - disk.start.offset]
        disk.start = Position(epoch, upto)
        self.raft.snapshot_taken(disk.start)


class Table:
    def __init__(
        self,
        seed: int,
        voters: int,
        observers: int = 0,
        make: Callable[..., Raft] = Raft,
        *,
        persists_votes: bool = True,
        slowest_flush_ms: int = 15,
        not_yet: Callable[[Raft], str | None] | None = None,
    ) -> None:
        """`not_yet` says whether a leader may change the voters; None where they stay."""
        self.random = random.Random(seed)
        self.not_yet = not_yet
        self.changed = 0
        self.make = make
        self.persists_votes = persists_votes
        self.slowest_flush_ms = slowest_flush_ms
        self.now = Instant(0, 0)
        self.voters = [Voter(i, bytes([i]) * 16) for i in range(1, voters + 1)]
        everyone = [
            *self.voters,
            *(Voter(100 + i, bytes([100 + i]) * 16) for i in range(observers)),
        ]
        self.machines = {own.id: Machine(self, own) for own in everyone}
        self.cut: set[frozenset[int]] = set()
        self.loss = 0.0
        self.leaders: dict[int, int] = {}
        self.committed: list[Entry] = []
        self.proposed = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._tokens: dict[int, tuple[int, int]] = {}
        for machine in self.machines.values():
            machine.boot()

    # ---- time ----

    def at(self, when: int, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now.mono_ms), self._count, event))

    def after(self, delay: int, event: Callable[[], None]) -> None:
        self.at(self.now.mono_ms + delay, event)

    def run(self, duration: int) -> None:
        end = self.now.mono_ms + duration
        while self._events and self._events[0][0] <= end:
            when, _, event = heapq.heappop(self._events)
            self.now = Instant(when, when)
            event()
        self.now = Instant(end, end)

    # ---- network ----

    def send(self, sender: int, receiver: int, request: Request) -> None:
        self._count += 1
        token = self._count
        self._tokens[token] = (sender, receiver)
        self._deliver(sender, receiver, request, token)

    def answer(self, machine: Machine, token: object, reply: Reply) -> None:
        assert isinstance(token, int)
        if token in self._tokens:
            asker, asked = self._tokens[token]
            self._deliver(asked, asker, reply, None)

    def _deliver(self, sender: int, receiver: int, message: Request | Reply, token: object) -> None:
        copies = 0 if self.random.random() < self.loss else 1
        if self.loss and self.random.random() < 0.05:
            copies += 1
        target = self.machines[receiver]
        life = target.life

        def arrive() -> None:
            if frozenset((sender, receiver)) not in self.cut and target.life == life:
                target.receive(sender, message, token)

        for _ in range(copies):
            slow = self.random.random() < 0.1
            self.after(self.random.randrange(1, 120 if slow and self.loss else 8), arrive)

    def copy_snapshot(self, machine: Machine, wanted: Position) -> None:
        """What FetchSnapshot does: the leader's snapshot, some time later, whole."""
        life = machine.life

        def arrive() -> None:
            if machine.raft is None or machine.life != life:
                return
            if wanted.offset < machine.raft.high_watermark:
                return
            machine.disk.start = wanted
            machine.disk.start_voters = self.voters_at(wanted.offset)
            machine.disk.entries.clear()
            machine.disk.flushed = wanted.offset
            machine.raft.snapshot_loaded(wanted, self.now)
            machine.learn_voters()
            machine.settle()

        self.after(self.random.randrange(1, 30), arrive)

    # ---- voters ----

    def bootstrap(self, own: Voter) -> tuple[int, ...]:
        """Whom a node asks that knows no voter who leads; the voters are enough if they stay."""
        if self.not_yet is None:
            return ()
        return tuple(i for i in self.machines if i != own.id)

    def voters_at(self, offset: int) -> tuple[Voter, ...]:
        """As of everything before an offset that is committed."""
        named = [e.voters for e in self.committed[:offset] if e.voters is not None]
        return named[-1] if named else tuple(self.voters)

    def change_voters(self) -> None:
        """A leader adds one that has the log, or removes one, if it may."""
        for machine in self.machines.values():
            raft = machine.raft
            if raft is None or raft.role is not Role.LEADER or self.not_yet is None:
                continue
            if self.not_yet(raft) is not None:
                continue
            now = list(raft.voters.values())
            ready = [
                each.own
                for each in self.machines.values()
                if each.own not in now and changes.lag(raft, each.own, self.now) is None
            ]
            if len(now) > 1 and (not ready or self.random.random() < 0.5):
                now.remove(self.random.choice(now))
            elif ready:
                now.append(self.random.choice(ready))
            else:
                continue
            self.changed += 1
            machine.propose(-1_000_000 - self.changed, tuple(now))
            machine.settle()

    # ---- the world does its worst ----

    def propose(self) -> None:
        for machine in self.machines.values():
            if machine.raft is not None and machine.raft.role is Role.LEADER:
                self.proposed += 1
                machine.propose(self.proposed)
                machine.settle()

    def trouble(self) -> None:
        """One random misfortune, or the end of one."""
        ids = list(self.machines)
        machine = self.machines[self.random.choice(ids)]
        match self.random.randrange(9):
            case 0:
                machine.crash()
            case 1 | 2:
                if machine.raft is None:
                    machine.boot()
            case 3:
                other = self.random.choice(ids)
                self.cut.add(frozenset((machine.own.id, other)))
            case 4:
                self.cut.clear()
            case 5:
                alone = machine.own.id
                self.cut |= {frozenset((alone, other)) for other in ids if other != alone}
            case 6:
                machine.compact()
                if machine.raft is not None:
                    machine.settle()
            case 7:
                for each in self.machines.values():  # the power goes
                    each.crash()
                    each.boot()
            case 8:
                if machine.raft is not None and self.random.random() < 0.3:
                    machine.raft.resign(self.now)
                    machine.settle()

    def heal(self) -> None:
        self.cut.clear()
        self.loss = 0.0
        for machine in self.machines.values():
            if machine.raft is None:
                machine.boot()

    # ---- the judge ----

    def led(self, machine: Machine) -> None:
        assert machine.raft is not None
        known = self.leaders.setdefault(machine.raft.epoch, machine.own.id)
        if known != machine.own.id:
            raise Broken(f"two leaders in epoch {machine.raft.epoch}")
        self._complete(machine)

    def _complete(self, machine: Machine) -> None:
        disk = machine.disk
        ours = disk.entries[: max(len(self.committed) - disk.start.offset, 0)]
        if disk.end < len(self.committed) or ours != self.committed[disk.start.offset :]:
            raise Broken(f"leader {machine.own.id} lacks committed entries")

    def judge(self, machine: Machine) -> None:
        raft, disk = machine.raft, machine.disk
        assert raft is not None
        if raft.epoch < machine.epoch:
            raise Broken("an epoch went back")
        if raft.high_watermark < machine.high_watermark:
            raise Broken("a high watermark went back")
        if raft.log.end_offset != disk.end:
            raise Broken("the machine's table and the log differ")
        machine.epoch = raft.epoch
        if raft.high_watermark == machine.high_watermark:
            return
        machine.high_watermark = raft.high_watermark
        if raft.high_watermark > disk.end:
            raise Broken("a high watermark beyond the log")
        shown = disk.entries[: raft.high_watermark - disk.start.offset]
        if raft.role is Role.LEADER and shown and shown[-1].epoch != raft.epoch:
            raise Broken("a leader committed by counting an older epoch's entry")
        known = self.committed[disk.start.offset : raft.high_watermark]
        if shown[: len(known)] != known:
            raise Broken("two nodes committed different entries")
        self.committed.extend(shown[len(known) :])

    def logs_match(self) -> None:
        """Same offset and epoch means the same log up to there."""
        machines = list(self.machines.values())
        for i, one in enumerate(machines):
            for other in machines[i + 1 :]:
                low = max(one.disk.start.offset, other.disk.start.offset)
                high = max(min(one.disk.end, other.disk.end), low)
                ours = one.disk.between(low, high)
                theirs = other.disk.between(low, high)
                for at in range(len(ours) - 1, -1, -1):
                    if ours[at].epoch == theirs[at].epoch:
                        if ours[: at + 1] != theirs[: at + 1]:
                            raise Broken("logs differ below a common position")
                        break


def storm(table: Table, rounds: int) -> None:
    """Faults of all kinds while a client writes, then calm, in which the quorum must recover."""
    table.loss = table.random.choice((0.0, 0.05, 0.2))
    for _ in range(rounds):
        if table.random.random() < 0.4:
            table.trouble()
        if table.not_yet is not None and table.random.random() < 0.5:
            table.change_voters()
        table.propose()
        table.run(table.random.randrange(1, 150))
        table.logs_match()
    table.heal()
    table.run(40 * TIMEOUTS.election_ms)
    before = table.proposed
    table.propose()
    table.run(10 * TIMEOUTS.election_ms)
    table.logs_match()
    if table.proposed == before:
        raise Broken("no leader after the storm")
    behind = [m.own.id for m in table.machines.values() if m.high_watermark != len(table.committed)]
    if behind or not any(entry.value == table.proposed for entry in table.committed):
        raise Broken(f"writes do not reach {behind} after the storm")
