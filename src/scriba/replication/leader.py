"""The leader's side of one partition: who is in sync, and how far everyone may read.

Theory of operation. The leader knows for each replica how far its log reaches (`end_offset`), which
the offsets tell that its fetches ask for. The high watermark is the smallest end among the in-sync
replicas, those proposed to be in sync, and those that have caught up and are about to be proposed:
counting the last keeps a record from being exposed that a member of the next ISR does not have
(KIP-497). While the committed ISR is smaller than `min.insync.replicas` it stands still: only so
can a replica that left the ISR be eligible to lead without loss (KIP-966).

The ISR itself belongs to the controller. This machine only proposes a change, holds the *maximal*
ISR (old and proposed) for every decision while the answer is out, and installs what comes back.
One proposal is in flight at a time; it names the partition epoch it was based on, so that the
controller can refuse it when something else came first, and the broker epoch of each member, so
that a replica joins only as the incarnation that caught up (KIP-903).

A follower names in a fetch only those partitions whose offset has moved. So the time of its last
fetch is not kept per partition but in one `Heard` that all its partitions share: a follower that
has all the leader has is caught up as of then, and one that has not was when the leader's end
passed it.

A follower that has not had for `stall_ms` what it was sent holds every acknowledgement back, long
before it is slow enough to leave. It leaves early if enough stay without it, and returns after it
has been caught up for a while, which is twice as long each time that it stalls again soon.

An observer is a follower that counts for nothing: it is never proposed, and nobody waits for it.
What it has is known all the same: it serves consumers while it is not too far behind, and when a
reassignment adds one that has caught up, this machine says so by proposing the ISR that is there.

Never: an observer is proposed, or counted in the high watermark; the high watermark goes back
within a leader epoch, or moves below `min.insync.replicas`; a fetch of another leader epoch, of a
follower whose log diverges, of another incarnation or of an unknown replica moves anything; a
replica that has not reached the high watermark and the start of this epoch is proposed for the ISR;
the leader leaves its own ISR; a new leader takes a follower for a laggard before that had
`replica.lag.time.max.ms` to be heard of.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scriba.errors import ErrorCode
from scriba.instant import Instant

UNKNOWN: Final = -1

FORGIVEN_MS: Final = 600_000
"""A follower that stalls again later than this after its return is taken as if it never had."""
LONGEST_PROBATION_MS: Final = 600_000

UNDECIDED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
    }
)
"""Refusals after which only newer metadata can say what the ISR is: an earlier try of the same
proposal may have been carried out. Until then the maximal ISR counts."""

REFUSED: Final = frozenset(
    {
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
"""Refusals that say for certain that nothing has changed. Any other error is tried again."""


class Heard:
    """When a follower last fetched anything from this broker, in monotonic milliseconds."""

    __slots__ = ("ms",)

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms


@dataclass(slots=True)
class Follower:
    """What the leader knows of one other replica."""

    caught_up_ms: int
    """The last time (monotonic) at which it was known to have everything the leader had."""
    heard: Heard
    end_offset: int = UNKNOWN
    start_offset: int = UNKNOWN
    """Where its log begins: what DeleteRecords waits for."""
    broker_epoch: int = UNKNOWN
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: int = UNKNOWN
    stalls: int = 0
    """How often it left the ISR because it stalled, of late."""
    probation_ms: int = 0
    """For how long it has to be caught up before it returns."""
    steady_since_ms: int = 0
    """Since when it has not been behind for as long as a stall takes."""
    returned_ms: int = 0

    def stalled(self, now_ms: int, stall_ms: int) -> None:
        """It leaves the ISR for that."""
        if now_ms - self.returned_ms > FORGIVEN_MS:
            self.stalls = 0
        self.stalls += 1
        longest = max(LONGEST_PROBATION_MS, stall_ms)
        self.probation_ms = min(stall_ms << min(self.stalls - 1, 20), longest)
        self.steady_since_ms = now_ms


class Observed(NamedTuple):
    """How far an observer is behind."""

    replica: int
    lag: int
    """In records."""
    behind_ms: int
    """How long ago it was caught up; 0 where it is."""


class Cause(enum.Enum):
    """Why a follower left the ISR."""

    STALLED = "stalled"
    SILENT = "silent"
    SLOW = "slow"
    FENCED = "fenced"


class Dropped(NamedTuple):
    replica: int
    lag: int
    """Records it was behind the leader's end; everything if it never fetched in this epoch, and
    UNKNOWN if it left before that began."""
    behind_ms: int
    """How long ago it was caught up."""
    cause: Cause
    end: int = -1
    """Where its log ended, as far as it has told in this epoch."""


def departure(replica: int, led_before: int) -> Dropped:
    """A replica that left the ISR as another leader began: only the last one lacked nothing."""
    return Dropped(replica, 0 if replica == led_before else UNKNOWN, 0, Cause.FENCED)


class Member(NamedTuple):
    """A replica in a proposed ISR, as the incarnation that is meant."""

    replica: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A wish to be sent to the controller as AlterPartition."""

    members: tuple[Member, ...]
    leader_epoch: int
    partition_epoch: int
    dropped: tuple[Dropped, ...] = ()
    joined: tuple[int, ...] = ()

    @property
    def isr(self) -> tuple[int, ...]:
        return tuple(member.replica for member in self.members)


