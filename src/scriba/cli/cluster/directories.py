"""Replicas move between log directories of their brokers (KIP-113), as `reassign --dir` asks.

The state of a move is the broker's: a future replica in the new directory. So whoever runs the same
command again goes on where it stands.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from scriba.cli.cluster.moving import Pace
from scriba.cli.cluster.plan_file import no_plan
from scriba.cli.cluster.throttles import delete_rates
from scriba.cli.output import counted, note
from scriba.cli.problems import CommandError
from scriba.client import (
    Admin,
    BrokerError,
    ConfigOp,
    ConfigResource,
    LogDir,
    PartlyFailed,
    TopicPartition,
)
from scriba.config import Source
from scriba.errors import ErrorCode

PAUSE_S: Final = 0.5
TELL_S: Final = 5.0
RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
ANY: Final = "any"
"""In a plan of Kafka's tools: wherever the broker puts it."""


class Replica(NamedTuple):
    """One replica of a partition."""

    broker: int
    where: TopicPartition

    def __str__(self) -> str:
        return f"{self.where} on broker {self.broker}"


Dirs = Mapping[Replica, str]
"""Where replicas are to be, or are."""


class DirMove(NamedTuple):
    """A replica that is on its way."""

    replica: Replica
    path: str
    copied: int
    total: int
    lag: int


class Found(NamedTuple):
    """The directories of some brokers."""

    current: dict[Replica, str]
    moving: dict[Replica, DirMove]
    dirs: dict[int, dict[str, LogDir]]
    sizes: dict[Replica, int]
    """Of replicas where they are."""

    def away(self, wanted: Dirs) -> dict[Replica, str]:
        """Those that are not where they are wanted."""
        return {at: path for at, path in wanted.items() if self.current.get(at) != path}

    def leaving(self, wanted: Dirs) -> dict[Replica, str]:
        """Those that are there, and on their way to elsewhere."""
        return {at: path for at, path in wanted.items() if self._leaves(at, path)}

    def _leaves(self, replica: Replica, path: str) -> bool:
        return replica in self.moving and self.current.get(replica) == path

    def copied(self, wanted: Dirs) -> tuple[int, int]:
        """Bytes that have arrived, and of how many."""
        copied = total = 0
        left = self.away(wanted)
        for replica in wanted:
            whole = self.sizes.get(replica, 0)
            move = self.moving.get(replica)
            copied += whole if replica not in left else 0 if move is None else move.copied
            total += whole if replica not in left or move is None else move.total
        return copied, total


async def look(admin: Admin, brokers: Iterable[int]) -> Found:
    found = Found({}, {}, {}, {})
    sizes = found.sizes
    futures: list[tuple[Replica, str, int, int]] = []
    for broker, directories in (await admin.describe_log_dirs(sorted(set(brokers)))).items():
        found.dirs[broker] = {each.path: each for each in directories}
        for directory in directories:
            for where, held in directory.replicas.items():
                replica = Replica(broker, where)
                if held.future:
                    futures.append((replica, directory.path, held.size, held.offset_lag))
                else:
                    found.current[replica] = directory.path
                    sizes[replica] = held.size
    for replica, path, copied, lag in futures:
        total = max(sizes.get(replica, 0), copied)
        found.moving[replica] = DirMove(replica, path, copied, total, lag)
    return found


def check(wanted: Dirs, found: Found) -> None:
    """CommandError for the first replica that cannot go there: nothing begins then."""
    check_paths(wanted, found)
    for replica, path in wanted.items():
        dirs = found.dirs[replica.broker]
        if dirs[path].cordoned and found.current.get(replica) != path:
            raise CommandError(
                f"{path} of broker {replica.broker} is cordoned, and gets nothing",
                "choose another, or change cordoned.log.dirs of that broker",
            )
        if replica not in found.current:
            raise CommandError(f"there is no replica of {replica}", "see scriba topic describe")


def check_paths(wanted: Dirs, found: Found) -> None:
    """CommandError for the first directory that its broker does not have."""
    for replica, path in wanted.items():
        dirs = found.dirs.get(replica.broker, {})
        if path not in dirs:
            raise CommandError(
                f"broker {replica.broker} has no log directory {path}",
                f"choose from {', '.join(sorted(dirs))}",
            )


