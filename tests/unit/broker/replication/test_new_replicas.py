"""Replicas that are new: they lead at once, and have their files when they need them."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest

from scriba.broker.handlers.admin.cluster import describe_log_dirs
from scriba.broker.metrics.exposition import render
from scriba.broker.node import Node
from scriba.broker.partitions import replicas
from scriba.broker.partitions.partition import Partition
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.settings import NodeSettings
from scriba.storage.directory.logdir import LogDir
from scriba.storage.directory.names import PartitionName
from scriba.storage.log import Log
from scriba.testing.sim.plays.compacting import append
from scriba.testing.sim.world.disk import SimDisk
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from scriba.wire.messages.brokers import AssignReplicasToDirsRequest
from scriba.wire.schema import Message
from tests.unit.broker.brokers import Brokers, play
from tests.unit.broker.scraping import parsed

InANode = Callable[..., None]
AT_ONCE = 4
WIDE = 200
RECORD = [("k", "v")]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small topic is long in the making."""
    monkeypatch.setattr(replicas, "LOGS_AT_ONCE", AT_ONCE)


async def create(node: Node, name: str, partitions: int, **configs: str) -> None:
    """Makes a topic, and goes on before its logs have their files."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    answer = await node.metadata.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert answer.topics[0].error_code == 0
    await node.replicas.applied()


async def delete(node: Node, name: str) -> None:
    topic = DeleteTopicState(name=name)
    await node.controller.call(DeleteTopicsRequest(topics=[topic], timeout_ms=1000))
    await node.replicas.applied()


def directories(world: ProcessWorld, topic: str) -> int:
    """How many partitions of a topic have one."""
    names = {f"{topic}-{index}" for index in range(WIDE)}
    return len(names.intersection(world.disk.list("/data")))


async def some_made(world: ProcessWorld, topic: str) -> None:
    """Returns in the middle of the making of files."""
    for _ in range(1000):
        if directories(world, topic):
            return
        await asyncio.sleep(0.0005)
    raise AssertionError("no log got its files")


async def in_slices_of(
    node: Node, context: Context, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    answer = describe_log_dirs(node, context, request)
    assert isinstance(answer, Deferred), "all of it was told in one go"
    told = await answer.awaitable
    assert isinstance(told, DescribeLogDirsResponse)
    return told


def test_replicas_that_are_not_opened_yet_are_told_of_and_counted(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        opened = len(tuple(node.replicas))
        assert opened < WIDE
        count = len(node.replicas)
        found = parsed(render(node))
        assert found["kafka_server_replicamanager_partitioncount"] == count >= WIDE
        assert found["kafka_server_replicamanager_leadercount"] == count
        context = Context(ANONYMOUS, "PLAINTEXT", None, "", ApiKey.DESCRIBE_LOG_DIRS, 4, 0)
        told = await in_slices_of(node, context, DescribeLogDirsRequest(topics=None))
        (topic,) = [each for each in told.results[0].topics if each.name == "wide"]
        assert {each.partition_index for each in topic.partitions} == set(range(WIDE))
        asked = [DescribableLogDirTopic(topic="wide", partitions=[WIDE - 1])]
        told = await in_slices_of(node, context, DescribeLogDirsRequest(topics=asked))
        (topic,) = told.results[0].topics
        assert [each.partition_index for each in topic.partitions] == [WIDE - 1]
        assert len(tuple(node.replicas)) == opened, "and nothing was opened for it"

    in_a_node(script)


def test_every_partition_has_a_leader_before_the_logs_have_their_files(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        assert directories(world, "wide") <= AT_ONCE
        assert len(node.replicas) == WIDE
        last = node.replicas.find("wide", WIDE - 1)
        assert last.leader is not None
        assert not world.disk.exists(last.log.directory)
        append(last.log, RECORD, world.clock.now())
        assert world.disk.size(f"/data/wide-{WIDE - 1}/00000000000000000000.log") > 0
        await node.replicas.settled()
        assert directories(world, "wide") == WIDE
        for index in range(WIDE):
            partition = node.replicas.find("wide", index)
            assert partition.leader is not None
            assert partition.log.end_offset == (index == WIDE - 1)
            assert set(world.disk.list(partition.log.directory)) >= {
                "00000000000000000000.index",
                "00000000000000000000.log",
                "00000000000000000000.timeindex",
                "partition.metadata",
            }

    in_a_node(script)


def test_checkpoints_are_asked_of_a_few_new_names_at_a_time(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "BEGUN_AT_ONCE", AT_ONCE, raising=False)
    asked: list[Collection[PartitionName]] = []
    forget = LogDir.forget

    async def note(directory: LogDir, names: Collection[PartitionName]) -> None:
        asked.append(names)
        await forget(directory, names)

    monkeypatch.setattr(LogDir, "forget", note)

    async def script(node: Node, world: ProcessWorld) -> None:
        asked.clear()
        await create(node, "wide", WIDE)
        await node.replicas.settled()
        assert sum(map(len, asked)) == WIDE
        assert max(map(len, asked)) == AT_ONCE
        assert directories(world, "wide") == WIDE

    in_a_node(script)


def test_few_files_are_waited_for_and_many_are_not(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "few", AT_ONCE)
        await node.replicas.created()
        assert directories(world, "few") == AT_ONCE
        await create(node, "wide", WIDE)
        before = world.clock.mono_ms()
        await node.replicas.created()
        assert world.clock.mono_ms() - before < 1000 * replicas.FILES_WAIT_S / 2
        assert directories(world, "wide") < WIDE / 2

    in_a_node(script)


def test_a_first_record_can_come_at_any_moment_of_the_making_of_files(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        written = 0
        while directories(world, "wide") < WIDE:
            for index in range(written % 7, WIDE, 7):
                log = node.replicas.find("wide", index).log
                append(log, RECORD, world.clock.now())
                written += 1
            await asyncio.sleep(0.0005)
        await node.replicas.settled()
        ends = [node.replicas.find("wide", index).log.end_offset for index in range(WIDE)]
        assert sum(ends) == written > 0
        for index, end in enumerate(ends):
            log = node.replicas.find("wide", index).log
            assert bool(log.size) == bool(end)
            assert world.disk.size(f"{log.directory}/00000000000000000000.log") == log.size

    in_a_node(script)


def test_a_topic_deleted_while_its_files_are_made_leaves_none_and_may_come_again(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        await some_made(world, "wide")
        old = node.replicas.find("wide", WIDE - 1)
        append(node.replicas.find("wide", WIDE - 2).log, RECORD, world.clock.now())
        assert directories(world, "wide") < WIDE
        await delete(node, "wide")
        assert directories(world, "wide") == 0
        assert len(node.replicas) == 0
        with pytest.raises(KafkaError) as gone:
            append(old.log, RECORD, world.clock.now())
        assert gone.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await asyncio.sleep(120)  # past `file.delete.delay.ms`
        assert not [name for name in world.disk.list("/data") if name.startswith("wide")]
        await create(node, "wide", WIDE)
        log = node.replicas.find("wide", WIDE - 2).log
        assert log.end_offset == 0
        append(log, RECORD, world.clock.now())
        await node.replicas.settled()
        assert directories(world, "wide") == WIDE

    in_a_node(script)


def test_a_name_that_comes_again_owes_nothing_to_the_checkpoints_of_the_one_before(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        log = node.replicas.find("wide", 0).log
        for _ in range(5):
            append(log, RECORD, world.clock.now())
        await log.flush()
        await node.replicas.checkpoint()
        await node.replicas.checkpoint_high_watermarks()
        await delete(node, "wide")
        await create(node, "wide", WIDE)
        text = world.disk.read("/data/recovery-point-offset-checkpoint").decode()
        assert "wide" not in text
        assert node.replicas.find("wide", 0).high_watermark.value == 0

    in_a_node(script)


def test_a_replica_that_is_opened_while_its_metadata_changes_keeps_its_records(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Partition] = []
    forget = LogDir.forget

    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        topic = node.image.topics_by_name["wide"]

        async def asked_meanwhile(self: LogDir, names: Collection[PartitionName]) -> None:
            if not opened:
                opened.append(node.replicas.find("wide", WIDE - 1))
                append(opened[0].log, RECORD, world.clock.now())
            await forget(self, names)

        monkeypatch.setattr(LogDir, "forget", asked_meanwhile)
        await node.replicas._place([("wide", topic.id, list(topic.partitions.items()))])
        await node.replicas.settled()
        (partition,) = opened
        assert node.replicas.find("wide", WIDE - 1) is partition
        assert partition.log.end_offset == 1

    in_a_node(script)


def test_a_new_replica_that_nobody_has_used_does_not_lead_when_another_was_elected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its metadata says so already, and only the making of its files is behind."""
    plain, held = LogDir.make_files, asyncio.Event()

    async def make_files(self: LogDir, logs: Sequence[Log]) -> None:
        if any(each.topic == "t" for each in logs):
            await held.wait()
        await plain(self, logs)

    async def script(brokers: Brokers) -> None:
        monkeypatch.setattr(LogDir, "make_files", make_files)
        last = 4 * AT_ONCE
        await brokers.create("t", *[(2, 3)] * (last + 1), configs={"min.insync.replicas": "1"})
        node = brokers.nodes[2]
        await brokers.until(lambda: PartitionName("t", last) in node.replicas._unopened)
        await brokers.elect("t", 3, last)
        await brokers.until(lambda: node.image.topics_by_name["t"].partitions[last].leader == 3)
        code = await brokers.produce(2, "t", b"lost", acks=1, index=last)
        assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        held.set()
        await brokers.until(lambda: not node.replicas.has_backlog())
        assert brokers.partition(2, "t", last).leader_epoch == 1

    play(script)


