"""What a follower meets that is nobody's death: sessions that are refused, damage on the way, a
leader that was compacted otherwise, a set of replicas that comes and goes."""

import asyncio
from collections.abc import Callable

import pytest

from scriba.broker.jobs.schedule import cleaning_pass
from scriba.broker.partitions.replication.follower_sessions import FollowerSession, FollowerSessions
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.records.batch import Record, decode_records, encode_batch, walk
from scriba.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from scriba.wire.messages.produce import ProduceResponse
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.stored_records import stored_records

HOUR_MS = 3_600_000


def told(brokers: Brokers, broker_id: int, kind: EventKind) -> list[str]:
    events = brokers.nodes[broker_id].events.page(0, 1000).events
    return [event.text for event in events if event.kind is kind]


# ---- sessions ----


def forget(sessions: FollowerSessions) -> None:
    """FETCH_SESSION_ID_NOT_FOUND"""
    sessions.close()


def miscount(sessions: FollowerSessions) -> None:
    """INVALID_FETCH_SESSION_EPOCH"""

    def hurt(session: FollowerSession) -> None:
        session.epoch += 7
        session.wake()

    for replica in (1, 3):
        for session in sessions.of(replica):
            hurt(session)


@pytest.mark.parametrize("trouble", [forget, miscount])
def test_session_that_the_leader_refuses_is_begun_anew_and_nothing_is_missed(
    trouble: Callable[[FollowerSessions], None],
) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), (2, 1, 3), configs={"min.insync.replicas": "3"})
        for index in (0, 1):
            assert await brokers.produce(2, "t", b"before", index=index) is ErrorCode.NONE
        sessions = brokers.nodes[2].replicas.follower_sessions
        before = {each.id for replica in (1, 3) for each in sessions.of(replica)}
        for _ in range(3):
            trouble(sessions)
            for index in (0, 1):
                assert await brokers.produce(2, "t", b"after", index=index) is ErrorCode.NONE
        after = {each.id for replica in (1, 3) for each in sessions.of(replica)}
        assert len(after) == len(before), "none is left over"
        assert not before & after
        for at in (1, 3):
            assert brokers.partition(at, "t").log.end_offset == 4
            assert not told(brokers, at, EventKind.FOLLOWER_FAILED)
        assert set(brokers.image("t").isr) == {1, 2, 3}

    play(script)


# ---- damage ----


def test_batch_that_is_damaged_on_its_way_is_not_taken_and_asked_for_again() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "1"})
        await brokers.produce(2, "t", b"before")
        brokers.kill(3)
        await brokers.produce(2, "t", b"damaged", acks=1)
        log = brokers.partition(2, "t").log
        file = brokers.nodes[2].world.disk.open(f"{log.directory}/{0:020d}.log")
        last = bytearray(1)
        file.pread_into(memoryview(last), log.size - 1)
        file.pwrite(bytes([last[0] ^ 1]), log.size - 1)
        await brokers.boot(3)
        await brokers.until(lambda: told(brokers, 3, EventKind.FOLLOWER_FAILED))
        taken = brokers.nodes[3].counters
        before = taken.replication_bytes_in
        await asyncio.sleep(10)
        assert 0 < taken.replication_bytes_in - before < 20 * log.size, "pauses double, up to 1 s"
        (text,) = told(brokers, 3, EventKind.FOLLOWER_FAILED)
        assert "cannot append what broker 2 sent" in text
        follower = brokers.partition(3, "t")
        assert follower.log.end_offset == 1
        assert follower.log.failure is None, "its own log is well"
        assert follower.follower is not None
        assert follower.follower.why is ErrorCode.CORRUPT_MESSAGE
        file.pwrite(bytes(last), log.size - 1)  # the way is well again
        await brokers.until(lambda: follower.log.end_offset == 2)
        assert [record.value for record in await stored_records(follower)] == [
            b"before",
            b"damaged",
        ]

    play(script, broker_session_timeout_ms=60_000)


# ---- an ISR that comes and goes ----


def test_partition_whose_in_sync_set_flaps_is_named_once() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        await brokers.create("calm", (2, 1))
        await brokers.produce(2, "t", b"first")
        for _ in range(7):
            brokers.sim.network.cut("b3", "b2")
            assert await brokers.produce(2, "t", b"more") is ErrorCode.NONE
            assert 3 not in brokers.image("t").isr
            brokers.sim.network.heal()
            await brokers.until(lambda: 3 in brokers.image("t").isr)
        node = brokers.nodes[2]
        assert node.counters.isr_shrinks == 7
        events = [e for e in node.events.page(0, 1000).events if e.kind is EventKind.ISR_FLAPS]
        assert [event.about for event in events] == ["t-0"]

    play(script, replica_lag_time_max_ms=2000, broker_session_timeout_ms=60_000)


# ---- compaction ----


COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0.01",
    "min.insync.replicas": "1",
}


