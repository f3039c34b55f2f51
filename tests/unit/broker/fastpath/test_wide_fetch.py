"""The fast path of a Fetch over several partitions: it answers as the handler does, byte by byte.

Two connections say the same, one of them while fast paths are off, to the same node or, where a
request changes what the next one finds, in sessions of their own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch
from scriba.runtime.ports import Stream
from scriba.runtime.watermark import Watermark
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import admin, fetch, metadata, produce, txn
from tests.unit.broker.repeating import Nobody, until

InANode = Callable[..., None]
VERSIONS = range(4, 19)
TOPICS = {"a": 4, "b": 2}
ADDRESS = ("127.0.0.1", 9092)

TopicPartition = tuple[str, int]
Offsets = Mapping[TopicPartition, int]

EVERYWHERE: Offsets = {(topic, index): 0 for topic, n in TOPICS.items() for index in range(n)}


class Log:
    """Two topics, written by one client and read by others."""

    def __init__(self, node: Node, world: ProcessWorld) -> None:
        self.node = node
        self.world = world

    async def open(self) -> "Log":
        self.peer = await Peer.connect(self.world.net, *ADDRESS)
        new = [
            admin.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            for name, count in TOPICS.items()
        ]
        made = await self.peer.call(
            admin.CreateTopicsRequest(topics=new), 7, admin.CreateTopicsResponse
        )
        self.ids = {topic.name: topic.topic_id for topic in made.topics}
        return self

    async def write(self, topic: str, index: int, size: int = 100, **how: Any) -> None:
        """A batch of two records."""
        now = self.world.clock.wall_ms()
        records = [Record(at, now, b"k", b"v" * size, ()) for at in range(2)]
        data = produce.PartitionProduceData(
            index=index, records=bytes(encode_batch(records, **how))
        )
        request = produce.ProduceRequest(
            transactional_id="shop" if how else None,
            acks=-1,
            timeout_ms=1000,
            topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
        )
        answer = await self.peer.call(request, 12, produce.ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0

    async def filled(self) -> "Log":
        """Of different sizes, one of them too large to be copied; nothing in the last partition."""
        await self.open()
        for index, size in enumerate((10, 300, 40_000)):
            for _ in range(3):
                await self.write("a", index, size)
        await self.write("b", 0, 50)
        return self

    def named(self, topic: str, version: int) -> dict[str, Any]:
        return {"topic_id": self.ids[topic]} if version >= 13 else {"topic": topic}

    def request(self, asked: Offsets, version: int, **how: Any) -> fetch.FetchRequest:
        limits: dict[str, Any] = {"partition_max_bytes": 1 << 20}
        limits |= {n: how.pop(n) for n in tuple(how) if hasattr(fetch.FetchPartition(), n)}
        topics: list[fetch.FetchTopic] = []
        last = ""
        for (name, index), offset in asked.items():
            if name != last:
                topics.append(fetch.FetchTopic(**self.named(name, version)))
                last = name
            topics[-1].partitions.append(
                fetch.FetchPartition(partition=index, fetch_offset=offset, **limits)
            )
        how = {"max_bytes": 1 << 20, "min_bytes": 1, **how}
        return fetch.FetchRequest(topics=topics, **how)


class Recorded(Peer):
    """Keeps the frames it gets."""

    def __init__(self, stream: Stream, client_id: str = "me") -> None:
        super().__init__(stream, client_id)
        self.frames: list[bytes] = []

    def _take(self, frame: bytes) -> None:
        self.frames.append(frame)
        super()._take(frame)


@dataclass
class Consumer:
    """A connection whose requests all take the fast path where they can, or none of them."""

    log: Log
    version: int
    fast: bool
    session_id: int = 0
    epoch: int = -1
    """Of its session; -1 without one."""
    hits: int = 0

    async def open(self) -> "Consumer":
        self.peer = Recorded(await self.log.world.net.connect(*ADDRESS))
        return self

    async def ask(
        self, asked: Offsets, forgotten: Sequence[TopicPartition] = (), **how: Any
    ) -> fetch.FetchResponse:
        request = self.log.request(asked, self.version, **how)
        request.forgotten_topics_data = [
            fetch.ForgottenTopic(partitions=[index], **self.log.named(name, self.version))
            for name, index in forgotten
        ]
        return await self.send(request)

    async def send(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        node = self.log.node
        request.session_id, request.session_epoch = self.session_id, self.epoch
        node.fast_paths = self.fast
        before = node.counters.fastpath_fetches
        answer = await self.peer.call(request, self.version, fetch.FetchResponse)
        self.hits += node.counters.fastpath_fetches - before
        node.fast_paths = True
        if self.epoch >= 0:
            self.session_id, self.epoch = answer.session_id, self.epoch + 1
        answer.session_id = 0
        return answer


@dataclass
class Both:
    """Two consumers that say the same, one by the fast path and one by the handler."""

    fast: Consumer
    general: Consumer

    @classmethod
    async def open(cls, log: Log, version: int = 17, session: bool = False) -> "Both":
        epoch = 0 if session else -1
        return cls(
            await Consumer(log, version, True, epoch=epoch).open(),
            await Consumer(log, version, False, epoch=epoch).open(),
        )

    async def ask(self, *asked: Any, **how: Any) -> fetch.FetchResponse:
        """What both were told, which was the same."""
        answers = [await each.ask(*asked, **how) for each in (self.fast, self.general)]
        assert answers[0] == answers[1]
        if self.fast.epoch < 0:
            assert self.fast.peer.frames[-1] == self.general.peer.frames[-1], "byte by byte"
        assert not self.general.hits
        return answers[0]

    async def takes(self, *asked: Any, **how: Any) -> bool:
        """Whether the fast path answers, as the handler does."""
        before = self.fast.hits
        await self.ask(*asked, **how)
        return self.fast.hits > before


def told(answer: fetch.FetchResponse) -> list[tuple[int, int]]:
    """Partitions in the order of an answer, with the size of their records."""
    return [
        (part.partition_index, len(bytes(part.records or b"")))  # type: ignore[arg-type]
        for topic in answer.responses
        for part in topic.partitions
    ]


def codes(answer: fetch.FetchResponse) -> list[int]:
    return [part.error_code for topic in answer.responses for part in topic.partitions]


# ---- without a session ----


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_all_partitions_of_several_topics_are_told_as_by_the_handler(
    in_a_node: InANode, version: int, isolation: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        both = await Both.open(await Log(node, world).filled(), version)
        how = {"isolation_level": isolation}
        ends = {("a", 0): 6, ("a", 1): 6, ("a", 2): 6, ("a", 3): 0, ("b", 0): 2, ("b", 1): 0}
        for offset in range(7):
            here = {place: min(offset, end) for place, end in ends.items()}
            assert await both.takes(here, **how)
        for limit in (0, 1, 300, 100_000):
            assert await both.takes(EVERYWHERE, partition_max_bytes=limit, **how)
            assert await both.takes(EVERYWHERE, max_bytes=limit, **how)
        assert await both.takes(dict(reversed([*EVERYWHERE.items()])), **how)
        mixed = {("a", 0): 0, ("b", 0): 0, ("a", 1): 2}
        assert len((await both.ask(mixed, **how)).responses) == 3
        assert both.fast.hits == 7 + 8 + 2

    in_a_node(script)


@pytest.mark.parametrize("isolation", [0, 1])
def test_a_partition_without_news_is_told_anew_after_each_change(
    in_a_node: InANode, isolation: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        both = await Both.open(log)
        ends = {("a", 0): 6, ("a", 1): 6, ("a", 3): 0}
        how: dict[str, Any] = {"isolation_level": isolation, "current_leader_epoch": 0}

        async def ask() -> list[fetch.PartitionData]:
            for _ in range(2):  # the second one finds all as it was
                answer = await both.ask(ends, **how)
            return answer.responses[0].partitions

        await ask()
        await log.write("a", 3)
        ends["a", 3] = 2
        assert (await ask())[2].high_watermark == 2
        node.replicas.find("a", 0).move_start(4)
        assert (await ask())[0].log_start_offset == 4
        partition = node.replicas.find("a", 1)
        partition.stable_offset = Watermark(5)
        assert (await ask())[1].last_stable_offset == 5
        partition.high_watermark = Watermark(5)
        assert (await ask())[1].high_watermark == 5
        assert both.fast.hits == 10
        leader = partition.leader
        assert leader is not None
        partition.leader, partition.leader_epoch = replace(leader, leader_epoch=1), 1
        assert (await ask())[1].error_code == ErrorCode.FENCED_LEADER_EPOCH
        partition.leader = None
        assert (await ask())[1].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.leader, partition.leader_epoch = leader, 0
        assert both.fast.hits == 10
        assert (await ask())[1].error_code == 0

    in_a_node(script)


@pytest.mark.parametrize(
    ("asked", "how", "code"),
    [
        ({("a", 0): 0, ("a", 1): 99}, {}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({("a", 0): 0, ("a", 9): 0}, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({("a", 0): 0}, {"current_leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({("a", 0): 0}, {"partition_max_bytes": -1}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({("a", 0): 0}, {"max_bytes": -1}, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=str,
)
def test_an_error_of_one_partition_is_told_by_the_handler_beside_the_others(
    in_a_node: InANode, asked: dict[TopicPartition, int], how: dict[str, Any], code: ErrorCode
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        both = await Both.open(await Log(node, world).filled())
        answer = await both.ask({("b", 0): 0, **asked}, **how)
        assert code in codes(answer)
        assert not both.fast.hits

    in_a_node(script)


def test_replicas_and_what_is_named_twice_go_to_the_handler(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        for version, how in (
            (12, {"replica_id": 0}),
            (12, {"replica_id": -2}),
            (17, {"replica_state": fetch.ReplicaState(replica_id=0, replica_epoch=1)}),
            (17, {"last_fetched_epoch": 0}),
            (17, {"isolation_level": 2}),
        ):
            both = await Both.open(log, version)
            await both.ask(EVERYWHERE, **how)
            assert not both.fast.hits, how
        both = await Both.open(log)
        for one in (both.fast, both.general):
            request = log.request(EVERYWHERE, 17)
            request.topics += request.topics
            await one.send(request)
        assert both.fast.peer.frames == both.general.peer.frames
        assert not both.fast.hits

    in_a_node(script)


def test_an_answer_beyond_the_shared_buffer_is_whole(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).open()
        places = [("a", index) for index in range(4)]
        for topic, index in places * 12:
            await log.write(topic, index, 14_000)
        both = await Both.open(log)
        monkeypatch = pytest.MonkeyPatch()
        with monkeypatch.context() as patch:
            patch.setattr("scriba.broker.fastpath.records.SHARED_BYTES", 100_000)
            for limit in (30_000, 60_000, 200_000):
                here = dict.fromkeys(places, 0)
                assert await both.takes(here, partition_max_bytes=limit, max_bytes=1 << 22)

    in_a_node(script)


def test_records_that_are_not_in_memory_are_loaded_by_the_handler(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        both = await Both.open(await Log(node, world).filled())
        warm = await both.ask(EVERYWHERE)
        assert isinstance(world.disk, SimDisk)
        world.disk.volume.faults.cold = 1.0
        assert await both.ask(EVERYWHERE) == warm
        assert await both.ask(EVERYWHERE) == warm

    in_a_node(script)


def test_an_authoriser_is_asked_for_each_topic(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        both = await Both.open(await Log(node, world).filled())
        assert await both.takes(EVERYWHERE)
        open_access, node.access = node.access, Nobody()
        assert set(codes(await both.ask(EVERYWHERE))) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        node.access = open_access
        assert both.fast.hits == 1

    in_a_node(script)


def test_topics_that_come_and_go_are_told_as_they_are(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        by_name, by_id = await Both.open(log, 12), await Both.open(log, 17)
        for both in (by_name, by_id):
            assert await both.takes(EVERYWHERE)
        gone = admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name="b")], timeout_ms=1000)
        await log.peer.call(gone, 6, admin.DeleteTopicsResponse)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes(await by_name.ask(EVERYWHERE))[-2:] == [unknown, unknown]
        assert codes(await by_id.ask(EVERYWHERE))[-2:] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
        new = admin.CreatableTopic(name="b", num_partitions=2, replication_factor=1)
        await log.peer.call(admin.CreateTopicsRequest(topics=[new]), 7, admin.CreateTopicsResponse)
        assert await by_name.takes(EVERYWHERE)
        assert not await by_id.takes(EVERYWHERE), "the id is another one"

    in_a_node(script)


def test_transactions_that_were_aborted_are_told_to_readers_of_what_is_committed(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        both = await Both.open(log)
        how = {"isolation_level": 1}
        assert await both.takes(EVERYWHERE, **how)
        find = metadata.FindCoordinatorRequest(key="shop", key_type=1)
        await log.peer.call(find, 2, metadata.FindCoordinatorResponse)
        init = txn.InitProducerIdRequest(transactional_id="shop", transaction_timeout_ms=60_000)
        opened = await log.peer.call(init, 4, txn.InitProducerIdResponse)
        while opened.error_code:
            await asyncio.sleep(0.1)
            opened = await log.peer.call(init, 4, txn.InitProducerIdResponse)
        id, epoch = opened.producer_id, opened.producer_epoch
        sent = {"producer_id": id, "producer_epoch": epoch, "base_sequence": 0}
        await log.write("b", 0, **sent, transactional=True)
        assert await both.takes(EVERYWHERE, **how), "nothing of the open transaction is seen"
        end = txn.EndTxnRequest(
            transactional_id="shop", producer_id=id, producer_epoch=epoch, committed=False
        )
        assert (await log.peer.call(end, 5, txn.EndTxnResponse)).error_code == 0
        await until(lambda: node.replicas.find("b", 0).stable_offset.value == 5)
        for version in (4, 5, 11, 12, 17):
            for asked in (EVERYWHERE, {("b", 0): 0}, {("b", 0): 2}):
                both = await Both.open(log, version)
                answer = await both.ask(asked, **how)
                aborted = answer.responses[-1].partitions[0].aborted_transactions or []
                assert [(each.producer_id, each.first_offset) for each in aborted] == [(id, 2)]
                assert both.fast.hits
        answer = await both.ask({**EVERYWHERE, ("b", 0): 5}, **how)
        assert answer.responses[-1].partitions[0].aborted_transactions == []
        assert await both.takes(EVERYWHERE), "who reads all has nothing to leave out"

    in_a_node(script)


# ---- waiting ----


ENDS: Offsets = {("a", 0): 6, ("a", 1): 6, ("a", 3): 0, ("b", 0): 2, ("b", 1): 0}


def waiting(node: Node, places: Offsets = ENDS) -> int:
    return sum(node.replicas.find(*place).high_watermark.waiting() for place in places)


def test_news_in_any_partition_end_the_wait_for_all(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        fast = await Consumer(log, 17, True).open()
        general = await Consumer(log, 17, False).open()
        for place in (("a", 3), ("b", 1), ("a", 0)):
            here = {p: node.replicas.find(*p).high_watermark.value for p in ENDS}
            asked = asyncio.ensure_future(fast.ask(here, max_wait_ms=20_000))
            await until(lambda: waiting(node) == len(ENDS))
            await log.write(*place)
            answer = await asked
            assert [index for index, size in told(answer) if size] == [place[1]]
            assert answer == await general.ask(here)
            assert waiting(node) == 0
        assert fast.hits == 3

    in_a_node(script)


def test_who_waits_for_more_bytes_than_come_has_all_there_is_when_time_is_up(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        fast = await Consumer(log, 17, True).open()
        general = await Consumer(log, 17, False).open()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        asked = asyncio.ensure_future(fast.ask(ENDS, max_wait_ms=5_000, min_bytes=1_000))
        for place in (("a", 3), ("b", 1)):
            await until(lambda: waiting(node) >= len(ENDS))
            await log.write(*place)
        assert await asked == await general.ask(ENDS)
        assert 5 <= loop.time() - begun < 6
        asked = asyncio.ensure_future(fast.ask(ENDS, max_wait_ms=5_000, min_bytes=1_000))
        await until(lambda: waiting(node) >= len(ENDS))
        begun = loop.time()
        await log.write("b", 0, 500)
        assert await asked == await general.ask(ENDS), "together they are enough"
        assert loop.time() - begun < 1
        assert fast.hits == 2

    in_a_node(script)


@pytest.mark.parametrize("session", [False, True])
def test_what_becomes_unusual_during_a_wait_goes_on_in_the_handler(
    in_a_node: InANode, session: bool
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        consumer = await Consumer(log, 17, True, epoch=0 if session else -1).open()
        if session:
            await consumer.ask(ENDS)
            await consumer.ask(ENDS)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        asked = asyncio.ensure_future(consumer.ask(ENDS, max_wait_ms=5_000, min_bytes=1_000))
        await until(lambda: waiting(node) == len(ENDS))
        await asyncio.sleep(2)
        node.fast_paths = False
        await log.write("a", 3)
        answer = await asked
        assert 5 <= loop.time() - begun < 6, "it had three seconds left"
        assert dict(told(answer))[3] > 0
        assert not any(codes(answer))
        assert not answer.error_code
        gone = admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name="b")], timeout_ms=1000)
        here = {**ENDS, ("a", 3): 2}
        asked = asyncio.ensure_future(consumer.ask(here, max_wait_ms=20_000))
        await until(lambda: waiting(node) == len(ENDS))
        await log.peer.call(gone, 6, admin.DeleteTopicsResponse)
        assert any(codes(await asked))

    in_a_node(script)


def test_a_consumer_that_leaves_takes_its_waits_along(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        consumer = await Consumer(log, 17, True).open()
        consumer.peer.send(log.request(ENDS, 17, max_wait_ms=20_000), 17, fetch.FetchResponse)
        await until(lambda: waiting(node) == len(ENDS))
        consumer.peer.close()
        await until(lambda: waiting(node) == 0)

    in_a_node(script)


# ---- in a session ----


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", [7, 9, 11, 12, 13, 18])
def test_a_session_hears_the_same_by_the_fast_path_and_by_the_handler(
    in_a_node: InANode, version: int, isolation: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        both = await Both.open(log, version, session=True)
        how = {"isolation_level": isolation}
        assert len(told(await both.ask(EVERYWHERE, **how))) == 6
        taken = both.fast.hits
        moved = {("a", 0): 6, ("a", 1): 6, ("b", 0): 2}
        assert told(await both.ask({**moved, ("a", 2): 6}, **how)) == []
        assert told(await both.ask({}, **how)) == []
        await log.write("b", 1)
        assert [index for index, _ in told(await both.ask({}, **how))] == [1]
        assert [index for index, _ in told(await both.ask({}, **how))] == [1], "its offset is old"
        await log.write("a", 3)
        await log.write("a", 0)
        answer = await both.ask({("b", 1): 2}, **how)
        assert [index for index, size in told(answer) if size] == [3, 0], "the unheard one first"
        answer = await both.ask({}, **how)
        assert [index for index, size in told(answer) if size] == [3, 0], "both moved behind others"
        assert both.fast.hits == taken + 6

    in_a_node(script)


def test_a_session_adds_and_forgets_partitions_on_the_fast_path(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        both = await Both.open(await Log(node, world).filled(), session=True)
        await both.ask({("a", 0): 0, ("a", 1): 0})
        sizes = [
            [index for index, _ in told(await both.ask(asked, forgotten))]
            for asked, forgotten in (
                ({("b", 0): 0}, ()),
                ({("a", 2): 0}, [("a", 0)]),
                ({("a", 0): 0}, [("a", 1), ("a", 2)]),
                ({("a", 3): 0, ("a", 1): 6}, [("a", 3), ("b", 1)]),
                ({("a", 3): 0}, [("a", 1)]),
                ({}, [("a", 0), ("b", 0)]),
            )
        ]
        assert sizes == [[0, 1, 0], [1, 0, 2], [0, 0], [0, 0, 1], [0, 0, 3], []]
        assert both.fast.hits == 6
        assert node.fetch_sessions.partitions == 2
        assert told(await both.ask({}, [("a", 3)])) == [], "nothing is left of it"
        assert both.fast.hits == 6
        assert len(node.fetch_sessions) == 0

    in_a_node(script)


def test_a_session_takes_turns_where_bytes_are_short(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).open()
        places = [("a", index) for index in range(4)]
        for place in places * 3:
            await log.write(*place)
        both = await Both.open(log, session=True)
        await both.ask(dict.fromkeys(places, 0), max_bytes=300)
        first = [told(await both.ask({}, max_bytes=300, isolation_level=1)) for _ in range(8)]
        assert len({answer[0][0] for answer in first}) == 4, "each was the first one, once"
        assert both.fast.hits == 8

    in_a_node(script)


@pytest.mark.parametrize("at", ["epoch", "id", "names"])
def test_a_session_that_is_not_where_the_request_says_is_told_so_by_the_handler(
    in_a_node: InANode, at: str
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        both = await Both.open(log, session=True)
        await both.ask(EVERYWHERE)
        assert await both.takes({})
        for each in (both.fast, both.general):
            if at == "epoch":
                each.epoch += 1
            elif at == "id":
                each.session_id ^= 1
            else:
                each.version = 12
        assert (await both.ask({})).error_code in (
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        )

    in_a_node(script)


def test_a_request_that_the_handler_takes_finds_its_session_untouched(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        both = await Both.open(await Log(node, world).filled(), session=True)
        await both.ask(EVERYWHERE)
        assert await both.takes({("a", 0): 6})
        answer = await both.ask({("a", 1): 99, ("a", 0): 2}, [("b", 0)])
        assert ErrorCode.OFFSET_OUT_OF_RANGE in codes(answer)
        assert not answer.error_code
        assert await both.takes({("a", 1): 0})
        assert await both.takes({})

    in_a_node(script)


def test_two_connections_may_go_on_with_one_session(in_a_node: InANode) -> None:
    """What the second one forgets while the first one waits is told to the first one once more."""

    async def script(node: Node, world: ProcessWorld) -> None:
        log = await Log(node, world).filled()
        here = {("b", 0): 2, ("b", 1): 0}
        for fast in (True, False):
            first = await Consumer(log, 17, fast, epoch=0).open()
            second = await Consumer(log, 17, fast, epoch=2).open()
            await first.ask(here)
            asked = asyncio.ensure_future(first.ask({}, max_wait_ms=20_000))
            await until(lambda: waiting(node, here) == 2)
            second.session_id = first.session_id
            assert told(await second.ask({}, [("b", 1)])) == []
            node.fast_paths = fast
            await log.write("b", 1)
            answer = await asked
            assert [index for index, _ in told(answer)] == [1]
            second.epoch = 3
            assert not (await second.ask({})).error_code
            assert node.fetch_sessions.partitions == (1 if fast else 2), "one each"
            assert (first.hits > 0) == (second.hits > 0) == fast
            here[("b", 1)] = 2

    in_a_node(script)
