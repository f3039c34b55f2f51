"""Subscriptions by expression, at a broker with many topics and one that hides some."""

import asyncio
from collections.abc import Callable

import pytest

from scriba.broker.access import Operation, Resource
from scriba.broker.coordinators import cluster_topics
from scriba.broker.node import Node
from scriba.broker.request import Context
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages import groups
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from tests.unit.broker.repeating import Writer

InANode = Callable[..., None]


class Hides:
    """An authoriser that shows no topic whose name begins with "secret"."""

    open = False

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        return not (resource is Resource.TOPIC and name.startswith("secret"))


class Subscriber(Writer):
    epoch = 0

    async def ready(self) -> "Subscriber":
        await self.open()
        find = FindCoordinatorRequest(key="g")
        assert (await self.peer.call(find, 2, FindCoordinatorResponse)).error_code == 0
        return self

    async def beat(self, expression: str | None = None) -> groups.ConsumerGroupHeartbeatResponse:
        request = groups.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=self.epoch
        )
        if not self.epoch:
            request.subscribed_topic_regex = expression
            request.rebalance_timeout_ms = 10_000
            request.topic_partitions = []
        answer = await self.peer.call(request, 1, groups.ConsumerGroupHeartbeatResponse)
        if not answer.error_code:
            self.epoch = answer.member_epoch
        return answer

    async def topics(self, expression: str) -> set[str]:
        """What the member is assigned, by name, once it is assigned something."""
        names = {topic.id: name for name, topic in self.node.image.topics_by_name.items()}
        for _ in range(1_000):
            answer = await self.beat(expression)
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return {names[each.topic_id] for each in answer.assignment.topic_partitions}
            await asyncio.sleep(0.1)
        raise AssertionError("never assigned anything")


def test_topics_that_the_member_may_not_see_are_not_matched(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        member = await Subscriber(node, world).ready()
        for name in ("secret-1", "told-1", "told-2"):
            await member.create(name)
        node.access = Hides()
        assert await member.topics("secret.*|told.*") == {"told-1", "told-2"}

    in_a_node(script, offsets_topic_num_partitions=1)


@pytest.mark.parametrize("hidden", [False, True])
def test_many_topics_are_matched_in_slices(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    monkeypatch.setattr(cluster_topics, "SLICE_VISITS", 10)
    monkeypatch.setattr(cluster_topics, "SLICE_TOPICS", 2)
    slices: list[str] = []
    advance = cluster_topics.TopicSearch.advance

    def counted(search: cluster_topics.TopicSearch) -> bool:
        slices.append(search.key[0])
        return advance(search)

    monkeypatch.setattr(cluster_topics.TopicSearch, "advance", counted)

    async def script(node: Node, world: ProcessWorld) -> None:
        member = await Subscriber(node, world).ready()
        names = [*(f"told-{n}" for n in range(7)), "secret-1"]
        for name in names:
            await member.create(name)
        if hidden:
            node.access = Hides()
        found = await member.topics("(secret|told).*")
        assert found == {name for name in names if not hidden or name.startswith("told")}
        assert len(slices) > 3

    in_a_node(script, offsets_topic_num_partitions=1)


def test_a_group_of_many_expressions_finds_the_topics_of_all_together(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for those of all at once, and comes again when one of them is not ready."""
    monkeypatch.setattr(cluster_topics, "SLICE_VISITS", 1)

    async def script(node: Node, world: ProcessWorld) -> None:
        member = await Subscriber(node, world).ready()
        for name in ("told-1", "told-2"):
            await member.create(name)
        topics = cluster_topics.ClusterTopics(node)
        expressions = [f"told-{n}|x" for n in range(6)]
        tries = 0
        while any(topics.matching(each, None) is None for each in expressions):
            tries += 1
            assert tries <= len(expressions)
            await asyncio.sleep(1)
        assert topics.matching("told-2|x", None) == frozenset({"told-2"})

    in_a_node(script, offsets_topic_num_partitions=1)
