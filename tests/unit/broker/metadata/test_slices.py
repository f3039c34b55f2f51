"""Changes of thousands of partitions hold the loop of no node: so many at a time, by count."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scriba.broker.metadata import active as active_module
from scriba.broker.metadata.follower import SLICE, TOLD_AT_ONCE
from scriba.broker.metadata.quorum import batches, snapshots
from scriba.broker.metadata.quorum.batches import BatchBuilder, read_batches
from scriba.broker.metadata.quorum.snapshots import QuorumFacts
from scriba.broker.node import Node
from scriba.controller.image import ClusterImage, Delta
from scriba.controller.levels import NEWEST, encode
from scriba.controller.machine import Controller
from scriba.controller.plans import BARRIER, Step, twice
from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.records.header import read_header
from scriba.runtime.loop import pace
from scriba.settings import TopicSettings
from scriba.storage.log import Log
from scriba.testing.sim.world.world import ProcessWorld, SimHost
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from scriba.wire.messages.stored import (
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    decode_metadata_record,
)
from scriba.wire.schema import Message
from tests.unit.broker.metadata.quorum_rig import DIRECTORY, Rig, simulate

InANode = Callable[..., None]
MANY = 10 * SLICE
LOG_DIR = f"{DIRECTORY}/__cluster_metadata-0"


class Turns:
    """Tells turns of the loop apart."""

    def __init__(self) -> None:
        self._turn = 0
        self._ends = False

    def now(self) -> int:
        if not self._ends:
            self._ends = True
            asyncio.get_running_loop().call_soon(self._end)
        return self._turn

    def _end(self) -> None:
        self._turn += 1
        self._ends = False


def test_long_change_that_fails_after_its_caller_has_gone_is_not_told_on_stderr(
    in_a_node: InANode,
) -> None:
    """A node that stops cancels who waits, and leads no more before the change has ended."""
    told: list[str] = []

    async def script(node: Node, world: ProcessWorld) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, what: told.append(what["message"]))
        active = node.metadata.active
        assert active is not None
        topic = CreatableTopic(name="wide", num_partitions=MANY, replication_factor=1)
        calling = asyncio.ensure_future(active.call(CreateTopicsRequest(topics=[topic])))
        while active._long is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        changing = active._long
        calling.cancel()
        active.end()
        await changing
        del calling
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()

    in_a_node(script)
    assert told == []


def test_lost_broker_costs_the_followers_of_the_log_a_slice_per_turn() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert await rig.create("wide", MANY) is ErrorCode.NONE
            told: list[tuple[int, int]] = []
            turns = Turns()

            def count(delta: Delta, image: ClusterImage) -> None:
                told.append((turns.now(), sum(map(len, delta.partitions.values()))))

            rig.node.subscribe(count)
            await rig.beat(want_fence=True)
            assert sum(partitions for _, partitions in told) == MANY
            assert max(partitions for _, partitions in told) <= SLICE
            assert len({turn for turn, _ in told}) == len(told)
            leaders = {p.leader for p in rig.node.image.topics_by_name["wide"].partitions.values()}
            assert leaders == {-1}
            await rig.stop()

        await live(body)

    simulate(story)


def test_collector_looks_after_each_slice_of_a_long_change() -> None:
    """By itself it comes late: tables of thousands of partitions are single objects to it."""

    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert await rig.create("wide", MANY) is ErrorCode.NONE
            looked: Counter[int] = Counter()

            def count(phase: str, info: dict[str, int]) -> None:
                looked[info["generation"]] += phase == "start"

            before = gc.get_threshold()
            gc.set_threshold(1_000_000)
            gc.callbacks.append(count)
            try:
                await rig.beat(want_fence=True)
            finally:
                gc.callbacks.remove(count)
                gc.set_threshold(*before)
            assert looked.total() >= MANY // SLICE
            assert looked[1] >= looked.total() // pace.OLDER_EVERY > 0
            assert not looked[2]
            await rig.stop()

        await live(body)

    simulate(story)


def test_phase_of_a_plan_finds_the_one_before_it_in_the_image() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert await rig.create("t") is ErrorCode.NONE
            active = rig.node.active
            assert active is not None
            image = active.machine.image
            topic_id = image.topics_by_name["t"].id
            record = PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[])
            epochs: list[int] = []

            def plan(machine: Controller, now: Instant) -> Iterator[Step]:
                for _ in range(3):
                    yield record
                    yield BARRIER
                    yield BARRIER
                    epochs.append(image.topics_by_id[topic_id].partitions[0].partition_epoch)

            await active.step(plan)
            assert epochs == [1, 2, 3]
            with pytest.raises(AssertionError, match="two records of one slice"):
                await active.step(lambda machine, now: [record, record])
            await rig.stop()

        await live(body)

    simulate(story)


def test_atomic_plan_is_a_batch_from_barrier_to_barrier() -> None:
    """And each is whole in the log, however many slices it takes."""

    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert await rig.create("wide", MANY) is ErrorCode.NONE
            active = rig.node.active
            assert active is not None
            topic_id = rig.node.image.topics_by_name["wide"].id

            def plan() -> Iterator[Step]:
                for count in (1, MANY, SLICE, 2):
                    for index in range(count):
                        yield PartitionChangeRecord(topic_id=topic_id, partition_id=index, isr=[])
                    yield BARRIER

            log = rig.node.quorum.log
            before = log.end_offset
            await active._carry_out(plan(), atomic=True)
            assert active.machine.image == rig.node.image
            found = await read_batches(log, before, QuorumFacts(0, None))
            assert [len(batch.records) for batch in found] == [1, MANY, SLICE, 2]
            await rig.stop()

        await live(body)

    simulate(story)


def test_atomic_plan_is_checked_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert await rig.create("wide", MANY) is ErrorCode.NONE
            active = rig.node.active
            assert active is not None
            topic_id = rig.node.image.topics_by_name["wide"].id
            checked: list[int] = []

            def count(records: list[Message], *changed: Any) -> tuple[Any, ...] | None:
                checked.append(len(records))
                return twice(records, *changed)

            def plan(*indexes: int) -> Iterator[Step]:
                for index in indexes:
                    yield PartitionChangeRecord(topic_id=topic_id, partition_id=index, isr=[])

            monkeypatch.setattr(active_module, "twice", count)
            await active._carry_out(plan(*range(MANY)), atomic=True)
            assert sum(checked) == MANY
            assert max(checked) <= SLICE
            before = rig.node.quorum.log.end_offset
            with pytest.raises(AssertionError, match="two records of one slice"):
                await active._carry_out(plan(*range(MANY - 1), 0), atomic=True)
            assert rig.node.quorum.log.end_offset == before, "a batch is one slice"
            await rig.stop()

        await live(body)

    simulate(story)


def test_records_of_others_are_decoded_a_slice_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches, and one with many records."""

    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            now = world.clock.now()
            log = Log.open(
                world.disk, "/data/t-0", "t", 0, bytes(16), TopicSettings(), now, clean=True
            )
            value = encode(
                PartitionChangeRecord(topic_id=bytes(16), partition_id=1, leader=2), NEWEST
            )
            for count in (*[SLICE] * 10, MANY):
                builder = BatchBuilder()
                for _ in range(count):
                    builder.add(value)
                batch = builder.build(1)
                log.append(memoryview(batch), read_header(batch), 1, now)
            decoded: Counter[int] = Counter()
            turns = Turns()

            def decode(buf: Any) -> Any:
                decoded[turns.now()] += 1
                return decode_metadata_record(buf)

            monkeypatch.setattr(batches, "decode_metadata_record", decode)
            found = await read_batches(log, 0, QuorumFacts(0, None))
            assert [len(batch.records) for batch in found] == [SLICE] * 10 + [MANY]
            assert decoded.total() == 2 * MANY
            assert max(decoded.values()) <= batches.DECODED_AT_ONCE
            await log.close()

        await live(body)

    simulate(story)


