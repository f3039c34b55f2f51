"""Which log directories take no records, why, and the ways out.

A broker tells of its directories by DescribeLogDirs: what is wrong with one, how much room its
volume has, and whether it is cordoned, which one that reached `scriba.log.dirs.write.watermark` is
as well. That a device refuses writes though it tells of room is known from events alone.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from scriba.client.diagnosis.facts import EventFacts, Facts, LogDirFacts

NEARLY_FULL, FULL, OFFLINE_DIR = "nearly full", "full", "offline"

ABOUT_DIRS: Final = frozenset(
    {"write_refused", "write_watermark_reached", "write_watermark_left", "log_dir_offline"}
)
LEAST_ROOM_BYTES: Final = 64 << 10
"""A volume with less is full."""
REFUSED_MS: Final = 120_000
"""How long an event counts by which a device refused a write: it is told once a minute."""
WATERMARK: Final = "scriba.log.dirs.write.watermark"
HIGHEST_MARK: Final = 0.99
DISTANCE: Final = 0.02
"""A directory opens at most so far below its mark."""


def log_dir_of(facts: Facts, broker: int) -> LogDirFacts | None:
    """The directory of a broker's replica. One that is offline does not tell what was in it, so a
    replica that its broker cannot use and has nowhere else was there."""
    directories = facts.log_dirs.get(broker, ())
    path = facts.lies.get(broker)
    held = facts.held.get(broker)
    for each in directories:
        if each.path == path:
            return each
        if path is None and each.error is not None and held is not None and held.error is not None:
            return each
    return None


def condition(facts: Facts, broker: int, directory: LogDirFacts) -> str | None:
    """What is wrong with a directory; None if nothing is."""
    if directory.error is not None:
        return OFFLINE_DIR
    room = directory.usable_bytes
    if (room is not None and room < LEAST_ROOM_BYTES) or _refused(facts, broker, directory.path):
        return FULL
    if directory.watermark:
        by_itself = directory.cordoned and not directory.named
        if by_itself or (in_use(directory) or 0.0) >= directory.watermark:
            return NEARLY_FULL
    return None


def in_use(directory: LogDirFacts) -> float | None:
    """The share of its volume."""
    if not directory.total_bytes or directory.usable_bytes is None:
        return None
    return 1 - directory.usable_bytes / directory.total_bytes


def _refused(facts: Facts, broker: int, path: str) -> EventFacts | None:
    for each in reversed(facts.events):
        of_it = each.kind == "write_refused" and (each.node, each.about) == (broker, path)
        if of_it and facts.now_ms - each.time_ms <= REFUSED_MS:
            return each
    return None


def closed_by(facts: Facts) -> tuple[LogDirFacts, str] | None:
    """The directory of the leader and what is wrong with it, if it takes no records therefore.

    What brokers write themselves (offsets of groups, ends of transactions) goes into the room above
    the mark."""
    leader = facts.partition.leader
    directory = None if leader is None else log_dir_of(facts, leader)
    if leader is None or directory is None:
        return None
    wrong = condition(facts, leader, directory)
    if wrong is None or (wrong == NEARLY_FULL and facts.internal):
        return None
    return directory, wrong


def troubled(facts: Facts) -> list[dict[str, Any]]:
    """The replicas whose directories are not well."""
    found = []
    for broker in facts.partition.replicas:
        directory = log_dir_of(facts, broker)
        wrong = None if directory is None else condition(facts, broker, directory)
        if directory is not None and wrong is not None:
            found.append(
                {
                    "broker": broker,
                    "path": directory.path,
                    "state": wrong,
                    "total_bytes": directory.total_bytes,
                    "usable_bytes": directory.usable_bytes,
                    "why": _why(facts, broker, directory, wrong),
                }
            )
    return found


def _why(facts: Facts, broker: int, directory: LogDirFacts, wrong: str) -> str:
    share = "" if (used := in_use(directory)) is None else f": {used:.1%} of its volume in use"
    told = f"{directory.path} of broker {broker} is {wrong}"
    if wrong == OFFLINE_DIR:
        return f"{told}: {_last(facts, broker, 'log_dir_offline', directory.path)}"
    if wrong == NEARLY_FULL:
        mark = f"{WATERMARK} is {directory.watermark:g}"
        return f"{told}{share}, {mark}; reads and replication go on"
    refused = _refused(facts, broker, directory.path)
    return f"{told}{share}{'' if refused is None else f'; {refused.text}'}"


def _last(facts: Facts, broker: int, kind: str, path: str) -> str:
    texts = [
        each.text
        for each in facts.events
        if (each.node, each.kind, each.about) == (broker, kind, path)
    ]
    return texts[-1] if texts else "its device failed"


def is_about(facts: Facts, event: EventFacts) -> bool:
    """Whether an event tells of a directory that has a replica of the partition."""
    if event.kind not in ABOUT_DIRS or event.node not in facts.partition.replicas:
        return False
    directory = log_dir_of(facts, event.node)
    return directory is not None and directory.path == event.about


# -- the ways out --------------------------------------------------------------------------------


def ways_out(facts: Facts) -> Iterator[tuple[str, str, int | None, str | None]]:
    """What lets a partition take records again that is closed by its leader's directory."""
    closed = closed_by(facts)
    leader = facts.partition.leader
    if closed is None or leader is None:
        return
    directory, wrong = closed
    if wrong == OFFLINE_DIR:
        what = f"see to the device of {directory.path}, and restart broker {leader}"
        yield what, "nothing", 0, None
    else:
        what = f"make room on the volume of {directory.path}: delete topics, or lower retention"
        yield what, "what is deleted", None, None
    yield from _elsewhere(facts, leader)
    if wrong == NEARLY_FULL and (mark := _higher(directory)) is not None:
        whose, where = "for all brokers", "--cluster"
        if directory.own_mark:
            whose, where = f"for broker {leader}", f"--broker {leader}"
        yield (
            f"raise the mark to {mark:g}, {whose}",
            "nothing; less room is kept for deleting, compacting and metadata",
            0,
            f"scriba config set {where} {WATERMARK}={mark:g}",
        )


