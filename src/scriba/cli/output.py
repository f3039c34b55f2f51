"""Tables for people, JSON for programs.

Results go to standard output. Whatever else there is to say goes to standard error: a line for
people, or under --json one object a line, whose name says what it is (`note`, `warning`, `error`).
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

Cell = str | int | None

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal does not show but obeys, tab and line feed excepted: escape sequences could
rename the window or rewrite what stands above, marks of direction could turn text around."""


class Style:
    """How this run of the command speaks; `main` sets it."""

    json = False


def printable(text: str) -> str:
    """The text with control characters written out, such as \\x1b."""
    return _CONTROL.sub(_written_out, text)


def _written_out(found: "re.Match[str]") -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    for line in table(headings, rows):
        print(line)


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


def print_lines(text: str) -> None:
    """Text of which parts come from elsewhere, such as names that others chose."""
    print(printable(text))


def print_names(names: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json(list(names))
    else:
        print("".join(f"{printable(name)}\n" for name in names), end="")


def print_json(document: Any) -> None:
    import json

    print(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    print_event(f"note: {text}", {"note": text})


def warn(text: str) -> None:
    print_event(f"warning: {text}", {"warning": text})


def print_event(line: str, document: dict[str, Any]) -> None:
    """Something to say beside the result, in the style that was asked for."""
    if Style.json:
        import json

        line = json.dumps(document)
    # Whoever is told may be gone: after SIGHUP the terminal is.
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)


def counted(number: int, word: str, plural: str = "") -> str:
    """`1 record`, `1,234 records`."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def size(count: float) -> str:
    """Bytes as a person says them: `512 B`, `1.5 MB`; a thousand makes the next unit."""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            break
        count /= 1000
        unit = larger
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
