"""Tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

Cell = str | int | None


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
    return "-" if cell is None or cell == "" else str(cell)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


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
