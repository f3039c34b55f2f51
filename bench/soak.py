"""`make soak`: a node under mixed work for twenty minutes; its memory and descriptors stay flat.

    python -m bench.soak [--minutes 20] [--data FOLDER]

The work: a steady stream with short retention and a group that reads it, transactions on a
compacted topic and a reader of what is committed, topics that come and go, members that join and
leave, connections that are opened and dropped. Every ten seconds the node's resident memory and
open descriptors are noted. Flat means that the median of the last quarter is not above that of the
second quarter by more than an allowance; the first quarter is for warming up.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scriba.client import Admin, Consumer, NewTopic, Producer
from tools.kafka.brokers import Broker, ScribaBroker, running

SAMPLE_SECONDS = 10.0
MEMORY_ALLOWED = 0.05
MEMORY_ALLOWED_BYTES = 4 << 20
FILES_ALLOWED = 24

SETTINGS = {
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "5000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
STEADY = {"retention.bytes": "4000000", "segment.bytes": "1048576"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass
class Soak:
    """What has been done, and what the node took meanwhile."""

    node: Broker
    done: dict[str, int] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def count(self, what: str, by: int = 1) -> None:
        self.done[what] = self.done.get(what, 0) + by

    def sample(self) -> None:
        self.memory.append(self.node.resident_bytes())
        self.files.append(sum(1 for _ in Path(f"/proc/{self.node.pid}/fd").iterdir()))


def growth(samples: Sequence[float]) -> float:
    """From the second quarter to the last, by medians."""
    quarter = max(len(samples) // 4, 1)
    return statistics.median(samples[-quarter:]) - statistics.median(samples[quarter : 2 * quarter])


def complaints(memory: Sequence[int], files: Sequence[int]) -> list[str]:
    """What is not flat."""
    found = []
    quarter = max(len(memory) // 4, 1)
    allowed = MEMORY_ALLOWED_BYTES + MEMORY_ALLOWED * statistics.median(
        memory[quarter : 2 * quarter]
    )
    if growth(memory) > allowed:
        found.append(f"memory grew by {growth(memory) / 1e6:.1f} MB")
    if growth(files) > FILES_ALLOWED:
        found.append(f"open descriptors grew by {growth(files):.0f}")
    return found


# ---- the work ----


async def steady_writer(soak: Soak) -> None:
    async with Producer(bootstrap_servers=soak.node.bootstrap, linger_ms=5) as producer:
        while True:
            for _ in range(50):
                await producer.enqueue("steady", b"x" * 1000)
            await producer.flush()
            soak.count("records written", 50)
            await asyncio.sleep(0.05)


async def steady_reader(soak: Soak) -> None:
    async with Consumer(
        bootstrap_servers=soak.node.bootstrap, group_id="steady", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe("steady")
        while True:
            soak.count("records read", len(await consumer.poll(1000)))


async def ledger_writer(soak: Soak) -> None:
    """Every tenth transaction is aborted."""
    async with Producer(
        bootstrap_servers=soak.node.bootstrap, transactional_id="ledger"
    ) as producer:
        number = 0
        while True:
            number += 1
            await producer.begin_transaction()
            for n in range(10):
                key = b"account-%d" % ((number * 7 + n) % 500)
                await producer.enqueue("ledger", b"y" * 500, key)
            if number % 10:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
            soak.count("transactions")
            await asyncio.sleep(0.05)


async def ledger_reader(soak: Soak) -> None:
    async with Consumer(
        bootstrap_servers=soak.node.bootstrap,
        group_id="ledger",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe("ledger")
        while True:
            soak.count("committed records read", len(await consumer.poll(1000)))


async def topics_come_and_go(soak: Soak) -> None:
    """Each with a producer of its own: one that stays would ask for it again, and so create it."""
    async with Admin(bootstrap_servers=soak.node.bootstrap) as admin:
        number = 0
        while True:
            number += 1
            name = f"passing-{number}"
            await admin.create_topics([NewTopic(name, partitions=3)])
            async with Producer(bootstrap_servers=soak.node.bootstrap) as producer:
                for _ in range(5):
                    await producer.send(name, b"z" * 100)
            await admin.delete_topics([name])
            soak.count("topics")
            await asyncio.sleep(0.5)


async def members_come_and_go(soak: Soak) -> None:
    protocols: tuple[Literal["classic"], Literal["consumer"]] = ("classic", "consumer")
    number = 0
    while True:
        number += 1
        protocol = protocols[number % 2]
        async with Consumer(
            bootstrap_servers=soak.node.bootstrap,
            group_id=f"visitors-{protocol}",
            group_protocol=protocol,
            auto_offset_reset="latest",
        ) as consumer:
            consumer.subscribe("steady")
            while not await consumer.poll(1000):
                pass
        soak.count("members")
        await asyncio.sleep(0.2)


async def connections_come_and_go(soak: Soak) -> None:
    """Some say nothing, some half a request, some nonsense."""
    port = soak.node.port
    said = (b"", b"\0\0\0\x20\0\x12\0", b"\0\0\0\x04\x7f\x7f\x7f\x7f")
    while True:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]
        for n, (_, writer) in enumerate(opened):
            writer.write(said[n % 3])
        for _, writer in opened:
            writer.close()
        soak.count("connections", len(opened))
        await asyncio.sleep(0.5)


WORK: tuple[Callable[[Soak], Coroutine[None, None, None]], ...] = (
    steady_writer,
    steady_reader,
    ledger_writer,
    ledger_reader,
    topics_come_and_go,
    members_come_and_go,
    connections_come_and_go,
)


async def prepared(node: Broker) -> None:
    async with Admin(bootstrap_servers=node.bootstrap) as admin:
        await admin.create_topics(
            [
                NewTopic("steady", partitions=4, configs=STEADY),
                NewTopic("ledger", partitions=2, configs=COMPACTED),
            ]
        )


async def run(
    soak: Soak, enough: Callable[[float], bool], every: float, say: Callable[[str], None]
) -> None:
    """Works until it is told that these seconds are enough; what fails in the work fails here."""
    await prepared(soak.node)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(soak)) for work in WORK]
        while not enough(time.monotonic() - began):
            await asyncio.sleep(every)
            soak.sample()
            done = ", ".join(f"{count} {what}" for what, count in sorted(soak.done.items()))
            say(
                f"{time.monotonic() - began:5.0f} s  {soak.memory[-1] / 1e6:6.1f} MB  "
                f"{soak.files[-1]:4} files  {done}"
            )
        for task in tasks:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--data", type=Path, help="an empty folder (default: a temporary one)")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scriba-soak-") as folder:
        node = ScribaBroker(wanted.data or Path(folder), SETTINGS)
        with running(node):
            soak = Soak(node)
            seconds = wanted.minutes * 60
            every = min(SAMPLE_SECONDS, seconds / 8)
            asyncio.run(
                run(
                    soak,
                    lambda spent: spent >= seconds,
                    every,
                    lambda line: print(line, flush=True),
                )
            )
            stopped = node.stop()
    found = complaints(soak.memory, soak.files)
    if stopped:
        found.append(f"the node ended with {stopped}")
    print("; ".join(found) if found else "memory and descriptors stayed flat")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
