"""Small files: leader epochs, offset checkpoints, meta.properties, partition.metadata, names."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.storage.directory.checkpoints import read_offsets
from scriba.storage.directory.meta_properties import MetaProperties
from scriba.storage.directory.names import (
    PartitionName,
    deleted_dir,
    parse_file,
    parse_partition_dir,
    partition_dir,
    stray_dir,
)
from scriba.storage.directory.partition_metadata import encode_topic_id, read_topic_id
from scriba.storage.epochs import Epochs
from tests.unit.storage.shelf import Shelf


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    epochs = Epochs([(2, 0), (4, 100), (7, 250)])
    ends = {epoch: epochs.end_offset_for(epoch, 400) for epoch in range(-1, 9)}
    assert ends == {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 0),
        2: (2, 100),
        3: (2, 100),
        4: (4, 250),
        5: (4, 250),
        6: (4, 250),
        7: (7, 400),
        8: (-1, -1),
    }
    assert Epochs().end_offset_for(3, 50) == (-1, -1)


def test_an_epoch_that_begins_earlier_replaces_those_it_overtakes() -> None:
    epochs = Epochs([(1, 0), (2, 10), (3, 20)])
    epochs.assign(4, 10)
    assert epochs.entries() == [(1, 0), (4, 10)]
    epochs.assign(4, 15)
    assert epochs.entries() == [(1, 0), (4, 10)]
    epochs.assign(3, 30)
    assert epochs.entries() == [(1, 0), (3, 30)]


def test_epochs_are_cut_at_both_ends() -> None:
    epochs = Epochs([(1, 0), (2, 10), (3, 20), (4, 30)])
    epochs.truncate_end(30)
    epochs.truncate_start(15)
    assert epochs.entries() == [(2, 15), (3, 20)]
    assert (epochs.latest, epochs.dirty) == (3, True)
    assert [epochs.epoch_of(at) for at in (14, 15, 19, 20, 99)] == [-1, 2, 2, 3, 3]
    epochs.truncate_start(500)
    assert epochs.entries() == [(3, 500)]
    epochs.truncate_end(0)
    assert (epochs.entries(), epochs.latest) == ([], -1)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=30))
def test_epochs_always_rise_and_survive_their_file(steps: list[tuple[int, int]]) -> None:
    epochs = Epochs()
    for epoch, start in steps:
        epochs.assign(epoch, start)
    entries = epochs.entries()
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    assert Epochs.decode(epochs.encode()).entries() == entries


async def test_a_checkpoint_that_kafka_has_not_written_yet_is_nothing_to_complain_of(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    path = shelf.root / "checkpoint"
    path.write_bytes(b"")
    assert read_offsets(shelf.disk, str(path)) == {}
    assert not caplog.records


async def test_damaged_checkpoints_say_nothing(shelf: Shelf) -> None:
    path = shelf.root / "checkpoint"
    assert read_offsets(shelf.disk, str(path)) == {}
    for text in (
        "1\n0\n",
        "0\n2\na 0 1\n",
        "0\nx\n",
        "0\n1\na b c\n",
        "0\n1\na 1\n",
        "\xff\xfe",
    ):
        path.write_bytes(text.encode("latin-1"))
        assert read_offsets(shelf.disk, str(path)) == {}
    path.write_text("0\n1\nmy topic 0 17\n")
    assert read_offsets(shelf.disk, str(path)) == {}


names = st.builds(
    PartitionName, st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True), st.integers(0, 9999)
)


@given(names, st.binary(min_size=16, max_size=16))
def test_partition_directories_are_told_from_all_others(name: PartitionName, unique: bytes) -> None:
    assert parse_partition_dir(partition_dir(*name)) == name
    for other in (deleted_dir(*name, unique), stray_dir(*name, unique)):
        assert parse_partition_dir(other) is None
        assert len(other) <= 255


def test_names_that_are_none() -> None:
    for name in ("recovery-point-offset-checkpoint", "meta.properties", "t-", "-1", "t-0-future"):
        assert parse_partition_dir(name) is None
    assert parse_partition_dir("my-topic-2-13") == ("my-topic-2", 13)
    assert parse_file("00000000000000000012.timeindex") == (12, ".timeindex")
    assert parse_file("00000000000000000012.log.deleted") == (12, ".log.deleted")
    assert parse_file("leader-epoch-checkpoint") is None


def test_meta_properties_are_read_as_java_writes_them() -> None:
    text = b"""#
#Sat Nov 15 08:00:00 UTC 2025
cluster.id=5L6g3nShT-eMCtK--X86sw
directory.id=AAAAAAAAAAAAAAAAAAAABQ
node.id=1
version=1
"""
    meta = MetaProperties.decode(text)
    assert (meta.cluster_id, meta.node_id) == ("5L6g3nShT-eMCtK--X86sw", 1)
    assert meta.directory_id == bytes(15) + b"\5"
    assert MetaProperties.decode(meta.encode()) == meta
    escaped = rb"version = 1" b"\ncluster.id : a\\:b\nnode.id 7\n"
    assert MetaProperties.decode(escaped) == ("a:b", 7, None)


@pytest.mark.parametrize(
    "text", [b"", b"version=0\nbroker.id=1\n", b"version=1\nnode.id=1\n", b"version=1\n\xff"]
)
def test_meta_properties_that_make_no_sense_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        MetaProperties.decode(text)


async def test_a_partitions_topic_is_known_by_its_id(shelf: Shelf) -> None:
    directory = str(shelf.root)
    path = shelf.root / "partition.metadata"
    assert read_topic_id(shelf.disk, directory) is None
    path.write_bytes(encode_topic_id(b"0123456789abcdef"))
    assert path.read_text() == "version: 0\ntopic_id: MDEyMzQ1Njc4OWFiY2RlZg"
    assert read_topic_id(shelf.disk, directory) == b"0123456789abcdef"
    for text in ("", "version: 0\n", "version: 0\ntopic_id: short", "version: 7\ntopic_id: x"):
        path.write_text(text)
        assert read_topic_id(shelf.disk, directory) is None
