"""The fetches of one session: one after the other differs by its epoch and by what it asks for.

So all that is around these is encoded once, and what is asked of a partition is packed by its
layout. The bytes are those of the whole request, encoded as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from scriba.peers.connection import Packed
from scriba.wire.apis import ApiKey
from scriba.wire.messages.fetch import FetchPartition, FetchRequest
from scriba.wire.template import packer
from scriba.wire.varint import write_uvarint

if TYPE_CHECKING:
    from scriba.replication.follower import Ask, Key

FIRST_PACKED: Final = 15
"""The first version in which replicas say of which incarnation of their broker they are."""
MARK: Final = 0x5A17C0DE
"""The epoch of the session in the request that all others are made from."""

_EPOCH: Final = struct.Struct(">i")
_NONE: Final = b"\x01"
_NO_TAGS: Final = b"\x00"
_PACKED: Final = (
    "partition",
    "current_leader_epoch",
    "fetch_offset",
    "last_fetched_epoch",
    "log_start_offset",
    "partition_max_bytes",
)


class SessionRequests:
    def __init__(self, request: FetchRequest, version: int, partition_max_bytes: int) -> None:
        """`request` is one of the session without partitions, in the epoch `MARK`."""
        assert version >= FIRST_PACKED, f"version {version} is not packed"
        assert request.session_epoch == MARK, "the epoch of the session is filled in"
        self._before, self._after = request.encode(version).split(_EPOCH.pack(MARK) + _NONE)
        self._pack = packer(FetchPartition, version, True, _PACKED)
        self._partition_max_bytes = partition_max_bytes

    def packed(self, session_epoch: int, asks: Mapping[Key, Ask]) -> Packed:
        """The request that asks for these partitions, besides those of the session."""
        pack, most = self._pack, self._partition_max_bytes
        topics: dict[bytes, list[bytes]] = {}
        for (topic_id, index), (offset, last_epoch, start_offset, leader_epoch) in asks.items():
            told = pack(index, leader_epoch, offset, last_epoch, start_offset, most)
            topic = topics.get(topic_id)
            if topic is None:
                topics[topic_id] = [told]
            else:
                topic.append(told)
        pieces = [self._before, _EPOCH.pack(session_epoch), write_uvarint(len(topics) + 1)]
        for topic_id, partitions in topics.items():
            pieces += (topic_id, write_uvarint(len(partitions) + 1), *partitions, _NO_TAGS)
        pieces.append(self._after)
        return Packed(ApiKey.FETCH, b"".join(pieces))
