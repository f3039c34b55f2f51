"""The language of declarations, on messages made up for the purpose."""

import copy
import linecache
import pickle
import struct
import traceback
import tracemalloc

import pytest

from scriba.errors import ParseError
from scriba.wire.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableStr,
    Records,
    Str,
    Struct,
    Uuid,
    field,
)
from scriba.wire.varint import read_uvarint, skip_tags, write_uvarint


class Point(Struct):
    x: Int32 = field("0+", default=-1)
    y: Int32 = field("0+", default=-1)


class Leaf(Struct):
    name: Str = field("0+")
    sizes: list[Int64] = field("1+")
    mark: Bool = field("2+", tag=0)


class Tree(Message, key=99, versions="0-3", flexible="2+"):
    id: Int16 = field("0+")
    title: NullableStr = field("0+", default=None, nullable="1+")
    leaves: list[Leaf] = field("0+")
    spare: list[Leaf] | None = field("1+", ignorable=True)
    strict: Int32 = field("3+", default=7)
    root: Point | None = field("1+", default=None, ignorable=True)
    origin: Point = field("2+", tag=1, ignorable=True)
    owner: Uuid = field("2+", ignorable=True)
    blob: Bytes = field("3+", tag=2, ignorable=True)


class Arrays(Message, versions="0-1", flexible="1+"):
    numbers: list[Int32] = field("0+")
    small: list[Int8] = field("0+")
    texts: list[Str] = field("0+")
    ids: list[Uuid] = field("0+")
    points: list[Point] = field("0+")


class Parcel(Message, versions="0-1", flexible="1+"):
    records: Records = field("0+")


def a_tree() -> Tree:
    return Tree(id=5, title="oak", leaves=[Leaf(name="a"), Leaf(name="b")])


def test_attributes_nobody_set_have_their_defaults() -> None:
    tree = Tree()
    assert (tree.id, tree.title, tree.leaves, tree.strict) == (0, None, [], 7)
    assert tree.origin == Point(x=-1, y=-1)
    tree.leaves.append(Leaf())
    assert Tree().leaves == []


def test_a_misspelt_attribute_is_refused() -> None:
    with pytest.raises(TypeError, match="titel"):
        Tree(titel="oak")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Tree().titel = "oak"  # type: ignore[attr-defined]


def test_the_shared_default_of_a_tagged_structure_refuses_changes() -> None:
    tree = Tree()
    with pytest.raises(AttributeError, match="assign a new one"):
        tree.origin.x = 3
    tree.origin = Point(x=3)
    assert Tree().origin.x == -1
    assert Tree.decode(tree.encode(2), 2).origin == Point(x=3, y=-1)


