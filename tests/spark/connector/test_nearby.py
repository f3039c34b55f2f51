"""Tasks of Spark read from a replica in their own rack, and from the leader where that fails."""

from typing import Any, cast

import pytest

from scriba.client.cluster import Cluster
from scriba.client.settings import ConsumerSettings
from scriba.records.batch import walk
from scriba.spark.link import Link
from scriba.spark.reading.fetching import RangeReader
from scriba.spark.reading.positions import Range
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.fetch import FetchRequest
from scriba.wire.uuids import to_text
from tests.unit.client.clients import fill
from tests.unit.client.fake_cluster import FakeCluster


class InPlace:
    """A link whose loop is that of the test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster


@pytest.mark.parametrize(
    ("nearby", "stopped", "asked"),
    [(2, False, [1, 2]), (2, True, [1, 1]), (9, False, [1, 1])],
    ids=["reads there", "it is dead", "it is unknown"],
)
def test_a_range_is_read_whole(nearby: int, stopped: bool, asked: list[int]) -> None:
    """An answer without records that names a replica is not the end of a log."""
    fake = FakeCluster(brokers=2)
    [log] = fake.topic("t")
    log.nearby = nearby
    fill(log, 4)

    async def main(world: ProcessWorld) -> None:
        settings = ConsumerSettings.parse(
            {"bootstrap.servers": fake.bootstrap, "client.rack": "here"}
        )
        cluster = Cluster(cast(Any, world), settings)
        cluster.start()
        cluster.want("t")
        await cluster.next_update()
        if stopped:
            fake.stop(2)
        part = Range("t", to_text(fake.topics["t"].id), 0, 0, 4)
        reader = RangeReader(cast(Link, InPlace(cluster)), settings, part, strict=True)
        found = []
        while (answer := await reader._next()) is not None:
            found += [header.next_offset for _, header in walk(answer.data)]
        assert found == [4]
        brokers = [broker for broker, request, _ in fake.seen if isinstance(request, FetchRequest)]
        assert brokers == asked
        await cluster.close()

    fake.run(main)
