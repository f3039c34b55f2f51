"""The leader's side of one partition: who is in sync, and how far everyone may read.

Theory of operation. The leader knows for each replica how far its log reaches (`end`), learnt from
the offsets its fetches ask for. The high watermark is the smallest end among the in-sync replicas,
those proposed to be in sync, and those that have caught up and are about to be proposed: counting
the last keeps a record from being exposed that a member of the next ISR does not have (KIP-497).

The ISR itself belongs to the controller. This machine only proposes a change, holds the *maximal*
ISR (old and proposed) for every decision while the answer is out, and installs what comes back.
One proposal is in flight at a time; it names the partition epoch it was based on, so that the
controller can refuse it when something else came first.

Never: the high watermark goes back within a leader epoch; a fetch of another leader epoch or an
unknown replica moves anything; a replica that has not reached the high watermark and the start of
this epoch is proposed for the ISR; the leader leaves its own ISR.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scriba.instant import Instant


@dataclass(slots=True)
class Follower:
    """What the leader knows of one other replica."""

    end_offset: int = -1
    broker_epoch: int = -1
    caught_up_ms: int = 0
    """The last time (monotonic) at which it had everything the leader had."""
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: int = -1


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A wish to be sent to the controller as AlterPartition."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


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
    lag_ms: int = 30_000
    """`replica.lag.time.max.ms`: how long a replica may be behind and still count as caught up."""
    last_heard_ms: int = 0
    followers: dict[int, Follower] = field(default_factory=dict)
    pending: IsrProposal | None = None

    def __post_init__(self) -> None:
        assert self.node_id in self.isr, "a leader is in its own ISR"
        for replica in self.replicas:
            if replica != self.node_id:
                self.followers.setdefault(replica, Follower())
        self.advance()

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        if self.pending is None:
            return self.isr
        return self.isr + tuple(r for r in self.pending.isr if r not in self.isr)

    def on_append(self, end_offset: int) -> int:
        """The leader's own log reaches `end_offset`; returns the high watermark."""
        assert end_offset >= self.own_end, "a leader does not truncate"
        self.own_end = end_offset
        if not self.followers:
            # The replica set is the leader alone: what it has is what there is.
            if end_offset > self.high_watermark:
                self.high_watermark = end_offset
            return self.high_watermark
        return self.advance()

    def on_fetch(self, replica: int, offset: int, broker_epoch: int, now: Instant) -> int | None:
        """A follower holds everything below `offset`; returns the high watermark.

        None says that the replica is not one of this partition's.
        """
        follower = self.followers.get(replica)
        if follower is None:
            return None
        self.last_heard_ms = max(self.last_heard_ms, now.mono_ms)
        if broker_epoch != -1 and broker_epoch < follower.broker_epoch:
            return self.high_watermark
        if offset >= self.own_end:
            follower.caught_up_ms = now.mono_ms
        elif offset >= follower.leader_end_at_last_fetch >= 0:
            # It has what the leader had when it last asked: in sync as of then, even if the
            # leader's end keeps running ahead of every fetch.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.last_fetch_ms)
        follower.end_offset = offset
        follower.broker_epoch = broker_epoch
        follower.last_fetch_ms = now.mono_ms
        follower.leader_end_at_last_fetch = self.own_end
        return self.advance()

    def advance(self) -> int:
        """Moves the high watermark to the smallest end that counts, never back."""
        low = self.own_end
        members = self.maximal_isr
        for replica, follower in self.followers.items():
            if replica in members or self._may_join(follower):
                low = min(low, follower.end_offset)
        if low > self.high_watermark:
            self.high_watermark = low
        return self.high_watermark

    def _may_join(self, follower: Follower) -> bool:
        """At the watermark, past the start of this epoch, and not silent since."""
        return (
            follower.end_offset >= max(self.high_watermark, self.epoch_start_offset)
            and self.last_heard_ms - follower.caught_up_ms <= self.lag_ms
        )

    def propose(self, now: Instant, eligible: frozenset[int]) -> IsrProposal | None:
        """The ISR this leader would rather have: laggards out, or caught-up replicas in.

        `eligible` are the brokers that are alive; a fenced one never joins.
        """
        self.last_heard_ms = max(self.last_heard_ms, now.mono_ms)
        if self.pending is not None:
            return None
        keep = [
            r
            for r in self.isr
            if r == self.node_id or now.mono_ms - self.followers[r].caught_up_ms <= self.lag_ms
        ]
        join = [
            r
            for r, follower in self.followers.items()
            if r not in self.isr and r in eligible and self._may_join(follower)
        ]
        wanted = tuple(keep + join)
        if wanted == self.isr:
            return None
        self.pending = IsrProposal(wanted, self.leader_epoch, self.partition_epoch)
        return self.pending

    def installed(self, isr: tuple[int, ...], partition_epoch: int) -> int:
        """The controller decided; an older decision than the one known is ignored."""
        if partition_epoch > self.partition_epoch:
            self.isr = isr
            self.partition_epoch = partition_epoch
            self.pending = None
        return self.advance()

    def refused(self) -> int:
        """The proposal had no effect; the committed ISR stands."""
        self.pending = None
        return self.advance()

    def in_sync(self, minimum: int) -> bool:
        """Whether acks=all may be promised: counted on the committed ISR, never on hopes."""
        return len(self.isr) >= min(minimum, len(self.replicas))
