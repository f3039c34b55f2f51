"""The controller of a node on a simulated disk, with a broker that is registered at it."""

from collections.abc import Awaitable, Callable
from typing import Any

from scriba.broker.metadata.controller import QuorumController
from scriba.broker.observe.events import Events
from scriba.controller.features import SUPPORTED
from scriba.controller.image import Delta
from scriba.errors import ErrorCode
from scriba.runtime.loop.tasks import Tasks
from scriba.settings import NodeSettings
from scriba.testing.sim.world.disk import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimHost, SimWorld
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from scriba.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
)

DIRECTORY = "/data"
DIRECTORY_ID = b"the only disk..."
CLUSTER_ID = "cluster-of-the-test---"


running: list["Rig"] = []
"""Keeps them from being collected while their process lives."""


class Rig:
    """One life of a controller, with its broker registered and unfenced."""

    def __init__(self, world: ProcessWorld, **options: Any) -> None:
        self.world = world
        self.tasks = Tasks()
        self.events = Events(world.clock)
        settings = NodeSettings.parse({"node.id": "1"})
        supported = options.pop("supported", SUPPORTED)
        self.deltas: list[Delta] = []
        self.node = QuorumController(
            world,
            DIRECTORY,
            node_id=1,
            cluster_id=CLUSTER_ID,
            directory_id=options.pop("directory_id", DIRECTORY_ID),
            settings=settings.replace(**options),
            tasks=self.tasks,
            note=self.events.note,
            supported=supported,
            endpoints=tuple(
                (e.name, e.host, e.port) for e in settings.replace(**options).controller_endpoints
            ),
        )
        self.node.subscribe(lambda delta, image: self.deltas.append(delta))
        self.epoch = -1
        running.append(self)

    async def start(self, *, clean: bool = False) -> "Rig":
        self.node.make_directory()
        await self.node.start(clean=clean)
        features = [
            BrokerRegistrationRequestFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in self.node._supported.items()
        ]
        reply = await self.node.call(
            BrokerRegistrationRequest(
                broker_id=1,
                cluster_id=CLUSTER_ID,
                incarnation_id=self.world.rng.uuid(),
                rack=None,
                features=features,
                log_dirs=[DIRECTORY_ID],
            )
        )
        self.epoch = reply.broker_epoch
        await self.beat()
        return self

    async def beat(self, **wishes: Any) -> Any:
        return await self.node.call(
            BrokerHeartbeatRequest(
                broker_id=1,
                broker_epoch=self.epoch,
                current_metadata_offset=self.node.image.last_offset,
                **wishes,
            )
        )

    async def create(self, name: str, partitions: int = 1, **configs: str) -> ErrorCode:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        response = await self.node.call(CreateTopicsRequest(topics=[topic]))
        return ErrorCode(response.topics[0].error_code)

    async def stop(self) -> None:
        await self.tasks.stop()
        await self.node.stop()


def simulate(
    story: Callable[[SimHost, Callable[..., Awaitable[Any]]], Awaitable[None]],
    seed: int = 1,
    **faults: Any,
) -> None:
    """Runs a story on one host; `live` gives it one process of a given body."""
    sim = SimWorld(seed, disk_faults=DiskFaults(**faults))
    host = sim.host("node")

    async def live(body: Callable[[ProcessWorld], Awaitable[Any]]) -> Any:
        result: list[Any] = []

        async def run(world: ProcessWorld) -> None:
            world.disk.mkdir(DIRECTORY)
            result.append(await body(world))

        process = host.start(run)
        try:
            await process.task
        finally:
            process.kill()
            running.clear()
        return result[0]

    async def main() -> None:
        await story(host, live)

    sim.run(main())
