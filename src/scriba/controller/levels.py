"""What each level of `metadata.version` can say, and in which version its records are written.

Every node of a cluster must be able to read every record, so the active controller writes those of
the level that all have agreed on, and not of the newest that it knows itself. What a level has no
field for is not decided at that level either: nothing is cordoned, nobody beside the in-sync
replicas is eligible. So raising a level takes nothing but its record, and lowering it loses
nothing where what only the higher one can say was taken back before.
"""

from collections.abc import Mapping
from typing import Final

from scriba.controller.parts import ELIGIBLE_VERSION, KRAFT_VERSION, METADATA_VERSION
from scriba.wire.messages.stored import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    encode_metadata_record,
)
from scriba.wire.schema import Message

OLDEST: Final = 17
"""3.7-IV2: the first level that tells in which directory a replica is."""
VOTERS: Final = 21
"""3.9-IV0: voters may stand in the log (KIP-853)."""
ELIGIBLE: Final = 23
"""4.0-IV1: partitions have eligible leader replicas (KIP-966)."""
CORDONS: Final = 30
"""4.3-IV0: brokers tell which of their directories are cordoned (KIP-1066)."""
NEWEST: Final = CORDONS

NAMES: Final[Mapping[int, str]] = {
    17: "3.7-IV2", 18: "3.7-IV3", 19: "3.7-IV4", 20: "3.8-IV0", 21: "3.9-IV0", 22: "4.0-IV0",
    23: "4.0-IV1", 24: "4.0-IV2", 25: "4.0-IV3", 26: "4.1-IV0", 27: "4.1-IV1", 28: "4.2-IV0",
    29: "4.2-IV1", 30: "4.3-IV0",
}  # fmt: skip
"""As Kafka's tools call them."""

NEEDS: Final[Mapping[str, int]] = {ELIGIBLE_VERSION: ELIGIBLE, KRAFT_VERSION: VOTERS}
"""Features whose first level needs a level of the metadata."""


def encode(record: Message, level: int) -> bytes:
    """A record as it stands in the log of a cluster of this level, at the version Kafka writes."""
    kind = type(record)
    if kind is PartitionChangeRecord or kind is PartitionRecord:
        return encode_metadata_record(record, 2 if level >= ELIGIBLE else 1)
    if kind is RegisterBrokerRecord:
        return encode_metadata_record(record, 4 if level >= CORDONS else 3)
    if type(record) is BrokerRegistrationChangeRecord:
        if record.cordoned_log_dirs is not None:
            version = 3
        elif record.log_dirs:
            version = 2
        else:
            version = 1 if record.in_controlled_shutdown else 0
        return encode_metadata_record(record, version)
    return encode_metadata_record(record)


def unmet(features: Mapping[str, int]) -> str:
    """Why these levels cannot stand together, in words; empty where they can."""
    metadata = features.get(METADATA_VERSION, 0)
    for name, needed in NEEDS.items():
        if features.get(name) and metadata < needed:
            return (
                f"{name} {features[name]} needs {METADATA_VERSION} {needed} ({NAMES[needed]}) or "
                f"later, and it is {metadata}"
            )
    return ""
