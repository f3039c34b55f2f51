"""How much of what was not synced may be lost: a budget for each partition.

Acknowledged with acks=all means: on `min.insync.replicas` replicas, in their page caches. So fewer
than that may lose their power between two moments at which all replicas are in sync; each that did
has come back as a new incarnation by then, and has fetched what it had lost.

A process that was killed has lost nothing, and its successor can tell, since the machine ran on. So
kills do not count, however many there are.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from scriba.controller.image import ClusterImage
from scriba.testing.sim.checks.witness import Witness

Replicated = tuple[bytes, int]
"""(topic id, partition)"""


@dataclass(slots=True)
class Losses:
    witness: Witness
    min_isr: int
    synced: bool
    """Whether nothing counts that is not synced; then a power cut costs nothing."""
    lost: dict[Replicated, dict[int, int]] = field(default_factory=dict)
    """Replicas that lost what was not synced, with the broker epoch in which they did."""

    def allow(self, broker: int, doomed: Collection[int] = ()) -> bool:
        """Whether this broker's host may lose its power, now or soon, while those of the doomed
        ones are about to."""
        if self.witness.newest_image() is None:
            return False
        if self.synced:
            return True
        # In an older image what was lost since may look like a topic that is deleted, or healed.
        image = self.witness.committed_image()
        if image is None:
            return False
        self._forgive(image)
        return all(
            len({*self.lost.get(key, ()), broker, *(r for r in replicas if r in doomed)})
            < self.min_isr
            for key, replicas in _replicas(image)
            if broker in replicas
        )

    def note(self, broker: int) -> None:
        """It did lose its power."""
        image = self.witness.newest_image()
        if image is None:
            return
        known = image.brokers.get(broker)
        for key, replicas in _replicas(image):
            if broker in replicas:
                self.lost.setdefault(key, {})[broker] = -1 if known is None else known.epoch

    def _forgive(self, image: ClusterImage) -> None:
        """Partitions of which all voters are in sync again begin anew."""
        for (topic_id, index), lost in list(self.lost.items()):
            topic = image.topics_by_id.get(topic_id)
            partition = None if topic is None else topic.partitions.get(index)
            observing = image.observing(image.placement(topic.name) if topic else None)
            if partition is None or (
                set(partition.isr) == set(partition.replicas) - observing
                and all(
                    at not in image.brokers or image.brokers[at].epoch > epoch
                    for at, epoch in lost.items()
                )
            ):
                del self.lost[topic_id, index]


def _replicas(image: ClusterImage) -> list[tuple[Replicated, tuple[int, ...]]]:
    return [
        ((topic.id, index), partition.replicas)
        for topic in image.topics_by_id.values()
        for index, partition in topic.partitions.items()
    ]
