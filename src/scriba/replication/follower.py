"""The follower's side: how one replica comes to have what its leader has, byte for byte.

Theory of operation. A follower asks for everything from the end of its log on, and says of which
epoch its last record is. Where the leader's log has another record there, the leader answers with
the end of the newest epoch that both may share, the follower truncates to it and asks again
(KIP-101, 279, 595); so it never has to guess, and never truncates to its high watermark, which may
be older than what was acknowledged. What it is sent is appended as it came.

States (`VALID` has the steps between them):
- CATCHING_UP: it fetches, and has less than what the leader knows to be committed;
- FETCHING: it fetches, and has all of that;
- TRUNCATING: the leader's log and its own part somewhere, or its end is outside of the leader's;
  nothing is fetched until the truncation is on the device;
- FAILED: its own log takes nothing more. Only another replica of it, or a restart, begins anew.

A partition that the leader refuses, or whose records the own log refuses, is left out for a pause
that doubles from refusal to refusal.

`FetcherPlan` is all that is followed from one leader: one incremental fetch session (KIP-227), in
which a request names only what has changed since the last one.

Never: a record is appended that does not follow the log's end; an answer to a question of another
leader epoch, or from another offset, changes anything; the high watermark passes the log's end.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from scriba.errors import ErrorCode

FIRST_PAUSE_MS: Final = 20
"""A leader that has not heard of its leadership yet does so within milliseconds."""

UNDEFINED: Final = -1
NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
LAST_EPOCH: Final = 2**31 - 1

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class State(enum.Enum):
    CATCHING_UP = "catching up"
    FETCHING = "fetching"
    TRUNCATING = "truncating"
    FAILED = "failed"


VALID: Final[Mapping[State, frozenset[State]]] = {
    State.CATCHING_UP: frozenset({State.FETCHING, State.TRUNCATING, State.FAILED}),
    State.FETCHING: frozenset({State.CATCHING_UP, State.TRUNCATING, State.FAILED}),
    State.TRUNCATING: frozenset({State.CATCHING_UP, State.FAILED}),
    State.FAILED: frozenset(),
}


class EpochEnd(NamedTuple):
    """Up to where an epoch goes in some log; the epoch is the largest one up to that asked for."""

    epoch: int
    end_offset: int


class Bounds(NamedTuple):
    """Where a leader's log begins and ends."""

    start_offset: int
    end_offset: int


class Append(NamedTuple):
    """Append what came, then call `appended`, and `well` if there were failures."""


class Truncate(NamedTuple):
    """Take away everything from `offset` on, durably, then call `truncated`."""

    offset: int
    lost: int
    """How much of that was below the own high watermark: after an unclean election it may be."""


class StartAnew(NamedTuple):
    """Take away everything; the log goes on at `offset`. Then call `truncated`."""

    offset: int
    lost: int


class AskBounds(NamedTuple):
    """Ask the leader where its log begins and ends (ListOffsets), then call `on_bounds`."""


class Wait(NamedTuple):
    """Nothing to be done; the partition is asked for again, perhaps after a pause."""


Step = Append | Truncate | StartAnew | AskBounds | Wait
WAIT: Final = Wait()
APPEND: Final = Append()


class Told(NamedTuple):
    """What a leader answered for one partition, records apart."""

    error: ErrorCode
    high_watermark: int
    start_offset: int
    diverging: EpochEnd | None = None


def truncation_point(theirs: EpochEnd, ours: EpochEnd, own_end: int) -> int:
    """Where to truncate when the leader has said that the logs part.

    `theirs` is the leader's answer, `ours` what the own log says of the same epoch. If that is an
    older one, the leader is asked again from there: it may know where that one ended.
    """
    if ours.end_offset == UNDEFINED or ours.epoch == UNDEFINED:
        return min(theirs.end_offset, own_end)
    if ours.epoch != theirs.epoch:
        return min(ours.end_offset, own_end)
    return min(ours.end_offset, theirs.end_offset, own_end)


