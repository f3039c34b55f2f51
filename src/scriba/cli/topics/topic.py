"""`scriba topic`: create, list, describe, alter, delete."""

import argparse
import asyncio
from typing import Any

from scriba.cli.output import (
    counted,
    note,
    print_json,
    print_lines,
    print_names,
    print_table,
    size,
    table,
    warn,
)
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import with_admin
from scriba.cli.topics import unwell
from scriba.cli.topics.figures import Offsets, Sizes, offsets_of, sizes_of
from scriba.cli.topics.gone import described, still_there
from scriba.cli.topics.observers import Observed, observed
from scriba.cli.topics.plan import CONSUMER_MBPS, PARTITION_MBPS, Proposal, propose
from scriba.client import (
    Admin,
    BrokerError,
    ConfigResource,
    NewTopic,
    TopicPartition,
)
from scriba.client.admin.model import ConfigEntry, TopicDescription, TopicListing
from scriba.config import Source
from scriba.errors import ErrorCode

SECONDS_A_DAY = 86_400


# -- create --------------------------------------------------------------------------------------


@with_admin
async def create(admin: Admin, options: argparse.Namespace) -> int:
    if options.plan is not None:
        return await _plan(admin, options)
    if options.per_consumer or options.per_partition:
        raise Misuse("--per-consumer and --per-partition say nothing without --plan")
    wanted = NewTopic(
        options.topic, options.partitions, options.replication_factor, dict(options.config)
    )
    try:
        made = await admin.create_topics([wanted], validate_only=options.dry_run)
    except BrokerError as refused:
        if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        if not options.if_not_exists:
            raise CommandError(str(refused), "--if-not-exists leaves it as it is") from refused
        note(f"topic {options.topic} is there already and stays as it is")
        if options.json:
            there = (await admin.describe_topics([options.topic]))[options.topic]
            parts = there.partitions
            _print_created(there.name, there.id, len(parts), len(parts[0].replicas), False)
        return 0
    topic = made[options.topic]
    if options.json:
        found = None if options.dry_run else topic.id
        _print_created(
            topic.name, found, topic.partitions, topic.replication_factor, not options.dry_run
        )
    else:
        partitions = counted(topic.partitions, "partition")
        print(
            f"{'could create' if options.dry_run else 'created'} {topic.name}: {partitions}, "
            f"replication factor {topic.replication_factor}"
        )
    return 0


def _print_created(
    name: str, topic_id: str | None, partitions: int, replicas: int, created: bool
) -> None:
    print_json(
        {
            "topic": name,
            "id": topic_id,
            "partitions": partitions,
            "replication_factor": replicas,
            "created": created,
        }
    )


async def _plan(admin: Admin, options: argparse.Namespace) -> int:
    cluster = await admin.describe_cluster()
    per_consumer = options.per_consumer or CONSUMER_MBPS
    per_partition = options.per_partition or PARTITION_MBPS
    found = propose(
        options.plan,
        brokers=len(cluster.nodes),
        per_consumer=per_consumer,
        per_partition=per_partition,
    )
    if options.json:
        print_json(
            {
                "topic": options.topic,
                "mbps": found.mbps,
                "partitions": found.partitions,
                "for_consumers": found.for_consumers,
                "for_writing": found.for_writing,
                "brokers": found.brokers,
                "per_consumer_mbps": per_consumer,
                "per_partition_mbps": per_partition,
            }
        )
    else:
        print("\n".join(_told(options.topic, found, per_consumer, per_partition)))
    return 0


def _told(topic: str, found: Proposal, per_consumer: float, per_partition: float) -> list[str]:
    daily = size(found.mbps * 1e6 * SECONDS_A_DAY)
    brokers = counted(found.brokers, "broker")
    return [
        f"{found.mbps:g} MB/s into {topic}: {counted(found.partitions, 'partition')}",
        f"  to be read:     {found.for_consumers} consumers at {per_consumer:g} MB/s each",
        f"  to be written:  {found.for_writing} partitions at {per_partition:g} MB/s each",
        f"  rounded up to a multiple of {brokers}, so that each leads as many",
        f"  a day of it is {daily} in every replica",
        "nothing was created; to do so:",
        f"  scriba topic create {topic} --partitions {found.partitions}",
    ]


