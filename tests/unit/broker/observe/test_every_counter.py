"""Every counter is moved by somebody and told to somebody.

A node on simulated time goes through all that is counted, and the metrics that it tells are
compared with those it began with. What takes more than one node is looked up in the source.
"""

import ast
import asyncio
import dataclasses
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scriba.broker.jobs.schedule import cleaning_pass, retention_pass
from scriba.broker.metrics.exposition import METRICS, render
from scriba.broker.metrics.http import MAX_CLIENTS
from scriba.broker.net.api_entry import ApiEntry
from scriba.broker.net.buffers import BufferPool
from scriba.broker.node import Node
from scriba.broker.observe import counters
from scriba.broker.observe.counters import CLOSE_REASONS
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.prometheus import Durations, Type
from scriba.records.batch import Record, encode_batch
from scriba.runtime.loop.loop import run
from scriba.runtime.ports import Worker, Workers
from scriba.runtime.world import RealWorld
from scriba.settings import NodeSettings
from scriba.testing.sim.world.disk import SimFile
from scriba.testing.sim.world.net import SimStream
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.frame import encode_request
from scriba.wire.messages import admin, fetch, groups, metadata, produce, txn
from scriba.wire.schema import Message
from tests.unit.broker.scraping import REPLICATION_METRICS, WHERE, ask, parsed

InANode = Callable[..., None]
Act = Callable[[Node, ProcessWorld], Awaitable[None]]
SOURCE = Path(__file__).parents[4] / "src" / "scriba"
PORT = 9092
HOUR_MS = 3_600_000

SETTINGS = {
    "scriba_metrics_listener": WHERE,
    "log_cleaner_backoff_ms": 100 * HOUR_MS,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
}


# ---- the acts ----


async def dial(world: ProcessWorld) -> Peer:
    return await Peer.connect(world.net, "127.0.0.1", PORT)


async def raw(world: ProcessWorld, data: bytes) -> SimStream:
    """Somebody who sends bytes, and takes nothing."""
    stream = await world.net.connect("127.0.0.1", PORT)
    assert isinstance(stream, SimStream)
    while data:
        data = data[max(stream.send([data]), 0) :]
        await asyncio.sleep(0.01)
    return stream


def framed(request: Message, version: int) -> bytes:
    body = encode_request(request, version, 1, "raw")
    return struct.pack(">i", len(body)) + body


async def create(world: ProcessWorld, name: str, **settings: str) -> None:
    client = await dial(world)
    configs = [
        admin.CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in settings.items()
    ]
    topic = admin.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    made = await client.call(
        admin.CreateTopicsRequest(topics=[topic]), 7, admin.CreateTopicsResponse
    )
    assert made.topics[0].error_code == 0
    client.close()


def written(
    world: ProcessWorld, topic: str = "t", *, bad: bool = False, size: int = 45, key: bytes = b"k",
    acks: int = -1, **how: Any,
) -> produce.ProduceRequest:  # fmt: skip
    batch = encode_batch([Record(0, world.clock.wall_ms(), key, b"v" * size, ())], **how)
    if bad:
        batch[-1] ^= 1
    data = produce.PartitionProduceData(index=0, records=bytes(batch))
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )


def wanted(offset: int, **how: Any) -> fetch.FetchRequest:
    part = fetch.FetchPartition(partition_max_bytes=1 << 20, fetch_offset=offset)
    topic = fetch.FetchTopic(topic="t", partitions=[part])
    return fetch.FetchRequest(max_bytes=1 << 20, min_bytes=1, topics=[topic], **how)


async def producers_write(node: Node, world: ProcessWorld) -> None:
    await create(world, "t")
    client = await dial(world)
    for _ in range(3):
        await client.call(written(world, size=100_000), 9, produce.ProduceResponse)
    once: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    for _ in range(2):
        await client.call(written(world, **once), 9, produce.ProduceResponse)
    await client.call(written(world, bad=True), 9, produce.ProduceResponse)
    client.send_unanswered(written(world, bad=True, acks=0), 9)
    await asyncio.sleep(1)
    assert client.closed


