"""`scriba cluster promote`: the observers of a rack become voters.

Where voters are alive nothing is lost: the observers join the in-sync set when they have caught up.
Where a region with all voters of a partition is gone, an observer leads from what it has, and this
command says what that lacks: what it was told to be committed and does not have, by offset, and
from which offset on nobody can say. That takes `--unclean`; without it nothing is changed.

It is made of Kafka's own requests: IncrementalAlterConfigs changes the topic's placement, in which
racks without a live broker become observers, so that what returns copies from the new leader and
delays nobody; ElectLeaders has an observer lead.
"""

import argparse
import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from scriba.cli.output import counted, note, print_json, print_lines, table
from scriba.cli.problems import FAILED, CommandError
from scriba.cli.session import with_admin
from scriba.cli.topics.gone import still_there
from scriba.cli.topics.observers import held_by, placements, racks
from scriba.client import Admin, ConfigOp, ConfigResource, ElectionType, TopicPartition
from scriba.client.admin.model import PartitionDescription, ReplicaOffsets
from scriba.settings.placement import PLACEMENT, ReplicaPlacement

PAUSE_S: Final = 0.2
LONGEST_S: Final = 30

Held = Mapping[int, Mapping[TopicPartition, ReplicaOffsets]]
"""By broker that answers, what it has of partitions."""


class Promotion(NamedTuple):
    """One partition, and the observer that would lead it, or vote in it."""

    where: TopicPartition
    leader: int | None
    """None where only an unclean election gives it one."""
    chosen: int | None
    """The observer that has most; None where none of them answers."""
    end_offset: int | None
    committed: int | None
    """What any replica that answers was told to be committed."""

    @property
    def missing(self) -> int:
        """Records known to be committed that it does not have."""
        return max((self.committed or 0) - (self.end_offset or 0), 0)

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "leader": self.leader,
            "observer": self.chosen,
            "end_offset": self.end_offset,
            "missing_from": self.end_offset if self.missing else None,
            "missing_to": self.committed if self.missing else None,
            "unknown_from": None if self.leader is not None else self._known,
        }

    @property
    def _known(self) -> int | None:
        ends = [each for each in (self.end_offset, self.committed) if each is not None]
        return max(ends, default=None)

    def loses(self) -> str:
        if self.leader is not None:
            return "nothing"
        if self.end_offset is None and self.chosen is not None:
            return f"nothing if broker {self.chosen} was in sync: it came back meanwhile"
        if self.end_offset is None:
            return "all of it, or it cannot be known: no observer answers"
        beyond = f"whatever was written from offset {self._known:,} on"
        if not self.missing:
            return beyond
        last = self.end_offset + self.missing - 1
        return f"offsets {self.end_offset:,} to {last:,}, and {beyond}"


def promoted(placement: ReplicaPlacement, rack: str, alive: Collection[str]) -> ReplicaPlacement:
    """With the rack's observers as voters. Voters' racks where no broker lives observe."""
    voters = {name: count for name, count in placement.voters.items() if name in alive}
    lost = {name: count for name, count in placement.voters.items() if name not in alive}
    others = {name: count for name, count in placement.observers.items() if name != rack}
    return ReplicaPlacement({**voters, rack: placement.observers[rack]}, {**others, **lost})


def judged(
    where: TopicPartition,
    partition: PartitionDescription,
    observers: Collection[int],
    held: Held,
) -> Promotion:
    """The observer with the most is the one that the controller elects: the one with the newest
    epoch, and of those the one with the largest end offset. A longer log of an older epoch has
    records that a later leader has replaced. Where one names the partition's present epoch, which
    no leader has written in, it told not the epoch of its log (Apache Kafka's do): then offsets
    alone are compared, by the controller as well."""
    known = {b: held[b][where] for b in partition.replicas if where in held.get(b, {})}
    committed = max((each.high_watermark for each in known.values()), default=-1)
    mine = {b: each for b, each in known.items() if b in observers}
    by_epoch = all(each.epoch < partition.leader_epoch for each in mine.values())
    most = {b: (each.epoch if by_epoch else 0, each.end_offset) for b, each in mine.items()}
    chosen = max(most, key=most.__getitem__, default=None)
    return Promotion(
        where,
        partition.leader,
        chosen,
        None if chosen is None else mine[chosen].end_offset,
        committed if committed >= 0 else None,
    )


