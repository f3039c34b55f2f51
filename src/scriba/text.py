"""Columns and numbers as people read them, on a terminal and in errors."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

Cell = str | int | None

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal does not show but obeys, tab and line feed excepted: escape sequences could
rename the window or rewrite what stands above, marks of direction could turn text around."""


def printable(text: str) -> str:
    """The text with control characters written out, such as \\x1b."""
    return _CONTROL.sub(_written_out, text)


def _written_out(found: "re.Match[str]") -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


_IN_JSON = re.compile(f"[{_CONTROL.pattern[1:-1]}\u2028\u2029]")
"""JSON allows the last two as they are, and some programs take them for the end of a line."""


def json_text(document: Any, indent: int | None = None) -> str:
    """Readable JSON of which a terminal obeys nothing; every reader gets the same document."""
    import json

    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Aligned columns, those of numbers to the right; what is not there is a dash."""
    cells = [list(row) for row in rows]
    texts = [list(headings), *([_text(cell) for cell in row] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    numbers = [
        bool(cells) and all(row[n] is None or isinstance(row[n], int) for row in cells)
        for n in range(len(headings))
    ]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in texts
    ]


def _text(cell: Cell) -> str:
    return "-" if cell is None or cell == "" else printable(str(cell)).replace("\n", "\\n")


def counted(number: int, word: str, plural: str = "") -> str:
    """`1 record`, `1,234 records`."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"
