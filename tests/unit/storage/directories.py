"""A log directory on the real disk, and logs in it."""

from typing import Any

from scriba.settings import TopicSettings
from scriba.storage.directory.logdir import LogDir
from scriba.storage.log import Log
from tests.unit.storage.shelf import Shelf

SETTINGS = TopicSettings(segment_bytes=4000)


async def ready(shelf: Shelf, **more: Any) -> LogDir:
    directory = LogDir.open(shelf.disk, str(shelf.root), shelf.offload, **more)
    await directory.adopt("cluster", 1, b"d" * 16)
    await directory.start()
    return directory


async def log_in(
    shelf: Shelf, directory: LogDir, partition: int = 0, topic_id: bytes | None = None
) -> Log:
    return await directory.open_log("t", partition, topic_id, SETTINGS, shelf.now)