def elected(
    promotion: Promotion,
    leader: int | None,
    held: Held,
) -> Promotion:
    """The same for the replica that leads in the end, which may be another one."""
    had = held.get(leader, {}).get(promotion.where) if leader is not None else None
    return promotion._replace(chosen=leader, end_offset=had.end_offset if had else None)


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    wanted, found, held = await look(admin, options.rack, options.topics)
    lost = [each for each in found if each.leader is None]
    hopeless = [each for each in lost if each.chosen is None]
    asks = bool(lost) and not options.unclean
    if options.dry_run or asks or hopeless:
        _tell(options, wanted, found, done=False)
        if hopeless and not options.dry_run:
            raise CommandError(
                f"{hopeless[0].where}: no observer in rack {options.rack} answers",
                "start one, and try again; nothing was changed",
            )
        if asks and not options.dry_run:
            note("nothing was changed; --unclean promotes them, and loses that")
            return FAILED
        return 0
    after = await promote(admin, wanted, found, held)
    _tell(options, wanted, after, done=True)
    return 0


async def look(
    admin: Admin, rack: str, topics: Iterable[str]
) -> tuple[dict[str, ReplicaPlacement], list[Promotion], Held]:
    """The placements that are to be, what is known of each partition, and of each replica."""
    named = list(topics)
    names = named
    if not named:
        names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    asked = await placements(admin, names)
    for name in named:
        if name not in asked or rack not in asked[name].observers:
            await admin.describe_topics([name])  # raises where there is no such topic
            raise CommandError(
                f"{name} has no observers in rack {rack}",
                f"see its {PLACEMENT}: scriba topic describe {name}",
            )
    asked = {name: each for name, each in asked.items() if rack in each.observers}
    if not asked:
        raise CommandError(
            f"no topic has observers in rack {rack}", f"a topic names them in {PLACEMENT}"
        )
    cluster = await admin.describe_cluster(include_fenced=True)
    where = racks(cluster)
    live = {node.id for node in cluster.nodes} - {*cluster.fenced}
    alive = {where[broker] or "" for broker in live}
    describing = admin.describe_topics(list(asked))
    described = await (describing if named else still_there(describing))
    asked = {name: each for name, each in asked.items() if name in described}
    partitions = {
        TopicPartition(name, each.partition): each
        for name in asked
        for each in described[name].partitions
    }
    held = await held_by(
        admin,
        {broker: [at for at, p in partitions.items() if broker in p.replicas] for broker in live},
    )
    observers = {broker for broker, there in where.items() if there == rack}
    found = [judged(at, each, observers, held) for at, each in partitions.items()]
    return {name: promoted(each, rack, alive) for name, each in asked.items()}, found, held


async def promote(
    admin: Admin, wanted: Mapping[str, ReplicaPlacement], found: list[Promotion], held: Held
) -> list[Promotion]:
    """Carries it out; the same with who leads now."""
    changes = {
        ConfigResource.topic(name): [(PLACEMENT, ConfigOp.SET, placement.text())]
        for name, placement in wanted.items()
    }
    await admin.incremental_alter_configs(changes)
    lost = [each.where for each in found if each.leader is None]
    if lost:
        await admin.elect_leaders(lost, type=ElectionType.UNCLEAN)
    leaders = await _led(admin, [each.where for each in found])
    return [
        elected(each, leaders[each.where], held) if each.leader is None else each for each in found
    ]


async def _led(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
    """Who leads, as soon as all are led."""
    names = sorted({where.topic for where in partitions})
    async with asyncio.timeout(LONGEST_S):
        while True:
            topics = await admin.describe_topics(names)
            found = {w: topics[w.topic].partitions[w.partition].leader for w in partitions}
            if None not in found.values():
                return found
            await asyncio.sleep(PAUSE_S)


def _tell(
    options: argparse.Namespace,
    wanted: Mapping[str, ReplicaPlacement],
    found: list[Promotion],
    done: bool,
) -> None:
    if options.json:
        print_json(
            {
                "promoted": done,
                "placements": {name: each.text() for name, each in wanted.items()},
                "partitions": [each.document() for each in found],
            }
        )
        return
    lines = [f"{name}: {PLACEMENT}={each.text()}" for name, each in wanted.items()]
    rows = [
        (str(each.where), each.leader, each.chosen, each.end_offset, each.loses())
        for each in found
        if each.leader is None
    ]
    if rows:
        heading = "LEADS NOW" if done else "WOULD LEAD"
        lines += ["", *table(["PARTITION", "LEADER", heading, "FROM", "LOSES"], rows)]
    rest = sum(each.leader is not None for each in found)
    if rest:
        lines += ["", f"{counted(rest, 'partition')} led by a voter: nothing is lost"]
    print_lines("\n".join(lines))