def test_settings_that_change_before_a_new_replica_is_opened_count(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE, flush_messages="1")
        assert node.replicas.find("wide", WIDE - 1).syncs

    in_a_node(script)


def with_restarts(*lives: Callable[[Node, ProcessWorld], Awaitable[None]], clean: bool) -> None:
    """Lives of one node, each of which ends with its script, by a stop or by a kill."""
    sim = SimWorld(seed=3)
    given = {"log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9092"}

    async def main() -> None:
        for life in lives:

            async def serve(world: ProcessWorld, life=life) -> None:  # type: ignore[no-untyped-def]
                node = Node(NodeSettings.parse(given), world)
                await node.start()
                await life(node, world)
                if clean:
                    await node.stop()
                else:
                    sim.host("broker").power_cut()

            process = sim.host("broker").start(serve)
            await asyncio.wait([process.task])

    sim.run(main())


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "without power"])
def test_a_node_that_ends_before_all_files_are_made_makes_the_rest_at_its_next_start(
    clean: bool,
) -> None:
    done: list[str] = []

    async def first(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        await some_made(world, "wide")
        log = node.replicas.find("wide", WIDE - 1).log
        append(log, RECORD, world.clock.now())
        await log.flush()
        assert directories(world, "wide") < WIDE
        done.append("first")

    async def second(node: Node, world: ProcessWorld) -> None:
        assert directories(world, "wide") == WIDE
        ends = [node.replicas.find("wide", index).log.end_offset for index in range(WIDE)]
        assert ends == [0] * (WIDE - 1) + [1]
        for index in range(WIDE):
            partition = node.replicas.find("wide", index)
            assert partition.leader is not None
            append(partition.log, RECORD, world.clock.now())
        done.append("second")

    with_restarts(first, second, clean=clean)
    assert done == ["first", "second"]


def test_a_device_that_fails_while_files_are_made_takes_its_replicas_with_it(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one, two = node.replicas.dirs
        mkdir = world.disk.mkdir

        def failing(path: str) -> None:
            if path.startswith("/one"):
                raise OSError(5, "the device is gone", path)
            mkdir(path)

        monkeypatch.setattr(world.disk, "mkdir", failing)
        await create(node, "wide", 40)
        await node.replicas.settled()
        assert one.offline
        assert not two.offline
        led = 0
        codes = []
        for index in range(40):
            try:
                append(node.replicas.find("wide", index).log, RECORD, world.clock.now())
                led += 1
            except KafkaError as error:
                codes.append(error.code)
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * (AT_ONCE // 2), "those it was given"
        assert led == 40 - len(codes)
        # What the controller then says of them does not begin them anew on the other device.
        await asyncio.sleep(30)
        await node.replicas.settled()
        for index in range(40):
            here = node.replicas.get("wide", index)
            assert here is None or here.log.end_offset == 1
        assert len([n for n in world.disk.list("/two") if n.startswith("wide")]) == led

    in_a_node(script, log_dirs="/one,/two")


def test_the_controller_is_told_where_many_new_replicas_lie_in_few_requests(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        told = 0
        call = node.controller.call

        async def counting(message: Message, *more: Any, **named: Any) -> Any:
            nonlocal told
            told += isinstance(message, AssignReplicasToDirsRequest)
            return await call(message, *more, **named)

        monkeypatch.setattr(node.controller, "call", counting)
        await create(node, "wide", WIDE)
        await node.replicas.settled()
        placed = node.image.topics_by_name["wide"].partitions.values()
        known = {directory.id for directory in node.replicas.dirs}
        assert {each.directory(node.id) for each in placed} == known
        assert told <= 2

    in_a_node(script, log_dirs="/one,/two")


@pytest.mark.parametrize("full", ["/data/one", "/data/two"])
def test_a_full_directory_keeps_no_other_from_having_its_checkpoints(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    write_atomic = SimDisk.write_atomic

    async def refused_there(self: SimDisk, path: str, data: bytes) -> None:
        if path.startswith(full):
            raise OSError(errno.ENOSPC, "no space left on device")
        await write_atomic(self, path, data)

    async def script(node: Node, world: ProcessWorld) -> None:
        await create(node, "wide", WIDE)
        for partition in node.replicas:
            append(partition.log, RECORD, world.clock.now())
        (other,) = {"/data/one", "/data/two"} - {full}
        with monkeypatch.context() as patched:
            patched.setattr(SimDisk, "write_atomic", refused_there)
            for checkpoint in (node.replicas.checkpoint, node.replicas.checkpoint_high_watermarks):
                with pytest.raises(KafkaError, match=full):
                    await checkpoint()
        for file in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert "wide" in world.disk.read(f"{other}/{file}").decode()

    in_a_node(script, log_dirs="/data/one,/data/two")
