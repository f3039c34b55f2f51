"""Appending at the end, reading anywhere."""

from itertools import accumulate, product
from typing import Any

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.records.batch import (
    ControlType,
    Record,
    control_key,
    decode_records,
    encode_batch,
    read_header,
    stamp,
)
from scriba.records.header import LOG_OVERHEAD, PLACE
from scriba.settings import TopicSettings
from scriba.storage.log import EMPTY, Log, NotResident, Slice
from scriba.storage.segments.segment import Segment
from tests.typed import present
from tests.unit.storage.shelf import FaultyFile, Shelf


async def test_batches_get_their_place_and_come_back_byte_for_byte(shelf: Shelf) -> None:
    log = shelf.open()
    sent = bytearray()
    for count in (1, 3, 2):
        data = shelf.batch(count)
        base_offset, last_offset, start_offset, repeat = log.append(
            memoryview(data), read_header(data), 7, shelf.now
        )
        assert last_offset - base_offset == count - 1
        assert (start_offset, repeat) == (0, None)
        assert read_header(data).leader_epoch == 7
        sent += data
    assert log.end_offset == 6
    assert await shelf.fetch(log, 0) == sent


async def test_of_the_last_batches_whole_ones_are_read_within_the_limits(shelf: Shelf) -> None:
    log = shelf.open()
    batches: list[tuple[int, int, int]] = []
    position = 0
    for count in (1, 3, 2, 5, 1, 1, 2):
        base, end, size = log.end_offset, log.end_offset + count, len(shelf.batch(count))
        shelf.append(log, count)
        batches.append((base, end, size))
        position += size
    assert log.segment_count == 1
    for offset, bound, min_one in product(range(log.end_offset), (15, 13, 6), (False, True)):
        if offset >= bound:
            continue
        for max_bytes in range(0, position + 200, 90):
            sizes = [size for _, end, size in batches if offset < end <= bound]
            whole = [total for total in accumulate(sizes) if total <= max_bytes]
            most = max(whole, default=sizes[0] if min_one and sizes else 0)
            read = log.read(offset, max_bytes, bound, min_one)
            assert not isinstance(read, NotResident)
            assert most == (0 if read is EMPTY else read.size)
            if read is not EMPTY:
                assert read.position == sum(size for _, end, size in batches if end <= offset)


async def test_segments_roll_by_size_and_a_reader_crosses_them(shelf: Shelf) -> None:
    log = shelf.open()
    for i in range(200):
        shelf.append(log, at=i)
    assert log.segment_count > 5
    assert [r.offset for r in await shelf.consume(log)] == list(range(200))
    bases = [int(name[:20]) for name in shelf.files(".log")]
    assert all((shelf.directory / f"{base:020}.log").stat().st_size <= 4000 for base in bases)
    assert {f"{base:020}.snapshot" for base in bases[1:]} == set(shelf.files(".snapshot"))


async def test_a_segment_rolls_when_records_are_older_than_its_time(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(segment_ms=1000))
    shelf.append(log, at=5000)
    shelf.append(log, at=6000)
    assert log.segment_count == 1
    shelf.append(log, at=6001)
    assert log.segment_count == 2


async def test_without_timestamps_a_segments_age_is_told_by_the_clock(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(segment_ms=1000))
    shelf.append(log, at=-1)
    shelf.later(1000)
    shelf.append(log, at=-1)
    assert log.segment_count == 1
    shelf.later(1)
    shelf.append(log, at=-1)
    assert log.segment_count == 2


async def test_a_quiet_segment_rolls_when_asked(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(segment_ms=1000))
    shelf.append(log, at=5)
    assert not log.roll_if_due(shelf.later(1000))
    assert log.roll_if_due(shelf.later(1))
    assert log.segment_count == 2
    assert not log.roll_if_due(shelf.later(5000)), "there is nothing in it"
    assert shelf.append(log).base_offset == 1


async def test_a_segment_at_rest_is_not_woken_to_be_asked_its_age(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log)
    await log.close()
    log = shelf.open(recovery_point=1, clean=True)
    before = shelf.disk.calls.copy()
    assert not log.roll_if_due(shelf.later(1000))
    assert shelf.disk.calls == before


async def test_jitter_spreads_the_rolling_of_partitions(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(segment_ms=10_000, segment_jitter_ms=5_000))
    age = log._segments.active.limits.age_ms
    assert 5_000 < age <= 10_000


