import json

from scriba.cli.output import counted, printable, size, table
from scriba.text import json_text


def test_columns_line_up_and_numbers_stand_to_the_right() -> None:
    assert table(["NAME", "N", "RACK"], [("a", 5, None), ("longer", 1234, "r1")]) == [
        "NAME       N  RACK",
        "a          5  -",
        "longer  1234  r1",
    ]


def test_a_table_without_rows_is_its_headings() -> None:
    assert table(["A", "B"], []) == ["A  B"]


def test_numbers_in_words() -> None:
    assert counted(1, "record") == "1 record"
    assert counted(0, "record") == "0 records"
    assert counted(1234, "batch", "batches") == "1,234 batches"
    assert [size(n) for n in (0, 999, 1000, 1_500_000, 10**18)] == [
        "0 B", "999 B", "1.0 kB", "1.5 MB", "1000.0 PB",
    ]  # fmt: skip


OBEYED = "\x1b[31m\x7f\x9b1m\u061c\u200e\u202e\u2028"


def test_json_holds_nothing_that_a_terminal_obeys_and_says_the_same() -> None:
    document = {OBEYED: ["ä\n\t", OBEYED]}
    for indent in (None, 2):
        text = json_text(document, indent)
        assert printable(text) == text
        assert "ä" in text
        assert "\u2028" not in text
        assert json.loads(text) == document
