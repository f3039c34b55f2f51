"""KRaft: a quorum of controllers agrees on the metadata log (KIP-595, KIP-996).

Raft, except that followers pull. Records of the log carry the epoch of the leader that wrote them;
an epoch has at most one leader, because a voter gives one vote per epoch, to a candidate whose log
is at least as complete as its own, and writes that down before it answers. What a majority has on
disk is committed, if it reaches into the leader's own epoch.

Roles and how they follow each other are in `VALID`. A node whose leader goes silent first asks
whether it could win (PROSPECTIVE); only if so it takes the next epoch and asks for votes
(CANDIDATE), so a node that was cut off disturbs nobody when it comes back. A leader that no longer
hears a majority resigns, so that its clients do not wait for ever. An observer is no voter; it only
fetches. Who votes is told from outside (`set_voters`): the voters stand in the log, and count from
the moment they are written there, committed or not. One who is removed may still be needed until
that is committed: it leads on, or stands if nobody does, and counts the others' votes only.

Silence takes a time-out; proof of death does not. When the leader's address refuses, its process is
gone, and a follower stands for election at once, and lets others stand. If it was wrong, that costs
an election.

The machine keeps where epochs begin, never records. It is told the time and gives back, by `ready`,
what to write and to send. Never: go back in epoch or high watermark, vote twice in an epoch, answer
before the answer's reason is on disk, commit by counting an older epoch's records, truncate below
the high watermark.
"""

from collections.abc import Callable, Iterable

from scriba.instant import Instant
from scriba.raft.epochs import EpochTable
from scriba.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    FetchReply,
    FetchRequest,
    HardState,
    Leadership,
    Position,
    Ready,
    Reply,
    Request,
    Run,
    Voter,
    VoteReply,
    VoteRequest,
)
from scriba.raft.outbox import Outbox
from scriba.raft.progress import Progress
from scriba.raft.roles import LAST_EPOCH, VALID, Role, Timeouts


