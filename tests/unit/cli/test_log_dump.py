"""Segment files made by hand: sound ones, and each kind of damage."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from scriba.cli.main import main
from scriba.records.batch import EndTxnMarker, Record, encode_batch, end_txn_batch, stamp
from scriba.records.compression import Codec
from scriba.text import printable

BASE = 100
NAME = f"{BASE:020d}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition with one segment of three batches (offsets 100..101, 102, 103) and indexes."""
    first = encode_batch(
        [Record(0, 1000, b"k", b"v", [("h", b"\xff")]), Record(0, 2000, None, None)],
        base_offset=BASE,
        codec=Codec.LZ4,
        leader_epoch=5,
    )
    second = encode_batch([Record(0, 1500, b"", b"later")], base_offset=102, producer_id=9,
                          producer_epoch=1, base_sequence=3)  # fmt: skip
    marker = end_txn_batch(9, 1, EndTxnMarker(commit=True, coordinator_epoch=0), 3000)
    stamp(marker, 0, 103, 5)
    (tmp_path / f"{NAME}.log").write_bytes(first + second + marker)
    at = [len(first), len(first) + len(second)]
    offsets = struct.pack(">IIII", 2, at[0], 3, at[1])
    (tmp_path / f"{NAME}.index").write_bytes(offsets + bytes(80))  # with room that Kafka reserves
    (tmp_path / f"{NAME}.timeindex").write_bytes(struct.pack(">qIqI", 2000, 1, 3000, 3))
    return tmp_path


def dump(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[Any]]:
    code = main(["log", "dump", "--json", *words])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def problems(capsys: pytest.CaptureFixture[str], path: Path) -> list[str]:
    code, lines = dump(capsys, "--quiet", str(path))
    (segment,) = lines
    assert code == (1 if segment["problems"] else 0)
    found: list[str] = segment["problems"]
    return found


