"""Replication between brokers: each on a simulated host, with one controller for all."""

import asyncio
import errno
from functools import partial
from typing import Any

import pytest

from scriba.broker.fastpath.produce import ProduceFastPath
from scriba.broker.handlers.records import replica_fetch
from scriba.broker.metrics.exposition import render
from scriba.broker.partitions.replication import follower_sessions
from scriba.broker.request import Deferred, broker_context
from scriba.controller.image import NO_LEADER
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.records.batch import read_header
from scriba.records.header import walk
from scriba.replication.follower import State
from scriba.storage.directory.checkpoints import RECOVERY_POINTS
from scriba.storage.log import Log, NotResident, Slice
from scriba.storage.truncation import Truncation
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.peer import Wire
from scriba.wire.apis import ApiKey
from scriba.wire.frame import encode_request
from scriba.wire.messages.admin import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ReplicaState,
)
from scriba.wire.messages.produce import ProduceResponse
from scriba.wire.messages.stored import ConfigRecord, PartitionChangeRecord
from scriba.wire.schema import Message
from tests.unit.broker.brokers import PORT, Brokers, play
from tests.unit.broker.scraping import REPLICATION_METRICS, parsed
from tests.unit.broker.stored_records import stored_records


def log_bytes(brokers: Brokers, broker_id: int, topic: str, index: int = 0) -> bytes:
    """All batches of a replica, as they are in its file."""
    log = brokers.partition(broker_id, topic, index).log
    disk = brokers.nodes[broker_id].world.disk
    return disk.read(f"{log.directory}/{0:020d}.log")[: log.size]


def shrinks(brokers: Brokers, broker_id: int) -> list[str]:
    """What a broker has told, and counted, of replicas that left an ISR."""
    node = brokers.nodes[broker_id]
    told = [e.text for e in node.events.page(0, 256).events if e.kind is EventKind.ISR_SHRUNK]
    assert len(told) == node.counters.isr_shrinks
    return told


def test_what_is_acknowledged_by_all_is_on_every_replica_byte_for_byte() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        for value in (b"one", b"two", b"three"):
            assert await brokers.produce(2, "t", value) is ErrorCode.NONE
            ends = [brokers.partition(at, "t").log.end_offset for at in (1, 2, 3)]
            assert len(set(ends)) == 1
        assert len({log_bytes(brokers, at, "t") for at in (1, 2, 3)}) == 1
        counters = brokers.nodes[2].counters
        size = brokers.partition(2, "t").log.size
        assert (counters.topic_bytes_out, counters.replication_bytes_out) == (0, 2 * size)
        assert brokers.partition(1, "t").log.end_offset == 3
        followers = [brokers.partition(at, "t").follower for at in (1, 3)]
        assert [state.state for state in followers if state] == [State.FETCHING] * 2
        # The high watermark comes with the next answer.
        await brokers.until(lambda: brokers.partition(3, "t").high_watermark.value == 3)

    play(script)