def test_messages_can_be_copied() -> None:
    tree = a_tree()
    for duplicate in (copy.copy(tree), copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert duplicate == tree
        assert duplicate.origin is tree.origin
    copy.deepcopy(tree).leaves[0].name = "changed"
    assert tree == a_tree()


def test_repr_shows_what_was_set() -> None:
    assert repr(a_tree()) == "Tree(id=5, title='oak', leaves=[Leaf(name='a'), Leaf(name='b')])"


def test_equality_is_by_class_and_value() -> None:
    assert a_tree() == a_tree()
    assert a_tree() != Tree(id=5)
    assert Point() != Leaf()
    assert Tree(origin=Point()) == Tree()


def test_bytes_of_a_classic_and_of_a_flexible_version() -> None:
    tree = Tree(id=5, title="oak", leaves=[Leaf(name="a")])
    assert tree.encode(0).hex() == "000500036f616b00000001000161"
    flexible = "0005046f616b020261010001ff" + "00" * 16 + "00"
    assert tree.encode(2).hex() == flexible


def test_a_value_the_version_lacks_is_refused_unless_ignorable() -> None:
    tree = a_tree()
    tree.owner = bytes(range(16))
    assert Tree.decode(tree.encode(1), 1) == a_tree()
    tree.strict = 8
    with pytest.raises(ValueError, match=r"strict is not in this version"):
        tree.encode(1)
    assert Tree.decode(tree.encode(3), 3).strict == 8
    tree.strict = 7
    tree.leaves[0].mark = True
    with pytest.raises(ValueError, match=r"Leaf\.mark"):
        tree.encode(1)


def test_null_where_there_can_be_none() -> None:
    tree = Tree(title=None)
    assert Tree.decode(tree.encode(1), 1).title is None
    out = bytearray(b"before")
    with pytest.raises(ValueError, match="Tree v0"):
        tree.encode_into(out, 0)
    assert out == b"before"
    with pytest.raises(ParseError, match="title is null"):
        Tree.decode(struct.pack(">hhi", 5, -1, 0), 0)
    with pytest.raises(ParseError, match="leaves is null"):
        Tree.decode(struct.pack(">hhi", 5, 0, -1), 0)


def test_a_nullable_structure_is_there_or_not() -> None:
    for root in (None, Point(x=1, y=2)):
        for version in (1, 2, 3):
            tree = Tree(root=root, spare=None)
            assert Tree.decode(tree.encode(version), version) == tree


@pytest.mark.parametrize("version", [1, 2])
def test_values_out_of_range_are_refused(version: int) -> None:
    for bad in (
        Tree(id=1 << 15),
        Tree(title="x" * 32768),
        Tree(leaves=[Leaf(sizes=[1 << 63])]),
        Tree(leaves=None),  # type: ignore[arg-type]
        Tree(title="\ud800"),
    ):
        with pytest.raises(ValueError, match=f"Tree v{version}"):
            bad.encode(version)
    longest = Tree(title="x" * 32767)
    assert Tree.decode(longest.encode(version), version) == longest
    with pytest.raises(ValueError, match="16 bytes"):
        Tree(owner=b"short").encode(2)


def test_unknown_versions() -> None:
    with pytest.raises(ValueError, match="no version 4"):
        Tree().encode(4)
    with pytest.raises(ParseError, match="no version 4"):
        Tree.decode(b"", 4)


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(ParseError, match="1 bytes left over"):
        Tree.decode(Tree(title="").encode(0) + b"x", 0)


def test_unknown_tags_are_skipped() -> None:
    known = Tree(id=1, leaves=[Leaf(name="a")], origin=Point(x=2), blob=b"blob").encode(3)
    assert known.endswith(bytes.fromhex("02010900000002ffffffff00020505") + b"blob")
    leaf_end = known.index(b"\x02a\x01\x00") + 3
    foreign = (
        known[:leaf_end]
        + bytes.fromhex("01ac0203aabbcc")  # one tag, 300, three bytes
        + known[leaf_end + 1 : known.rindex(b"\x02\x01\x09")]
        + bytes.fromhex("03010900000002ffffffff00020505")
        + b"blob"
        + write_uvarint(70000)
        + write_uvarint(200)
        + bytes(200)
    )
    assert Tree.decode(foreign, 3) == Tree.decode(known, 3)


def test_a_tagged_field_must_fill_its_size() -> None:
    encoded = Tree(blob=b"blob").encode(3)
    assert encoded.endswith(b"\x02\x05\x05blob")
    for size in (b"\x04", b"\x06"):
        with pytest.raises(ParseError):
            Tree.decode(encoded[:-6] + size + encoded[-5:] + b"??", 3)


@pytest.mark.parametrize("count", [5, 1 << 16, (1 << 31) - 1])
@pytest.mark.parametrize("place", range(5))
def test_a_huge_count_is_refused_before_memory_is_taken(place: int, count: int) -> None:
    classic = bytes(4 * place) + struct.pack(">i", count) + bytes(4 * (4 - place))
    flexible = b"\x01" * place + write_uvarint(min(count + 1, (1 << 31) - 1)) + b"\x01\x01\x01"
    for version, buf in ((0, classic[: 4 * place + 6]), (1, flexible)):
        Arrays._decoders[version]
        tracemalloc.start()
        try:
            with pytest.raises(ParseError):
                Arrays.decode(buf, version)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_records_are_a_view_of_the_buffer_they_came_in() -> None:
    for version in (0, 1):
        buf = bytearray(Parcel(records=b"payload").encode(version))
        records = Parcel.decode(memoryview(buf), version).records
        assert isinstance(records, memoryview)
        assert bytes(records) == b"payload"
        records[0:1] = b"P"
        assert b"Payload" in buf
        assert Parcel.decode(Parcel(records=None).encode(version), version).records is None


def test_a_traceback_shows_the_generated_source() -> None:
    try:
        Tree.decode(b"\0", 0)
    except ParseError as e:
        text = "".join(traceback.format_exception(e))
        linecache.checkcache()
        text_later = "".join(traceback.format_exception(e))
    assert "<scriba Tree v0 decoder>" in text
    assert "= U_hh(buf, pos)" in text
    assert text_later == text


def test_varints() -> None:
    for value in (0, 1, 127, 128, 300, 16383, 16384, 2097151, 2097152, (1 << 31) - 1):
        encoded = write_uvarint(value)
        assert read_uvarint(b"x" + encoded, 1) == (value, 1 + len(encoded))
    for bad in (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x00"):
        with pytest.raises(ValueError, match="varint"):
            read_uvarint(bad, 0)
    assert skip_tags(b"\x02\x00\x01z\x05\x00rest", 0) == 6