def test_batches_and_records_are_shown(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, (first, second, marker, segment) = dump(capsys, "--records", str(directory))
    assert code == 0
    assert (first["base_offset"], first["last_offset"], first["codec"]) == (100, 101, "lz4")
    assert (first["leader_epoch"], first["max_timestamp"], first["crc_ok"]) == (5, 2000, True)
    assert first["records"] == [
        {
            "offset": 100, "timestamp": 1000, "headers": [["h", {"base64": "/w=="}]],
            "key": "k", "value": "v",
        },
        {"offset": 101, "timestamp": 2000, "headers": [], "key": None, "value": None},
    ]  # fmt: skip
    assert (second["producer_id"], second["producer_epoch"], second["base_sequence"]) == (9, 1, 3)
    assert (marker["control"], marker["transactional"]) == (True, True)
    assert marker["records"][0]["control"] == "COMMIT"
    assert (segment["batches"], segment["records"], segment["next_offset"]) == (3, 4, 104)
    assert (segment["index_entries"], segment["time_index_entries"]) == (2, 2)


def test_the_table_for_people(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", "-r", str(directory / f"{NAME}.index")]) == 0
    path, heading, first, record, *rest = capsys.readouterr().out.splitlines()
    assert path == str(directory / f"{NAME}.log")
    assert heading.split()[:3] == ["OFFSETS", "COUNT", "POSITION"]
    assert first.split()[:3] == ["100..101", "2", "0"]
    assert record == '    100 1970-01-01T00:00:01.000Z key="k" value="v" h={"base64": "/w=="}'
    assert rest[-1].startswith("  4 records in 3 batches, offsets 100..103")
    assert rest[-1].endswith("; 2 offset index entries, 2 time index entries")


def test_what_records_hold_does_not_reach_the_terminal_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    obeyed = "\x1b[31m\x9b1m\u202e"
    record = Record(0, 1000, obeyed.encode(), obeyed.encode(), [(obeyed, obeyed.encode())])
    (tmp_path / f"{NAME}.log").write_bytes(encode_batch([record], base_offset=BASE))
    for words in (["-r"], ["-r", "--json"]):
        assert main(["log", "dump", *words, str(tmp_path)]) == 0
        told = capsys.readouterr().out
        assert printable(told) == told


@pytest.mark.parametrize(
    ("cut", "complaint"),
    [(30, "30 bytes that are no batch"), (70, "cut short, 70 are left")],
)
def test_a_tail_that_is_no_batch(
    directory: Path, capsys: pytest.CaptureFixture[str], cut: int, complaint: str
) -> None:
    log = directory / f"{NAME}.log"
    batch = encode_batch([Record(0, 3000, b"k" * 50, None)], base_offset=104)
    log.write_bytes(log.read_bytes() + batch[:cut])
    (problem,) = problems(capsys, directory)
    assert complaint in problem


def test_room_that_is_reserved_for_more_is_no_problem(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory / f"{NAME}.log"
    data = path.read_bytes()
    for room in (10, 5000, 3 << 20):
        path.write_bytes(data + bytes(room))
        assert problems(capsys, path) == []
    path.write_bytes(data + bytes(5000) + b"x")
    assert "no batch begins here" in problems(capsys, path)[0]


def test_garbage_in_place_of_a_header(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = directory / f"{NAME}.log"
    log.write_bytes(log.read_bytes() + b"x" * 100)
    (problem,) = problems(capsys, directory)
    assert problem.endswith("no batch begins here; 100 B not read")


def test_a_flipped_bit_is_found_and_reading_goes_on(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = directory / f"{NAME}.log"
    data = bytearray(log.read_bytes())
    data[65] ^= 1
    log.write_bytes(data)
    code, (first, *_, segment) = dump(capsys, "--records", str(log))
    assert (code, first["crc_ok"], "records" in first) == (1, False, False)
    assert segment["problems"] == ["position 0: the checksum of the batch is wrong"]
    assert segment["batches"] == 3


def test_offsets_that_go_back(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = directory / f"{NAME}.log"
    again = encode_batch([Record(0, 4000, None, None)], base_offset=103)
    log.write_bytes(log.read_bytes() + again)
    (problem,) = problems(capsys, directory)
    assert problem.endswith("offset 103 where 104 or a later one was due")


def test_index_entries_that_point_astray(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = directory / f"{NAME}.index"
    _, position, *_ = struct.unpack_from(">IIII", index.read_bytes())
    index.write_bytes(struct.pack(">IIIIII", 1, position, 1, 7, 1, 2**31))
    assert problems(capsys, directory) == [
        f"index: offset 101 at position {position}: the batch there ends with 102",
        "index: offset 101 at position 7: no batch begins there",
        "index: offset 101 at position 7: not after the entry before it",
        f"index: offset 101 at position {2**31}: no batch begins there",
        f"index: offset 101 at position {2**31}: not after the entry before it",
    ]


def test_time_index_entries_that_are_wrong(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = struct.pack(">qIqIqI", 2000, 1, 1999, 2, 9000, 50)
    (directory / f"{NAME}.timeindex").write_bytes(times)
    assert problems(capsys, directory) == [
        "time index: timestamp 1999 at offset 102: the largest of the batch there is 1500",
        "time index: timestamp 1999 at offset 102: not after the entry before it",
        "time index: timestamp 9000 at offset 150: the log ends before",
    ]


def test_no_index_and_no_records_is_no_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(b"")
    assert main(["log", "dump", "-q", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("  0 records in 0 batches, 0 B; no index\n")


def test_a_directory_without_segments_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", str(tmp_path)]) == 1
    told = f"scriba: {tmp_path} has no segment files; name a partition's directory\n"
    assert capsys.readouterr().err == told


def test_an_index_that_ends_within_an_entry(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = directory / f"{NAME}.index"
    index.write_bytes(index.read_bytes()[:21])
    assert problems(capsys, directory) == ["index: 21 bytes are not whole entries of 8"]


def test_a_file_that_is_not_there_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", str(tmp_path / "gone.log")]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
