"""Kafka's checkpoint files: text of a version, a count, and as many lines.

Those of a log directory map partitions to offsets. Every one of them may be missing or damaged:
what it said is then found out anew, so reading gives an empty map and says so in the log.
"""

import logging
from collections.abc import Generator, Iterable, Mapping
from typing import Final

from scriba.outcome import at_once
from scriba.runtime.ports import Disk
from scriba.storage.directory.names import PartitionName

logger = logging.getLogger(__name__)

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
CHECKPOINTS: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS)

_VERSION: Final = "0"
_LINES_A_STEP: Final = 500


def format_lines(lines: Iterable[str]) -> bytes:
    rows = list(lines)
    return "".join(f"{row}\n" for row in (_VERSION, len(rows), *rows)).encode()


def parse_lines(data: bytes) -> list[list[str]]:
    """The fields of each line; ValueError when the file is not whole."""
    rows = data.decode().split("\n")
    if rows[0].strip() != _VERSION:
        raise ValueError(f"unknown version {rows[0]!r}")
    count = int(rows[1])
    lines = [row.split() for row in rows[2:] if row.strip()]
    if len(lines) != count:
        raise ValueError(f"{len(lines)} lines instead of {count}")
    return lines


def format_offsets(offsets: Mapping[PartitionName, int]) -> bytes:
    return at_once(formatting(offsets))


def formatting(offsets: Mapping[PartitionName, int]) -> Generator[None, None, bytes]:
    """As `format_offsets`, a step for some hundreds of lines."""
    names = sorted(offsets)
    parts = [f"{_VERSION}\n{len(names)}\n"]
    for start in range(0, len(names), _LINES_A_STEP):
        some = names[start : start + _LINES_A_STEP]
        parts += [f"{name.topic} {name.partition} {offsets[name]}\n" for name in some]
        yield
    return "".join(parts).encode()


def parse_offsets(data: bytes) -> dict[PartitionName, int]:
    offsets: dict[PartitionName, int] = {}
    for fields in parse_lines(data):
        topic, partition, offset = fields
        offsets[PartitionName(topic, int(partition))] = int(offset)
    return offsets


def read_offsets(disk: Disk, path: str) -> dict[PartitionName, int]:
    """What the checkpoint says; nothing when it is missing, damaged or, as Apache Kafka makes
    them before it has anything to say, empty."""
    try:
        data = disk.read(path)
        return parse_offsets(data) if data else {}
    except FileNotFoundError:
        return {}
    except (ValueError, IndexError) as error:
        logger.warning("%s is damaged and will be written anew: %s", path, error)
        return {}
