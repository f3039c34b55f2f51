"""Makes invoices of orders (confluent-kafka). What is no order becomes a dead letter."""

import json
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer


class Invoicing:
    def __init__(self, bootstrap_servers: str, orders: str, invoices: str) -> None:
        self.orders, self.invoices = orders, invoices
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"invoicing-{orders}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe([orders])
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "retry.backoff.ms": 10,
            }
        )

    def run(self, done: Callable[[], bool]) -> None:
        """Works until `done` says so: one order at a time, committed when its invoice is safe."""
        while not done():
            order = self.consumer.poll(0.05)
            if order is not None and order.error() is None:
                self.handle(order)
        self.consumer.close()

    def handle(self, order: Message) -> None:
        failures: list[object] = []
        topic, invoice = self.invoice(order)
        self.producer.produce(
            topic,
            invoice,
            key=order.key(),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        self.producer.flush()
        if failures:
            raise KafkaException(failures[0])
        self.consumer.commit(message=order, asynchronous=False)

    def invoice(self, order: Message) -> tuple[str, bytes | None]:
        try:
            found = json.loads(order.value() or b"")
            total = found["quantity"] * found["price"]
        except (ValueError, KeyError, TypeError):
            return f"{self.orders}-dead", order.value()
        return self.invoices, json.dumps({"customer": found["customer"], "total": total}).encode()
