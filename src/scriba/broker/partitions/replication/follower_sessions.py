"""Fetch sessions of followers: what each of them reads from this leader, and what is new of it.

A follower's session is unlike a consumer's (`fetch_sessions`) in two ways. It is never evicted: a
follower without one would name thousands of partitions in each fetch. And it costs by its news:
each of its partitions is a `Followed`, which the partition itself tells of what happens to it
(`news`), so that a fetch looks at those alone which were told of or are named in the request. All
others stand as they were; their follower has everything, which its shared `Heard` says.

What is told of with `wake` ends the wait of a fetch in the same turn of the loop. A high watermark
that moved wakes nobody: it goes with the partition's next records. Where none come it is told with
others, those of `MOVED_MS` in one answer, or when a fetch has waited in vain. Where consumers read
from followers (`prompt`) it does not wait, or they would see the last record up to half a second
late.

A follower has as many sessions as it has fetchers, and only brokers of the cluster have any. Those
of an earlier incarnation go when a later one comes that the metadata tells of; beyond
`MOST_SESSIONS` the one unused for longest goes, which only a defect can bring about.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from scriba.errors import ErrorCode, KafkaError
from scriba.replication.leader import Heard

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.replication.leader import LeaderState
    from scriba.runtime.ports import Rng
    from scriba.wire.messages.fetch import FetchPartition

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
LAST_EPOCH: Final = 2**31 - 1
MOST_SESSIONS: Final = 64
"""Of one follower: Kafka's brokers have `num.replica.fetchers` of them."""
MOVED_MS: Final = 50
"""How often high watermarks are told by themselves, at the most. Each costs as much as a partition
with records does, on both sides, and most go with the next records before."""

Key = tuple[bytes, int]


class Waiter(Protocol):
    def wake(self) -> None:
        """There is news: looks at it in a turn of the loop of its own."""


class Followed:
    """One partition in a follower's session."""

    __slots__ = (
        "asked",
        "due",
        "high_watermark",
        "index",
        "leader",
        "partition",
        "session",
        "start_offset",
        "told_error",
        "topic_id",
    )

    def __init__(self, session: FollowerSession, topic_id: bytes, asked: FetchPartition) -> None:
        self.session = session
        self.topic_id = topic_id
        self.index = asked.partition
        self.asked = asked
        self.partition: Partition | None = None
        self.leader: LeaderState | None = None
        """The leadership that has counted it: another one begins to count anew."""
        self.high_watermark = -1
        self.start_offset = -1
        self.told_error = False
        self.due = True
        """Whether its high watermark is told without records as well."""

    def news(self, wake: bool) -> None:
        session = self.session
        if wake or session.prompt:
            session.news[self] = None
            self.due = True
            session.missed = True
            session.wake()
        else:
            session.moved[self] = None

    def attach(self, partition: Partition) -> None:
        """Hears of this partition from now on."""
        if self.partition is not partition:
            self.detach()
            self.partition = partition
            self.due = True
            partition.feeds.append(self)

    def detach(self) -> None:
        partition, self.partition = self.partition, None
        if partition is not None and self in partition.feeds:
            partition.feeds.remove(self)
        self._stop_counting()

    def _stop_counting(self) -> None:
        """What the follower fetches elsewhere says nothing of this partition any more."""
        leader, self.leader = self.leader, None
        if leader is not None:
            follower = leader.followers.get(self.session.replica)
            if follower is not None and follower.heard is self.session.heard:
                follower.heard = Heard(follower.heard.ms)


class FollowerSession:
    __slots__ = (
        "anew",
        "broker_epoch",
        "counted",
        "epoch",
        "followed",
        "heard",
        "id",
        "last_used_ms",
        "missed",
        "moved",
        "moved_due_ms",
        "news",
        "prompt",
        "replica",
        "waiter",
    )

    def __init__(
        self, session_id: int, replica: int, broker_epoch: int, prompt: bool = False
    ) -> None:
        self.id = session_id
        self.prompt = prompt
        """Whether a high watermark that moved ends a wait."""
        self.replica = replica
        self.broker_epoch = broker_epoch
        self.epoch = 1
        """Of the next request."""
        self.last_used_ms = 0
        self.counted = False
        """Whether its fetches count, as far as the metadata was known when it last fetched."""
        self.anew = False
        """Whether the next fetch looks at everything, as if all of it were named."""
        self.heard = Heard()
        self.followed: dict[Key, Followed] = {}
        self.news: dict[Followed, None] = {}
        """What the next fetch has to look at, in the order in which it happened."""
        self.moved: dict[Followed, None] = {}
        """Those whose high watermark moved since they were last among the news."""
        self.moved_due_ms = 0
        """When they are again."""
        self.waiter: Waiter | None = None
        """A fetch that waits."""
        self.missed = False
        """Whether something that ends a wait has come since a fetch last looked: one that is about
        to wait then looks again."""

    def name(self, topic_id: bytes, asked: FetchPartition) -> Followed:
        """The request names a partition, which may be new here."""
        key = (topic_id, asked.partition)
        followed = self.followed.get(key)
        if followed is None:
            followed = self.followed[key] = Followed(self, topic_id, asked)
        else:
            followed.asked = asked
        return followed

    def forget(self, topic_id: bytes, index: int) -> None:
        followed = self.followed.pop((topic_id, index), None)
        if followed is not None:
            self.news.pop(followed, None)
            self.moved.pop(followed, None)
            followed.detach()

    def look_again(self) -> None:
        """Has the fetch that arrives look at everything, as if all of it were named."""
        self.anew = False
        self.news.update(dict.fromkeys(self.followed.values()))

    def tell_moved(self, now_ms: int) -> None:
        """Has high watermarks told that did not go with records since they moved."""
        self.moved_due_ms = now_ms + MOVED_MS
        for followed in self.moved:
            partition = followed.partition
            if partition is None or partition.high_watermark.value != followed.high_watermark:
                self.news[followed] = None
                followed.due = True
        self.moved.clear()

    def wake(self) -> None:
        """Has a fetch that waits answered now."""
        if self.waiter is not None:
            self.waiter.wake()

    def end(self) -> None:
        self.wake()
        for followed in self.followed.values():
            followed.detach()
        self.followed.clear()
        self.news.clear()
        self.moved.clear()


