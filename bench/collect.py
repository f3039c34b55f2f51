"""`shop collect` measured: what each setting of --acks and --partition-by gives and costs.

    python bench/collect.py [--seconds 8]

*acks.* Sixteen clients send one event a request over connections that stay open, each the next as
soon as it has its answer: latency, and CPU of endpoint and broker. Then they send lists, and the
broker dies (kill -9), or in other rounds the endpoint: events whose request was answered with 202
and that are not in the topics afterwards are lost.

*partition-by.* The generator's events, a fifth of them from few bots, go into eight partitions: how
uneven they get, how many bytes an event takes in the log, and whose events lie in one partition, so
that a reader sees them in order.

One node, so that `all` replicas are one, and 1 and all differ in nothing but the name.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools" / "kafka")]

from brokers import Broker, ScribaBroker  # noqa: E402
from shop_parts import Part  # noqa: E402

from scriba.client import SyncConsumer  # noqa: E402
from scriba.pipelines.shop import topics  # noqa: E402
from scriba.pipelines.shop.generator import Generator, Shape  # noqa: E402

CLIENTS = 16
DEATHS = 4
PARTITIONS = 8
SPREAD_EVENTS = 20_000
AT_ONCE = 50


@cache
def documents() -> Iterator[dict[str, Any]]:
    """Events as web and mobile clients would send them, one stream for all rounds."""
    events = _documents()
    next(events)  # its beginning takes a while
    return events


def _documents() -> Iterator[dict[str, Any]]:
    start = round(time.time() * 1000) - 3_600_000
    for delivery in Generator(Shape(broken=0.0, duplicates=0.0), start, None).deliveries():
        yield {"event": delivery.event.topic, **json.loads(delivery.value)}


@dataclass
class Sent:
    latencies: list[float] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)


async def client(address: str, events: Iterator[dict[str, Any]], at_once: int, sent: Sent) -> None:
    """Until somebody dies, or it is cancelled."""
    where = urlsplit(address)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        code = 202
        while code == 202:
            some = [next(events) for _ in range(at_once)]
            began = time.perf_counter()
            code = await post(reader, writer, json.dumps(some).encode())
            if code == 202:
                sent.latencies.append(time.perf_counter() - began)
                sent.answered.update(event["event_id"] for event in some)


async def traffic(address: str, at_once: int, seconds: float, victim: Part | Broker | None) -> Sent:
    """What was answered; in the middle of it one dies."""
    events, sent = documents(), Sent()
    clients = [client(address, events, at_once, sent) for _ in range(CLIENTS)]
    tasks = [asyncio.create_task(each) for each in clients]
    if victim is not None:
        await asyncio.sleep(seconds / 2)
        victim.kill()
        seconds /= 2
    _, waiting = await asyncio.wait(tasks, timeout=seconds)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return sent


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
    reading = {"auto_offset_reset": "earliest", "allow_auto_create_topics": False}
    with SyncConsumer(bootstrap_servers=bootstrap, **reading) as consumer:
        places = [place for topic in topics.INPUTS for place in consumer.partitions(topic)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            found += [(r.partition, json.loads(r.value)) for r in consumer.poll(100)]
    return found


def endpoint(broker: Broker, *words: str) -> Part:
    reach = ("-b", broker.bootstrap, "--port", "0", "--partitions", str(PARTITIONS))
    return Part("shop", "collect", *reach, *words, ready=r"events to (\S+)")


def measure_peace(acks: str, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = ScribaBroker(Path(folder))
        broker.start()
        collect = endpoint(broker, "--acks", acks)
        asyncio.run(traffic(collect.found, 1, 1.0, None))
        before = cpu(collect), broker.cpu_seconds()
        times = sorted(asyncio.run(traffic(collect.found, 1, seconds, None)).latencies)
        used = cpu(collect) - before[0], broker.cpu_seconds() - before[1]
        collect.kill()
        broker.kill()
    middle, late = statistics.median(times), times[int(len(times) * 0.99)]
    each = [1000 * spent / len(times) for spent in used]
    print(
        f"  acks={acks:<4} {len(times) / seconds:5.0f} events/s, p50 {middle * 1000:.1f} ms, "
        f"p99 {late * 1000:.1f} ms; CPU an event: endpoint {each[0]:.2f} ms, "
        f"broker {each[1]:.2f} ms",
        flush=True,
    )


def measure_death(acks: str, victim: str, seconds: float) -> None:
    lost = answered = 0
    for _ in range(DEATHS):
        with tempfile.TemporaryDirectory() as folder:
            broker = ScribaBroker(Path(folder))
            broker.start()
            collect = endpoint(broker, "--acks", acks)
            dies: Part | Broker = broker if victim == "broker" else collect
            sent = asyncio.run(traffic(collect.found, AT_ONCE, seconds, dies))
            collect.kill()
            if victim == "broker":
                broker.start()
            there = {event["event_id"] for _, event in stored(broker.bootstrap)}
            broker.kill()
        lost += len(sent.answered - there)
        answered += len(sent.answered)
    told = f"{lost} lost of {answered} that were answered"
    print(f"  acks={acks:<4} {DEATHS} deaths of the {victim}: {told}", flush=True)


def measure_spread(by: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = ScribaBroker(Path(folder))
        broker.start()
        collect = endpoint(broker, "--partition-by", by)
        asyncio.run(fill(collect.found))
        found = stored(broker.bootstrap)
        logs = [
            log.stat().st_size
            for topic in topics.INPUTS
            for log in broker.log_dir.glob(f"{topic}-*/*.log")
        ]
        collect.kill()
        broker.kill()
    partitions = Counter(partition for partition, _ in found)
    places = defaultdict(set)
    events: Counter[str] = Counter()
    for partition, event in found:
        places[event["user_id"]].add(partition)
        events[event["user_id"]] += 1
    several = [user for user, count in events.items() if count > 1]
    ordered = sum(len(places[user]) == 1 for user in several)
    fullest = max(partitions.values()) * PARTITIONS / len(found)
    busiest = events.most_common(1)[0][1] / len(found)
    print(
        f"  {by:<8} fullest partition {fullest:.2f} times the mean (busiest user {busiest:.1%} of "
        f"all), {sum(logs) / len(found):.0f} bytes an event, in order for "
        f"{ordered / len(several):.0%} of users with several events"
    )


async def fill(address: str) -> None:
    """Lists, as an app sends that was offline for a while."""
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    events = documents()
    for _ in range(SPREAD_EVENTS // AT_ONCE):
        body = json.dumps([next(events) for _ in range(AT_ONCE)]).encode()
        if await post(reader, writer, body) != 202:
            raise SystemExit("events were refused")
    writer.close()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seconds", type=float, default=8.0)
    seconds = words.parse_args().seconds
    documents()
    for acks in ("0", "1", "all"):
        measure_peace(acks, seconds)
    for acks in ("0", "1", "all"):
        for victim in ("broker", "endpoint"):
            measure_death(acks, victim, seconds / 2)
    for by in ("user_id", "random"):
        measure_spread(by)


if __name__ == "__main__":
    main()