class Installed(NamedTuple):
    """What a decision of the controller changed in the committed ISR."""

    left: tuple[Dropped, ...] = ()
    joined: tuple[int, ...] = ()


UNCHANGED: Final = Installed()


@dataclass(slots=True)
class LeaderState:
    """Leadership of one partition in one leader epoch."""

    node_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    epoch_start_offset: int
    high_watermark: int
    own_end: int
    started_ms: int = 0
    """When this leadership began, monotonic: nobody lags before he could be heard."""
    lag_ms: int = 30_000
    """`replica.lag.time.max.ms`: how long a replica may be behind and still count as caught up."""
    stall_ms: int = 0
    """After which time a follower that holds acknowledgements back leaves the ISR, if enough stay;
    0 for never. It includes the time that a fetch may wait: a follower was caught up when it last
    asked, not when the next record came."""
    min_insync: int = 1
    """`min.insync.replicas` of the topic."""
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment is adding."""
    reassigning: bool = False
    observers: frozenset[int] = frozenset()
    """Replicas that copy, and count for nothing."""
    voters: int = 1 << 31
    """How many of the replicas vote at most, as the topic's placement says."""
    active: Mapping[int, int] = field(default_factory=dict)
    """The epoch of each broker that is neither fenced nor shutting down, as the metadata has it
    now: only these may join the ISR. Shared by all partitions, and kept up to date outside."""
    recovering: bool = False
    """Whether an unclean election made it leader, and the controller does not know yet that it
    serves again: the next proposal says so."""
    now_ms: int = 0
    """The latest time this machine was told of."""
    followers: dict[int, Follower] = field(default_factory=dict)
    pending: IsrProposal | None = None

    def __post_init__(self) -> None:
        assert self.node_id in self.isr, "a leader is in its own ISR"
        self.now_ms = max(self.now_ms, self.started_ms)
        self._know_followers()
        self.advance()

    def _know_followers(self) -> None:
        """Takes up replicas that are new, lets go of those that are no longer any."""
        known = self.followers
        self.followers = {}
        for replica in self.replicas:
            if replica != self.node_id:
                self.followers[replica] = known.get(replica) or self._stranger(replica)

    def _stranger(self, replica: int) -> Follower:
        """One outside the ISR has to show that it has caught up; one inside was, a moment ago."""
        caught_up_ms = self.now_ms if replica in self.isr else self.now_ms - self.lag_ms - 1
        return Follower(caught_up_ms, Heard(caught_up_ms))

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        if self.pending is None:
            return self.isr
        return self.isr + tuple(r for r in self.pending.isr if r not in self.isr)

    @property
    def under_min_isr(self) -> bool:
        return not self.in_sync(self.min_insync)

    @property
    def at_min_isr(self) -> bool:
        """Whether not one more in-sync replica may be lost."""
        return len(self.isr) == min(self.min_insync, self.voters)

    @property
    def under_replicated(self) -> bool:
        """Whether fewer are in sync than it had replicas before a reassignment, as Kafka counts;
        observers apart."""
        counted = len(self.replicas) - len(self.adding)
        if self.observers:
            counted -= len(self.observers.difference(self.adding))
        return len(self.isr) < counted

    @property
    def low_watermark(self) -> int:
        """The smallest known start of the followers' logs, as far as their brokers are active, and
        they do not merely observe."""
        starts = [
            follower.start_offset
            for replica, follower in self.followers.items()
            if replica in self.active and replica not in self.observers
        ]
        return min(starts, default=1 << 63)

    def holders(self, offset: int, now_ms: int, max_lag_ms: int) -> Iterator[tuple[int, int, int]]:
        """Followers that have the record at `offset`, or will have it next, and are in sync, or
        observe and lag no more than that: each with the end of its log and when it was last caught
        up."""
        for replica, follower in self.followers.items():
            if not follower.start_offset <= offset <= follower.end_offset:
                continue
            caught_up_ms = self._caught_up_ms(follower)
            if replica in self.isr or (
                replica in self.observers and now_ms - caught_up_ms <= max_lag_ms
            ):
                yield replica, follower.end_offset, caught_up_ms

    def observed(self, now: Instant) -> Iterator[Observed]:
        """How far each observer has come."""
        now_ms = max(now.mono_ms, self.now_ms)
        for replica in sorted(self.observers):
            follower = self.followers.get(replica)
            if follower is not None:
                lag = max(self.own_end - max(follower.end_offset, 0), 0)
                behind_ms = max(now_ms - self._caught_up_ms(follower), 0) if lag else 0
                yield Observed(replica, lag, behind_ms)

    # ---- what the logs do ----

    def on_append(self, end_offset: int) -> int:
        """The leader's own log reaches `end_offset`; returns the high watermark."""
        passed = self.own_end
        assert end_offset >= passed, "a leader does not truncate"
        self.own_end = end_offset
        if end_offset > passed:
            for follower in self.followers.values():
                if follower.end_offset >= passed and follower.heard.ms > follower.caught_up_ms:
                    # It had everything up to now, as of its last fetch.
                    follower.caught_up_ms = follower.heard.ms
        return self.advance()

    def on_fetch(
        self,
        replica: int,
        offset: int,
        broker_epoch: int,
        now: Instant,
        start_offset: int = UNKNOWN,
        heard: Heard | None = None,
    ) -> int | None:
        """A follower holds everything below `offset`; returns the high watermark.

        None says that the replica is not one of this partition's. The caller has made sure that
        the follower's log does not diverge from this one below `offset`, and calls once for each
        fetch, not again when one that waited is answered.
        """
        follower = self.followers.get(replica)
        if follower is None:
            return None
        now_ms = self.now_ms = max(self.now_ms, now.mono_ms)
        if broker_epoch < follower.broker_epoch:
            return self.high_watermark
        if heard is not None:
            follower.heard = heard
        follower.heard.ms = max(follower.heard.ms, now_ms)
        if follower.probation_ms and now_ms - self._caught_up_ms(follower) > self.stall_ms:
            follower.steady_since_ms = now_ms
        if offset >= self.own_end:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end_at_last_fetch >= 0:
            # It has what the leader had when it last asked: in sync as of then, even if the
            # leader's end keeps running ahead of every fetch.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.last_fetch_ms)
        follower.end_offset = offset
        if start_offset >= 0:
            follower.start_offset = start_offset
        follower.broker_epoch = broker_epoch
        follower.last_fetch_ms = now_ms
        follower.leader_end_at_last_fetch = self.own_end
        return self.advance()

    # ---- the high watermark ----

    def advance(self) -> int:
        """Moves the high watermark to the smallest end that counts, never back."""
        followers, isr = self.followers, self.isr
        if len(isr) < self.min_insync and followers and self.under_min_isr:
            return self.high_watermark
        low = self.own_end
        members = isr if self.pending is None else self.maximal_isr
        for replica, follower in followers.items():
            end = follower.end_offset
            if end < low and (replica in members or self._may_join(replica, follower)):
                low = end
        if low > self.high_watermark:
            self.high_watermark = low
        return self.high_watermark

    def _caught_up_ms(self, follower: Follower) -> int:
        if follower.end_offset >= self.own_end:
            return max(follower.caught_up_ms, follower.heard.ms)
        return follower.caught_up_ms

    def _may_join(self, replica: int, follower: Follower) -> bool:
        """At the watermark, past the start of this epoch, not silent since, and still the same."""
        return (
            replica not in self.observers
            and follower.end_offset >= self.high_watermark
            and follower.end_offset >= self.epoch_start_offset
            and self.now_ms - self._caught_up_ms(follower) <= self.lag_ms
            and self.now_ms - follower.steady_since_ms >= follower.probation_ms
            and follower.broker_epoch == self.active.get(replica)
        )

    # ---- the in-sync replicas ----

    def wants(self, replica: int) -> bool:
        """Whether a follower outside the ISR should be proposed for it now, or its arrival told."""
        follower = self.followers.get(replica)
        return (
            follower is not None
            and self.pending is None
            and replica not in self.isr
            and (
                self._may_join(replica, follower)
                or (replica in self.adding and self._observers_arrived())
            )
        )

    def _observers_arrived(self) -> bool:
        """Whether those that a reassignment adds as observers have all caught up, and the others
        are in sync: nobody else knows, and the reassignment waits for it."""
        added = self.observers.intersection(self.adding)
        if not added or not {*self.adding} <= {*self.isr, *self.observers}:
            return False
        return all(
            (follower := self.followers.get(replica)) is not None
            and follower.end_offset >= max(self.high_watermark, self.epoch_start_offset)
            and self.now_ms - self._caught_up_ms(follower) <= self.lag_ms
            and follower.broker_epoch == self.active.get(replica)
            for replica in added
        )

    def propose(self, now: Instant, broker_epoch: int = UNKNOWN) -> IsrProposal | None:
        """The ISR this leader would rather have: laggards out, caught-up replicas in.

        `broker_epoch` is the leader's own.
        """
        self.now_ms = max(self.now_ms, now.mono_ms)
        if self.pending is not None:
            return None
        dropped = tuple(
            self._drop(replica)
            for replica in self.isr
            if replica != self.node_id and self._lags(replica)
        )
        dropped += tuple(
            self._drop(replica, Cause.STALLED)
            for replica in self._stalled({each.replica for each in dropped})
        )
        gone = {each.replica for each in dropped}
        joined = tuple(
            replica
            for replica, follower in self.followers.items()
            if replica not in self.isr and self._may_join(replica, follower)
        )
        if not (dropped or joined or self.recovering or self._observers_arrived()):
            return None
        wanted = [replica for replica in self.isr if replica not in gone] + list(joined)
        members = tuple(Member(r, self._epoch_of(r, broker_epoch)) for r in wanted)
        self.pending = IsrProposal(
            members, self.leader_epoch, self.partition_epoch, dropped, joined
        )
        return self.pending

    def _lags(self, replica: int) -> bool:
        follower = self.followers.get(replica)
        return follower is not None and self.now_ms - self._caught_up_ms(follower) > self.lag_ms

    def unheard(self) -> list[int]:
        """In-sync followers that have not fetched in this epoch."""
        return [r for r, f in self.followers.items() if r in self.isr and f.end_offset < 0]

    def holds_back(self, replica: int, now: Instant) -> bool:
        """Whether an in-sync follower lacks for too long what it was sent."""
        follower = self.followers.get(replica)
        return (
            follower is not None
            and self.stall_ms > 0
            and replica in self.isr
            and follower.end_offset < self.own_end
            and self.high_watermark < self.own_end
            and max(now.mono_ms, self.now_ms) - follower.caught_up_ms > self.stall_ms
        )

    def _stalled(self, leaving: set[int]) -> list[int]:
        """Those to leave for that: all of them or, if too few would stay, none. With one left that
        holds acknowledgements back, nothing would be gained."""
        now = Instant(self.now_ms, 0)
        found = [r for r in self.isr if r not in leaving and self.holds_back(r, now)]
        stay = len(self.isr) - len(leaving) - len(found)
        return found if stay >= min(self.min_insync, self.voters, len(self.replicas)) else []

    def _drop(self, replica: int, cause: Cause | None = None) -> Dropped:
        follower = self.followers.get(replica)
        if follower is None:
            return Dropped(replica, 0, 0, Cause.FENCED)
        if cause is None:
            silent = self.now_ms - follower.heard.ms > self.lag_ms
            cause = Cause.SILENT if silent else Cause.SLOW
        lag = max(self.own_end - max(follower.end_offset, 0), 0)
        behind_ms = self.now_ms - self._caught_up_ms(follower)
        return Dropped(replica, lag, behind_ms, cause, follower.end_offset)

    def _epoch_of(self, replica: int, own: int) -> int:
        return own if replica == self.node_id else self.followers[replica].broker_epoch

    def installed(
        self,
        isr: tuple[int, ...],
        partition_epoch: int,
        replicas: tuple[int, ...] | None = None,
        recovering: bool = False,
    ) -> Installed:
        """The controller decided; an older decision than the one known is ignored."""
        if partition_epoch <= self.partition_epoch:
            return UNCHANGED
        before, proposal = self.isr, self.pending
        told = {each.replica: each for each in proposal.dropped} if proposal is not None else {}
        left = tuple(
            told.get(replica) or self._drop(replica, Cause.FENCED)
            for replica in before
            if replica not in isr
        )
        for each in left:
            follower = self.followers.get(each.replica)
            if follower is not None and each.cause is Cause.STALLED:
                follower.stalled(self.now_ms, self.stall_ms)
            elif follower is not None:
                follower.probation_ms = 0
        for replica in isr:
            if replica not in before and replica in self.followers:
                self.followers[replica].returned_ms = self.now_ms
        self.isr = isr
        self.partition_epoch = partition_epoch
        self.pending = None
        self.recovering = recovering
        if replicas is not None and replicas != self.replicas:
            self.replicas = replicas
            self._know_followers()
        self.advance()
        return Installed(left, tuple(replica for replica in isr if replica not in before))

    def accepted(self, partition_epoch: int) -> None:
        """The controller has carried the proposal out, as of this epoch of the partition.

        The metadata brings it, together with all that was decided before: a raised
        `min.insync.replicas` must not come after the smaller ISR that it was to forbid. Where the
        metadata has nothing to bring, the proposal asked for what is.
        """
        if partition_epoch <= self.partition_epoch:
            self.pending = None
            self.recovering = False
            self.advance()

    def refused(self, code: ErrorCode) -> bool:
        """The proposal was not carried out as it was sent; whether to send it again as it is.

        Where it certainly had no effect the committed ISR stands, and the next look at the
        followers may propose anew.
        """
        if code in UNDECIDED:
            return False
        if code in REFUSED:
            self.pending = None
            self.advance()
            return False
        return True

    def in_sync(self, minimum: int) -> bool:
        """Whether acks=all may be promised: counted on the committed ISR, never on hopes."""
        return len(self.isr) >= min(minimum, self.voters, len(self.replicas))
