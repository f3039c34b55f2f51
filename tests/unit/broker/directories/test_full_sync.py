"""A device that finds out at a sync that it has no room: it costs partitions, not the node."""

import asyncio
import errno
from collections.abc import Callable

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.testing.sim.world.world import ProcessWorld
from tests.unit.broker.repeating import Writer, until

InANode = Callable[..., None]


@pytest.mark.parametrize("fail_dirs", [False, True], ids=["datasync", "sync_dir"])
def test_a_sync_without_room_takes_one_partition_offline_and_the_node_goes_on(
    in_a_node: InANode, fail_dirs: bool
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = await Writer(node, world).open("t")
        await one.create("u")
        await one.configure("flush.messages", "1")
        await one.configure("segment.ms", "100")
        (answer,) = await one.send(one.batch())
        assert answer.error_code == ErrorCode.NONE
        await asyncio.sleep(1)  # the next batch begins a segment
        faults = world.sim_disk.volume.faults
        faults.fail_in, faults.fail_by = "t-0", errno.ENOSPC
        faults.fail_dirs, faults.fail_sync = fail_dirs, 1.0
        (answer,) = await one.send(one.batch())
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: node.replicas.get("t", 0) is None)
        (told,) = [each for each in node.events.since() if each.kind is EventKind.PARTITION_OFFLINE]
        assert told.about == "t-0"
        assert "start the node again" in told.text
        assert not any(each.offline for each in node.replicas.dirs)
        await asyncio.sleep(60)
        (answer,) = await one.send(one.batch(), topic="u")
        assert answer.error_code == ErrorCode.NONE, "the node and the directory go on"
        faults.fail_sync = 0.0

    in_a_node(script)
