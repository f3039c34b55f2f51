"""`scriba topic why`: gathers what all brokers know of a partition, and has it explained.

Only Kafka's own requests are used: DescribeTopicPartitions and DescribeCluster, DescribeConfigs,
and of each replica ListOffsets and Fetch as a debugging replica, which any of them answers. Events
come from the address that a broker's `scriba.metrics.listener` says. Whoever does not answer is
left out, and the page says so.
"""

import argparse
import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from scriba.cli.output import counted, note, print_json, print_lines
from scriba.cli.problems import CommandError
from scriba.cli.session import timeout_ms, with_admin
from scriba.cli.topics.explain import (
    NOT_PREFERRED,
    WELL,
    BrokerFacts,
    EventFacts,
    Facts,
    Held,
    explain,
    page,
)
from scriba.client import Admin, ClientError, ConfigResource, TopicPartition
from scriba.client.admin.model import ClusterDescription, TopicDescription

T = TypeVar("T")

PATIENCE_MS: Final = 3_000
"""How long one broker is waited for."""

LISTENER: Final = "scriba.metrics.listener"
MIN_ISR: Final = "min.insync.replicas"
_ANYWHERE: Final = ("0.0.0.0", "[::]", "")
_PARTITION: Final = re.compile(r"(.+)[-:](\d+)")


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    topic, number = await named(admin, options.topic)
    now_ms = time.time_ns() // 1_000_000
    documents = await explained(admin, topic, number, min(timeout_ms(options), PATIENCE_MS), now_ms)
    if options.json:
        print_json(documents)
        return 0
    shown = [each for each in documents if number is not None or not _is_well(each)]
    if shown:
        print_lines("\n\n".join(page(each, now_ms) for each in shown))
    else:
        note(f"all is well with {counted(len(documents), 'partition')} of {topic.name}")
    return 0


async def explained(
    admin: Admin, topic: TopicDescription, number: int | None, limit_ms: int, now_ms: int
) -> list[dict[str, Any]]:
    """What there is to say of a topic's partitions, or of one."""
    partitions = [p for p in topic.partitions if number is None or p.partition == number]
    wanted = [TopicPartition(topic.name, p.partition) for p in partitions]
    holders = sorted({broker for p in partitions for broker in p.replicas})
    cluster = await admin.describe_cluster(include_fenced=True)
    live = [each.id for each in cluster.nodes if each.id not in cluster.fenced]
    held = {
        broker: found
        for broker, found in await _of_each(
            [each for each in holders if each in live],
            lambda broker: _held(admin, broker, wanted, limit_ms),
        )
        if found is not None
    }
    told = await _of_each(live, lambda broker: _events(admin, cluster, broker, limit_ms))
    unheard = {broker: "it does not run" for broker in holders if broker not in live}
    unheard |= {broker: found for broker, found in told if isinstance(found, str)}
    events = [each for _, found in told if not isinstance(found, str) for each in found]
    min_insync = await _min_insync(admin, topic.name)
    brokers = {
        each.id: BrokerFacts(
            f"{each.host}:{each.port}", each.id in cluster.fenced, answers=each.id in held
        )
        for each in cluster.nodes
    }
    return [
        explain(
            Facts(
                topic.name,
                partition,
                brokers,
                {broker: found[where] for broker, found in held.items() if where in found},
                min_insync,
                events,
                unheard,
                now_ms,
            )
        )
        for partition, where in zip(partitions, wanted, strict=True)
    ]


async def _of_each(
    brokers: Sequence[int], ask: Callable[[int], Awaitable[T]]
) -> list[tuple[int, T]]:
    """Asks brokers all at once."""
    answers = await asyncio.gather(*map(ask, brokers))
    return list(zip(brokers, answers, strict=True))


def _is_well(document: dict[str, Any]) -> bool:
    return document["state"] in (WELL, NOT_PREFERRED)


async def named(admin: Admin, text: str) -> tuple[TopicDescription, int | None]:
    """A topic, and one partition of it if that is named: as events do, or as other commands."""
    there = {topic.name for topic in await admin.list_topics(include_internal=True)}
    name, number = text, None
    if text not in there and (found := _PARTITION.fullmatch(text)) and found[1] in there:
        name, number = found[1], int(found[2])
    topic = (await admin.describe_topics([name]))[name]
    if number is not None and number >= len(topic.partitions):
        raise CommandError(
            f"{name} has no partition {number}", f"choose one below {len(topic.partitions)}"
        )
    return topic, number


async def _held(
    admin: Admin, broker: int, wanted: Sequence[TopicPartition], limit_ms: int
) -> dict[TopicPartition, Held] | None:
    """What a broker says of its replicas; None if it does not answer."""
    try:
        found = await admin.describe_replicas(broker, wanted, timeout_ms=limit_ms)
    except ClientError:
        return None
    return {
        where: Held(-1, -1, None, each.error.name)
        if each.error is not None
        else Held(
            each.start_offset,
            each.end_offset,
            each.high_watermark if each.high_watermark >= 0 else None,
        )
        for where, each in found.items()
    }


async def _events(
    admin: Admin, cluster: ClusterDescription, broker: int, limit_ms: int
) -> list[EventFacts] | str:
    """What a broker told its operator of, or why that is not known."""
    resource = ConfigResource.broker(broker)
    try:
        found = await admin.describe_configs([resource], names=[LISTENER], timeout_ms=limit_ms)
    except ClientError:
        return "it does not answer"
    entry = found[resource].get(LISTENER)
    if entry is None or not entry.value:
        return f"it has no {LISTENER}"
    host = next(each.host for each in cluster.nodes if each.id == broker)
    name, _, port = entry.value.partition("://")[2].rpartition(":")
    address = f"http://{host if name in _ANYWHERE else name}:{port}/events"
    try:
        return await asyncio.to_thread(read_events, address, broker, limit_ms / 1000)
    except (OSError, ValueError, KeyError):
        return f"{address} does not answer"


def read_events(address: str, broker: int, seconds: float) -> list[EventFacts]:
    """All that are kept, page by page."""
    found: list[EventFacts] = []
    since = 0
    while True:
        with urllib.request.urlopen(f"{address}?since={since}", timeout=seconds) as answer:
            told = json.load(answer)
        found += (
            EventFacts(broker, each["time_ms"], each["kind"], each["about"], each["text"])
            for each in told["events"]
        )
        if not told["events"] or told["next"] <= since:
            return found
        since = told["next"]


async def _min_insync(admin: Admin, topic: str) -> int:
    resource = ConfigResource.topic(topic)
    entry = (await admin.describe_configs([resource], names=[MIN_ISR]))[resource].get(MIN_ISR)
    return int(entry.value) if entry is not None and entry.value else 1
