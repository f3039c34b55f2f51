"""Tasks for workers, by which tests tell how workers behave."""

from collections.abc import Iterator

from scriba.runtime.ports import Disk


def count(disk: Disk, items: int) -> Iterator[int]:
    yield from range(items)


def _number(disk: Disk) -> int:
    return int(disk.read("/proc/self/stat").split()[0])


def process(disk: Disk) -> Iterator[int]:
    """The number of the process that it runs in."""
    yield _number(disk)


def fail(disk: Disk, why: str) -> Iterator[int]:
    yield 0
    raise ValueError(why)


def steps(disk: Disk, path: str, items: int) -> Iterator[int]:
    """Each step leaves a byte in a file."""
    file = disk.open(path, create=True)
    for item in range(items):
        file.pwrite(b".", item)
        yield item


def for_ever(disk: Disk) -> Iterator[int]:
    """Says which process it is, and then nothing more, though it is always at work."""
    yield _number(disk)
    while True:
        disk.list("/")


def hesitant(disk: Disk, items: int) -> Iterator[int | None]:
    """Offers to wait before each item."""
    for item in range(items):
        yield None
        yield item
