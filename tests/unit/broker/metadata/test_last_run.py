"""A broker that comes back says up to which epoch it has lost nothing, if it knows that."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.controller.image import DIRECTORY_LOST
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch, read_header
from scriba.settings import NodeSettings
from scriba.storage.directory.last_run import FILE_NAME, LastRun
from scriba.storage.directory.logdir import CLEAN_SHUTDOWN
from scriba.testing.sim.world.volume import Inode
from scriba.testing.sim.world.world import ProcessWorld, SimHost
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from scriba.wire.messages.brokers import (
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from scriba.wire.schema import Message
from tests.unit.broker.metadata.lives import Refusals, life, nothing, play

LOG = "/data/t-0/00000000000000000000.log"
TWO = "/one,/two"


class Lives:
    """What the processes of one broker knew of those before them."""

    def __init__(self) -> None:
        self.previous: list[int] = []
        self.epochs: list[int] = []
        self.incarnations: list[bytes] = []

    async def note(self, node: Node) -> None:
        self.previous.append(node.lifecycle.previous_epoch)
        self.epochs.append(node.broker_epoch)
        self.incarnations.append(node.lifecycle.incarnation)


def on_disk(host: SimHost, do: Callable[[ProcessWorld], Any]) -> Awaitable[None]:
    async def process(world: ProcessWorld) -> None:
        do(world)

    async def whole() -> None:
        await host.start(process).task

    return whole()


def test_a_broker_tells_the_epoch_under_which_it_stopped_or_was_killed() -> None:
    async def main(host: SimHost) -> None:
        lives = Lives()
        await life(host, lives.note)
        await life(host, lives.note)
        await life(host, lives.note, kill=True)
        await life(host, lives.note, kill=True)
        await life(host, lives.note)
        assert lives.previous == [-1, *lives.epochs[:4]]
        assert len(set(lives.incarnations)) == 5

    play(main)


def test_after_a_power_cut_nobody_knows() -> None:
    async def main(host: SimHost) -> None:
        lives = Lives()
        await life(host, lives.note, kill=True)
        host.power_cut()
        await life(host, lives.note, kill=True)
        await life(host, lives.note)
        assert lives.previous == [-1, -1, lives.epochs[1]]

    play(main)


@pytest.mark.parametrize("kill", [False, True])
def test_one_directory_that_says_nothing_is_enough_to_know_nothing(kill: bool) -> None:
    """One was replaced, say, or restored."""

    async def main(host: SimHost) -> None:
        lives = Lives()
        await life(host, lives.note, kill=kill, log_dirs=TWO)
        name = FILE_NAME if kill else CLEAN_SHUTDOWN
        await on_disk(host, lambda world: world.disk.unlink(f"/two/{name}"))
        await life(host, lives.note, log_dirs=TWO)
        assert lives.previous == [-1, -1]

    play(main)


def test_a_copy_of_a_directory_says_nothing() -> None:
    """It is older than its epoch says, though the machine ran on."""

    async def main(host: SimHost) -> None:
        lives = Lives()
        await life(host, lives.note, kill=True, log_dirs=TWO)

        def restore(world: ProcessWorld) -> None:
            path = f"/two/{FILE_NAME}"
            content = world.disk.read(path)
            world.disk.unlink(path)
            world.disk.open(path, create=True).pwrite(content, 0)

        await on_disk(host, restore)
        await life(host, lives.note, log_dirs=TWO)
        assert lives.previous == [-1, -1]

    play(main)


def test_directories_of_different_runs_say_nothing() -> None:
    async def main(host: SimHost) -> None:
        lives = Lives()
        await life(host, lives.note, kill=True, log_dirs=TWO)
        older = LastRun(b"i" * 16, lives.epochs[0] - 1, -1).encode()
        await on_disk(host, lambda world: world.disk.mark(f"/one/{FILE_NAME}", older))
        await life(host, lives.note, log_dirs=TWO)
        assert lives.previous == [-1, -1]

    play(main)


def test_a_process_that_stopped_leaves_no_mark_beside_that_of_a_clean_shutdown() -> None:
    async def main(host: SimHost) -> None:
        await life(host, nothing)
        files = host.volume.files()
        assert f"/data/{CLEAN_SHUTDOWN}" in files
        assert f"/data/{FILE_NAME}" not in files

    play(main)


def test_a_process_killed_before_it_heard_its_epoch_is_gone_on_with() -> None:
    """Whether or not it registered, the next one is the same incarnation, and has lost nothing."""

    async def main(host: SimHost) -> None:
        lives = Lives()
        await life(host, lives.note, kill=True)
        registered: list[int] = []

        async def deaf(world: ProcessWorld) -> None:
            node = Node(NodeSettings.parse({"log.dirs": "/data"}), world)
            call = node.controller.call

            async def unanswered(request: Message, *more: Any, **named: Any) -> Any:
                answer = await call(request, *more, **named)
                if isinstance(request, BrokerRegistrationRequest):
                    assert request.previous_broker_epoch == lives.epochs[0]
                    registered.append(answer.broker_epoch)
                    lives.incarnations.append(request.incarnation_id)
                    await asyncio.Event().wait()
                return answer

            node.controller.call = unanswered  # type: ignore[method-assign]
            await node.start()

        process = host.start(deaf)
        async with asyncio.timeout(30):
            while not registered:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        process.kill()
        await life(host, lives.note)
        assert lives.epochs[1] == registered[0]
        assert lives.previous[1] == lives.epochs[0]
        assert lives.incarnations[1] == lives.incarnations[2] != lives.incarnations[0]

    play(main)


def test_a_process_killed_before_it_registered_has_changed_nothing() -> None:
    async def main(host: SimHost) -> None:
        lives = Lives()
        await life(host, lives.note)

        async def refused(world: ProcessWorld) -> None:
            node = Node(NodeSettings.parse({"log.dirs": "/data"}), world)
            Refusals(node, BrokerRegistrationRequest, *[ErrorCode.NOT_CONTROLLER] * 1_000)
            await node.start()

        process = host.start(refused)
        await asyncio.sleep(1)
        process.kill()
        await life(host, lives.note)
        assert lives.previous[1] == lives.epochs[0]

    play(main)


def test_a_failed_device_ends_the_trust_in_all_directories() -> None:
    """A sync that failed has lost pages that the page cache still shows."""

    async def main(host: SimHost) -> None:
        lives = Lives()

        async def fail(node: Node) -> None:
            await lives.note(node)
            node.log_dirs.data[1]._fail("its device is gone")

        await life(host, fail, kill=True, log_dirs=TWO)
        await life(host, lives.note, log_dirs=TWO)
        assert lives.previous == [-1, -1]

    play(main)


def test_a_full_device_is_marked_when_there_is_room() -> None:
    async def main(host: SimHost) -> None:
        lives = Lives()

        async def fill(node: Node) -> None:
            await lives.note(node)
            host.disk_faults.capacity = 0
            node.log_dirs.registered(node.broker_epoch)
            assert not node.log_dirs.mark()

        await life(host, fill, kill=True)
        host.disk_faults.capacity = 1 << 40

        async def recover(node: Node) -> None:
            await fill(node)
            host.disk_faults.capacity = 1 << 40
            await asyncio.sleep(5)

        await life(host, recover, kill=True)
        await life(host, lives.note)
        assert lives.previous == [-1, -1, lives.epochs[1]]

    play(main)


# ---- what is not whole does not lead by that word ----


async def write(node: Node) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await node.controller.call(CreateTopicsRequest(topics=[topic]))
    await asyncio.sleep(1)
    now = node.world.clock.now()
    for _ in range(3):
        batch = encode_batch([Record(0, now.wall_ms, None, b"value")])
        node.replicas.find("t", 0).append(memoryview(batch), read_header(batch), now)


async def lost_after(host: SimHost, meanwhile: Callable[[Inode], None]) -> tuple[bool, int]:
    """A broker is killed, something happens to its log, and it comes back: whether it tells the
    controller before anything else that the replica is not whole, and where that ends."""
    await life(host, write, kill=True)
    log = host.volume.find(LOG)
    assert isinstance(log, Inode)
    meanwhile(log)
    told: list[bytes] = []
    ends: list[int] = []

    async def serve(world: ProcessWorld) -> None:
        node = Node(NodeSettings.parse({"log.dirs": "/data"}), world)
        seen = Refusals(node, AssignReplicasToDirsRequest, ErrorCode.NOT_CONTROLLER).seen
        beats = Refusals(node, BrokerHeartbeatRequest)
        call = node.controller.call

        async def first(request: Message, *more: Any, **named: Any) -> Any:
            if isinstance(request, BrokerHeartbeatRequest) and not beats.seen:
                told.extend(directory.id for each in seen[1:] for directory in each.directories)
            return await call(request, *more, **named)

        node.controller.call = first  # type: ignore[method-assign]
        await node.start()
        async with asyncio.timeout(10):
            while (partition := node.replicas.get("t", 0)) is None or partition.leader is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ends.append(partition.log.end_offset)
        await node.stop()

    await host.start(serve).task
    return DIRECTORY_LOST in told, ends[0]


@pytest.mark.parametrize(
    ("meanwhile", "lost", "end_offset"),
    [
        (lambda log: None, False, 3),
        (lambda log: log.content.extend(log.content[:70]), False, 3),
        (lambda log: log.content.extend(log.content[:20]), False, 3),
        (lambda log: log.content.extend(bytes(5_000)), False, 3),
        (lambda log: log.content.__setitem__(-1, log.content[-1] ^ 1), True, 2),
    ],
    ids=["killed", "half a batch", "half a header", "room that was set aside", "damage"],
)
def test_an_interrupted_append_costs_no_trust_and_damage_does(
    meanwhile: Callable[[Inode], None], lost: bool, end_offset: int
) -> None:
    async def main(host: SimHost) -> None:
        assert await lost_after(host, meanwhile) == (lost, end_offset)

    play(main)
