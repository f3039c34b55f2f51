"""A log on the real disk for each test, with faults on demand."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scriba.runtime.work.offload import ThreadOffload
from tests.unit.storage.shelf import FaultyDisk, Shelf


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    offload = ThreadOffload(2)
    yield Shelf(tmp_path, FaultyDisk(offload), offload)
    offload.close()
