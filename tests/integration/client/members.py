"""Members of a group that run beside a test and tell what happens to them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from scriba.client import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from tools.kafka.brokers import Broker

GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "45000",
}
"""Groups that do not keep a test waiting, and take nobody for dead that is only slow."""

QUICK: dict[str, Any] = {
    "heartbeat_interval_ms": 100,
    "session_timeout_ms": 45_000,
    "metadata_max_age_ms": 300,
}
"""For the classic protocol; under the new one the broker says."""

STRATEGIES: dict[str, dict[str, Any]] = {"classic": QUICK, "consumer": {"metadata_max_age_ms": 300}}


class Member:
    """A consumer that polls in the background."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.seen: list[ConsumerRecord[Any, Any]] = []
        self.moved = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def callbacks(self) -> dict[str, Callable[[Any], None]]:
        def told(what: str) -> Callable[[Any], None]:
            return lambda partitions: self.events.append((what, list(partitions)))

        return {f"on_{what}": told(what) for what in ("revoked", "assigned", "lost")}

    def happened(self, what: str) -> list[TopicPartition]:
        return [where for event, places in self.events if event == what for where in places]

    def go(self) -> None:
        """Polls from here on; what a poll raises ends that, and is raised by `until`."""
        self.task = asyncio.create_task(self._poll())
        self.task.add_done_callback(lambda _: self.moved.set())

    async def _poll(self) -> None:
        while True:
            self.seen += await self.consumer.poll(50)
            self.moved.set()

    async def until(self, told: Callable[[], object]) -> None:
        """Until it is so, looked at after each poll."""
        async with asyncio.timeout(300):
            while not told():
                assert self.task is not None
                if self.task.done():
                    await self.task
                self.moved.clear()
                await self.moved.wait()

    async def has(self, *numbers: int) -> None:
        """Until exactly the partitions of these numbers are here."""
        await self.until(lambda: [p for _, p in self.consumer.assignment()] == sorted(numbers))

    async def has_some(self, count: int) -> None:
        """Until there are this many partitions here."""
        await self.until(lambda: len(self.consumer.assignment()) == count)

    async def has_seen(self, count: int) -> None:
        await self.until(lambda: len(self.seen) >= count)

    async def stop(self) -> None:
        """No longer polls; the consumer lives on."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def member(
    broker: Broker, group: str, *topics: str, pattern: str | None = None, **settings: Any
) -> AsyncIterator[Member]:
    protocol = settings.get("group_protocol", "classic")
    chosen = {"auto_offset_reset": "earliest", **STRATEGIES[protocol], **settings}
    async with Consumer(bootstrap_servers=broker.bootstrap, group_id=group, **chosen) as consumer:
        made = Member(consumer)
        consumer.subscribe(topics, pattern=pattern, **made.callbacks())
        made.go()
        try:
            yield made
        finally:
            await made.stop()


async def create(broker: Broker, topic: str, partitions: int) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions)])


async def fill(broker: Broker, topic: str, partitions: int, count: int, first: int = 0) -> None:
    """Numbers, each in the partition that it leaves as a remainder."""
    async with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for n in range(first, first + count):
            await producer.enqueue(topic, b"%d" % n, partition=n % partitions)


def numbers(*readers: Member) -> list[int]:
    return sorted(int(record.value) for reader in readers for record in reader.seen)
