"""The checkers of transactions, groups and tables: they see what is wrong, and nothing else."""

from collections.abc import Callable

import pytest

from scriba.testing.history import Groups, Table, Transactions, check_copied

Log = dict[tuple[str, int], list[tuple[int, bytes]]]
A, B = ("t", 0), ("t", 1)
P = ("in", 0)


def complaints(found: list[str], *expected: str) -> None:
    for text in expected:
        assert any(text in each for each in found), (text, found)
    assert bool(found) == bool(expected), found


# ---- transactions ----


def three() -> Transactions:
    """One committed, one aborted, one whose commit got no answer; each writes to both partitions
    and takes the group two records further."""
    told = Transactions()
    for number, name in enumerate(("one", "two", "three")):
        told.begin(name, "writer")
        told.write(name, A, b"%d:a" % number)
        told.write(name, B, b"%d:b" % number)
        told.send_offsets(name, "group", {P: 2 + 2 * number})
        if name != "two":
            told.commit(name)
    told.committed("one")
    told.aborted("two")
    return told


def log(*numbers: int, b: tuple[int, ...] | None = None) -> Log:
    return {
        A: [(3 * at, b"%d:a" % n) for at, n in enumerate(numbers)],
        B: [(3 * at, b"%d:b" % n) for at, n in enumerate(numbers if b is None else b)],
    }


@pytest.mark.parametrize(("numbers", "offset"), [((0,), 2), ((0, 2), 6)])
def test_the_unknown_transaction_is_there_whole_or_not_at_all(
    numbers: tuple[int, ...], offset: int
) -> None:
    told = three()
    told.read(A, 0, b"0:a")
    told.check(log(*numbers), {("group", P): offset})
    complaints(told.violations)


@pytest.mark.parametrize(
    ("left", "offset", "complaint"),
    [
        (log(), None, "one is committed, and lost"),
        (log(0, b=()), 2, "0:a is there, 0:b is not"),
        (log(0, 2, b=(0,)), 6, "2:a is there, 2:b is not"),
        (log(0, 1), 4, "two is aborted, yet 1:a is there"),
        (log(0, 0), 2, "0:a is there twice"),
        (log(2, 0), 6, "is out of order"),
        (log(0, 9), 2, "nobody wrote 9:a"),
        (log(0), 6, "the offset is 6, the transactions that are there say 2"),
        (log(0, 2), 2, "the offset is 2, the transactions that are there say 6"),
        (log(0), None, "the offset is -1"),
    ],
)
def test_halves_ghosts_and_doubles_of_transactions_are_seen(
    left: Log, offset: int | None, complaint: str
) -> None:
    told = three()
    told.check(left, {("group", P): offset})
    complaints(told.violations, complaint)


def test_a_transaction_of_offsets_alone_may_have_happened() -> None:
    told = Transactions()
    told.begin("one", "writer")
    told.send_offsets("one", "group", {P: 7})
    told.commit("one")
    for found in (None, 7):
        told.check({}, {("group", P): found})
    complaints(told.violations)
    told.check({}, {("group", P): 3})
    complaints(told.violations, "the offset is 3")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [(b"1:a", "its transaction is aborted"), (b"7:a", "nobody wrote 7:a")],
)
def test_what_may_never_be_seen_is_noticed_when_it_is(value: bytes, complaint: str) -> None:
    told = three()
    told.read(A, 3, value)
    complaints(told.violations, complaint)


def test_a_read_of_an_open_transaction_is_seen_though_it_is_committed_later() -> None:
    told = Transactions()
    told.begin("one", "writer")
    told.write("one", A, b"early")
    told.read(A, 0, b"early")
    told.commit("one")
    told.committed("one")
    told.check({A: [(0, b"early")]})
    complaints(told.violations, "its transaction is open")


def test_what_was_read_stays_where_it_was_read() -> None:
    told = three()
    told.read(A, 0, b"0:a")
    told.read(A, 0, b"2:a")
    complaints(told.violations, "read 2:a, before 0:a")
    told = three()
    told.read(A, 9, b"2:a")
    told.check(log(0))
    complaints(told.violations, "2:a was read, now it is nothing")


