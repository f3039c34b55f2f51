"""A follower's Fetch by the fast path cannot be told from one by its handler.

A follower that is made up asks a leader for what a seed draws: usual fetches, two at a time, and
odd ones between them, while records come and leaders change. The same seed is played with fast
paths and without: every byte that it is told, when it is told, and what the leader knows of it must
be equal. Broken variants of the fast path have to show.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.fastpath import replicas
from scriba.broker.fastpath.replicas import ReplicaFetchFastPath, WaitingReplicaFetch
from scriba.broker.handlers.records import replica_fetch
from scriba.broker.handlers.records.replica_fetch import Look
from scriba.broker.partitions.partition import Partition
from scriba.broker.partitions.replication.follower_sessions import FollowerSessions
from scriba.broker.partitions.replication.session_requests import MARK, SessionRequests
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.replication.follower import Ask, Key
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.peer import Wire
from scriba.testing.sim.world.world import SimWorld
from scriba.wire.frame import decode_response, encode_request
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from tests.unit.broker.brokers import PORT, Brokers, play

LEADER, FOLLOWER, VERSION = 2, 3, 17
KEYS = [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
STEPS = 150
SEEDS = 6

Told = list[tuple[float, bytes]]


class MadeUpFollower:
    def __init__(self, brokers: Brokers, seed: int) -> None:
        self.brokers = brokers
        self.draw = random.Random(seed)
        self.told: Told = []
        self.session_id = self.session_epoch = 0
        self.asked = dict.fromkeys(KEYS, 0)
        self.sent = 0
        self.news = asyncio.Event()

    async def connect(self) -> None:
        stream = await self.brokers.client.net.connect(f"b{LEADER}", PORT)
        self.wire = Wire(stream)
        self.wire.on_frame = self._heard

    def _heard(self, frame: bytes) -> None:
        self.told.append((asyncio.get_running_loop().time(), frame))
        self.news.set()

    def partition(self, key: tuple[str, int]) -> Partition:
        return self.brokers.partition(LEADER, *key)

    def named(self, key: tuple[str, int]) -> FetchPartition:
        """Most often what a follower would ask for that has taken all that it was told of."""
        partition, draw = self.partition(key), self.draw
        offset = draw.choice((self.asked[key], partition.log.end_offset))
        epoch, last = partition.leader_epoch, partition.log.epochs.latest
        if draw.random() < 0.08:
            offset += draw.choice((1, 1000, -1, -1000))
        if draw.random() < 0.08:
            epoch += draw.choice((1, -1))
        if draw.random() < 0.08:
            last += draw.choice((1, -1))
        self.asked[key] = max(offset, 0)
        return FetchPartition(
            partition=key[1],
            current_leader_epoch=epoch,
            fetch_offset=self.asked[key],
            last_fetched_epoch=last if self.asked[key] else -1,
            log_start_offset=0,
            partition_max_bytes=draw.choice((1 << 20, 1 << 20, 100)),
        )

    def request(self, keys: list[tuple[str, int]]) -> FetchRequest:
        image = self.brokers.nodes[LEADER].image
        topics: dict[str, FetchTopic] = {}
        for key in keys:
            topic_id = image.topics_by_name[key[0]].id
            topic = topics.setdefault(key[0], FetchTopic(topic_id=topic_id))
            topic.partitions.append(self.named(key))
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=FOLLOWER, replica_epoch=self.brokers.nodes[FOLLOWER].broker_epoch
            ),
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=10 << 20,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=list(topics.values()),
        )

    async def ask(self, request: FetchRequest, version: int = VERSION) -> None:
        """Sends a request when fewer than two are under way."""
        while self.sent - len(self.told) >= 2 and not self.wire.closed:
            self.news.clear()
            await self.news.wait()
        self.sent += 1
        self.wire.send(encode_request(request, version, self.sent, "broker-3"))

    async def begin(self) -> None:
        """Opens a session with all partitions."""
        self.session_id = self.session_epoch = 0
        await self.ask(self.request(KEYS))
        while len(self.told) < self.sent:
            self.news.clear()
            await self.news.wait()
        _, response = decode_response(FetchResponse, self.told[-1][1], VERSION)
        self.session_id, self.session_epoch = response.session_id, 1

    async def fetch(self) -> None:
        count = self.draw.choice((0, 1, 1, 1, 2, 4))
        await self.ask(self.request(self.draw.sample(KEYS, count)))
        self.session_epoch += 1

    async def odd(self) -> None:
        """Something that a fast path has to leave to its handler, or that ends the session."""
        request = self.request(self.draw.sample(KEYS, 2))
        version, kind = VERSION, self.draw.randrange(8)
        if kind == 0:
            request.session_epoch += self.draw.choice((1, -1, 7))
        elif kind == 1:
            request.session_id += 1
        elif kind == 2:
            gone = self.draw.choice(KEYS)
            topic_id = self.brokers.nodes[LEADER].image.topics_by_name[gone[0]].id
            request.topics = []
            request.forgotten_topics_data = [
                ForgottenTopic(topic_id=topic_id, partitions=[gone[1]])
            ]
        elif kind == 3:
            request.topics[0].partitions[0].partition = 77
        elif kind == 4:
            request.topics[0].partitions[0].replica_directory_id = bytes(range(16))
        elif kind == 5:
            request.max_wait_ms = self.draw.choice((0, 50))
        elif kind == 6:
            request.replica_state.replica_epoch += self.draw.choice((1, -1))
        else:
            version = 16
        await self.ask(request, version)
        self.session_epoch += 1
        if kind in (0, 1, 6):
            await self.begin()

    async def produce(self) -> None:
        key = self.draw.choice(KEYS)
        values = [b"x" * self.draw.choice((10, 300))] * self.draw.choice((1, 3))
        await self.brokers.produce(LEADER, key[0], *values, acks=1, index=key[1])

    async def elect(self) -> None:
        """Another epoch of the same leader."""
        topic, index = self.draw.choice(KEYS)
        await self.brokers.elect(topic, FOLLOWER, index)
        await self.brokers.until(lambda: self.brokers.leads(FOLLOWER, topic, index))
        await self.brokers.elect(topic, LEADER, index)
        await self.brokers.until(lambda: self.brokers.leads(LEADER, topic, index))

    async def play(self) -> list[Any]:
        await self.connect()
        await self.begin()
        for _ in range(STEPS):
            step = self.draw.random()
            if step < 0.55:
                await self.fetch()
            elif step < 0.85:
                await self.produce()
            elif step < 0.93:
                await self.odd()
            elif step < 0.95:
                await self.elect()
            else:
                await asyncio.sleep(self.draw.random())
        await asyncio.sleep(2)
        known: list[Any] = [*self.told]
        for key in KEYS:
            partition = self.partition(key)
            assert partition.leader is not None
            follower = partition.leader.followers[FOLLOWER]
            times = (follower.caught_up_ms, follower.last_fetch_ms, follower.heard.ms)
            ends = (follower.end_offset, follower.start_offset, partition.high_watermark.value)
            known.append((key, times, ends))
        return known


def played(seed: int, fast_paths: bool) -> list[Any]:
    sim = SimWorld(seed=seed, net_faults=NetFaults(steady=True, window=1 << 20))
    settings = {"scriba.fast.paths": str(fast_paths).lower(), "broker.session.timeout.ms": "9000"}
    brokers = Brokers(sim, 3, settings)
    found: list[Any] = []

    async def main() -> None:
        await brokers.start()
        await brokers.create("a", *[(LEADER, FOLLOWER)] * 3)
        await brokers.create("b", (LEADER, FOLLOWER))
        for key in KEYS:
            await brokers.until(lambda key=key: brokers.leads(LEADER, *key))  # type: ignore[misc]
        found.extend(await MadeUpFollower(brokers, seed).play())

    sim.run(main())
    return found


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many of the made-up follower's fetches took the fast path, and how many it left."""
    counts = {"taken": 0, "left": 0}
    take: Callable[..., Any] = ReplicaFetchFastPath.take

    def counting(path: Any, connection: Any, frame: memoryview) -> Any:
        answer = take(path, connection, frame)
        if connection.peer == "client":
            counts["left" if answer is None else "taken"] += 1
        return answer

    monkeypatch.setattr(ReplicaFetchFastPath, "take", counting)
    return counts


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_follower_is_told_the_same_by_the_fast_path(seed: int, hits: dict[str, int]) -> None:
    fast = played(seed, fast_paths=True)
    taken = dict(hits)
    general = played(seed, fast_paths=False)
    for number, (one, other) in enumerate(zip(fast, general, strict=True)):
        assert one == other, number
    assert taken["taken"] > STEPS // 4, taken
    assert taken["left"] > 0, taken
    assert hits == taken, "none is taken where fast paths are off"


