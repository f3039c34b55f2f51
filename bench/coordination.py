"""The rows about groups, transactions and compaction.

Members of classic groups are sockets (`members.py`); those of the consumer protocol, transactions
and their readers are those of our own client library, the same against both brokers; offset commits
are prepared frames. Topics are made by the row and deleted after it.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path

from kafka.protocol.consumer import OffsetCommitRequest

from bench import frames
from bench.generator import Load, Outcome
from bench.members import LeanGroup
from bench.rows import BATCH, GB, Bench, Figures, Metric, Row, small_producer
from scriba.client import (
    Admin,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    ResourceType,
    TopicPartition,
)
from scriba.client.keywords import ConsumerKeywords
from tools.kafka import rawkafka
from tools.kafka.rawkafka import Connection

PARTITIONS = 60
GROUP_SIZES = (2, 10, 50)
FETCHES_PER_SECOND = 500
"""Of all members that are clients together, with nothing to fetch: more would measure them."""

TIMES = 25
"""Joins and leaves of a classic group of which the median counts."""

PATIENCE_SECONDS = 120.0
COMMIT_VERSION = 7
SEGMENT = 64 << 20
COMPACT_NOW = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT),
    "min.cleanable.dirty.ratio": "0.01",
}


@contextlib.asynccontextmanager
async def new_topic(
    bench: Bench, partitions: int, configs: dict[str, str] | None = None
) -> AsyncIterator[str]:
    name = f"row-{time.monotonic_ns()}"
    async with Admin(bootstrap_servers=bench.broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(name, partitions=partitions, configs=configs or {})])
        yield name
        await admin.delete_topics([name])


# ---- rebalances ----


class Group:
    """Members of one group, each polled by a task of its own."""

    def __init__(self, bench: Bench, topic: str, members: int) -> None:
        self._topic = topic
        self._settings: ConsumerKeywords = {
            "bootstrap_servers": bench.broker.bootstrap,
            "group_id": f"{topic}-{members}",
            "group_protocol": "consumer",
            "enable_auto_commit": False,
            "auto_offset_reset": "latest",
            "fetch_max_wait_ms": max(members * 1000 // FETCHES_PER_SECOND, 10),
        }
        self._members: dict[Consumer, asyncio.Task[None]] = {}
        self._probes = 0
        self._read: dict[int, int] = {}
        """Partition to the number of the last probe that came out of it."""

    async def join(self, count: int = 1) -> None:
        for _ in range(count):
            member = Consumer(**self._settings)
            member.subscribe(self._topic)
            self._members[member] = asyncio.create_task(self._poll(member))

    async def leave(self) -> None:
        member, task = self._members.popitem()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await member.close()

    async def close(self) -> None:
        while self._members:
            await self.leave()

    async def _poll(self, member: Consumer) -> None:
        while True:
            for record in await member.poll(1000):
                assert record.value is not None
                self._read[record.partition] = int(record.value)

    def shared(self) -> bool:
        """Whether every partition has one owner and everybody a fair share."""
        held = [member.assignment() for member in self._members]
        owned = [partition for each in held for partition in each]
        least, most = PARTITIONS // len(held), -(-PARTITIONS // len(held))
        return len(owned) == len(set(owned)) == PARTITIONS and all(
            least <= len(each) <= most for each in held
        )

    async def flows(self, producer: Producer) -> float:
        """Seconds until all partitions are shared fairly and a record came out of each.

        A member that has yet to ask where its partitions end begins behind a probe, so probes are
        sent until one has come out of each partition.
        """
        began = time.monotonic()
        before = self._probes
        while time.monotonic() - began < PATIENCE_SECONDS:
            self._failed()
            if self.shared():
                self._probes += 1
                for partition in range(PARTITIONS):
                    await producer.enqueue(self._topic, b"%d" % self._probes, partition=partition)
                await producer.flush()
                for _ in range(4):
                    if self._came_after(before):
                        return time.monotonic() - began
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.005)
        raise TimeoutError("the group never came to rest")

    def _came_after(self, number: int) -> bool:
        return all(self._read.get(each, 0) > number for each in range(PARTITIONS))

    def _failed(self) -> None:
        for task in self._members.values():
            if task.done():
                task.result()


def rebalance_consumer(bench: Bench) -> Figures:
    async def work() -> Figures:
        figures: dict[str, float] = {}
        async with (
            new_topic(bench, PARTITIONS) as topic,
            Producer(bootstrap_servers=bench.broker.bootstrap) as producer,
        ):
            for members in GROUP_SIZES:
                group = Group(bench, topic, members)
                await group.join(members)
                await group.flows(producer)
                await group.join()
                figures[f"join_{members}"] = await group.flows(producer)
                await group.leave()
                figures[f"leave_{members}"] = await group.flows(producer)
                await group.close()
        return figures

    return asyncio.run(work())


def rebalance_classic(bench: Bench) -> Figures:
    """Each partition holds a record, and each group has committed the offset before it."""
    figures: dict[str, float] = {}
    topic = f"row-{time.monotonic_ns()}"
    with Connection(bench.broker.port, timeout=60) as connection:
        topic_id = rawkafka.create_topic(connection, topic, PARTITIONS)
    names = {members: f"{topic}-{members}" for members in GROUP_SIZES}
    asyncio.run(_begin_at_record(bench, topic, names.values()))
    for members, name in names.items():
        group = LeanGroup(bench.broker.port, name, topic, topic_id, PARTITIONS)
        group.join(members)
        joins, leaves = [], []
        for _ in range(TIMES):
            joins.append(group.join())
            leaves.append(group.leave())
        figures[f"join_{members}"] = statistics.median(joins)
        figures[f"leave_{members}"] = statistics.median(leaves)
        group.close()
    asyncio.run(_delete(bench, topic))
    return figures


async def _begin_at_record(bench: Bench, topic: str, groups: Iterable[str]) -> None:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with Producer(bootstrap_servers=bench.broker.bootstrap) as producer:
        for _, number in partitions:
            await producer.enqueue(topic, b"x" * 100, partition=number)
        await producer.flush()
    for group in groups:
        async with Consumer(
            bootstrap_servers=bench.broker.bootstrap, group_id=group, enable_auto_commit=False
        ) as consumer:
            consumer.assign(partitions)
            await consumer.commit(dict.fromkeys(partitions, 0))


# ---- offsets ----


def offset_commits(bench: Bench) -> Figures:
    """Sixteen groups without members, a connection each, one partition in every commit."""
    topic = "committed"
    with contextlib.suppress(ValueError), Connection(bench.broker.port, timeout=60) as connection:
        rawkafka.create_topic(connection, topic, 16)
    asyncio.run(_coordinator(bench, [f"commits-{n}" for n in range(16)], topic))
    paths = []
    for n in range(16):
        request = OffsetCommitRequest(
            group_id=f"commits-{n}",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                            partition_index=n, committed_offset=n, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        frame = rawkafka.encode(request, COMMIT_VERSION)
        paths.append(frames.write(bench.file(f"commit-{n}"), [frame]))
    load = Load.replay(
        bench.broker,
        *paths,
        connections=16,
        requests=bench.amount(40_000),
        # Correlation id, throttle, topic count, name, partition count, index.
        error_at=4 + 4 + 4 + 2 + len(topic) + 4 + 4,
    )
    load.go()
    done = load.result()
    return {"cpu": done.cpu_us, "rate": done.requests / done.seconds, "p50": done.p50}


async def _coordinator(bench: Bench, groups: Sequence[str], topic: str) -> None:
    """Has the offsets' topic made and loaded: a first commit of each group."""
    for group in groups:
        async with Consumer(
            bootstrap_servers=bench.broker.bootstrap, group_id=group, enable_auto_commit=False
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.commit({TopicPartition(topic, 0): 0})


# ---- transactions ----


def transactions(bench: Bench, records: int) -> Figures:
    """One producer, one transaction after the other; latency is that of the commit alone."""
    count = bench.amount({1: 1500, 100: 600, 1000: 200}[records])

    async def work() -> Figures:
        async with (
            new_topic(bench, 4) as topic,
            Producer(
                bootstrap_servers=bench.broker.bootstrap,
                transactional_id=topic,
                linger_ms=0,
            ) as producer,
        ):
            value = b"x" * 100
            took: list[float] = []
            for n in range(count + 20):
                if n == 20:
                    before, began = bench.broker.cpu_seconds(), time.monotonic()
                    took.clear()
                await producer.begin_transaction()
                for _ in range(records):
                    await producer.enqueue(topic, value)
                ended = time.monotonic()
                await producer.commit_transaction()
                took.append((time.monotonic() - ended) * 1e6)
            seconds = time.monotonic() - began
            cpu = bench.broker.cpu_seconds() - before
        took.sort()
        return {
            "p50": statistics.median(took),
            "p99": took[int(len(took) * 0.99)],
            "rate": count / seconds,
            "cpu": cpu / count * 1e6,
        }

    return asyncio.run(work())


def transactions_1(bench: Bench) -> Figures:
    return transactions(bench, 1)


def transactions_100(bench: Bench) -> Figures:
    return transactions(bench, 100)


def transactions_1000(bench: Bench) -> Figures:
    return transactions(bench, 1000)


def read_aborted(bench: Bench) -> Figures:
    """A topic of which every tenth transaction was aborted, read with read_committed."""
    count, records, size = bench.amount(400), 250, 1000

    async def work() -> Figures:
        settings = {"bootstrap.servers": bench.broker.bootstrap}
        async with new_topic(bench, 1) as topic:
            async with Producer(settings, transactional_id=topic) as producer:
                for n in range(count):
                    await producer.begin_transaction()
                    for _ in range(records):
                        await producer.enqueue(topic, b"x" * size)
                    if n % 10 == 9:
                        await producer.abort_transaction()
                    else:
                        await producer.commit_transaction()
            wanted = sum(records for n in range(count) if n % 10 != 9)
            async with Consumer(
                settings, auto_offset_reset="earliest", isolation_level="read_committed"
            ) as consumer:
                before, began = bench.broker.cpu_seconds(), time.monotonic()
                consumer.assign([TopicPartition(topic, 0)])
                left = wanted
                while left:
                    left -= len(await consumer.poll(1000))
                seconds = time.monotonic() - began
                cpu = bench.broker.cpu_seconds() - before
        stored = count * records * size
        return {"cpu": cpu / (stored / GB), "rate": stored / 1e6 / seconds}

    return asyncio.run(work())


# ---- compaction ----


def compaction(bench: Bench) -> Figures:
    """A gigabyte of 1 KB values, a tenth of the keys unique, and a small producer beside it.

    The topic is filled under `delete` and then told to be compacted; done is when the checkpoint
    of the cleaner has passed every closed segment. The small producer begins when the order has
    been acknowledged, so that the client that gave it is not what it waits for.
    """
    name = f"compacted-{time.monotonic_ns()}"
    total = bench.amount(GB)
    count = total // 1000
    with Connection(bench.broker.port, timeout=60) as connection:
        rawkafka.create_topic(connection, name, segment_bytes=str(SEGMENT))

    async def fill() -> None:
        async with Producer(
            bootstrap_servers=bench.broker.bootstrap, batch_size=256 << 10, linger_ms=10
        ) as producer:
            value = frames.plain_batch(BATCH, 1000).payload[:1000]
            for n in range(count):
                key = b"%09d" % (n * 7919 % max(count // 10, 1))
                await producer.enqueue(name, value, key)
            await producer.flush()

    async def compact() -> None:
        async with Admin(bootstrap_servers=bench.broker.bootstrap) as admin:
            await admin.alter_configs(
                {
                    ConfigResource(ResourceType.BROKER, ""): {"log.cleaner.backoff.ms": "100"},
                    ConfigResource(ResourceType.TOPIC, name): COMPACT_NOW,
                }
            )

    asyncio.run(fill())
    with bench.topic() as quiet:
        alone = _watched(bench, quiet, 3.0)
        before, began = bench.broker.cpu_seconds(), time.monotonic()
        asyncio.run(compact())
        beside = small_producer(bench, quiet)
        beside.go()
        _await_cleaned(bench.broker.log_dir, name)
        seconds = time.monotonic() - began
        cpu = bench.broker.cpu_seconds() - before
        found = beside.stop()
    with contextlib.suppress(OSError):
        asyncio.run(_delete(bench, name))
    size = total / GB
    return {
        "seconds": seconds / size,
        "cpu": cpu / size,
        "p99": found.p99,
        "slower": found.p99 / alone.p99,
    }


async def _delete(bench: Bench, name: str) -> None:
    async with Admin(bootstrap_servers=bench.broker.bootstrap) as admin:
        await admin.delete_topics([name])


def _watched(bench: Bench, topic: object, seconds: float) -> Outcome:
    load = small_producer(bench, topic)  # type: ignore[arg-type]
    load.go()
    time.sleep(seconds)
    return load.stop()


def _await_cleaned(folder: Path, topic: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    active = max(int(path.stem) for path in (folder / f"{topic}-0").glob("*.log"))
    while time.monotonic() < deadline:
        if any(done >= active for done in _cleaned(folder, topic)):
            return
        time.sleep(0.02)
    raise TimeoutError(f"{topic} was not compacted")


def _cleaned(folder: Path, topic: str) -> Iterator[int]:
    checkpoint = folder / "cleaner-offset-checkpoint"
    with contextlib.suppress(FileNotFoundError):
        for line in checkpoint.read_text().splitlines():
            name, _, place = line.rpartition(f"{topic} 0 ")
            if place.isdigit() and not name:
                yield int(place)


def _seconds(sizes: Sequence[int]) -> tuple[Metric, ...]:
    return tuple(
        Metric(f"{what}_{size}", f"s, {what}s {size}", goal=0.5)
        for size in sizes
        for what in ("join", "leave")
    )


COMMIT_P50 = Metric("p50", "p50 us", goal=0.5)
PER_TXN = (
    Metric("p50", "commit p50 us", goal=0.5),
    Metric("p99", "commit p99 us"),
    Metric("rate", "transactions/s", higher_is_better=True),
    Metric("cpu", "CPU us/transaction"),
)
MB_S = Metric("rate", "MB/s", higher_is_better=True)

COORDINATED = (
    Row(
        "rebalance-classic",
        "a member joins or leaves, until all partitions flow; classic",
        _seconds(GROUP_SIZES),
        rebalance_classic,
        warms=False,
    ),
    Row(
        "rebalance-consumer",
        "the same with the consumer protocol",
        _seconds(GROUP_SIZES),
        rebalance_consumer,
        warms=False,
        once=True,
    ),
    Row(
        "offset-commits",
        "offset commits, 16 connections",
        (
            Metric("cpu", "CPU us/request"),
            Metric("rate", "requests/s", higher_is_better=True),
            COMMIT_P50,
        ),
        offset_commits,
    ),
    Row("txn-1", "transactions of 1 record", PER_TXN, transactions_1),
    Row("txn-100", "transactions of 100 records", PER_TXN, transactions_100),
    Row("txn-1000", "transactions of 1,000 records", PER_TXN, transactions_1000),
    Row(
        "read-aborted",
        "reading committed records, every tenth transaction aborted",
        (Metric("cpu", "CPU-s/GB"), MB_S),
        read_aborted,
    ),
    Row(
        "compaction",
        "compaction of 1 GB, a tenth of the keys unique",
        (
            Metric("seconds", "s/GB", goal=0.8),
            Metric("cpu", "CPU-s/GB"),
            Metric("p99", "p99 us of a small producer beside it"),
            Metric("slower", "times its p99 alone"),
        ),
        compaction,
        warms=False,
    ),
)
"""Rows on brokers that stay up; the cleaner of both looks for work ten times a second."""