async def consumers_read(node: Node, world: ProcessWorld) -> None:
    client = await dial(world)
    for _ in range(3):
        await client.call(wanted(0), 11, fetch.FetchResponse)
    node.replicas.find("t", 0).log.close_if_idle(even_if_busy=True)
    world.sim_disk.volume.faults.cold = 0.7
    for offset in (2, 0):
        await client.call(wanted(offset), 11, fetch.FetchResponse)
    world.sim_disk.volume.faults.cold = 0.0
    with pytest.MonkeyPatch.context() as patch:
        # Headers are in memory, and what is behind them is not.
        patch.setattr(SimFile, "resident", lambda *_: False)
        await client.call(wanted(0), 11, fetch.FetchResponse)
    await client.call(wanted(99), 11, fetch.FetchResponse)
    await client.call(wanted(0, isolation_level=7), 11, fetch.FetchResponse)


async def coordinators_work(node: Node, world: ProcessWorld) -> None:
    client = await dial(world)
    for kind in (0, 1):
        found = metadata.FindCoordinatorRequest(key="g", key_type=kind)
        await client.call(found, 3, metadata.FindCoordinatorResponse)
    await asyncio.sleep(1)
    commit = groups.OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[
            groups.OffsetCommitRequestTopic(
                name="t", partitions=[groups.OffsetCommitRequestPartition(committed_offset=1)]
            )
        ],
    )
    begin = txn.InitProducerIdRequest(transactional_id="g", transaction_timeout_ms=1000)
    for _ in range(4):
        await client.call(commit, 8, groups.OffsetCommitResponse)
        await client.call(begin, 3, txn.InitProducerIdResponse)
    many = groups.DescribeGroupsRequest(groups=[f"g{n}" for n in range(5_000)])
    await client.call(many, 5, groups.DescribeGroupsResponse)
    volume = world.sim_disk.volume
    volume.faults.capacity = volume.used
    await client.call(commit, 8, groups.OffsetCommitResponse)
    await client.call(begin, 3, txn.InitProducerIdResponse)
    volume.faults.capacity = 1 << 40
    faults, volume.faults = volume.faults, replace(volume.faults, cold=0.9, sync_ms=(20, 30))
    await asyncio.sleep(5)  # they are loaded again, from a device that is slow
    volume.faults = faults
    client.close()


async def logs_are_compacted(node: Node, world: ProcessWorld) -> None:
    compacted = {
        "cleanup_policy": "compact",
        "internal_segment_bytes": "300",
        "min_cleanable_dirty_ratio": "0.01",
        "max_compaction_lag_ms": "1000",
    }
    client = await dial(world)
    for topic in ("good", "bad"):
        await create(world, topic, **compacted)
        for n in range(12):
            request = written(world, topic, key=b"k%d" % (n % 2))
            await client.call(request, 9, produce.ProduceResponse)
    world.disk.open("/data/bad-0/00000000000000000000.log").pwrite(b"?", 100)
    await asyncio.sleep(5)
    await cleaning_pass(node, world.clock.now())
    client.close()


async def the_cleaner_looks_again(node: Node, world: ProcessWorld) -> None:
    await asyncio.sleep(1)
    await cleaning_pass(node, world.clock.now())


class Starving:
    """Workers of a machine that is never idle."""

    def __init__(self, real: Workers) -> None:
        self.real = real

    def start(self, idle: bool = False) -> Worker:
        return StarvingWorker(self.real.start()) if idle else self.real.start()


class StarvingWorker:
    idle = True

    def __init__(self, real: Worker) -> None:
        self.real = real

    async def run(self, task: str, *values: Any) -> AsyncGenerator[Any, None]:
        await asyncio.sleep(3600)
        yield None

    async def close(self) -> None:
        await self.real.close()


async def the_cleaner_starves(node: Node, world: ProcessWorld) -> None:
    real, world.workers = world.workers, Starving(world.workers)
    client = await dial(world)
    for n in range(12):
        await client.call(written(world, "good", key=b"%d" % n), 9, produce.ProduceResponse)
    await asyncio.sleep(5)
    await cleaning_pass(node, world.clock.now())
    world.workers = real
    client.close()


