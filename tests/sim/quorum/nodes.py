"""A quorum of controllers on simulated hosts, to be started, killed, cut off and looked at."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.raft.messages import Position
from scriba.settings import NodeSettings
from scriba.testing.sim.node import SimNode
from scriba.testing.sim.world.volume import Dir
from scriba.testing.sim.world.world import SimHost, SimWorld
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

PORT = 9093
SMALL = {
    "metadata_log_max_record_bytes_between_snapshots": "500",
    "metadata_max_retention_bytes": "2000",
    "metadata_max_idle_interval_ms": "100",
}
T = TypeVar("T")


class SimQuorum:
    """Nodes 1 to `count`, on the hosts n1, n2 and so on; `given` are settings of all of them."""

    def __init__(self, sim: SimWorld, count: int, given: Mapping[str, str] | None = None) -> None:
        self.sim = sim
        self.ids = range(1, count + 1)
        self._given = dict(given or {})
        self.hosts: dict[int, SimHost] = {}
        self.nodes: dict[int, SimNode] = {}
        for node_id in self.ids:
            self.add(node_id)

    @property
    def voters(self) -> str:
        return ",".join(f"{i}@n{i}:{PORT}" for i in self.ids)

    def add(self, node_id: int, /, **given: str) -> SimNode:
        """A node that is not yet started; `given` has underscores for the points of names."""
        self.hosts[node_id] = self.sim.host(f"n{node_id}")
        return self.give(node_id, **given)

    def give(self, node_id: int, /, **given: str) -> SimNode:
        """A node on the host that it has, with settings of its own."""
        own = {name.replace("_", "."): text for name, text in given.items()}
        host = self.hosts[node_id]
        self.nodes[node_id] = SimNode(host, self._settings(node_id, own), _complain)
        return self.nodes[node_id]

    def _settings(self, node_id: int, own: Mapping[str, str]) -> Callable[[], NodeSettings]:
        texts = {
            "node.id": str(node_id),
            "process.roles": "controller",
            "listeners": f"CONTROLLER://n{node_id}:{PORT}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self.voters,
            "log.dirs": "/data",
            "scriba.allow.insecure.bind": "true",
            **self._given,
            **own,
        }
        kept = {name: text for name, text in texts.items() if text}
        return lambda: NodeSettings.parse(kept, machine=f"n{node_id}")

    async def start(self, *node_ids: int) -> None:
        await asyncio.gather(*(self.nodes[i].start() for i in node_ids or self.ids))

    def node(self, node_id: int) -> Node:
        node = self.nodes[node_id].node
        assert node is not None
        return node

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].process.kill()
        self.nodes[node_id].node = None

    def replace_disk(self, node_id: int) -> None:
        """The node's disk is a new one, with nothing on it."""
        volume = self.hosts[node_id].volume
        volume.root, volume.used = Dir(), 0

    @property
    def alive(self) -> dict[int, Node]:
        return {i: n.node for i, n in self.nodes.items() if n.node is not None}

    def actives(self) -> list[int]:
        return [i for i, node in self.alive.items() if node.metadata.active is not None]

    async def leader(self, within_s: float = 30, among: Callable[[int], bool] = bool) -> int:
        """The active controller, once there is one that all living nodes know."""

        def found() -> int | None:
            for i in self.actives():
                if among(i) and all(n.metadata.leader_id == i for n in self.alive.values()):
                    return i
            return None

        return await self.until(found, within_s, "no controller became active")

    async def until(self, found: Callable[[], T | None], within_s: float, what: str) -> T:
        end = asyncio.get_running_loop().time() + within_s
        while (value := found()) is None:
            if asyncio.get_running_loop().time() >= end:
                raise AssertionError(f"{what} within {within_s} s")
            await asyncio.sleep(0.01)
        return value

    async def same_image(self, within_s: float = 10) -> None:
        """Waits until all living nodes have the same metadata."""

        def same() -> bool | None:
            ends = {n.image.end_offset for n in self.alive.values()}
            first, *rest = self.alive.values()
            return True if len(ends) == 1 and all(n.image == first.image for n in rest) else None

        await self.until(same, within_s, "the images are not the same")


def _complain(text: str) -> None:
    raise AssertionError(text)


BROKER = 4


def play(
    story: Callable[[SimQuorum], Awaitable[None]],
    seed: int = 1,
    **given: str,
) -> None:
    sim = SimWorld(seed)
    quorum = SimQuorum(sim, 3, {k.replace("_", "."): v for k, v in given.items()})

    async def main() -> None:
        try:
            await story(quorum)
        finally:
            for node in quorum.nodes.values():
                if node.node is not None:
                    node.process.kill()

    sim.run(main())


async def write(node: Node, value: int) -> None:
    """Something that every image shows."""
    config = IncrementalAlterConfigsRequestAlterableConfig(
        name="log.retention.ms", config_operation=0, value=str(value)
    )
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=[config]
    )
    active = node.metadata.active
    assert active is not None
    answer = await active.call(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE


def written(node: Node) -> int:
    return int(node.image.config(BROKER, "").get("log.retention.ms", "0"))


async def shortened(quorum: SimQuorum, leader: int) -> Position:
    """Writes until the leader's log begins with a snapshot."""
    node = quorum.node(leader)
    for value in range(1, 400):
        await write(node, value)
        await asyncio.sleep(0.2)
        start = node.metadata.quorum.raft.log.start
        if start.offset:
            return start
    raise AssertionError("the log was never shortened")