class FollowerSessions:
    def __init__(self, rng: Rng, prompt: bool = False) -> None:
        self._rng = rng
        self._prompt = prompt
        self._sessions: dict[int, FollowerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FollowerSession]:
        return iter(tuple(self._sessions.values()))

    def of(self, replica: int) -> list[FollowerSession]:
        return [each for each in self._sessions.values() if each.replica == replica]

    def end_older(self, replica: int, known_epoch: int) -> None:
        """Ends those of incarnations before the one that the metadata tells of. What a request
        says of itself ends nothing: it could be of any epoch."""
        self._end([each for each in self.of(replica) if each.broker_epoch < known_epoch])

    def unkept(self, replica: int, broker_epoch: int) -> FollowerSession:
        """A session that ends with its first answer."""
        return FollowerSession(0, replica, broker_epoch)

    def begin(
        self, replica: int, broker_epoch: int, session_id: int, wanted: bool, now_ms: int
    ) -> FollowerSession:
        """A session for a request that names all it wants; kept if another is to follow."""
        known = self._sessions.get(session_id)
        if known is not None and (known.replica, known.broker_epoch) == (replica, broker_epoch):
            self._end([known])
        if not wanted:
            return self.unkept(replica, broker_epoch)
        others = sorted(self.of(replica), key=lambda each: each.last_used_ms)
        self._end(others[: max(len(others) + 1 - MOST_SESSIONS, 0)])
        new_id = 0
        while new_id == 0 or new_id in self._sessions:
            new_id = 1 + self._rng.below(2**31 - 1)
        session = FollowerSession(new_id, replica, broker_epoch, self._prompt)
        self._sessions[new_id] = session
        session.last_used_ms = now_ms
        return session

    def go_on(
        self, replica: int, broker_epoch: int, session_id: int, epoch: int, now_ms: int
    ) -> FollowerSession:
        """The session of a request that goes on with one; KafkaError has it begin anew."""
        session = self._sessions.get(session_id)
        if session is None or session.replica != replica or session.broker_epoch != broker_epoch:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self.follow(session, now_ms)
        return session

    def at_epoch(
        self, replica: int, broker_epoch: int, session_id: int, epoch: int
    ) -> FollowerSession | None:
        """The session that such a request would go on with; None where `go_on` would refuse it."""
        session = self._sessions.get(session_id)
        if (
            session is None
            or session.replica != replica
            or session.broker_epoch != broker_epoch
            or session.epoch != epoch
        ):
            return None
        return session

    def follow(self, session: FollowerSession, now_ms: int) -> None:
        """The next request of a session has come."""
        session.epoch = 1 if session.epoch == LAST_EPOCH else session.epoch + 1
        session.last_used_ms = now_ms
        if now_ms >= session.moved_due_ms:
            session.tell_moved(now_ms)
        if session.waiter is not None:
            session.waiter.wake()  # an earlier request holds back the answer to this one

    def _end(self, sessions: Iterable[FollowerSession]) -> None:
        for session in sessions:
            if self._sessions.pop(session.id, None) is not None:
                session.end()

    def keep_brokers(self, registered: Container[int]) -> None:
        """Ends the sessions of brokers that have left the cluster."""
        self._end([each for each in self._sessions.values() if each.replica not in registered])

    def look_again(self, replica: int) -> None:
        """The broker may join in-sync sets again: what it has is looked at with its next fetch.

        Not by one that waits: that has been counted, and would take the news for nothing.
        """
        for session in self.of(replica):
            session.anew = True

    def close(self) -> None:
        self._end(list(self._sessions.values()))