class Raft:
    def __init__(
        self,
        own: Voter,
        voters: Iterable[Voter],
        hard_state: HardState,
        log: EpochTable,
        flushed: int,
        below: Callable[[int], int],
        now: Instant,
        timeouts: Timeouts,
        bootstrap: Iterable[int] = (),
        forgetful: bool = False,
        committed: int = 0,
        voters_since: int = -1,
        removed_at: int = -1,
    ) -> None:
        """`flushed` is how much of the log is on the device for certain; `below(n)` gives a
        number in [0, n): the jitter that keeps candidates apart. `bootstrap` names whom to ask
        while the voters are not known; up to `committed` the log is known to be, for there is a
        snapshot of it. The voters stand in the record at `voters_since`, -1 if in none; that at
        `removed_at` is the first without this node, which was one before.

        A `forgetful` voter found its directory empty and cannot tell what it promised before: it
        votes only when it has all that a leader had committed, and only after that one's epoch.
        """
        self.own = own
        self.voters = {voter.id: voter for voter in voters}
        self.voters_since = voters_since
        self.removed_at = removed_at
        self.log = log
        self.epoch = max(hard_state.epoch, log.last_epoch)
        self.leader = hard_state.leader if hard_state.epoch == self.epoch else None
        self.high_watermark = max(log.start.offset, committed)
        self.flushed = flushed
        self.role = Role.UNATTACHED
        self.progress: Progress | None = None
        self._voted = hard_state.voted if hard_state.epoch == self.epoch else None
        self._timeouts = timeouts
        self._below = below
        self._deadline: int | None = None
        self._granted: set[int] = set()
        self._refused: set[int] = set()
        self._resend_at: dict[int, int] = {}
        self._fetch_at: int | None = None
        """When the next fetch is due; None while one waits for the disk."""
        self._has_fetched = False
        self._next_peer = 0
        self._leader_high_watermark = -1
        self._bootstrap = tuple(bootstrap)
        self._lost_elections = 0
        self._forgetful = forgetful
        self._no_vote_to = -1
        """No vote in this epoch or before: it may have been given in an earlier life."""
        self.granted_by: tuple[int, ...] = ()
        """Who voted for this node in the epoch that it leads."""
        self._out = Outbox(hard_state, self.high_watermark)
        self._start(now)

    def _start(self, now: Instant) -> None:
        if self.is_voter and len(self.voters) == 1 and self.epoch < LAST_EPOCH:
            # Nobody else can lead or vote: the next epoch is ours, without asking.
            self.role = Role.CANDIDATE
            self._begin_election(now)
        elif self.leader == self.own.id:
            # It may have lost, with the crash, what it had not yet written; another may lead.
            self.role = Role.RESIGNED
            self._deadline = now.mono_ms + self._election_timeout()
            self._fetch_soon(now)
        elif self.leader is not None:
            self._follow(self.epoch, self.leader, now)
        else:
            self._detach(self.epoch, now)
            if self.is_voter and not self.epoch and not self.log.end_offset:
                self._deadline = now.mono_ms  # it founds the cluster: nobody else leads

    @property
    def is_voter(self) -> bool:
        voter = self.voters.get(self.own.id)
        return voter is not None and voter.is_replica(self.own)

    @property
    def stands(self) -> bool:
        """Whether this node may have to lead: it votes, or its removal is not known to be
        committed. Without it nobody might be able to: its log may be the most complete one."""
        return self.is_voter or self.removed_at >= self.high_watermark

    @property
    def patience_ms(self) -> int:
        """How long a replica may be silent before it does not count as living."""
        return self._timeouts.majority_ms

    @property
    def hard_state(self) -> HardState:
        return HardState(self.epoch, self.leader, None if self.leader is not None else self._voted)

    # ---- the shell's side ----

    def ready(self) -> Ready | None:
        """What has to be done since the last call; None for nothing."""
        # One that has resigned still knows that the epoch was its own; others must not.
        resigned = self.leader == self.own.id and self.role is not Role.LEADER
        leadership = Leadership(self.epoch, None if resigned else self.leader)
        return self._out.take(self.hard_state, leadership, self.high_watermark)

    def next_deadline(self) -> int | None:
        """The monotonic time of the next `tick`; None when nothing is due."""
        due = [self._deadline]
        if self.progress is not None:
            due += [parked.deadline for parked in self.progress.parked]
        if self.role in (Role.PROSPECTIVE, Role.CANDIDATE, Role.LEADER):
            due += self._resend_at.values()
        if self._fetches:
            due.append(self._fetch_at)
        return min((at for at in due if at is not None), default=None)

    def append(self, count: int) -> int:
        """The leader writes `count` records; returns the offset of the first."""
        assert self.role is Role.LEADER
        base = self.log.end_offset
        self.log.append(Run(self.epoch, base + count))
        self._answer_parked()
        return base

    def persisted(self, end_offset: int, now: Instant) -> None:
        """The log is on disk up to `end_offset`: that may be counted, and fetched after."""
        self.flushed = max(self.flushed, min(end_offset, self.log.end_offset))
        if self.progress is not None:
            self.progress.flushed = self.flushed
            self._commit()
            self._leave_if_removed(now)
        elif self._fetch_at is None and self.flushed == self.log.end_offset:
            self._learn_high_watermark()
            self._fetch_at = now.mono_ms

    def append_refused(self, end_offset: int, now: Instant) -> None:
        """The device took what was fetched up to `end_offset` only; the rest is fetched again."""
        self.log.truncate(end_offset)
        self._fetch_at = now.mono_ms + self._timeouts.request_ms

    @property
    def contact_ms(self) -> int:
        """How often a follower that has no use for a fetch has to hear of its leader otherwise."""
        return self._timeouts.fetch_ms // 4

    def heard_leader(self, now: Instant) -> None:
        """The leader sent a part of a snapshot: it lives."""
        if self.role is Role.FOLLOWER:
            self._deadline = now.mono_ms + self._timeouts.fetch_ms

    def heard_replica(self, replica: Voter, now: Instant) -> None:
        """A replica fetched a part of a snapshot: it lives."""
        if self.progress is not None:
            self.progress.heard(replica, now)

    def snapshot_loaded(self, snapshot: Position, now: Instant) -> None:
        """A snapshot fetched from the leader now stands for the log up to its end."""
        assert snapshot.offset >= self.high_watermark
        self.log.reset(snapshot)
        self.flushed = snapshot.offset
        self.high_watermark = snapshot.offset
        self._fetch_at = now.mono_ms

    def snapshot_taken(self, snapshot: Position) -> None:
        """The log below a snapshot of committed records may go, and has gone."""
        assert snapshot.offset <= self.high_watermark
        self.log.advance_start(snapshot)

    def set_voters(
        self, voters: Iterable[Voter], now: Instant, since: int = -1, removed_at: int = -1
    ) -> None:
        """The log has other voters now, or has them no longer; offsets as at the start."""
        stood_before = self.stands
        self.voters = {voter.id: voter for voter in voters}
        self.voters_since, self.removed_at = since, removed_at
        if self.progress is not None:
            self.progress.set_voters(self.voters.values())
            self._resend_at = {
                peer: self._resend_at.get(peer, now.mono_ms) for peer in self._peers()
            }
            if self._deadline is None and self._peers():
                self._deadline = now.mono_ms + self._timeouts.majority_ms
            self._commit()
            self._leave_if_removed(now)
        elif self.stands != stood_before and self.role is not Role.FOLLOWER:
            self._detach(self.epoch, now)

    def failed(self, peer: int, request: Request, now: Instant, *, refused: bool) -> None:
        """A request could not be brought to a peer, or its answer never came.

        `refused` says that its machine has nobody at the address: the process is gone.
        """
        soon = now.mono_ms + self._timeouts.backoff_ms
        if isinstance(request, FetchRequest):
            if not self._fetches or self._fetch_at is None:
                return
            self._fetch_at = min(self._fetch_at, now.mono_ms + self._fetch_pause)
            if refused and self.role is Role.FOLLOWER and peer == self.leader:
                self._leader_gone(now)
        elif peer in self._resend_at and not refused:
            self._resend_at[peer] = min(self._resend_at[peer], soon)
        elif peer in self._resend_at:
            pause = max(self._timeouts.backoff_ms, self._timeouts.request_ms // 8)
            self._resend_at[peer] = min(self._resend_at[peer], now.mono_ms + pause)

    def _leader_gone(self, now: Instant) -> None:
        """Those who notice together would split the vote; each gives the ones before it a start."""
        if not self.stands:
            self._detach(self.epoch, now)
            return
        self._has_fetched = False
        heirs = sorted(peer for peer in self.voters if peer != self.leader)
        rank = heirs.index(self.own.id) if self.own.id in heirs else len(heirs)
        pause = rank * max(self._timeouts.election_ms // 10, 1)
        due = now.mono_ms + pause
        self._deadline = due if self._deadline is None else min(self._deadline, due)

    def resign(self, now: Instant) -> None:
        """Leaves in good order, naming those who should follow."""
        if self.role is not Role.LEADER or self.progress is None:
            return
        farewell = EndEpoch(self.epoch, self.own.id, self.progress.successors())
        self._become(Role.RESIGNED)
        self._deadline = now.mono_ms + self._election_timeout()
        for peer in self._peers():
            self._out.sends.append((peer, farewell))

    def tick(self, now: Instant) -> None:
        if self._deadline is not None and now.mono_ms >= self._deadline:
            self._deadline = None
            self._time_out(now)
        self._resend(now)
        if self._fetches and self._fetch_at is not None and now.mono_ms >= self._fetch_at:
            self._fetch(now)
        self._answer_parked(now)

    def step(
        self, sender: int, message: Request | Reply, now: Instant, token: object = None
    ) -> None:
        """Takes a message of another node. A request is answered under its `token`, some later."""
        match message:
            case VoteRequest():
                self._out.replies.append((token, self._on_vote(message, now)))
            case BeginEpoch():
                self._hear_of(message.epoch, message.leader, now, at_first_hand=True)
                self._out.replies.append((token, EpochReply(self.epoch, self.leader)))
            case EndEpoch():
                self._on_end_epoch(message, now)
                self._out.replies.append((token, EpochReply(self.epoch, self.leader)))
            case FetchRequest():
                self._on_fetch(message, token, now)
            case VoteReply():
                self._on_vote_reply(sender, message, now)
            case EpochReply():
                self._hear_of(message.epoch, message.leader, now)
            case FetchReply():
                self._on_fetch_reply(sender, message, now)

    # ---- roles ----

    def _become(self, role: Role) -> None:
        assert role in VALID[self.role], f"{self.role.name} cannot become {role.name}"
        self.role = role
        for parked in self.progress.parked if self.progress else ():
            self._refuse_fetch(parked.token)
        self.progress = None
        self._granted, self._refused = set(), set()
        self._resend_at = {}
        self._has_fetched = False

    def _enter(self, epoch: int, leader: int | None) -> None:
        assert epoch >= self.epoch
        if epoch > self.epoch:
            self._voted = None
        self.epoch, self.leader = epoch, leader

    def _detach(self, epoch: int, now: Instant) -> None:
        self._become(Role.UNATTACHED)
        # A voter remembers that this epoch had its leader; an observer looks for one anew.
        self._enter(epoch, self.leader if epoch == self.epoch and self.stands else None)
        self._deadline = now.mono_ms + self._election_timeout() if self.stands else None
        self._fetch_soon(now)

    def _follow(self, epoch: int, leader: int, now: Instant) -> None:
        self._become(Role.FOLLOWER)
        self._enter(epoch, leader)
        self._deadline = now.mono_ms + self._timeouts.fetch_ms
        self._leader_high_watermark = -1
        self._fetch_soon(now)

    def _hear_of(
        self, epoch: int, leader: int | None, now: Instant, *, at_first_hand: bool = False
    ) -> bool:
        """Takes in an epoch and its leader; whether that changed who we follow.

        Others may still name a leader that has long been silent, and so it may itself after a
        crash. Who gave it up in this epoch takes it back only at its own word.
        """
        if epoch < self.epoch or leader == self.own.id:
            return False
        if epoch > self.epoch:
            if leader is None:
                self._detach(epoch, now)
            else:
                self._follow(epoch, leader, now)
            return True
        if leader is None or self.role in (Role.FOLLOWER, Role.LEADER):
            return False
        if self.leader not in (None, leader):
            self._out.faults.append(
                f"epoch {epoch} is led by {self.leader}, and was told to be led by {leader}"
            )
        elif self.leader is None or at_first_hand:
            self._follow(epoch, leader, now)
            return True
        return False

    def _time_out(self, now: Instant) -> None:
        match self.role:
            case Role.LEADER:
                self._check_majority(now)
            case Role.FOLLOWER if not self.stands:
                self._detach(self.epoch, now)
            case Role.UNATTACHED | Role.FOLLOWER | Role.RESIGNED | Role.CANDIDATE if self.stands:
                self._become(Role.PROSPECTIVE)
                self._canvass(now)
            case Role.RESIGNED | Role.CANDIDATE:
                self._detach(self.epoch, now)
            case Role.PROSPECTIVE:
                self._give_up(now)

    def _check_majority(self, now: Instant) -> None:
        assert self.progress is not None
        patience = self._timeouts.majority_ms
        if self.progress.hears_majority(now, patience):
            self._deadline = now.mono_ms + patience // 2
        else:
            self.resign(now)

    # ---- elections ----

    def _election_timeout(self) -> int:
        return self._timeouts.election_ms + self._below(max(self._timeouts.election_ms, 1))

    def _peers(self) -> list[int]:
        return [peer for peer in self.voters if peer != self.own.id]

    def _canvass(self, now: Instant) -> None:
        """Sends out vote requests, for show or in earnest as the role says."""
        self._granted = {self.own.id} if self.is_voter else set()
        self._deadline = now.mono_ms + self._election_timeout()
        self._resend_at = dict.fromkeys(self._peers(), now.mono_ms)
        self._resend(now)
        self._count_votes(now)

    def _begin_election(self, now: Instant) -> None:
        self._enter(self.epoch + 1, None)
        self._voted = self.own
        self._canvass(now)

    def _resend(self, now: Instant) -> None:
        if self.role in (Role.PROSPECTIVE, Role.CANDIDATE):
            request: Request = VoteRequest(
                self.epoch, self.own, self.log.end, self.role is Role.PROSPECTIVE
            )
            pause = self._timeouts.request_ms
        elif self.role is Role.LEADER:
            request = BeginEpoch(self.epoch, self.own.id)
            pause = max(self._timeouts.fetch_ms // 2, 1)
        else:
            return
        for peer, at in self._resend_at.items():
            if now.mono_ms >= at:
                self._resend_at[peer] = now.mono_ms + pause
                if not self._heard_from(peer, now, pause):
                    self._out.sends.append((peer, request))

    def _heard_from(self, peer: int, now: Instant, within_ms: int) -> bool:
        if self.progress is None:
            return peer in self._granted or peer in self._refused
        last = self.progress.voters[peer].last_contact
        return last >= 0 and now.mono_ms - last <= within_ms

    def _on_vote(self, request: VoteRequest, now: Instant) -> VoteReply:
        if request.epoch > self.epoch:
            self._detach(request.epoch, now)
        granted = request.epoch == self.epoch and self._would_vote(request)
        if granted and not request.pre_vote:
            self._voted = request.candidate
            self._deadline = now.mono_ms + self._election_timeout()
        return VoteReply(self.epoch, self.leader, granted, request.pre_vote)

    def _would_vote(self, request: VoteRequest) -> bool:
        complete = request.end >= self.log.end
        if request.end.epoch > request.epoch - (not request.pre_vote):
            return False  # nobody has records of an epoch that is yet to begin
        if not request.keyed and (self._forgetful or request.epoch <= self._no_vote_to):
            return False  # it may have been given in an earlier life
        if request.pre_vote:
            # One who hears the leader keeps it: the asker may just be cut off.
            heard = self.role is Role.FOLLOWER and self._has_fetched
            return complete and not heard and self.role is not Role.LEADER
        if self.role not in (Role.UNATTACHED, Role.PROSPECTIVE):
            return False
        if self._voted is not None:
            return self._voted == request.candidate
        return self.leader is None and complete

    def _on_vote_reply(self, sender: int, reply: VoteReply, now: Instant) -> None:
        if self._hear_of(reply.epoch, reply.leader, now) or reply.epoch < self.epoch:
            return
        asked = Role.PROSPECTIVE if reply.pre_vote else Role.CANDIDATE
        if self.role is not asked or sender not in self.voters:
            return
        (self._granted if reply.granted else self._refused).add(sender)
        self._count_votes(now)

    def _count_votes(self, now: Instant) -> None:
        majority = len(self.voters) // 2 + 1
        if len(self._granted) >= majority:
            if self.role is not Role.PROSPECTIVE:
                self._lead(now)
            elif self.epoch < LAST_EPOCH:
                self._become(Role.CANDIDATE)
                self._begin_election(now)
            else:
                self._resend_at = {}
                self._out.faults.append(f"nobody can be elected after epoch {self.epoch}")
        elif len(self._refused) > len(self.voters) - majority:
            self._lose(now)

    def _lose(self, now: Instant) -> None:
        """Tries again after a pause by chance, which is longer after each defeat."""
        self._resend_at = {}
        self._lost_elections = min(self._lost_elections + 1, 10)
        longest = max(self._timeouts.backoff_ms, 1) << self._lost_elections
        pause = 1 + self._below(min(longest, max(self._timeouts.election_backoff_ms, 1)))
        if self.role is Role.CANDIDATE and self._deadline is not None:
            self._deadline = min(self._deadline, now.mono_ms + pause)

    def _give_up(self, now: Instant) -> None:
        if self.leader is not None and self.leader != self.own.id:
            self._follow(self.epoch, self.leader, now)
        else:
            self._detach(self.epoch, now)

    def _lead(self, now: Instant) -> None:
        self.granted_by = tuple(sorted(self._granted))
        self._lost_elections = 0
        self._become(Role.LEADER)
        self.leader = self.own.id
        self.progress = Progress(self.own, self.voters.values(), self.epoch, self.log, now)
        self.progress.flushed = self.flushed
        self._deadline = None
        if len(self.voters) > 1:
            self._deadline = now.mono_ms + self._timeouts.majority_ms
        self._resend_at = dict.fromkeys(self._peers(), now.mono_ms)
        self._resend(now)

    def _on_end_epoch(self, message: EndEpoch, now: Instant) -> None:
        self._hear_of(message.epoch, message.leader, now)
        leaving = self.role is Role.FOLLOWER and self.leader == message.leader
        if not (leaving and message.epoch == self.epoch and self.stands):
            return
        # The most complete log stands at once, each next one gives those before it a start.
        rank = len(self.voters)
        if self.own.id in message.successors:
            rank = message.successors.index(self.own.id)
        self._deadline = now.mono_ms
        if rank:
            pause = self._timeouts.election_ms >> max(len(self.voters) - rank, 0)
            self._deadline += pause + self._below(max(pause, 1))

    # ---- the log ----

    @property
    def _fetches(self) -> bool:
        """A follower fetches; whoever knows of no leader asks, which is the same request."""
        return self.role in (Role.FOLLOWER, Role.UNATTACHED, Role.RESIGNED)

    def _fetch_soon(self, now: Instant) -> None:
        """Unless records are still on their way to the disk: what is asked for next says that all
        before it is there."""
        self._fetch_at = now.mono_ms if self.flushed == self.log.end_offset else None

    @property
    def _fetch_pause(self) -> int:
        """Before the next question who leads. A voter can wait: the leader looks for it, too."""
        if self.is_voter and self.role is not Role.FOLLOWER:
            return max(self._timeouts.backoff_ms, self._timeouts.election_ms // 8)
        return self._timeouts.backoff_ms

    def _fetch(self, now: Instant) -> None:
        """Fetches from the leader; an observer without one asks the voters in turn."""
        if self.role is Role.FOLLOWER and self.leader is not None:
            target = self.leader
        else:
            # A voter may have moved; the servers that this node was told of are asked as well.
            peers = [*self._peers(), *self._bootstrap]
            if not peers:
                self._fetch_at = now.mono_ms + self._timeouts.request_ms
                return
            target = peers[self._next_peer % len(peers)]
            self._next_peer += 1
        # Ask again if no answer comes; it may also be late, and is then as good.
        self._fetch_at = now.mono_ms + self._timeouts.request_ms
        request = FetchRequest(
            self.epoch,
            self.own,
            self.log.end_offset,
            self.log.last_epoch,
            self.high_watermark,
            self._timeouts.fetch_wait_ms,
        )
        self._out.sends.append((target, request))

    def _on_fetch(self, request: FetchRequest, token: object, now: Instant) -> None:
        if self.progress is None or request.epoch != self.epoch:
            # A replica that is ahead knows better; one that is behind learns from the answer.
            self._refuse_fetch(token)
            return
        self.progress.note(request, now)
        self._commit()
        reply = self.progress.answer(request, token, self.high_watermark, now)
        if reply is not None:
            self._out.replies.append((token, reply))
        self._leave_if_removed(now)

    def _answer_parked(self, now: Instant | None = None) -> None:
        if self.progress is not None and self.progress.parked:
            self._out.replies += self.progress.answers(self.high_watermark, now)

    def _refuse_fetch(self, token: object) -> None:
        self._out.replies.append((token, FetchReply(self.epoch, self.leader, refused=True)))

    def _commit(self) -> None:
        assert self.progress is not None
        offset = self.progress.committed()
        if offset is not None and offset > self.high_watermark:
            self.high_watermark = offset
            self._answer_parked()

    def _leave_if_removed(self, now: Instant) -> None:
        """Ends the leadership of one who is no voter, once those who are know it."""
        if not self.stands:
            self.resign(now)

    def _on_fetch_reply(self, sender: int, reply: FetchReply, now: Instant) -> None:
        served = sender == reply.leader and not reply.refused
        if self._hear_of(reply.epoch, reply.leader, now, at_first_hand=served) or not served:
            if self._fetches and self._fetch_at is not None:
                self._fetch_at = min(self._fetch_at, now.mono_ms + self._fetch_pause)
            return
        if self.role is not Role.FOLLOWER or reply.epoch != self.epoch or sender != self.leader:
            return
        self._deadline = now.mono_ms + self._timeouts.fetch_ms
        self._has_fetched = True
        if self._fetch_at is None or reply.position != self.log.end:
            return  # the answer to an earlier question
        if reply.snapshot is not None:
            self._need_snapshot(reply.snapshot, now)
        elif reply.diverging is not None:
            self._truncate(reply.diverging, now)
        else:
            self._leader_high_watermark = reply.high_watermark
            if reply.runs:
                if not self._continues(reply):
                    self._doubt(f"records that do not follow on {self.log.end}", now)
                    return
                for run in reply.runs:
                    self.log.append(run)
                self._out.append = reply
                self._fetch_at = None
            else:
                self._learn_high_watermark()
                self._fetch_at = now.mono_ms

    def _continues(self, reply: FetchReply) -> bool:
        epoch, end = self.log.last_epoch, self.log.end_offset
        for run in reply.runs:
            if not (epoch <= run.epoch <= reply.epoch and run.end_offset > end):
                return False
            epoch, end = run
        return True

    def _need_snapshot(self, snapshot: Position, now: Instant) -> None:
        if snapshot.offset <= self.high_watermark or snapshot.epoch > self.epoch:
            self._doubt(f"a snapshot at {snapshot}, behind {self.high_watermark} committed", now)
            return
        self._fetch_at = None
        self._out.fetch_snapshot = snapshot

    def _doubt(self, what: str, now: Instant) -> None:
        """The leader says what cannot be. It is asked again, in case it comes to its senses."""
        self._out.faults.append(f"leader {self.leader} of epoch {self.epoch} sent {what}")
        self._fetch_at = now.mono_ms + self._timeouts.request_ms

    def snapshot_failed(self, now: Instant) -> None:
        """The snapshot could not be had; the leader is asked again what to do."""
        if self._fetches and self._fetch_at is None and self.flushed == self.log.end_offset:
            self._fetch_at = now.mono_ms + self._timeouts.backoff_ms

    def _truncate(self, diverging: Position, now: Instant) -> None:
        """Cuts off what the leader does not have; its next answer may cut more."""
        ours = self.log.end_of(diverging.epoch)
        cut = min(ours.offset, diverging.offset) if ours.epoch == diverging.epoch else ours.offset
        cut = max(cut, self.log.start.offset)
        if cut < self.high_watermark:
            self._doubt(f"a log that diverges at {cut}, below {self.high_watermark} committed", now)
            return
        self.log.truncate(cut)
        self.flushed = min(self.flushed, cut)
        self._out.truncate_to = cut
        self._fetch_at = now.mono_ms

    def _learn_high_watermark(self) -> None:
        known = min(self._leader_high_watermark, self.flushed)
        if self._forgetful and known >= self._leader_high_watermark >= 0:
            self._forgetful, self._no_vote_to = False, self.epoch
        if known > self.high_watermark:
            self.high_watermark = known
