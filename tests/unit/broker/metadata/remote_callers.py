"""A node that has only a way to a controller elsewhere: what it asks goes over the wire."""

from collections.abc import Awaitable
from typing import Any, ClassVar

from scriba.broker.metadata.channel import ControllerChannel, Leader
from scriba.controller.features import SUPPORTED
from scriba.peers.ports import Signal
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld

CONTROLLER = 1


class RemoteCaller:
    """The test says who leads; at first it is `CONTROLLER` at `controller:9093`."""

    supported = SUPPORTED
    cluster_id: ClassVar[str] = ""

    def __init__(self, world: ProcessWorld, node_id: int = 7, **settings: Any) -> None:
        self.id = node_id
        self.world = world
        self.settings = NodeSettings(**settings)
        self.quorum: Any = self
        self.leads = False
        self.signal = Signal()
        self.told: Leader | None = Leader(CONTROLLER, 1, ("controller", 9093))
        self.settled: list[bool] = []
        self.channel = ControllerChannel(self)

    def voters(self) -> list[int]:
        return [1, 2, 3]

    def leader(self) -> Leader | None:
        return self.told

    def lead(self, leader: Leader | None) -> None:
        self.told = leader
        self.channel.on_leader()
        self.signal.wake()

    def changed(self) -> Awaitable[None]:
        return self.signal.wait()

    async def applied(self) -> None:
        pass

    async def visible(self, deadline: int) -> None:
        raise AssertionError("this node leads nothing")

    def is_controller_listener(self, name: str) -> bool:
        return name == "CONTROLLER"

    async def metadata_settled(self, created: bool) -> None:
        self.settled.append(created)

    def now(self) -> int:
        return self.world.clock.mono_ms()
