"""Gathers what all nodes know of a partition, and has it explained.

Only Kafka's own requests are used: DescribeTopicPartitions and DescribeCluster, DescribeConfigs,
DescribeLogDirs, DescribeQuorum, ListPartitionReassignments, and of each replica ListOffsets and
Fetch as a debugging replica, which any of them answers. Events come from the address that a node's
`scriba.metrics.listener` says, those of controllers too: they know who was fenced, and why. Whoever
does not answer is left out, and the page says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from scriba.client.admin.admin import Admin
from scriba.client.admin.model import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    LogDir,
    Reassignment,
    TopicDescription,
)
from scriba.client.diagnosis.events import read_events
from scriba.client.diagnosis.explain import explain
from scriba.client.diagnosis.facts import BrokerFacts, EventFacts, Facts, Held, LogDirFacts
from scriba.client.diagnosis.log_dirs import WATERMARK
from scriba.client.model import TopicPartition
from scriba.config import Source
from scriba.peers.addresses import parse_address
from scriba.peers.errors import ClientError
from scriba.settings.placement import PLACEMENT, ReplicaPlacement, replica_placement

T = TypeVar("T")

PATIENCE_MS: Final = 3_000
"""How long one node is waited for."""

LISTENER: Final = "scriba.metrics.listener"
UNCLEAN_WAIT: Final = "scriba.unclean.wait.ms"
MIN_ISR: Final = "min.insync.replicas"
CORDONED: Final = "cordoned.log.dirs"
_ALL_DIRS: Final = "*"
_ANYWHERE: Final = ("0.0.0.0", "[::]", "::", "")


class _Told(NamedTuple):
    """What a node says of itself."""

    events: list[EventFacts] | str
    """Or why they are not known."""
    asks: bool = False
    """Whether it would ask replicas what they have before an unclean election."""
    watermark: float = 0.0
    own_mark: bool = False
    cordoned: tuple[str, ...] = ()
    """The directories that its settings cordon."""


async def explained(
    admin: Admin, topic: TopicDescription, number: int | None, limit_ms: int, now_ms: int
) -> list[dict[str, Any]]:
    """What there is to say of a topic's partitions, or of one."""
    partitions = [p for p in topic.partitions if number is None or p.partition == number]
    wanted = [TopicPartition(topic.name, p.partition) for p in partitions]
    holders = sorted({broker for p in partitions for broker in p.replicas})
    cluster = await admin.describe_cluster(include_fenced=True, timeout_ms=limit_ms)
    hosts = {each.id: each.host for each in cluster.nodes if each.id not in cluster.fenced}
    live = list(hosts)
    answers, directories, told, (min_insync, placement) = await asyncio.gather(
        _of_each(
            [each for each in holders if each in live],
            lambda broker: _held(admin, broker, wanted, limit_ms),
        ),
        _of_each(live, lambda broker: _log_dirs(admin, broker, wanted, limit_ms)),
        _of_each(live, lambda broker: _told(admin, broker, hosts[broker], limit_ms)),
        _asked_for(admin, topic.name, limit_ms),
    )
    # Last: a broker that looks for an active controller answers nothing else meanwhile.
    of_controllers, moves = await asyncio.gather(
        _told_by_controllers(admin, cluster, limit_ms), _moves(admin, wanted, limit_ms)
    )
    said = dict(told) | (of_controllers or {})
    racks = {each.id: each.rack for each in cluster.nodes}
    observing = frozenset() if placement is None else placement.observing(racks)
    held = {broker: found for broker, found in answers if found is not None}
    unheard = {broker: "it does not run" for broker in holders if broker not in live}
    unheard |= {node: each.events for node, each in said.items() if isinstance(each.events, str)}
    events = [
        event for each in said.values() if not isinstance(each.events, str) for event in each.events
    ]
    brokers = {
        each.id: BrokerFacts(
            f"{each.host}:{each.port}",
            each.id in cluster.fenced,
            answers=each.id in held or bool(dict(directories).get(each.id)),
        )
        for each in cluster.nodes
    }
    log_dirs = {broker: _dir_facts(found, said[broker]) for broker, found in directories}
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
                any(each.asks for each in said.values()),
                {each: racks[each] or "" for each in partition.replicas if each in observing},
                moves.get(where),
                log_dirs,
                {broker: path for broker, found in directories if (path := _lies(found, where))},
                topic.internal,
                of_controllers is not None,
            )
        )
        for partition, where in zip(partitions, wanted, strict=True)
    ]


async def _log_dirs(
    admin: Admin, broker: int, wanted: Sequence[TopicPartition], limit_ms: int
) -> list[LogDir]:
    """The directories of a broker, with those of these replicas that are in them."""
    try:
        found = await admin.describe_log_dirs([broker], partitions=wanted, timeout_ms=limit_ms)
    except ClientError:
        return []
    return found[broker]