async def test_a_full_index_begins_a_new_segment(shelf: Shelf) -> None:
    settings = TopicSettings(segment_index_bytes=60, index_interval_bytes=0)
    log = shelf.open(settings=settings)
    for _ in range(12):
        shelf.append(log)
    assert log.segment_count == 3
    assert all((shelf.directory / name).stat().st_size <= 60 for name in shelf.files("index"))


async def test_offsets_too_far_apart_for_one_segment_begin_another(shelf: Shelf) -> None:
    log = shelf.open()
    for base in (0, 2**31 - 1, 2**31):
        data = shelf.batch()
        stamp(data, 0, base, 0)
        log.append_follower(memoryview(data), shelf.now)
    assert [int(name[:20]) for name in shelf.files(".log")] == [0, 2**31]
    assert [h.base_offset for h in await shelf.headers(log, 1)] == [2**31 - 1]
    assert [h.base_offset for h in await shelf.headers(log, 2**31)] == [2**31]


async def test_a_batch_larger_than_a_segment_is_refused(shelf: Shelf) -> None:
    log = shelf.open()
    with pytest.raises(KafkaError) as refused:
        shelf.append(log, size=5000)
    assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.end_offset == 0


async def test_new_settings_apply_to_the_active_segment(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, size=1000)
    log.settings = TopicSettings(segment_bytes=1500)
    shelf.append(log, size=1000)
    assert log.segment_count == 2


async def test_a_read_begins_with_the_batch_that_holds_the_offset(shelf: Shelf) -> None:
    log = shelf.open()
    for _ in range(40):
        shelf.append(log, 5)
    for offset in range(200):
        header = (await shelf.headers(log, offset))[0]
        assert header.base_offset == offset // 5 * 5


async def test_a_read_never_passes_its_bound(shelf: Shelf) -> None:
    log = shelf.open()
    for _ in range(60):
        shelf.append(log, 5)
    for bound in range(5, 301, 5):
        for offset in range(max(0, bound - 120), bound, 5):
            headers = await shelf.headers(log, offset, bound=bound)
            assert headers[0].base_offset == offset
            assert headers[-1].next_offset <= bound
    assert log.read(10, 1000, 10) is EMPTY
    assert log.read(10, 1000, 5) is EMPTY


async def test_offsets_outside_of_the_log_are_out_of_range(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, 3)
    log.delete_records_to(1)
    assert log.read(3, 100, 3) is EMPTY
    for offset in (0, 4, -1):
        with pytest.raises(KafkaError) as refused:
            log.read(offset, 100, 3)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_limits_cut_between_batches_where_the_log_knows_them(shelf: Shelf) -> None:
    log = shelf.open()
    for _ in range(10):
        shelf.append(log)
    size = len(shelf.batch())
    assert len(await shelf.fetch(log, 0, 3 * size + 50)) == 3 * size


async def test_the_first_batch_is_sent_whole_if_the_reader_insists(shelf: Shelf) -> None:
    for reopened in (False, True):
        log = shelf.open(clean=reopened, recovery_point=3 if reopened else None)
        if not reopened:
            for _ in range(3):
                shelf.append(log, size=1000)
        assert len(await shelf.headers(log, 1, max_bytes=10)) == 1
        assert await shelf.fetch(log, 1, max_bytes=10, min_one=False) == b""
        await log.close()


async def test_tailing_and_streaming_readers_read_the_headers_of_what_they_get_alone(
    shelf: Shelf,
) -> None:
    log = shelf.open(settings=TopicSettings(index_interval_bytes=300))
    for _ in range(1000):
        shelf.append(log)
    end = log.end_offset
    before = shelf.disk.calls["read"]
    assert isinstance(log.read(end - 1, 1 << 20, end), Slice)
    assert isinstance(log.read(end - 50, 1 << 20, end - 3), Slice)
    assert shelf.disk.calls["read"] - before <= 3, "a window for each, none to find them"
    before = shelf.disk.calls["read"]
    offset = fetches = 0
    while offset < end:
        found = log.read(offset, 2000, end)
        fetches += 1
        assert isinstance(found, Slice)
        view = memoryview(bytearray(found.size))
        assert isinstance(found.file, FaultyFile)
        found.file.uncounted.pread_into(view, found.position)
        *_, last = (read_header(view, at) for at in range(0, found.size, len(shelf.batch())))
        offset = last.next_offset
    assert shelf.disk.calls["read"] - before <= 2 * fetches, "a header before it, and a window"