def test_a_parked_follower_is_woken_by_the_append_itself() -> None:
    """Not by the high watermark, which only its own next fetch can move."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        await brokers.produce(2, "t", b"first")
        await asyncio.sleep(0.1)  # all followers wait for news, up to half a second
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await brokers.produce(2, "t", b"second") is ErrorCode.NONE
        assert loop.time() - began < 0.1

    play(script)


def test_a_killed_leader_loses_nothing_that_was_acknowledged() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), configs={"min.insync.replicas": "2"})
        for value in range(20):
            assert await brokers.produce(2, "t", b"%d" % value) is ErrorCode.NONE
        before = log_bytes(brokers, 2, "t")
        brokers.kill(2)
        await brokers.until(lambda: brokers.image("t").leader in (1, 3))
        leader = brokers.image("t").leader
        await brokers.until(lambda: brokers.partition(leader, "t").leader is not None)
        assert log_bytes(brokers, leader, "t") == before
        await brokers.nodes[leader].replicas.applied()
        assert shrinks(brokers, leader) == [
            "replica 2 left the in-sync set: fenced, 0 records and 0 ms behind"
        ]
        assert not shrinks(brokers, 4 - leader), "each is told once, by whoever leads after it"
        assert await brokers.produce(leader, "t", b"later") is ErrorCode.NONE
        assert brokers.partition(4 - leader, "t").log.end_offset == 21
        # The old leader comes back, takes the rest and is in sync again.
        await brokers.boot(2)
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2, 3})
        assert log_bytes(brokers, 2, "t") == log_bytes(brokers, leader, "t")

    play(script)


def test_replicas_that_leave_nobody_in_sync_are_told_once_by_one_that_is_there() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        brokers.kill(2)
        await brokers.until(lambda: len(brokers.image("t").isr) == 2)
        leader = brokers.image("t").leader
        await brokers.until(lambda: shrinks(brokers, leader))
        first = brokers.nodes[1]
        assert first.metadata.active is not None
        nobody = PartitionChangeRecord(
            topic_id=first.image.topics_by_name["t"].id,
            partition_id=0,
            leader=NO_LEADER,
            isr=[],
            eligible_leader_replicas=[1, 3],
        )
        await first.metadata.active.step(lambda machine, now: [nobody])
        await brokers.until(lambda: len(shrinks(brokers, 3)) == 3)
        left = "left the in-sync set: fenced,"
        assert sorted(shrinks(brokers, 3)) == sorted(
            [
                f"replica 2 {left} 0 records and 0 ms behind",
                f"replica 3 {left} 0 records and 0 ms behind",
                f"replica 1 {left} its lag unknown",
            ]
        )
        assert not shrinks(brokers, 1), "each is told once; the first that is there tells"

    play(script)


def test_replicas_that_leave_together_with_their_leader_are_told() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        await brokers.produce(2, "t", b"first")
        first = brokers.nodes[1]
        assert first.metadata.active is not None
        record = PartitionChangeRecord(
            topic_id=first.image.topics_by_name["t"].id, partition_id=0, leader=1, isr=[1]
        )
        await first.metadata.active.step(lambda machine, now: [record])
        await brokers.until(lambda: len(shrinks(brokers, 1)) == 2)
        left = "left the in-sync set: fenced,"
        assert shrinks(brokers, 1) == [
            f"replica 2 {left} 0 records and 0 ms behind",
            f"replica 3 {left} its lag unknown",
        ]
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2, 3})
        # Nobody leaves with an election among those that are in sync, or for another replica set.
        await brokers.elect("t", 3)
        await brokers.reassign("t", (3, 2))
        await brokers.until(lambda: brokers.image("t").replicas == (3, 2))
        await brokers.until(partial(brokers.leads, 3, "t"))
        await brokers.nodes[3].replicas.applied()
        assert [len(shrinks(brokers, at)) for at in (1, 2, 3)] == [2, 0, 0]

    play(script)


def test_a_deposed_leader_acknowledges_nothing_and_says_so_at_once() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), configs={"min.insync.replicas": "1"})
        await brokers.produce(2, "t", b"committed")
        # Its followers hear nothing from it any more; it still serves its clients.
        for other in ("b1", "b3"):
            brokers.sim.network.cut("b2", other)
        peer = await brokers.dial(2)
        waiting = peer.send(brokers.produced("t", b"waits"), 12, ProduceResponse)
        plain = await brokers.produce(2, "t", b"not committed", acks=1)
        assert plain is ErrorCode.NONE
        partition = brokers.partition(2, "t")
        assert partition.leader is not None
        assert not waiting.done()
        node = brokers.nodes[1]
        image = brokers.image("t")._replace(leader=3, leader_epoch=9, partition_epoch=99)
        brokers.nodes[2].replicas._depose([("t", partition.topic_id, [(0, image)])])
        assert partition.leader is None
        answer = await asyncio.wait_for(waiting, 1)
        (told,) = answer.responses[0].partition_responses
        assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert told.current_leader.leader_id == 2, "as far as its metadata goes"
        late = await brokers.produce(2, "t", b"late", acks=1)
        assert late is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert node.image is not None

    play(script)


def test_leadership_goes_and_comes_back_between_brokers_that_live() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "2"})
        await brokers.produce(2, "t", b"first")
        brokers.kill(2)
        await brokers.until(lambda: brokers.image("t").leader == 3)
        await brokers.boot(2)
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})
        for _ in range(3):
            for leader, follower in ((2, 3), (3, 2)):
                await brokers.elect("t", leader)
                await brokers.until(partial(brokers.leads, leader, "t"))
                assert await brokers.produce(leader, "t", b"more") is ErrorCode.NONE
                assert brokers.partition(follower, "t").leader is None
                assert brokers.partition(follower, "t").follower is not None
                assert log_bytes(brokers, 2, "t") == log_bytes(brokers, 3, "t")

    play(script)


def test_a_quiet_replica_joins_as_soon_as_its_broker_is_known() -> None:
    """It is named in no fetch after the first, which came before the metadata of its broker."""

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        await brokers.boot(3)
        follower.epoch = brokers.nodes[3].broker_epoch
        registered = brokers.nodes[1].image.brokers[3]
        known = brokers.nodes[2].image.brokers
        known[3] = registered._replace(epoch=registered.epoch - 1)
        follower.session = (0, 0)
        await follower.fetch(asks(3, last_epoch=0))
        assert brokers.image("t").isr == (2,)
        known[3] = registered
        brokers.nodes[2].replicas._follow_brokers(brokers.nodes[2].image)
        await follower.fetch()
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3}, seconds=1)

    play(script, replica_lag_time_max_ms=600_000)


def test_a_replica_whose_broker_is_unfenced_while_its_fetch_waits_joins_with_the_next() -> None:
    """The one that waits has been counted: what it finds when its time is over says nothing."""

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        await brokers.boot(3)
        follower.epoch = brokers.nodes[3].broker_epoch
        leader = brokers.nodes[2]
        unfenced = brokers.nodes[1].image.brokers[3]
        leader.image.brokers[3] = unfenced._replace(fenced=True)
        leader.replicas._follow_brokers(leader.image)
        follower.session = (0, 0)
        await follower.fetch(asks(3, last_epoch=0))
        waiting = asyncio.ensure_future(follower.fetch(wait_ms=300))
        await asyncio.sleep(0.1)
        leader.image.brokers[3] = unfenced
        leader.replicas._follow_brokers(leader.image)
        await waiting
        assert brokers.image("t").isr == (2,)
        await follower.fetch()
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3}, seconds=1)

    play(script, replica_lag_time_max_ms=600_000)


def test_a_follower_with_records_of_a_dead_leader_truncates_and_is_whole_again() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), configs={"min.insync.replicas": "1"})
        await brokers.produce(2, "t", b"committed")
        for other in ("b1", "b3"):
            brokers.sim.network.cut("b2", other)
        for value in range(5):
            await brokers.produce(2, "t", b"%d" % value, acks=1)
        assert brokers.partition(2, "t").log.end_offset == 6
        brokers.kill(2)
        await brokers.until(lambda: brokers.image("t").leader in (1, 3))
        leader = brokers.image("t").leader
        await brokers.until(lambda: brokers.partition(leader, "t").leader is not None)
        assert await brokers.produce(leader, "t", b"another") is ErrorCode.NONE
        brokers.sim.network.heal()
        await brokers.boot(2)
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2, 3})
        assert brokers.partition(2, "t").log.end_offset == 2
        assert log_bytes(brokers, 2, "t") == log_bytes(brokers, leader, "t")
        assert brokers.nodes[2].events.counts[EventKind.FOLLOWER_TRUNCATED] == 1

    play(script)


def test_a_silent_follower_leaves_the_isr_and_returns() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        await brokers.produce(2, "t", b"first")
        brokers.sim.network.cut("b3", "b2")
        assert await brokers.produce(2, "t", b"second") is ErrorCode.NONE
        assert set(brokers.image("t").isr) == {1, 2}
        node = brokers.nodes[2]
        (told,) = shrinks(brokers, 2)
        assert "replica 3 left the in-sync set: silent, 1 records" in told
        brokers.sim.network.heal()
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2, 3})
        assert brokers.partition(3, "t").log.end_offset == 2
        assert node.counters.isr_expands == 1

    play(script, replica_lag_time_max_ms=2000)


def test_below_min_isr_nothing_is_taken_and_nothing_more_is_shown() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "2"})
        await brokers.produce(2, "t", b"first")
        brokers.kill(3)
        peer = await brokers.dial(2)
        # Appended while the ISR was large enough, and not any more when it would be acknowledged.
        waiting = peer.send(brokers.produced("t", b"second"), 12, ProduceResponse)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        answer = await asyncio.wait_for(waiting, 10)
        (told,) = answer.responses[0].partition_responses
        assert told.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert await brokers.produce(2, "t", b"third") is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await brokers.produce(2, "t", b"fourth", acks=1) is ErrorCode.NONE
        partition = brokers.partition(2, "t")
        assert (partition.high_watermark.value, partition.log.end_offset) == (1, 3)
        await brokers.boot(3)
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})
        await brokers.until(lambda: partition.high_watermark.value == 3)

    play(script)


@pytest.mark.parametrize("how", ["minimum", "epoch"])
def test_acks_that_too_few_replicas_can_give_are_refused_at_once(how: str) -> None:
    """Where the minimum is raised while they wait, and where the same leader gets a new epoch with
    fewer in sync."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 4), configs={"min.insync.replicas": "2"})
        await brokers.produce(2, "t", b"first")
        first, peer = brokers.nodes[1], await brokers.dial(2)
        brokers.sim.network.cut("b4", "b2")
        waiting = peer.send(brokers.produced("t", b"second"), 12, ProduceResponse)
        await brokers.until(lambda: brokers.partition(2, "t").log.end_offset == 2)
        record = PartitionChangeRecord(
            topic_id=first.image.topics_by_name["t"].id, partition_id=0, leader=2, isr=[2]
        )
        raised = ConfigRecord(
            resource_type=2, resource_name="t", name="min.insync.replicas", value="3"
        )
        assert first.metadata.active is not None
        if how == "minimum":
            brokers.kill(3)
            await brokers.until(lambda: set(brokers.image("t").isr) == {2, 4})
        assert not waiting.done()
        change: Message = raised if how == "minimum" else record
        await first.metadata.active.step(lambda machine, now: [change])
        answer = await waiting
        (told,) = answer.responses[0].partition_responses
        assert told.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    play(script, count=4)