@pytest.mark.parametrize(
    ("copies", "complaint"),
    [
        ([b"x", b"y"], None),
        ([b"x"], "y has 0 copies"),
        ([b"x", b"y", b"x"], "x has 2 copies"),
        ([b"x", b"y", b"z"], "z has 1 copies"),
    ],
)
def test_copies_are_held_against_the_offset_that_went_with_them(
    copies: list[bytes], complaint: str | None
) -> None:
    sources = {P: [(0, b"x"), (1, b"y"), (2, b"z")]}
    sinks = {A: [(at, b"copy of " + value) for at, value in enumerate(copies)]}
    found = check_copied(sources, sinks, {P: 2}, lambda value: value[-1:])
    complaints(found, *([complaint] if complaint else []))


# ---- groups ----


def test_partitions_move_when_they_were_given_up_or_their_owner_was_left_behind() -> None:
    groups = Groups()
    groups.assigned("g", "one", 1, [A, B])
    groups.revoked("g", "one", [B])
    groups.assigned("g", "two", 2, [B])
    groups.assigned("g", "three", 3, [A])  # the first one was not heard of for too long
    groups.lost("g", "one", [A])
    groups.gone("g", "two")
    groups.assigned("g", "three", 4, [B])
    groups.check()
    complaints(groups.violations)
    assert groups.owners("g") == {A: "three", B: "three"}


def test_two_owners_in_one_generation_are_seen() -> None:
    groups = Groups()
    groups.assigned("g", "one", 4, [A])
    groups.assigned("g", "two", 4, [A])
    complaints(groups.violations, "in generation 4: t-0 was given to one and to two")


def test_a_partition_that_is_given_away_before_it_is_given_up_is_seen() -> None:
    groups = Groups()
    groups.assigned("g", "one", 1, [A])
    groups.assigned("g", "two", 2, [A])
    groups.revoked("g", "one", [A])
    groups.check()
    complaints(groups.violations, "two had it in generation 2 before one of 1 gave it up")


def committed(groups: Groups, offset: int, answer: str, generation: int = 1) -> None:
    commit = groups.commit("g", "one", generation, {A: (offset, f"n{offset}")})
    if answer == "accepted":
        groups.accept(commit)
    elif answer == "refused":
        groups.refuse(commit)


@pytest.mark.parametrize(
    ("answers", "found", "complaint"),
    [
        (["accepted", "accepted"], 2, None),
        (["accepted", "unknown"], 1, None),
        (["accepted", "unknown"], 2, None),
        (["unknown", "accepted"], 1, None),
        (["refused"], None, None),
        (["unknown"], None, None),
        ([], None, None),
        (["accepted"], None, "fetched None"),
        (["accepted", "accepted"], 1, "fetched (1, 'n1'), last accepted is (2, 'n2')"),
        (["accepted", "refused"], 2, "fetched (2, 'n2')"),
        (["accepted"], 0, "fetched (0, 'n0')"),
    ],
)
def test_a_fetch_finds_the_last_commit_that_counts(
    answers: list[str], found: int | None, complaint: str | None
) -> None:
    groups = Groups()
    for offset, answer in enumerate(answers, 1):
        committed(groups, offset, answer)
    fetch = groups.fetch("g")
    groups.fetched(fetch, {A: None if found is None else (found, f"n{found}")})
    complaints(groups.violations, *([complaint] if complaint else []))


def test_a_commit_beside_a_fetch_may_be_found_or_not() -> None:
    for found in (1, 2):
        groups = Groups()
        committed(groups, 1, "accepted")
        fetch = groups.fetch("g")
        committed(groups, 2, "accepted")
        groups.fetched(fetch, {A: (found, f"n{found}")})
        complaints(groups.violations)


