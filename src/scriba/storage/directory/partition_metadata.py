"""`partition.metadata`: which topic a partition's directory belongs to, by id."""

import re
from typing import Final

from scriba.errors import ErrorCode, KafkaError
from scriba.runtime.ports import Disk
from scriba.storage.directory.names import PARTITION_METADATA
from scriba.wire.uuids import ZERO, from_text, to_text

_LINES: Final = re.compile(r"version: (\d+)\ntopic_id: (\S+)\s*")


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """None if the file is missing, or a crash left it without its content."""
    try:
        data = disk.read(f"{directory}/{PARTITION_METADATA}")
    except FileNotFoundError:
        return None
    found = _LINES.fullmatch(data.decode(errors="replace"))
    if found is None or found[1] != "0":
        return None
    try:
        topic_id = from_text(found[2])
    except ValueError:
        return None
    return None if topic_id == ZERO else topic_id


def encode_topic_id(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {to_text(topic_id)}".encode()


def claim(disk: Disk, directory: str, topic_id: bytes | None) -> bytes | None:
    """Makes sure that the directory is this topic's, and returns whose it is."""
    found = read_topic_id(disk, directory)
    if topic_id is None or topic_id == found:
        return found
    if found is not None:
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{directory} belongs to topic {to_text(found)}, not to {to_text(topic_id)}",
        )
    write_topic_id(disk, directory, topic_id)
    return topic_id


def write_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    file = disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
    try:
        if file.size():
            file.truncate(0)
        file.pwrite(encode_topic_id(topic_id), 0)
    finally:
        file.close()