def test_what_a_killed_follower_finds_counts_once_its_device_has_it() -> None:
    """With `flush.messages=1`: its page cache has the record, and its power may go next."""

    async def script(brokers: Brokers) -> None:
        synced = {"min.insync.replicas": "1", "flush.messages": "1"}
        await brokers.create("t", (2, 3), configs=synced)
        await brokers.produce(2, "t", b"first")
        faults = brokers.sim.host("b3").disk_faults
        faults.sync_ms = (600_000, 600_000)
        peer = await brokers.dial(2)
        waiting = peer.send(brokers.produced("t", b"second"), 12, ProduceResponse)
        await brokers.until(lambda: brokers.partition(3, "t").log.end_offset == 2)
        brokers.kill(3)
        faults.sync_ms = (300, 300)
        await brokers.boot(3)
        leader = brokers.partition(2, "t").leader
        assert leader is not None
        await brokers.until(lambda: leader.followers[3].end_offset == 2)
        assert brokers.partition(3, "t").log.flushed_offset == 2
        answer = await asyncio.wait_for(waiting, 10)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    play(script, replica_lag_time_max_ms=600_000, broker_session_timeout_ms=600_000)


# ---- what the leader makes of a fetch ----


class FollowerClient:
    """A replica that fetches by hand."""

    def __init__(self, brokers: Brokers, replica: int, leader: int, topic: str) -> None:
        self._brokers = brokers
        self._replica = replica
        self._leader = leader
        self.topic_id = brokers.nodes[1].image.topics_by_name[topic].id
        self.epoch = brokers.nodes[1].image.brokers[replica].epoch
        self.session = (0, 0)
        self._peer: Any = None

    async def fetch(
        self, *asked: FetchPartition, wait_ms: int = 0, version: int = 17, epoch: int | None = None
    ) -> FetchResponse:
        if self._peer is None:
            self._peer = await self._brokers.dial(self._leader)
        session_id, session_epoch = self.session
        state = ReplicaState(
            replica_id=self._replica, replica_epoch=self.epoch if epoch is None else epoch
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[FetchTopic(topic_id=self.topic_id, partitions=list(asked))] if asked else [],
        )
        if version >= 15:
            request.replica_state = state
        else:
            request.replica_id = self._replica
        response: FetchResponse = await self._peer.call(request, version, FetchResponse)
        self.session = (response.session_id, session_epoch + 1 if response.session_id else 0)
        return response


def asks(
    offset: int, leader_epoch: int = 0, last_epoch: int = -1, index: int = 0
) -> FetchPartition:
    return FetchPartition(
        partition=index,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )


async def three_records(brokers: Brokers, partitions: int = 1) -> FollowerClient:
    """A topic whose second replica is registered, and played by hand."""
    brokers.kill(3)
    await brokers.until(lambda: brokers.nodes[1].image.brokers[3].fenced)
    await brokers.boot(3)
    brokers.sim.network.cut("b3", "b2")
    await brokers.create("t", *[(2, 3)] * partitions, configs={"min.insync.replicas": "1"})
    for value in (b"a", b"b", b"c"):
        await brokers.produce(2, "t", value, acks=1)
    assert brokers.partition(2, "t").high_watermark.value == 0
    return FollowerClient(brokers, 3, 2, "t")


def test_a_fetch_counts_as_progress() -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await follower.fetch(asks(2, last_epoch=0))
        assert brokers.partition(2, "t").high_watermark.value == 2

    play(script, replica_lag_time_max_ms=600_000)


def test_a_fetch_that_diverges_counts_for_nothing() -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        response = await follower.fetch(asks(7, last_epoch=0))
        (data,) = response.responses[0].partitions
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 3)
        assert brokers.partition(2, "t").high_watermark.value == 0

    play(script, replica_lag_time_max_ms=600_000)


@pytest.mark.parametrize(
    ("leader_epoch", "last_epoch"), [(-1, 0), (-1, -1), (0, -1)], ids=["leader", "both", "record"]
)
def test_a_fetch_that_does_not_say_of_which_epochs_it_is_counts_for_nothing(
    leader_epoch: int, last_epoch: int
) -> None:
    """Nobody knows then whether the records that it has are those of this leader."""

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        partition = brokers.partition(2, "t")
        response = await follower.fetch(asks(2, leader_epoch, last_epoch))
        assert response.responses[0].partitions[0].records, "it is sent all the same"
        assert partition.leader is not None
        assert partition.leader.followers[3].end_offset == -1
        assert partition.high_watermark.value == 0
        await follower.fetch(asks(2, 0, 0))
        assert partition.high_watermark.value == 2

    play(script, replica_lag_time_max_ms=600_000)


@pytest.mark.parametrize("start", [0, 2])
def test_a_follower_without_a_record_counts(start: int) -> None:
    """It has no epoch to name, be it new or begun anew where the leader's log begins."""

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        partition = brokers.partition(2, "t")
        await follower.fetch(asks(3, last_epoch=0))
        assert partition.high_watermark.value == 3
        partition.move_start(start)
        assert partition.leader is not None
        follower.session = (0, 0)
        empty = asks(start)
        empty.log_start_offset = start
        await follower.fetch(empty)
        known = partition.leader.followers[3]
        assert (known.start_offset, known.end_offset) == (start, start)

    play(script, replica_lag_time_max_ms=600_000)


def test_a_fetch_that_waited_is_not_counted_again() -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await follower.fetch(asks(3, last_epoch=0))
        partition = brokers.partition(2, "t")
        leader = partition.leader
        assert leader is not None
        waiting = asyncio.ensure_future(follower.fetch(wait_ms=5000))
        await asyncio.sleep(1)
        caught_up = leader._caught_up_ms(leader.followers[3])
        await brokers.produce(2, "t", b"d", acks=1)
        response = await waiting
        assert response.responses[0].partitions[0].records
        assert leader.followers[3].leader_end_at_last_fetch == 3
        assert leader._caught_up_ms(leader.followers[3]) == caught_up

    play(script, replica_lag_time_max_ms=600_000)


