"""Committed records that a node cannot apply: it stops there, says so, and does not end."""

import asyncio

import pytest

from scriba.broker.metadata.quorum.batches import BatchBuilder
from scriba.broker.node import Node
from scriba.client import NewTopic
from scriba.config import StartError
from scriba.controller.image import ImageError
from scriba.events import EventKind
from scriba.records.batch import ControlType, control_batch
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.stored import (
    FRAME_VERSION,
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    encode_metadata_record,
)
from scriba.wire.schema import Message
from tests.sim.broker_stage import Stage
from tests.sim.quorum.nodes import SimQuorum, play, write, written
from tests.sim.readiness import SETTINGS, ready
from tests.unit.broker.scraping import scrape

KNOWN = bytes([FRAME_VERSION, NoOpRecord.KEY or 0])
NEWER = KNOWN + bytes([99])
"""A record whose type is known, in a version that is not."""


def set_config(name: str, value: str) -> Message:
    return ConfigRecord(resource_type=4, resource_name="", name=name, value=value)


def append_newer(node: Node) -> int:
    """The active controller is of a release that writes, and applies, what others cannot read; the
    offset of that record. A record that all can read is in the same batch before it."""
    builder, readable = BatchBuilder(), set_config("log.retention.ms", "999")
    builder.add(encode_metadata_record(readable, 0))
    builder.add(NEWER)
    quorum = node.metadata.quorum
    batch = quorum.append(builder, [readable, NoOpRecord()], quorum.epoch)
    return batch.base_offset


async def stopped(quorum: SimQuorum, *node_ids: int) -> None:
    def all_have() -> bool | None:
        return all(quorum.node(i).metadata.follower.stopped for i in node_ids) or None

    await quorum.until(all_have, 20, "they do not say that they have stopped")


def test_record_of_a_later_release_stops_the_image_and_no_node() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        others = [i for i in quorum.ids if i != leader]
        await write(quorum.node(leader), 7)
        await quorum.same_image()
        at = append_newer(quorum.node(leader))
        await write(quorum.node(leader), 8)
        await stopped(quorum, *others)
        assert written(quorum.node(leader)) == 8, "what is committed is committed"
        for other in others:
            node = quorum.node(other)
            assert (written(node), node.image.end_offset) == (7, at), "all of the batch, or nothing"
            assert node.events.counts[EventKind.METADATA_NOT_APPLIED] == 1
            assert f"the record at offset {at + 1} cannot be read" in node.metadata.follower.stopped
            assert node.metadata.quorum.log.end_offset > at + 2, "it copies, votes and counts"
        quorum.kill(leader)

        def passed_on() -> bool | None:
            counts = [node.events.counts for node in quorum.alive.values()]
            return all(each[EventKind.QUORUM_NOT_LED] for each in counts) or None

        await quorum.until(passed_on, 60, "not both of them were elected and gave way")
        assert not quorum.actives()
        quorum.kill(others[0])
        await quorum.start(others[0])
        await stopped(quorum, others[0])
        assert (written(quorum.node(others[0])), len(quorum.alive)) == (7, 2)

    play(story)


@pytest.mark.parametrize("before", [0, 3])
def test_record_that_contradicts_the_image_is_not_skipped_and_its_batch_has_no_effect(
    before: int,
) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await write(quorum.node(leader), 7)
        await quorum.same_image()
        active = quorum.node(leader).metadata.active
        assert active is not None
        good = [set_config("log.retention.ms", str(number)) for number in range(1, before + 1)]
        bad = PartitionChangeRecord(topic_id=b"nobody knows it.", partition_id=0)
        # Several batches in one turn of the loop, so that they are folded in one slice.
        for record in good:
            active._append([record])
        last = quorum.node(leader).metadata.quorum.log.end_offset
        with pytest.raises(ImageError):
            active._append([set_config("log.retention.ms", "999"), bad])
        await stopped(quorum, *quorum.ids)
        for node in quorum.alive.values():
            assert node.image.end_offset == last
            assert written(node) == (before or 7)
            assert "no topic with id" in node.metadata.follower.stopped
        assert not quorum.actives(), "whoever led has resigned"
        await asyncio.sleep(60)
        assert len(quorum.alive) == 3
        assert not quorum.actives()
        with pytest.raises(AssertionError):
            await quorum.leader(within_s=1)

    play(story)


def test_broker_serves_on_with_the_metadata_it_has_and_says_so() -> None:
    stage = Stage(SimWorld(1), 3, SETTINGS)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", 1, 3)]))
        await stage.until(lambda: len(stage.partition().isr) == 3)
        await stage.send([b"before"])
        at = append_newer(stage.active)
        brokers = [stage.node(i) for i in (4, 5, 6)]
        await stage.until(lambda: all(each.metadata.follower.stopped for each in brokers))
        await stage.send([b"after"])
        assert await stage.read() == [b"before", b"after"]
        began = asyncio.get_running_loop().time()
        await stage.admin(lambda admin: admin.create_topics([NewTopic("u", 1, 3)]))
        assert asyncio.get_running_loop().time() - began < 5, "nobody waits for those that cannot"
        status, told = await ready(stage, 4)
        assert status == "503 Service Unavailable"
        assert f"this node's metadata has stopped at offset {at}" in told["hurts"][0]
        name = "kafka_server_broker_metadata_metrics_metadata_apply_error_count"
        figures: dict[str, float] = {}

        async def look(world: ProcessWorld) -> None:
            figures.update(await scrape(world))

        await stage.cluster.hosts[4].start(look).task
        assert figures[name] == 1
        stage.kill(5)
        stage.cluster.nodes[5].boot()
        process = stage.cluster.nodes[5].process
        await asyncio.wait([process.task], timeout=120)
        failure = process.task.exception()
        assert isinstance(failure, StartError)
        assert "the metadata of the cluster cannot be followed" in str(failure)

    stage.sim.run(main())
    assert not stage.complaints


def test_voters_that_cannot_be_read_are_not_appended_and_the_leader_is_not_believed() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await quorum.same_image()
        written_by = quorum.node(leader).metadata.quorum
        end = written_by.log.end_offset
        written_by._write(control_batch([(ControlType.KRAFT_VOTERS, b"\xff" * 9)], 0), 1)
        others = [quorum.node(i) for i in quorum.ids if i != leader]

        def told() -> bool | None:
            return all(node.events.counts[EventKind.QUORUM_FAULT] for node in others) or None

        await quorum.until(told, 20, "nobody says what the leader sent")
        for node in others:
            assert node.metadata.quorum.log.end_offset == end
            assert set(node.metadata.quorum.raft.voters) == {1, 2, 3}
        assert len(quorum.alive) == 3

    play(story)
