"""The topics of an inventory, and what is demanded of them before a word is written.

    <name>-events  compacted by item: what is there now
    <name>-audit   everything that ever happened, kept forever
    <name>-writer  one partition: whoever is given it is the active writer, and says where it is
    <name>-stock   the view that Spark publishes (see `view`)

An acknowledged event must outlive any one broker: three replicas, two of which have it before it
counts, and no leader that lacks it. A cluster of fewer than three brokers cannot promise that;
it is used only when somebody says that this is understood.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scriba.client import Admin, BrokerError, ConfigResource, NewTopic
from scriba.client.admin.calls import PartlyFailed
from scriba.client.admin.model import TopicDescription
from scriba.errors import ErrorCode

REPLICAS: Final = 3
MIN_INSYNC: Final = 2
TRANSACTIONS: Final = "__transaction_state"
"""Whether a transaction is committed is as safe as this topic is."""

KEEP_LATEST: Final = {"cleanup.policy": "compact"}
KEEP_ALL: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class WeakSettings(Exception):
    """Topics, or a cluster, that cannot promise what an inventory needs; one line, with the fix."""


@dataclass(frozen=True)
class Names:
    """What belongs to the inventory of a name."""

    name: str = "inventory"

    @property
    def events(self) -> str:
        return f"{self.name}-events"

    @property
    def audit(self) -> str:
        return f"{self.name}-audit"

    @property
    def writer(self) -> str:
        return f"{self.name}-writer"

    @property
    def stock(self) -> str:
        return f"{self.name}-stock"

    @property
    def transactional_id(self) -> str:
        """The same for every writer, so that each fences the one before it."""
        return f"{self.name}-writer"

    @property
    def group(self) -> str:
        return f"{self.name}-writers"


@dataclass(frozen=True)
class Demand:
    """What one topic must be."""

    topic: str
    replicas: int
    min_insync: int
    partitions: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, str | None]:
        return {
            **self.configs,
            "min.insync.replicas": str(self.min_insync),
            "unclean.leader.election.enable": "false",
        }


def durability(brokers: int, allow_single_node: bool) -> tuple[int, int]:
    """Replicas, and how many must be in sync; refuses what is too little, unless allowed."""
    if brokers >= REPLICAS:
        return REPLICAS, MIN_INSYNC
    if not allow_single_node:
        raise WeakSettings(
            f"the cluster has {brokers} broker{'s' if brokers > 1 else ''}, and an inventory needs "
            f"{REPLICAS}: one lost disk could lose the books; add brokers, or accept that with "
            "--allow-single-node"
        )
    return brokers, min(MIN_INSYNC, brokers)


def demands(names: Names, partitions: int, replicas: int, min_insync: int) -> list[Demand]:
    return [
        Demand(names.events, replicas, min_insync, partitions, KEEP_LATEST),
        Demand(names.audit, replicas, min_insync, partitions, KEEP_ALL),
        Demand(names.writer, replicas, min_insync, 1, KEEP_LATEST),
    ]


def complaints(
    demand: Demand, found: TopicDescription, configs: Mapping[str, str | None]
) -> Iterable[str]:
    """What is weaker than demanded, each with what makes it good."""
    least = min(len(partition.replicas) for partition in found.partitions)
    if least < demand.replicas:
        yield (
            f"{demand.topic} has {least} replica{'s' if least > 1 else ''} instead of "
            f"{demand.replicas}; move its partitions to more brokers"
        )
    insync = int(configs.get("min.insync.replicas") or 1)
    if insync < demand.min_insync:
        yield _fix(demand.topic, "min.insync.replicas", str(insync), str(demand.min_insync))
    if configs.get("unclean.leader.election.enable") == "true":
        yield _fix(demand.topic, "unclean.leader.election.enable", "true", "false")
    for name, value in demand.configs.items():
        if configs.get(name) != value:
            yield _fix(demand.topic, name, str(configs.get(name)), value)
    count = len(found.partitions)
    if demand.partitions == 1 and count != 1:
        yield f"{demand.topic} has {count} partitions instead of 1; delete it, it is made anew"


def _fix(topic: str, name: str, value: str, wanted: str) -> str:
    return f"{topic} has {name}={value}; run `scriba config set --topic {topic} {name}={wanted}`"


async def prepare(
    admin: Admin, names: Names, partitions: int, allow_single_node: bool
) -> dict[str, TopicDescription]:
    """Creates what is missing, checks all, and describes it by name."""
    replicas, min_insync = await _durability(admin, allow_single_node)
    found = await _ensure(admin, demands(names, partitions, replicas, min_insync))
    if await described(admin, [TRANSACTIONS]):
        await _ensure(admin, [Demand(TRANSACTIONS, replicas, min_insync)])
    events, audit = len(found[names.events].partitions), len(found[names.audit].partitions)
    if events != audit:
        raise WeakSettings(
            f"{names.events} has {events} partitions and {names.audit} {audit}; an item must be at "
            "the same place in both: add partitions to the one that has fewer"
        )
    return found


async def prepare_view(admin: Admin, names: Names, allow_single_node: bool) -> None:
    """The same for the topic of the view, which has as many partitions as the audit log."""
    audit = await described(admin, [names.audit])
    if not audit:
        raise WeakSettings(
            f"there is no topic {names.audit}; start the inventory with `scriba inventory serve`"
        )
    replicas, min_insync = await _durability(admin, allow_single_node)
    partitions = len(audit[names.audit].partitions)
    await _ensure(admin, [Demand(names.stock, replicas, min_insync, partitions, KEEP_LATEST)])


async def _durability(admin: Admin, allow_single_node: bool) -> tuple[int, int]:
    return durability(len((await admin.describe_cluster()).nodes), allow_single_node)


async def _ensure(admin: Admin, wanted: list[Demand]) -> dict[str, TopicDescription]:
    topics = [demand.topic for demand in wanted]
    found = await described(admin, topics)
    missing = [demand for demand in wanted if demand.topic not in found]
    if missing:
        await _create(admin, missing)
        while len(found) < len(wanted):  # brokers learn of a topic after the answer that made it
            await asyncio.sleep(0.05)
            found = await described(admin, topics)
    await _check(admin, wanted, found)
    return found


async def described(admin: Admin, topics: list[str]) -> dict[str, TopicDescription]:
    """Those of the topics that there are."""
    there = {listing.name for listing in await admin.list_topics(include_internal=True)}
    names = [topic for topic in topics if topic in there]
    return await admin.describe_topics(names) if names else {}


async def _create(admin: Admin, missing: list[Demand]) -> None:
    """Another service that starts at the same time may be quicker."""
    topics = [
        NewTopic(demand.topic, demand.partitions or 1, demand.replicas, demand.settings())
        for demand in missing
    ]
    try:
        await admin.create_topics(topics)
    except (PartlyFailed, BrokerError) as failure:
        errors = failure.errors.values() if isinstance(failure, PartlyFailed) else [failure]
        if any(error.code is not ErrorCode.TOPIC_ALREADY_EXISTS for error in errors):
            raise


async def _check(admin: Admin, wanted: list[Demand], found: Mapping[str, TopicDescription]) -> None:
    configs = await admin.describe_configs(
        [ConfigResource.topic(demand.topic) for demand in wanted]
    )
    told: list[str] = []
    for demand in wanted:
        entries = configs[ConfigResource.topic(demand.topic)]
        values = {name: entry.value for name, entry in entries.items()}
        told += complaints(demand, found[demand.topic], values)
    if told:
        raise WeakSettings("; ".join(told))