# ---- broken variants ----


def overlooks_the_session_epoch(patch: pytest.MonkeyPatch) -> None:
    def any_epoch(sessions: Any, replica: int, broker_epoch: int, id: int, epoch: int) -> Any:
        return sessions._sessions.get(id)

    patch.setattr(FollowerSessions, "at_epoch", any_epoch)


def overlooks_partitions_that_it_does_not_know(patch: pytest.MonkeyPatch) -> None:
    def named(session: Any, topics: Any) -> Any:
        each = [(session.followed.get((id, one[0])), one) for id, them in topics for one in them]
        return [(followed, one) for followed, one in each if followed is not None]

    patch.setattr(replicas, "_named", named)


def overlooks_news_while_it_waits(patch: pytest.MonkeyPatch) -> None:
    def asleep(fetch: Any) -> None:
        if asyncio.get_running_loop().time() >= fetch.due:
            wake(fetch)

    wake = WaitingReplicaFetch.wake
    patch.setattr(WaitingReplicaFetch, "wake", asleep)


def overlooks_what_is_told_without_records(patch: pytest.MonkeyPatch) -> None:
    tell = ReplicaFetchFastPath._written

    def written(path: Any, topics: Any, correlation_id: int) -> Any:
        with_records = {
            id: [each for each in them if each[1] is not None] for id, them in topics.items()
        }
        return tell(path, {id: them for id, them in with_records.items() if them}, correlation_id)

    patch.setattr(ReplicaFetchFastPath, "_written", written)