async def a_marker_is_refused(node: Node, world: ProcessWorld) -> None:
    """The log has heard of a newer epoch of the producer than its transaction has."""
    client = await dial(world)
    begin = txn.InitProducerIdRequest(transactional_id="m", transaction_timeout_ms=10_000)
    begun = await client.call(begin, 3, txn.InitProducerIdResponse)
    assert not begun.error_code
    who = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    topic = txn.AddPartitionsToTxnTopic(name="t", partitions=[0])
    add = txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="m",
        v3_and_below_producer_id=begun.producer_id,
        v3_and_below_producer_epoch=begun.producer_epoch,
        v3_and_below_topics=[topic],
    )
    await client.call(add, 3, txn.AddPartitionsToTxnResponse)
    newer: dict[str, Any] = who | {"producer_epoch": begun.producer_epoch + 1, "base_sequence": 0}
    await client.call(written(world, **newer), 9, produce.ProduceResponse)
    end = txn.EndTxnRequest(transactional_id="m", committed=True, **who)
    assert not (await client.call(end, 3, txn.EndTxnResponse)).error_code
    await asyncio.sleep(1)
    client.close()


async def connections_end(node: Node, world: ProcessWorld) -> None:
    (await dial(world)).close()
    await raw(world, struct.pack(">i", -5))
    await raw(world, struct.pack(">i", 1 << 30))
    await raw(world, struct.pack(">ihhih", 10, 999, 0, 1, -1))
    broken = await raw(world, b"\0")
    await asyncio.sleep(1)
    broken._link.reset("the network did it")
    await dial(world)
    await asyncio.sleep(1)
    node.server.close_connections("fault")
    limits = node.server.limits
    await dial(world)
    await asyncio.sleep(1)
    node.server.limits = replace(limits, max_connections=1)
    await dial(world)
    await asyncio.sleep(1)
    node.server.limits = replace(limits, max_connections_per_ip=0)
    await dial(world)
    await asyncio.sleep(1)
    node.server.limits = replace(limits, idle_ms=1)
    await asyncio.sleep(3)
    assert node.server.connections == 0
    node.server.limits = replace(limits, max_connections=0)
    await dial(world)
    await asyncio.sleep(1)
    node.server.limits = limits
    room, world.net.most_connections = world.net.most_connections, 0
    await dial(world)
    await asyncio.sleep(1)
    world.net.most_connections = room


async def a_peer_takes_nothing(node: Node, world: ProcessWorld) -> None:
    other = await dial(world)
    node.dispatch._unsent.limit = 100_000
    many = groups.DescribeGroupsRequest(groups=["x" * 1_000] * 5_000)
    await raw(world, framed(many, 5))
    await asyncio.sleep(1)
    await other.call(many, 5, groups.DescribeGroupsResponse, timeout_s=60)


async def a_request_never_ends(node: Node, world: ProcessWorld) -> None:
    limit, node.server.memory.limit = node.server.memory.limit, 100_000
    for _ in range(2):
        await raw(world, struct.pack(">i", 100_000) + bytes(90_000))
        await asyncio.sleep(2)
    node.server.memory.limit = limit


async def the_broker_is_wrong(node: Node, world: ProcessWorld) -> None:
    """A handler gives an answer that cannot be encoded; another keeps a view of its request."""
    entry = node.dispatch.table[ApiKey.METADATA]
    ordinary = entry.handler
    entry.handler = lambda node, ctx, request: metadata.MetadataResponse(cluster_id="x" * 40_000)
    client = await dial(world)
    with pytest.raises(ConnectionError):
        await client.call(metadata.MetadataRequest(topics=[]), 5, metadata.MetadataResponse)
    entry.handler = ordinary
    node.fast_paths = False
    entry = node.dispatch.table[ApiKey.PRODUCE]
    ordinary = entry.handler
    kept: list[memoryview] = []

    def keeps(node: Node, ctx: Any, request: produce.ProduceRequest) -> Any:
        records = request.topic_data[0].partition_data[0].records
        kept.append(memoryview(records)[61:])  # type: ignore[arg-type]
        return ordinary(node, ctx, request)

    entry.handler = keeps
    client = await dial(world)
    for _ in range(2):
        await client.call(written(world, size=100_000), 9, produce.ProduceResponse)
    entry.handler = ordinary
    node.fast_paths = True