def test_an_append_just_before_a_fetch_begins_to_wait_is_not_missed() -> None:
    """A fetch that finds nothing waits from a later turn of the loop on: it looks once more."""

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await follower.fetch(asks(3, last_epoch=0))
        node, partition = brokers.nodes[2], brokers.partition(2, "t")
        now = node.world.clock.now()
        session_id, epoch = follower.session
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=3, replica_epoch=follower.epoch),
            max_wait_ms=60_000,
            min_bytes=1,
            session_id=session_id,
            session_epoch=epoch,
        )
        waiting = replica_fetch.fetch(node, broker_context(ApiKey.FETCH, 17, now.mono_ms), request)
        assert isinstance(waiting, Deferred)
        batch = memoryview(bytearray(log_bytes(brokers, 2, "t")[: partition.log.size // 3]))
        partition.append(batch, read_header(batch), now)
        async with asyncio.timeout(1):
            answer = await waiting.awaitable
        assert isinstance(answer, FetchResponse)
        assert answer.responses[0].partitions[0].records

    play(script, replica_lag_time_max_ms=600_000)


def test_another_incarnation_counts_for_nothing() -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        older = await follower.fetch(asks(3, last_epoch=0), epoch=follower.epoch - 1)
        assert older.error_code == ErrorCode.STALE_BROKER_EPOCH
        newer = await follower.fetch(asks(1, last_epoch=0), epoch=follower.epoch + 5)
        assert newer.responses[0].partitions[0].records, "the metadata may come a moment later"
        assert brokers.partition(2, "t").high_watermark.value == 0
        old = await follower.fetch(asks(3, last_epoch=0), version=14)
        assert old.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert brokers.partition(2, "t").high_watermark.value == 0

    play(script, replica_lag_time_max_ms=600_000)


def test_a_stranger_and_another_epoch_count_for_nothing() -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        stranger = FollowerClient(brokers, 1, 2, "t")
        told = await stranger.fetch(asks(3, last_epoch=0))
        assert told.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        ahead = await follower.fetch(asks(3, leader_epoch=1, last_epoch=0))
        assert ahead.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert brokers.partition(2, "t").high_watermark.value == 0

    play(script, replica_lag_time_max_ms=600_000)


def test_a_second_request_has_the_one_that_waits_answered() -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await follower.fetch(asks(3, last_epoch=0))
        peer = await brokers.dial(2)
        session_id, epoch = follower.session
        state = ReplicaState(replica_id=3, replica_epoch=follower.epoch)

        def request(wait_ms: int, at: int) -> FetchRequest:
            return FetchRequest(
                replica_state=state,
                max_wait_ms=wait_ms,
                min_bytes=1,
                session_id=session_id,
                session_epoch=at,
            )

        first = peer.send(request(60_000, epoch), 17, FetchResponse)
        await asyncio.sleep(0.1)
        assert not first.done()
        second = peer.send(request(0, epoch + 1), 17, FetchResponse)
        await asyncio.wait_for(asyncio.gather(first, second), 1)

    play(script, replica_lag_time_max_ms=600_000)


def test_a_fetch_looks_only_at_what_has_news(monkeypatch: Any) -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await brokers.create("many", *[(2, 3)] * 200, configs={"min.insync.replicas": "1"})
        follower.topic_id = brokers.nodes[1].image.topics_by_name["many"].id
        await follower.fetch(*[asks(0, index=at) for at in range(200)])
        looked: list[int] = []
        plain = replica_fetch._look_at_one

        def look(node: Any, found: Any, followed: Any, now: Any) -> Any:
            looked.append(followed.index)
            return plain(node, found, followed, now)

        monkeypatch.setattr(replica_fetch, "_look_at_one", look)
        await follower.fetch()
        assert looked == []
        await brokers.produce(2, "many", b"x", index=77, acks=1)
        response = await follower.fetch()
        assert looked == [77]
        assert [p.partition_index for p in response.responses[0].partitions] == [77]
        # And it counts: all are caught up, named or not.
        leader = brokers.partition(2, "many", 5).leader
        assert leader is not None
        assert leader._caught_up_ms(leader.followers[3]) == leader.followers[3].heard.ms

    play(script, replica_lag_time_max_ms=600_000)


def test_a_high_watermark_goes_with_records_or_by_itself_when_that_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_sessions, "MOVED_MS", 5_000)

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await brokers.create("two", (2, 3), (2, 3), configs={"min.insync.replicas": "1"})
        follower.topic_id = brokers.nodes[1].image.topics_by_name["two"].id
        await follower.fetch(asks(0, index=0), asks(0, index=1))

        async def told(*asked: FetchPartition, wait_ms: int = 0) -> list[tuple[int, int]]:
            response = await follower.fetch(*asked, wait_ms=wait_ms)
            topics = response.responses
            return [(p.partition_index, p.high_watermark) for t in topics for p in t.partitions]

        await brokers.produce(2, "two", b"x", acks=1)
        assert await told() == [(0, 0)]
        assert await told(asks(1, last_epoch=0)) == [], "it is committed, and goes unsaid"
        await brokers.produce(2, "two", b"x", index=1, acks=1)
        assert await told() == [(1, 0)], "also with records of another partition"
        await brokers.produce(2, "two", b"x", acks=1)
        assert await told(asks(1, last_epoch=0, index=1)) == [(0, 1)], "with its next records"
        assert await told(asks(2, last_epoch=0)) == []
        await asyncio.sleep(5)
        assert sorted(await told()) == [(0, 2), (1, 1)], "it is due"
        assert await told() == []
        await brokers.produce(2, "two", b"x", acks=1)
        assert await told() == [(0, 2)]
        assert await told(asks(3, last_epoch=0), wait_ms=6_000) == [(0, 3)], "it waited in vain"

    play(script, replica_lag_time_max_ms=600_000)


def test_a_fetch_of_much_or_of_records_on_the_device_is_done_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a limit of one partition, and with records that are evicted again and again."""
    loads: list[int] = []
    plain = Log.read

    class Evicted:
        async def load(self, offset: int, n: int) -> None:
            loads.append(n)
            await asyncio.sleep(0.001)

    def read(log: Log, *arguments: Any) -> Any:
        found = plain(log, *arguments)
        if isinstance(found, Slice) and log.topic == "t" and len(loads) <= found.first_offset:
            return NotResident(Evicted(), 0, found.size)
        return found

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", *[(2, 3, 1)] * 5, configs={"min.insync.replicas": "3"})
        for round in range(5):
            results = await asyncio.gather(
                *(brokers.produce(2, "t", b"%d" % round, index=at) for at in range(5))
            )
            assert results == [ErrorCode.NONE] * 5
        assert len(loads) >= 5
        for at in range(5):
            assert len({log_bytes(brokers, broker, "t", at) for broker in (1, 2, 3)}) == 1

    monkeypatch.setattr(Log, "read", read)
    monkeypatch.setattr(replica_fetch, "AT_ONCE", 1)
    play(script)


def test_who_was_refused_is_told_so_though_it_would_be_right_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new epoch reaches the follower first, and the leader while it reads another partition from
    its device. What it has not counted nobody would ask again, as long as nothing is written."""
    plain, loads = Log.read, 0

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers, partitions=2)
        first, partition = brokers.nodes[1], brokers.partition(2, "t", 1)
        record = PartitionChangeRecord(topic_id=follower.topic_id, partition_id=1, leader=2)

        class Evicted:
            async def load(self, offset: int, n: int) -> None:
                nonlocal loads
                loads += 1
                assert first.metadata.active is not None
                await first.metadata.active.step(lambda machine, now: [record])
                await brokers.until(lambda: partition.leader_epoch == 1)

        def read(log: Log, *arguments: Any) -> Any:
            found = plain(log, *arguments)
            if isinstance(found, Slice) and not loads:
                return NotResident(Evicted(), 0, found.size)
            return found

        monkeypatch.setattr(Log, "read", read)
        answer = await follower.fetch(asks(0), asks(0, leader_epoch=1, index=1))
        told = {each.partition_index: each.error_code for each in answer.responses[0].partitions}
        assert told == {0: ErrorCode.NONE, 1: ErrorCode.UNKNOWN_LEADER_EPOCH}
        await follower.fetch()
        assert partition.leader is not None
        assert partition.leader.followers[3].end_offset == 0, "it has been heard"

    play(script, replica_lag_time_max_ms=600_000)


def test_what_the_next_request_forgets_is_not_named_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the request that names it takes longer than a turn of the loop."""

    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await follower.fetch(asks(3, last_epoch=0))
        monkeypatch.setattr(replica_fetch, "AT_ONCE", 3)
        wire = Wire(await brokers.client.net.connect("b2", PORT))
        told: list[bytes] = []
        wire.on_frame = lambda frame: told.append(bytes(frame))
        session_id, epoch = follower.session
        many = range(1, 9)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=3, replica_epoch=follower.epoch),
            max_wait_ms=60_000,
            min_bytes=1,
            session_id=session_id,
            session_epoch=epoch,
        )
        named = [asks(0, index=index) for index in many]
        request.topics = [FetchTopic(topic_id=follower.topic_id, partitions=named)]
        first = encode_request(request, 17, 1, "b")
        request.session_epoch, request.topics, request.max_wait_ms = epoch + 1, [], 0
        for half in (many[:4], many[4:]):
            forgotten = ForgottenTopic(topic_id=follower.topic_id, partitions=list(half))
            request.forgotten_topics_data.append(forgotten)
        second = encode_request(request, 17, 2, "b")
        for frame in (first, second):
            wire._unsent += len(frame).to_bytes(4, "big") + frame
        wire._flush()
        await brokers.until(lambda: len(told) == 2, 1)
        sessions = brokers.nodes[2].replicas.follower_sessions
        (session,) = [each for each in sessions.of(3) if each.id == session_id]
        assert [index for _, index in session.followed] == [0]
        wire.close()

    play(script, replica_lag_time_max_ms=600_000)


def test_only_brokers_of_the_cluster_have_sessions_and_only_replicas_hear_of_a_partition() -> None:
    async def script(brokers: Brokers) -> None:
        follower = await three_records(brokers)
        await follower.fetch(asks(3, last_epoch=0))
        partition = brokers.partition(2, "t")
        sessions = brokers.nodes[2].replicas.follower_sessions
        before, feeds = {each.id for each in sessions}, list(partition.feeds)
        for replica in (1000, 1001):
            unknown = FollowerClient(brokers, 3, 2, "t")
            unknown._replica = replica
            told = await unknown.fetch(asks(0), epoch=1, wait_ms=0)
            assert (told.error_code, told.session_id) == (ErrorCode.NONE, 0)
        assert {each.id for each in sessions} == before
        later = FollowerClient(brokers, 3, 2, "t")
        await later.fetch(asks(0), epoch=follower.epoch + 5, wait_ms=0)
        now = {each.id for each in sessions}
        assert before < now, "nobody knows of a later incarnation yet"
        before, feeds = now, list(partition.feeds)
        stranger = FollowerClient(brokers, 1, 2, "t")
        told = await stranger.fetch(asks(3, last_epoch=0))
        assert told.session_id, "it may be a replica in a moment"
        assert {each.id for each in sessions} == before | {told.session_id}
        assert partition.feeds == feeds

    play(script, replica_lag_time_max_ms=600_000)


def test_a_fetch_that_fails_in_slices_is_told_and_the_follower_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [ValueError("a defect")]
    plain = replica_fetch._look_at

    def look(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return plain(*arguments)

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "2"})
        assert await brokers.produce(2, "t", b"a") is ErrorCode.NONE
        assert brokers.nodes[2].events.counts[EventKind.REQUEST_FAILED] == 1

    monkeypatch.setattr(replica_fetch, "AT_ONCE", -1)
    monkeypatch.setattr(replica_fetch, "_look_at", look)
    play(script)


# ---- what is told of it ----


def test_every_number_of_replication_moves() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), configs={"min.insync.replicas": "3"})
        before = {at: parsed(render(node)) for at, node in brokers.nodes.items()}
        seen: set[str] = set()

        def look() -> None:
            for at, node in brokers.nodes.items():
                after = parsed(render(node))
                seen.update(n.split("{")[0] for n, v in after.items() if v != before[at].get(n))

        await brokers.produce(2, "t", b"first")
        look()
        brokers.sim.network.cut("b3", "b2")
        controller: Any = brokers.nodes[2].controller
        plain = controller.call

        async def fail(*_: Any, **__: Any) -> None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

        controller.call = fail  # nobody hears of the shrink at first
        await brokers.produce(2, "t", b"second", b"third", acks=1)
        await brokers.until(lambda: brokers.nodes[2].counters.failed_isr_updates)
        controller.call = plain
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2})
        look()
        brokers.sim.network.heal()
        await brokers.until(lambda: brokers.nodes[2].counters.isr_expands)
        look()
        wanted = set(REPLICATION_METRICS)
        # These take an unclean election, a damaged log, and an answer cut short.
        wanted -= {
            "scriba_committed_records_lost_total",
            "kafka_server_replicafetchermanager_failedpartitionscount",
            "kafka_server_replicafetchermanager_maxlag",
        }
        assert wanted <= seen

    play(script, replica_lag_time_max_ms=1500, broker_session_timeout_ms=60_000)


def test_a_follower_whose_log_fails_is_counted_and_the_others_go_on() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), (2, 3), configs={"min.insync.replicas": "1"})
        await brokers.produce(2, "t", b"first")
        state = brokers.partition(3, "t").follower
        assert state is not None
        state.failed()
        assert await brokers.produce(2, "t", b"x", index=1) is ErrorCode.NONE
        assert brokers.nodes[3].replicas.fetchers.failed == 1
        # It does not stay in sync because its neighbour is heard of.
        await brokers.produce(2, "t", b"second", acks=1)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        assert set(brokers.image("t", 1).isr) == {2, 3}

    play(script, replica_lag_time_max_ms=1500)


def test_a_damaged_replica_is_set_aside_and_filled_again() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "1"})
        for value in range(10):
            await brokers.produce(2, "t", b"%d" % value)
        # Nothing lags, and nobody is silent: it leaves the in-sync set by its own word.
        brokers.partition(3, "t").log.fail("a batch is damaged", device=False)
        await brokers.until(lambda: brokers.image("t").isr == (2,), seconds=1)
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})
        assert log_bytes(brokers, 3, "t") == log_bytes(brokers, 2, "t")
        counts = brokers.nodes[3].events.counts
        assert counts[EventKind.REPLICA_REFILLED] == 1
        kept = brokers.nodes[3].world.disk.list("/data")
        assert any(name.endswith("-stray") for name in kept)

    play(script, replica_lag_time_max_ms=600_000)


def test_a_leader_whose_files_are_damaged_is_followed_by_another_at_once() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", *[(2, 3, 1)] * 2, configs={"min.insync.replicas": "2"})
        for value in range(10):
            assert await brokers.produce(2, "t", b"%d" % value) is ErrorCode.NONE
        brokers.partition(2, "t").log.fail("a batch is damaged", device=False)
        await brokers.until(lambda: brokers.image("t").leader == 3, seconds=1)
        assert set(brokers.image("t").isr) == {1, 3}
        await brokers.until(partial(brokers.leads, 3, "t"))
        assert await brokers.produce(3, "t", b"later") is ErrorCode.NONE
        # It is filled anew, while all else that it leads goes on.
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2, 3})
        assert log_bytes(brokers, 2, "t") == log_bytes(brokers, 3, "t")
        assert (brokers.image("t", 1).leader, brokers.image("t", 1).leader_epoch) == (2, 0)

    play(script, replica_lag_time_max_ms=600_000)


def test_a_base_offset_that_flips_under_a_leader_has_another_one_lead() -> None:
    """It lies outside the checksum: what reads it finds it, and nothing goes out."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), configs={"min.insync.replicas": "2"})
        for value in range(10):
            assert await brokers.produce(2, "t", b"%d" % value) is ErrorCode.NONE
        good = log_bytes(brokers, 2, "t")
        *_, (last, _) = walk(good)
        file = brokers.partition(2, "t").log._segments.active.open_file()
        file.pwrite(bytes([good[last + 7] ^ 0x10]), last + 7)
        answer = await brokers.consume(2, "t")
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not answer.records
        await brokers.until(lambda: brokers.image("t").leader == 3, seconds=1)
        await brokers.until(partial(brokers.leads, 3, "t"))
        await brokers.until(lambda: brokers.partition(3, "t").high_watermark.value == 10)
        assert bytes((await brokers.consume(3, "t")).records) == good
        await brokers.until(lambda: set(brokers.image("t").isr) == {1, 2, 3})
        assert log_bytes(brokers, 2, "t") == good

    play(script, replica_lag_time_max_ms=600_000)


def test_the_only_replica_that_is_damaged_leads_nothing_and_is_not_begun_anew() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2,))
        assert await brokers.produce(2, "t", b"a") is ErrorCode.NONE
        brokers.partition(2, "t").log.fail("a batch is damaged", device=False)
        await brokers.until(lambda: brokers.image("t").leader == NO_LEADER, seconds=1)
        assert brokers.image("t").last_known_elr == (2,)
        assert await brokers.produce(2, "t", b"b") is ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(5)
        assert not brokers.nodes[2].events.counts[EventKind.REPLICA_REFILLED]
        # An operator mends it with the node stopped.
        brokers.kill(2)
        await brokers.boot(2)
        await brokers.until(lambda: brokers.image("t").leader == 2)
        await brokers.until(partial(brokers.leads, 2, "t"))
        assert await brokers.produce(2, "t", b"b") is ErrorCode.NONE

    play(script)


