"""What groups know of topics outlives elections, and nothing else."""

from collections.abc import Callable
from typing import Any

from scriba.broker.coordinators.cluster_topics import ClusterTopics
from scriba.broker.node import Node
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from scriba.wire.messages.brokers import BrokerHeartbeatRequest


async def fence(node: Node, fenced: bool) -> None:
    """The controller takes every leadership away, and gives it back."""
    await node.controller.call(
        BrokerHeartbeatRequest(
            broker_id=node.id,
            broker_epoch=node.broker_epoch,
            current_metadata_offset=node.image.last_offset,
            want_fence=fenced,
        )
    )


def test_facts_about_a_topic_outlive_elections_and_not_its_growth(
    in_a_node: Callable[..., None],
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        await node.controller.call(CreateTopicsRequest(topics=[topic]))
        topics: Any = ClusterTopics(node)
        first = topics.get("t")
        assert (first.partitions, first.racks) == (2, (frozenset({"r"}),) * 2)
        before = node.topology
        await fence(node, True)
        await fence(node, False)
        assert node.topology > before, "clients hear of it"
        assert topics.get("t") is first
        more = CreatePartitionsTopic(name="t", count=3, assignments=None)
        await node.controller.call(CreatePartitionsRequest(topics=[more]))
        assert topics.get("t").partitions == 3

    in_a_node(script, broker_rack="r")