async def scrapers_come_in_crowds(node: Node, world: ProcessWorld) -> None:
    silent = [await world.net.connect("127.0.0.1", 9404) for _ in range(MAX_CLIENTS)]
    assert await ask(world) == ("", "")
    for stream in silent:
        stream.close()


async def the_clock_jumps(node: Node, world: ProcessWorld) -> None:
    now = world.clock.now()
    await retention_pass(node, now._replace(wall_ms=now.wall_ms + 1000 * HOUR_MS))


async def the_disk_dies(node: Node, world: ProcessWorld) -> None:
    world.sim_disk.volume.faults.fail_sync = 1.0
    for partition in tuple(node.replicas):
        with pytest.raises(KafkaError):
            await partition.log.sync()
    await asyncio.sleep(1)


ACTS: list[Act] = [
    producers_write,
    consumers_read,
    coordinators_work,
    logs_are_compacted,
    the_cleaner_looks_again,
    the_cleaner_starves,
    a_marker_is_refused,
    the_broker_is_wrong,
    connections_end,
    a_peer_takes_nothing,
    a_request_never_ends,
    scrapers_come_in_crowds,
    the_clock_jumps,
    the_disk_dies,
]

# ---- what they move ----

ONE_WILL_DO = ("request", "kind")
"""Labels of which one value has to move: each has a test of its own, or is the same line."""

MOVED_BY_OTHER_TESTS = {
    "scriba_eventloop_lag_seconds": "simulated time is never late: see the last test",
    "scriba_eventloop_lag_max_seconds": "simulated time is never late: see the last test",
    "kafka_server_replicamanager_underreplicatedpartitions": "one node has no followers",
    "kafka_server_replicamanager_reassigningpartitions": "one node: sim/test_reassignment",
    "scriba_storage_closed_log_dirs": "no volume is nearly full: test_write_watermark",
    "scriba_metadata_reserve_bytes": "no volume is full: sim/test_full_disk",
    **dict.fromkeys(
        ("scriba_balance_brokers", "scriba_balance_partitions_left"),
        "one node has nobody to give replicas to: sim/test_balancing",
    ),
    "kafka_server_broker_metadata_metrics_metadata_apply_error_count": "one node applies what it "
    "writes: sim/test_unapplied_records",
    "scriba_cleaner_in_progress": "0 before and after a pass: test_compaction",
    **dict.fromkeys(
        REPLICATION_METRICS,
        "one node has no followers: test_replication",
    ),
    **dict.fromkeys(
        (
            "kafka_controller_kafkacontroller_activecontrollercount",
            "kafka_controller_kafkacontroller_activebrokercount",
            "kafka_controller_kafkacontroller_fencedbrokercount",
            "kafka_controller_kafkacontroller_brokerregistrationstate",
        ),
        "one node is its own controller and its only broker: sim/test_cluster_controller",
    ),
    **dict.fromkeys(
        (
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "kafka_controller_controllerstats_uncleanleaderelections_total",
        ),
        "a broker that runs leads what it has: sim/test_cluster_elections",
    ),
    **dict.fromkeys(
        (
            "scriba_observer_replicas",
            "scriba_observer_serving_replicas",
            "scriba_observer_lag_records",
            "scriba_observer_lag_seconds",
        ),
        "one node observes nobody: sim/test_observers",
    ),
    **dict.fromkeys(
        (
            "scriba_controller_replicas_asked_total",
            "scriba_controller_replicas_passed_over_total",
        ),
        "one node has no replica elsewhere to ask: sim/test_unclean_elections",
    ),
}


def moved(before: dict[str, float], after: dict[str, float]) -> set[str]:
    return {name for name, value in after.items() if value != before.get(name, 0)}


def unmoved(seen: set[str], known: set[str]) -> Iterator[str]:
    """Samples that nothing has moved, by family."""
    for family, _ in METRICS:
        if family.name in MOVED_BY_OTHER_TESTS:
            continue
        suffix = "_count" if family.type is Type.HISTOGRAM else ""
        samples = {name for name in known if name.split("{")[0] == family.name + suffix}
        if not samples & seen:
            yield family.name
        elif not set(family.labels) & set(ONE_WILL_DO):
            yield from sorted(samples - seen)


