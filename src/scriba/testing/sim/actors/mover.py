"""One who moves replicas between brokers, with throttles and cordons, and empties brokers that are
to leave.

It asks for moves of any partition to any brokers, more replicas or fewer, changes its mind while
they run, cancels them, and has preferred leaders elected. When it is told to be calm, it takes
throttles and cordons back, lets what is under way come to its end, and still empties and
unregisters whoever leaves.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scriba.client import (
    Admin,
    BrokerError,
    ConfigOp,
    ConfigResource,
    TopicDescription,
    TopicPartition,
)
from scriba.errors import ErrorCode
from scriba.peers.ports import Ports
from scriba.testing.history.moves import Ask, Moves
from scriba.testing.sim.actors.cast import SINK, SOURCE, TABLE, Actor

TOPICS: Final = (SOURCE, SOURCE, SINK, TABLE, "__consumer_offsets", "__transaction_state")
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
CORDONED: Final = "cordoned.log.dirs"
LEAST: Final = 2
"""Replicas of a partition that moves; fewer would not survive a power cut."""
MOVES: Final = ("move", "move", "move", "move", "cancel", "elect", "throttle", "cordon")


class _Counted(Sequence[int]):
    """Replicas that note each time they are put into a request."""

    def __init__(self, replicas: Sequence[int], asked: Ask) -> None:
        self._replicas = replicas
        self._asked = asked

    def __iter__(self) -> Iterator[int]:
        self._asked.sent += 1
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    def __getitem__(self, at: Any) -> Any:
        return self._replicas[at]


@dataclass(slots=True)
class Staff:
    """Who serves, as the one knows who starts and stops them."""

    here: set[int]
    leaving: set[int] = field(default_factory=set)
    """Brokers that are to be emptied."""
    stopped: set[int] = field(default_factory=set)
    """Brokers that are empty and gone, and to be unregistered."""

    @property
    def staying(self) -> list[int]:
        return sorted(self.here - self.leaving)


@dataclass(slots=True)
class Mover(Actor):
    moves: Moves = field(default_factory=Moves)
    staff: Staff = field(default_factory=lambda: Staff(set()))
    calm: bool = False
    """Set from outside: nothing is begun any more."""
    throttled: bool = True
    """Whether there may be throttles and cordons that nobody has taken back."""

    async def live(self, ports: Ports) -> None:
        async with self.admin(ports) as admin:
            while not self.stopping:
                await asyncio.sleep(self.rng.between(0.05, 0.6))
                await self._step(admin)
                self.steps += 1

    async def _step(self, admin: Admin) -> None:
        if self.calm and self.throttled:
            await self._take_back(admin)
        kind = MOVES[self.rng.below(len(MOVES))]
        if self.calm or (self.staff.leaving and self.rng.chance(0.5)):
            await self._empty(admin)
        elif kind == "move":
            await self._move(admin)
        elif kind == "cancel":
            await self._cancel(admin)
        elif kind == "elect":
            await admin.elect_leaders()
        elif kind == "throttle":
            await self._throttle(admin)
        else:
            await self._cordon(admin)

    # ---- moves ----

    async def _ask(self, admin: Admin, where: tuple[str, int], to: Sequence[int] | None) -> None:
        asked = self.moves.ask(where, to)
        counted = None if to is None else _Counted(to, asked)
        await admin.alter_partition_reassignments({where: counted})
        asked.granted = True

    def _choose(self, brokers: Sequence[int], count: int) -> list[int]:
        rest = list(brokers)
        return [rest.pop(self.rng.below(len(rest))) for _ in range(min(count, len(rest)))]

    async def _move(self, admin: Admin) -> None:
        topic = TOPICS[self.rng.below(len(TOPICS))]
        count = (LEAST, 3, 3, 4)[self.rng.below(4)]
        for found in (await self._found(admin, topic)).values():
            index = self.rng.below(len(found.partitions))
            await self._ask(admin, (topic, index), self._choose(self.staff.staying, count))

    async def _found(self, admin: Admin, *topics: str) -> dict[str, TopicDescription]:
        """Those of them that there are."""
        try:
            return await admin.describe_topics(topics)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return {}

    async def _cancel(self, admin: Admin) -> None:
        under_way = sorted(await admin.list_partition_reassignments())
        if under_way:
            await self._ask(admin, under_way[self.rng.below(len(under_way))], None)

    # ---- throttles and cordons ----

    async def _throttle(self, admin: Admin) -> None:
        rate = (1, 500, 5_000, 100_000)[self.rng.below(4)]
        self.throttled = True
        topic = TOPICS[self.rng.below(len(TOPICS))]
        brokers = [ConfigResource.broker(at) for at in sorted(self.staff.here)]
        rates = [(name, ConfigOp.SET, str(rate)) for name in RATES]
        named = [(name, ConfigOp.SET, "*") for name in THROTTLED]
        await admin.incremental_alter_configs(
            {**dict.fromkeys(brokers, rates), ConfigResource.topic(topic): named}
        )

    async def _cordon(self, admin: Admin) -> None:
        here = sorted(self.staff.here)
        at = here[self.rng.below(len(here))]
        self.throttled = True
        change = (CORDONED, ConfigOp.SET, "*")
        if self.rng.chance(0.5) and at not in self.staff.leaving:
            change = (CORDONED, ConfigOp.SET, "")
        await admin.incremental_alter_configs({ConfigResource.broker(at): [change]})

    async def _take_back(self, admin: Admin) -> None:
        nothing: list[tuple[str, ConfigOp, str | None]]
        nothing = [(name, ConfigOp.DELETE, None) for name in RATES]
        for at in sorted(self.staff.here):
            free = [] if at in self.staff.leaving else [(CORDONED, ConfigOp.DELETE, None)]
            await admin.incremental_alter_configs({ConfigResource.broker(at): [*nothing, *free]})
        named: list[tuple[str, ConfigOp, str | None]]
        named = [(name, ConfigOp.DELETE, None) for name in THROTTLED]
        for topic in await self._found_each(admin, dict.fromkeys(TOPICS)):
            await admin.incremental_alter_configs({ConfigResource.topic(topic): named})
        self.throttled = False

    async def _found_each(self, admin: Admin, topics: Sequence[str] | dict[str, None]) -> list[str]:
        return [topic for topic in topics if await self._found(admin, topic)]

    # ---- brokers that leave ----

    async def _empty(self, admin: Admin) -> None:
        """Takes one replica off a broker that leaves, or is gone; if there is none, unregisters."""
        for at in sorted(self.staff.leaving & self.staff.here):
            cordon = (CORDONED, ConfigOp.SET, "*")
            await admin.incremental_alter_configs({ConfigResource.broker(at): [cordon]})
        staying = self.staff.staying
        for where, replicas in await self._unfit(admin):
            stay = [at for at in replicas if at in staying]
            others = [at for at in staying if at not in stay]
            wanted = max(LEAST, min(len(replicas), len(staying)))
            await self._ask(admin, where, stay + self._choose(others, wanted - len(stay)))
        for at in sorted(self.staff.stopped):
            await self._unregister(admin, at)

    async def _unfit(self, admin: Admin) -> list[tuple[TopicPartition, tuple[int, ...]]]:
        """Partitions that are on brokers which will not be there, or will be, with the replicas
        that they are to have."""
        staying = {*self.staff.staying}
        under_way = await admin.list_partition_reassignments()
        listed = await admin.list_topics(include_internal=True)
        found: list[tuple[TopicPartition, tuple[int, ...]]] = []
        for topic in listed:
            for described in (await self._found(admin, topic.name)).values():
                for each in described.partitions:
                    where = TopicPartition(topic.name, each.partition)
                    moving = under_way.get(where)
                    replicas = each.replicas if moving is None else moving.target
                    if not {*replicas} <= staying:
                        found.append((where, tuple(replicas)))
        return found

    async def _unregister(self, admin: Admin, at: int) -> None:
        try:
            await admin.unregister_broker(at)
        except BrokerError as error:
            if error.code is not ErrorCode.BROKER_ID_NOT_REGISTERED:
                raise
        self.staff.stopped.discard(at)
