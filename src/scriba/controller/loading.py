"""An image made from a snapshot, record by record, in the form in which they are stored.

All but a few records of a large snapshot are partitions that nobody is moving, and a million of
them differ in little: a few thousand lists of brokers and of directories, and two epochs. Such a
record is taken apart by position, what it shares with others is decoded once and kept once, and no
message is made of it. Every other record is decoded and replayed as one of the log; so is one that
is not laid out as expected, and then says what is wrong with it.
"""

from struct import Struct
from struct import error as StructError
from typing import Final

from scriba.controller.image import KRAFT_VERSION, ClusterImage, Delta
from scriba.controller.parts import MOST_SHARED, PartitionImage
from scriba.wire.messages.stored import FRAME_VERSION, PartitionRecord, decode_metadata_record

_STARTS: Final = tuple(
    bytes((FRAME_VERSION, PartitionRecord.KEY or 0, version)) for version in (1, 2)
)
_TOPIC_AT: Final = 7
_REPLICAS_AT: Final = 23
_NOT_REASSIGNING: Final = b"\x01\x01"
"""No replicas that are removed, none that are added."""
_INDEX: Final = Struct(">i")
_EPOCHS: Final = Struct(">ii")
_ID_SIZE: Final = 16

_Who = tuple[tuple[int, ...], tuple[int, ...], int]
"""Replicas, in-sync replicas, leader."""


class Loading:
    """The records have no offsets of their own: all stand for the snapshot's last one."""

    def __init__(self, end_offset: int, epoch: int) -> None:
        self._image = ClusterImage()
        self._delta = Delta()
        self._end_offset = end_offset
        self._epoch = epoch
        self._who: dict[bytes, _Who] = {}
        self._where: dict[bytes, tuple[bytes, ...]] = {}
        self._indexes: dict[int, int] = {}
        self._topic_id = b""
        self._partitions: dict[int, PartitionImage] = {}

    def add(self, value: bytes) -> None:
        """ParseError for what is no record, ImageError for one that contradicts those before."""
        if value[:3] not in _STARTS or not self._add_partition(value):
            self._topic_id = b""
            record = decode_metadata_record(value)
            self._image.replay((record,), self._end_offset - 1, self._epoch, self._delta)

    def done(self, kraft_version: int) -> ClusterImage:
        """The image of all records; it is the caller's."""
        self._image.advance(self._end_offset, self._epoch, self._delta)
        if kraft_version:
            self._image.set_feature(KRAFT_VERSION, kraft_version, self._delta)
        return self._image

    def _add_partition(self, value: bytes) -> bool:
        """Whether the record was one of the usual kind, and is in the image now."""
        try:
            count = value[_REPLICAS_AT]
            isr_at = _REPLICAS_AT + 4 * count - 3
            leader_at = isr_at + 4 * value[isr_at] - 1
            directories_at = leader_at + 12
            (index,) = _INDEX.unpack_from(value, 3)
            epochs = _EPOCHS.unpack_from(value, leader_at + 4)
            end = directories_at + 1 + _ID_SIZE * (count - 1)
            if (
                value[leader_at - 2 : leader_at] != _NOT_REASSIGNING
                or not 1 < count == value[directories_at] < 0x80
                or not 0 < value[isr_at] < 0x80
                or len(value) != end + 1
                or value[end]  # tagged fields
            ):
                return False
        except (IndexError, StructError):
            return False
        if not self._find_topic(value[_TOPIC_AT:_REPLICAS_AT]):
            return False
        who = value[_REPLICAS_AT : leader_at + 4]
        where = value[directories_at + 1 : end]
        replicas, isr, leader = self._who.get(who) or self._decode_who(who)
        self._partitions[self._indexes.setdefault(index, index)] = PartitionImage(
            replicas, self._where.get(where) or self._decode_where(where), isr, leader, *epochs
        )
        return True

    def _find_topic(self, topic_id: bytes) -> bool:
        if topic_id != self._topic_id:
            topic = self._image.topics_by_id.get(topic_id)
            if topic is None or self._image.in_transaction:
                return False
            self._topic_id, self._partitions = topic_id, topic.partitions
        return True

    def _decode_who(self, who: bytes) -> _Who:
        count = who[0] - 1
        numbers = Struct(f">x{count}ix{(len(who) - 8) // 4 - count}i2xi").unpack(who)
        share = self._image.share
        found = share(numbers[:count]), share(numbers[count:-1]), numbers[-1]
        if len(self._who) >= MOST_SHARED:
            self._who.clear()
        self._who[who] = found
        return found

    def _decode_where(self, where: bytes) -> tuple[bytes, ...]:
        share = self._image.share
        # Ids are shared as well, each as a list of one.
        ids = (share((where[at : at + _ID_SIZE],))[0] for at in range(0, len(where), _ID_SIZE))
        found = share(ids)
        if len(self._where) >= MOST_SHARED:
            self._where.clear()
        self._where[where] = found
        return found
