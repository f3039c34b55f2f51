"""How much of what was not synced may be lost: a budget for each partition.

Acknowledged with acks=all means: on `min.insync.replicas` replicas, in their page caches. So fewer
than that may lose their power between two moments at which all replicas are in sync; each that did
has come back as a new incarnation by then, and has fetched what it had lost.

A process that was killed has lost nothing, but the cluster cannot tell: whoever did not shut down
in good order is no longer trusted to have all (KIP-966). Where every replica that has all is among
those, the one that is elected may be one that lost something. So beside a power cut killed ones
count, too; among themselves they do not.
"""

from dataclasses import dataclass, field

from scriba.controller.image import ClusterImage
from scriba.testing.sim.plays.witness import Witness

Replicated = tuple[bytes, int]
"""(topic id, partition)"""


@dataclass(slots=True)
class Losses:
    witness: Witness
    min_isr: int
    synced: bool
    """Whether nothing counts that is not synced; then a power cut costs nothing."""
    untrusted: dict[Replicated, dict[int, int]] = field(default_factory=dict)
    """Replicas that ended without a word, with the broker epoch in which they did."""
    lost: dict[Replicated, set[int]] = field(default_factory=dict)
    """Those of them that lost what was not synced."""

    def allow(self, broker: int, power: bool) -> bool:
        """Whether this broker may be killed now, or its host lose its power."""
        image = self.witness.newest_image()
        if image is None:
            return False
        if self.synced:
            return True
        self._forgive(image)
        return all(
            len({*self.untrusted.get(key, ()), broker}) < self.min_isr
            for key, replicas in _replicas(image)
            if broker in replicas and (power or self.lost.get(key, set()) - {broker})
        )

    def note(self, broker: int, power: bool) -> None:
        """It was killed, or did lose its power."""
        image = self.witness.newest_image()
        if image is None:
            return
        known = image.brokers.get(broker)
        for key, replicas in _replicas(image):
            if broker in replicas:
                epoch = -1 if known is None else known.epoch
                self.untrusted.setdefault(key, {})[broker] = epoch
                if power:
                    self.lost.setdefault(key, set()).add(broker)

    def _forgive(self, image: ClusterImage) -> None:
        """Partitions of which all replicas are in sync again begin anew."""
        for (topic_id, index), untrusted in list(self.untrusted.items()):
            topic = image.topics_by_id.get(topic_id)
            partition = None if topic is None else topic.partitions.get(index)
            if partition is None or (
                set(partition.isr) == set(partition.replicas)
                and all(image.brokers[at].epoch > epoch for at, epoch in untrusted.items())
            ):
                del self.untrusted[topic_id, index]
                self.lost.pop((topic_id, index), None)


def _replicas(image: ClusterImage) -> list[tuple[Replicated, tuple[int, ...]]]:
    return [
        ((topic.id, index), partition.replicas)
        for topic in image.topics_by_id.values()
        for index, partition in topic.partitions.items()
    ]
