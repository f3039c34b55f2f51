"""Our verdict on many batches, good and damaged, held against that of Kafka 4.3.0's validator.

`kafka/make.py` made the batches and wrote down what Kafka said.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scriba.errors import ErrorCode, KafkaError
from scriba.native import implementation
from scriba.native.implementation import Implementation
from scriba.records.batch import LOG_APPEND_TIME, decode_records, read_header
from scriba.records.validate import MOST_NAMED, BadRecord, prepare
from scriba.settings import TopicSettings

VERDICTS = Path(__file__).parent / "kafka" / "verdicts-4.3.0.tsv.gz"


class Case(NamedTuple):
    now: int
    settings: TopicSettings
    batch: bytearray
    code: int
    blamed: list[int]
    max_timestamp: int | None
    readable: bool


def cases() -> Iterator[Case]:
    for line in gzip.decompress(VERDICTS.read_bytes()).decode().splitlines():
        now, earliest, latest, compacted, append, batch, code, blamed, largest, readable = (
            line.split("\t")
        )
        settings = TopicSettings(
            cleanup_policy=("compact",) if compacted == "1" else ("delete",),
            message_timestamp_type="LogAppendTime" if append == "1" else "CreateTime",
            message_timestamp_before_max_ms=int(now) - int(earliest),
            message_timestamp_after_max_ms=int(latest) - int(now),
        )
        yield Case(
            int(now),
            settings,
            bytearray.fromhex(batch),
            int(code),
            [int(index) for index in filter(None, blamed.split(","))],
            int(largest) if largest else None,
            readable == "1",
        )


@pytest.fixture(scope="module")
def natively(extension: Implementation) -> Iterator[None]:
    """The extension, because the fallback judges most topics from the header alone."""
    before, implementation.chosen = implementation.chosen, extension
    yield
    implementation.chosen = before


@pytest.mark.usefixtures("natively")
def test_the_verdict_is_kafkas_except_that_what_nobody_could_read_is_refused() -> None:
    agreed = stricter = 0
    for case in cases():
        header = read_header(case.batch)
        code, largest = 0, None
        blamed: list[int] = []
        try:
            largest = prepare(memoryview(case.batch), case.settings, case.now).header.max_timestamp
        except KafkaError as error:
            code = error.code
            if isinstance(error, BadRecord):
                blamed = [index for index, _ in error.named(MOST_NAMED)]
        if code == case.code:
            agreed += 1
            assert not blamed or blamed == case.blamed
            assert largest == case.max_timestamp
            if code == 0:
                assert case.readable
                assert len(decode_records(case.batch)) == header.count
        elif code == ErrorCode.INVALID_RECORD and not case.readable:
            stricter += 1
        else:  # two faults at once; Kafka names the other one
            assert {code, case.code} == {ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP}
            assert header.attributes & LOG_APPEND_TIME
    assert agreed > 1800
    assert stricter < 100
