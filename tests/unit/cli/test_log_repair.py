"""Partitions with each kind of damage, and what is left of them after a repair."""

import json
from pathlib import Path

import pytest

from scriba.cli.main import main
from scriba.instant import Instant
from scriba.records.batch import Record, decode_records, encode_batch, read_header
from scriba.records.header import CRC_OFFSET, HEADER_SIZE, walk
from scriba.runtime.files.disk import PosixDisk
from scriba.runtime.work.offload import ThreadOffload
from scriba.settings import TopicSettings
from scriba.storage.log import Log

NAME = f"{0:020d}"
SECOND = f"{20:020d}"
NOW = Instant(1, 1_700_000_000_000)
MENDED = (*range(12), 16)
"""Bytes outside the checksum that say something."""


def batches(*bases: int) -> list[bytearray]:
    return [
        encode_batch(
            [Record(0, 1000, None, b"%d" % (base + i)) for i in range(2)], base_offset=base
        )
        for base in bases
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory of a stopped node: one partition, two segments, offsets 0 to 30."""
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / ".kafka_cleanshutdown").write_text("{}")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 30\n")
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{NAME}.log").write_bytes(b"".join(batches(*range(0, 20, 2))))
    (tmp_path / "t-0" / f"{SECOND}.log").write_bytes(b"".join(batches(*range(20, 30, 2))))
    return tmp_path


def segment(home: Path, name: str = NAME) -> Path:
    return home / "t-0" / f"{name}.log"


def repair(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["log", "repair", *map(str, words)])
    return code, *capsys.readouterr()


def offsets(path: Path) -> dict[int, bytes | None]:
    data = path.read_bytes()
    return {
        record.offset: record.value
        for position, header in walk(data)
        for record in decode_records(data[position : position + header.size])
    }


def opened(home: Path) -> Log:
    disk = PosixDisk(ThreadOffload(1))
    return Log.open(disk, str(home / "t-0"), "t", 0, None, TopicSettings(), NOW, recovery_point=30)


def flip(path: Path, at: int, mask: int = 0x40) -> bytes:
    broken = bytearray(path.read_bytes())
    broken[at] ^= mask
    path.write_bytes(broken)
    return bytes(broken)


def test_a_sound_log_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = segment(home).read_bytes()
    assert repair(capsys, home, "--yes") == (0, "1 partition: no damage\n", "")
    assert segment(home).read_bytes() == before


def test_nothing_is_changed_without_yes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    position = [at for at, _ in walk(segment(home).read_bytes())][3]
    broken = flip(segment(home), position + HEADER_SIZE)
    code, out, _ = repair(capsys, home / "t-0")
    assert code == 1
    assert "would drop offsets 6..7" in out
    assert "would keep 18 records in 9 batches" in out
    assert "nothing was changed" in out
    assert segment(home).read_bytes() == broken
    there = sorted(path.name for path in (home / "t-0").iterdir())
    assert there == [f"{NAME}.log", f"{SECOND}.log"]


@pytest.mark.parametrize("number", [0, 4, 9])
@pytest.mark.parametrize("byte", range(HEADER_SIZE + 1))
def test_any_flipped_byte_costs_one_batch_at_most(
    home: Path, capsys: pytest.CaptureFixture[str], byte: int, number: int
) -> None:
    whole = segment(home).read_bytes()
    position = [at for at, _ in walk(whole)][number]
    hurt = read_header(whole, position).base_offset
    broken = flip(segment(home), position + byte)
    code, out, _ = repair(capsys, home / "t-0", "--yes")
    assert code == 0
    if byte in MENDED:
        assert segment(home).read_bytes() == whole
        assert f"mended the batch at {position}" in out
    elif byte < CRC_OFFSET:
        assert segment(home).read_bytes() == broken, "a leader epoch harms nobody"
    else:
        left = [offset for offset in range(20) if offset not in (hurt, hurt + 1)]
        assert offsets(segment(home)) == {offset: b"%d" % offset for offset in left}
        assert f"dropped offsets {hurt}..{hurt + 1}" in out
    backup = segment(home).with_name(f"{NAME}.log.damaged")
    assert not backup.exists() or backup.read_bytes() == broken
    assert offsets(segment(home, SECOND)) == {o: b"%d" % o for o in range(20, 30)}
    log = opened(home)
    assert log.failure is None
    assert (log.start_offset, log.end_offset) == (0, 30)


def test_a_hole_of_many_bytes_costs_what_lay_in_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = segment(home).read_bytes()
    at = [position for position, _ in walk(whole)]
    broken = bytearray(whole)
    broken[at[2] + 5 : at[4] + 20] = b"\xa5" * (at[4] + 20 - at[2] - 5)
    segment(home).write_bytes(broken)
    code, out, _ = repair(capsys, home, "--yes", "--json")
    assert code == 0
    (document,) = json.loads(out)
    (told,) = document["segments"]
    (dropped,) = told["dropped"]
    assert (dropped["first_offset"], dropped["end_offset"]) == (4, 10)
    assert sorted(offsets(segment(home))) == [*range(4), *range(10, 20)]


def test_an_offset_in_a_gap_is_told_by_the_byte_that_flipped_or_not_at_all(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sparse = batches(0, 6, 14)
    segment(home).write_bytes(b"".join(sparse))
    flip(segment(home), len(sparse[0]) + 2, 0x01)
    assert repair(capsys, home, "--yes")[0] == 0
    assert segment(home).read_bytes() == b"".join(sparse), "only 6 is one byte off and fits"
    flip(segment(home), len(sparse[0]) + 7, 0x40)
    code, out, _ = repair(capsys, home, "--yes")
    assert (code, sorted(offsets(segment(home)))) == (0, [0, 1, 14, 15])
    assert "its offset, 70, is wrong and cannot be told" in out


def test_offsets_of_a_lost_end_are_not_given_out_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(home, SECOND)
    path.write_bytes(path.read_bytes()[:-30])
    (home / ".kafka_cleanshutdown").unlink()
    assert opened(home).failure is not None
    code, out, _ = repair(capsys, home, "--yes")
    assert code == 0
    assert "dropped" in out
    log = opened(home)
    assert log.failure is None
    assert log.end_offset == 30


def test_a_tail_that_was_never_flushed_is_left_to_the_next_start(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(home, SECOND)
    path.write_bytes(path.read_bytes() + batches(30)[0][:-5])
    (home / ".kafka_cleanshutdown").unlink()
    assert repair(capsys, home) == (0, "1 partition: no damage\n", "")


def test_a_segment_of_which_nothing_is_left_goes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(home).write_bytes(b"\x17" * 500)
    assert repair(capsys, home, "--yes")[0] == 0
    assert not segment(home).exists()
    assert segment(home).with_name(f"{NAME}.log.damaged").read_bytes() == b"\x17" * 500
    log = opened(home)
    assert (log.failure, log.start_offset, log.end_offset) == (None, 20, 30)


def test_a_running_node_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = PosixDisk(ThreadOffload(1)).lock(str(home))
    try:
        code, _, err = repair(capsys, home / "t-0", "--yes")
    finally:
        lock.release()
    assert code == 1
    assert "is in use by a running node; stop it first" in err


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("__cluster_metadata-0", "restore it from a copy"),
        ("rubbish", "is no partition's directory"),
    ],
)
def test_what_cannot_be_repaired_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, cause: str
) -> None:
    (tmp_path / name).mkdir()
    code, _, err = repair(capsys, tmp_path / name)
    assert code == 1
    assert cause in err


def test_repaired_twice_keeps_both_backups(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for _ in range(2):
        found.append(flip(segment(home), HEADER_SIZE))
        repair(capsys, home, "--yes")
    assert segment(home).with_name(f"{NAME}.log.damaged").read_bytes() == found[0]
    assert segment(home).with_name(f"{NAME}.log.damaged.2").read_bytes() == found[1]


def test_a_repaired_directory_no_longer_says_that_nothing_was_lost(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean, last_run = home / ".kafka_cleanshutdown", home / ".scriba_last_run"
    clean.write_text('{"version": 0, "brokerEpoch": 7}')
    last_run.write_text("of a process that was killed")
    repair(capsys, home, "--yes")
    assert json.loads(clean.read_text())["brokerEpoch"] == 7, "no damage, nothing taken back"
    flip(segment(home), HEADER_SIZE + 3)
    repair(capsys, home)
    assert last_run.exists()
    repair(capsys, home, "--yes")
    assert json.loads(clean.read_text()) == {"version": 0, "brokerEpoch": -1}
    assert not last_run.exists()