def test_one_failed_disk_of_several_gives_its_partitions_away_and_the_rest_serves_on() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", *[(2, 3, 1)] * 6, configs={"min.insync.replicas": "2"})
        for at in range(6):
            assert await brokers.produce(2, "t", b"first", index=at) is ErrorCode.NONE
        replicas = brokers.nodes[2].replicas
        homes = {at: replicas.home(brokers.partition(2, "t", at)) for at in range(6)}
        one, two = replicas.dirs
        lost = [at for at, home in homes.items() if home is two]
        kept = [at for at, home in homes.items() if home is one]
        assert lost
        assert kept
        # Its directories are told of with a heartbeat, which is not waited for.
        log = brokers.partition(2, "t", lost[0]).log
        log.fail("the device does not answer", device=True)
        await brokers.until(
            lambda: all(brokers.image("t", at).leader in (1, 3) for at in lost), seconds=0.4
        )
        assert all(2 not in brokers.image("t", at).isr for at in lost)
        assert all(brokers.image("t", at).leader_epoch == 0 for at in kept)
        for at in kept:
            assert await brokers.produce(2, "t", b"second", index=at) is ErrorCode.NONE
        for at in lost:
            leader = brokers.image("t", at).leader
            await brokers.until(partial(brokers.leads, leader, "t", at))
            assert await brokers.produce(leader, "t", b"second", index=at) is ErrorCode.NONE
            assert await brokers.produce(2, "t", b"x", index=at) is ErrorCode.KAFKA_STORAGE_ERROR

    play(script, log_dirs="/one,/two", broker_heartbeat_interval_ms=2000)