# -- list and describe ---------------------------------------------------------------------------


@with_admin
async def list_all(admin: Admin, options: argparse.Namespace) -> int:
    topics = await admin.list_topics(include_internal=options.internal)
    if options.names:
        print_names([topic.name for topic in topics], options.json)
        return 0
    documents = await _listed(admin, topics)
    if options.json:
        print_json(documents)
    elif documents:
        rows = [
            (d["topic"], d["partitions"], d["records"], _size(d["bytes"]), d["id"])
            for d in documents
        ]
        print_table(["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "ID"], rows)
    else:
        note("there are no topics")
    return 0


async def _listed(admin: Admin, topics: list[TopicListing]) -> list[dict[str, Any]]:
    """Each topic with how many records it has and how large it is, at its leaders.

    Three requests to each broker, however many topics there are. Records are counted by offsets, so
    markers of transactions and what compaction removed count as well.
    """
    there = await still_there(admin.describe_topics([topic.name for topic in topics]))
    topics = [topic for topic in topics if topic.name in there]
    leaders = _leaders(there)
    offsets, sizes = await _figures(admin, leaders)
    records: dict[str, int | None] = {topic.name: 0 for topic in topics}
    stored: dict[str, int | None] = {topic.name: 0 for topic in topics}
    for name, topic in there.items():
        for p in topic.partitions:
            where = TopicPartition(name, p.partition)
            start, end = offsets.get(where, (None, None))
            count = None if start is None or end is None else end - start
            records[name] = _sum(records[name], count)
            stored[name] = _sum(stored[name], sizes.get(where))
    return [
        {
            "topic": t.name,
            "id": t.id,
            "partitions": t.partitions,
            "internal": t.internal,
            "records": records[t.name],
            "bytes": stored[t.name],
        }
        for t in topics
    ]


def _sum(total: int | None, part: int | None) -> int | None:
    """Unknown as soon as one part is: a partition without a leader tells nothing."""
    return None if total is None or part is None else total + part


def _size(count: int | None) -> str | None:
    return None if count is None else size(count)


@with_admin
async def describe(admin: Admin, options: argparse.Namespace) -> int:
    if options.under_replicated or options.offline:
        return await unwell.show(admin, options)
    topics = await described(admin, options.topics, include_internal=False)
    resources = [ConfigResource.topic(name) for name in topics]
    asked = admin.describe_configs(resources)
    settings = await (asked if options.topics else still_there(asked))
    topics = {name: each for name, each in topics.items() if ConfigResource.topic(name) in settings}
    offsets, sizes = await _figures(admin, _leaders(topics))
    observers = await observed(admin, topics, settings)
    documents = [
        _document(
            topic, own_settings(settings[ConfigResource.topic(name)]), offsets, sizes, observers
        )
        for name, topic in topics.items()
    ]
    if options.json:
        print_json(documents)
    else:
        print_lines("\n\n".join(_page(document) for document in documents))
    return 0


def own_settings(entries: dict[str, ConfigEntry]) -> dict[str, str | None]:
    """What was set for the topic itself."""
    return {
        entry.name: entry.value
        for entry in entries.values()
        if entry.source == Source.DYNAMIC_TOPIC_CONFIG
    }


def _leaders(topics: dict[str, TopicDescription]) -> dict[TopicPartition, int]:
    """The partitions that have a leader, and can be asked for."""
    return {
        TopicPartition(topic.name, p.partition): p.leader
        for topic in topics.values()
        for p in topic.partitions
        if p.leader is not None
    }


async def _figures(admin: Admin, leaders: dict[TopicPartition, int]) -> tuple[Offsets, Sizes]:
    """What leaders tell of their partitions; who does not tell it is named."""
    offsets, sizes = await asyncio.gather(offsets_of(admin, leaders), sizes_of(admin, leaders))
    silent = [where for where, told in offsets.items() if None in told]
    if silent:
        where = silent[0]
        note(
            f"{counted(len(silent), 'partition')} did not tell the offsets; to see why: "
            f"scriba topic why {where.topic}:{where.partition}"
        )
    return offsets, sizes


def _document(
    topic: TopicDescription,
    settings: dict[str, str | None],
    offsets: Offsets,
    sizes: Sizes,
    observers: Observed,
) -> dict[str, Any]:
    partitions = []
    for p in topic.partitions:
        where = TopicPartition(topic.name, p.partition)
        start, end = offsets.get(where, (None, None))
        partitions.append(
            {
                "partition": p.partition,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "offline": list(p.offline_replicas),
                "observers": [
                    {
                        "broker": broker,
                        "end_offset": has,
                        "lag": max(end - has, 0) if end is not None and has is not None else None,
                    }
                    for broker, has in observers.get(where, {}).items()
                ],
                "start_offset": start,
                "end_offset": end,
                "bytes": sizes.get(where),
            }
        )
    return {
        "topic": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "config": settings,
        "partitions": partitions,
    }


def _page(document: dict[str, Any]) -> str:
    config = ", ".join(f"{name}={value}" for name, value in document["config"].items())
    shown = any(p["observers"] for p in document["partitions"])
    rows = [
        (
            p["partition"],
            p["leader"],
            ",".join(map(str, p["replicas"])),
            ",".join(map(str, p["isr"])),
            *([_observers(p["observers"])] if shown else []),
            p["start_offset"],
            p["end_offset"],
            p["bytes"],
        )
        for p in document["partitions"]
    ]
    headings = ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "BYTES"]
    if shown:
        headings.insert(4, "OBSERVERS")
    return "\n".join(
        [
            f"{document['topic']}  id {document['id']}",
            f"  config: {config or 'all defaults'}",
            *(f"  {line}" for line in table(headings, rows)),
        ]
    )


def _observers(found: list[dict[str, Any]]) -> str:
    """Each with the records it lacks."""
    return ",".join(
        f"{each['broker']} (?)" if each["lag"] is None else f"{each['broker']} (-{each['lag']:,})"
        for each in found
    )


# -- alter and delete ----------------------------------------------------------------------------


@with_admin
async def alter(admin: Admin, options: argparse.Namespace) -> int:
    name, wanted = options.topic, options.partitions
    before = len((await admin.describe_topics([name]))[name].partitions)
    if wanted < before:
        raise CommandError(
            f"{name} has {counted(before, 'partition')} and cannot have fewer, since their records "
            "would be lost",
            f"create another topic with {wanted} and copy: scriba consume {name} --json --exit | "
            "scriba produce TOPIC --json --repartition",
        )
    if wanted > before:
        warn(
            f"records with a key go to other partitions of {name} from now on: those of one key "
            "are no longer all in one partition, nor in order"
        )
        await admin.create_partitions({name: wanted}, validate_only=options.dry_run)
    if options.json:
        print_json({"topic": name, "partitions_before": before, "partitions": wanted})
    elif wanted == before:
        print(f"{name} has {counted(before, 'partition')} already")
    else:
        could = "could have" if options.dry_run else "has"
        print(f"{name} {could} {counted(wanted, 'partition')}, before it had {before}")
    return 0


@with_admin
async def delete(admin: Admin, options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.topics))
    if options.if_exists:
        there = {topic.name for topic in await admin.list_topics(include_internal=True)}
        names = [name for name in names if name in there]
    await admin.delete_topics(names)
    if options.json:
        print_json({"deleted": names})
    else:
        for name in names:
            print(f"deleted {name}")
    return 0