def test_the_same_offset_of_another_commit_is_not_the_same() -> None:
    groups = Groups()
    for note in ("first", "second"):
        groups.accept(groups.commit("g", "one", 1, {A: (5, note)}))
    groups.fetched(groups.fetch("g"), {A: (5, "first")})
    complaints(groups.violations, "fetched (5, 'first')")


def test_a_commit_from_an_old_generation_must_not_be_accepted() -> None:
    groups = Groups()
    groups.assigned("g", "one", 1, [A])
    groups.assigned("g", "two", 2, [A])
    committed(groups, 3, "refused")
    complaints(groups.violations)
    committed(groups, 3, "accepted")
    complaints(groups.violations, "a commit of one in generation 1 was accepted")


def test_records_that_the_group_skipped_are_seen() -> None:
    groups = Groups()
    groups.poll("g", A, [0, 1, 3])
    groups.check({("g", A): [0, 1, 3]})
    complaints(groups.violations)
    groups.check({("g", A): range(4)})
    complaints(groups.violations, "1 records were passed and given to nobody, the first at 2")


# ---- tables ----


def table() -> Table:
    """k=1 at 0, k=2 at 1, j=3 at 2, k=4 aborted at 3, j removed at 5, k=6 unknown."""
    told = Table()
    for offset, key, value in ((0, b"k", b"1"), (1, b"k", b"2"), (2, b"j", b"3")):
        told.written(told.write(A, key, value), offset)
    told.never(told.write(A, b"k", b"4"))
    told.written(told.write(A, b"j", None), 5)
    told.write(A, b"k", b"6")
    return told


K1, K2, J3, K4 = (0, b"k", b"1"), (1, b"k", b"2"), (2, b"j", b"3"), (3, b"k", b"4")
GONE, K6 = (5, b"j", None), (6, b"k", b"6")


@pytest.mark.parametrize(
    "rows", [[K1, K2, J3, GONE], [K2, GONE, K6], [K2], [K6]], ids=["all", "most", "k", "unknown"]
)
def test_any_amount_of_compaction_is_fine(rows: list[tuple[int, bytes, bytes | None]]) -> None:
    told = table()
    told.read(A, rows)
    complaints(told.violations)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([GONE], "the last value of k is 2 at 1, found nothing"),
        ([K1, GONE], "the last value of k is 2 at 1, found 1 at 0"),
        ([K2, J3], "the last value of j is nothing at 5, found 3 at 2"),
        ([K2, K4, GONE], "4 was never committed"),
        ([GONE, K2], "offset 1 follows 5"),
        ([(1, b"k", b"6"), GONE], "2 was written, is 6"),
        ([K2, (4, b"x", b"9"), GONE], "nobody wrote 9"),
    ],
)
def test_lost_revived_moved_and_foreign_rows_are_seen(
    rows: list[tuple[int, bytes, bytes | None]], complaint: str
) -> None:
    told = table()
    told.read(A, rows)
    complaints(told.violations, complaint)


def test_what_was_compacted_away_must_not_come_back() -> None:
    told = table()
    for rows in ([K1, K2, GONE], [K2, GONE], [K1, K2, GONE]):
        told.read(A, rows)
    complaints(told.violations, "t-0 0: was gone, and is back")


def test_writes_that_came_beside_a_reading_are_not_asked_of_it() -> None:
    told = table()
    before = told.known(A)
    told.written(told.write(A, b"k", b"7"), 7)
    told.read(A, [K2, GONE], known=before)
    told.read(A, [K2, GONE], end=7)  # behind it a transaction is open
    told.write(A, b"k", None)
    told.read(A, [GONE], known=before)
    complaints(told.violations)
    told = table()
    told.written(told.write(A, b"k", b"7"), 7)
    told.read(A, [K2, GONE])
    complaints(told.violations, "the last value of k is 7 at 7, found 2 at 1")


@pytest.mark.parametrize("make", [Transactions, Groups, Table])
def test_only_the_first_findings_are_kept(
    make: Callable[[], Transactions | Groups | Table],
) -> None:
    told = make()
    for number in range(100):
        told.violation(str(number))
    assert told.violations[0] == "0"
    assert len(told.violations) == 20