def _dir_facts(directories: Sequence[LogDir], said: _Told) -> list[LogDirFacts]:
    return [
        LogDirFacts(
            each.path,
            None if each.error is None else each.error.name,
            each.total_bytes,
            each.usable_bytes,
            each.cordoned,
            _ALL_DIRS in said.cordoned or each.path in said.cordoned,
            said.watermark,
            said.own_mark,
        )
        for each in directories
    ]


def _lies(directories: Sequence[LogDir], where: TopicPartition) -> str | None:
    """The directory in which a broker has its replica, and not the one to which it moves it."""
    for each in directories:
        replica = each.replicas.get(where)
        if replica is not None and not replica.future:
            return each.path
    return None


async def _moves(
    admin: Admin, wanted: Sequence[TopicPartition], limit_ms: int
) -> dict[TopicPartition, Reassignment]:
    """Those that are under way; none where no controller answers."""
    try:
        return await admin.list_partition_reassignments(wanted, timeout_ms=limit_ms)
    except ClientError:
        return {}


async def _of_each(nodes: Sequence[int], ask: Callable[[int], Awaitable[T]]) -> list[tuple[int, T]]:
    """Asks nodes all at once."""
    answers = await asyncio.gather(*map(ask, nodes))
    return list(zip(nodes, answers, strict=True))


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
            epoch=each.epoch,
        )
        for where, each in found.items()
    }


async def _told_by_controllers(
    admin: Admin, cluster: ClusterDescription, limit_ms: int
) -> dict[int, _Told] | None:
    """What controllers that are no brokers tell of themselves; None where none is active."""
    known = {each.id for each in cluster.nodes}
    try:
        quorum = await admin.describe_quorum(timeout_ms=limit_ms)
    except ClientError as failure:
        return None if failure.retriable else {}
    ends = {node: at[0] for node, at in quorum.endpoints.items() if at and node not in known}
    return dict(
        await _of_each(
            list(ends),
            lambda node: _told(admin, node, ends[node].host, limit_ms, ends[node].port),
        )
    )


async def _told(
    admin: Admin, node: int, host: str, limit_ms: int, controller_port: int | None = None
) -> _Told:
    names = [LISTENER, UNCLEAN_WAIT, WATERMARK, CORDONED]
    resource = ConfigResource.broker(node)
    try:
        entries: Mapping[str, ConfigEntry]
        if controller_port is not None:
            entries = await admin.describe_controller(
                node, host, controller_port, names, timeout_ms=limit_ms
            )
        else:
            found = await admin.describe_configs([resource], names=names, timeout_ms=limit_ms)
            entries = found[resource]
    except ClientError:
        return _Told("it does not answer")
    texts = {name: each.value or "" for name, each in entries.items()}
    return _Told(
        await _events_at(admin, node, host, texts.get(LISTENER, ""), limit_ms),
        texts.get(UNCLEAN_WAIT, "") not in ("", "0"),
        float(texts.get(WATERMARK) or 0),
        WATERMARK in entries and entries[WATERMARK].source is Source.DYNAMIC_BROKER_CONFIG,
        tuple(each.strip() for each in texts.get(CORDONED, "").split(",")),
    )


async def _events_at(
    admin: Admin, node: int, host: str, listener: str, limit_ms: int
) -> list[EventFacts] | str:
    """Of a node that was reached at this host, or why they are not known."""
    if not listener:
        return f"it has no {LISTENER}"
    address = parse_address(listener.partition("://")[2])
    if address is None:
        # Every address of the machine: then also the one by which it was reached.
        port = listener.rpartition(":")[2]
        address = (host, int(port)) if port.isdecimal() else None
    if address is None:
        return f"{listener} is no address"
    if address[0] in _ANYWHERE:
        address = host, address[1]
    return await _events(admin, node, *address, limit_ms)


async def _events(
    admin: Admin, node: int, host: str, port: int, limit_ms: int
) -> list[EventFacts] | str:
    """What a node told its operator of, or why that is not known."""
    try:
        async with asyncio.timeout(limit_ms / 1000):
            return await read_events(admin._ports.net, host, port, node)
    except (OSError, ValueError, KeyError, TimeoutError):
        return f"http://{host}:{port}/events does not answer"


async def _asked_for(
    admin: Admin, topic: str, limit_ms: int
) -> tuple[int, ReplicaPlacement | None]:
    """How many have to be in sync, which is no more than vote; and where replicas are to be."""
    resource = ConfigResource.topic(topic)
    names = [MIN_ISR, PLACEMENT]
    found = (await admin.describe_configs([resource], names=names, timeout_ms=limit_ms))[resource]
    least, asked = found.get(MIN_ISR), found.get(PLACEMENT)
    min_insync = int(least.value) if least is not None and least.value else 1
    placement = replica_placement(asked.value) if asked is not None else None
    return (
        min_insync if placement is None else min(min_insync, placement.voter_count),
        placement,
    )
