"""What a read of a log does not find in memory, brought there by a device that may fail at it.

A failure is that of one log: whoever reads several, for one request, goes on with the others.
"""

from __future__ import annotations

from errno import EBADF, ENOENT
from typing import TYPE_CHECKING, Final

from scriba.errors import KafkaError, ParseError
from scriba.storage.results import FULL, storage_error
from scriba.storage.segments.segment import Damaged

if TYPE_CHECKING:
    from scriba.storage.log import Log, NotResident

GONE: Final = (ENOENT, EBADF)
"""A segment that was deleted meanwhile, or closed: looking again says what is there."""
PASSING: Final = (*GONE, *FULL)
"""Or no file may be opened just now: asking again helps."""


def unreadable(store: Log, error: OSError) -> KafkaError:
    """What the device answered to a read of `store`; the error to raise.

    A bad sector takes the directory offline, as one does that the read itself meets: the replicas
    of other brokers have what lies there, and one of them is to lead.
    """
    if error.errno in PASSING:
        return storage_error(f"{store!r} cannot be read: {error}", error)
    return store.fail(f"cannot be read: {error}", device=True)


async def load(store: Log, cold: NotResident) -> None:
    """Has what a read of `store` needs in memory; KafkaError where that cannot be."""
    try:
        await cold.file.load(cold.position, cold.size)
    except OSError as error:
        raise unreadable(store, error) from error
    except (Damaged, ParseError) as damage:
        # Indexes were to be built anew. Of a segment that compaction has replaced meanwhile that
        # says nothing, so reading again has to find it.
        raise storage_error(f"{store!r} cannot be read: {damage}") from None