async def test_an_append_is_one_write_and_nothing_else(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings())
    shelf.append(log)
    before = shelf.disk.calls.copy()
    for _ in range(20):
        shelf.append(log)
    assert shelf.disk.calls - before == {"write": 20}


async def test_what_is_not_in_the_page_cache_is_asked_for_first(shelf: Shelf) -> None:
    log = shelf.open()
    for _ in range(100):
        shelf.append(log)
    await log.close()
    log = shelf.open(recovery_point=100, clean=True)
    shelf.disk.cold = True
    first = log.read(57, 1000, 100)
    assert isinstance(first, NotResident)
    assert (await shelf.headers(log, 57))[0].base_offset == 57


async def test_offsets_that_compaction_removed_lead_to_the_next_batch(shelf: Shelf) -> None:
    log = shelf.open(settings=TopicSettings(segment_bytes=600, index_interval_bytes=0))
    for base in (0, 5, 20, 30, 100, 101, 102, 500):
        data = shelf.batch()
        stamp(data, 0, base, 0)
        log.append_follower(memoryview(data), shelf.now)
    assert log.segment_count > 1
    for reopened in (False, True):
        if reopened:
            await log.close()
            log = shelf.open(settings=log.settings, recovery_point=501, clean=True)
        for offset, expected in ((1, 5), (6, 20), (21, 30), (31, 100), (103, 500), (499, 500)):
            assert (await shelf.headers(log, offset))[0].base_offset == expected
    assert [r.offset for r in await shelf.consume(log, 200)] == [0, 5, 20, 30, 100, 101, 102, 500]


async def test_followers_append_what_the_leader_sent(shelf: Shelf) -> None:
    leader = shelf.open()
    for epoch in (3, 3, 5):
        for _ in range(30):
            shelf.append(leader, 2, epoch=epoch)
    data = b"".join([await shelf.fetch(leader, base) for base in leader._segments._bases])
    shelf.root = shelf.root / "follower"
    shelf.root.mkdir()
    follower = shelf.open()
    cut = len(data) * 2 // 3
    follower.append_follower(memoryview(bytearray(data[:cut])), shelf.now)
    middle = follower.end_offset
    assert 0 < middle < 180
    rest = b"".join(
        [await shelf.fetch(leader, base) for base in leader._segments._bases if base >= middle]
    )
    while follower.end_offset < 180:
        more = await shelf.fetch(leader, follower.end_offset)
        follower.append_follower(memoryview(bytearray(more)), shelf.now)
    assert rest
    assert follower.epochs.entries() == leader.epochs.entries() == [(3, 0), (5, 120)]
    assert await shelf.consume(follower) == await shelf.consume(leader)


async def test_followers_refuse_what_does_not_follow_or_is_damaged(shelf: Shelf) -> None:
    log = shelf.open()
    shelf.append(log, 3)
    repeated = shelf.batch()
    with pytest.raises(KafkaError) as refused:
        log.append_follower(memoryview(repeated), shelf.now)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    damaged = shelf.batch()
    stamp(damaged, 0, 3, 0)
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        log.append_follower(memoryview(damaged), shelf.now)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.end_offset == 3


async def test_followers_write_nothing_of_a_run_with_a_marker_that_cannot_be_read(
    shelf: Shelf,
) -> None:
    """The next fetch brings the rest once more: an offset must not be in the file twice."""
    log = shelf.open()
    about: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 0,
        "control": True,
        "transactional": True,
    }
    key = control_key(ControlType.COMMIT)
    marker = encode_batch([Record(0, 1, key, b"\0\0")], leader_epoch=0, **about)
    data = shelf.batch()
    stamp(data, 0, 1, 0)
    for _ in range(2):
        with pytest.raises(KafkaError) as refused:
            log.append_follower(memoryview(bytearray(marker + data)), shelf.now)
        assert refused.value.code is ErrorCode.INVALID_RECORD
        assert log.end_offset == 0
    await log.close()
    assert not any((shelf.directory / name).stat().st_size for name in shelf.files(".log"))


