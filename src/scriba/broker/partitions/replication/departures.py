"""Replicas that leave an ISR together with its leader, found in the change of the image.

A leader tells of those that it has removed itself (`isr_updates`). Who went as the leader did is
told by the next one. Where nobody leads since, nobody is in sync (KIP-966), and the first replica
whose broker is active tells it.
"""

from typing import NamedTuple

from scriba.controller.image import ClusterImage, Delta, PartitionImage
from scriba.controller.parts import NO_LEADER
from scriba.storage.directory.names import PartitionName


class Departures(NamedTuple):
    """Who left an ISR as this broker became the leader, or as nobody did."""

    name: PartitionName
    topic_id: bytes
    led_before: int
    replicas: tuple[int, ...]


def departures(delta: Delta, image: ClusterImage, me: int) -> list[Departures]:
    """Of each partition, the departures that broker `me` has to tell of."""
    found: list[Departures] = []
    for topic_id, changes in delta.partitions.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        for index, before in changes.items():
            now = topic.partitions[index]
            if before is None or before.leader_epoch == now.leader_epoch:
                continue
            if _tells(now, image) != me:
                continue
            # What a reassignment has removed is no longer a replica, in sync or not.
            gone = [r for r in before.isr if r in now.replicas and r not in now.isr]
            if gone:
                name = PartitionName(topic.name, index)
                found.append(Departures(name, topic_id, before.leader, tuple(gone)))
    return found


def _tells(partition: PartitionImage, image: ClusterImage) -> int | None:
    """The broker that tells of a change of leader; None where none is there to do so."""
    if partition.leader != NO_LEADER:
        return partition.leader
    known = (image.brokers.get(replica) for replica in partition.replicas)
    return next((broker.id for broker in known if broker is not None and broker.active), None)
