"""Background passes of a node."""

import asyncio
from collections.abc import Callable

from scriba.broker.jobs.schedule import producer_expiry_pass, retention_pass
from scriba.broker.node import Node
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.records.batch import Record, encode_batch, read_header
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import admin, configs, produce

InANode = Callable[..., None]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def with_one_old_segment(node: Node, world: ProcessWorld) -> None:
    client = await Peer.connect(world.net, "127.0.0.1", 9092)
    topic = admin.CreatableTopic(
        name="t",
        num_partitions=1,
        replication_factor=1,
        configs=[
            admin.CreatableTopicConfig(name="retention.ms", value=str(HOUR_MS)),
            admin.CreatableTopicConfig(name="internal.segment.bytes", value="200"),
        ],
    )
    await client.send(admin.CreateTopicsRequest(topics=[topic]), 7, admin.CreateTopicsResponse)
    for _ in range(4):
        batch = encode_batch([Record(0, world.clock.wall_ms(), None, b"x" * 90, ())])
        data = produce.PartitionProduceData(index=0, records=batch)
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[produce.TopicProduceData(name="t", partition_data=[data])],
        )
        await client.send(request, 9, produce.ProduceResponse)


def test_records_older_than_the_retention_go(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await with_one_old_segment(node, world)
        log = node.replicas.find("t", 0).log
        await retention_pass(node, world.clock.now())
        assert (log.start_offset, log.end_offset) == (0, 4)
        await asyncio.sleep(2 * HOUR_MS / 1000)
        await retention_pass(node, world.clock.now())
        assert (log.start_offset, log.end_offset) == (4, 4)

    in_a_node(script)


def test_a_clock_that_jumps_ahead_deletes_nothing_and_is_noted(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await with_one_old_segment(node, world)
        now = world.clock.now()
        wrong = now._replace(wall_ms=now.wall_ms + 1000 * HOUR_MS)
        await retention_pass(node, wrong)
        log = node.replicas.find("t", 0).log
        assert (log.start_offset, log.end_offset) == (0, 4)
        assert [event.kind for event in node.events.since()].count(EventKind.CLOCK_IN_DOUBT) == 1

    in_a_node(script)


def test_a_clock_that_jumps_ahead_forgets_no_producer(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await with_one_old_segment(node, world)
        partition = node.replicas.find("t", 0)
        now = world.clock.now()
        batch = encode_batch(
            [Record(0, now.wall_ms, None, b"x", ())], producer_id=7, producer_epoch=0
        )
        partition.append(memoryview(batch), read_header(batch), now)
        await producer_expiry_pass(node, now._replace(wall_ms=now.wall_ms + 1000 * HOUR_MS))
        assert len(partition.log.producers) == 1
        await producer_expiry_pass(node, Instant(now.mono_ms + DAY_MS, now.wall_ms + DAY_MS))
        assert len(partition.log.producers) == 0

    in_a_node(script)


def test_an_interval_that_is_shortened_while_a_job_rests_counts_at_once(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        await asyncio.sleep(5)
        assert node.log_cleaner.gauges.last_run_ms == -1
        change = configs.IncrementalAlterConfigsRequestAlterableConfig(
            name="log.cleaner.backoff.ms", config_operation=0, value="100"
        )
        resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=4, resource_name="", configs=[change]
        )
        await client.call(
            configs.IncrementalAlterConfigsRequest(resources=[resource]),
            1,
            configs.IncrementalAlterConfigsResponse,
        )
        changed = world.clock.mono_ms()
        await asyncio.sleep(1)
        first = node.log_cleaner.gauges.last_run_ms
        assert changed <= first < changed + 1_000
        await asyncio.sleep(1)
        assert node.log_cleaner.gauges.last_run_ms > first

    in_a_node(script)