def _elsewhere(facts: Facts, leader: int) -> Iterator[tuple[str, str, int | None, str | None]]:
    """To other brokers, or another directory of the same one, that take records."""
    name = f"{facts.topic}:{facts.partition.partition}"
    replicas = facts.partition.replicas
    move = f"scriba cluster reassign {name}"
    for other in facts.partition.isr:
        directory = log_dir_of(facts, other)
        if other != leader and directory is not None and _takes(facts, other, directory):
            order = _joined([other, *(each for each in replicas if each != other)])
            what = f"let broker {other} lead, which has room"
            yield what, "nothing", 0, f"{move} --to {order} && scriba cluster elect {name}"
            break
    here = [each for each in facts.log_dirs[leader] if _takes(facts, leader, each)]
    if here:
        roomy = max(here, key=lambda each: each.usable_bytes or 0)
        what = f"move it to {roomy.path} of the same broker"
        yield what, "nothing", 0, f"{move} --dir {leader}:{roomy.path}"
    others = {
        broker: max(each.usable_bytes or 0 for each in directories if _takes(facts, broker, each))
        for broker, directories in facts.log_dirs.items()
        if broker not in replicas and any(_takes(facts, broker, each) for each in directories)
    }
    if others and not facts.observers and facts.move is None:
        other = max(others, key=lambda each: others[each])
        target = _joined(other if each == leader else each for each in replicas)
        what = f"move it from broker {leader} to broker {other}"
        yield what, "nothing", 0, f"{move} --to {target}"


def _takes(facts: Facts, broker: int, directory: LogDirFacts) -> bool:
    return not directory.cordoned and condition(facts, broker, directory) is None


def _higher(directory: LogDirFacts) -> float | None:
    """A mark at which the directory would open again, if one is left."""
    used = in_use(directory)
    if used is None:
        return None
    mark = (math.floor((used + DISTANCE) * 100) + 1) / 100
    return mark if mark <= HIGHEST_MARK else None


def _joined(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
