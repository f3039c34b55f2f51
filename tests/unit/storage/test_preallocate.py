"""`preallocate`: a segment has its full size from the start and gives back what is not needed."""

import os

import pytest

from scriba.settings import NodeSettings, TopicSettings
from scriba.storage.log import Log
from tests.unit.storage.shelf import Shelf

SIZE = 4000


@pytest.fixture
def roomy(shelf: Shelf) -> Shelf:
    shelf.settings = TopicSettings(segment_bytes=SIZE, index_interval_bytes=300, preallocate=True)
    return shelf


def sizes(shelf: Shelf) -> list[int]:
    return [os.path.getsize(shelf.directory / name) for name in shelf.files(".log")]


def filled(shelf: Shelf, log: Log, batches: int) -> None:
    for _ in range(batches):
        shelf.append(log, 2)


async def test_a_new_segment_has_its_full_size_and_a_sealed_one_only_its_batches(
    roomy: Shelf,
) -> None:
    log = roomy.open()
    assert sizes(roomy) == [SIZE]
    filled(roomy, log, 40)
    *sealed, active = sizes(roomy)
    assert sealed
    assert active == SIZE
    assert sum(sealed) + log._segments.active.size == log.size
    assert all(size < SIZE for size in sealed)
    assert len(await roomy.consume(log)) == 80


async def test_what_was_not_needed_is_given_back_at_the_end(roomy: Shelf) -> None:
    log = roomy.open()
    filled(roomy, log, 3)
    size, end = log.size, log.end_offset
    await log.close()
    assert sizes(roomy) == [size]
    log = roomy.open(clean=True, recovery_point=end)
    assert log.end_offset == end
    filled(roomy, log, 1)
    assert len(await roomy.consume(log)) == 8
    assert sizes(roomy) == [log.size], "as with Kafka only a new file is given room"


async def test_a_log_that_was_never_written_leaves_an_empty_file(roomy: Shelf) -> None:
    await roomy.open().close()
    assert sizes(roomy) == [0]
    assert roomy.open(clean=True).end_offset == 0


@pytest.mark.parametrize("flushed", [False, True])
async def test_after_a_crash_the_end_is_that_of_the_last_batch(roomy: Shelf, flushed: bool) -> None:
    log = roomy.open()
    filled(roomy, log, 30)
    if flushed:
        await log.flush()
    kept, end, point = await roomy.consume(log), log.end_offset, log.flushed_offset
    log = roomy.open(recovery_point=point)  # the one before was not closed
    assert log.failure is None
    assert (log.end_offset, await roomy.consume(log)) == (end, kept)
    assert sizes(roomy)[-1] == log._segments.active.size
    await log.sync()
    filled(roomy, log, 30)
    assert len(await roomy.consume(log)) == len(kept) + 60


async def test_a_power_cut_that_undoes_the_trimming_of_a_sealed_segment_costs_nothing(
    roomy: Shelf,
) -> None:
    log = roomy.open()
    filled(roomy, log, 10)
    await log.flush()
    log.roll(roomy.now)
    point = log.flushed_offset
    assert point == log.end_offset == log._segments.active.base_offset
    kept = await roomy.consume(log)
    trimmed = sizes(roomy)[0]
    os.truncate(roomy.directory / roomy.files(".log")[0], SIZE)
    log = roomy.open(recovery_point=point)
    assert log.failure is None
    assert sizes(roomy)[0] == trimmed
    roomy.append(log)
    assert len(await roomy.consume(log)) == len(kept) + 1


async def test_a_truncated_log_goes_on_where_it_was_cut(roomy: Shelf) -> None:
    log = roomy.open()
    filled(roomy, log, 5)
    log.truncation.truncate_to(4, roomy.now)
    assert sizes(roomy) == [log.size]
    filled(roomy, log, 1)
    assert log.end_offset == 6
    assert len(await roomy.consume(log)) == 6


async def test_a_write_that_failed_leaves_whole_batches(roomy: Shelf) -> None:
    log = roomy.open()
    filled(roomy, log, 2)
    roomy.disk.full = ".log"
    with pytest.raises(Exception, match="no space left"):
        roomy.append(log)
    roomy.disk.full = ""
    assert sizes(roomy) == [log.size]
    filled(roomy, log, 2)
    assert len(await roomy.consume(log)) == 8


def test_topics_and_brokers_may_ask_for_it() -> None:
    node = NodeSettings.parse({"log.preallocate": "true"})
    assert TopicSettings.resolve({}, node).preallocate
    assert not TopicSettings.resolve({"preallocate": "false"}, node).preallocate