# ---- clients ----


def test_clients_are_told_who_leads_instead() -> None:
    """KIP-951: with the refusal, and where to reach the leader."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        peer = await brokers.dial(3)
        refused = await peer.call(brokers.produced("t", b"x"), 12, ProduceResponse)
        (told,) = refused.responses[0].partition_responses
        assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (2, 0)
        (place,) = refused.node_endpoints
        assert (place.node_id, place.host, place.port) == (2, "b2", 9092)
        old = await peer.call(brokers.produced("t", b"x"), 9, ProduceResponse)
        assert not old.node_endpoints
        topic_id = brokers.nodes[1].image.topics_by_name["t"].id
        asked = FetchTopic(topic_id=topic_id, partitions=[asks(0)])
        stranger = await brokers.dial(1)  # consumers may read from a follower
        fetched = await stranger.call(
            FetchRequest(max_wait_ms=0, min_bytes=0, topics=[asked]), 17, FetchResponse
        )
        (data,) = fetched.responses[0].partitions
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 0)
        assert [each.node_id for each in fetched.node_endpoints] == [2]

    play(script)


def test_producers_that_wait_are_told_who_leads_now() -> None:
    """KIP-951: by then the metadata names the leader that an election made."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "1"})
        await brokers.produce(2, "t", b"committed")
        brokers.sim.network.cut("b2", "b3")
        peer = await brokers.dial(2)
        # The first is decoded, those that repeat it take the fast path.
        waiting = [
            peer.send(brokers.produced("t", b"%d" % at), 12, ProduceResponse) for at in range(3)
        ]
        await brokers.until(lambda: brokers.partition(2, "t").log.end_offset == 4)
        assert not any(each.done() for each in waiting)
        await brokers.elect("t", 3)
        for answer in await asyncio.wait_for(asyncio.gather(*waiting), 10):
            (told,) = answer.responses[0].partition_responses
            assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (3, 1)
            (place,) = answer.node_endpoints
            assert (place.node_id, place.host, place.port) == (3, "b3", 9092)

    play(script, replica_lag_time_max_ms=600_000)


