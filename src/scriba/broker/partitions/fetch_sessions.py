"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, not in every fetch.

Theory of operation. A session remembers, in the order of the last answers, which partitions a
client reads and what it was told last of each. Every request of a session carries the epoch after
the one before it; a gap means that a request or an answer was lost, and the client is told to
start over. An incremental answer holds only partitions with news: records, an error, or offsets
that moved. A partition that was answered moves to the end, so that a busy one cannot starve the
rest when the size limit cuts the answer short.

The cache has a fixed number of slots. A newcomer takes the place of the session unused for
longest if that was longer than `EVICTION_MS`; otherwise it is served without a session. The same
goes for a session of many partitions while all together watch `MAX_WATCHED`; one that grows beyond
that is forgotten, and its client starts over.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from scriba.errors import ErrorCode, KafkaError
from scriba.outcome import at_once
from scriba.runtime.ports import Rng
from scriba.wire.messages.fetch import FetchPartition, FetchRequest

EVICTION_MS: Final = 120_000
LARGE: Final = 1_000
MAX_WATCHED: Final = 1_000_000
"""Partitions that sessions of more than `LARGE` may bring the cache to: some 300 bytes each."""

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
LAST_EPOCH: Final = 2**31 - 1
NO_TOPIC_ID: Final = bytes(16)

Key = tuple[bytes, str, int]


@dataclass(slots=True, eq=False)
class Watched:
    """One partition of a fetch: what is asked for and, in a session, what was told last."""

    topic_id: bytes
    topic: str
    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1
    told_error: bool = False
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.topic_id, self.topic, self.asked.partition)

    def hears(
        self, high_watermark: int, log_start_offset: int, records: bool, error: bool = False
    ) -> bool:
        """Whether a session's client has to hear of this partition; remembers what it hears."""
        news = (
            records
            or high_watermark != self.high_watermark
            or log_start_offset != self.log_start_offset
            or error
            or self.told_error
        )
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        self.told_error = error
        return news


@dataclass(slots=True)
class Session:
    id: int
    by_id: bool
    """Whether topics are named by id (Fetch 13 and later); a session cannot change sides."""
    watched: dict[Key, Watched]
    epoch: int = 1
    last_used_ms: int = 0

    def answered(self, item: Watched) -> None:
        """Moves a partition behind the others, unless it was forgotten meanwhile."""
        if self.watched.get(item.key) is item:
            del self.watched[item.key]
            self.watched[item.key] = item


@dataclass(slots=True)
class Plan:
    """What one fetch request amounts to: the partitions to read, and the session if any."""

    session: Session | None
    session_id: int
    incremental: bool
    watched: list[Watched] = field(default_factory=list)


class FetchSessions:
    def __init__(self, slots: int, rng: Rng) -> None:
        self._slots = slots
        self._rng = rng
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        return sum(len(s.watched) for s in self._sessions.values())

    def plan(self, request: FetchRequest, by_id: bool, now_ms: int) -> Plan:
        """Works a request into its session; raises the errors that make a client start over."""
        return at_once(self.planning(request, by_id, now_ms))

    def planning(
        self, request: FetchRequest, by_id: bool, now_ms: int
    ) -> Generator[None, None, Plan]:
        """As `plan`, a step for each partition."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            items: dict[Key, Watched] = {}
            for item in self._items(request):
                if item is not None:
                    items[item.key] = item
                yield
            session = None
            if epoch == INITIAL_EPOCH and items:
                session = self._open(items, by_id, now_ms)
            session_id = session.id if session else 0
            return Plan(session, session_id, incremental=False, watched=list(items.values()))
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        # First, so that nobody else can go on with it while partitions are added in slices.
        self._used(session, now_ms)
        yield from self._update(session, request)
        if request.topics and self._is_full(len(session.watched), 0):
            self._sessions.pop(session.id, None)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.watched:
            self._sessions.pop(session.id, None)
            return Plan(None, 0, incremental=True)
        return Plan(session, session.id, incremental=True, watched=list(session.watched.values()))

    def at_epoch(self, session_id: int, epoch: int, by_id: bool) -> Session | None:
        """The session, if this epoch is its next and topics are named as they were."""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or session.by_id != by_id:
            return None
        return session

    def follow(
        self, session: Session, added: dict[Key, Watched], forgotten: Iterable[Key], now_ms: int
    ) -> None:
        """Works a request into a session of less than `LARGE`, as `plan` would."""
        self._used(session, now_ms)
        session.watched.update(added)
        for key in forgotten:
            session.watched.pop(key, None)

    def _used(self, session: Session, now_ms: int) -> None:
        session.epoch = _after(session.epoch)
        session.last_used_ms = now_ms
        # In the order of use, so that the first one is the one to evict.
        self._sessions[session.id] = self._sessions.pop(session.id)

    @staticmethod
    def _items(request: FetchRequest) -> Iterator[Watched | None]:
        """What is asked for; None for the step from one topic to the next."""
        for topic in request.topics:
            yield None
            for partition in topic.partitions:
                yield Watched(topic.topic_id, topic.topic, partition)

    def _update(self, session: Session, request: FetchRequest) -> Generator[None, None, None]:
        for item in self._items(request):
            yield
            if item is None:
                continue
            known = session.watched.get(item.key)
            if known is None:
                session.watched[item.key] = item
            else:
                known.asked = item.asked
        for topic in request.forgotten_topics_data:
            yield
            for index in topic.partitions:
                session.watched.pop((topic.topic_id, topic.topic, index), None)

    def _is_full(self, own: int, more: int) -> bool:
        """Whether a session of `own` partitions, of which `more` are new here, is too much."""
        return own > LARGE and self.partitions + more > MAX_WATCHED

    def _open(self, items: dict[Key, Watched], by_id: bool, now_ms: int) -> Session | None:
        if self._is_full(len(items), len(items)):
            return None
        if len(self._sessions) >= self._slots and not self._evict(now_ms):
            return None
        new_id = 0
        while new_id == 0 or new_id in self._sessions:
            new_id = 1 + self._rng.below(2**31 - 1)
        session = Session(new_id, by_id, items, last_used_ms=now_ms)
        self._sessions[new_id] = session
        return session

    def _evict(self, now_ms: int) -> bool:
        for oldest in self._sessions.values():
            if now_ms - oldest.last_used_ms <= EVICTION_MS:
                return False
            del self._sessions[oldest.id]
            return True
        return False


def _after(epoch: int) -> int:
    return 1 if epoch == LAST_EPOCH else epoch + 1
