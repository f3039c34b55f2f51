"""`/ready`: whether a node may be restarted now, as `scriba cluster may-restart` says it.

The node answers from its own image of the cluster. Before that it asks the active controller how
far the metadata reaches and which voters are there, and waits until its image has all of it: one
that is cut off, or that has only just come back, would speak of a cluster that is no more. About
itself it says no as well while it is fenced, or while a replica of its own catches up: whoever
restarts one node after the other waits for the last one before the next one goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scriba.broker.ports import Configuration, ControllerAccess, MetadataView, WorldAccess
from scriba.controller.image import TOPIC
from scriba.errors import ErrorCode, KafkaError
from scriba.peers.errors import ClientError
from scriba.placement.harm import Harm, Held
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.settings import TopicSettings
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponsePartitionData,
)

if TYPE_CHECKING:
    from scriba.broker.metadata.controller import QuorumController

PATIENCE_MS: Final = 3_000
METADATA: Final = "__cluster_metadata"
MIN_ISR: Final = "min.insync.replicas"


class ReadinessHost(Configuration, ControllerAccess, MetadataView, WorldAccess, Protocol):
    @property
    def id(self) -> int: ...

    @property
    def metadata(self) -> QuorumController: ...


class Readiness(NamedTuple):
    node: int
    hurts: list[str]

    @property
    def may_restart(self) -> bool:
        return not self.hurts


async def readiness(host: ReadinessHost, node: int) -> Readiness:
    """KafkaError where the cluster has no such node."""
    if stopped := host.metadata.follower.stopped:
        return Readiness(node, [f"nobody knows: this node's metadata has {stopped}"])
    try:
        heard_ms = await asyncio.wait_for(_caught_up(host), PATIENCE_MS / 1000)
    except (TimeoutError, ClientError, KafkaError):
        return Readiness(node, ["nobody knows: the active controller does not answer"])
    broker = host.image.brokers.get(node)
    if broker is None and node not in heard_ms:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no node {node}")
    if node == host.id and broker is not None and broker.fenced:
        return Readiness(node, ["it has not come back yet: it is fenced"])
    found = Harm(node)
    found.to_quorum(heard_ms)
    behind = await in_slices(_looked_at(host, found), Pace(host.world.clock))
    if node == host.id and behind:
        more = f" and {len(behind) - 1} more" if len(behind) > 1 else ""
        text = f"it has not come back yet: its replica of {behind[0]}{more} catches up"
        return Readiness(node, [text, *found.told()])
    return Readiness(node, found.told())


async def _caught_up(host: ReadinessHost) -> Mapping[int, int]:
    """By voter, how long ago it was heard of; once the image has all that is committed now."""
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name=METADATA, partitions=[partition])
    answer = await host.controller.call(
        DescribeQuorumRequest(topics=[topic]), timeout_ms=PATIENCE_MS
    )
    said: DescribeQuorumResponsePartitionData = answer.topics[0].partitions[0]
    if said.error_code:
        raise KafkaError(ErrorCode(said.error_code))
    await host.metadata.applied.reach(said.high_watermark)
    now = max((each.last_fetch_timestamp for each in said.current_voters), default=0)
    return {
        each.replica_id: 0 if each.replica_id == said.leader_id else now - each.last_fetch_timestamp
        for each in said.current_voters
    }


def _looked_at(host: ReadinessHost, found: Harm) -> Generator[None, None, list[str]]:
    """Looks at all partitions; those that have a replica on the node which is not in sync."""
    image, behind = host.image, list[str]()
    for topic in list(image.topics_by_id.values()):
        own = image.config(TOPIC, topic.name).get(MIN_ISR)
        least = (
            host.settings.min_insync_replicas
            if own is None
            else TopicSettings.table[MIN_ISR].parse(own)
        )
        placement = image.placement(topic.name)
        observing = image.observing(placement)
        if placement is not None:
            least = min(least, placement.voter_count)
        for index, each in topic.partitions.items():
            yield
            held = Held(
                f"{topic.name}-{index}", each.replicas, each.isr, each.adding_replicas, least
            )
            found.to_partition(held)
            catching_up = found.node in each.replicas and found.node not in observing
            if catching_up and found.node not in (*each.isr, *held.adding):
                behind.append(held.name)
    return behind
