"""`shop collect` measured: what each setting of --acks and --partition-by gives and costs.

    python -m bench.collect [--rounds 3] [--deaths 3]

Every row of the table is made of the same events in the same numbers, and the rows take turns.

*Speed.* Sixteen clients send one event a request over connections that stay open, each the next as
soon as it has its answer: latency, and CPU of endpoint and broker; the best of the rounds.

*Loss.* They send lists of fifty, and after so many answers the broker dies (kill -9), or in other
rounds the endpoint: events whose request was answered with 202 and that are not in the topics
afterwards are lost.

*Order.* All events, a fifth of them from few bots, go into eight partitions in lists: how uneven
they get, how many bytes an event takes in the log, and whose events lie in one partition, so that a
reader sees them in order.

One node, so that `all` replicas are one, and 1 and all differ in nothing but the name.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.shop_parts import Part, ends_with_its_parts
from scriba.client import SyncConsumer
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.simulation.generator import Generator, Shape
from tools.kafka.brokers import Broker, ScribaBroker

CLIENTS = 16
PARTITIONS = 8
EVENTS = 20_000
ALONE = 4_000
"""Events that go one by one, after as many as warm the processes up."""
WARM = 1_000
AT_ONCE = 50
ANSWERS = 100
"""Lists that are answered before somebody dies."""
LAST_ANSWERS = 5.0
"""Seconds that others wait for theirs when the first client has ended."""

ROWS = (
    ("--acks", "0"),
    ("--acks", "1"),
    ("--acks", "all"),
    ("--acks", "1", "--partition-by", "random"),
)


@cache
def documents() -> list[dict[str, Any]]:
    """Events as web and mobile clients would send them."""
    start = round(time.time() * 1000) - 3_600_000
    made = Generator(Shape(broken=0.0, duplicates=0.0), start, None).deliveries()
    return [
        {"event": delivery.event.topic, **json.loads(delivery.value)}
        for delivery in islice(made, EVENTS)
    ]


@dataclass
class Sent:
    latencies: list[float] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)


class Traffic:
    """Clients that share out events; `told` is called after every answer, and ends it."""

    def __init__(self, address: str, at_once: int, told: Callable[[int], bool]) -> None:
        self._where = urlsplit(address)
        self._at_once = at_once
        self._told = told
        self.sent = Sent()

    async def run(self, events: Iterator[dict[str, Any]]) -> None:
        clients = [asyncio.create_task(self._client(events)) for _ in range(CLIENTS)]
        await asyncio.wait(clients, return_when=asyncio.FIRST_COMPLETED)
        _, waiting = await asyncio.wait(clients, timeout=LAST_ANSWERS)
        for client in waiting:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, events: Iterator[dict[str, Any]]) -> None:
        """Until there are no more events, or somebody has died."""
        sent = self.sent
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(self._where.hostname, self._where.port)
            while some := list(islice(events, self._at_once)):
                began = time.perf_counter()
                if await post(reader, writer, json.dumps(some).encode()) != 202:
                    return
                sent.latencies.append(time.perf_counter() - began)
                sent.answered.update(event["event_id"] for event in some)
                if self._told(len(sent.latencies)):
                    return


def send(
    address: str,
    events: list[dict[str, Any]],
    at_once: int,
    told: Callable[[int], bool] = lambda answers: False,
) -> Sent:
    traffic = Traffic(address, at_once, told)
    asyncio.run(traffic.run(iter(events)))
    return traffic.sent


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> int:
    head = f"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    await reader.readexactly(int(answer.partition("content-length: ")[2].split("\r\n")[0]))
    return int(answer.split()[1])


def cpu(part: Part) -> float:
    fields = Path(f"/proc/{part.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stored(bootstrap: str) -> list[tuple[int, dict[str, Any]]]:
    """All events with their partition, topic by topic in the order of the logs."""
    found = []
    reading = {"auto.offset.reset": "earliest", "allow.auto.create.topics": False}
    with SyncConsumer(reading, bootstrap_servers=bootstrap) as consumer:
        places = [place for topic in topics.INPUTS for place in consumer.partitions(topic)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            found += [(r.partition, json.loads(r.value)) for r in consumer.poll(100)]
    return found


@contextlib.contextmanager
def collecting(row: tuple[str, ...]) -> Iterator[tuple[ScribaBroker, Part]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        broker = ScribaBroker(Path(folder))
        stack.callback(broker.kill)
        broker.start()
        reach = ("-b", broker.bootstrap, "--port", "0", "--partitions", str(PARTITIONS))
        collect = Part("shop", "collect", *reach, *row, ready=r"events to (\S+)")
        stack.callback(collect.kill)
        yield broker, collect


@dataclass
class Row:
    """What was found out of a setting."""

    p50: float = float("inf")
    p99: float = float("inf")
    endpoint: float = float("inf")
    broker: float = float("inf")
    """CPU for an event, in ms."""
    lost: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    """By who died."""
    fullest: float = 0.0
    size: float = 0.0
    in_order: float = 0.0

    def measure_speed(self, row: tuple[str, ...]) -> None:
        with collecting(row) as (broker, collect):
            send(collect.found, documents()[:WARM], 1)
            before = cpu(collect), broker.cpu_seconds()
            times = sorted(send(collect.found, documents()[WARM : WARM + ALONE], 1).latencies)
            used = cpu(collect) - before[0], broker.cpu_seconds() - before[1]
        self.p50 = min(self.p50, 1000 * statistics.median(times))
        self.p99 = min(self.p99, 1000 * times[int(len(times) * 0.99)])
        self.endpoint = min(self.endpoint, 1000 * used[0] / len(times))
        self.broker = min(self.broker, 1000 * used[1] / len(times))

    def measure_loss(self, row: tuple[str, ...], victim: str) -> None:
        with collecting(row) as (broker, collect):
            dies: Part | Broker = broker if victim == "broker" else collect

            def told(answers: int) -> bool:
                if answers == ANSWERS:
                    dies.kill()
                return answers >= ANSWERS

            sent = send(collect.found, documents(), AT_ONCE, told)
            collect.kill()
            if victim == "broker":
                broker.start()
            there = {event["event_id"] for _, event in stored(broker.bootstrap)}
        self.lost[victim] += len(sent.answered - there)
        self.answered[victim] += len(sent.answered)

    def measure_order(self, row: tuple[str, ...]) -> None:
        with collecting(row) as (broker, collect):
            if len(send(collect.found, documents(), AT_ONCE).answered) != EVENTS:
                raise SystemExit("events were refused")
            found = stored(broker.bootstrap)
            logs = [
                log.stat().st_size
                for topic in topics.INPUTS
                for log in broker.log_dir.glob(f"{topic}-*/*.log")
            ]
        places = defaultdict(set)
        for partition, event in found:
            places[event["user_id"]].add(partition)
        events = Counter(event["user_id"] for _, event in found)
        several = [user for user, count in events.items() if count > 1]
        self.in_order = sum(len(places[user]) == 1 for user in several) / len(several)
        partitions = Counter(partition for partition, _ in found)
        self.fullest = max(partitions.values()) * PARTITIONS / len(found)
        self.size = sum(logs) / len(found)

    def line(self, name: str) -> str:
        lost = [f"{self.lost[v]:,} of {self.answered[v]:,}" for v in ("broker", "endpoint")]
        cells = (
            f"`{name}`",
            f"{self.p50:.1f}, {self.p99:.1f} ms",
            f"{self.endpoint:.2f}, {self.broker:.2f} ms",
            *lost,
            f"{self.fullest:.2f} times the mean",
            f"{self.size:.0f}",
            f"{self.in_order:.0%}",
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| | p50, p99 | CPU an event: endpoint, broker | lost with the broker | lost with the endpoint "
    "| fullest partition | bytes an event | users in order |\n|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--deaths", type=int, default=3)
    options = words.parse_args()
    ends_with_its_parts()
    documents()
    found = {row: Row() for row in ROWS}
    for _ in range(options.rounds):
        for row, measured in found.items():
            measured.measure_speed(row)
    for _ in range(options.deaths):
        for row, measured in found.items():
            measured.measure_loss(row, "broker")
            measured.measure_loss(row, "endpoint")
    for row, measured in found.items():
        measured.measure_order(row)
    print(HEAD)
    for row, measured in found.items():
        print(measured.line(" ".join(row)))
    print(f"\n{options.rounds} rounds, {options.deaths} deaths each; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