@dataclass(slots=True, eq=False)
class FollowerState:
    """One replica while it follows a leader in one leader epoch."""

    leader_epoch: int
    start_offset: int
    end_offset: int
    last_epoch: int
    """The epoch of the last record, -1 if there is none."""
    high_watermark: int
    state: State = State.CATCHING_UP
    leader_high_watermark: int = UNDEFINED
    """As far as it was told in this epoch."""
    caught_up_ms: int | None = None
    """When it last was known to have all that the leader had committed at some moment: that moment,
    monotonic. None until it was, in this epoch."""
    awaited_high_watermark: int = UNDEFINED
    awaited_since_ms: int = 0
    """What it has to reach to be caught up as of then."""
    failures: int = 0
    """Refusals in a row, of the leader or of the own log."""
    why: ErrorCode = ErrorCode.NONE
    """The last refusal, as long as it lasts."""
    first_end: int = field(init=False)
    """Where it began in this epoch: what it has caught up since is beyond."""
    begins_within: int = UNDEFINED
    """Where the leader's log begins, within a batch that begins at the own end."""

    def __post_init__(self) -> None:
        assert self.start_offset <= self.end_offset
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self.first_end = self.end_offset

    def _move(self, state: State) -> None:
        if state is not self.state:
            assert state in VALID[self.state], f"{self.state} does not become {state}"
            self.state = state

    @property
    def fetches(self) -> bool:
        return self.state is State.CATCHING_UP or self.state is State.FETCHING

    @property
    def is_caught_up(self) -> bool:
        """Whether it has all that it was told to be committed, and fetches on."""
        return self.state is State.FETCHING and not self.failures

    @property
    def lag(self) -> int:
        """Records behind the leader's high watermark, as far as it is known."""
        return max(self.leader_high_watermark - self.end_offset, 0)

    # ---- answers ----

    def on_told(self, told: Told, ours: EpochEnd | None) -> Step:
        """What an answer asks for; `ours` is what the own log says of a diverging epoch."""
        if not self.fetches:
            return WAIT
        if told.error:
            return self._refused(told.error)
        if told.diverging is not None:
            assert ours is not None
            if told.diverging.end_offset < 0:
                return self._refused(ErrorCode.UNKNOWN_SERVER_ERROR)
            self.well()
            return self._truncate(truncation_point(told.diverging, ours, self.end_offset))
        if told.high_watermark >= 0:
            self.leader_high_watermark = told.high_watermark
        return APPEND

    def _refused(self, error: ErrorCode) -> Step:
        self.failures += 1
        self.why = error
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._move(State.TRUNCATING)
            return AskBounds()
        return WAIT

    def _truncate(self, offset: int) -> Step:
        self._move(State.TRUNCATING)
        self.begins_within = UNDEFINED
        return Truncate(offset, max(self.high_watermark - offset, 0))

    def appended(self, end_offset: int, last_epoch: int) -> None:
        """The own log ends there now."""
        assert end_offset >= self.end_offset
        self.end_offset = end_offset
        self.last_epoch = last_epoch
        self.high_watermark = max(
            self.high_watermark, min(self.leader_high_watermark, self.end_offset)
        )
        behind = self.leader_high_watermark < 0 or self.end_offset < self.leader_high_watermark
        state = State.CATCHING_UP if behind else State.FETCHING
        if state is not self.state:
            self._move(state)

    def heard(self, now_ms: int) -> None:
        """The leader has answered, and what it sent is in the log.

        A leader that is written to is always a little ahead. So what counts is when it had what is
        here now, not whether it has more by now.
        """
        if self.leader_high_watermark < 0:
            return
        if self.end_offset >= self.leader_high_watermark:
            self.caught_up_ms = now_ms
            self.awaited_high_watermark = UNDEFINED
        elif self.awaited_high_watermark < 0:
            self._await(now_ms)
        elif self.end_offset >= self.awaited_high_watermark:
            self.caught_up_ms = self.awaited_since_ms
            self._await(now_ms)

    def _await(self, now_ms: int) -> None:
        self.awaited_high_watermark, self.awaited_since_ms = self.leader_high_watermark, now_ms

    def start_after(self, told: Told) -> int:
        """Where the own log should begin: where the leader's does, and never past what is known to
        be committed."""
        return max(self.start_offset, min(told.start_offset, self.high_watermark))

    # ---- truncation ----

    def on_bounds(self, bounds: Bounds) -> Step:
        """The leader's log does not have the own end, and this is what it has."""
        if self.state is not State.TRUNCATING:
            return WAIT
        self.begins_within = UNDEFINED
        if bounds.end_offset < self.end_offset:
            lost = max(self.high_watermark - bounds.end_offset, 0)
            return Truncate(bounds.end_offset, lost)
        if bounds.start_offset > self.end_offset:
            return StartAnew(bounds.start_offset, 0)
        self._move(State.CATCHING_UP)
        return WAIT

    def on_earlier(self, base_offset: int, last_offset: int) -> StartAnew | None:
        """The batch that came begins before the own end, so it was not appended.

        DeleteRecords leaves a log that begins within a batch. Who has nothing begins there, is sent
        that batch whole, and so begins anew where the batch does. It still asks for what it asked
        for: the leader has nothing to give below.
        """
        empty = self.fetches and self.start_offset == self.end_offset
        if not empty or not base_offset < self.end_offset <= last_offset:
            return None
        self._move(State.TRUNCATING)
        self.begins_within = self.end_offset
        return StartAnew(base_offset, 0)

    def no_bounds(self, error: ErrorCode) -> None:
        """The leader did not say; it is asked for records again, after a pause."""
        if self.state is State.TRUNCATING:
            self.failures += 1
            self.why = error
            self._move(State.CATCHING_UP)

    def truncated(self, start_offset: int, end_offset: int, last_epoch: int) -> None:
        """The truncation is on the device."""
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.first_end = min(self.first_end, end_offset)
        self.last_epoch = last_epoch
        self.high_watermark = min(self.high_watermark, end_offset)
        if self.state is State.TRUNCATING:
            self._move(State.CATCHING_UP)

    def well(self) -> None:
        """What the leader told was carried out: the next refusal is the first again."""
        self.failures = 0
        self.why = ErrorCode.NONE

    def corrupt(self) -> None:
        """What came was damaged on its way: it is asked for again, after a pause."""
        self.failures += 1
        self.why = ErrorCode.CORRUPT_MESSAGE

    def failed(self) -> None:
        """The own log takes nothing more."""
        self._move(State.FAILED)