def test_large_topic_is_whole_in_the_image_and_told_of_in_parts() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            told: list[tuple[int, int, int]] = []
            turns = Turns()

            def count(delta: Delta, image: ClusterImage) -> None:
                there = len(image.topics_by_name["wide"].partitions)
                told.append((turns.now(), sum(map(len, delta.partitions.values())), there))

            rig.node.subscribe(count)
            assert await rig.create("wide", MANY) is ErrorCode.NONE
            assert [partitions for _, partitions, _ in told] == [TOLD_AT_ONCE] * 5
            assert {there for _, _, there in told} == {MANY}
            assert len({turn for turn, _, _ in told}) == 5
            await rig.stop()

        await live(body)

    simulate(story)


def test_snapshot_is_loaded_a_slice_at_a_time() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert await rig.create("wide", MANY) is ErrorCode.NONE
            await rig.node.follower._snapshot(world.clock.now())
            (position, *_) = snapshots.find(world.disk, LOG_DIR)
            paces: list[None] = []

            async def pace() -> None:
                paces.append(None)

            found = await snapshots.read(world.disk, LOG_DIR, position, pace)
            assert found.image == rig.node.image
            assert len(paces) >= MANY // snapshots.RECORDS_PER_LOOK
            await rig.stop()

        await live(body)

    simulate(story)


def test_broker_looks_only_at_partitions_that_are_or_were_placed_on_it(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        image, delta = node.image.copy(), Delta()
        topic_id = b"of other brokers"
        elsewhere = [
            PartitionRecord(partition_id=n, topic_id=topic_id, replicas=[7, 8], isr=[7], leader=7)
            for n in range(SLICE)
        ]
        elsewhere[3].replicas = [7, node.id]
        end = image.end_offset
        image.replay([TopicRecord(name="far", topic_id=topic_id), *elsewhere], end, 1, delta)
        ((name, _, mine),) = node.replicas._touched(delta, image)
        assert (name, [index for index, _ in mine]) == ("far", [3])
        gone = Delta()
        changes = [
            PartitionChangeRecord(topic_id=topic_id, partition_id=n, replicas=[8, 9])
            for n in range(SLICE)
        ]
        image.replay(changes, image.end_offset, 1, gone)
        ((_, _, mine),) = node.replicas._touched(gone, image)
        assert [index for index, _ in mine] == [3], "it has to leave"

    in_a_node(script)


def test_fast_paths_forget_once_for_all_leaderships_that_end_together(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        topic = CreatableTopic(name="wide", num_partitions=SLICE, replication_factor=1)
        await node.metadata.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        await node.replicas.applied()
        led = [node.replicas.find("wide", index) for index in range(SLICE)]
        topic_id = node.image.topics_by_name["wide"].id
        image, delta = node.image.copy(), Delta()
        records = [
            PartitionChangeRecord(topic_id=topic_id, partition_id=index, leader=7)
            for index in range(SLICE)
        ]
        image.replay(records, image.end_offset, image.epoch, delta)
        forgotten: list[None] = []
        monkeypatch.setattr(node.dispatch, "forget_partitions", lambda: forgotten.append(None))
        assert all(partition.leader is not None for partition in led)
        node.replicas._depose(
            [("wide", topic_id, list(image.topics_by_id[topic_id].partitions.items()))]
        )
        assert all(partition.leader is None for partition in led)
        assert len(forgotten) == 1

    in_a_node(script)