@pytest.mark.parametrize(
    ("before", "code"),
    [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), (3, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_consumers_that_wait_are_told_who_leads_now(before: int, code: ErrorCode) -> None:
    """One on the fast path looks again in a later turn: when the broker follows already."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        await brokers.produce(2, "t", b"committed")
        peer = await brokers.dial(2)
        topic_id = brokers.nodes[1].image.topics_by_name["t"].id
        session = (0, 0)

        def request(wait_ms: int) -> FetchRequest:
            named = [FetchTopic(topic_id=topic_id, partitions=[asks(1)])]
            return FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                session_id=session[0],
                session_epoch=session[1],
                topics=named if session[1] == 0 else [],
            )

        for at in range(before):  # in a session, which takes the fast path
            told = await peer.call(request(0), 17, FetchResponse)
            session = (told.session_id, at + 1)
        waiting = peer.send(request(60_000), 17, FetchResponse)
        await brokers.until(lambda: brokers.partition(2, "t").high_watermark.waits)
        await brokers.elect("t", 3)
        fetched = await asyncio.wait_for(waiting, 10)
        (data,) = fetched.responses[0].partitions
        assert data.error_code == code
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (3, 1)
        (place,) = fetched.node_endpoints
        assert (place.node_id, place.host, place.port) == (3, "b3", 9092)

    play(script)


def test_deleted_records_are_gone_from_every_live_replica_before_it_is_told() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1))
        for value in range(5):
            await brokers.produce(2, "t", b"%d" % value)
        peer = await brokers.dial(2)
        answer = await peer.call(deletion(3, 10_000), 2, DeleteRecordsResponse)
        (told,) = answer.topics[0].partitions
        assert (told.error_code, told.low_watermark) == (0, 3)
        assert [brokers.partition(at, "t").log.start_offset for at in (1, 2, 3)] == [3, 3, 3]
        # One that does not answer is waited for as long as the request allows ...
        brokers.sim.network.cut("b3", "b2")
        answer = await peer.call(deletion(4, 500), 2, DeleteRecordsResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        # ... and one that is dead is not.
        waiting = peer.send(deletion(5, 60_000), 2, DeleteRecordsResponse)
        await asyncio.sleep(1)
        assert not waiting.done()
        brokers.kill(3)
        answer = await asyncio.wait_for(waiting, 20)
        assert answer.topics[0].partitions[0].low_watermark == 5

    play(script)


def test_deleted_records_of_several_partitions_do_not_wait_for_a_broker_that_died() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), (2, 3), (2, 3))
        for index in range(3):
            await brokers.produce(2, "t", b"x", index=index)
        peer = await brokers.dial(2)
        brokers.sim.network.cut("b3", "b2")
        wanted = [DeleteRecordsPartition(partition_index=at, offset=1) for at in range(3)]
        topic = DeleteRecordsTopic(name="t", partitions=wanted)
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=600_000)
        waiting = peer.send(request, 2, DeleteRecordsResponse)
        await asyncio.sleep(1)
        assert not waiting.done()
        brokers.kill(3)
        answer = await asyncio.wait_for(waiting, 120)
        told = [(each.error_code, each.low_watermark) for each in answer.topics[0].partitions]
        assert told == [(0, 1)] * 3

    play(script)


def deletion(offset: int, timeout_ms: int) -> DeleteRecordsRequest:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[wanted])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)


def test_who_was_deposed_does_not_tell_that_records_are_gone_from_every_replica() -> None:
    """Its successor may have them, and begin where it always did."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        await brokers.produce(2, "t", b"x")
        brokers.sim.network.cut("b3", "b2")
        peer, partition = await brokers.dial(2), brokers.partition(2, "t")
        waiting = peer.send(deletion(1, 60_000), 2, DeleteRecordsResponse)
        while not partition.log.start_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.000_01)
        image = brokers.image("t")
        partition.resign(image._replace(leader=3, leader_epoch=image.leader_epoch + 1))
        answer = await asyncio.wait_for(waiting, 10)
        told = answer.topics[0].partitions[0]
        assert (told.error_code, told.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert brokers.partition(3, "t").log.start_offset == 0

    play(script)


def test_who_leads_anew_hears_from_its_followers_where_their_logs_begin() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        await brokers.produce(2, "t", b"x")
        brokers.sim.network.cut("b3", "b2")
        peer, partition = await brokers.dial(2), brokers.partition(2, "t")
        replicas, image = brokers.nodes[2].replicas, brokers.image("t")
        answer = await peer.call(deletion(1, 500), 2, DeleteRecordsResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        partition.resign(image._replace(leader=3, leader_epoch=image.leader_epoch + 1))
        replicas._follow(partition, image._replace(leader_epoch=image.leader_epoch + 2))
        assert partition.leader is not None
        answer = await peer.call(deletion(1, 500), 2, DeleteRecordsResponse)
        assert brokers.partition(3, "t").log.start_offset == 0
        assert answer.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT

    play(script)


def test_a_new_leader_that_knows_less_than_clients_saw_has_them_wait() -> None:
    """KIP-207: no offset goes back, and none is out of range that was read before."""

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3, 1), configs={"min.insync.replicas": "2"})
        for value in range(5):
            await brokers.produce(2, "t", b"%d" % value)
        # Nobody tells the follower of the last high watermark, and nobody fetches from it.
        for other in ("b1", "b2"):
            brokers.sim.network.cut("b3", other)
        partition = brokers.partition(3, "t")
        partition._renew_watermarks(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), 3)
        image = brokers.image("t")._replace(leader=3, leader_epoch=1, partition_epoch=1)
        replicas = brokers.nodes[3].replicas
        replicas.fetchers.drop(partition)
        replicas._follow(partition, image)
        assert partition.leader is not None
        assert partition.high_watermark.value == 3
        between = await brokers.consume(3, "t", offset=5)
        assert (between.error_code, between.high_watermark, len(between.records)) == (0, 3, 0)
        peer = await brokers.dial(3)
        wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]
        )
        latest = await peer.call(request, 9, ListOffsetsResponse)
        assert latest.topics[0].partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    play(script)