# ---- all that is followed from one leader ----


class Key(NamedTuple):
    topic_id: bytes
    partition: int


class Ask(NamedTuple):
    """What a fetch says of one partition."""

    offset: int
    last_epoch: int
    start_offset: int
    leader_epoch: int


class Question(NamedTuple):
    """One Fetch: in a session all of what is followed, named or not."""

    number: int
    """Questions of a plan are counted: an answer is to what was asked up to then."""
    session_id: int
    session_epoch: int
    asks: dict[Key, Ask]
    forgotten: list[Key]


@dataclass(slots=True, eq=False)
class FetcherPlan:
    """What to ask one leader for, and when.

    The leader keeps a question until there is news. A second one may follow it while it waits: it
    has the first answered at once, so that a partition that is new here need not wait. The answer
    to the first then may hold what the second asks for as well; whoever comes late is ignored.
    """

    longest_pause_ms: int = 1_000
    """`replica.fetch.backoff.ms`: pauses double up to it."""
    followed: dict[Key, FollowerState] = field(default_factory=dict)
    session_id: int = NO_SESSION
    session_epoch: int = INITIAL_EPOCH
    _in_session: dict[Key, tuple[Ask, int]] = field(default_factory=dict)
    """What the leader was told last of each partition that it counts to the session, and by which
    question."""
    _questions: int = 0
    _changed: dict[Key, None] = field(default_factory=dict)
    _pauses: list[tuple[int, int, Key, FollowerState]] = field(default_factory=list)
    _paused: dict[Key, FollowerState] = field(default_factory=dict)
    _held: dict[Key, None] = field(default_factory=dict)
    """What a throttle keeps from being asked for."""
    _turn: int = 0

    # ---- what is followed ----

    def follow(self, key: Key, state: FollowerState) -> None:
        self.followed[key] = state
        self._paused.pop(key, None)
        self._changed[key] = None

    def drop(self, key: Key) -> None:
        if self.followed.pop(key, None) is not None:
            self._paused.pop(key, None)
            self._held.pop(key, None)
            self._changed[key] = None

    def changed(self, key: Key) -> None:
        """The state of a partition may ask for something else now."""
        self._changed[key] = None

    def pause(self, key: Key, state: FollowerState, now_ms: int) -> int:
        """Leaves a partition out after a refusal; for how long."""
        pause_ms = pause_after(state.failures, self.longest_pause_ms)
        self._turn += 1
        self._paused[key] = state
        heappush(self._pauses, (now_ms + pause_ms, self._turn, key, state))
        self._changed[key] = None
        return pause_ms

    @property
    def has_pauses(self) -> bool:
        """Whether some partition is left out for a while."""
        return bool(self._paused)

    def asks_for(self, key: Key) -> bool:
        """Whether the leader counts the partition to the session, and would tell of it."""
        return key in self._in_session and key not in self._paused and key not in self._held

    def hold(self, key: Key) -> None:
        """Leaves a partition out until `release`."""
        self._held[key] = None
        self._changed[key] = None

    def release(self) -> None:
        self._changed.update(self._held)
        self._held.clear()

    def next_end_of_pause(self) -> int | None:
        """When the next pause is over, if there is one."""
        while self._pauses and self._paused.get(self._pauses[0][2]) is not self._pauses[0][3]:
            heappop(self._pauses)
        return self._pauses[0][0] if self._pauses else None

    def end_pauses(self, now_ms: int) -> None:
        """Has partitions asked for again whose pause is over."""
        while (due := self.next_end_of_pause()) is not None and due <= now_ms:
            _, _, key, _ = heappop(self._pauses)
            del self._paused[key]
            self._changed[key] = None

    # ---- questions ----

    def question(self, now_ms: int) -> Question | None:
        """The next fetch; None as long as there is nobody to fetch."""
        if self._pauses:
            self.end_pauses(now_ms)
        if self.session_epoch == INITIAL_EPOCH:
            return self._first_question()
        asks: dict[Key, Ask] = {}
        forgotten: list[Key] = []
        self._questions += 1
        for key in self._changed:
            ask, known = self._ask(key), self._in_session.get(key)
            if ask is None:
                if known is not None:
                    forgotten.append(key)
                    del self._in_session[key]
            elif known is None or ask != known[0]:
                asks[key] = ask
                self._in_session[key] = (ask, self._questions)
        self._changed.clear()
        if not self._in_session:
            # A session without partitions is none: the next question opens another.
            self.lost()
            return None
        epoch = self.session_epoch
        self.session_epoch = 1 if epoch == LAST_EPOCH else epoch + 1
        return Question(self._questions, self.session_id, epoch, asks, forgotten)

    @property
    def in_session(self) -> bool:
        """Whether a question may follow another: the leader has said which session it is."""
        return self.session_epoch != INITIAL_EPOCH

    @property
    def has_news(self) -> bool:
        """Whether the leader should be asked for something else than it was."""
        return any(self._ask(key) != self._told_of(key) for key in self._changed)

    def _told_of(self, key: Key) -> Ask | None:
        """What the leader believes that is asked of a partition."""
        known = self._in_session.get(key)
        return known[0] if known is not None else None

    def _first_question(self) -> Question | None:
        asks = {key: ask for key in self.followed if (ask := self._ask(key)) is not None}
        self._changed.clear()
        self._questions += 1
        self._in_session = {key: (ask, self._questions) for key, ask in asks.items()}
        if not asks:
            return None
        return Question(self._questions, self.session_id, INITIAL_EPOCH, asks, [])

    def _ask(self, key: Key) -> Ask | None:
        state = self.followed.get(key)
        if state is None or not state.fetches or key in self._paused or key in self._held:
            return None
        end, within = state.end_offset, state.begins_within
        offset = end if end > within else within
        return Ask(offset, state.last_epoch, state.start_offset, state.leader_epoch)

    # ---- answers ----

    def answered(self, question: Question, session_id: int) -> None:
        """The question was answered, and this is the session that the leader has."""
        if question.session_epoch == INITIAL_EPOCH:
            self.session_id = session_id
            self.session_epoch = 1 if session_id != NO_SESSION else INITIAL_EPOCH
        elif session_id != self.session_id:
            self.session_id, self.session_epoch = NO_SESSION, INITIAL_EPOCH

    def refused(self, error: ErrorCode) -> None:
        """The whole question was refused: the next one opens another session."""
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        self.session_epoch = INITIAL_EPOCH

    def lost(self) -> None:
        """Nobody knows whether the question arrived: the session is closed by the next one."""
        self.session_epoch = INITIAL_EPOCH

    def told(self, key: Key, question: Question) -> FollowerState | None:
        """Whom an answer concerns; None if it answers what is no longer asked, or asked since."""
        state, known = self.followed.get(key), self._in_session.get(key)
        if state is None or known is None:
            return None
        ask, number = known
        return state if ask == self._ask(key) and number <= question.number else None


def pause_after(failures: int, longest_ms: int) -> int:
    return min(FIRST_PAUSE_MS << min(max(failures - 1, 0), 20), max(longest_ms, 1))
