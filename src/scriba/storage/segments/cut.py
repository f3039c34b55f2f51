"""Files that are longer than what a truncation has left of them: cut off the loop, many at once."""

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from scriba.runtime.ports import Disk


class Cut(NamedTuple):
    path: str
    size: int


def cut_files(disk: Disk, cuts: Iterable[Cut]) -> None:
    """Cuts each file to its size; one that has gone meanwhile is left alone. For a thread."""
    for path, size in cuts:
        with suppress(FileNotFoundError):
            file = disk.open(path)
            try:
                file.truncate(size)
            finally:
                file.close()
