"""Writes that may have to wait until the device has room for them."""

from collections.abc import Awaitable, Callable

from scriba.runtime.ports import Disk, File

Write = Callable[[], Awaitable[None] | None]
WithRoom = Callable[[Write], Awaitable[None]]
"""Has something written, if need be later, when the device has room for it."""


async def opened(with_room: WithRoom, disk: Disk, path: str, create: bool = False) -> File:
    """A name takes room as well, and a process has only so many files open."""
    found: list[File] = []
    await with_room(lambda: found.append(disk.open(path, create)))
    return found[0]
