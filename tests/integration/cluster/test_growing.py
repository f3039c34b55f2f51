"""A node with data becomes three that carry it, by two commands, and one again; clients write."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scriba.client import Admin, Consumer, OffsetSpec, Producer
from tests.integration.cluster.processes import PATIENCE, Cluster, scriba, up

TOPIC = "orders"


class Writer:
    """Writes numbers, one after the other, until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        self.written = 0
        self._bootstrap = bootstrap
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        async with Producer(bootstrap_servers=self._bootstrap, acks="all") as producer:
            while not self._stopped.is_set():
                await producer.send(TOPIC, str(self.written).encode(), partition=self.written % 3)
                self.written += 1
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stopped.set()


async def read(bootstrap: str) -> list[int]:
    """All that stands in the topic."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        ends = await admin.list_offsets({(TOPIC, n): OffsetSpec.LATEST for n in range(3)})
    wanted = sum(place.offset for place in ends.values() if place is not None)
    found: list[int] = []
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, n) for n in range(3)])
        async with asyncio.timeout(PATIENCE):
            while len(found) < wanted:
                found += [int(record.value or b"-1") for record in await consumer.poll(1000)]
    return sorted(found)


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def join(processes: ExitStack, cwd: Path, bootstrap: str, *words: str) -> Cluster:
    return processes.enter_context(up(cwd, "--join", bootstrap, "--controller", *words))


def voters(cwd: Path, bootstrap: str) -> set[int]:
    told = json.loads(scriba("cluster", "quorum", "--json", "-b", bootstrap, cwd=cwd))
    return {each["id"] for each in told["voters"]}


async def replicas(bootstrap: str) -> dict[tuple[str, int], tuple[set[int], set[int]]]:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        names = [each.name for each in await admin.list_topics(include_internal=True)]
        topics = await admin.describe_topics(names)
    return {
        (topic.name, p.partition): (set(p.replicas), set(p.isr))
        for topic in topics.values()
        for p in topic.partitions
    }


async def until_replicas(bootstrap: str, wanted: set[int]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            held = await replicas(bootstrap)
            if all(each == (wanted, wanted) for each in held.values()):
                return
            await asyncio.sleep(0.2)


def test_one_becomes_three_while_clients_write_and_one_again(
    tmp_path: Path, processes: ExitStack
) -> None:
    first = processes.enter_context(
        up(tmp_path, "--data", "one", "--set", "offsets.topic.num.partitions=2")
    )
    scriba("topic", "create", TOPIC, "--partitions", "3", "-b", first.bootstrap, cwd=tmp_path)
    scriba("consume", TOPIC, "--group", "g", "--exit", "-b", first.bootstrap, cwd=tmp_path)

    async def grow() -> tuple[Cluster, Cluster, int]:
        writer = Writer(first.bootstrap)
        writing = asyncio.ensure_future(writer.run())
        second = await asyncio.to_thread(
            join, processes, tmp_path, first.bootstrap, "--data", "two"
        )
        third = await asyncio.to_thread(
            join, processes, tmp_path, first.bootstrap, "--data", "three", "--replicas", "3"
        )
        await until_replicas(first.bootstrap, {1, 2, 3})
        writer.stop()
        await writing
        return second, third, writer.written

    second, third, written = asyncio.run(grow())
    assert (second.told["node_id"], third.told["node_id"]) == (2, 3)
    assert voters(tmp_path, second.bootstrap) == {1, 2, 3}
    assert asyncio.run(read(third.bootstrap)) == list(range(written))

    first.end(signal.SIGKILL)
    both = f"{second.bootstrap},{third.bootstrap}"
    scriba("produce", TOPIC, "--partition", "0", "-b", both, cwd=tmp_path, stdin=f"{written}\n")
    again = processes.enter_context(up(tmp_path, "--data", "one"))
    everybody = f"{again.bootstrap},{both}"
    asyncio.run(until_replicas(everybody, {1, 2, 3}))

    patience = ("--timeout", str(PATIENCE))
    scriba(
        "cluster",
        "replicas",
        "1",
        "--off",
        "2",
        "--off",
        "3",
        *patience,
        "-b",
        everybody,
        cwd=tmp_path,
    )
    for node, gone in ((2, second), (3, third)):
        scriba("cluster", "voters", "remove", str(node), *patience, "-b", everybody, cwd=tmp_path)
        assert gone.end(signal.SIGINT) == 0
    assert voters(tmp_path, again.bootstrap) == {1}
    assert asyncio.run(read(again.bootstrap)) == list(range(written + 1))
    line = scriba("cluster", "voters", "remove", "1", "-b", again.bootstrap, cwd=tmp_path, code=1)
    assert "the last voter" in line