def never_counts(patch: pytest.MonkeyPatch) -> None:
    def look(session: Any, request: Any, budget: int, counted: bool) -> Look:
        return Look(session, request, budget, False)

    patch.setattr(replicas, "Look", look)


@pytest.mark.parametrize(
    "break_it",
    [
        overlooks_the_session_epoch,
        overlooks_partitions_that_it_does_not_know,
        overlooks_news_while_it_waits,
        overlooks_what_is_told_without_records,
        never_counts,
    ],
)
def test_the_play_finds_a_broken_fast_path(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert any(played(seed, True) != played(seed, False) for seed in range(SEEDS))


@pytest.mark.parametrize("fast_paths", [True, False])
@pytest.mark.parametrize("step", ["_count", "_read", "to_tell_of"])
def test_a_fetch_that_fails_for_a_reason_nobody_expected_is_answered(
    step: str, fast_paths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it arrives, while it waits, and when it ends; else its follower waits for half a minute,
    and whoever produces with it."""
    usual = getattr(replica_fetch, step)
    left = 0

    def breaks(*given: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise ZeroDivisionError("a bug")
        return usual(*given)

    async def script(brokers: Brokers) -> None:
        nonlocal left
        await brokers.create("a", (LEADER, FOLLOWER))
        await brokers.until(lambda: brokers.leads(LEADER, "a"))
        for _ in range(5):
            assert await brokers.produce(LEADER, "a", b"x") is ErrorCode.NONE
        monkeypatch.setattr(replica_fetch, step, breaks)
        left = 1
        node = brokers.nodes[LEADER]
        async with asyncio.timeout(node.settings.replica_socket_timeout_ms / 1000 / 3):
            assert await brokers.produce(LEADER, "a", b"y") is ErrorCode.NONE
        assert not left
        assert node.events.counts[EventKind.REQUEST_FAILED] == 1

    play(script, scriba_fast_paths=str(fast_paths).lower())


# ---- the follower's side ----


@pytest.mark.parametrize("version", [15, 16, 17])
def test_a_packed_request_is_the_whole_request_as_it_is_encoded(version: int) -> None:
    draw = random.Random(version)
    ids = [draw.randbytes(16) for _ in range(3)]

    def request(epoch: int, topics: list[FetchTopic]) -> FetchRequest:
        return FetchRequest(
            replica_state=ReplicaState(replica_id=3, replica_epoch=1 << 40),
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=10 << 20,
            session_id=0x12345678,
            session_epoch=epoch,
            topics=topics,
        )

    packs = SessionRequests(request(MARK, []), version, 1 << 20)
    for count in (0, 1, 2, 40, 400):
        asks = {
            Key(draw.choice(ids), index): Ask(
                *(draw.randrange(1 << 40), draw.randrange(9), draw.randrange(1 << 40)),
                draw.randrange(9),
            )
            for index in range(count)
        }
        topics: dict[bytes, FetchTopic] = {}
        for (topic_id, index), ask in asks.items():
            topic = topics.setdefault(topic_id, FetchTopic(topic_id=topic_id))
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=ask.leader_epoch,
                    fetch_offset=ask.offset,
                    last_fetched_epoch=ask.last_epoch,
                    log_start_offset=ask.start_offset,
                    partition_max_bytes=1 << 20,
                )
            )
        whole = request(count + 1, list(topics.values())).encode(version)
        assert packs.packed(count + 1, asks).body == whole
