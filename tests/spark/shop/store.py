"""A shop on the tests' broker."""

import json
from collections.abc import Iterable

from scriba.client import SyncConsumer, SyncProducer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events import clocks
from scriba.pipelines.shop.simulation.generator import Delivery
from scriba.pipelines.shop.simulation.truth import Table, Truth
from scriba.pipelines.shop.streaming.queries import Settings, Shop
from scriba.pipelines.shop.streaming.runner import Runner
from scriba.pipelines.shop.topics import Names
from tests.spark.desk import Desk
from tests.typed import present


class Store:
    """A shop on the tests' broker, whose topics have a prefix of their own."""

    def __init__(self, desk: Desk, prefix: str, made_up: bool = True) -> None:
        self.names = Names(prefix)
        self.bootstrap = desk.broker.bootstrap
        self.checkpoints = desk.folder / "shop"
        self.truth = Truth()
        self.spark = desk.spark
        topics.create(self.bootstrap, self.names, replicas=1)
        if made_up:
            clocks.make_up_arrivals(self.bootstrap, self.names)

    def take(self, deliveries: Iterable[Delivery]) -> None:
        with SyncProducer(bootstrap_servers=self.bootstrap) as producer:
            for delivery in deliveries:
                self.truth.add(delivery)
                event = delivery.event
                producer.send_nowait(
                    self.names(event.topic),
                    delivery.value,
                    event.user.encode(),
                    timestamp=delivery.arrival_ms,
                )
            producer.flush()

    def settings(self, connector: str = "scriba", max_offsets: int = 2500) -> Settings:
        return Settings(
            self.bootstrap,
            str(self.checkpoints),
            names=self.names,
            connector=connector,
            max_offsets=max_offsets,
            to_the_end=True,
        )

    def run(self, settings: Settings, *queries: str) -> None:
        """Everything that is there, to the end."""
        Runner(self.spark, settings, Shop(self.spark, settings).queries(queries)).run()

    def table(self, topic: str) -> Table:
        return dict(self.records(topic))

    def records(self, topic: str) -> list[tuple[str, dict[str, object]]]:
        with SyncConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            places = consumer.partitions(self.names(topic))
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            found = []
            while any(consumer.position(place) < ends[place] for place in places):
                found += consumer.poll(100)
        return [(present(r.key).decode(), json.loads(present(r.value))) for r in found]