@pytest.mark.parametrize("reopened", [False, True])
async def test_records_are_found_by_timestamp(shelf: Shelf, reopened: bool) -> None:
    log = shelf.open()
    for i in range(100):
        data = encode_batch([Record(timestamp=1000 + 20 * i + j, value=b"x" * 40) for j in (0, 7)])
        shelf.append_batch(log, data, epoch=2)
    if reopened:
        await log.close()
        log = shelf.open(recovery_point=200, clean=True)
        shelf.disk.cold = True
    assert await log.offset_for_timestamp(0) == (0, 1000, 2)
    assert await log.offset_for_timestamp(1001) == (1, 1007, 2)
    assert await log.offset_for_timestamp(1500) == (50, 1500, 2)
    assert await log.offset_for_timestamp(2987) == (199, 2987, 2)
    assert await log.offset_for_timestamp(2988) is None
    assert await log.max_timestamp_offset() == (199, 2987, 2)
    log.delete_records_to(51)
    assert await log.offset_for_timestamp(0) == (51, 1507, 2)


async def test_timestamps_out_of_order_are_found_by_the_first_that_is_late_enough(
    shelf: Shelf,
) -> None:
    log = shelf.open()
    stamps = [50, 10, 40, 70, 20, 60, 30] * 20
    for at in stamps:
        shelf.append(log, at=at)
    assert present(await log.offset_for_timestamp(55))[:2] == (3, 70)
    assert present(await log.offset_for_timestamp(45))[:2] == (0, 50)
    assert present(await log.max_timestamp_offset())[:2] == (3, 70)


async def test_compressed_batches_are_searched_too(shelf: Shelf) -> None:
    from scriba.records.compression import Codec

    log = shelf.open()
    for codec in Codec:
        data = encode_batch([Record(timestamp=codec * 10 + i) for i in range(5)], codec=codec)
        shelf.append_batch(log, data)
    assert present(await log.offset_for_timestamp(33))[:2] == (18, 33)
    assert len(decode_records(await shelf.fetch(log, 18, 10))) == 5


async def test_a_log_without_timestamps_has_no_latest_record(shelf: Shelf) -> None:
    log = shelf.open()
    assert await log.max_timestamp_offset() is None
    shelf.append(log, at=-1)
    assert await log.max_timestamp_offset() is None
    assert await log.offset_for_timestamp(0) is None


async def test_a_leader_and_a_follower_take_the_same_account_of_what_they_append(
    shelf: Shelf,
) -> None:
    """`Log.append` writes out what `Segment.note` does."""
    leader = shelf.open()
    follower = Log.open(
        shelf.disk, str(shelf.root / "t-1"), "t", 1, None, shelf.settings, shelf.now
    )
    for number in range(400):
        count, at = 1 + number % 3, 1000 + number * 37 % 101
        data = shelf.batch(count, size=1 + number * 7 % 90, at=at)
        leader.append(memoryview(data), read_header(data), 3, shelf.now)
        follower.append_follower(memoryview(data), shelf.now)
        assert account(leader) == account(follower)
    assert leader.segment_count > 3


def account(log: Log) -> list[object]:
    """What is known of the active segment."""
    segment = log._segments.active
    offsets, times = segment.indexes.offsets, segment.indexes.times
    known = [
        getattr(segment, name)
        for name in Segment.__slots__
        if name not in {"_disk", "_offload", "_stem", "aborted", "ascent", "file", "limits"}
        and name not in {"indexes", "recent"}
    ]
    columns = (offsets._lasts, offsets._positions, offsets._bases, times._entries)
    return [*known, *map(bytes, columns), segment.recent.offsets[:], segment.recent.positions[:]]


async def test_a_followers_first_batch_may_lie_further_away_than_a_segment_reaches(
    shelf: Shelf,
) -> None:
    """Indexes have offsets relative to their segment's, in 32 bits."""
    shelf.settings = shelf.settings.replace(cleanup_policy=("compact",))
    log, far = shelf.open(), 2**31 + 5
    for number in range(30):
        batch = shelf.batch(1)
        PLACE.pack_into(batch, 0, far + number, len(batch) - LOG_OVERHEAD, 0)
        log.append_follower(memoryview(batch), shelf.now)
    assert log.end_offset == far + 30
    await log.close()
    log = shelf.open()
    assert (log.end_offset, log.failure) == (far + 30, None)
    assert [each.offset for each in await shelf.consume(log)] == list(range(far, far + 30))
