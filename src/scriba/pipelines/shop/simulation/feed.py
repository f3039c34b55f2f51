"""Sends what the generator makes: the past as fast as it goes, then each event when it arrives."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scriba.client import ClientError, Delivery, Producer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.simulation import catalogue, generator, truth
from scriba.pipelines.shop.topics import Names

TICK_SECONDS = 0.05
"""How often what has become due is sent."""
AT_ONCE = 2_000
"""Events after which those under way are waited for: while the past is being made up nothing else
would run, and on a busy machine events would wait beyond their limit of time."""


@dataclass
class Sent:
    events: int = 0
    failed: int = 0
    why: str = ""
    """What the first of them failed for."""


async def publish_catalogue(producer: Producer, names: Names, products: int) -> None:
    """What the products are called, for whoever shows figures."""
    for number in range(products):
        product = catalogue.product_id(number)
        value = json.dumps({"product_id": product, "name": catalogue.name_of(number)})
        await producer.enqueue(names(topics.PRODUCTS), value.encode(), product.encode())
    await producer.flush()


class Feed:
    """Ends with the first delivery that arrives after `until_ms`, or when it is stopped; the truth
    knows those before."""

    def __init__(
        self,
        producer: Producer,
        names: Names,
        deliveries: Iterator[generator.Delivery],
        until_ms: int | None,
        known: truth.Truth | None = None,
    ) -> None:
        self.sent = Sent()
        self._producer = producer
        self._names = names
        self._deliveries = deliveries
        self._until_ms = until_ms
        self._known = known
        self._stopped = False

    def stop(self) -> None:
        """What has been sent is still waited for."""
        self._stopped = True

    async def run(self, told: Callable[[Sent], None] = lambda sent: None) -> Sent:
        for delivery in self._deliveries:
            if self._until_ms is not None and delivery.arrival_ms > self._until_ms:
                break
            while delivery.arrival_ms > time.time() * 1000 and not self._stopped:
                told(self.sent)
                await asyncio.sleep(TICK_SECONDS)
            if self._stopped:
                break
            await self._send(delivery)
            if self.sent.events % AT_ONCE == 0:
                await self._producer.flush()
                told(self.sent)
        await self._producer.flush()
        return self.sent

    async def _send(self, delivery: generator.Delivery) -> None:
        event = delivery.event
        on_its_way = await self._producer.enqueue(
            self._names(event.topic),
            delivery.value,
            event.user.encode(),
            timestamp=delivery.arrival_ms,
        )
        on_its_way.add_done_callback(self._settled)
        self.sent.events += 1
        if self._known is not None:
            self._known.add(delivery)

    def _settled(self, delivery: Delivery) -> None:
        failure = delivery.exception()
        if isinstance(failure, ClientError):
            self.sent.failed += 1
            self.sent.why = self.sent.why or str(failure)