def test_a_fast_path_outlives_what_happens_to_other_partitions(monkeypatch: Any) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "1"})
        await brokers.create("other", (3, 1), configs={"min.insync.replicas": "1"})
        node = brokers.nodes[2]
        peer = await brokers.dial(2)

        async def produced() -> int:
            before = node.counters.fastpath_produces
            answer = await peer.call(brokers.produced("t", b"x"), 12, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0
            return node.counters.fastpath_produces - before

        await produced()
        assert await produced() == 1
        learnt: list[Any] = []
        plain = ProduceFastPath._learn

        def learn(self: ProduceFastPath, frame: memoryview) -> bool:
            learnt.append(self)
            return plain(self, frame)

        monkeypatch.setattr(ProduceFastPath, "_learn", learn)
        await brokers.elect("other", 1)
        await brokers.create("third", (3, 1))
        assert await produced() == 1
        assert not learnt
        # Of a leadership that ended it knows all the same: nothing is taken here then.
        await brokers.elect("t", 3)
        await brokers.until(partial(brokers.leads, 3, "t"))
        assert await brokers.produce(2, "t", b"x") is ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(script)


# ---- logs that lie apart ----


def test_a_replica_behind_the_start_of_its_leaders_log_begins_anew_there() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), configs={"min.insync.replicas": "1"})
        await brokers.produce(2, "t", b"both have it")
        brokers.kill(3)
        for value in range(9):
            await brokers.produce(2, "t", b"%d" % value)
        partition = brokers.partition(2, "t")
        await brokers.until(lambda: partition.high_watermark.value == 10)
        partition.move_start(8)
        await brokers.boot(3)
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})
        log = brokers.partition(3, "t").log
        assert (log.start_offset, log.end_offset) == (8, 10)
        assert brokers.nodes[3].counters.records_lost == 0

    play(script)


def test_a_new_replica_of_a_log_that_begins_within_a_batch_takes_that_batch_whole() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2,), configs={"min.insync.replicas": "1"})
        for _ in range(3):
            assert await brokers.produce(2, "t", *(b"%d" % at for at in range(5))) is ErrorCode.NONE
        brokers.partition(2, "t").move_start(7)
        await brokers.reassign("t", (2, 3))
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})
        assert await brokers.produce(2, "t", b"on both") is ErrorCode.NONE
        follower = brokers.partition(3, "t")
        await brokers.until(lambda: follower.log.start_offset == 7)
        assert (follower.log.first_segment_offset, follower.log.end_offset) == (5, 16)
        assert [record.value for record in await stored_records(follower)] == [
            *(b"%d" % at for at in (0, 1, 2, 3, 4) * 2),
            b"on both",
        ]
        assert not brokers.nodes[3].counters.records_lost
        await brokers.reboot(3)
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})
        log = brokers.partition(3, "t").log
        assert (log.start_offset, log.end_offset) == (7, 16)

    play(script)


def test_committed_records_that_an_unclean_election_cost_are_told() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create(
            "t",
            (2, 3),
            configs={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
        )
        await brokers.produce(2, "t", b"a", b"b")
        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t").isr == (2,))
        await brokers.produce(2, "t", b"c", b"d", b"e")
        await brokers.nodes[2].replicas.checkpoint_high_watermarks()
        brokers.kill(2)
        await brokers.until(lambda: brokers.image("t").leader < 0)
        await brokers.boot(3)
        await brokers.until(lambda: brokers.image("t").leader == 3)
        await brokers.until(partial(brokers.leads, 3, "t"))
        assert await brokers.produce(3, "t", b"another") is ErrorCode.NONE
        await brokers.boot(2)
        await brokers.until(lambda: set(brokers.image("t").isr) == {2, 3})
        assert log_bytes(brokers, 2, "t") == log_bytes(brokers, 3, "t")
        node = brokers.nodes[2]
        assert node.counters.records_lost == 3
        kind = EventKind.LOG_TRUNCATED_BELOW_HIGH_WATERMARK
        (told,) = [event for event in node.events.since() if event.kind is kind]
        assert told.about == "t-0"
        assert "offsets 2 to 4" in told.text

    play(script)


def test_a_truncation_that_finds_no_room_keeps_no_other_from_being_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are asked for by one answer, and cut in one go."""
    shorten = Truncation.shorten
    refused: list[Log] = []

    def once_without_room(self: Truncation, *args: Any) -> Any:
        if self._log.partition == 0 and not refused:
            refused.append(self._log)
            raise self._log.refused("cannot be truncated", OSError(errno.ENOSPC, "no space left"))
        return shorten(self, *args)

    async def script(brokers: Brokers) -> None:
        unclean = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        await brokers.create("t", *[(2, 3)] * 2, configs=unclean)
        both = range(2)
        for at in both:
            await brokers.produce(2, "t", b"a", b"b", index=at)
        brokers.kill(3)
        await brokers.until(lambda: all(brokers.image("t", at).isr == (2,) for at in both))
        for at in both:
            await brokers.produce(2, "t", b"c", b"d", b"e", index=at)
        await brokers.nodes[2].replicas.checkpoint_high_watermarks()
        brokers.kill(2)
        await brokers.until(lambda: all(brokers.image("t", at).leader < 0 for at in both))
        await brokers.boot(3)
        for at in both:
            await brokers.until(partial(brokers.leads, 3, "t", at))
            await brokers.produce(3, "t", b"another", index=at)
        monkeypatch.setattr(Truncation, "shorten", once_without_room)
        await brokers.boot(2)
        await brokers.until(lambda: all(set(brokers.image("t", at).isr) == {2, 3} for at in both))
        assert refused
        node = brokers.nodes[2]
        told = node.events.since()
        failed = [event.about for event in told if event.kind is EventKind.FOLLOWER_FAILED]
        assert failed == ["t-0"]
        lost = EventKind.LOG_TRUNCATED_BELOW_HIGH_WATERMARK
        assert {event.about for event in told if event.kind is lost} == {"t-0", "t-1"}
        assert node.counters.records_lost == 6
        for at in both:
            assert log_bytes(brokers, 2, "t", at) == log_bytes(brokers, 3, "t", at)

    play(script)


def test_truncations_share_their_checkpoints() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", *[(2, 3, 1)] * 8, configs={"min.insync.replicas": "1"})
        for at in range(8):
            await brokers.produce(2, "t", b"committed", index=at)
        for other in ("b1", "b3"):
            brokers.sim.network.cut("b2", other)
        for at in range(8):
            await brokers.produce(2, "t", b"not", index=at, acks=1)
        brokers.kill(2)
        await brokers.until(lambda: all(brokers.image("t", at).leader != 2 for at in range(8)))
        brokers.sim.network.heal()
        written: list[str] = []
        plain = SimDisk.write_atomic

        async def write(self: SimDisk, path: str, data: bytes) -> None:
            written.append(path.rpartition("/")[2])
            await plain(self, path, data)

        SimDisk.write_atomic = write  # type: ignore[method-assign]
        try:
            await brokers.boot(2)
            written.clear()
            truncated = EventKind.FOLLOWER_TRUNCATED
            # One record may have been on its way when the network was cut.
            await brokers.until(lambda: brokers.nodes[2].events.counts[truncated] >= 7)
        finally:
            SimDisk.write_atomic = plain  # type: ignore[method-assign]
        # A leader or two of eight partitions: an answer or two with all that is to be truncated.
        assert written.count(RECOVERY_POINTS) <= 4

    play(script)
