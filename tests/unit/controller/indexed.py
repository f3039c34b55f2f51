"""What the indexes must tell, found by a walk through all partitions."""

from typing import Any

from scriba.controller.image import NO_LEADER, ClusterImage
from tests.unit.controller.rig import Cluster

BROKERS = (1, 2, 3, 4)


def walked(image: ClusterImage) -> dict[str, dict[int, list[tuple[str, int]]]]:
    """By broker, what leads, what is in sync and what is eligible, by looking at everything."""
    found: dict[str, dict[int, list[tuple[str, int]]]] = {
        name: {} for name in ("led", "in sync", "trusted", "behind", "displaced", "awaiting")
    }
    for topic in image.topics_by_id.values():
        for index, partition in topic.partitions.items():
            place = (topic.name, index)
            found["led"].setdefault(partition.leader, []).append(place)
            if partition.leader not in (NO_LEADER, partition.replicas[0]):
                found["displaced"].setdefault(partition.replicas[0], []).append(place)
            for broker in partition.replicas if partition.leader == NO_LEADER else ():
                found["awaiting"].setdefault(broker, []).append(place)
            for broker in {*partition.original} - {*partition.isr}:
                found["behind"].setdefault(broker, []).append(place)
            for broker in partition.isr:
                found["in sync"].setdefault(broker, []).append(place)
            for broker in {*partition.isr, *partition.eligible_leader_replicas}:
                found["trusted"].setdefault(broker, []).append(place)
    return found


def check(cluster: Cluster) -> None:
    image, index = cluster.image, cluster.controller.state.partitions
    expected = walked(image)

    def places(chosen: Any) -> list[tuple[str, int]]:
        return sorted((topic.name, at) for topic, at, _ in chosen)

    for broker in BROKERS:
        assert index.leads(broker) == bool(expected["led"].get(broker))
        behind = {topic.name for topic in index.behind(image, broker)}
        assert behind == {topic for topic, _ in expected["behind"].get(broker, [])}
        first = places(index.displaced(image, [broker]))
        assert first == sorted(expected["displaced"].get(broker, []))
        waiting = places(index.awaiting(image, broker))
        assert waiting == sorted(expected["awaiting"].get(broker, []))
        told = places(index.in_sync(image, [broker]))
        assert told == sorted(expected["in sync"].get(broker, []))
        assert places(index.trusted(image, broker)) == sorted(expected["trusted"].get(broker, []))
    assert places(index.leaderless(image)) == sorted(expected["led"].get(NO_LEADER, []))
    everything = {p for broker in BROKERS for p in expected["in sync"].get(broker, [])}
    assert places(index.in_sync(image, BROKERS)) == sorted(everything), "each of them once"
