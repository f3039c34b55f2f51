"""Our producer and consumer beside confluent-kafka, aiokafka and kafka-python, on one broker.

    python -m bench.clients [--quick] [--rounds N] [--out FOLDER]

Each client does the same work in a process of its own: a number of records of one size into one
partition (acks=all, 64 KB batches, 5 ms linger, no compression), or out of it again by assignment.
CPU is user plus system time of that process, all threads included: of a producer from its second
record on, of a consumer from its assignment on, to the last record. The clients take turns, round
after round. Writes `CLIENTS.md` and `clients.json`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import report
from tools.kafka.brokers import ScribaBroker, running

HERE = Path(__file__).resolve().parent

SIZES = {100: 300_000, 1000: 120_000}
"""Bytes of a record's value, and how many records a round moves."""

BATCH_BYTES, LINGER_MS = 64 << 10, 5
FETCH_BYTES = 1 << 20
NEAR = 1.5
"""CPU per record that is allowed, as a multiple of confluent-kafka's."""

Worker = Callable[[str, str, int, int], tuple[float, float]]


class Stopwatch:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.monotonic() - self._wall, time.process_time() - self._cpu


# ---- ours ----


def with_loop(work: Awaitable[tuple[float, float]]) -> tuple[float, float]:
    from scriba.runtime.loop.loop import run

    async def main() -> tuple[float, float]:
        return await work

    return run(main())


def scriba_produce(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from scriba.client import Producer

    async def work() -> tuple[float, float]:
        async with Producer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=False,
            batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
        ) as producer:
            value = b"x" * size
            await producer.send(topic, value)
            watch = Stopwatch()
            for _ in range(count):
                await producer.enqueue(topic, value)
            await producer.flush()
            return watch.read()

    return with_loop(work())


def scriba_produce_sync(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from scriba.client import SyncProducer

    with SyncProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=False,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
    ) as producer:
        value = b"x" * size
        producer.send(topic, value)
        watch = Stopwatch()
        for _ in range(count):
            producer.send_nowait(topic, value)
        producer.flush()
        return watch.read()


