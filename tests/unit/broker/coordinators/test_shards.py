"""The runtime of coordinators, seen with a machine that is easy to follow (`toy_shards`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.coordinators.shard import partition_for
from scriba.broker.coordinators.shard_log import read_back
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.records.batch import EndTxnMarker, end_txn_batch, read_header
from scriba.records.compression import Codec
from scriba.runtime.loop.pace import Pace
from scriba.settings import NodeSettings
from scriba.storage.log import Slice
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.admin import DeleteTopicsRequest, DeleteTopicState
from scriba.wire.messages.coordinators import OFFSETS_TOPIC
from scriba.wire.messages.groups import HeartbeatRequest
from scriba.wire.schema import Message
from tests.unit.broker.coordinators.toy_shards import (
    CALLER,
    Toy,
    ask,
    begun,
    number,
    ready,
    refusal,
    toy,
    with_toys,
)

InANode = Callable[..., None]


@pytest.mark.parametrize(
    ("key", "partition"),
    [("", 0), ("hello", 22), ("g", 3), ("polygenelubricants", 0), ("Straße", 22), ("𝔤", 31)],
)
def test_a_group_lives_where_kafka_puts_it(key: str, partition: int) -> None:
    assert partition_for(key, 50) == partition


@pytest.mark.parametrize("length", [0, 1, 255, 257, 1023, 1024, 1025, 5000])
def test_names_of_every_length_have_the_hash_code_that_java_gives_them(length: int) -> None:
    key = ("Gr\u00fc\u00dfe, \U0001f600 " * length)[:length]
    units = key.encode("utf-16-be")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) % 2**32
    signed = number - 2**32 if number >= 2**31 else number
    assert partition_for(key, 50) == (0 if signed == -(2**31) else abs(signed)) % 50


def test_what_was_stored_is_there_after_a_restart() -> None:
    sim = SimWorld(seed=3)
    host = sim.host("broker")
    seen: list[int] = []

    async def serve(world: ProcessWorld) -> None:
        node = Node(NodeSettings.parse({"log.dirs": "/data"}), world)
        await node.start()
        shards = await with_toys(node, Codec.LZ4)
        await ready(shards)
        before = await number(ask(shards, "read"))
        machine = toy(shards)
        assert [origin.offset for origin in machine.origins] == list(range(before))
        assert machine.loaded_at is not None
        while len(seen) % 100 or len(seen) == before:
            seen.append(await number(ask(shards, "add")))
        await asyncio.Event().wait()

    async def main() -> None:
        for _ in range(3):
            process = host.start(serve)
            goal = len(seen) + 100
            while len(seen) < goal:
                await asyncio.wait([process.task], timeout=0.01)
                assert not process.task.done()
            process.kill()

    sim.run(main())
    assert seen == list(range(1, 301))


def test_a_reply_waits_for_the_device_where_only_that_counts(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        request = HeartbeatRequest(group_id="g", generation_id=5, member_id="add")
        index = shards.partition_of("g")
        partition = node.replicas.find(OFFSETS_TOPIC, index)
        adding = shards.begin(index, request, CALLER)
        assert not isinstance(adding, Message), "answered before the flush"
        read = HeartbeatRequest(group_id="g", member_id="read")
        reading = shards.begin(index, read, CALLER)
        assert not isinstance(reading, Message), "what it read may yet be lost"
        assert partition.high_watermark.value == 0
        assert await number(reading) == 5
        assert partition.log.flushed_offset == 1
        assert await number(adding) == 5
        assert isinstance(shards.begin(index, read, CALLER), Message), "nothing to wait for"

    in_a_node(script, log_flush_interval_messages=1)


def test_those_who_wait_are_answered_by_others_and_by_time(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        await ready(shards, "another")
        waiting = [await begun(ask(shards, "wait")) for _ in range(3)]
        began = world.clock.mono_ms()
        late = await begun(ask(shards, "nap", 30_000))
        soon = await begun(ask(shards, "nap", 7_000))
        other = await begun(ask(shards, "nap", 50, group="another"))
        assert await number(ask(shards, "add", 4)) == 4
        assert [await number(each) for each in waiting] == [4, 4, 4]
        assert await number(other) == began + 50
        assert await number(soon) == began + 7_000
        assert await number(late) == began + 30_000
        assert await refusal(ask(shards, "refuse")) is ErrorCode.UNKNOWN_MEMBER_ID
        caller = toy(shards).callers[-1]
        assert (caller.version, caller.client_id, caller.host) == (4, "tester", "10.0.0.9")
        assert len({each.fresh for each in toy(shards).callers}) == len(toy(shards).callers)
        assert (EventKind.GROUP_REBALANCE, "g", "is 4") in [
            (e.kind, e.about, e.text) for e in node.events.since()
        ]

    in_a_node(script)


def test_a_full_disk_throws_the_shard_away_and_room_brings_it_back(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        assert await number(ask(shards, "add", 3)) == 3
        waiting = await begun(ask(shards, "wait"))
        first = toy(shards)
        faults = world.sim_disk.volume.faults
        room, faults.capacity = faults.capacity, world.sim_disk.volume.used
        assert await refusal(ask(shards, "add", 4)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await refusal(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await refusal(ask(shards, "read")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await ready(shards)
        assert toy(shards) is not first
        assert await refusal(ask(shards, "add", 4)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        faults.capacity = room
        await ready(shards)
        assert await number(ask(shards, "read")) == 3
        assert await number(ask(shards, "add", 4)) == 7
        assert shards.counts.failures == 2

    in_a_node(script)


def test_a_bug_in_one_shard_costs_no_other(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        await ready(shards, "another")
        assert await number(ask(shards, "add", 3)) == 3
        waiting = await begun(ask(shards, "wait", group="another"))
        with pytest.raises(RuntimeError):
            await ask(shards, "fail")
        await ready(shards)
        toy(shards).naps.append((-1, 0))
        failing = await begun(ask(shards, "nap", 10_000))
        assert await refusal(failing) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await ready(shards)
        assert await number(ask(shards, "read")) == 3
        assert await number(ask(shards, "add", group="another")) == 1
        assert await number(waiting) == 1

    in_a_node(script)


def test_a_bug_met_after_the_append_costs_the_shard_and_not_what_was_stored(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        assert await number(ask(shards, "add", 3)) == 3
        waiting = await begun(ask(shards, "wait"))
        toy(shards).cannot_replay.add("g")
        assert await refusal(ask(shards, "add", 4)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await refusal(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await ready(shards)
        assert await number(ask(shards, "read")) == 7, "it was in the log"
        toy(shards).cannot_replay.add("anything")
        shards.marker_appended(shards.partition_of("g"), 70, 0, True)
        assert await refusal(ask(shards, "read")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await ready(shards)
        assert await number(ask(shards, "add", 1)) == 8

    in_a_node(script)


def test_requests_too_large_for_the_topic_do_not_keep_other_groups_waiting(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        began = world.clock.mono_ms()
        for _ in range(10):
            too_much = ask(shards, "add too much", 20_000)
            assert await refusal(too_much) is ErrorCode.UNKNOWN_SERVER_ERROR
            await ready(shards)
        assert world.clock.mono_ms() - began < 1_000

    in_a_node(script, message_max_bytes=10_000)


def test_while_it_loads_callers_are_told_so(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        assert await number(ask(shards, "add many", 500)) == 500
        index = shards.partition_of("g")
        partition = node.replicas.find(OFFSETS_TOPIC, index)
        shards.unload(index)
        assert await refusal(ask(shards, "read")) is ErrorCode.NOT_COORDINATOR
        world.sim_disk.volume.faults.cold = 1.0
        node.on_lead(partition)
        assert await refusal(ask(shards, "read")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        node.on_lead(partition)  # the same leadership, told again
        marker = memoryview(end_txn_batch(9, 0, EndTxnMarker(True, 0), 1))
        partition.append(marker, read_header(marker), world.clock.now())
        shards.marker_appended(index, 9, 0, True)
        await ready(shards)
        assert toy(shards).numbers == {f"g{i}": i for i in range(500)}
        assert shards.counts.loads.count == len(shards.partitions_led()) + 1

    in_a_node(script)


def test_records_that_may_be_parted_go_in_batches_that_fit(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        partition = node.replicas.find(OFFSETS_TOPIC, shards.partition_of("g"))
        assert await number(ask(shards, "add many", 50)) == 50
        found = partition.log.read(0, 1, 50)
        assert isinstance(found, Slice)
        assert found.size <= 10_000
        assert partition.log.end_offset == 50
        assert [o.offset for o in toy(shards).origins] == list(range(50))

    in_a_node(script, message_max_bytes=10_000)


def test_a_record_the_topic_cannot_take_is_refused_for_good(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        assert await number(ask(shards, "add", 2)) == 2
        too_much = ask(shards, "add too much", 20_000)
        assert await refusal(too_much) is ErrorCode.UNKNOWN_SERVER_ERROR
        await ready(shards)
        assert await number(ask(shards, "add", 2)) == 4

    in_a_node(script, message_max_bytes=10_000)


def test_what_a_transaction_stores_counts_when_its_marker_comes(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        index = shards.partition_of("g")
        partition = node.replicas.find(OFFSETS_TOPIC, index)

        def end(epoch: int, commit: bool) -> None:
            marker = memoryview(end_txn_batch(70, epoch, EndTxnMarker(commit, 0), 1))
            partition.append(marker, read_header(marker), world.clock.now())
            shards.marker_appended(index, 70, epoch, commit)

        for _ in range(3):
            assert await number(ask(shards, "add in a transaction", 5)) == 5
        assert await number(ask(shards, "read")) == 0
        assert partition.stable_offset.value == 0
        end(5, commit=True)
        assert await number(ask(shards, "read")) == 5
        fenced = ask(shards, "add in a transaction", 4)
        assert await refusal(fenced) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await number(ask(shards, "add in a transaction", 6)) == 11
        end(6, commit=False)
        await ask(shards, "add in a transaction", 7)
        machine = toy(shards)
        shards.unload(index)
        node.on_lead(partition)
        await ready(shards)
        assert toy(shards).numbers == machine.numbers == {"g": 5}
        assert toy(shards).pending == machine.pending == {70: {"g": 12}}
        assert [o.producer_epoch for o in toy(shards).origins] == [5, 5, 5, 6, 7]

    in_a_node(script)


def test_what_is_to_be_sent_leaves_when_it_is_committed(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        partition = node.replicas.find(OFFSETS_TOPIC, shards.partition_of("g"))
        sent: list[Any] = []

        def note(what: Any, epoch: int) -> None:
            assert partition.high_watermark.value > len(sent)
            sent.append((what, epoch))

        shards.on_send = note
        for amount in (1, 2, 3):
            await begun(ask(shards, "send", amount))
        assert sent == []
        await ask(shards, "read")
        epoch = partition.leader_epoch
        assert sent == [("sent 1", epoch), ("sent 2", epoch), ("sent 3", epoch)]

    in_a_node(script, log_flush_interval_messages=1)


def test_machines_hear_of_topics_and_lose_their_own(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        machine = toy(shards)
        await node.controller.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="nobody")]), 6)
        shards.topics_changed(["b", "a"])
        shards.topics_changed(["a"])
        waiting = await begun(ask(shards, "wait"))
        await ask(shards, "nap", 1)
        assert machine.told[-2:] == ["a", "b"]
        await node.controller.call(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=OFFSETS_TOPIC)]), 6
        )
        await node.replicas.settled()
        assert await refusal(waiting) is ErrorCode.NOT_COORDINATOR
        assert await refusal(ask(shards, "read")) is ErrorCode.NOT_COORDINATOR
        assert shards.partitions_led() == []

    in_a_node(script)


class Hurried:
    """A clock on which every look takes ten milliseconds."""

    def __init__(self) -> None:
        self.looks = 0

    def mono_ms(self) -> int:
        self.looks += 1
        return 10 * self.looks

    def wall_ms(self) -> int:
        return self.mono_ms()

    def now(self) -> Instant:
        return Instant(self.mono_ms(), self.wall_ms())


def test_loading_gives_way_between_batches(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        shards = await with_toys(node)
        await ready(shards)
        for _ in range(50):
            await ask(shards, "add")
        partition = node.replicas.find(OFFSETS_TOPIC, shards.partition_of("g"))
        turns = 0

        async def bystander() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        watching = asyncio.get_running_loop().create_task(bystander())
        machine = Toy(0)
        await read_back(lambda: partition.log, machine, 1 << 20, Pace(Hurried()))
        watching.cancel()
        assert machine.numbers == {"g": 50}
        assert turns >= 50

    in_a_node(script)
