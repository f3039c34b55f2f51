"""What a log answers."""

import enum
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

from scriba.errors import ErrorCode, KafkaError
from scriba.runtime.ports import File
from scriba.storage.producers.state import Repeat

Appended = tuple[int, int, int, Repeat | None]
"""Where a batch went: its first and its last offset, the first one of the log, and, where it was
there already, what it repeats: the offsets are then those of the first time. A plain tuple, one
per append: to make and to unpack one with names takes ten times as long."""


class Slice(NamedTuple):
    """Bytes of a segment's file that answer a read. They need not be in the page cache."""

    file: File
    position: int
    size: int
    first_offset: int


class Nothing(enum.Enum):
    EMPTY = enum.auto()


EMPTY: Final = Nothing.EMPTY
"""What a read returns that found nothing to send."""

Empty = Literal[Nothing.EMPTY]


class Failure(NamedTuple):
    """Why a log takes no more appends, for good."""

    error: KafkaError
    device: bool
    """Whether the device itself failed, so that no log in its directory is safe."""


NO_FILE: Final = (errno.EMFILE, errno.ENFILE)
"""No more files may be open: nothing was asked of the device."""

FULL: Final = (errno.ENOSPC, errno.EDQUOT, *NO_FILE)
"""No room is no damage: writes fail, reads go on, and all is well when there is room again.

No device is to blame, either, where the process has all the files open that it may have."""

FAILED: Final = (
    errno.EIO,
    errno.EROFS,
    errno.ENXIO,
    errno.ENODEV,
    errno.ESTALE,
    getattr(errno, "EUCLEAN", errno.EIO),
)
"""The device is to blame, or was mounted read-only since it was: not what somebody configured."""


class NoRoom(KafkaError):
    """The device is full: nothing has changed, and the same may succeed later."""


def storage_error(text: str, cause: OSError | None = None) -> KafkaError:
    """The one place where trouble with a disk becomes an error of the protocol."""
    if cause is not None and cause.errno in FULL:
        return NoRoom(ErrorCode.KAFKA_STORAGE_ERROR, text)
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)


@contextmanager
def as_no_room(what: str) -> Iterator[None]:
    """Tells a full device from a failed one for a caller that knows no log: NoRoom, or as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise storage_error(f"{what}: {error}", error) from error