def scriba_consume(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from scriba.client import Consumer, TopicPartition

    async def work() -> tuple[float, float]:
        async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            watch = Stopwatch()
            consumer.assign([TopicPartition(topic, 0)])
            left = count
            async for record in consumer:
                assert len(record.value or b"") == size
                left -= 1
                if not left:
                    return watch.read()
        raise AssertionError

    return with_loop(work())


def scriba_consume_sync(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from scriba.client import SyncConsumer, TopicPartition

    with SyncConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        watch = Stopwatch()
        consumer.assign([TopicPartition(topic, 0)])
        left = count
        for record in consumer:
            assert len(record.value or b"") == size
            left -= 1
            if not left:
                return watch.read()
    raise AssertionError


# ---- theirs ----


def confluent_produce(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    value = b"x" * size
    producer.produce(topic, value)
    producer.flush()
    watch = Stopwatch()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return watch.read()


def confluent_consume(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    )
    watch = Stopwatch()
    consumer.assign([TopicPartition(topic, 0, 0)])
    left = count
    while left > 0:
        for message in consumer.consume(500, 1):
            assert len(message.value() or b"") == size
            left -= 1
    found = watch.read()
    consumer.close()
    return found


def aiokafka_produce(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from aiokafka import AIOKafkaProducer

    async def work() -> tuple[float, float]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            max_batch_size=BATCH_BYTES,
            linger_ms=LINGER_MS,
        )
        await producer.start()
        value = b"x" * size
        await producer.send_and_wait(topic, value)
        watch = Stopwatch()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()
        found = watch.read()
        await producer.stop()
        return found

    return with_loop(work())


def aiokafka_consume(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def work() -> tuple[float, float]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        watch = Stopwatch()
        consumer.assign([TopicPartition(topic, 0)])
        left = count
        async for record in consumer:
            assert len(record.value) == size
            left -= 1
            if not left:
                break
        found = watch.read()
        await consumer.stop()
        return found

    return with_loop(work())


def kafka_python_produce(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=False,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
    )
    value = b"x" * size
    producer.send(topic, value).get(30)
    watch = Stopwatch()
    for _ in range(count):
        producer.send(topic, value)
    producer.flush()
    found = watch.read()
    producer.close()
    return found


def kafka_python_consume(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    watch = Stopwatch()
    consumer.assign([TopicPartition(topic, 0)])
    left = count
    for record in consumer:
        assert len(record.value) == size
        left -= 1
        if not left:
            break
    found = watch.read()
    consumer.close()
    return found


CLIENTS: dict[str, dict[str, Worker]] = {
    "produce": {
        "Scriba, async": scriba_produce,
        "Scriba, sync": scriba_produce_sync,
        "confluent-kafka": confluent_produce,
        "aiokafka": aiokafka_produce,
        "kafka-python": kafka_python_produce,
    },
    "consume": {
        "Scriba, async": scriba_consume,
        "Scriba, sync": scriba_consume_sync,
        "confluent-kafka": confluent_consume,
        "aiokafka": aiokafka_consume,
        "kafka-python": kafka_python_consume,
    },
}

Samples = dict[str, dict[str, list[tuple[float, float]]]]
"""Work and size to client to (seconds, CPU seconds) of each round, by record."""


# ---- running and telling ----


def measured(work: str, client: str, bootstrap: str, topic: str, size: int, count: int) -> str:
    """Runs one client in a process of its own."""
    command = [sys.executable, "-m", "bench.clients", "--worker", work, client, bootstrap, topic]
    done = subprocess.run(
        [*command, str(size), str(count)],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{client} failed to {work}:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def rounds(bootstrap: str, number: int, scale: float) -> Samples:
    samples: Samples = {}
    for turn in range(number):
        for size, full in SIZES.items():
            count = int(full * scale)
            filled = f"filled-{size}"
            for work, clients in CLIENTS.items():
                order = list(clients) if turn % 2 == 0 else list(reversed(clients))
                for client in order:
                    topic = filled if work == "consume" else f"row-{time.monotonic_ns()}"
                    if work == "consume" and turn == 0 and client == order[0]:
                        scriba_produce(bootstrap, filled, size, count + 1)
                    seconds, cpu = json.loads(measured(work, client, bootstrap, topic, size, count))
                    row = samples.setdefault(f"{work}, {size} B", {})
                    row.setdefault(client, []).append((seconds / count, cpu / count))
                    print(
                        f"round {turn + 1} {work} {size:4} B {client:16}"
                        f"{cpu / count * 1e6:6.2f} us/record {count / seconds:9.0f} records/s",
                        flush=True,
                    )
    return samples


def table(samples: Samples) -> str:
    text = "| work | client | CPU us/record | to confluent-kafka | records/s |\n"
    text += "|---|---|---|---|---|\n"
    for row, clients in samples.items():
        best = statistics.median(cpu for _, cpu in clients["confluent-kafka"])
        for at, (client, figures) in enumerate(clients.items()):
            cpu = [cpu * 1e6 for _, cpu in figures]
            rate = [1 / seconds for seconds, _ in figures]
            ratio = statistics.median(cpu) / best / 1e6
            text += (
                f"| {row if at == 0 else ''} | {client} | {report.spread(cpu)} "
                f"| {ratio:.2f} | {report.spread(rate)} |\n"
            )
    return text


def verdicts(samples: Samples) -> str:
    """Ours, held against the goals: ahead of both Python clients, near librdkafka."""
    text = ""
    for row, clients in samples.items():
        cpu = {who: statistics.median(cpu for _, cpu in found) for who, found in clients.items()}
        for ours in ("Scriba, async", "Scriba, sync"):
            ahead = all(cpu[ours] < cpu[other] for other in ("aiokafka", "kafka-python"))
            ratio = cpu[ours] / cpu["confluent-kafka"]
            text += (
                f"- {row}, {ours.split(', ')[1]}: "
                f"{'ahead of' if ahead else '**not ahead of**'} aiokafka and kafka-python; "
                f"{ratio:.2f} of confluent-kafka's CPU "
                f"({'met' if ratio <= NEAR else '**missed**'}, goal {NEAR:g})\n"
            )
    return text


def write(folder: Path, samples: Samples, number: int) -> None:
    method = __doc__.split("\n\n", 2)[2].partition(" Writes ")[0].strip()
    text = (
        f"# Client libraries beside each other\n\n{report.machine()}; Scriba {report.commit()}\n\n"
    )
    text += f"{method} Figures are medians of {number} rounds, with the range in brackets.\n\n"
    text += table(samples) + "\n## Goals\n\n" + verdicts(samples)
    (folder / "CLIENTS.md").write_text(text)
    (folder / "clients.json").write_text(json.dumps(samples, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.worker:
        work, client, bootstrap, topic, size, count = wanted.worker
        print(json.dumps(CLIENTS[work][client](bootstrap, topic, int(size), int(count))))
        return
    with (
        tempfile.TemporaryDirectory(prefix="scriba-clients-") as folder,
        running(ScribaBroker(Path(folder))) as broker,
    ):
        samples = rounds(broker.bootstrap, wanted.rounds, 0.1 if wanted.quick else 1.0)
    write(wanted.out, samples, wanted.rounds)
    print("\n" + table(samples) + "\n" + verdicts(samples))


if __name__ == "__main__":
    main()
