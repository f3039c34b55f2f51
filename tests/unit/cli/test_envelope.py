import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.cli.records.envelope import EnvelopeError, Outgoing, from_line, to_line
from scriba.client import ConsumerRecord, TimestampType

data = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(
    data, data, st.lists(st.tuples(names, data), max_size=4), st.integers(0, 2**63 - 1),
    st.integers(0, 2**31 - 1),
)  # fmt: skip
def test_any_record_comes_back_as_it_was(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int,
    partition: int,
) -> None:
    record = ConsumerRecord(
        "t", partition, 7, timestamp, TimestampType.CREATE_TIME, key, value, headers, 0
    )
    line = to_line(record)
    assert line.splitlines() == [line]
    assert from_line(line.encode()) == Outgoing(value, key, headers, partition, timestamp, "t")


def test_a_line_as_people_see_it() -> None:
    record = ConsumerRecord(
        "t", 0, 7, 5, TimestampType.LOG_APPEND_TIME, "ä".encode(), b"\xff", [("h", None)], 0
    )
    assert to_line(record) == (
        '{"topic": "t", "partition": 0, "offset": 7, "timestamp": 5, '
        '"timestamp_type": "log_append", "headers": [["h", null]], "key": "ä", '
        '"value": {"base64": "/w=="}}'
    )


def test_only_the_value_is_needed_and_headers_may_be_an_object() -> None:
    assert from_line('{"value": "v"}') == Outgoing(b"v")
    assert from_line('{"value": null, "headers": {"a": "1"}}') == Outgoing(
        None, headers=[("a", b"1")]
    )


def test_a_record_without_a_time_gets_one_from_the_producer() -> None:
    record = ConsumerRecord("t", 0, 7, -1, TimestampType.CREATE_TIME, None, None, (), 0)
    assert json.loads(to_line(record))["timestamp"] is None
    assert from_line(to_line(record)).timestamp is None


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "is not JSON"),
        (b"\xff", "is not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ("[1]", "is not an object"),
        ('{"vaule": "v"}', "unknown field 'vaule'"),
        ('{"key": "k"}', "has no value; write null"),
        ('{"value": 7}', "neither a string, null nor"),
        ('{"value": {"base64": "?"}}', "cannot be read"),
        ('{"value": {"base64": 7}}', "neither a string, null nor"),
        ('{"value": {"base64": "", "x": ""}}', "neither a string, null nor"),
        ('{"value": "\\ud800"}', "cannot be read"),
        ('{"value": "", "headers": 3}', "neither a list of pairs nor an object"),
        ('{"value": "", "headers": [["a"]]}', "not a pair"),
        ('{"value": "", "headers": ["ab"]}', "not a pair"),
        ('{"value": "", "headers": [["a", 1]]}', "header 'a'"),
        ('{"value": "", "partition": -1}', "no whole number from 0 up"),
        ('{"value": "", "partition": true}', "no whole number from 0 up"),
        ('{"value": "", "timestamp": 1.5}', "no whole number from 0 up"),
        ('{"value": "", "topic": 7}', "a topic that is no name"),
        ('{"value": "", "topic": ""}', "a topic that is no name"),
    ],
)
def test_what_is_no_record_is_refused_with_its_reason(line: str | bytes, complaint: str) -> None:
    with pytest.raises(EnvelopeError, match=complaint):
        from_line(line)
