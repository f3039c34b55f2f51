"""What is different between two images, as if the records between them had been replayed."""

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

from scriba.controller.image import ClusterImage, Delta, PartitionImage

SLICE: Final = 4096
"""Partitions compared, and topics, between two pauses."""


async def difference(
    old: ClusterImage, new: ClusterImage, pause: Callable[[], Awaitable[object]]
) -> Delta:
    """For a node that gets a snapshot in place of records. It pauses between slices."""
    delta = Delta()
    compared = 0
    for number, (topic_id, topic) in enumerate(old.topics_by_id.items()):
        if topic_id not in new.topics_by_id:
            delta.deleted[topic_id] = topic
        if number % SLICE == SLICE - 1:
            await pause()
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is None:
            delta.created[topic_id] = topic
        known = before.partitions if before is not None else {}
        changed: dict[int, PartitionImage | None] = {}
        left = iter(topic.partitions.items())
        while some := list(islice(left, SLICE)):
            changed.update((at, known.get(at)) for at, now in some if known.get(at) != now)
            compared += len(some)
            if compared >= SLICE:
                compared = 0
                await pause()
        if changed:
            delta.partitions[topic_id] = changed
        compared += 1
    for resource in {**old.configs, **new.configs}:
        before_configs = old.config(*resource)
        if before_configs != new.config(*resource):
            delta.configs[resource] = dict(before_configs)
    for broker_id in {**old.brokers, **new.brokers}:
        if old.brokers.get(broker_id) != new.brokers.get(broker_id):
            delta.brokers[broker_id] = old.brokers.get(broker_id)
    for name in {**old.features, **new.features}:
        if old.features.get(name, 0) != new.features.get(name, 0):
            delta.features[name] = old.features.get(name, 0)
    delta.producer_ids = old.next_producer_id != new.next_producer_id
    delta.end_offset = new.end_offset
    return delta
