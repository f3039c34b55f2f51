"""Whole clusters on simulated hosts: n1, n2, ... each with its disk, its clock and one node."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from scriba.settings import NodeSettings
from scriba.testing.sim.node import START_TIMEOUT_S, Node, SimNode
from scriba.testing.sim.world.world import SimHost, SimWorld

CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
DATA: Final = "/data"
"""Where the metadata is, and partitions too."""
MORE: Final = "/more"
"""A second directory, where nodes have two."""


class SimCluster:
    def __init__(
        self,
        sim: SimWorld,
        controllers: int,
        brokers: int,
        more: Mapping[str, str],
        complain: Callable[[str], None],
        dedicated: bool = False,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        """`controllers` nodes that vote, and serve clients unless they are `dedicated`, and
        `brokers` that only serve."""
        self._racks = racks or {}
        self.sim = sim
        self._dedicated = dedicated
        self._more = more
        self._complain = complain
        self.voters = tuple(range(1, controllers + 1))
        """Those that found the quorum."""
        self.joined: dict[int, bool] = {}
        """Nodes that came later, and whether each is a controller as well."""
        self.hosts: dict[int, SimHost] = {}
        self.nodes: dict[int, SimNode] = {}
        for at in range(1, controllers + brokers + 1):
            self._add(at)
        self._last = controllers + brokers

    def _add(self, at: int) -> None:
        # Clocks that began at other times: nobody may compare them.
        host = self.hosts[at] = self.sim.host(self.name(at), uptime_s=1_000.0 * at)
        self.nodes[at] = SimNode(host, self._settings_of(at), _as(self.name(at), self._complain))

    def join(self, controller: bool = False) -> int:
        """A new node, yet to be started, that asks the voters for the cluster; its id."""
        self._last += 1
        self.joined[self._last] = controller
        self._add(self._last)
        return self._last

    def leave(self, at: int) -> None:
        """A node that joined is gone for good, with its host."""
        self.nodes.pop(at).process.kill()
        del self.hosts[at], self.joined[at]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.nodes)

    @staticmethod
    def name(node_id: int) -> str:
        return f"n{node_id}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name(at) for at in self.ids)

    @property
    def directories(self) -> list[str]:
        return self._more.get("log.dirs", DATA).split(",")

    @property
    def brokers(self) -> tuple[str, ...]:
        """Names of the hosts that clients may ask."""
        return self.names[len(self.voters) :] if self._dedicated else self.names

    def _settings_of(self, node_id: int) -> Callable[[], NodeSettings]:
        name = self.name(node_id)
        controllers = [f"{self.name(at)}:{CONTROLLER_PORT}" for at in self.voters]
        voters = (f"{at}@{each}" for at, each in zip(self.voters, controllers, strict=True))
        quorum = (
            {"controller.quorum.bootstrap.servers": ",".join(controllers)}
            if node_id in self.joined
            else {"controller.quorum.voters": ",".join(voters)}
        )
        roles, listeners = [], []
        if node_id not in self.voters or not self._dedicated:
            roles.append("broker")
            listeners.append(f"PLAINTEXT://{name}:{CLIENT_PORT}")
        if node_id in self.voters or self.joined.get(node_id):
            roles.append("controller")
            listeners.append(f"CONTROLLER://{name}:{CONTROLLER_PORT}")
        given = {
            "node.id": str(node_id),
            "process.roles": ",".join(roles),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            **quorum,
            "scriba.allow.insecure.bind": "true",
            "log.dirs": DATA,
            "metadata.log.dir": DATA,
            **({"broker.rack": self._racks[node_id]} if node_id in self._racks else {}),
            **self._more,
        }
        return lambda: NodeSettings.parse(given)

    def boot(self) -> None:
        for node in self.nodes.values():
            node.boot()

    async def start(self) -> None:
        """Starts all nodes that do not run, and waits until all of them do."""
        for node in self.nodes.values():
            if not node.runs:
                node.boot()
        async with asyncio.timeout(START_TIMEOUT_S):
            await asyncio.gather(*(node.came_up() for node in self.nodes.values()))

    def running(self) -> Iterator[tuple[int, Node]]:
        """Nodes that have a process, paused or not, however far their start is."""
        for at, sim_node in self.nodes.items():
            if sim_node.runs and sim_node.node is not None:
                yield at, sim_node.node


def _as(name: str, complain: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: complain(f"{name}: {text}")