class Table:
    """Rows of a compacted topic, and what a reader must find."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.rows: dict[bytes | None, bytes | None] = {}
        self.written = 0

    async def write(self, leader: int, count: int, keys: int = 3) -> None:
        for _ in range(count):
            key, value = b"k%d" % (self.written % keys), b"%03d" % self.written * 15
            self.rows[key] = value
            self.written += 1
            peer = await self.brokers.dial(leader)
            request = self.brokers.produced("t")
            now_ms = self.brokers.nodes[leader].world.clock.wall_ms()
            data = encode_batch([Record(0, now_ms, key, value)])
            request.topic_data[0].partition_data[0].records = bytes(data)
            answer = await peer.call(request, 12, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
            peer.close()

    async def compact(self, broker_id: int) -> None:
        node = self.brokers.nodes[broker_id]
        before = node.counters.compactions
        await cleaning_pass(node, node.world.clock.now())
        assert node.counters.compactions == before + 1

    async def check(self, broker_id: int) -> None:
        found = await stored_records(self.brokers.partition(broker_id, "t"))
        assert [r.offset for r in found] == sorted({r.offset for r in found})
        assert {r.key: r.value for r in found} == self.rows

    async def offsets(self, broker_id: int) -> list[int]:
        return [r.offset for r in await stored_records(self.brokers.partition(broker_id, "t"))]

    async def fail_over(self, dead: int, heir: int) -> None:
        self.brokers.kill(dead)
        await self.brokers.until(lambda: self.brokers.image("t").leader == heir)
        await self.brokers.until(lambda: self.brokers.leads(heir, "t"))

    async def bring_back(self, broker_id: int) -> None:
        await self.brokers.boot(broker_id)
        await self.brokers.until(lambda: set(self.brokers.image("t").isr) == {2, 3})


def test_failover_between_replicas_that_were_compacted_differently() -> None:
    async def script(brokers: Brokers) -> None:
        table = Table(brokers)
        await brokers.create("t", (2, 3), configs=COMPACTED)
        await table.write(2, 12)
        await table.compact(2)
        await table.write(2, 9)
        await brokers.until(lambda: brokers.partition(3, "t").log.end_offset == 21)
        assert len(await table.offsets(3)) == 21 > len(await table.offsets(2))
        # The one that has all leads. What the other has less of is not asked for again.
        await table.fail_over(2, 3)
        await table.check(3)
        await table.write(3, 4)
        await table.bring_back(2)
        await table.check(2)
        assert not told(brokers, 2, EventKind.LOG_TRUNCATED_BELOW_HIGH_WATERMARK)
        # The one that was compacted leads, the other is compacted elsewhere, and back again.
        await table.fail_over(3, 2)
        await table.check(2)
        await table.write(2, 5)
        await table.bring_back(3)
        await table.compact(3)
        await table.check(3)
        assert await table.offsets(2) != await table.offsets(3)
        await table.fail_over(2, 3)
        await table.check(3)
        await table.bring_back(2)
        await table.write(3, 3)
        await brokers.until(lambda: brokers.partition(2, "t").log.end_offset == 33)
        await table.check(2)

    play(script, log_cleaner_backoff_ms=100 * HOUR_MS)


def test_follower_that_comes_late_takes_the_gaps_of_a_compacted_leader() -> None:
    async def script(brokers: Brokers) -> None:
        table = Table(brokers)
        await brokers.create("t", (2, 3), configs=COMPACTED)
        await table.write(2, 2)
        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        await table.write(2, 20)
        await table.compact(2)
        await table.bring_back(3)
        await table.check(3)
        gaps = await table.offsets(2)
        assert len(gaps) < 22
        assert [each for each in await table.offsets(3) if each > 1] == [
            each for each in gaps if each > 1
        ]
        await table.fail_over(2, 3)
        await brokers.until(lambda: brokers.partition(3, "t").high_watermark.value == 22)
        # Whoever asks for an offset in a gap gets what comes next.
        missing = next(each for each in range(2, 22) if each not in gaps)
        found: list[int] = []
        offset = missing
        while not found:
            answer = await brokers.consume(3, "t", offset)
            assert answer.error_code == 0
            for position, header in walk(answer.records):
                batch = decode_records(answer.records[position:])
                found += [record.offset for record in batch if record.offset >= missing]
                offset = header.next_offset
        assert found[0] == next(each for each in gaps if each > missing)

    play(script, log_cleaner_backoff_ms=100 * HOUR_MS)


# ---- a broker that is gone for good ----


def test_broker_that_is_gone_for_good_is_unregistered_through_any_other() -> None:
    async def ask(brokers: Brokers, broker_id: int) -> ErrorCode:
        peer = await brokers.dial(2)  # which has no controller
        request = UnregisterBrokerRequest(broker_id=broker_id)
        answer = await peer.call(request, 0, UnregisterBrokerResponse)
        peer.close()
        return ErrorCode(answer.error_code)

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (3, 2), configs={"min.insync.replicas": "1"})
        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t").leader == 2)
        assert await ask(brokers, 3) is ErrorCode.NONE
        for at in (1, 2):
            assert 3 not in brokers.nodes[at].image.brokers, "it is answered when all know"
        assert await ask(brokers, 3) is ErrorCode.BROKER_ID_NOT_REGISTERED
        assert await brokers.produce(2, "t", b"goes on") is ErrorCode.NONE
        await brokers.boot(3)
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})

    play(script)
