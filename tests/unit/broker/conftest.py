"""One node on simulated time, and scripts that talk to it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.broker.node import Node
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

Script = Callable[[Node, ProcessWorld], Awaitable[None]]


@pytest.fixture
def in_a_node() -> Callable[..., None]:
    def run(script: Script, **settings: Any) -> None:
        """Plays a script inside the process of a node; settings by attribute name."""
        sim = SimWorld(seed=1)
        given = {
            "log.dirs": "/data",
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }

        async def serve(world: ProcessWorld) -> None:
            node = Node(NodeSettings.parse(given), world)
            await node.start()
            await script(node, world)
            await node.stop()

        async def main() -> None:
            await sim.host("broker").start(serve).task

        sim.run(main())

    return run