def read_dirs(name: str) -> dict[Replica, str]:
    """The directories that a plan in the form of Kafka's tools names, which `read_plan` took."""
    dirs: dict[Replica, str] = {}
    try:
        for each in json.loads(Path(name).read_text("utf-8"))["partitions"]:
            where = TopicPartition(each["topic"], each["partition"])
            paths, replicas = each.get("log_dirs", []), each["replicas"]
            if paths and len(paths) != len(replicas):
                raise CommandError(
                    f"{name}: {where} has {len(replicas)} replicas and {len(paths)} log_dirs",
                    f'name one for each, or "{ANY}"',
                )
            for broker, path in zip(replicas, paths, strict=False):
                if path != ANY:
                    dirs[Replica(broker, where)] = path.rstrip("/") or "/"
    except ValueError as error:
        raise no_plan(name, error) from None
    return dirs


async def begin(admin: Admin, wanted: Dirs, absent_ok: bool = False) -> None:
    """Asks brokers for directories. Replicas that are yet to come may be among them."""
    by_broker: dict[int, dict[TopicPartition, str]] = {}
    for replica, path in wanted.items():
        by_broker.setdefault(replica.broker, {})[replica.where] = path
    for broker, moves in by_broker.items():
        try:
            await admin.alter_replica_log_dirs(broker, moves)
        except (BrokerError, PartlyFailed) as error:
            errors = [error] if isinstance(error, BrokerError) else error.errors.values()
            absent = ErrorCode.REPLICA_NOT_AVAILABLE
            if not absent_ok or any(each.code is not absent for each in errors):
                raise


async def follow(admin: Admin, wanted: Dirs, clock: Callable[[], float] = time.monotonic) -> None:
    """Returns when all are where they are wanted; tells how far they are."""
    told = begun = clock()
    pace = Pace()
    brokers = {replica.broker for replica in wanted}
    while True:
        found = await look(admin, brokers)
        left = found.away(wanted)
        progress = pace.told(*found.copied(wanted), clock())
        if not left:
            note(f"{counted(len(wanted), 'replica')} moved in {clock() - begun:.0f} s")
            return
        lost = next((each for each in left if each not in found.moving), None)
        if lost is not None:
            again = await look(admin, brokers)  # it may have arrived between two brokers' answers
            if lost not in again.moving and again.current.get(lost) != wanted[lost]:
                raise CommandError(
                    f"{lost} is no longer on its way to {wanted[lost]}",
                    f"see the events of broker {lost.broker}; the same command begins again",
                )
        if clock() - told >= TELL_S:
            told = clock()
            done = f"{len(wanted) - len(left)} of {counted(len(wanted), 'replica')}"
            note(", ".join([done, *progress]))
        await asyncio.sleep(PAUSE_S)


class DirThrottling:
    """What copying between the directories of brokers is held to."""

    def __init__(self, admin: Admin, rate: int, wanted: Dirs) -> None:
        self._admin = admin
        self._rate = str(rate)
        self._wanted = wanted
        self._brokers = sorted({replica.broker for replica in wanted})

    async def check(self) -> None:
        resources = [ConfigResource.broker(broker) for broker in self._brokers]
        found = await self._admin.describe_configs(resources, names=[RATE])
        for resource, entries in found.items():
            for entry in entries.values():
                if entry.source != Source.DEFAULT_CONFIG and entry.value != self._rate:
                    raise CommandError(
                        f"{resource} has {RATE}={entry.value}, set by somebody else",
                        f"give --throttle {entry.value}, or delete it first",
                    )

    async def set(self) -> None:
        changes = [(RATE, ConfigOp.SET, self._rate)]
        resources = [ConfigResource.broker(broker) for broker in self._brokers]
        await self._admin.incremental_alter_configs(dict.fromkeys(resources, changes))

    async def left(self) -> int:
        moving = (await look(self._admin, self._brokers)).moving
        return sum(replica in moving for replica in self._wanted)

    async def take_back(self) -> None:
        await delete_rates(self._admin, self._brokers, [RATE])


async def moving(
    admin: Admin, brokers: Iterable[int], named: Iterable[TopicPartition] | None
) -> Dirs:
    """Replicas on their way, of these partitions or all, and the directories in which they are: to
    ask for those cancels the moves."""
    found = await look(admin, brokers)
    only = None if named is None else set(named)
    return {at: found.current[at] for at in found.moving if only is None or at.where in only}
