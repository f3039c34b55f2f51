"""What files and directories of a log directory are called: as Kafka calls them."""

import re
from typing import Final, NamedTuple

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
TEMPORARY: Final = ".tmp"

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

DELETED_DIR: Final = "-delete"
FUTURE_DIR: Final = "-future"
STRAY_DIR: Final = "-stray"
_OTHER_DIRS: Final = (DELETED_DIR, FUTURE_DIR, STRAY_DIR)
LONGEST_NAME: Final = 255
_FILE: Final = re.compile(r"(\d{20})(\.[a-z.]+)")
_PARTITION: Final = re.compile(r"(.+)-(\d+)")
_APART: Final = re.compile(r"(.+)-(\d+)\.[0-9a-f]{32}-[a-z]+")


class PartitionName(NamedTuple):
    topic: str
    partition: int


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def parse_file(name: str) -> tuple[int, str] | None:
    """The offset and the suffix of a file that belongs to a segment, or None."""
    found = _FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def parent_of(directory: str) -> str:
    """The directory that it lies in."""
    return directory.rpartition("/")[0]


def partition_dir(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> PartitionName | None:
    if name.endswith(_OTHER_DIRS):
        return None
    found = _PARTITION.fullmatch(name)
    return PartitionName(found[1], int(found[2])) if found else None


def parse_apart(name: str) -> PartitionName | None:
    """Whose a directory is or was that is called like no partition's: a future replica's say.

    Of a long name the topic may lack its end.
    """
    found = _APART.fullmatch(name)
    return PartitionName(found[1], int(found[2])) if found else None


def future_dir(topic: str, partition: int, unique: bytes) -> str:
    """What the directory of a replica is called that is to take the place of another.

    The name is whole, as in Kafka: too long a topic has no such directory (`LONGEST_NAME`).
    """
    return f"{topic}-{partition}.{unique.hex()}{FUTURE_DIR}"


def deleted_dir(topic: str, partition: int, unique: bytes) -> str:
    """What a partition's directory is called until its files are removed."""
    return _unlike_any(topic, partition, unique, DELETED_DIR)


def stray_dir(topic: str, partition: int, unique: bytes) -> str:
    """What a directory is called that belongs to no partition of this cluster."""
    return _unlike_any(topic, partition, unique, STRAY_DIR)


def _unlike_any(topic: str, partition: int, unique: bytes, kind: str) -> str:
    """A name that no partition can have; long topic names lose their end."""
    tail = f"-{partition}.{unique.hex()}{kind}"
    return topic[: LONGEST_NAME - len(tail)] + tail