SEEN = [
    EventKind.CLOCK_IN_DOUBT,
    EventKind.MARKER_REFUSED,
    EventKind.LOG_DIR_OFFLINE,
    EventKind.PARTITION_OFFLINE,
    EventKind.COMPACTION_STARVED,
    EventKind.PARTITION_UNCLEANABLE,
    EventKind.WRITE_REFUSED,
    EventKind.COORDINATOR_FAILED,
    EventKind.CONNECTION_REFUSED,
    EventKind.SLOW_PEER_SHED,
    EventKind.VIEW_OUTLIVED_REQUEST,
    EventKind.REQUEST_FAILED,
]
"""What an operator sees of all that: in the log of a node that was started without `-v`, too."""


def test_a_node_that_goes_through_everything_moves_every_metric(
    in_a_node: InANode, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        node.server.spoil = None
        node.server.pool = BufferPool(None, node.server.pool._on_lost)
        first = parsed(render(node))
        seen: set[str] = set()
        for act in ACTS:
            before = parsed(render(node))
            await act(node, world)
            seen |= moved(before, parsed(render(node)))
        node.server.close_connections()
        last = parsed(render(node))
        seen |= moved(first, last)
        left = list(unmoved(seen, set(last)))
        assert not left, "nothing moves " + ", ".join(left)
        kept = {event.kind for event in node.events.since()}
        for kind in SEEN:
            assert node.events.counts[kind], kind
            assert kind in kept
            assert f"{kind.label}: " in caplog.text

    in_a_node(script, **SETTINGS)


def test_no_excuse_is_older_than_its_metric() -> None:
    assert set(MOVED_BY_OTHER_TESTS) <= {family.name for family, _ in METRICS}
    assert len({family.name for family, _ in METRICS}) == len(METRICS)


# ---- every field of every counter ----

HOLDERS: list[Any] = [each for each in vars(counters).values() if dataclasses.is_dataclass(each)]
FIELDS = [
    (holder.__name__, field.name) for holder in HOLDERS for field in dataclasses.fields(holder)
]
FIELDS += [(ApiEntry.__name__, name) for name in ("count", "errors", "large")]
FIELDS += [(BufferPool.__name__, "kept_views")]


def holders(node: Node) -> dict[str, Any]:
    return {
        "Counters": node.counters,
        "NetworkCounters": node.server.counters,
        "CoordinatorCounters": node.group_coordinators.counts,
        "CleanerGauges": node.log_cleaner.gauges,
        "ApiEntry": node.dispatch.table[ApiKey.FETCH],
        "BufferPool": node.server.pool,
    }


def test_every_field_that_changes_changes_what_is_told(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        node.dispatch.table[ApiKey.FETCH].count = 1
        for holder, name in FIELDS:
            kept = holders(node)[holder]
            before = render(node)
            value = getattr(kept, name)
            if isinstance(value, Durations):
                value.add(5)
            elif isinstance(value, dict):
                for key in value:
                    value[key] += 1_000_003
            else:
                setattr(kept, name, value + 1_000_003)
            assert render(node) != before, f"nobody renders {holder}.{name}"

    in_a_node(script)


def changed_attributes() -> set[str]:
    """Names of attributes that the broker assigns, adds to, or calls `add` of."""
    found: set[str] = set()
    for path in (SOURCE / "broker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign):
                targets = [node.target]
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "add"
            ):
                targets = [node.func.value]
            for target in targets:
                part = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(part, ast.Attribute):
                    found.add(part.attr)
    return found


def test_every_field_is_changed_by_somebody() -> None:
    assert {name for _, name in FIELDS} - changed_attributes() == set()


def test_every_reason_to_close_a_connection_is_given_by_somebody() -> None:
    said = {
        node.value
        for path in SOURCE.rglob("*.py")
        if path.name != "counters.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(CLOSE_REASONS) - said == set()


def test_the_lag_of_a_real_loop_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with RealWorld() as world:
            given = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
            node = Node(NodeSettings.parse(given), world)
            await node.start()
            while not world.lag.max_ms:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            found = parsed(render(node))
            await node.stop()
        assert found["scriba_eventloop_lag_seconds_count"] > 0
        assert found["scriba_eventloop_lag_max_seconds"] > 0

    run(main())
