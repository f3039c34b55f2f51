"""Which replicas of a topic observe, for commands that count and show replicas.

A replica observes by the rack of its broker and the topic's `scriba.replica.placement`: nothing but
DescribeConfigs and DescribeCluster is asked for. Who may not describe a topic's settings sees its
observers as replicas that are out of sync, as Kafka's tools do.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from scriba.cli.topics.gone import still_there
from scriba.client import Admin, ClientError, ConfigResource, TopicPartition
from scriba.client.admin.model import (
    ClusterDescription,
    ConfigEntry,
    ReplicaOffsets,
    TopicDescription,
)
from scriba.settings.placement import PLACEMENT, ReplicaPlacement, replica_placement

MIN_ISR: Final = "min.insync.replicas"
PATIENCE_MS: Final = 3_000
"""How long one broker is waited for."""

Observed = dict[TopicPartition, dict[int, int | None]]
"""By partition, its observers with the end of each one's log; None where it does not answer."""


async def placements(admin: Admin, topics: Iterable[str]) -> dict[str, ReplicaPlacement]:
    """Of those topics that say where their replicas are to be, and are still there."""
    resources = [ConfigResource.topic(name) for name in topics]
    if not resources:
        return {}
    found = await still_there(admin.describe_configs(resources, names=[PLACEMENT]))
    told = {resource.name: placement_in(entries) for resource, entries in found.items()}
    return {name: placement for name, placement in told.items() if placement is not None}


def placement_in(entries: Mapping[str, ConfigEntry]) -> ReplicaPlacement | None:
    """None also where the broker does not know the setting, as Kafka's does not."""
    entry = entries.get(PLACEMENT)
    return replica_placement(entry.value if entry is not None else None)


def racks(cluster: ClusterDescription) -> dict[int, str | None]:
    return {node.id: node.rack for node in cluster.nodes}


async def observing(admin: Admin, topics: Iterable[str]) -> dict[str, frozenset[int]]:
    """By topic, the brokers whose replicas observe."""
    found = await placements(admin, topics)
    if not found:
        return {}
    where = racks(await admin.describe_cluster(include_fenced=True))
    return {name: placement.observing(where) for name, placement in found.items()}


def least_in_sync(entries: Mapping[str, ConfigEntry]) -> int:
    """How many have to be in sync: no more than vote."""
    entry = entries.get(MIN_ISR)
    least = int(entry.value) if entry is not None and entry.value else 1
    placement = placement_in(entries)
    return least if placement is None else min(least, placement.voter_count)


async def observed(
    admin: Admin,
    topics: Mapping[str, TopicDescription],
    settings: Mapping[ConfigResource, Mapping[str, ConfigEntry]],
) -> Observed:
    """The observers of topics whose settings are known, each asked how far it has come."""
    asked = {name: placement_in(settings[ConfigResource.topic(name)]) for name in topics}
    if not any(asked.values()):
        return {}
    where = racks(await admin.describe_cluster(include_fenced=True))
    found: Observed = {}
    for name, placement in asked.items():
        if placement is not None:
            observing = placement.observing(where)
            for each in topics[name].partitions:
                at = TopicPartition(name, each.partition)
                found[at] = {b: None for b in each.replicas if b in observing}
    wanted: dict[int, list[TopicPartition]] = {}
    for at, brokers in found.items():
        for broker in brokers:
            wanted.setdefault(broker, []).append(at)
    for broker, held in (await held_by(admin, wanted)).items():
        for at, replica in held.items():
            found[at][broker] = replica.end_offset
    return found


async def held_by(
    admin: Admin, wanted: Mapping[int, Iterable[TopicPartition]]
) -> dict[int, dict[TopicPartition, ReplicaOffsets]]:
    """What brokers have of partitions; without those that do not answer, or fail."""

    async def ask(broker: int) -> dict[TopicPartition, ReplicaOffsets]:
        try:
            found = await admin.describe_replicas(broker, wanted[broker], timeout_ms=PATIENCE_MS)
        except ClientError:
            return {}
        return {at: replica for at, replica in found.items() if replica.error is None}

    return dict(zip(wanted, await asyncio.gather(*map(ask, wanted)), strict=True))
