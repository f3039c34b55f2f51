"""The processes of one node on a simulated host, one after the other, and its controller."""

from collections.abc import Awaitable, Callable
from typing import Any

from scriba.broker.node import Node
from scriba.errors import ErrorCode, KafkaError
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimHost, SimWorld
from scriba.wire.schema import Message

Script = Callable[[Node], Awaitable[None]]


def life(host: SimHost, script: Script, kill: bool = False, **settings: str) -> Awaitable[None]:
    """One process of a node: it starts, the script runs, it stops or is killed."""
    given = {
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }

    async def serve(world: ProcessWorld) -> None:
        node = Node(NodeSettings.parse(given), world)
        await node.start()
        await script(node)
        if not kill:
            await node.stop()

    process = host.start(serve)

    async def whole() -> None:
        await process.task
        process.kill()

    return whole()


def play(main: Callable[[SimHost], Awaitable[None]]) -> None:
    sim = SimWorld(seed=4)

    async def outside() -> None:
        await main(sim.host("node"))

    sim.run(outside())


async def nothing(node: Node) -> None:
    pass


class Refusals:
    """Answers in the controller's place, as often as it is told to."""

    def __init__(self, node: Node, kind: type[Message], *codes: ErrorCode) -> None:
        self.left = list(codes)
        self.seen: list[Any] = []
        self._kind = kind
        self._call = node.controller.call
        node.controller.call = self.call  # type: ignore[method-assign]

    async def call(self, request: Message, *more: Any, **named: Any) -> Any:
        if isinstance(request, self._kind):
            self.seen.append(request)
            if self.left:
                raise KafkaError(self.left.pop(0))
        return await self._call(request, *more, **named)
