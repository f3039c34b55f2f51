"""Records as a consumer hands them out: both implementations make the same, from any bytes."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.client import ConsumerRecord, TimestampType
from scriba.errors import ParseError
from scriba.native import implementation
from scriba.native.implementation import Implementation
from scriba.records.record import Record
from tests.unit.native.sections import section

pytestmark = pytest.mark.usefixtures("chosen")

CREATED = TimestampType.CREATE_TIME
INT64 = st.integers(-(2**63), 2**63 - 1)

content = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), content), max_size=3)
records = st.lists(
    st.builds(Record, timestamp=INT64, key=content, value=content, headers=headers), max_size=12
)
mutations = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4)


def presented(
    chosen: Implementation,
    data: bytes | bytearray,
    count: int,
    *,
    start: int = 0,
    make: Callable[..., object] = ConsumerRecord,
    base: tuple[int, int] = (0, 0),
    append_time: int | None = None,
) -> list[Any]:
    return chosen.present_records(
        data, count, *base, append_time, start, make, "orders", 3, CREATED, 7
    )


@given(records, INT64, INT64 | st.none(), st.integers(0, 12))
def test_each_record_is_what_decoding_finds(
    chosen: Implementation,
    given: list[Record],
    base_timestamp: int,
    append_time: int | None,
    start: int,
) -> None:
    data = section(given)
    decoded = implementation.FALLBACK.decode_records(
        data, len(given), 0, base_timestamp, append_time
    )
    assert presented(
        chosen, data, len(given), start=start, base=(0, base_timestamp), append_time=append_time
    ) == [
        ConsumerRecord("orders", 3, offset, time, CREATED, key, value, headers, 7)
        for offset, time, key, value, headers in decoded[start:]
    ]


@given(records, mutations, st.integers(-1, 2))
def test_mutated_records_are_refused_alike(
    chosen: Implementation, given: list[Record], changes: list[tuple[int, int]], count_error: int
) -> None:
    data = section(given)
    for at, byte in changes:
        if data:
            data[at % len(data)] = byte
    count = len(given) + count_error
    try:
        expected = presented(implementation.FALLBACK, bytes(data), count)
    except ParseError:
        with pytest.raises(ParseError):
            presented(chosen, bytes(data), count)
    else:
        assert presented(chosen, bytes(data), count) == expected


@given(content, content)
def test_any_callable_can_make_them(
    chosen: Implementation, key: bytes | None, value: bytes | None
) -> None:
    data = section([Record(timestamp=5, key=key, value=value)])
    [made] = presented(chosen, data, 1, make=lambda *fields: fields)
    assert made == ("orders", 3, 0, 0, CREATED, key, value, (), 7)


def test_what_its_maker_raises_comes_out(chosen: Implementation) -> None:
    def refuse(*fields: object) -> Never:
        raise LookupError("not today")

    with pytest.raises(LookupError, match="not today"):
        presented(chosen, section([Record()]), 1, make=refuse)


def test_bytes_behind_the_last_record_are_an_error(chosen: Implementation) -> None:
    data = section([Record(value=b"v")])
    with pytest.raises(ParseError, match="more follows"):
        presented(chosen, bytes(data) + b"x", 1)


@pytest.mark.parametrize("field", [8, 10])
def test_partition_and_epoch_have_32_bits_in_the_extension(
    extension: Implementation, field: int
) -> None:
    arguments: list[Any] = [b"", 0, 0, 0, None, 0, ConsumerRecord, "orders", 3, CREATED, 7]
    arguments[field] = 2**31
    with pytest.raises(OverflowError):
        extension.present_records(*arguments)


def one(chosen: Implementation) -> ConsumerRecord:
    made: ConsumerRecord
    [made] = presented(chosen, section([Record(key=b"k", value=b"v")]), 1)
    return made


def test_a_record_can_be_copied_and_sent_to_another_process(chosen: Implementation) -> None:
    made = one(chosen)
    assert copy.copy(made) == made
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_record_has_its_fields_and_no_others(chosen: Implementation) -> None:
    made = one(chosen)
    made.value = {"id": 7}
    assert made.value == {"id": 7}
    with pytest.raises(AttributeError):
        made.color = "blue"  # type: ignore[attr-defined]
    assert repr(made).startswith("ConsumerRecord(topic='orders', partition=3, offset=0,")


def test_a_record_that_refers_to_itself_is_collected(chosen: Implementation) -> None:
    class Order:
        pass

    made, order = one(chosen), Order()
    order.record = made  # type: ignore[attr-defined]
    made.value = order
    gone = weakref.ref(order)
    del made, order
    gc.collect()
    assert gone() is None
