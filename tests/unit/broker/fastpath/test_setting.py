"""`scriba.fast.paths`: whether requests that repeat earlier ones may skip their handlers."""

from collections.abc import Callable

import pytest

from scriba.broker.node import Node
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from scriba.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.unit.broker.repeating import Committer, Reader, Writer

InANode = Callable[..., None]

BROKER_RESOURCE, SET = 4, 0


class EveryKind:
    """One client of each request that has a fast path, and of Metadata, whose answer is cached."""

    def __init__(self, node: Node, world: ProcessWorld) -> None:
        self.node = node
        self.world = world

    async def ready(self) -> "EveryKind":
        self.reader = await Reader(self.node, self.world).open()
        self.writer = Writer(self.node, self.world)
        self.committer = Committer(self.node, self.world)
        self.writer.peer = await Peer.connect(self.world.net, "127.0.0.1", 9092)
        self.committer.peer = await Peer.connect(self.world.net, "127.0.0.1", 9092)
        await self.committer.coordinator()
        return self

    async def repeated(self) -> list[int]:
        """How many of four equal requests each skipped their handlers: Produce, Fetch,
        OffsetCommit, Metadata."""
        counters = self.node.counters
        before = counters.fastpath_produces, counters.fastpath_fetches, counters.fastpath_commits
        asked = 0
        handler = self.node.dispatch.table[3].handler

        def counting(*request: object) -> object:
            nonlocal asked
            asked += 1
            return handler(*request)  # type: ignore[arg-type]

        self.node.dispatch.table[3].handler = counting
        for offset in range(4):
            await self.writer.send(self.writer.batch())
            await self.reader.ask(0)
            assert await self.committer.commit(offset) == [0]
            await self.writer.peer.call(MetadataRequest(topics=None), 9, MetadataResponse)
        self.node.dispatch.table[3].handler = handler
        after = counters.fastpath_produces, counters.fastpath_fetches, counters.fastpath_commits
        return [*(b - a for a, b in zip(before, after, strict=True)), 4 - asked]

    async def turn(self, text: str) -> None:
        change = IncrementalAlterConfigsRequestAlterableConfig(
            name="scriba.fast.paths", config_operation=SET, value=text
        )
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name="", configs=[change]
        )
        answer = await self.writer.peer.call(
            IncrementalAlterConfigsRequest(resources=[resource]), 1, IncrementalAlterConfigsResponse
        )
        assert [each.error_code for each in answer.responses] == [0]


def test_requests_that_repeat_skip_their_handlers(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        clients = await EveryKind(node, world).ready()
        taken = await clients.repeated()
        assert min(taken) >= 2, taken

    in_a_node(script)


def test_no_request_skips_its_handler_where_fast_paths_are_off(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        clients = await EveryKind(node, world).ready()
        assert await clients.repeated() == [0, 0, 0, 0]

    in_a_node(script, scriba_fast_paths="false")


def test_a_running_node_turns_its_fast_paths_off_and_on(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        clients = await EveryKind(node, world).ready()
        assert min(await clients.repeated()) >= 2
        await clients.turn("false")
        assert await clients.repeated() == [0, 0, 0, 0], "what was learnt before counts no more"
        await clients.turn("true")
        assert min(await clients.repeated()) >= 2

    in_a_node(script)


@pytest.mark.parametrize("setting", ["true", "false"])
def test_whoever_needs_every_handler_asked_does_not_overrule_the_setting(
    in_a_node: InANode, setting: str
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        node.ask_handlers(True)
        assert not node.fast_paths
        node.ask_handlers(False)
        assert node.fast_paths == (setting == "true")

    in_a_node(script, scriba_fast_paths=setting)
