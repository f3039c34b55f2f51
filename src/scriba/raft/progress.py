"""A leader's side: the replicas that fetch from it, what they get, and what that commits."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from scriba.instant import Instant
from scriba.raft.epochs import EpochTable
from scriba.raft.messages import FetchReply, FetchRequest, Position, Voter
from scriba.raft.roles import MAX_WAIT_MS

OBSERVER_EXPIRY_MS: Final = 300_000
MAX_OBSERVERS: Final = 10_000


@dataclass(slots=True)
class Replica:
    """One replica's log as its last fetch told it; times are wall-clock, for DescribeQuorum."""

    voter: Voter
    end_offset: int = -1
    last_contact: int = -1
    """Monotonic time of the last fetch, -1 for none in this epoch."""
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    caught_up_at: int = -1
    """The same by the monotonic clock: when it last had all that the leader had, -1 for never."""
    leader_end_then: int = -1
    high_watermark: int = -1
    """As its last fetch said: how far it knows the log to be committed."""

    def fetched(self, offset: int, leader_end: int, now: Instant) -> None:
        if offset >= leader_end:
            self.last_caught_up_ms, self.caught_up_at = now.wall_ms, now.mono_ms
        elif 0 <= self.leader_end_then <= offset:
            # It has by now what the leader had when it last asked.
            self.last_caught_up_ms, self.caught_up_at = self.last_fetch_ms, self.last_contact
        self.end_offset = offset
        self.last_contact = now.mono_ms
        self.last_fetch_ms = now.wall_ms
        self.leader_end_then = leader_end


@dataclass(slots=True)
class Parked:
    """A fetch that waits for something to bring."""

    request: FetchRequest
    token: object
    deadline: int


class Progress:
    """What one leader knows in one epoch."""

    def __init__(
        self, own: Voter, voters: Iterable[Voter], epoch: int, log: EpochTable, now: Instant
    ) -> None:
        self.own = own
        self.voters = {voter.id: Replica(voter) for voter in voters}
        self.observers: dict[Voter, Replica] = {}
        self.start_offset = log.end_offset
        self.since = now.mono_ms
        self.flushed = 0
        self.parked: list[Parked] = []
        self._epoch = epoch
        self._log = log

    def set_voters(self, voters: Iterable[Voter]) -> None:
        """The voters are others now; what is known of a replica stays known."""
        known = {**self.observers, **{r.voter: r for r in self.voters.values()}}
        wanted = {voter.id: voter for voter in voters}
        self.voters = {}
        for voter in wanted.values():
            replica = next((r for v, r in known.items() if voter.is_replica(v)), Replica(voter))
            replica.voter = voter
            self.voters[voter.id] = replica
        self.observers = {
            v: r
            for v, r in known.items()
            if not (v.id in wanted and wanted[v.id].is_replica(v)) and v != self.own
        }

    # ---- fetches ----

    def note(self, request: FetchRequest, now: Instant) -> None:
        """Learns from a fetch how far the replica is, if its log is one with ours."""
        if request.replica.id < 0:
            return  # somebody who only looks
        if self._log.contains(Position(request.last_epoch, request.offset)):
            replica = self._replica(request.replica, now)
            if replica is not None:
                replica.high_watermark = request.high_watermark
                replica.fetched(request.offset, self._log.end_offset, now)

    def answer(
        self, request: FetchRequest, token: object, high_watermark: int, now: Instant
    ) -> FetchReply | None:
        """What to send at once; None for a fetch that is kept until there is something."""
        self._answer_earlier(request)
        if self._nothing_for(request, high_watermark):
            wait = min(request.max_wait_ms, MAX_WAIT_MS)
            self.parked.append(Parked(request, token, now.mono_ms + wait))
            return None
        return self._reply(request, high_watermark)

    def _answer_earlier(self, request: FetchRequest) -> None:
        """A replica waits for one answer at a time: who asks again has lost the other one."""
        for parked in self.parked:
            if parked.request.replica == request.replica:
                parked.deadline = 0

    def answers(
        self, high_watermark: int, now: Instant | None = None
    ) -> list[tuple[object, FetchReply]]:
        """The kept fetches that have waited long enough, or not in vain."""
        due: list[tuple[object, FetchReply]] = []
        waiting: list[Parked] = []
        for parked in self.parked:
            late = now is not None and now.mono_ms >= parked.deadline
            if late or not self._nothing_for(parked.request, high_watermark):
                due.append((parked.token, self._reply(parked.request, high_watermark)))
            else:
                waiting.append(parked)
        self.parked = waiting
        return due

    def _nothing_for(self, request: FetchRequest, high_watermark: int) -> bool:
        return (
            request.max_wait_ms > 0
            and request.high_watermark >= high_watermark
            and self._log.end == (request.last_epoch, request.offset)
        )

    def _reply(self, request: FetchRequest, high_watermark: int) -> FetchReply:
        log = self._log
        asked = Position(request.last_epoch, request.offset)
        reply = FetchReply(self._epoch, self.own.id, high_watermark, asked, log.end_offset)
        if log.contains(asked):
            return reply
        if asked.offset <= log.start.offset or asked.epoch < log.start.epoch:
            return reply._replace(end_offset=asked.offset, snapshot=log.start)
        return reply._replace(end_offset=asked.offset, diverging=log.end_of(asked.epoch))

    # ---- replicas ----

    def heard(self, replica: Voter, now: Instant) -> None:
        known = self._replica(replica, now)
        if known is not None:
            known.last_contact = now.mono_ms

    def _replica(self, replica: Voter, now: Instant) -> Replica | None:
        """The replica that fetches; None for one observer too many."""
        voter = self.voters.get(replica.id)
        if voter is not None and voter.voter.is_replica(replica):
            return voter
        known = self.observers.get(replica)
        if known is None:
            self._forget_silent(now)
            if len(self.observers) >= MAX_OBSERVERS:
                return None
            known = self.observers[replica] = Replica(replica)
        return known

    def _forget_silent(self, now: Instant) -> None:
        self.observers = {replica.voter: replica for replica in self.heard_observers(now)}

    def heard_observers(self, now: Instant) -> list[Replica]:
        """Those that have not been silent for too long."""
        silent = now.mono_ms - OBSERVER_EXPIRY_MS
        return [each for each in self.observers.values() if each.last_contact > silent]

    def committed(self) -> int | None:
        """Up to where a majority has the log on disk, once that reaches into this epoch.

        A majority that holds an older epoch's records may still lose them to a log with a later
        epoch, so they count only together with a record of our own (Raft 5.4.2).
        """
        ends = sorted(
            (
                self.flushed if replica.voter.is_replica(self.own) else replica.end_offset
                for replica in self.voters.values()
            ),
            reverse=True,
        )
        offset = ends[len(ends) // 2]
        return offset if offset > self.start_offset else None

    def hears_majority(self, now: Instant, within_ms: int) -> bool:
        heard = sum(
            replica.voter.is_replica(self.own)
            or max(replica.last_contact, self.since) > now.mono_ms - within_ms
            for replica in self.voters.values()
        )
        return heard > len(self.voters) // 2

    def successors(self) -> tuple[int, ...]:
        others = [r for r in self.voters.values() if not r.voter.is_replica(self.own)]
        others.sort(key=lambda replica: (-replica.end_offset, replica.voter.id))
        return tuple(replica.voter.id for replica in others)
